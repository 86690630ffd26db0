//! Makes any link worse on purpose: loss, repetition, reordering, delay, corruption, a rate limit. Seeded.
//!
//! Wraps a link for tests, demonstrations and studies where the kernel's own impairments are missing. Works on the receive side, so each node impairs
//! the frames it receives and senders notice nothing. A frame goes through the steps in this order: lost → corrupted → repeated → limited and delayed
//! → reordered. With loss and corruption alone, frames are delivered from the wrapped link's own buffer; else all are copied and wait in a bounded
//! queue.
//!
//! `wait` and `fd` respect the moment at which a waiting frame is to be delivered: `fd` is an epoll descriptor over the wrapped link's and a
//! timer. Every frame taken away is counted in `impaired_frames`.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::sleep::{Timer, either_of};
use crate::tuning::TUNING;
use crate::{
    Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, each, hand_over, pass_on,
};

/// A reordered frame is overtaken by at most this many others.
const OVERTAKEN_FRAMES_MAX: u64 = 8;
/// A reordered frame comes after this even if no other does.
const OVERTAKEN_TIME: Duration = Duration::from_millis(1);

/// What to do to received frames. The default does nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ImpairConfig {
    /// Probability that a frame is lost.
    pub loss: f64,
    /// Probability that a frame comes twice.
    pub duplicate: f64,
    /// Probability that up to eight later frames overtake a frame.
    pub reorder: f64,
    /// Probability that one bit of a frame is flipped.
    pub corrupt: f64,
    /// Every frame comes this much later.
    pub delay: Duration,
    /// Each frame is delayed by a further random time up to this.
    pub jitter: Duration,
    /// Most bytes a second; frames beyond that wait in the queue.
    pub rate_bytes_per_second: Option<u64>,
    /// Frames that may wait. More are left in the wrapped link; with a limited rate they are lost, as in a switch.
    pub queue_frames: usize,
    /// Seed of all choices.
    pub seed: u64,
}

impl Default for ImpairConfig {
    fn default() -> Self {
        Self {
            loss: 0.0,
            duplicate: 0.0,
            reorder: 0.0,
            corrupt: 0.0,
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            rate_bytes_per_second: None,
            // A millisecond at 10 Gbit/s of Ethernet frames: a good switch buffers as much for a port.
            queue_frames: 1024,
            seed: 1,
        }
    }
}

/// Why a configuration is refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ImpairError {
    /// The value is not a probability.
    #[error("{what} is {value}; give a probability from 0 to 1")]
    Probability {
        /// Name of the option.
        what: &'static str,
        /// The value.
        value: f64,
    },
    /// With a rate of 0 no frame would ever come.
    #[error("a rate of 0 bytes a second lets nothing through; leave it out for no limit")]
    NoRate,
    /// The queue has no room, or too much.
    #[error("a queue of {queue_frames} frames is not possible; take 1 to {QUEUE_FRAMES_MAX}")]
    Queue {
        /// The value.
        queue_frames: usize,
    },
    /// A system call failed.
    #[error("cannot make a timer for delayed frames: {0}")]
    Io(#[from] io::Error),
}

/// Longest queue, in frames.
pub const QUEUE_FRAMES_MAX: usize = 1 << 20;

impl ImpairConfig {
    /// Refuses values that make no sense.
    pub fn check(&self) -> Result<(), ImpairError> {
        for (what, value) in [
            ("loss", self.loss),
            ("duplicate", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ] {
            if !(0.0..=1.0).contains(&value) {
                return Err(ImpairError::Probability { what, value });
            }
        }
        if self.rate_bytes_per_second == Some(0) {
            return Err(ImpairError::NoRate);
        }
        if !(1..=QUEUE_FRAMES_MAX).contains(&self.queue_frames) {
            let queue_frames = self.queue_frames;
            return Err(ImpairError::Queue { queue_frames });
        }
        Ok(())
    }

    fn holds_frames(&self) -> bool {
        self.duplicate > 0.0
            || self.reorder > 0.0
            || !self.delay.is_zero()
            || !self.jitter.is_zero()
            || self.rate_bytes_per_second.is_some()
    }
}

/// A clock with an origin of its own choice that never runs backwards.
pub trait Clock {
    /// Time since its origin.
    fn now(&self) -> Duration;
}

/// The system's monotonic clock.
#[derive(Debug, Clone, Copy)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }
}

/// Impairments so far, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Tally {
    /// Lost by chance.
    lost: u64,
    /// Lost because the queue was full.
    overflowed: u64,
    /// Repeated.
    duplicated: u64,
    /// Held back for others to overtake.
    reordered: u64,
    /// With one bit flipped.
    corrupted: u64,
}

/// True with that probability. Takes no number where it is 0, so that switching one impairment on changes the others' choices as little as possible.
fn chance(dice: &mut fastrand::Rng, probability: f64) -> bool {
    probability > 0.0 && dice.f64() < probability
}

/// A frame that waits.
#[derive(Debug)]
struct Held {
    /// When it is to be delivered at the latest.
    deliver_at: Duration,
    number: u64,
    from: LinkAddr,
    frame: Vec<u8>,
}

// Ordered by `deliver_at`, then by arrival; the earliest is the greatest, as `BinaryHeap` needs it.
impl Ord for Held {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.deliver_at, other.number).cmp(&(self.deliver_at, self.number))
    }
}

impl PartialOrd for Held {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Held {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Held {}

/// A frame that waits to be overtaken.
#[derive(Debug)]
struct Overtaken {
    /// Delivered when this many frames have arrived, or when its time has come.
    after_frame: u64,
    /// Not delivered before this time.
    earliest: Duration,
    held: Held,
}

/// All but the wrapped link.
#[derive(Debug)]
struct Mangler {
    config: ImpairConfig,
    dice: fastrand::Rng,
    held: BinaryHeap<Held>,
    /// In order of arrival.
    overtaken: Vec<Overtaken>,
    /// Buffers of delivered frames, to be used again.
    spare: Vec<Vec<u8>>,
    /// Frames received so far.
    arrived: u64,
    /// When the rate limiter is free again.
    free_at: Duration,
    tally: Tally,
    delivered_frames: u64,
    delivered_bytes: u64,
    /// Buffer in which frames are corrupted.
    scratch: Vec<u8>,
}

impl Mangler {
    /// Loses or corrupts a frame.
    fn mangle<'a>(&'a mut self, frame: &'a [u8]) -> Option<&'a [u8]> {
        self.arrived += 1;
        if chance(&mut self.dice, self.config.loss) {
            self.tally.lost += 1;
            return None;
        }
        // The empty frame has no bit to flip.
        if !chance(&mut self.dice, self.config.corrupt) || frame.is_empty() {
            return Some(frame);
        }
        self.tally.corrupted += 1;
        self.scratch.clear();
        self.scratch.extend_from_slice(frame);
        let bit = self.dice.u64(..frame.len() as u64 * 8);
        self.scratch[(bit / 8) as usize] ^= 1 << (bit % 8);
        Some(&self.scratch)
    }

    /// Frames to fetch now: as many as the queue has room for. With a limited rate more are fetched, and dropped as a switch would.
    fn fetch_frames(&self) -> usize {
        let waiting = self.held.len() + self.overtaken.len();
        match self.config.rate_bytes_per_second {
            Some(_) => TUNING.impair.burst_frames,
            None => TUNING
                .impair
                .burst_frames
                .min(self.config.queue_frames.saturating_sub(waiting)),
        }
    }

    /// Decides when a frame is delivered, and how often.
    fn queue(&mut self, now: Duration, from: LinkAddr, frame: &[u8]) {
        let mut copy = self.spare.pop().unwrap_or_default();
        let Some(bytes) = self.mangle(frame) else {
            self.spare.push(copy);
            return;
        };
        copy.extend_from_slice(bytes);
        if chance(&mut self.dice, self.config.duplicate) {
            self.tally.duplicated += 1;
            let mut second = self.spare.pop().unwrap_or_default();
            second.extend_from_slice(&copy);
            self.hold(now, from, second);
        }
        self.hold(now, from, copy);
    }

    fn hold(&mut self, now: Duration, from: LinkAddr, mut frame: Vec<u8>) {
        let config = &self.config;
        if self.held.len() + self.overtaken.len() >= config.queue_frames {
            self.tally.overflowed += 1;
            frame.clear();
            self.spare.push(frame);
            return;
        }
        let mut deliver_at = now;
        if let Some(rate) = config.rate_bytes_per_second {
            let nanos = frame.len() as u128 * 1_000_000_000 / u128::from(rate);
            let takes = Duration::from_nanos(nanos.min(u64::MAX.into()) as u64);
            self.free_at = self.free_at.max(now).saturating_add(takes);
            deliver_at = self.free_at;
        }
        deliver_at = deliver_at.saturating_add(config.delay);
        let jitter_nanos = config.jitter.as_nanos().min(u64::MAX.into()) as u64;
        if jitter_nanos > 0 {
            deliver_at =
                deliver_at.saturating_add(Duration::from_nanos(self.dice.u64(..jitter_nanos)));
        }
        let mut held = Held {
            deliver_at,
            number: self.arrived,
            from,
            frame,
        };
        if chance(&mut self.dice, config.reorder) {
            self.tally.reordered += 1;
            held.deliver_at = deliver_at.saturating_add(OVERTAKEN_TIME);
            self.overtaken.push(Overtaken {
                after_frame: self.arrived + 1 + self.dice.u64(..OVERTAKEN_FRAMES_MAX),
                earliest: deliver_at,
                held,
            });
        } else {
            self.held.push(held);
        }
    }

    /// Delivers at most `max` waiting frames whose time has come.
    fn release(&mut self, now: Duration, max: usize, receiver: &mut impl Receiver) -> usize {
        let arrived = self.arrived;
        let mut frames = 0;
        while frames < max {
            let held = if self.held.peek().is_some_and(|next| next.deliver_at <= now) {
                self.held.pop()
            } else {
                let ready = |frame: &Overtaken| {
                    frame.held.deliver_at <= now
                        || frame.earliest <= now && frame.after_frame <= arrived
                };
                self.overtaken
                    .iter()
                    .position(ready)
                    .map(|index| self.overtaken.remove(index).held)
            };
            let Some(mut held) = held else {
                break;
            };
            self.count(&held.frame);
            hand_over(receiver, held.from, &held.frame);
            frames += 1;
            held.frame.clear();
            self.spare.push(held.frame);
        }
        frames
    }

    fn count(&mut self, frame: &[u8]) {
        self.delivered_frames += 1;
        self.delivered_bytes += frame.len() as u64;
    }

    /// When the next waiting frame is delivered at the latest.
    fn next_delivery(&self) -> Option<Duration> {
        let held = self.held.peek().map(|next| next.deliver_at);
        let overtaken = self
            .overtaken
            .iter()
            .map(|frame| frame.held.deliver_at)
            .min();
        held.into_iter().chain(overtaken).min()
    }
}

/// A link that impairs the frames received by the link it wraps.
#[derive(Debug)]
pub struct Impair<L, C = SystemClock> {
    inner: L,
    clock: C,
    mangler: Mangler,
    /// Frames may have to wait, so all go through the queue.
    holds: bool,
    watch: Option<Watch>,
}

impl<L: Link> Impair<L> {
    /// Wraps a link; time is the system's.
    pub fn new(inner: L, config: ImpairConfig) -> Result<Self, ImpairError> {
        Self::with_clock(inner, config, SystemClock::default())
    }
}

impl<L: Link, C: Clock> Impair<L, C> {
    /// Wraps a link; `clock` tells the time. `wait` and `fd` assume that it runs like the system's.
    pub fn with_clock(inner: L, config: ImpairConfig, clock: C) -> Result<Self, ImpairError> {
        config.check()?;
        let holds = config.holds_frames();
        let watch = match inner.fd() {
            Some(fd) if holds => Some(Watch::new(fd)?),
            _ => None,
        };
        Ok(Self {
            mangler: Mangler {
                config,
                dice: fastrand::Rng::with_seed(config.seed),
                held: BinaryHeap::new(),
                overtaken: Vec::new(),
                spare: Vec::new(),
                arrived: 0,
                free_at: Duration::ZERO,
                tally: Tally::default(),
                delivered_frames: 0,
                delivered_bytes: 0,
                scratch: Vec::with_capacity(inner.caps().frame_bytes),
            },
            inner,
            clock,
            holds,
            watch,
        })
    }

    /// How long until a waiting frame is delivered.
    fn time_to_delivery(&self) -> Option<Duration> {
        let at = self.mangler.next_delivery()?;
        Some(at.saturating_sub(self.clock.now()))
    }
}

/// A timer, and a descriptor over the wrapped link's and the timer's.
#[derive(Debug)]
struct Watch {
    either: OwnedFd,
    timer: Timer,
}

impl Watch {
    fn new(inner: BorrowedFd<'_>) -> io::Result<Self> {
        let timer = Timer::new()?;
        let either = either_of([inner, timer.fd()])?;
        Ok(Self { either, timer })
    }
}

impl<L: Link, C: Clock> Link for Impair<L, C> {
    pass_on!((inner): local_addr capacity send flush sealing set_reach note_time);

    fn caps(&self) -> LinkCaps {
        let mut caps = self.inner.caps();
        let config = &self.mangler.config;
        if self.holds {
            caps.receive_frames = caps.receive_frames.min(config.queue_frames);
        }
        let limited = config.rate_bytes_per_second.is_some();
        if limited || config.loss > 0.0 || config.corrupt > 0.0 || config.duplicate > 0.0 {
            caps.lossless = false;
        }
        // Peers must state this, too: over a link that damages nothing, impair all nodes or none.
        caps.damages |= config.corrupt > 0.0;
        caps
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let mangler = &mut self.mangler;
        if self.holds {
            let now = self.clock.now();
            let fetch = mangler.fetch_frames();
            if fetch > 0 {
                let mut take = each(|from, frame| mangler.queue(now, from, frame));
                self.inner.receive(fetch, &mut take)?;
            }
            return Ok(mangler.release(now, max, receiver));
        }
        let mut frames = 0;
        let mut take = each(|from, frame| {
            let Some(frame) = mangler.mangle(frame) else {
                return;
            };
            hand_over(receiver, from, frame);
            let bytes = frame.len() as u64;
            mangler.delivered_frames += 1;
            mangler.delivered_bytes += bytes;
            frames += 1;
        });
        self.inner.receive(max, &mut take)?;
        Ok(frames)
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        match self.time_to_delivery() {
            Some(Duration::ZERO) => self.inner.flush(),
            Some(left) => self.inner.wait(timeout.min(left)),
            None => self.inner.wait(timeout),
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.watch {
            Some(watch) => Some(watch.either.as_fd()),
            None => self.inner.fd(),
        }
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        let left = self.time_to_delivery();
        if left == Some(Duration::ZERO) {
            self.inner.flush()?;
            return Ok(false);
        }
        if let Some(watch) = &self.watch {
            watch
                .timer
                .set(left, "setting the timer of delayed frames")?;
        }
        self.inner.arm_fd()
    }

    fn has_unsent(&mut self) -> bool {
        self.inner.has_unsent()
    }

    fn counters(&self) -> LinkCounters {
        let mut counters = self.inner.counters();
        counters.impaired_frames += self.mangler.tally.lost + self.mangler.tally.overflowed;
        counters.received_frames = self.mangler.delivered_frames;
        counters.received_bytes = self.mangler.delivered_bytes;
        counters
    }
}

#[cfg(test)]
mod tests;
