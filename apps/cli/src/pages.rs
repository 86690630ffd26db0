//! `tsumuji completion`, and the hidden `tsumuji man`: what shells and readers of manual pages need, made from the definitions of the commands.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;

use crate::{Cli, DONE, Outcome, output};

/// Print the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji completion bash > ~/.local/share/bash-completion/completions/tsumuji\n  tsumuji completion zsh > ~/.zfunc/_tsumuji\n  tsumuji completion fish > ~/.config/fish/completions/tsumuji.fish"
)]
pub(crate) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

/// Write the manual pages of all commands: for packagers.
#[derive(Debug, clap::Args)]
pub(crate) struct ManArgs {
    /// An existing folder
    into: PathBuf,
}

pub(crate) fn completion(args: CompletionArgs) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command(), "tsumuji", &mut script);
    output::print_text(&String::from_utf8_lossy(&script));
    Ok(DONE)
}

pub(crate) fn man(args: ManArgs) -> Outcome {
    write_pages(&args.into)?;
    Ok(DONE)
}

/// The commands, as users see them.
fn command() -> clap::Command {
    Cli::command().disable_help_subcommand(true)
}

/// Writes a page for each command that users see.
fn write_pages(into: &Path) -> anyhow::Result<()> {
    clap_mangen::generate_to(command(), into)
        .with_context(|| format!("{}: no manual pages can be written there", into.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each command that users see has a page, and each script names each of them.
    #[test]
    fn all_commands_are_in() {
        let folder = tempfile::tempdir().expect("a folder");
        write_pages(folder.path()).expect("written");
        for sub in command().get_subcommands() {
            let path = folder.path().join(format!("tsumuji-{}.1", sub.get_name()));
            assert_eq!(path.exists(), !sub.is_hide_set(), "{}", path.display());
        }
        let page = std::fs::read_to_string(folder.path().join("tsumuji-join.1")).expect("a page");
        assert!(
            page.contains("shm:PROCESS") && page.contains("Examples"),
            "{page}"
        );
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut command(), "tsumuji", &mut script);
            let script = String::from_utf8(script).expect("text");
            for name in ["solve", "launch", "join", "testbed"] {
                assert!(script.contains(name), "{shell}: no {name}");
            }
        }
    }
}
