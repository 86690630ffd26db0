//! Links: they move opaque frames in bursts between the processes of a cluster.
//!
//! A link knows no protocol. It may lose, repeat or reorder frames, and only `wait` blocks. `conformance` is the test suite that every link passes;
//! `checked`, `impair` and `capture` wrap any link, `paired` makes two one; `delegate` has the macro by which they pass calls on.

pub mod capture;
pub mod checked;
pub mod conformance;
mod delegate;
pub mod dpdk;
pub mod ether;
mod gather;
pub mod impair;
pub mod packet;
mod paired;
pub mod relay;
mod rings;
mod sealing;
pub mod shm;
mod sleep;
mod tuning;
pub mod udp;
#[cfg(feature = "xdp")]
pub mod xdp;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use crate::tuning::TUNING;

pub use paired::Paired;
pub use rings::{MayHaveRings, Process, Rings};
pub use sealing::{SealCounters, SealMode, SealModeError};
pub use sleep::either_of;

/// The address of a frame's sender or receiver, as the link knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkAddr {
    /// A process of this host: its index in the shared-memory job.
    Local(u16),
    /// A UDP socket.
    Inet(SocketAddr),
    /// A station of an Ethernet segment.
    Ether(ether::MacAddr),
    /// All stations of the link; only on links with `LinkCaps::broadcast`.
    Broadcast,
}

impl fmt::Display for LinkAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(node) => write!(f, "local process {node}"),
            Self::Inet(addr) => addr.fmt(f),
            Self::Ether(mac) => mac.fmt(f),
            Self::Broadcast => f.write_str("everyone"),
        }
    }
}

/// A link's properties. They do not change while the link is open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkCaps {
    /// The link's name as users write it, without parameters: `shm`, `udp`.
    pub name: &'static str,
    /// Largest frame, in bytes.
    pub frame_bytes: usize,
    /// Frames of `frame_bytes` that the receive side buffers before it drops, from all senders together; the part reserved for frames sent without
    /// credit is not counted.
    pub receive_frames: usize,
    /// Frames that are worth sending before a `flush`.
    pub burst_frames: usize,
    /// The link sends bodies of frames from the caller's memory, without a copy of its own.
    pub gathers: bool,
    /// One transmit reaches all stations.
    pub broadcast: bool,
    /// Nothing is lost between a live sender and a live receiver: a full ring refuses the sender instead (broadcast excepted).
    pub lossless: bool,
    /// Frames may be damaged on the way without a reliable check of the medium: `checked` adds a checksum.
    pub damages: bool,
    /// Each poll for received frames is a system call.
    pub polls_by_call: bool,
}

/// Traffic of a link. Every drop is counted under its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Frames handed to the medium.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Of these, frames that stayed on this host, where others leave it (`paired`).
    pub near_frames: u64,
    /// Their bytes.
    pub near_bytes: u64,
    /// Frames given to the receiver.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Broadcast frames overwritten before this receiver read them.
    pub overrun_frames: u64,
    /// Frames dropped on purpose by `impair`.
    pub impaired_frames: u64,
    /// Times that a frame could not be sent because there was no room.
    pub refused: u64,
    /// Frames that the medium or the kernel reported dropped.
    pub dropped_frames: u64,
    /// Of these, frames that the kernel dropped on their way out: the interface's queue was full.
    pub unsent_frames: u64,
    /// Received frames dropped because their checksum was wrong (`checked`).
    pub damaged_frames: u64,
    /// Received frames dropped because they had no checksum where all must have one (`checked`).
    pub unchecked_frames: u64,
}

impl LinkCounters {
    /// The sums of both.
    #[must_use]
    pub fn plus(&self, other: &Self) -> Self {
        Self {
            sent_frames: self.sent_frames + other.sent_frames,
            sent_bytes: self.sent_bytes + other.sent_bytes,
            near_frames: self.near_frames + other.near_frames,
            near_bytes: self.near_bytes + other.near_bytes,
            received_frames: self.received_frames + other.received_frames,
            received_bytes: self.received_bytes + other.received_bytes,
            overrun_frames: self.overrun_frames + other.overrun_frames,
            impaired_frames: self.impaired_frames + other.impaired_frames,
            refused: self.refused + other.refused,
            dropped_frames: self.dropped_frames + other.dropped_frames,
            unsent_frames: self.unsent_frames + other.unsent_frames,
            damaged_frames: self.damaged_frames + other.damaged_frames,
            unchecked_frames: self.unchecked_frames + other.unchecked_frames,
        }
    }
}

/// Permanent failure of a link. A lost frame or a full ring is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The address is not on this link: a mistake of the program or of its configuration.
    #[error("{to} cannot be reached over {link}; give an address of this link")]
    NoSuchPeer {
        /// The link.
        link: &'static str,
        /// The address.
        to: LinkAddr,
    },
}

/// A frame to send: a head and a body, which follow each other on the wire but may lie apart in memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct Frame<'a> {
    /// First bytes: a header, or the whole frame.
    pub head: &'a [u8],
    /// The other bytes.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame in one piece.
    pub const fn whole(bytes: &'a [u8]) -> Self {
        Self {
            head: bytes,
            body: &[],
        }
    }

    /// Length in bytes.
    #[inline]
    pub const fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Copies the frame into the front of `slot`; returns its length.
    ///
    /// # Panics
    /// If `slot` is shorter.
    #[inline]
    pub fn write(&self, slot: &mut [u8]) -> usize {
        let (head, rest) = slot.split_at_mut(self.head.len());
        head.copy_from_slice(self.head);
        rest[..self.body.len()].copy_from_slice(self.body);
        self.bytes()
    }
}

/// Most frames that a link is sure to take by one call.
pub const BATCH_FRAMES_MAX: usize = 64;

/// Frames for one call of a link.
pub type Frames<'a> = arrayvec::ArrayVec<Frame<'a>, BATCH_FRAMES_MAX>;

/// How much one call of [`Link::send`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Number of frames; 0: none now.
    pub frames: usize,
    /// Bytes of all of them together; one frame of any legal length always fits.
    pub bytes: usize,
}

impl Capacity {
    /// Nothing now.
    pub const NONE: Self = Self {
        frames: 0,
        bytes: 0,
    };
}

/// Where the bodies of the next frames are to be placed: one after the other, while each frame's head goes elsewhere.
#[derive(Debug)]
pub struct Placement<'a> {
    /// Bytes of each head, at most [`HEAD_BYTES_MAX`].
    pub head_bytes: usize,
    /// Bytes of each body; the last may be shorter.
    pub body_bytes: usize,
    /// Room for one or several bodies.
    pub place: &'a mut [u8],
}

/// Longest head that a link can separate from its body.
pub const HEAD_BYTES_MAX: usize = 64;

/// The frame that is received next, as far as the link knows it before it asks for a placement.
#[derive(Debug, Clone, Copy)]
pub struct Coming<'a> {
    /// Its sender.
    pub from: LinkAddr,
    /// Its first bytes.
    pub start: &'a [u8],
    /// Its length in bytes.
    pub bytes: usize,
}

/// Takes received frames, and may name in advance a place for the bodies of the next ones.
pub trait Receiver {
    /// A frame, borrowed from the link for this call.
    fn frame(&mut self, from: LinkAddr, frame: &[u8]);

    /// The place for the bodies of the next frames, if there is one; `coming`: the next frame, if the link knows it already. A link may overwrite the
    /// place with any data.
    fn placement(&mut self, _coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        None
    }

    /// Whether the body of the frame with this head, of `body_bytes`, belongs at `index` in the place named last. A link asks this of all frames that
    /// it places before it delivers any of them. If the answer is no, it delivers the frame by `frame`, and the content of the place means nothing.
    fn is_expected(
        &mut self,
        _from: LinkAddr,
        _index: usize,
        _head: &[u8],
        _body_bytes: usize,
    ) -> bool {
        false
    }

    /// Whether that frame, now that its body lies in the place, is undamaged. If not, it is delivered by `frame`.
    fn is_sound(&mut self, _index: usize, _head: &[u8], _body_bytes: usize) -> bool {
        true
    }

    /// Delivers a frame whose body was placed and is sound. Called for all of them in order.
    fn placed(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}

    /// A frame whose body cannot be read where its sender left it, or has no place.
    fn bodiless(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}
}

/// A receiver without placement that calls a function: see [`each`].
#[derive(Debug)]
pub struct Each<F>(F);

/// Calls `take` with each received frame.
pub fn each<F: FnMut(LinkAddr, &[u8])>(take: F) -> Each<F> {
    Each(take)
}

impl<F: FnMut(LinkAddr, &[u8])> Receiver for Each<F> {
    #[inline]
    fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
        (self.0)(from, frame);
    }
}

/// Any receiver, called through its vtable: code that receives through it is compiled once and not once per receiver. For links on which a frame
/// costs far more than such a call.
pub struct Erased<'a>(pub &'a mut dyn Receiver);

impl Receiver for Erased<'_> {
    fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
        self.0.frame(from, frame);
    }

    fn placement(&mut self, coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        self.0.placement(coming)
    }

    fn is_expected(
        &mut self,
        from: LinkAddr,
        index: usize,
        head: &[u8],
        body_bytes: usize,
    ) -> bool {
        self.0.is_expected(from, index, head, body_bytes)
    }

    fn is_sound(&mut self, index: usize, head: &[u8], body_bytes: usize) -> bool {
        self.0.is_sound(index, head, body_bytes)
    }

    fn placed(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        self.0.placed(from, head, body_bytes);
    }

    fn bodiless(&mut self, from: LinkAddr, head: &[u8], body_bytes: usize) {
        self.0.bodiless(from, head, body_bytes);
    }
}

impl fmt::Debug for Erased<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Erased")
    }
}

/// Delivers a frame that lies in one piece, its body in the place that `receiver` names.
#[inline]
pub fn hand_over(receiver: &mut impl Receiver, from: LinkAddr, frame: &[u8]) {
    let coming = Coming {
        from,
        start: &frame[..frame.len().min(HEAD_BYTES_MAX)],
        bytes: frame.len(),
    };
    if let Some(placement) = receiver.placement(Some(coming))
        && let Some((head, body)) = frame.split_at_checked(placement.head_bytes)
        && body.len() <= placement.body_bytes.min(placement.place.len())
    {
        placement.place[..body.len()].copy_from_slice(body);
        if receiver.is_expected(from, 0, head, body.len()) && receiver.is_sound(0, head, body.len())
        {
            return receiver.placed(from, head, body.len());
        }
    }
    receiver.frame(from, frame);
}

/// Moves opaque frames in bursts; may lose, repeat or reorder them. Never blocks, except in `wait`.
pub trait Link {
    /// Properties of this link.
    fn caps(&self) -> LinkCaps;

    /// Properties of the way to this address, where a link has several.
    fn caps_to(&self, _to: LinkAddr) -> LinkCaps {
        self.caps()
    }

    /// Our own address, as peers must name it.
    fn local_addr(&self) -> LinkAddr;

    /// How much `send` takes towards `to` now.
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError>;

    /// Takes as many of `frames` towards `to`, in order, as there is room for now; returns their number. All are taken if `capacity`, called just
    /// before, allowed them, and they are [`BATCH_FRAMES_MAX`] at most. They leave at the latest with `flush`.
    ///
    /// No frame may be empty or longer than `caps().frame_bytes`.
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError>;

    /// As `send`, of one frame; returns whether it was taken.
    #[inline]
    fn send_one(&mut self, to: LinkAddr, frame: Frame<'_>) -> Result<bool, LinkError> {
        Ok(self.send(to, &[frame])? == 1)
    }

    /// Delivers received frames to `receiver`, until there are none or `max` were delivered: frames that came joined with the last of them are
    /// delivered, too. Returns their number.
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError>;

    /// Sends what `send` gathered and wakes sleeping receivers.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Sleeps until a frame may be there, or `timeout` has passed. May return early.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError>;

    /// A descriptor that is readable when a frame may be there, once `arm_fd` was called.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks that the next frame make `fd` readable. `false`: frames are waiting now; receive them first.
    fn arm_fd(&mut self) -> Result<bool, LinkError>;

    /// Whether frames that were taken did not leave when they were to. `fd` does not tell when they can: sleep on it for `unsent_sleep` at most, then
    /// flush again.
    fn has_unsent(&mut self) -> bool {
        false
    }

    /// Longest sleep on `fd` while frames did not leave; `None`: there are none.
    fn unsent_sleep(&mut self) -> Option<Duration> {
        self.has_unsent().then_some(TUNING.unsent_sleep)
    }

    /// States the longest frame that reaches `to`: a link that joins several frames for one station makes none longer. A single longer frame is still
    /// sent.
    fn set_reach(&mut self, _to: LinkAddr, _frame_bytes: usize) {}

    /// Tells the time as of the next call, whenever the caller knows it: some links decide by it where to poll for frames, or notice that what they need
    /// is gone. Without a default, so that no wrapper forgets to pass it on.
    fn note_time(&mut self, now_ns: u64);

    /// Traffic so far.
    fn counters(&self) -> LinkCounters;

    /// Counters of the seal around this link; `None`: its frames are not sealed.
    fn sealing(&self) -> Option<SealCounters> {
        None
    }
}

/// Whether a link works here, for `tsumuji doctor`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The link's name.
    pub link: &'static str,
    /// Whether a frame went through.
    pub works: bool,
    /// Findings: facts if it works, the reason if not.
    pub notes: Vec<String>,
    /// The command or step that repairs or improves it; empty: none known, or none needed.
    pub mend: String,
}

impl Probe {
    pub(crate) fn works(link: &'static str, notes: Vec<String>) -> Self {
        Self {
            link,
            works: true,
            notes,
            mend: String::new(),
        }
    }

    pub(crate) fn fails(link: &'static str, reason: String, mend: String) -> Self {
        Self {
            link,
            works: false,
            notes: vec![reason],
            mend,
        }
    }

    /// Sends a frame from one link to another, whose address is `to`, and waits for it. An error: it did not arrive within a second or two.
    pub(crate) fn pass_frame(
        (from, into): (&mut impl Link, &mut impl Link),
        to: LinkAddr,
        medium: &str,
    ) -> Result<(), String> {
        const POLLS_MAX: usize = 100;
        const POLL_EVERY: Duration = Duration::from_millis(20);
        let text = |error: LinkError| error.to_string();
        from.send_one(to, Frame::whole(&[1])).map_err(text)?;
        for _ in 0..POLLS_MAX {
            from.flush().map_err(text)?;
            into.wait(POLL_EVERY).map_err(text)?;
            if into.receive(1, &mut each(|_, _| {})).map_err(text)? > 0 {
                return Ok(());
            }
        }
        Err(format!("a frame sent over {medium} did not arrive"))
    }
}
