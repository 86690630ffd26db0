//! Reports of our own program: the object that `tsumuji … --json` prints in a process of its own.
//!
//! Such processes are started where node 0 must be in its own host, where DPDK starts once in a process, and where a whole run is measured.

use std::process::{Command, Stdio};

use serde_json::Value;

use crate::stop;

/// What our program ends by after a signal that asks for its end.
const INTERRUPTED: i32 = 130;

/// Runs `command` with `--json` to its end: its report, or why there is none. A run that ends above its tolerance has a report, too, and so may one
/// whose time was over.
pub fn of(command: &mut Command) -> Result<Value, String> {
    stop::check().map_err(|wanted| wanted.to_string())?;
    let output = command.arg("--json").stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    // The terminal interrupts that process, too.
    stop::check().map_err(|wanted| wanted.to_string())?;
    let report = read(&output.stdout, &output.stderr)?;
    match output.status.code() {
        Some(0 | 1 | INTERRUPTED) => Ok(report),
        _ => Err(format!("it ended by {}", output.status)),
    }
}

/// The report of a process that has ended, or its `error`, or the last line of its complaints.
pub fn read(stdout: &[u8], stderr: &[u8]) -> Result<Value, String> {
    let report: Value = serde_json::from_slice(stdout).unwrap_or_default();
    match report["error"].as_str() {
        Some(error) => Err(error.to_owned()),
        None if report.is_object() => Ok(report),
        None => {
            let said = String::from_utf8_lossy(stderr);
            let last = said.lines().last();
            Err(last.unwrap_or("it ended without a result").to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A run may end below its aim, or when its time is over, and still tells how far it came; other ends are failures.
    #[test]
    fn ends_are_told_apart() {
        let run = |script: &str| of(Command::new("sh").args(["-c", script]));
        for end in [0, 1, 130] {
            let report = run(&format!("echo '{{\"laps\":3}}'; exit {end}")).unwrap();
            assert_eq!(report["laps"], 3);
        }
        assert!(run("echo '{\"laps\":3}'; exit 2").is_err());
        let expired =
            "timeout --preserve-status 1 sh -c 'trap \"echo {}; exit 130\" TERM; sleep 5 & wait'";
        assert!(run(expired).is_ok());
    }

    /// A report that tells an error is none, and a process without report is told by its last words.
    #[test]
    fn failures_are_no_reports() {
        assert_eq!(read(b"{\"laps\":3}", b"").unwrap()["laps"], 3);
        let failed = |stdout: &[u8], stderr: &[u8]| read(stdout, stderr).unwrap_err();
        assert_eq!(failed(b"{\"error\":\"no file\"}", b"other"), "no file");
        assert_eq!(failed(b"", b"one\ntwo\n"), "two");
        assert_eq!(failed(b"3", b""), "it ended without a result");
    }
}
