//! The cost of sealing: nanoseconds and cycles of each frame, sealed and opened separately, and half-round-trips with and without a key.
//!
//! Frames go through the wrapper that nodes use, over shared memory with both ends in this process; the cost of that link alone is measured in turn
//! and subtracted. There are no targets: the figures help to choose a mode.

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_node::{LinkSpec, SealMode, Security};
use tsumuji_seal::{ClusterKey, Keys, Sealed};

use super::{Log, Setting, Wanted};
use crate::compare::{Contender, Plan};
use crate::contest::Ours;
use crate::machine;
use crate::ops::Op;
use crate::stats::size_name;
use crate::versus::{Standing, order};

/// A small frame and a jumbo frame.
const SIZES: [usize; 2] = [64, 9000];
/// Bytes of the message of a half-round-trip.
const MESSAGE_BYTES: usize = 64;
/// Frames sealed, then opened, at a time: the ring has room for them, and they stay in the caches.
const BURST_FRAMES: usize = 32;
/// Frames of one measurement.
const FRAMES: usize = BURST_FRAMES * 4000;
const MODES: [SealMode; 2] = [SealMode::Auth, SealMode::Encrypt];

/// All figures of sealing.
pub(super) fn sealing(setting: &Setting, log: &mut Log<'_>) {
    frames(setting, log);
    let folder = tempfile::tempdir().map_err(|error| error.to_string());
    let key = folder.as_ref().map_err(Clone::clone).and_then(|folder| {
        let path = folder.path().join("bench.key");
        ClusterKey::generate()
            .and_then(|key| key.write_new(&path))
            .map_err(|error| error.to_string())?;
        Ok(path)
    });
    let key = match key {
        Ok(key) => key,
        Err(reason) => {
            return log.unmeasured("sealed half round trips", &reason, Wanted::Nothing);
        }
    };
    for link in [LinkSpec::Shm, LinkSpec::Udp(None)] {
        let ours = Ours::here(link, setting.program.clone());
        trips(setting, &ours, &key, log);
    }
    let title = "packet half round trip, sealed";
    log.on_testbed(title, 2, None, 9000, |testbed, log| {
        trips(setting, &setting.ours("packet", testbed), &key, log);
    });
}

/// Half-round-trips without key, authenticated and encrypted, in turn.
fn trips(setting: &Setting, usual: &Ours, key: &Path, log: &mut Log<'_>) {
    let sealed = MODES.map(|mode| Ours {
        security: Security::Sealed {
            key_file: key.to_owned(),
            mode,
        },
        ..usual.clone()
    });
    let contender = |name: String, ours| Contender::new(name, move |job| Ours::measure(ours, job));
    let mut contenders = vec![contender("no key".to_owned(), usual)];
    contenders.extend(
        MODES
            .iter()
            .zip(&sealed)
            .map(|(mode, ours)| contender(mode.to_string(), ours)),
    );
    let plan = Plan {
        op: Op::Pingpong,
        nodes: 2,
        sizes: vec![MESSAGE_BYTES],
        iterations: Some(setting.round_trips / 2),
        bits_per_second: None,
        rounds: setting.rounds,
    };
    let comparison = log.compare(&plan, &mut contenders);
    for row in &comparison.results {
        for index in 1..=MODES.len() {
            let name = format!("{} half round trip, {MESSAGE_BYTES} B, sealed", usual.link);
            let ratio = 1.0 / row.times_better(index, 0);
            log.pair(name, &comparison, row, (index, 0), ratio, Wanted::Nothing);
        }
    }
}

/// Times of sealing and opening, by mode and size.
fn frames(setting: &Setting, log: &mut Log<'_>) {
    // Without binding to a core, the figures are only as good as the machine is quiet.
    let _pinned = machine::pinned(machine::two_cpus().map(|[first, _]| first));
    let ghz = gigahertz();
    log.say(&format!(
        "sealing and opening a frame (medians of {} rounds in turn{})",
        setting.rounds,
        ghz.map_or_else(String::new, |ghz| format!(", cycles of {ghz:.2} GHz"))
    ));
    for size in SIZES {
        let mut times = Vec::new();
        for number in 0..setting.rounds {
            // Bare, and sealed by each mode.
            let mut found = [[f64::NAN; 2]; 1 + MODES.len()];
            for one in order(number, found.len()) {
                found[one] = match one {
                    0 => round(ends(), size),
                    one => round(met(MODES[one - 1]), size),
                };
            }
            let [bare, sealed @ ..] = found;
            let over = |side: usize| sealed.map(|times: [f64; 2]| times[side] - bare[side]);
            times.push([over(0), over(1)]);
        }
        for (side, what) in ["seal", "open"].into_iter().enumerate() {
            let of = |mode: usize| {
                let rounds = times.iter().map(|times| times[side][mode]);
                Standing::of(MODES[mode].to_string(), Ok(rounds.collect()))
            };
            let standings = [0, 1].map(of);
            let cell = |standing: &Standing| {
                let nanos = standing.median();
                let cycles =
                    ghz.map_or_else(String::new, |ghz| format!(", {:.0} cycles", nanos * ghz));
                format!("{nanos:.0} ns{cycles} ({})", standing.name)
            };
            log.add(
                format!("{what} a frame of {}", size_name(size)),
                cell(&standings[1]),
                cell(&standings[0]),
                standings[1].ratio_to(&standings[0]),
                Wanted::Nothing,
            );
        }
    }
}

/// The clock rate that the machine states; on a virtual machine that of its time-stamp counter.
fn gigahertz() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    let megahertz: f64 = line.split(':').nth(1)?.trim().parse().ok()?;
    Some(megahertz / 1e3)
}

/// Nanoseconds per frame, of sending and of receiving.
fn round<L: Link>(ends: [L; 2], size: usize) -> [f64; 2] {
    let [mut a, mut b] = ends;
    let (mut sending, mut receiving) = (Duration::ZERO, Duration::ZERO);
    let frame = vec![7; size];
    for _ in 0..FRAMES / BURST_FRAMES {
        let begun = Instant::now();
        for _ in 0..BURST_FRAMES {
            let sent = a.send_one(LinkAddr::Local(1), Frame::whole(&frame));
            assert!(sent.is_ok_and(|sent| sent), "the ring has room");
        }
        a.flush().expect("shared memory does not fail");
        let between = Instant::now();
        let mut received = 0;
        for _ in 0..BURST_FRAMES {
            let wanted = BURST_FRAMES - received;
            let taken = b.receive(
                wanted,
                &mut each(|_, frame| {
                    black_box(frame[frame.len() - 1]);
                }),
            );
            received += taken.expect("shared memory does not fail");
            if received == BURST_FRAMES {
                break;
            }
        }
        assert_eq!(received, BURST_FRAMES, "all arrive");
        sending += between - begun;
        receiving += between.elapsed();
    }
    [sending, receiving].map(|time| time.as_nanos() as f64 / FRAMES as f64)
}

/// Two sealed ends with a session.
fn met(mode: SealMode) -> [Sealed<Shm>; 2] {
    let keys = ClusterKey::generate().and_then(|key| Keys::new([key]));
    let keys = keys.expect("the kernel has randomness");
    let seal = |end| Sealed::new(end, &keys, mode).expect("frames are long enough");
    let [mut a, mut b] = ends().map(seal);
    a.connect(LinkAddr::Local(1)).expect("it is there");
    while !(a.has_session(LinkAddr::Local(1)) && b.has_session(LinkAddr::Local(0))) {
        for end in [&mut b, &mut a] {
            end.receive(BURST_FRAMES, &mut each(|_, _| {}))
                .expect("shared memory does not fail");
        }
    }
    [a, b]
}

/// Two ends of shared memory, both in this process.
fn ends() -> [Shm; 2] {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("memory for two");
    [0, 1].map(|node| Shm::attach(&job, node).expect("the job is new"))
}
