//! Reports of our own program: the object that `tsumuji … --json` prints in a process of its own.
//!
//! Such processes are started where node 0 must be in its own host, where DPDK starts once in a process, and where a whole run is measured.

use std::process::{Command, Stdio};

use serde_json::Value;

/// Runs `command` with `--json` to its end: its report, or why there is none. A run that ends above its tolerance has a report, too.
pub fn of(command: &mut Command) -> Result<Value, String> {
    let output = command.arg("--json").stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    let report = read(&output.stdout, &output.stderr)?;
    match output.status.code() {
        Some(0 | 1) => Ok(report),
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
