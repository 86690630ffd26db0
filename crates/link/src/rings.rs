//! Links over rings in memory that processes of one host share. Beyond moving frames, they tell which processes are alive and what was read, and a
//! receiver can read bodies in the sender's memory.
//!
//! Few links have them; the engine's direct messages and messages by reference are built on it.

use bytes::Bytes;

use crate::{Link, LinkAddr, LinkError};

/// One process with rings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    /// Its place: the number in its address, [`LinkAddr::Local`].
    pub index: u16,
    /// A number that no earlier process in this place had, and never 0.
    pub generation: u64,
}

/// Rings in shared memory; see the head of this module. Frames come in order, and none is lost between live processes.
pub trait Rings {
    /// Most bytes of frames that can lie between this process and one peer.
    fn ring_bytes(&self) -> usize;

    /// Generation of the live process at `peer`, according to the kernel; 0: none. A stopped process is alive. `None`: the kernel does not tell.
    fn process_at(&self, peer: LinkAddr) -> Option<u64>;

    /// The process that sent the last frame of `peer`'s ring.
    fn heard(&self, peer: LinkAddr) -> Option<Process>;

    /// Sends a frame, whose parts follow one another, to exactly that process; returns whether there was room. `counted`: `unread` counts the frame
    /// until it is read.
    fn send_counted(
        &mut self,
        to: Process,
        counted: bool,
        parts: [&[u8]; 3],
    ) -> Result<bool, LinkError>;

    /// How many frames of `frame_bytes` each `send_counted` takes now to that process.
    fn counted_room(&mut self, to: Process, frame_bytes: usize) -> usize;

    /// Counted frames that that process has not yet said to have read. Known of the present generation and of the one before.
    fn unread(&self, of: Process) -> usize;

    /// Bytes that can still be sent by reference to that process; `None`: it cannot read this process's memory.
    fn reference_room(&mut self, to: Process) -> Option<usize>;

    /// As `send_counted`, of a frame whose body the receiver reads in this process's memory: the link holds the body until it was read or its
    /// receiver is gone; `flush` and `receive` release it. `Ok(false)`: also if `reference_room` is too small.
    fn send_reference(
        &mut self,
        to: Process,
        counted: bool,
        head: &[u8],
        body: &Bytes,
    ) -> Result<bool, LinkError>;

    /// Sets how many bytes of bodies each peer may send by reference before this process has read them; 0 at first.
    fn set_reference_max(&mut self, bytes: usize);
}

/// A link that may have rings. A wrapper that must see all frames offers none, because messages in rings would bypass it.
pub trait MayHaveRings: Link {
    /// The rings of this link, if it has them.
    fn rings(&self) -> Option<&impl Rings>;

    /// The same, mutable.
    fn rings_mut(&mut self) -> Option<&mut impl Rings>;
}
