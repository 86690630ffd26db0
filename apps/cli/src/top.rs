//! `tsumuji top`: the nodes that run on this machine, live.
//!
//! Asks every node of this user (root: of every user) for its metrics, as `--metrics` shows them, and shows differences between two readings as
//! rates. `nodes` reads, `table` formats for people; this file keeps time, and handles the terminal.

pub(crate) mod nodes;
mod table;

use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios};

use crate::interrupt::{INTERRUPTED, Interrupt};
use crate::{DONE, Outcome, output};
use nodes::Reading;

/// How long an interrupt may go unnoticed without a terminal.
const SLICE: Duration = Duration::from_millis(100);

/// Show the nodes that run on this machine: rates, losses, queues, windows, CPU.
///
/// Rates are per second, over the last interval. Nodes of commands in another network namespace are seen from there only
/// (`tsumuji testbed exec HOST -- tsumuji top`). What does not fit on the screen is counted: arrow keys, page keys, j and k scroll. q or Ctrl-C ends.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  tsumuji top\n  tsumuji top --flows --interval 0.5\n  tsumuji top --json"
)]
pub(crate) struct Args {
    /// Seconds between two readings
    #[arg(long, value_name = "S", default_value_t = 1.0, value_parser = interval)]
    interval: f64,
    /// Show each node's traffic with each peer, too
    #[arg(long)]
    flows: bool,
    /// Show the nodes of this job only: its number is in the table
    #[arg(long, value_name = "JOB")]
    job: Option<u32>,
    /// Read twice, print one table, and end
    #[arg(long)]
    once: bool,
    /// Read twice, print one JSON object, and end
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
    let read = |before: Option<&Reading>| -> anyhow::Result<Reading> {
        let mut now = Reading::now(before)?;
        now.nodes
            .retain(|_, node| args.job.is_none_or(|job| node.job == job));
        Ok(now)
    };
    let table = |reading: &Reading| {
        let width = columns().unwrap_or(usize::MAX);
        match args.job {
            Some(job) if reading.nodes.is_empty() => format!("no nodes of job {job} run here\n"),
            _ => table::of(reading, args.flows, width),
        }
    };
    let end = || {
        if interrupt.is_set() {
            ExitCode::from(INTERRUPTED)
        } else {
            DONE
        }
    };
    let mut before = read(None)?;
    if args.once || args.json {
        wait(Instant::now() + interval, &interrupt, false);
        let now = read(Some(&before))?;
        if args.json {
            output::print_json(&now.json());
        } else {
            output::print_text(&table(&now));
        }
        return Ok(end());
    }
    let keys = Keys::listen();
    let terminal = std::io::stdout().is_terminal();
    if terminal {
        output::print_text("\x1b[2J");
    }
    let mut first = 0;
    loop {
        let text = table(&before);
        let next = Instant::now() + interval;
        loop {
            let (rows, columns) = size();
            let page = if terminal {
                screen(&text, rows, columns, &mut first)
            } else {
                text.clone() + "\n"
            };
            if !output::print_text(&page) {
                return Ok(DONE);
            }
            match wait(next, &interrupt, keys.is_some()) {
                Wish::End => return Ok(end()),
                Wish::Refresh => break,
                Wish::Scroll(step) => first = step.of(first, rows),
            }
        }
        before = read(Some(&before))?;
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

/// Rows and columns of the terminal.
fn size() -> (usize, usize) {
    let size = rustix::termios::tcgetwinsize(std::io::stdout());
    let size = size.ok().filter(|size| size.ws_row > 1 && size.ws_col > 1);
    size.map_or((24, 80), |size| (size.ws_row.into(), size.ws_col.into()))
}

/// The text as a page over the present screen, cut to its size: the heading, the lines from `first` on, which is set back where there are no more, and
/// how many are not shown.
fn screen(text: &str, rows: usize, columns: usize, first: &mut usize) -> String {
    let mut page = "\x1b[H".to_owned();
    let mut push = |line: &str| {
        page.extend(line.chars().take(columns));
        page.push_str("\x1b[K\r\n");
    };
    let mut lines = text.lines();
    push(lines.next().unwrap_or_default());
    let lines: Vec<&str> = lines.collect();
    // The terminal's last row stays empty, and one is for the heading.
    let room = rows.saturating_sub(2);
    if lines.len() <= room {
        *first = 0;
        lines.into_iter().for_each(push);
    } else {
        let room = room.saturating_sub(1).max(1);
        *first = (*first).min(lines.len() - room);
        let shown = &lines[*first..*first + room];
        shown.iter().copied().for_each(&mut push);
        let below = lines.len() - *first - room;
        push(&format!(
            "{first} rows above, {below} below: arrow and page keys, j, k scroll"
        ));
    }
    page.push_str("\x1b[J");
    page
}

/// What the user wants while a page is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    End,
    Refresh,
    Scroll(Step),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Up,
    Down,
    PageUp,
    PageDown,
}

impl Step {
    /// The first line after this step.
    fn of(self, first: usize, rows: usize) -> usize {
        let page = rows.saturating_sub(3).max(1);
        match self {
            Self::Up => first.saturating_sub(1),
            Self::Down => first + 1,
            Self::PageUp => first.saturating_sub(page),
            Self::PageDown => first + page,
        }
    }
}

/// The meaning of what was typed, if it has one.
fn meaning(typed: &[u8]) -> Option<Wish> {
    match typed {
        [b'q' | b'Q', ..] => Some(Wish::End),
        [b'k', ..] | [0x1b, b'[' | b'O', b'A', ..] => Some(Wish::Scroll(Step::Up)),
        [b'j', ..] | [0x1b, b'[' | b'O', b'B', ..] => Some(Wish::Scroll(Step::Down)),
        [0x1b, b'[', b'5', b'~', ..] => Some(Wish::Scroll(Step::PageUp)),
        [b' ', ..] | [0x1b, b'[', b'6', b'~', ..] => Some(Wish::Scroll(Step::PageDown)),
        _ => None,
    }
}

/// Waits until `end`, or until the user wants something.
fn wait(end: Instant, interrupt: &Interrupt, keys: bool) -> Wish {
    let stdin = std::io::stdin();
    while !interrupt.is_set() {
        let left = end.saturating_duration_since(Instant::now()).min(SLICE);
        if left.is_zero() {
            return Wish::Refresh;
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
            let count = rustix::io::read(&stdin, &mut typed).unwrap_or(0);
            if count == 0 {
                return Wish::End;
            }
            if let Some(wish) = meaning(&typed[..count]) {
                return wish;
            }
        }
    }
    Wish::End
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
        let text = "0123456789".repeat(50).repeat(3).replace("99", "9\n9");
        let page = screen(&text, 24, 80, &mut 0);
        assert!(page.starts_with("\x1b[H") && page.ends_with("\x1b[J"));
        assert_eq!(page.matches("\x1b[K\r\n").count(), 1);
    }

    /// Rows that are cut are counted, all can be scrolled to, and the heading stays.
    #[test]
    fn pages_scroll() {
        let rows = (0..100).map(|row| format!("row {row}\n"));
        let text = "HEAD\n".to_owned() + &rows.collect::<String>();
        let mut first = 0;
        let page = |first: &mut usize| screen(&text, 24, 80, first).replace("\x1b[K\r\n", "\n");
        let top = page(&mut first);
        assert!(
            top.contains("HEAD\nrow 0\n") && top.contains("\n0 rows above, 79 below"),
            "{top}"
        );
        assert_eq!(top.matches('\n').count(), 23);
        first = Step::PageDown.of(first, 24);
        assert!(page(&mut first).contains("HEAD\nrow 21\n"));
        first = 1000;
        let end = page(&mut first);
        assert!(end.contains("row 99\n79 rows above, 0 below"), "{end}");
        first = Step::Up.of(first, 24);
        assert!(page(&mut first).contains("HEAD\nrow 78\n"));
        assert!(screen("HEAD\nrow\n", 24, 80, &mut first).contains("row") && first == 0);
    }

    /// Keys mean what they do elsewhere.
    #[test]
    fn keys_are_known() {
        for (typed, wish) in [
            (&b"q"[..], Some(Wish::End)),
            (b"\x1b[A", Some(Wish::Scroll(Step::Up))),
            (b"\x1bOB", Some(Wish::Scroll(Step::Down))),
            (b"\x1b[6~", Some(Wish::Scroll(Step::PageDown))),
            (b"j", Some(Wish::Scroll(Step::Down))),
            (b"x", None),
            (b"\x1b", None),
        ] {
            assert_eq!(meaning(typed), wish, "{typed:?}");
        }
    }
}
