//! Tests that the program accepts the commands in the documents and the help texts.
//!
//! Examples (blocks marked `console` or `sh`, and those of the help) must parse as they stand; commands in the text, `like this`, may leave out
//! arguments, but must not have a command or option that does not exist.

use std::path::{Path, PathBuf};

use clap::{Command, CommandFactory, Parser};

use crate::Cli;

/// README, CONTRIBUTING and all of docs, with their contents.
fn documents() -> Vec<(PathBuf, String)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut paths = vec![root.clone()];
    paths.extend(["docs", "docs/decisions"].map(|folder| root.join(folder)));
    let files = paths.iter().flat_map(|folder| {
        let entries = std::fs::read_dir(folder).expect("a folder of the project");
        entries.map(|entry| entry.expect("an entry").path())
    });
    files
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .map(|path| {
            let text = std::fs::read_to_string(&path).expect("text");
            (path, text)
        })
        .collect()
}

/// The words behind the program's name in a shell line: without the shell's own words, comments, and another program's arguments.
fn words(line: &str) -> Option<Vec<&str>> {
    let mut words = line.split_whitespace();
    words
        .find(|word| *word != "sudo" && !word.contains('='))
        .filter(|word| *word == "tsumuji")?;
    let ours = |word: &&str| !word.starts_with(['#', '&', '|', '>']);
    Some(words.take_while(ours).collect())
}

/// Splits a document into shell lines and the text of everything else.
fn split(markdown: &str) -> (Vec<&str>, String) {
    let (mut shell, mut prose, mut block) = (Vec::new(), String::new(), None);
    for line in markdown.lines() {
        if let Some(language) = line.strip_prefix("```") {
            block = block.is_none().then_some(language);
        } else if matches!(block, Some("console" | "sh")) {
            shell.push(line);
        } else if block.is_none() {
            prose.push_str(line);
            prose.push(' ');
        }
    }
    (shell, prose)
}

/// The parser's error for a command line; the program is not among its words.
fn complaint(words: &[&str]) -> Option<String> {
    let line = std::iter::once(&"tsumuji").chain(words);
    Cli::try_parse_from(line)
        .err()
        .map(|error| error.to_string())
}

/// An option that `command` lacks, or a word where only the name of a command can stand.
fn unknown<'a>(command: &Command, words: &[&'a str]) -> Option<&'a str> {
    let (mut command, mut at_name) = (command, true);
    for &word in words {
        if word == "--" {
            return None;
        }
        if let Some(long) = word.strip_prefix("--") {
            let long = long.split('=').next().expect("a first part");
            if !has_option(command, long) {
                return Some(word);
            }
            at_name = false;
        } else if at_name && command.has_subcommands() {
            // `one|another`, or a placeholder.
            let stands_for_many = word == "…" || word.chars().all(char::is_uppercase);
            let mut names = word.split('|').map(|name| command.find_subcommand(name));
            match names.next().flatten() {
                _ if stands_for_many => return None,
                Some(sub) if names.all(|sub| sub.is_some()) => command = sub,
                _ => return Some(word),
            }
        }
    }
    None
}

fn has_option(command: &Command, long: &str) -> bool {
    // Options that clap adds.
    matches!(long, "help" | "version")
        || command
            .get_arguments()
            .any(|option| option.get_long() == Some(long))
}

fn all_commands(command: &Command) -> Vec<&Command> {
    let subs = command.get_subcommands().flat_map(all_commands);
    std::iter::once(command).chain(subs).collect()
}

/// Every example parses as it stands.
#[test]
fn examples_parse() {
    let mut seen = 0;
    let mut check = |place: &str, line: &str| {
        if let Some(words) = words(line) {
            seen += 1;
            assert_eq!(complaint(&words), None, "{place}: {line}");
        }
    };
    for (path, text) in documents() {
        let place = path.display().to_string();
        split(&text).0.iter().for_each(|line| check(&place, line));
    }
    for command in all_commands(&Cli::command()) {
        let help = command.get_after_help().map(ToString::to_string);
        help.unwrap_or_default()
            .lines()
            .for_each(|line| check(command.get_name(), line));
    }
    assert!(seen > 50, "only {seen} examples were found");
}

/// Commands and options that the text names exist.
#[test]
fn what_the_text_names_exists() {
    let program = Cli::command();
    let commands = all_commands(&program);
    let mut seen = 0;
    for (path, text) in documents() {
        if path.ends_with("docs/protocol.md") {
            continue; // our name there begins bytes in frames
        }
        let prose = split(&text).1;
        // Between the first and the second backtick, the third and the fourth …
        for code in prose.split('`').skip(1).step_by(2) {
            let place = format!("{}: {code}", path.display());
            if let Some(words) = words(code) {
                seen += 1;
                assert_eq!(unknown(&program, &words), None, "{place}");
            } else if let Some(option) = code.strip_prefix("--") {
                seen += 1;
                let long = option.split([' ', '=', '[']).next().expect("a first part");
                assert!(
                    commands.iter().any(|command| has_option(command, long)),
                    "{place}"
                );
            }
        }
    }
    assert!(seen > 50, "only {seen} commands and options were found");
}
