//! Digital video beside bulk traffic on one cable, as the paper Suci names it (a stream of about 30 Mbit/s): by four ways, how many frames come in time,
//! and what is left for the bulk?
//!
//! [`measure`] runs sender and receiver as threads of this process, in the hosts of a testbed or on this host. Both know the `Schedule`, so nothing but
//! numbers of frames needs to travel. `kernel` has the ways over sockets, `ours` those over endpoints.

mod kernel;
mod ours;

use std::sync::Mutex;
use std::time::{Duration, Instant};

use serde::Serialize;
use tsumuji_testbed::Testbed;

use crate::limits::place::{Place, of_testbed};

/// A frame of video of 30 Mbit/s at 30 frames a second.
const FRAME_BYTES: usize = 125_000;
const FRAMES_PER_SECOND: u32 = 30;
/// TCP connections that carry the bulk: TCP shares a cable evenly among its connections, whatever they are for.
pub const BULK_STREAMS: usize = 4;
/// A receiver shows a frame so many frames after its capture: one is spent on sending it evenly, one is for delays.
const SHOWN_AFTER_FRAMES: u32 = 2;
/// Frames that are late for so long count as lost.
const PATIENCE: Duration = Duration::from_secs(1);
/// Sender and receiver are ready before the first frame.
const LEAD: Duration = Duration::from_millis(200);

/// One measurement.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Frames of the video.
    pub frames: u32,
    /// Bytes of each.
    pub frame_bytes: usize,
    /// Frames a second.
    pub frames_per_second: u32,
}

impl Plan {
    /// Video as the paper's, for so many seconds.
    pub fn of_seconds(seconds: u32) -> Self {
        Self {
            frames: FRAMES_PER_SECOND * seconds,
            frame_bytes: FRAME_BYTES,
            frames_per_second: FRAMES_PER_SECOND,
        }
    }

    /// Time between two frames.
    pub fn period(&self) -> Duration {
        Duration::from_secs(1) / self.frames_per_second
    }

    /// A frame is in time if it is there, whole, so long after its capture.
    pub fn shown_after(&self) -> Duration {
        self.period() * SHOWN_AFTER_FRAMES
    }
}

/// How video and bulk are sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// Each over TCP: a connection for the video, [`BULK_STREAMS`] for the bulk.
    Tcp,
    /// Video by UDP datagrams, sent evenly, bulk over TCP.
    Udp,
    /// The loop of Suci's paper, under its congestion control: video is written when it is there, bulk only while little is unacknowledged.
    Loop,
    /// Video as datagrams with a key and a deadline, bulk as messages of low priority, at the pace at which they are read.
    Deadline,
}

impl Way {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Tcp, Self::Udp, Self::Loop, Self::Deadline];

    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tcp => "TCP",
            Self::Udp => "plain UDP",
            Self::Loop => "Suci's loop",
            Self::Deadline => "latest, with a deadline",
        }
    }
}

/// What a measurement showed.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Found {
    /// Frames that were captured.
    pub frames: u32,
    /// Frames that came whole and in time.
    pub in_time: u32,
    /// Frames that came whole, later.
    pub late: u32,
    /// Frames that never came whole: lost, or dropped by the sender because they were too late.
    pub lost: u32,
    /// Milliseconds from the capture of a frame to its arrival: the median of those that came.
    pub delay_ms_p50: Option<f64>,
    /// The same: one in a hundred takes longer.
    pub delay_ms_p99: Option<f64>,
    /// Bytes of bulk that came a second, while there was video.
    pub bulk_bytes_per_second: f64,
}

/// When which frame is captured, and what came.
#[derive(Debug)]
struct Schedule {
    plan: Plan,
    start: Instant,
    came: Mutex<Came>,
}

#[derive(Debug, Default)]
struct Came {
    /// Time from capture to arrival, by frame.
    delays: Vec<Option<Duration>>,
    bulk_bytes: u64,
}

impl Schedule {
    fn new(plan: Plan) -> Self {
        Self {
            plan,
            start: Instant::now() + LEAD,
            came: Mutex::new(Came {
                delays: vec![None; plan.frames as usize],
                bulk_bytes: 0,
            }),
        }
    }

    /// When the frame is captured; of the number of frames: when all is over.
    fn capture(&self, frame: u32) -> Instant {
        self.start + self.plan.period() * frame
    }

    fn end(&self) -> Instant {
        self.capture(self.plan.frames)
    }

    /// A receiver waits no longer.
    fn last(&self) -> Instant {
        self.end() + PATIENCE
    }

    /// Sleeps until then, at most until the end.
    fn sleep_until(&self, at: Instant) {
        std::thread::sleep(at.min(self.end()).saturating_duration_since(Instant::now()));
    }

    /// Notes that a frame has come whole. Returns whether all have.
    fn frame_came(&self, frame: u32) -> bool {
        let delay = Instant::now().saturating_duration_since(self.capture(frame));
        let mut came = self.came.lock().expect("nobody panics with it");
        if let Some(place) = came.delays.get_mut(frame as usize) {
            place.get_or_insert(delay);
        }
        came.delays.iter().all(Option::is_some)
    }

    /// Notes bytes of bulk, which count while there is video.
    fn bulk_came(&self, bytes: usize) {
        let now = Instant::now();
        if (self.start..self.end()).contains(&now) {
            let mut came = self.came.lock().expect("nobody panics with it");
            came.bulk_bytes += bytes as u64;
        }
    }

    fn found(self) -> Found {
        let Self { plan, came, .. } = self;
        let came = came.into_inner().expect("nobody panics with it");
        let mut delays: Vec<Duration> = came.delays.iter().flatten().copied().collect();
        delays.sort_unstable();
        let at = |share: f64| {
            let place = (delays.len().saturating_sub(1) as f64 * share).round() as usize;
            delays.get(place).map(|delay| delay.as_secs_f64() * 1e3)
        };
        let in_time = delays.partition_point(|delay| *delay <= plan.shown_after()) as u32;
        Found {
            frames: plan.frames,
            in_time,
            late: delays.len() as u32 - in_time,
            lost: plan.frames - delays.len() as u32,
            delay_ms_p50: at(0.5),
            delay_ms_p99: at(0.99),
            bulk_bytes_per_second: came.bulk_bytes as f64
                / (plan.period() * plan.frames).as_secs_f64(),
        }
    }
}

/// Measures one way between the first two hosts of a testbed.
pub fn measure(way: Way, testbed: &Testbed, plan: Plan) -> Result<Found, String> {
    match &of_testbed(testbed)[..] {
        [sender, receiver, ..] => between([sender, receiver], way, plan),
        _ => Err("two hosts are needed".to_owned()),
    }
}

fn between(places: [&Place; 2], way: Way, plan: Plan) -> Result<Found, String> {
    let schedule = Schedule::new(plan);
    match way {
        Way::Tcp | Way::Udp => kernel::run(places, way == Way::Udp, &schedule)
            .map_err(|error| format!("{}: {error}", way.name()))?,
        Way::Loop | Way::Deadline => ours::run(places, way == Way::Deadline, &schedule)
            .map_err(|error| format!("{}: {error}", way.name()))?,
    }
    Ok(schedule.found())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each way brings frames and bulk on this host, and accounts for every frame. What is late is not judged: the machine may be busy.
    #[test]
    fn every_frame_is_accounted_for() {
        let plan = Plan {
            frames: 12,
            frame_bytes: 20_000,
            frames_per_second: 60,
        };
        let [sender, receiver] = &Place::LOOPBACK;
        for way in Way::ALL {
            let found = between([sender, receiver], way, plan).unwrap();
            assert_eq!(
                found.in_time + found.late + found.lost,
                plan.frames,
                "{way:?}"
            );
            assert!(found.lost < plan.frames, "{way:?}: {found:?}");
            assert!(found.lost == 0 || way != Way::Tcp, "{way:?}: {found:?}");
            assert!(found.bulk_bytes_per_second > 0.0, "{way:?}: {found:?}");
            assert!(
                found.delay_ms_p50 <= found.delay_ms_p99,
                "{way:?}: {found:?}"
            );
        }
    }

    /// In time is what came by the deadline; the rest is late, or lost.
    #[test]
    fn frames_are_judged_by_their_delay() {
        let plan = Plan {
            frames: 4,
            ..Plan::of_seconds(1)
        };
        let schedule = Schedule::new(plan);
        let (soon, late) = (plan.shown_after(), plan.shown_after() + plan.period());
        schedule.came.lock().unwrap().delays = vec![Some(soon), None, Some(late), Some(soon / 2)];
        let found = schedule.found();
        assert_eq!((found.in_time, found.late, found.lost), (2, 1, 1));
        let p99 = found.delay_ms_p99.unwrap();
        assert!((p99 - late.as_secs_f64() * 1e3).abs() < 1e-6);
    }
}
