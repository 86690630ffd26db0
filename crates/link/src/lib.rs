//! Links: they move opaque frames in bursts between the processes of a cluster.
//!
//! A link knows no protocol. It may lose, repeat or reorder frames, and never blocks. `conformance` is the suite that each
//! link passes; `checked`, `impair` and `capture` wrap any link.

pub mod capture;
pub mod checked;
pub mod conformance;
pub mod dpdk;
pub mod ether;
mod gather;
pub mod impair;
pub mod packet;
mod rings;
mod sealing;
pub mod shm;
pub mod udp;
#[cfg(feature = "xdp")]
pub mod xdp;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

pub use rings::{NoRings, Rings};
pub use sealing::{SealCounters, SealMode, SealModeError};

/// Where a frame comes from or goes to, as the link knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LinkAddr {
    /// A process of this host: its index in the shared-memory job.
    Local(u16),
    /// A UDP socket.
    Inet(SocketAddr),
    /// A station of an Ethernet segment.
    Ether(ether::MacAddr),
    /// Everyone on the link; only where `LinkCaps::broadcast`.
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

/// What a link can do. Does not change while the link lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkCaps {
    /// The link's name as users write it, without parameters: `shm`, `udp`.
    pub name: &'static str,
    /// Largest frame, in bytes.
    pub frame_bytes: usize,
    /// Frames of `frame_bytes` that the receive side holds before it drops, all senders together, less what it keeps for those that come
    /// without credit.
    pub receive_frames: usize,
    /// Frames worth handing over before `flush`.
    pub burst_frames: usize,
    /// Bodies of frames leave from where they lie, without a copy of the link's own.
    pub gathers: bool,
    /// One transmit reaches all.
    pub broadcast: bool,
    /// Nothing is lost between a live sender and a live receiver: a full ring refuses the sender instead (broadcast excepted).
    pub lossless: bool,
    /// A frame may arrive otherwise than it was sent, and nobody on the way notices for sure: `checked` adds a checksum.
    pub damages: bool,
}

/// What went through a link. Every drop is counted under its reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LinkCounters {
    /// Frames handed to the medium.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames given to the receiver.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Broadcast frames overwritten before this receiver read them.
    pub overrun_frames: u64,
    /// Frames dropped on purpose by `impair`.
    pub impaired_frames: u64,
    /// Times that a frame was to leave and there was no room.
    pub refused: u64,
    /// Frames that the medium or the kernel reported dropped.
    pub dropped_frames: u64,
    /// Frames received and dropped because they were not as they had been sent (`checked`).
    pub damaged_frames: u64,
    /// Frames received and dropped because they bore no checksum where all must (`checked`).
    pub unchecked_frames: u64,
}

/// Why a link failed for good. A lost frame or a full ring is no error.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkError {
    /// The kernel refused.
    #[error("{what}: {source}")]
    Io {
        /// Which step.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// A programmer's or configuration's mistake: such an address is not on this link.
    #[error("{to} cannot be reached over {link}; give an address of this link")]
    NoSuchPeer {
        /// The link.
        link: &'static str,
        /// Where to.
        to: LinkAddr,
    },
}

/// A frame on its way out: its bytes follow each other, but need not lie together.
#[derive(Debug, Clone, Copy, Default)]
pub struct Frame<'a> {
    /// First bytes: a header, or all of it.
    pub head: &'a [u8],
    /// The other bytes.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// A frame that lies in one piece.
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

/// What one call of [`Link::send`] takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Capacity {
    /// Frames; 0: none now.
    pub frames: usize,
    /// Their bytes, together; one frame of any length always fits.
    pub bytes: usize,
}

impl Capacity {
    /// Nothing now.
    pub const NONE: Self = Self {
        frames: 0,
        bytes: 0,
    };
}

/// Where the bodies of the next frames belong: one after the other, while each frame's head goes elsewhere.
#[derive(Debug)]
pub struct Placement<'a> {
    /// Bytes of each head, at most [`HEAD_BYTES_MAX`].
    pub head_bytes: usize,
    /// Bytes of each body but perhaps the last.
    pub body_bytes: usize,
    /// Room for some bodies.
    pub place: &'a mut [u8],
}

/// Longest head that a link can part from its body.
pub const HEAD_BYTES_MAX: usize = 64;

/// The frame that is received next, as far as a link knows it before it asks where its body belongs.
#[derive(Debug, Clone, Copy)]
pub struct Coming<'a> {
    /// Where it comes from.
    pub from: LinkAddr,
    /// Its first bytes.
    pub start: &'a [u8],
    /// All its bytes.
    pub bytes: usize,
}

/// Takes received frames, and may know beforehand where the bodies of the next ones belong.
pub trait Receiver {
    /// A frame, borrowed from the link for this call.
    fn frame(&mut self, from: LinkAddr, frame: &[u8]);

    /// Where bodies of the next frames belong, if anywhere; `coming`: the next frame, if the link knows it already. A link may write there
    /// whatever comes.
    fn placement(&mut self, _coming: Option<Coming<'_>>) -> Option<Placement<'_>> {
        None
    }

    /// Does the body of the frame with this head, of `body_bytes`, belong at `index` in the place named last? A link asks of all frames that it puts there,
    /// before it hands over any. Where the answer is no, it hands over a frame like any other, and what lies in the place means nothing.
    fn is_expected(
        &mut self,
        _from: LinkAddr,
        _index: usize,
        _head: &[u8],
        _body_bytes: usize,
    ) -> bool {
        false
    }

    /// Did that frame, now that its body lies in its place, come as it was sent? If not, it is handed over as a frame like any other.
    fn is_sound(&mut self, _index: usize, _head: &[u8], _body_bytes: usize) -> bool {
        true
    }

    /// Such a frame, all of them in order: its body lies in its place, and is sound.
    fn placed(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}

    /// A frame whose body cannot be had where its sender left it, or has no place.
    fn bodiless(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}
}

/// A receiver without places, of a function: [`each`].
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

/// Any receiver, called by its table of functions: what receives through this is compiled once and not for each receiver. For links of
/// which a frame costs far more than such a call.
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

/// Hands over a frame that lies in one piece, its body where `receiver` says that it belongs.
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

/// Moves opaque frames in bursts; may lose, repeat or reorder them. Never blocks (but in `wait`).
pub trait Link {
    /// What this link can do.
    fn caps(&self) -> LinkCaps;

    /// Our own address, as peers must name it.
    fn local_addr(&self) -> LinkAddr;

    /// What `send` takes towards `to` now.
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError>;

    /// Takes as many of `frames` towards `to` as there is room for now, in order; returns how many: all, if `capacity` said so just before. They are
    /// on their way at the latest after `flush`.
    ///
    /// No frame is empty, or longer than `caps().frame_bytes`.
    fn send<'a>(
        &mut self,
        to: LinkAddr,
        frames: impl Iterator<Item = Frame<'a>> + Clone,
    ) -> Result<usize, LinkError>;

    /// As `send`, of one frame; whether it was taken.
    #[inline]
    fn send_one(&mut self, to: LinkAddr, frame: Frame<'_>) -> Result<bool, LinkError> {
        Ok(self.send(to, std::iter::once(frame))? == 1)
    }

    /// Hands received frames to `receiver`, until there are none or `max` were: the rest of what came in one piece with the last of
    /// them goes with it. Returns how many.
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError>;

    /// Pushes out what `send` gathered and wakes sleeping receivers.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Sleeps until a frame may be there, or `timeout` has passed. May return early.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError>;

    /// Readable when a frame may be there, once `arm_fd` was called.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Asks that the next frame make `fd` readable. `false`: frames are waiting now, poll first.
    fn arm_fd(&mut self) -> Result<bool, LinkError>;

    /// Longer frames than that do not reach `to`: a link that joins several for one station joins no more than that. One that is longer by
    /// itself still leaves.
    fn set_reach(&mut self, _to: LinkAddr, _frame_bytes: usize) {}

    /// The rings through which frames go, where there are such.
    fn rings(&self) -> Option<&impl Rings> {
        None::<&NoRings>
    }

    /// The same, to be written.
    fn rings_mut(&mut self) -> Option<&mut impl Rings> {
        None::<&mut NoRings>
    }

    /// What went through.
    fn counters(&self) -> LinkCounters;

    /// What the seal around this link counted; `None`: its frames are not sealed.
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
    /// What was found: facts if it works, the reason if not.
    pub notes: Vec<String>,
    /// The command or step that mends it or makes it better; empty: none known, or none needed.
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
}
