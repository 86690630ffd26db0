//! `tsumuji top`: the nodes that run on this machine, live.
//!
//! Asks every node of this user (root: of every user) for its metrics, as `--metrics` shows them, and shows differences between two readings as
//! rates. `nodes` reads, `table` formats for people; this file keeps time, and handles the terminal.

mod nodes;
mod table;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::{DONE, Outcome, output};
use nodes::Look;

/// How long an interrupt may go unnoticed without a terminal.
const SLICE: Duration = Duration::from_millis(100);

/// Show the nodes that run on this machine: rates, losses, queues, windows, CPU.
///
/// Rates are per second, over the last interval. Nodes of commands in another network namespace are seen from there only
/// (`tsumuji testbed exec HOST -- tsumuji top`). q or Ctrl-C ends.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji top\n  tsumuji top --flows --interval 0.5\n  tsumuji top --json"
)]
pub(crate) struct Args {
    /// Seconds between two looks
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Show each node's traffic with each peer, too
    #[arg(long)]
    flows: bool,
    /// Look twice, print one table, and end
    #[arg(long)]
    once: bool,
    /// Look twice, print one JSON object, and end
    #[arg(long)]
    json: bool,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(seconds) if (0.1..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("accepted are 0.1 to 3600 seconds".to_owned()),
    }
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Outcome {
    let interrupt = Interrupt::listen()?;
    let interval = Duration::from_secs_f64(args.interval);
    let mut before = Look::now(None)?;
    if args.once || args.json {
        wait(interval, &interrupt, false);
        let now = Look::now(Some(&before))?;
        if args.json {
            output::print_json(&now.json());
        } else {
            let width = columns().unwrap_or(usize::MAX);
            output::print_text(&table::of(&now, args.flows, width));
        }
        return Ok(DONE);
    }
    let keys = Keys::listen();
    let terminal = std::io::stdout().is_terminal();
    if terminal {
        output::print_text("\x1b[2J");
    }
    loop {
        let width = columns().unwrap_or(usize::MAX);
        let text = table::of(&before, args.flows, width);
        let page = if terminal { screen(&text) } else { text + "\n" };
        if !output::print_text(&page) {
            return Ok(DONE);
        }
        if !wait(interval, &interrupt, keys.is_some()) {
            let interrupted = interrupt.is_set();
            return Ok(if interrupted {
                ExitCode::from(INTERRUPTED)
            } else {
                DONE
            });
        }
        before = Look::now(Some(&before))?;
    }
}

/// Width of the terminal; `None`: there is none, and lines may have any length.
fn columns() -> Option<usize> {
    let out = std::io::stdout();
    let size = out
        .is_terminal()
        .then(|| rustix::termios::tcgetwinsize(&out));
    let size = size?.ok().filter(|size| size.ws_col > 1)?;
    Some(size.ws_col.into())
}

/// The text as a page over the present screen, cut to the size of the terminal.
fn screen(text: &str) -> String {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let size = size.ok().filter(|size| size.ws_row > 1 && size.ws_col > 1);
    let (rows, columns) = size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()));
    let mut page = "\x1b[H".to_owned();
    for line in text.lines().take(rows - 1) {
        page.extend(line.chars().take(columns));
        page.push_str("\x1b[K\r\n");
    }
    page.push_str("\x1b[J");
    page
}

/// Waits for `span`; `false`: the user wants to end.
fn wait(span: Duration, interrupt: &Interrupt, keys: bool) -> bool {
    let end = Instant::now() + span;
    let stdin = std::io::stdin();
    while !interrupt.is_set() {
        let left = end.saturating_duration_since(Instant::now()).min(SLICE);
        if left.is_zero() {
            return true;
        }
        if !keys {
            std::thread::sleep(left);
            continue;
        }
        let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
        let slice = Timespec {
            tv_sec: 0,
            tv_nsec: left.subsec_nanos().into(),
        };
        if rustix::event::poll(&mut fds, Some(&slice)).is_ok_and(|ready| ready > 0) {
            let mut typed = [0_u8; 64];
            match rustix::io::read(&stdin, &mut typed) {
                Ok(0) => return false,
                Ok(bytes) if typed[..bytes].iter().any(|key| matches!(key, b'q' | b'Q')) => {
                    return false;
                }
                _ => {}
            }
        }
    }
    false
}

/// Sets the terminal to pass on keys as they are typed, until dropped.
struct Keys(Termios);

impl Keys {
    /// `None`: there is no terminal, or another program uses it now.
    fn listen() -> Option<Self> {
        let stdin = std::io::stdin();
        let before = rustix::termios::tcgetattr(&stdin).ok()?;
        let foreground = rustix::termios::tcgetpgrp(stdin.as_fd()).ok()?;
        if foreground != rustix::process::getpgrp() {
            return None;
        }
        let mut raw = before.clone();
        raw.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
        raw.special_codes[SpecialCodeIndex::VMIN] = 1;
        raw.special_codes[SpecialCodeIndex::VTIME] = 0;
        rustix::termios::tcsetattr(&stdin, OptionalActions::Now, &raw).ok()?;
        Some(Self(before))
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        // A terminal that is gone needs no restoring.
        let _ = rustix::termios::tcsetattr(std::io::stdin(), OptionalActions::Now, &self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals out of range are refused.
    #[test]
    fn intervals_are_checked() {
        assert_eq!(interval("0.5"), Ok(0.5));
        for text in ["0", "-1", "nan", "inf", "1e9", "x", ""] {
            assert!(interval(text).is_err(), "{text}");
        }
    }

    /// A page never scrolls the terminal, and leaves nothing of the previous page.
    #[test]
    fn pages_fit() {
        let page = screen(&"0123456789".repeat(50).repeat(3).replace("99", "9\n9"));
        assert!(page.starts_with("\x1b[H") && page.ends_with("\x1b[J"));
        assert_eq!(page.matches("\x1b[K\r\n").count(), 1);
    }
}
