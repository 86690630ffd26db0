//! The `tsumuji` program: parses the command line and calls one module per command.
//!
//! Exit codes: 0 success; 1 it did not converge, or a check failed; 2 usage or bad input (`launch`: see there); 130 interrupted. With `--json`
//! one object goes to standard output, also when a command fails; everything else goes to standard error.

#[macro_use]
mod output;

mod agent;
mod bench;
mod doctor;
#[cfg(test)]
mod documented;
mod gateway;
mod given;
mod hosts;
mod interrupt;
mod join;
#[cfg(feature = "seal")]
mod key;
mod lab;
mod launch;
mod learn;
mod meeting;
mod metrics;
mod named;
mod pages;
mod paper;
mod predict;
mod relay;
mod run;
mod security;
mod solve;
mod sweep;
mod talk;
mod team;
mod testbed;
mod top;
mod tune;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

/// User-level message passing for iterative computing on commodity PCs and plain Ethernet.
#[derive(Debug, Parser)]
#[command(
    name = "tsumuji",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Solve(Box<solve::Args>),
    Learn(Box<learn::Args>),
    Predict(predict::Args),
    Launch(launch::Args),
    Join(join::Args),
    Relay(relay::Args),
    Run(run::Args),
    Gateway(gateway::Args),
    Bench(bench::Args),
    Lab(lab::Args),
    Paper(paper::Args),
    Doctor(doctor::Args),
    Testbed(testbed::Args),
    #[cfg(feature = "seal")]
    Key(key::Args),
    Top(top::Args),
    Tune(tune::Args),
    Completion(pages::CompletionArgs),
    #[command(hide = true)]
    Man(pages::ManArgs),
    /// Run one program for a launcher on another host.
    #[command(hide = true)]
    Agent,
    /// Serve one `tsumuji solve` of this host.
    #[command(hide = true)]
    Worker,
    /// Serve one `tsumuji solve` of a netlist. Not for users.
    #[command(hide = true)]
    CircuitWorker,
    /// Serve one `tsumuji learn`. Not for users.
    #[command(hide = true)]
    LearnWorker,
    #[command(hide = true)]
    TuneMember(tune::MemberArgs),
    /// The interface, in a process of its own.
    #[command(hide = true)]
    LabServe,
    #[command(hide = true)]
    BenchServe(bench::ServeArgs),
}

/// How a command ended, unless it failed for bad input.
type Outcome = anyhow::Result<ExitCode>;

/// The command did what was asked.
const DONE: ExitCode = ExitCode::SUCCESS;
/// The command ran, but did not reach its goal.
const NOT_REACHED: u8 = 1;
/// Usage, bad input, or a failure outside of the program.
const BAD_INPUT: u8 = 2;

fn main() -> ExitCode {
    // Behind `--` stand words of another program.
    let mut own = std::env::args_os().take_while(|word| word != "--");
    let wants_json = own.any(|word| word == "--json");
    let words = words();
    let parsed = with_numbers(Cli::command()).try_get_matches_from(&words);
    let cli = match parsed.and_then(|found| Cli::from_arg_matches(&found)) {
        Ok(cli) => cli,
        Err(error)
            if error.use_stderr()
                && error.kind() != ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand =>
        {
            let hint = launch::hint(&error, &words).or_else(|| list_of_commands(&error, &words));
            let message = one_line(&error.to_string()) + &hint.unwrap_or_default();
            return output::close(fail(&message, BAD_INPUT, wants_json));
        }
        // Help and version.
        Err(error) => {
            let code = if error.use_stderr() {
                ExitCode::from(BAD_INPUT)
            } else {
                DONE
            };
            if let Err(error) = error.print().and_then(|()| std::io::stdout().flush()) {
                output::note(error);
            }
            return output::close(code);
        }
    };
    let outcome = match cli.command {
        Command::Solve(args) => solve::run(*args),
        Command::Learn(args) => learn::run(*args),
        Command::Predict(args) => predict::run(args),
        Command::Launch(args) => launch::run(args),
        Command::Join(args) => join::run(args),
        Command::Relay(args) => relay::run(args),
        Command::Run(args) => run::run(args),
        Command::Gateway(args) => gateway::run(args),
        Command::Bench(args) => bench::run(args),
        Command::Lab(args) => lab::run(&args),
        Command::Paper(args) => bench::interruptible(|| paper::run(&args)),
        Command::Doctor(args) => doctor::run(args),
        Command::Testbed(args) => testbed::run(args),
        #[cfg(feature = "seal")]
        Command::Key(args) => key::run(args),
        Command::Top(args) => top::run(args),
        Command::Tune(args) => tune::run(args),
        Command::Completion(args) => pages::completion(args),
        Command::Man(args) => pages::man(args),
        Command::TuneMember(args) => tune::member(args),
        Command::Agent => agent::run(),
        Command::Worker => solve::work(),
        Command::CircuitWorker => solve::circuit::work(),
        Command::LearnWorker => learn::work(),
        Command::LabServe => lab::run::serve(),
        Command::BenchServe(args) => bench::serve(args),
    };
    output::close(outcome.unwrap_or_else(|error| {
        let is_interrupted = error.is::<interrupt::Interrupted>();
        let code = if is_interrupted {
            interrupt::INTERRUPTED
        } else {
            BAD_INPUT
        };
        fail(&sentence(&error), code, wants_json)
    }))
}

/// The command line, with `-n` for the `-np` of other launchers.
fn words() -> Vec<OsString> {
    let mut is_ours = true;
    let words = std::env::args_os().map(|word| {
        is_ours &= word != "--";
        if is_ours && word == "-np" {
            "-n".into()
        } else {
            word
        }
    });
    words.collect()
}

/// For an unknown command, what lists those there are.
fn list_of_commands(error: &clap::Error, words: &[OsString]) -> Option<String> {
    let Some(ContextValue::String(unknown)) = error.get(ContextKind::InvalidSubcommand) else {
        return None;
    };
    let known = words
        .iter()
        .skip(1)
        .take_while(|word| *word != unknown.as_str());
    let known: String = known
        .map(|word| format!("{} ", word.to_string_lossy()))
        .collect();
    Some(format!("; `tsumuji {known}--help` lists the commands"))
}

/// Prints an error in one line.
fn fail(message: &str, code: u8, wants_json: bool) -> ExitCode {
    tell!("tsumuji: {message}");
    if wants_json {
        output::print_json(&serde_json::json!({ "error": message }));
    }
    ExitCode::from(code)
}

/// An error with those of its causes that it does not mention itself, in one line.
fn sentence(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !text.contains(&cause) {
            let separator = if text.is_empty() { "" } else { ": " };
            text = format!("{text}{separator}{cause}");
        }
    }
    output::without_numbers(text.replace('\n', " "))
}

/// The command line parser's error without its decorations: what is wrong and what is accepted.
fn one_line(complaint: &str) -> String {
    let lines = complaint.lines().map(str::trim);
    let lines = lines.take_while(|line| {
        !line.starts_with("Usage:") && !line.starts_with("For more information")
    });
    // A value that looks like an option is hardly ever meant.
    let lines = lines.filter(|line| !line.is_empty() && !line.starts_with("tip: to pass"));
    let text = lines.collect::<Vec<_>>().join("; ").replace(":;", ":");
    let mut text = text.strip_prefix("error: ").unwrap_or(&text).to_owned();
    // One of several options that would do.
    if let Some((before, group)) = text.split_once(" <--")
        && let Some(options) = group.strip_suffix('>')
    {
        text = format!("{before} --{}", options.replace("|--", " or --"));
    }
    for (theirs, ours) in [
        (
            "invalid digit found in string",
            "accepted are whole numbers",
        ),
        (
            "cannot parse integer from empty string",
            "accepted are whole numbers",
        ),
        (
            "number too large to fit in target type",
            "the number is too large",
        ),
        (
            "number too small to fit in target type",
            "the number is too small",
        ),
        (
            "invalid float literal",
            "accepted are numbers, for example 0.5 or 1e-10",
        ),
    ] {
        text = text.replace(theirs, ours);
    }
    // `0 is not in 1..=100`; a range without an end has the highest of all numbers there.
    if let Some((before, range)) = text.rsplit_once(" is not in ")
        && let Some((first, last)) = range.split_once("..")
    {
        let (given, _) = before.rsplit_once(' ').unwrap_or((before, ""));
        text = match last.strip_prefix('=') {
            Some(last) => format!("{given} accepted are {first} to {last}"),
            None => format!("{given} accepted are numbers from {first}"),
        };
    }
    text
}

/// The command and those below it, so that `-1` is taken for a value and refused as such.
fn with_numbers(command: clap::Command) -> clap::Command {
    command
        .allow_negative_numbers(true)
        .mut_subcommands(with_numbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The parser's own checks of names, conflicts and defaults.
    #[test]
    fn command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    /// Every command that users see has an example in its help.
    #[test]
    fn help_has_examples() {
        fn check(command: &clap::Command) {
            for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set()) {
                if sub.has_subcommands() {
                    check(sub);
                } else {
                    let help = sub
                        .get_after_help()
                        .map(ToString::to_string)
                        .unwrap_or_default();
                    assert!(
                        help.contains("Example") && help.contains("tsumuji "),
                        "{} has no example",
                        sub.get_name()
                    );
                }
            }
        }
        check(&Cli::command());
    }

    /// A cause that the error quotes is not repeated.
    #[test]
    fn causes_are_told_once() {
        let io = || std::io::Error::other("no such file");
        let quoting = anyhow::Error::new(io()).context("A.mtx: no such file");
        assert_eq!(sentence(&quoting), "A.mtx: no such file");
        assert_eq!(
            sentence(&anyhow::Error::new(io()).context("A.mtx")),
            "A.mtx: no such file"
        );
    }

    /// What is accepted is told in words, and of the operating system's errors only the words.
    #[test]
    fn ranges_and_numbers_become_words() {
        for (complaint, wanted) in [
            (
                "error: invalid value '0' for '--rounds <R>': 0 is not in 1..=1000",
                "invalid value '0' for '--rounds <R>': accepted are 1 to 1000",
            ),
            (
                "error: invalid value '0' for '-n <N>': 0 is not in 1..18446744073709551615",
                "invalid value '0' for '-n <N>': accepted are numbers from 1",
            ),
            (
                "error: invalid value 'x' for '-n <N>': invalid digit found in string",
                "invalid value 'x' for '-n <N>': accepted are whole numbers",
            ),
            (
                "error: the following required arguments were not provided:\n  --hosts <FILE>\n\nUsage: x",
                "the following required arguments were not provided: --hosts <FILE>",
            ),
            (
                "error: unexpected argument '--frob' found\n\n  tip: to pass '--frob' as a value, use '-- --frob'\n",
                "unexpected argument '--frob' found",
            ),
        ] {
            assert_eq!(one_line(complaint), wanted);
        }
        let missing = std::io::Error::from_raw_os_error(2);
        let error = anyhow::Error::new(missing).context("A.mtx");
        assert_eq!(sentence(&error), "A.mtx: No such file or directory");
    }

    /// Decorations go, the accepted values stay.
    #[test]
    fn complaints_become_one_line() {
        let complaint = "error: invalid value 'x' for '--mode <MODE>'\n  [possible values: async, sync]\n\nFor more information, try '--help'.\n";
        assert_eq!(
            one_line(complaint),
            "invalid value 'x' for '--mode <MODE>'; [possible values: async, sync]"
        );
    }
}
