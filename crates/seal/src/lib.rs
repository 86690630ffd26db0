//! Sealed links: every frame of any link is authenticated, or encrypted, with a key that the cluster shares.
//!
//! [`Sealed`] wraps a [`Link`] and is one. The engine above does not depend on it: all its frames leave and arrive through the wrapper.
//! `docs/protocol.md` (R-60 to R-69) has the format on the wire, `docs/security.md` the protection it gives, `docs/decisions` the reasons for a
//! wrapper.
//!
//! ```
//! use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
//! use tsumuji_link::{Frame, Link, LinkAddr, each};
//! use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};
//!
//! let keys = Keys::new([ClusterKey::generate()?])?;
//! let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
//! let mut a = Sealed::new(Shm::attach(&job, 0)?, &keys, SealMode::Encrypt)?;
//! let mut b = Sealed::new(Shm::attach(&job, 1)?, &keys, SealMode::Encrypt)?;
//! // What is sent before the two have met is lost, as on any link; then frames arrive.
//! let mut arrived = Vec::new();
//! while arrived != b"hello" {
//!     a.send_one(LinkAddr::Local(1), Frame::whole(b"hello"))?;
//!     a.flush()?;
//!     b.receive(8, &mut each(|_, frame| arrived = frame.to_vec()))?;
//!     a.receive(8, &mut each(|_, _| {}))?;
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules: `key` reads keys; `envelope`, `handshake` and `control` are the three kinds of frame; `session` seals and opens, `window` refuses
//! repetitions, `slots` finds sessions, `group` holds broadcast keys; `peers` combines them; `tuning` has the numbers. Left out on purpose: membership (every holder of the key
//! is a member), and hiding how much is sent to which node.

mod control;
mod envelope;
#[doc(hidden)]
pub mod fuzzing;
mod group;
mod handshake;
mod key;
mod peers;
mod random;
mod session;
mod slots;
mod tuning;
mod window;

use std::time::Duration;

use tsumuji_link::impair::{Clock, SystemClock};
use tsumuji_link::{
    BATCH_FRAMES_MAX, Capacity, Frame, Frames, Link, LinkAddr, LinkCaps, LinkCounters, LinkError,
    Receiver, each, hand_over, pass_on,
};

use crate::tuning::TUNING;

pub use envelope::OVERHEAD_BYTES;
pub use key::{ClusterKey, KEY_BYTES, KEYS_MAX, KeyError, KeyPrint, Keys};
pub use tsumuji_link::{SealCounters, SealMode, SealModeError};

use envelope::{HEADER_BYTES, INNER_BYTES_MAX, TAG_BYTES};
use peers::{NEVER, Out, Peers};

/// Smallest frame of a link that can be sealed: room for handshakes, and for an engine's smallest frames.
const FRAME_BYTES_MIN: usize = 256;

/// Why a link cannot be sealed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SealError {
    /// The link's frames have no room for the envelope.
    #[error("frames of {frame_bytes} bytes have no room for a seal; configure the link for {least} or more", least = FRAME_BYTES_MIN + OVERHEAD_BYTES)]
    FrameBytes {
        /// The link's largest frame in bytes.
        frame_bytes: usize,
    },
    /// The kernel gave no random bytes.
    #[error("the kernel has no random bytes: {0}")]
    Random(#[from] getrandom::Error),
}

/// A link whose every frame is sealed.
///
/// Handshakes run within `receive`, `send`, `flush` and `wait`; a program that polls or waits for frames need do nothing else. Until there is a
/// session with an address, frames to it are dropped and counted (`SealCounters::no_session`). A program that waits on `fd`: a lost handshake message
/// is repeated at the next call, the descriptor does not become readable for it.
#[derive(Debug)]
pub struct Sealed<L, C = SystemClock> {
    inner: L,
    clock: C,
    peers: Peers,
    frame_bytes: usize,
    /// Frames of the layer above and their bytes; the wrapped link's counters include our own frames.
    counted: LinkCounters,
    /// Calls since the clock was last read.
    calls: u32,
    /// Frames that are being sent.
    sealed: SealedFrames,
}

impl<L: Link> Sealed<L> {
    /// Seals a link; time is the system's.
    pub fn new(inner: L, keys: &Keys, mode: SealMode) -> Result<Self, SealError> {
        Self::with_clock(inner, keys, mode, SystemClock::default())
    }
}

impl<L: Link, C: Clock> Sealed<L, C> {
    /// Seals a link; `clock` tells the time. `wait` assumes that it runs like the system's.
    pub fn with_clock(inner: L, keys: &Keys, mode: SealMode, clock: C) -> Result<Self, SealError> {
        let caps = inner.caps();
        if caps.frame_bytes < FRAME_BYTES_MIN + OVERHEAD_BYTES {
            let frame_bytes = caps.frame_bytes;
            return Err(SealError::FrameBytes { frame_bytes });
        }
        let frame_bytes = (caps.frame_bytes - OVERHEAD_BYTES).min(INNER_BYTES_MAX);
        Ok(Self {
            peers: Peers::new(keys, mode == SealMode::Auth, caps.broadcast)?,
            inner,
            clock,
            frame_bytes,
            counted: LinkCounters::default(),
            calls: 0,
            sealed: SealedFrames::new(frame_bytes),
        })
    }

    /// Replaces the keys while running. Sessions under removed keys end at once; if the first key changes, new sessions are agreed under it while the
    /// old ones go on.
    pub fn reload(&mut self, keys: &Keys) -> Result<(), SealError> {
        self.peers.reload(keys)?;
        self.run_upkeep();
        Ok(())
    }

    /// Begins a handshake with an address before there is anything to send.
    pub fn connect(&mut self, to: LinkAddr) -> Result<(), LinkError> {
        if !self.has_session(to) {
            self.peers.wish(self.clock.now(), to);
        }
        self.send_own(Some(to))
    }

    /// Whether there is a session with this address in which the peer has sent a frame.
    pub fn has_session(&self, addr: LinkAddr) -> bool {
        self.peers.has_session(addr)
    }

    /// Number of addresses with a session.
    pub fn sessions(&self) -> usize {
        self.peers.sessions()
    }

    /// The wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Runs `upkeep` if it is time; reads the clock only if it may be.
    #[inline]
    fn run_upkeep(&mut self) {
        self.calls += 1;
        if self.peers.next_upkeep() != NEVER || self.calls >= TUNING.calls_per_check {
            self.run_upkeep_now();
        }
    }

    /// Runs `upkeep`; returns the time.
    #[cold]
    fn run_upkeep_now(&mut self) -> Duration {
        self.calls = 0;
        let now = self.clock.now();
        self.peers.upkeep(now);
        now
    }

    /// Sends the seals' own frames. Only if `asked` cannot be reached is that an error.
    #[inline]
    fn send_own(&mut self, asked: Option<LinkAddr>) -> Result<(), LinkError> {
        let Self { inner, peers, .. } = self;
        let mut failed = None;
        let mut any = false;
        while let Some(out) = peers.next_out() {
            let (to, sent) = match out {
                Out::Handshake(to, frame) => (to, inner.send_one(to, Frame::whole(&frame))),
                Out::Control { to, wants_answer } => {
                    let mut slot = [0; FRAME_BYTES_MIN];
                    match peers.write_control(to, wants_answer, &mut slot) {
                        0 => continue,
                        bytes => (to, inner.send_one(to, Frame::whole(&slot[..bytes]))),
                    }
                }
            };
            any = true;
            match sent {
                // Without a transmit slot it is as good as lost, and will be repeated.
                Ok(_) => {}
                Err(LinkError::NoSuchPeer { link, to: nobody }) => {
                    peers.forget(to);
                    if asked == Some(to) {
                        failed = Some(LinkError::NoSuchPeer { link, to: nobody });
                    }
                }
                Err(error) => return Err(error),
            }
        }
        if any {
            inner.flush()?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Without a session, drops the frames and begins a handshake.
    #[cold]
    fn send_nowhere(&mut self, to: LinkAddr, frames: usize) -> Result<usize, LinkError> {
        if frames > 0 {
            self.peers.counters.no_session += frames as u64;
            self.peers.wish(self.clock.now(), to);
            self.send_own(Some(to))?;
        }
        Ok(frames)
    }
}

/// Sealed frames, one after the other.
#[derive(Debug)]
struct SealedFrames {
    arena: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

impl SealedFrames {
    /// Starts with room for one frame; grows with batches.
    fn new(frame_bytes: usize) -> Self {
        Self {
            arena: Vec::with_capacity(frame_bytes + OVERHEAD_BYTES),
            ends: Vec::with_capacity(1),
        }
    }

    fn clear(&mut self) {
        self.arena.clear();
        self.ends.clear();
    }

    /// Copies a frame behind room for its header. `seal` gets header, frame and room for the tag, and returns the length of the sealed frame; 0:
    /// there is none.
    #[inline]
    fn push(&mut self, frame: &Frame<'_>, seal: impl FnOnce(&mut [u8]) -> usize) -> bool {
        let start = self.arena.len();
        self.arena.extend_from_slice(&[0; HEADER_BYTES]);
        self.arena.extend_from_slice(frame.head);
        self.arena.extend_from_slice(frame.body);
        self.arena.extend_from_slice(&[0; TAG_BYTES]);
        let end = start + seal(&mut self.arena[start..]);
        self.arena.truncate(end);
        if end > start {
            self.ends.push(end);
        }
        end > start
    }

    fn frames(&self) -> Frames<'_> {
        let starts = std::iter::once(&0).chain(&self.ends);
        let frames = starts.zip(&self.ends).map(|(start, end)| {
            let (head, body) = self.arena[*start..*end].split_at(HEADER_BYTES);
            Frame { head, body }
        });
        frames.collect()
    }
}

impl<L: Link, C: Clock> Link for Sealed<L, C> {
    pass_on!((inner): local_addr fd note_time);

    fn caps(&self) -> LinkCaps {
        LinkCaps {
            frame_bytes: self.frame_bytes,
            // Frames without a session are lost.
            lossless: false,
            gathers: false,
            // Tags reveal damaged frames.
            damages: false,
            ..self.inner.caps()
        }
    }

    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        let capacity = self.inner.capacity(to)?;
        if capacity.frames == 0 {
            return Ok(capacity);
        }
        let added_bytes = capacity.frames * OVERHEAD_BYTES;
        Ok(Capacity {
            bytes: capacity.bytes.saturating_sub(added_bytes),
            ..capacity
        })
    }

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let room = self.inner.capacity(to)?;
        let Self {
            peers,
            inner,
            counted,
            sealed,
            ..
        } = self;
        let sealer = match to {
            LinkAddr::Broadcast => peers.group_sealer(),
            _ => peers.sealer(to),
        };
        let Some((sealer, flag_bits)) = sealer else {
            return self.send_nowhere(to, frames.len());
        };
        sealed.clear();
        let (mut taken, mut exhausted, mut bytes) = (0, 0, 0);
        for frame in frames.iter().take(room.frames.min(BATCH_FRAMES_MAX)) {
            bytes += frame.bytes() + OVERHEAD_BYTES;
            if taken > 0 && bytes > room.bytes {
                break;
            }
            assert!(frame.bytes() <= self.frame_bytes, "a frame is too long");
            taken += 1;
            if sealed.push(frame, |slot| sealer.seal(slot, frame.bytes(), flag_bits)) {
                counted.sent_frames += 1;
                counted.sent_bytes += frame.bytes() as u64;
            } else {
                exhausted += 1;
            }
        }
        inner.send(to, &sealed.frames())?;
        peers.counters.sealed += taken as u64 - exhausted;
        peers.counters.exhausted += exhausted;
        Ok(taken)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let Self {
            inner,
            clock,
            peers,
            counted,
            ..
        } = self;
        peers.begin_burst();
        let mut frames = 0;
        let mut open = each(|from, frame| {
            if let Some(opened) = peers.receive(|| clock.now(), from, frame) {
                frames += 1;
                counted.received_frames += 1;
                counted.received_bytes += opened.len() as u64;
                hand_over(receiver, from, opened);
            }
        });
        inner.receive(max, &mut open)?;
        self.run_upkeep();
        self.send_own(None)?;
        Ok(frames)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.run_upkeep();
        self.send_own(None)?;
        self.inner.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let now = self.run_upkeep_now();
        self.send_own(None)?;
        let at = self.peers.next_upkeep_or_aging();
        let left = if at == NEVER {
            timeout
        } else {
            at.saturating_sub(now)
        };
        self.inner.wait(timeout.min(left))
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.run_upkeep_now();
        self.send_own(None)?;
        self.inner.arm_fd()
    }

    fn has_unsent(&mut self) -> bool {
        self.inner.has_unsent()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        self.inner.set_reach(to, frame_bytes + OVERHEAD_BYTES);
    }

    fn counters(&self) -> LinkCounters {
        let inner = self.inner.counters();
        LinkCounters {
            sent_frames: self.counted.sent_frames,
            sent_bytes: self.counted.sent_bytes,
            received_frames: self.counted.received_frames,
            received_bytes: self.counted.received_bytes,
            ..inner
        }
    }

    fn sealing(&self) -> Option<SealCounters> {
        Some(self.peers.counters())
    }
}
