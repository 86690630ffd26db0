//! Links: they move opaque frames in bursts between the processes of a cluster.
//!
//! A link knows no protocol. It may lose, repeat or reorder frames, and never blocks. `conformance` is the suite that each
//! link passes; `checked`, `impair` and `capture` wrap any link.

pub mod capture;
pub mod checked;
pub mod conformance;
pub mod dpdk;
pub mod ether;
pub mod impair;
pub mod packet;
mod sealing;
pub mod shm;
pub mod udp;
pub mod xdp;

use std::fmt;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::Duration;

use bytes::Bytes;

pub use sealing::SealCounters;

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
    /// Frames given to `on_frame`.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Broadcast frames overwritten before this receiver read them.
    pub overrun_frames: u64,
    /// Frames dropped on purpose by `impair`.
    pub impaired_frames: u64,
    /// Times that a transmit slot was asked for and none was free.
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

/// Where the payloads of frames belong that are likely to come next: one after the other, while each frame's head goes elsewhere.
#[derive(Debug)]
pub struct Landing<'a> {
    /// Bytes of each head, at most [`LANDING_HEAD_BYTES_MAX`].
    pub head_bytes: usize,
    /// Bytes of each payload but perhaps the last.
    pub body_bytes: usize,
    /// Room for some payloads.
    pub place: &'a mut [u8],
}

/// Longest head that a link can part from its payload.
pub const LANDING_HEAD_BYTES_MAX: usize = 64;

/// Takes received frames, and may know beforehand where the next ones belong.
pub trait Receiver {
    /// A frame, borrowed from the link for this call.
    fn frame(&mut self, from: LinkAddr, frame: &[u8]);

    /// The next frame begins so and has so many bytes, says a link that knows before it asks where that frame belongs.
    fn coming(&mut self, _from: LinkAddr, _start: &[u8], _frame_bytes: usize) {}

    /// Where payloads of the next frames belong, if anywhere. A link may write there whatever comes.
    fn landing(&mut self) -> Option<Landing<'_>> {
        None
    }

    /// Does this head, with `body_bytes` at `index` in the place last lent, belong just there? The link asks of all frames that it
    /// put there, before it hands over any.
    fn is_expected(
        &mut self,
        _from: LinkAddr,
        _index: usize,
        _head: &[u8],
        _body_bytes: usize,
    ) -> bool {
        false
    }

    /// Did that frame, now that its payload lies in its place, come as it was sent? If not, it is handed over as a frame like any other,
    /// and what lies in its place means nothing.
    fn is_sound(&mut self, _index: usize, _head: &[u8], _body_bytes: usize) -> bool {
        true
    }

    /// Such a frame, all of them in order: its payload lies in its place, and is sound.
    fn landed(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}

    /// A frame that was coming, and whose payload cannot be had where its sender left it, or has no place.
    fn bodiless(&mut self, _from: LinkAddr, _head: &[u8], _body_bytes: usize) {}
}

/// A receiver that has no places to lend.
pub(crate) struct Plain<F>(pub(crate) F);

impl<F: FnMut(LinkAddr, &[u8])> Receiver for Plain<F> {
    #[inline]
    fn frame(&mut self, from: LinkAddr, frame: &[u8]) {
        (self.0)(from, frame);
    }
}

/// What fits one call of [`Link::send_run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunRoom {
    /// Frames.
    pub frames: usize,
    /// Their bytes, together.
    pub bytes: usize,
}

/// Moves opaque frames in bursts; may lose, repeat or reorder them. Never blocks (but in `wait`).
pub trait Link {
    /// What this link can do.
    fn caps(&self) -> LinkCaps;

    /// Our own address, as peers must name it.
    fn local_addr(&self) -> LinkAddr;

    /// Hands received frames to `on_frame`, each borrowed from the link for that call, until there are none or `max` were: the
    /// rest of what came in one piece with the last of them goes with it. Returns how many.
    fn recv_burst(
        &mut self,
        max: usize,
        on_frame: impl FnMut(LinkAddr, &[u8]),
    ) -> Result<usize, LinkError>;

    /// As `recv_burst`. A link that can do so puts payloads where `receiver` says that they belong, and may then hand over all that
    /// came in one piece, even if it is more than `max`.
    fn recv_landing(
        &mut self,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> Result<usize, LinkError> {
        self.recv_burst(max, |from, frame| receiver.frame(from, frame))
    }

    /// Whether frames may be sent from where they lie (`run_room`, `send_run`). Does not change while the link lives.
    fn sends_runs(&self) -> bool {
        false
    }

    /// What `send_run` takes towards `to` now; `None`: nothing.
    fn run_room(&mut self, _to: LinkAddr) -> Result<Option<RunRoom>, LinkError> {
        Ok(None)
    }

    /// Sends frames in two parts each, without a copy of its own: of one size but perhaps the last, and no more than `run_room` said
    /// just before. They are on their way at the latest after `flush`. Not called where `run_room` has no room.
    fn send_run<'a>(
        &mut self,
        _to: LinkAddr,
        _frames: impl Iterator<Item = (&'a [u8], &'a [u8])> + Clone,
    ) -> Result<(), LinkError> {
        Ok(())
    }

    /// Lends a free transmit slot towards `to`, of `caps().frame_bytes`; `fill` writes a frame and returns its length (0: none).
    ///
    /// `Ok(false)`: no slot towards `to` is free now and `fill` was not called. The frame is on its way at the latest after
    /// `flush`. A slot that `fill` sees may hold any old bytes.
    fn send_with(
        &mut self,
        to: LinkAddr,
        fill: impl FnOnce(&mut [u8]) -> usize,
    ) -> Result<bool, LinkError>;

    /// Bytes of frames that lie between this process and one peer at most, where frames come in order, none is lost, and it can be told which
    /// were read (`send_counted`, `unread`). 0: this link is of another kind, and has no lives.
    fn ring_bytes(&self) -> usize {
        0
    }

    /// The life of a peer from which the last frame came, as `process_at` numbers them.
    fn life_heard(&self, _peer: LinkAddr) -> Option<u64> {
        None
    }

    /// As `send_with`, to that life of the peer and no other, of a frame whose parts follow one another. `counted`: until it is read, `unread`
    /// counts the frame.
    fn send_counted(
        &mut self,
        _to: (LinkAddr, u64),
        _counted: bool,
        _parts: [&[u8]; 3],
    ) -> Result<bool, LinkError> {
        Ok(false)
    }

    /// How many frames of `frame_bytes` each the next calls of `send_counted` take to that life of the peer.
    fn counted_room(&mut self, _to: (LinkAddr, u64), _frame_bytes: usize) -> usize {
        0
    }

    /// How many counted frames that life of the peer has not read, as far as it has said: the present life, or the one before.
    fn unread(&self, _of: (LinkAddr, u64)) -> usize {
        0
    }

    /// How many bytes more that life of the peer takes by reference (`send_reference`); `None`: it cannot read this process's memory.
    fn reference_room(&mut self, _to: (LinkAddr, u64)) -> Option<usize> {
        None
    }

    /// As `send_counted`, of a frame whose body its receiver reads where it lies: the link holds it until then, or until its receiver is gone; `flush` and receiving give up what was read.
    /// `Ok(false)`: also if there is no such room.
    fn send_reference(
        &mut self,
        _to: (LinkAddr, u64),
        _counted: bool,
        _head: &[u8],
        _body: &Bytes,
    ) -> Result<bool, LinkError> {
        Ok(false)
    }

    /// How many bytes of bodies each peer may refer to, of those that this process has not read; 0 at first.
    fn set_reference_max(&mut self, _bytes: usize) {}

    /// Pushes out what `send_with` gathered and wakes sleeping receivers.
    fn flush(&mut self) -> Result<(), LinkError>;

    /// Sleeps until a frame may be there, or `timeout` has passed. May return early.
    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError>;

    /// Readable when a frame may be there, once `arm_fd` was called.
    fn fd(&self) -> Option<BorrowedFd<'_>>;

    /// Which process lives behind `peer`, as the kernel says: a number that none before it had, or 0 if there is none. One that is
    /// stopped lives. `None`: this link cannot tell.
    fn process_at(&self, _peer: LinkAddr) -> Option<u64> {
        None
    }

    /// Longer frames than that do not reach `to`: a link that joins several for one station joins no more than that. One that is longer by
    /// itself still leaves.
    fn set_reach(&mut self, _to: LinkAddr, _frame_bytes: usize) {}

    /// Asks that the next frame make `fd` readable. `false`: frames are waiting now, poll first.
    fn arm_fd(&mut self) -> Result<bool, LinkError>;

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
