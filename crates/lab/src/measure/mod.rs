//! The same ways to send, on this machine: a program, and a process that stands for the network interface.
//!
//! Called by `tsumuji lab run`. `sender` and `interface` share `memory` and a pipe; what they do with memory is in `sys`. Rounds measure all ways in turn, so that
//! what else the machine does meets all alike. Every message is added up by its receiver; one that is wrong ends the measurement.
//!
//! Total times are measured without stamps between, the split by messages of its own with stamps: those are a little slower.

mod interface;
mod memory;
mod sender;
mod sys;

use std::cell::RefCell;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;

pub use interface::serve;
pub use memory::BYTES_MAX;
use sender::{Sender, Split, Times};

/// Messages of a measurement: before it, at least, at most; and with stamps.
const WARM: usize = 8;
const LEAST: usize = 8;
const MOST: usize = 20_000;
const STAMPED: usize = 64;
/// Rounds of pinning.
const PINNINGS: usize = 8;
/// The kernel's largest pipe for ordinary users.
const PIPE_BYTES: usize = 1 << 20;

/// A way to send, after the paper's table 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Descriptor and data stay in registered memory; the interface fetches both.
    User,
    /// The descriptor is copied into the ring, the data fetched.
    UserSt,
    /// Both are copied into the ring.
    UserStDt,
    /// The kernel is handed the addresses of both.
    Syscall,
    /// The call carries the descriptor, the data is fetched by address.
    SyscallSt,
    /// The call copies both.
    SyscallStDt,
    /// No interface: the processor writes the packet into the receiver's memory, word by word.
    Host,
    /// As `Syscall`, by io_uring from registered buffers.
    Uring,
    /// As `SyscallStDt`, into a TCP connection.
    Tcp,
    /// As `Syscall`, into a TCP connection by `MSG_ZEROCOPY`.
    TcpZeroCopy,
}

impl Way {
    /// The paper's, in its order.
    pub const PAPER: [Self; 7] = [
        Self::User,
        Self::UserSt,
        Self::UserStDt,
        Self::Syscall,
        Self::SyscallSt,
        Self::SyscallStDt,
        Self::Host,
    ];

    /// Other calls that do the same.
    pub const OTHER_CALLS: [Self; 3] = [Self::Uring, Self::Tcp, Self::TcpZeroCopy];

    /// All: the paper's, then the other calls.
    pub fn all() -> impl Iterator<Item = Self> {
        Self::PAPER.into_iter().chain(Self::OTHER_CALLS)
    }

    /// The paper's name, or what it is done by.
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "User",
            Self::UserSt => "User:ST",
            Self::UserStDt => "User:ST,DT",
            Self::Syscall => "Syscall",
            Self::SyscallSt => "Syscall:ST",
            Self::SyscallStDt => "Syscall:ST,DT",
            Self::Host => "Host",
            Self::Uring => "io_uring",
            Self::Tcp => "TCP",
            Self::TcpZeroCopy => "TCP zero-copy",
        }
    }

    /// By what it is done here.
    pub fn by(self) -> &'static str {
        match self {
            Self::User => {
                "doorbell with the descriptor's address; the interface copies both from registered memory"
            }
            Self::UserSt => {
                "descriptor into the ring, doorbell; the interface copies the data from registered memory"
            }
            Self::UserStDt => "descriptor and data into the ring, doorbell",
            Self::Syscall => {
                "vmsplice: the kernel pins the pages of descriptor and data and hands them to the interface's pipe"
            }
            Self::SyscallSt => {
                "write of the descriptor; the interface reads the data in the program's memory by process_vm_readv"
            }
            Self::SyscallStDt => "writev of descriptor and data into the interface's pipe",
            Self::Host => "stores of 8 bytes into the receiver's memory, then a flag; no interface",
            Self::Uring => {
                "as Syscall: io_uring writes descriptor and data from registered buffers into the pipe, by one call"
            }
            Self::Tcp => "as Syscall:ST,DT: sendmsg of both into a TCP connection over loopback",
            Self::TcpZeroCopy => {
                "as Syscall: the same by MSG_ZEROCOPY, until the kernel has given the memory back"
            }
        }
    }

    pub(crate) fn is_call(self) -> bool {
        !matches!(
            self,
            Self::User | Self::UserSt | Self::UserStDt | Self::Host
        )
    }

    /// Whether it goes by the TCP connection instead of the pipe.
    pub(crate) fn is_tcp(self) -> bool {
        matches!(self, Self::Tcp | Self::TcpZeroCopy)
    }

    /// Whether descriptor or data are where the interface, or the kernel, has them registered.
    pub(crate) fn is_registered(self) -> bool {
        matches!(self, Self::User | Self::UserSt | Self::Uring)
    }
}

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// The receiver's sum is not the sender's.
    #[error("{way}, {bytes} B: the receiver has other data than was sent")]
    Damaged {
        /// The way.
        way: &'static str,
        /// Bytes of the message.
        bytes: usize,
    },
    /// The kernel does not let that way be.
    #[error("{way}: refused: {source}")]
    Refused {
        /// The way.
        way: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The interface ended, or the user wants an end.
    #[error("the interface's process has ended, or the measurement was interrupted")]
    Stopped,
    /// The system refused something.
    #[error("{0}")]
    System(#[from] io::Error),
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// In turn within each round.
    pub ways: Vec<Way>,
    /// Bytes, at most [`BYTES_MAX`] each.
    pub sizes: Vec<usize>,
    /// Rounds, in which all ways are measured in turn.
    pub rounds: usize,
    /// Time of one measurement.
    pub each: Duration,
}

/// One way at one size: medians of messages, in microseconds.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cell {
    /// The way.
    pub way: &'static str,
    /// Bytes of data.
    pub bytes: usize,
    /// Until the sender knows that the message has left; one a round.
    pub sent_us: Vec<f64>,
    /// Until it knows that the message was received; one a round.
    pub received_us: Vec<f64>,
    /// Bytes over the median of `sent_us`, in MB/s.
    pub bandwidth: f64,
    /// Bytes over the median of `received_us`, in MB/s.
    pub received_bandwidth: f64,
    /// Messages measured, all verified.
    pub messages: usize,
    /// What the time goes to.
    pub split: SplitUs,
}

impl Cell {
    /// Whether any round was measured; else the way was refused.
    pub fn is_measured(&self) -> bool {
        !self.sent_us.is_empty()
    }

    /// The median over rounds of the time until the sender knows that the message has left.
    pub fn median_us(&self) -> f64 {
        median(&self.sent_us)
    }
}

/// Parts in microseconds, medians of messages with stamps. The first four are the sender's, one after the other; the kernel's is within the start;
/// the interface's are within the wait, or beside it.
#[derive(Debug, Clone, Copy, Default, Serialize)]
pub struct SplitUs {
    /// The sender copies the descriptor.
    pub descriptor: f64,
    /// The sender copies the data.
    pub copy: f64,
    /// Doorbell or call.
    pub start: f64,
    /// From there on until the sender sees the completion.
    pub wait: f64,
    /// Inside of the sender's call: copying, pinning and translation of it cannot be told apart from outside.
    pub kernel: f64,
    /// From the interface's seeing the message until it is on the wire.
    pub interface: f64,
    /// The interface fetches the descriptor.
    pub fetch_descriptor: f64,
    /// The interface translates the data's address.
    pub translation: f64,
    /// The interface fetches the data.
    pub fetch_data: f64,
}

/// To pin so much memory, once, in microseconds: before a way without calls can be used.
#[derive(Debug, Clone, Serialize)]
pub struct Registration {
    /// Bytes.
    pub bytes: usize,
    /// `mlock` of fresh memory, and what it reads in; `None`: refused.
    pub us: Option<f64>,
}

/// From which size on the second way is faster than the first, over rounds. Of the paper's ways the first copies what the second has fetched.
#[derive(Debug, Clone, Serialize)]
pub struct Crossover {
    /// Copies; of other calls, the usual one.
    pub copied: &'static str,
    /// Has it fetched; of other calls, the one by address.
    pub fetched: &'static str,
    /// Bytes, one a round; `None`: never up to the largest size.
    pub bytes: Vec<Option<f64>>,
}

/// Everything that was measured.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Measured {
    /// By sizes, then by ways.
    pub cells: Vec<Cell>,
    /// By sizes.
    pub registration: Vec<Registration>,
    /// Of all pairs that the paper compares, of which neither was refused.
    pub crossovers: Vec<Crossover>,
    /// Ways that the kernel does not let be, and why; their cells have no messages from there on.
    pub refused: Vec<(&'static str, String)>,
    /// What became of `MSG_ZEROCOPY`.
    pub zero_copies: ZeroCopies,
}

/// Calls with `MSG_ZEROCOPY`, as the kernel reported their ends.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct ZeroCopies {
    /// All that ended.
    pub calls: u64,
    /// Of those, what the kernel copied after all, as it does over loopback.
    pub copied: u64,
}

/// Whether the interface still serves; dropped when it is to end.
pub type IsAlive = Box<dyn FnMut() -> bool>;

/// Measures. `start` starts an interface that runs [`serve`] on the two files, `done` is told of each size.
pub fn run(
    plan: &Plan,
    start: impl FnOnce(OwnedFd, OwnedFd) -> io::Result<IsAlive>,
    is_stopped: &dyn Fn() -> bool,
    done: &mut dyn FnMut(&[Cell]),
) -> Result<Measured, MeasureError> {
    let file =
        rustix::fs::memfd_create("tsumuji-lab", MemfdFlags::CLOEXEC).map_err(io::Error::from)?;
    rustix::fs::ftruncate(&file, memory::ALL_BYTES as u64).map_err(io::Error::from)?;
    let (reading, writing) = io::pipe()?;
    let _ = rustix::pipe::fcntl_setpipe_size(&writing, PIPE_BYTES); // a shorter one is only slower
    let alive = RefCell::new(start(file.try_clone()?, reading.into())?);
    let is_over = || is_stopped() || !(alive.borrow_mut())();
    let _pinned = Pinned::to_first();
    let mut sender = Sender::new(&file, writing.into(), &is_over)?;
    let mut measured = Measured::default();
    for &bytes in &plan.sizes {
        measured.registration.push(registration(bytes)?);
        let ways = plan.ways.iter();
        let mut cells: Vec<Cell> = ways.map(|way| Cell::empty(*way, bytes)).collect();
        let mut splits: Vec<Vec<Split>> = vec![Vec::new(); plan.ways.len()];
        for round in 0..plan.rounds {
            // Each round begins with the next way, so that none is always the first.
            for place in 0..plan.ways.len() {
                let index = (round + place) % plan.ways.len();
                let way = &plan.ways[index];
                let (cell, splits) = (&mut cells[index], &mut splits[index]);
                if measured.refuses(*way) {
                    continue;
                }
                let times = match sender.measure(*way, bytes, plan.each) {
                    Err(MeasureError::Refused { way, source }) => {
                        measured.refused.push((way, source.to_string()));
                        continue;
                    }
                    times => times?,
                };
                cell.messages += times.len();
                cell.sent_us
                    .push(median_us(times.iter().map(|one| one.sent)));
                cell.received_us
                    .push(median_us(times.iter().map(|one| one.received)));
                splits.extend(sender.stamped(*way, bytes)?);
            }
        }
        for (cell, splits) in cells.iter_mut().zip(&splits) {
            cell.bandwidth = bytes as f64 / median(&cell.sent_us);
            cell.received_bandwidth = bytes as f64 / median(&cell.received_us);
            cell.split = SplitUs::of(splits);
        }
        done(&cells);
        measured.cells.extend(cells);
    }
    let mut crossovers = crossovers(&measured.cells, plan.rounds);
    crossovers.retain(|one| !one.bytes.is_empty());
    measured.crossovers = crossovers;
    measured.zero_copies = sender.zero_copies();
    Ok(measured)
}

impl Measured {
    fn refuses(&self, way: Way) -> bool {
        self.refused.iter().any(|(name, _)| *name == way.name())
    }
}

impl Sender<'_> {
    fn measure(
        &mut self,
        way: Way,
        bytes: usize,
        each: Duration,
    ) -> Result<Vec<Times>, MeasureError> {
        self.choose(way, false)?;
        for _ in 0..WARM {
            self.send(way, bytes, false)?;
        }
        let (begin, mut all) = (Instant::now(), Vec::new());
        while all.len() < LEAST || (all.len() < MOST && begin.elapsed() < each) {
            all.push(self.send(way, bytes, false)?);
        }
        Ok(all)
    }

    fn stamped(&mut self, way: Way, bytes: usize) -> Result<Vec<Split>, MeasureError> {
        self.choose(way, true)?;
        (0..STAMPED)
            .map(|_| Ok(self.send(way, bytes, true)?.split))
            .collect()
    }
}

impl Cell {
    pub(crate) fn empty(way: Way, bytes: usize) -> Self {
        Self {
            way: way.name(),
            bytes,
            ..Self::default()
        }
    }
}

impl SplitUs {
    fn of(all: &[Split]) -> Self {
        let part = |of: fn(&Split) -> u64| median_us(all.iter().map(of));
        Self {
            descriptor: part(|one| one.descriptor),
            copy: part(|one| one.copy),
            start: part(|one| one.start),
            wait: part(|one| one.wait),
            kernel: part(|one| one.kernel),
            interface: part(|one| one.interface),
            fetch_descriptor: part(|one| one.fetch_descriptor),
            translation: part(|one| one.translation),
            fetch_data: part(|one| one.fetch_data),
        }
    }
}

fn registration(bytes: usize) -> Result<Registration, MeasureError> {
    let mut all = Vec::with_capacity(PINNINGS);
    for _ in 0..PINNINGS {
        let begin = std::cell::Cell::new(Instant::now());
        let took = sys::pinned(
            bytes.max(1),
            |pinned| {
                pinned
                    .ok()
                    .map(|()| begin.get().elapsed().as_secs_f64() * 1e6)
            },
            || begin.set(Instant::now()),
        )?;
        all.extend(took);
    }
    Ok(Registration {
        bytes,
        us: (!all.is_empty()).then(|| median(&all)),
    })
}

/// Pairs of which the first copies what the second has fetched, or is handed the address of.
const PAIRS: [[Way; 2]; 7] = [
    [Way::UserStDt, Way::User],
    [Way::UserStDt, Way::UserSt],
    [Way::SyscallStDt, Way::Syscall],
    [Way::SyscallStDt, Way::SyscallSt],
    [Way::Host, Way::UserStDt],
    [Way::SyscallStDt, Way::Uring],
    [Way::Tcp, Way::TcpZeroCopy],
];

fn crossovers(cells: &[Cell], rounds: usize) -> Vec<Crossover> {
    let of =
        |way: Way| -> Vec<&Cell> { cells.iter().filter(|cell| cell.way == way.name()).collect() };
    let pair = |[copied, fetched]: [Way; 2]| {
        let both: Vec<(&Cell, &Cell)> = of(copied).into_iter().zip(of(fetched)).collect();
        let is_whole = !both.is_empty()
            && both
                .iter()
                .all(|(one, other)| one.sent_us.len() == rounds && other.sent_us.len() == rounds);
        let rounds = if is_whole { 0..rounds } else { 0..0 };
        let bytes = rounds.map(|round| {
            let points = both.iter().map(|(copied, fetched)| {
                (
                    copied.bytes as f64,
                    copied.sent_us[round] / fetched.sent_us[round],
                )
            });
            crossing(&points.collect::<Vec<_>>())
        });
        Crossover {
            copied: copied.name(),
            fetched: fetched.name(),
            bytes: bytes.collect(),
        }
    };
    PAIRS.into_iter().map(pair).collect()
}

/// The size from which on the ratio is above 1, between two sizes by their logarithms; the first size, if it always is. Single sizes that say otherwise, as
/// disturbed measurements do, are outvoted: the boundary is where fewest are on the wrong side.
fn crossing(points: &[(f64, f64)]) -> Option<f64> {
    let wrong = |boundary: usize| {
        let is_wrong =
            |(index, (_, ratio)): (usize, &(f64, f64))| (*ratio > 1.0) != (index >= boundary);
        points
            .iter()
            .enumerate()
            .filter(|one| is_wrong(*one))
            .count()
    };
    let boundary = (0..=points.len()).min_by_key(|boundary| wrong(*boundary))?;
    let (high, high_ratio) = *points.get(boundary)?;
    let Some((low, low_ratio)) = boundary.checked_sub(1).map(|below| points[below]) else {
        return Some(high);
    };
    let share = low_ratio.ln() / (low_ratio.ln() - high_ratio.ln());
    Some((low.ln() + (high.ln() - low.ln()) * share).exp())
}

/// NaN without values.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        count if count % 2 == 1 => sorted[count / 2],
        count => f64::midpoint(sorted[count / 2 - 1], sorted[count / 2]),
    }
}

fn median_us(times_ns: impl Iterator<Item = u64>) -> f64 {
    median(&times_ns.map(|ns| ns as f64 / 1000.0).collect::<Vec<_>>())
}

/// Binds the calling thread to a core until it is dropped.
struct Pinned(Option<CpuSet>);

impl Pinned {
    fn to_first() -> Self {
        Self(
            sched_getaffinity(None)
                .ok()
                .filter(|before| bind(before, 0)),
        )
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            let _ = sched_setaffinity(None, before); // was allowed before
        }
    }
}

/// Binds the calling thread, that of an interface, to a core of its own where there are two.
pub fn bind_interface() {
    if let Ok(all) = sched_getaffinity(None) {
        bind(&all, 1);
    }
}

/// Binds to the `index`th core of `all`, if there are at least two.
fn bind(all: &CpuSet, index: usize) -> bool {
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU)
        .filter(|core| all.is_set(*core))
        .take(2)
        .collect();
    let [_, _] = cores[..] else {
        return false;
    };
    let mut one = CpuSet::new();
    one.set(cores[index]);
    sched_setaffinity(None, &one).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread in place of the interface's process.
    fn in_thread(memory: OwnedFd, pipe: OwnedFd) -> io::Result<IsAlive> {
        let thread = std::thread::spawn(move || serve(memory, pipe));
        Ok(Box::new(move || !thread.is_finished()))
    }

    /// Every way delivers every size whole, and each has times and a split.
    #[test]
    fn every_way_delivers() {
        let plan = Plan {
            ways: Way::all().collect(),
            sizes: vec![0, 1, 4, 12, 4096, 5000, BYTES_MAX],
            rounds: 2,
            each: Duration::from_millis(1),
        };
        let mut sizes = 0;
        let found = run(&plan, in_thread, &|| false, &mut |_| sizes += 1).expect("it runs");
        assert_eq!((sizes, found.cells.len()), (7, 7 * plan.ways.len()));
        // Containers often forbid io_uring; everything else goes everywhere.
        let refused = |cell: &Cell| found.refused.iter().any(|(way, _)| *way == cell.way);
        assert!(
            found.refused.iter().all(|(way, _)| *way == "io_uring"),
            "{:?}",
            found.refused
        );
        for (way, why) in &found.refused {
            println!("{way} is not tested: {why}");
        }
        for cell in found.cells.iter().filter(|cell| !refused(cell)) {
            assert!(
                cell.messages >= 2 * LEAST && cell.sent_us.len() == 2,
                "{cell:?}"
            );
            assert!(
                cell.sent_us
                    .iter()
                    .zip(&cell.received_us)
                    .all(|(sent, received)| sent <= received),
                "{cell:?}"
            );
            assert_eq!(
                cell.split.kernel > 0.0,
                !cell.way.starts_with("User") && cell.way != "Host",
                "{cell:?}"
            );
        }
        let crossed = PAIRS.len() - found.refused.len();
        assert_eq!(found.crossovers.len(), crossed);
        assert!(found.crossovers.iter().all(|one| one.bytes.len() == 2));
        assert_eq!(found.registration.len(), 7);
        let zero_copies = found.zero_copies;
        assert!(
            zero_copies.calls > 0 && zero_copies.copied == zero_copies.calls,
            "{zero_copies:?}" // over loopback
        );
    }

    /// A way that the kernel refuses is left out, and the others go on, also of the same interface.
    #[test]
    fn refused_ways_are_told() {
        let file = rustix::fs::memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, memory::ALL_BYTES as u64).unwrap();
        let (reading, writing) = io::pipe().unwrap();
        let _alive = in_thread(file.try_clone().unwrap(), reading.into()).unwrap();
        let mut sender = Sender::new(&file, writing.into(), &|| false).unwrap();
        sender.forget_process();
        sender.choose(Way::SyscallSt, false).unwrap();
        for _ in 0..2 {
            let refused = sender.send(Way::SyscallSt, 100, false);
            let said = refused.unwrap_err().to_string();
            assert!(said.starts_with("Syscall:ST: refused: "), "{said}");
        }
        for way in [Way::SyscallStDt, Way::User] {
            sender.choose(way, false).unwrap();
            assert!(sender.send(way, 100, false).is_ok(), "{way:?}");
        }
    }

    /// What the user wants to end, ends; so does a measurement whose interface is gone.
    #[test]
    fn wanted_ends_are_noticed() {
        for way in Way::all() {
            let plan = Plan {
                ways: vec![way],
                sizes: vec![4],
                rounds: 1,
                each: Duration::from_millis(1),
            };
            let nobody = |_, _| Ok(Box::new(|| false) as IsAlive);
            let found = run(&plan, nobody, &|| false, &mut |_| {});
            if way.is_call() && !way.is_tcp() {
                // The kernel tells that nobody reads the pipe.
                assert_eq!(found.expect("left out").refused.len(), 1, "{way:?}");
            } else {
                assert!(
                    matches!(found, Err(MeasureError::Stopped)),
                    "{way:?}: {found:?}"
                );
            }
        }
    }

    /// Sizes between are found by their logarithms; a single size that says otherwise does not count.
    #[test]
    fn crossings_are_found() {
        let near = |found: Option<f64>, wanted: f64| (found.expect("one") - wanted).abs() < 1e-9;
        assert!(near(crossing(&[(4.0, 0.5), (16.0, 2.0)]), 8.0));
        let disturbed = [
            (4.0, 0.5),
            (8.0, 0.5),
            (32.0, 2.0),
            (64.0, 0.9),
            (128.0, 3.0),
        ];
        assert!(near(crossing(&disturbed), 16.0));
        assert!(near(crossing(&[(4.0, 2.0), (8.0, 3.0)]), 4.0));
        assert!(crossing(&[(4.0, 0.5), (8.0, 0.9)]).is_none());
        assert!(crossing(&[]).is_none());
    }

    /// A byte that is changed, or two that are swapped, change the sum.
    #[test]
    fn sums_notice_changes() {
        let data: Vec<u8> = (0..37).collect();
        let sum = memory::checksum(&data);
        for place in 0..data.len() {
            let mut other = data.clone();
            other[place] ^= 1;
            assert_ne!(memory::checksum(&other), sum, "{place}");
        }
        let mut swapped = data.clone();
        swapped.swap(3, 20);
        assert_ne!(memory::checksum(&swapped), sum);
        assert_ne!(memory::checksum(&data[..36]), sum);
    }
}
