//! Runs `ip`, `tc`, `bridge` and `ethtool`: alone, or many lines by one process.
//!
//! Called wherever the kernel is queried or changed. Batches die with us (`setpriv --pdeathsig`), so that the batch of a killed `up` does not go on
//! building during the `down` that follows. An error is one line: the command, and its message.

use std::io::{Seek, Write};
use std::process::{Command, Output, Stdio};

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommandError {
    /// The program is not installed.
    #[error("{program}: not found; apt-get install {package}")]
    NotInstalled {
        /// The program.
        program: &'static str,
        /// The package that contains it.
        package: &'static str,
    },
    /// It could not be run, or its input or output could not be handled.
    #[error("{command}: {source}")]
    Run {
        /// The command.
        command: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// It ended with an error.
    #[error("{command}: {complaint}")]
    Failed {
        /// The command.
        command: String,
        /// Its message, in one line.
        complaint: String,
    },
    /// Its output could not be parsed.
    #[error("{command}: unexpected answer ({problem})")]
    Answer {
        /// The command.
        command: String,
        /// What is wrong with the output.
        problem: String,
    },
}

/// The programs used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tool {
    Ip,
    Tc,
    Bridge,
}

impl Tool {
    fn program(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Tc => "tc",
            Self::Bridge => "bridge",
        }
    }
}

/// The package of `ip`, `tc` and `bridge`.
const PACKAGE: &str = "iproute2";

/// Runs one command, in a namespace if one is named, and returns its output.
pub(crate) fn run(
    tool: Tool,
    netns: Option<&str>,
    arguments: &[&str],
) -> Result<Vec<u8>, CommandError> {
    let mut command = Command::new(tool.program());
    command.args(netns.iter().flat_map(|netns| ["-netns", netns]));
    command.args(arguments).stdin(Stdio::null());
    let shown = shown(tool, netns, &arguments.join(" "));
    let output = output_of(&mut command, &shown, tool.program(), PACKAGE)?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(CommandError::Failed {
        command: shown,
        complaint: complaint(&said, &output),
    })
}

/// Runs a command and parses its output as JSON.
pub(crate) fn ask<T: serde::de::DeserializeOwned>(
    tool: Tool,
    netns: &str,
    arguments: &[&str],
) -> Result<Vec<T>, CommandError> {
    let answer = run(tool, Some(netns), arguments)?;
    let lists: Result<Vec<Vec<T>>, String> = parse(&answer);
    lists
        .map(|lists| lists.into_iter().flatten().collect())
        .map_err(|problem| CommandError::Answer {
            command: shown(tool, Some(netns), &arguments.join(" ")),
            problem,
        })
}

/// Runs many lines by one process; stops at the first that fails, and the error names it.
pub(crate) fn batch(tool: Tool, netns: Option<&str>, lines: &[String]) -> Result<(), CommandError> {
    run_batch(tool, netns, &[], lines).map(drop)
}

/// Runs many queries by one process and parses the list that each prints.
pub(crate) fn ask_batch<T: serde::de::DeserializeOwned>(
    tool: Tool,
    netns: &str,
    lines: &[String],
) -> Result<Vec<Vec<T>>, CommandError> {
    let answer = run_batch(tool, Some(netns), &["-json"], lines)?;
    let lists: Result<Vec<Vec<T>>, String> = parse(&answer);
    let lists = lists.and_then(|lists| match lists.len() {
        count if count == lines.len() => Ok(lists),
        count => Err(format!("{count} lists for {} questions", lines.len())),
    });
    lists.map_err(|problem| CommandError::Answer {
        command: shown(tool, Some(netns), lines.first().map_or("", String::as_str)),
        problem,
    })
}

fn run_batch(
    tool: Tool,
    netns: Option<&str>,
    options: &[&str],
    lines: &[String],
) -> Result<Vec<u8>, CommandError> {
    if lines.is_empty() {
        return Ok(Vec::new());
    }
    let whole = shown(tool, netns, "-batch -");
    let failed = |source| CommandError::Run {
        command: whole.clone(),
        source,
    };
    // A file rather than a pipe: writing one pipe while reading another could block for ever.
    let mut script = tempfile::tempfile().map_err(failed)?;
    let text: String = lines
        .iter()
        .flat_map(|line| [line.as_str(), "\n"])
        .collect();
    script.write_all(text.as_bytes()).map_err(failed)?;
    script.rewind().map_err(failed)?;

    let mut command = dying_with_us(tool.program());
    command.args(options);
    command.args(netns.iter().flat_map(|netns| ["-netns", netns]));
    command.args(["-batch", "-"]).stdin(script);
    let output = output_of(&mut command, &whole, "setpriv", "util-linux")?;
    if output.status.success() {
        return Ok(output.stdout);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let command = failed_line(&said)
        .and_then(|number| lines.get(number.checked_sub(1)?))
        .map_or(whole, |line| shown(tool, netns, line));
    Err(CommandError::Failed {
        command,
        complaint: complaint(&said, &output),
    })
}

/// A command that the kernel kills when we die. That is tied to the *thread* that starts it, which must wait for it.
pub(crate) fn dying_with_us(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Runs a command to its end; `program` and `package` are for the error when it is not installed.
pub(crate) fn output_of(
    command: &mut Command,
    shown: &str,
    program: &'static str,
    package: &'static str,
) -> Result<Output, CommandError> {
    command.env("LC_ALL", "C").output().map_err(|source| {
        if source.kind() == std::io::ErrorKind::NotFound {
            CommandError::NotInstalled { program, package }
        } else {
            CommandError::Run {
                command: shown.to_owned(),
                source,
            }
        }
    })
}

fn shown(tool: Tool, netns: Option<&str>, arguments: &str) -> String {
    let netns = netns.map_or(String::new(), |netns| format!("-netns {netns} "));
    format!("{} {netns}{arguments}", tool.program())
}

/// Consecutive JSON values: a batch prints one for each line.
fn parse<T: serde::de::DeserializeOwned>(answer: &[u8]) -> Result<Vec<T>, String> {
    let values = serde_json::Deserializer::from_slice(answer).into_iter::<T>();
    values
        .map(|value| value.map_err(|error| error.to_string()))
        .collect()
}

/// The number of the line at which a batch stopped, from 1.
fn failed_line(said: &str) -> Option<usize> {
    let place = said
        .lines()
        .find_map(|line| line.strip_prefix("Command failed "))?;
    place.rsplit(':').next()?.trim().parse().ok()
}

/// The message of a failed command, in one line; how it ended if it printed nothing.
pub(crate) fn complaint(said: &str, output: &Output) -> String {
    let lines: Vec<_> = said
        .lines()
        .map(|line| {
            line.trim()
                .trim_start_matches("Error: ")
                .trim_end_matches('.')
        })
        .filter(|line| !line.is_empty() && !line.starts_with("Command failed "))
        .filter(|line| *line != "We have an error talking to the kernel")
        .collect();
    if lines.is_empty() {
        output.status.to_string()
    } else {
        lines.join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    fn failed() -> Output {
        Output {
            status: std::process::ExitStatus::from_raw(2 << 8),
            stdout: Vec::new(),
            stderr: Vec::new(),
        }
    }

    /// A batch's error names the line that failed, and omits the rest.
    #[test]
    fn complaints_become_one_line() {
        let said = "RTNETLINK answers: File exists\nCommand failed -:12\n";
        assert_eq!(failed_line(said), Some(12));
        assert_eq!(complaint(said, &failed()), "RTNETLINK answers: File exists");
        let said =
            "Error: Failed to load TC action module.\nWe have an error talking to the kernel\n";
        assert_eq!(
            (failed_line(said), complaint(said, &failed()).as_str()),
            (None, "Failed to load TC action module")
        );
        assert_eq!(complaint("\n", &failed()), "exit status: 2");
    }

    /// Consecutive outputs are separated; one that is no list is an error, not a panic.
    #[test]
    fn answers_of_a_batch_are_told_apart() {
        assert_eq!(
            parse::<Vec<u8>>(b"[1,2]\n[]\n[3]").unwrap(),
            [vec![1, 2], vec![], vec![3]]
        );
        assert!(parse::<Vec<u8>>(b"").unwrap().is_empty());
        assert!(parse::<Vec<u8>>(b"[1,").is_err());
        assert!(parse::<Vec<u8>>(b"nonsense").is_err());
    }
}
