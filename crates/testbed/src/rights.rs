//! Whether programs that we start have the rights to build networks.
//!
//! Called before anything is changed, so that a refusal names all missing rights at once.

use std::fs;

/// Capabilities that the work needs, by their numbers in `linux/capability.h`.
const NEEDED: [(u32, &str); 3] = [
    (12, "CAP_NET_ADMIN"),
    (21, "CAP_SYS_ADMIN"),
    (5, "CAP_KILL"),
];

/// The missing rights.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a testbed needs {}; run it as root", missing.join(", "))]
pub struct RightsError {
    /// Names of the missing capabilities.
    pub missing: Vec<&'static str>,
}

/// Returns an error if the programs that we start would lack a capability.
pub fn check() -> Result<(), RightsError> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    missing(&status, rustix::process::geteuid().is_root())
}

/// The missing rights, by the process's own `status` file. Programs that root starts get the effective set, those of others only the ambient one.
fn missing(status: &str, is_root: bool) -> Result<(), RightsError> {
    let set = if is_root { "CapEff:" } else { "CapAmb:" };
    let held = status
        .lines()
        .find_map(|line| line.strip_prefix(set))
        .and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0);
    let missing: Vec<_> = NEEDED
        .into_iter()
        .filter(|(bit, _)| held & (1 << bit) == 0)
        .map(|(_, name)| name)
        .collect();
    if missing.is_empty() {
        Ok(())
    } else {
        Err(RightsError { missing })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each missing right is named; which set counts depends on who we are.
    #[test]
    fn missing_rights_are_named() {
        let status = "Name:\tx\nCapEff:\t000001fffeffffff\nCapAmb:\t0000000000001000\n";
        assert_eq!(missing(status, true), Ok(()));
        let error = missing(status, false).unwrap_err();
        assert_eq!(error.missing, ["CAP_SYS_ADMIN", "CAP_KILL"]);
        assert_eq!(missing("", true).unwrap_err().missing.len(), 3);
    }
}
