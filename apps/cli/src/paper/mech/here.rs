//! What is measured on this machine for the paper's statements: the same ways to send, with a process in place of the interface.

use std::time::Duration;

use tsumuji_bench::compare::Listener;
use tsumuji_bench::stats::Rounds;
use tsumuji_lab::beside::Beside;
use tsumuji_lab::measure::{BYTES_MAX, Cell, Measured, Plan, SplitUs, Way};

use super::super::Args;
use super::super::figure::Figure;
use super::times;
use crate::lab::run;
use crate::talk::Talk;

const ROUNDS: u64 = 5;
const ROUNDS_QUICK: u64 = 2;
const EACH: Duration = Duration::from_millis(20);
const EACH_QUICK: Duration = Duration::from_millis(2);
/// Where crossings are looked for.
const CROSSING_BYTES: [u64; 9] = [
    4,
    16,
    64,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    64 << 10,
    256 << 10,
];

/// A number that is measured.
#[derive(Debug, Clone, Copy)]
pub(super) enum Here {
    /// It has no counterpart.
    Nothing,
    /// Time of the first over that of the second.
    Times([&'static str; 2], u64),
    /// From where on the first, which copies, takes longer than the second.
    Crossing([&'static str; 2]),
    Bandwidth(&'static str, u64),
    /// The sender's call.
    Kernel(&'static str, u64),
    /// Fetching and sending data, beside all that the interface does.
    Fetching(&'static str, u64),
    /// A part of the sender's time.
    Part(&'static str, u64, fn(&SplitUs) -> f64),
}

impl Here {
    /// The same of a measured value of a description.
    pub(super) fn of(one: &Beside) -> Self {
        let way = Way::PAPER
            .iter()
            .find(|way| Some(way.name()) == one.variant.as_deref());
        let (Some(way), Some(bytes)) = (way, one.bytes) else {
            return Self::Nothing;
        };
        match one.part.as_str() {
            "bandwidth" => Self::Bandwidth(way.name(), bytes),
            "copy descriptor" => Self::Part(way.name(), bytes, |split| split.descriptor),
            "copy data" => Self::Part(way.name(), bytes, |split| split.copy),
            "start" => Self::Part(way.name(), bytes, |split| split.start),
            "wait" => Self::Part(way.name(), bytes, |split| split.wait),
            _ => Self::Nothing,
        }
    }

    fn bytes(self) -> Vec<u64> {
        match self {
            Self::Nothing => Vec::new(),
            Self::Crossing(_) => CROSSING_BYTES.to_vec(),
            Self::Times(_, bytes)
            | Self::Bandwidth(_, bytes)
            | Self::Kernel(_, bytes)
            | Self::Fetching(_, bytes)
            | Self::Part(_, bytes, _) => vec![bytes],
        }
    }

    /// The number, of what was measured; a dash if it was not.
    pub(super) fn told(self, measured: &Measured) -> String {
        let cell = |way: &str, bytes: u64| -> Option<&Cell> {
            let of_size = |cell: &&Cell| cell.way == way && cell.bytes as u64 == bytes;
            let found = measured.cells.iter().find(of_size);
            found.filter(|cell| cell.is_measured())
        };
        let told = match self {
            Self::Nothing => None,
            Self::Times([first, second], bytes) => cell(first, bytes)
                .zip(cell(second, bytes))
                .map(|(first, second)| times(first.median_us(), second.median_us())),
            Self::Crossing([copied, fetched]) => {
                let mut all = measured.crossovers.iter();
                let found = all.find(|one| one.copied == copied && one.fetched == fetched);
                found.map(|one| {
                    let reached: Vec<f64> = one.bytes.iter().copied().flatten().collect();
                    match reached.len() {
                        0 => "never".to_owned(),
                        _ => format!("{:.0} B", Rounds::of(&reached).median),
                    }
                })
            }
            Self::Bandwidth(way, bytes) => {
                cell(way, bytes).map(|cell| format!("{:.1} MB/s", cell.bandwidth))
            }
            Self::Kernel(way, bytes) => {
                cell(way, bytes).map(|cell| format!("{:.2} us in all", cell.split.kernel))
            }
            Self::Fetching(way, bytes) => cell(way, bytes).map(|cell| {
                let share = cell.split.fetch_data / cell.split.interface;
                format!("{:.0} %", 100.0 * share)
            }),
            Self::Part(way, bytes, part) => {
                cell(way, bytes).map(|cell| format!("{:.3} us", part(&cell.split)))
            }
        };
        told.unwrap_or_else(|| "-".to_owned())
    }
}

/// Whether the figure is of ways that can be measured here.
pub(super) fn is_measured(figure: Figure) -> bool {
    !matches!(figure.name(), "mech-fig4" | "mech-table7")
}

/// Measures all that is wanted, and the drawn sizes; `None`: nothing is.
pub(super) fn measured(
    wanted: impl Iterator<Item = Here>,
    drawn: &[u64],
    args: &Args,
    talk: &mut Talk,
) -> anyhow::Result<Option<Measured>> {
    let mut sizes: Vec<u64> = wanted.flat_map(Here::bytes).collect();
    if sizes.is_empty() {
        return Ok(None);
    }
    sizes.extend(drawn);
    sizes.sort_unstable();
    sizes.dedup();
    let sizes = sizes.into_iter().filter(|bytes| *bytes <= BYTES_MAX as u64);
    let (rounds, each) = if args.quick {
        (ROUNDS_QUICK, EACH_QUICK)
    } else {
        (ROUNDS, EACH)
    };
    let plan = Plan {
        ways: Way::PAPER.to_vec(),
        sizes: sizes.map(|bytes| bytes as usize).collect(),
        rounds: args.rounds.unwrap_or(rounds) as usize,
        each,
    };
    talk.say("here, MB/s until the sender knows that the message has left (tsumuji lab run)");
    talk.say(&run::heads(&Way::PAPER));
    let measured = run::measured(&plan, talk)?;
    talk.say("");
    Ok(Some(measured))
}
