//! Links of rings in memory that processes of one host share: beyond frames, they tell who lives and what was read, and bodies can stay where
//! they lie.
//!
//! A part of [`Link`](crate::Link) that few links have; the engine's direct messages and what is sent by reference stand on
//! it. A process is known by its *generation*: a number that no process in its place had before, and never 0.

use bytes::Bytes;

use crate::{LinkAddr, LinkError};

/// See the head of this module. Frames come in order, and none is lost between the living.
pub trait Rings {
    /// Bytes of frames that lie between this process and one peer at most.
    fn ring_bytes(&self) -> usize;

    /// Which process lives behind `peer`, as the kernel says; 0 if there is none. One that is stopped lives. `None`: the kernel does not tell.
    fn process_at(&self, peer: LinkAddr) -> Option<u64>;

    /// The generation of a peer from which the last frame came.
    fn generation_heard(&self, peer: LinkAddr) -> Option<u64>;

    /// Sends a frame, whose parts follow one another, to that generation of the peer and no other; whether there was room. `counted`: until it is read,
    /// `unread` counts it.
    fn send_counted(
        &mut self,
        to: (LinkAddr, u64),
        counted: bool,
        parts: [&[u8]; 3],
    ) -> Result<bool, LinkError>;

    /// How many frames of `frame_bytes` each the next calls of `send_counted` take to that generation of the peer.
    fn counted_room(&mut self, to: (LinkAddr, u64), frame_bytes: usize) -> usize;

    /// How many counted frames that generation of the peer has not read, as far as it has said: the present generation, or the one before.
    fn unread(&self, of: (LinkAddr, u64)) -> usize;

    /// How many bytes more that generation of the peer takes by reference; `None`: it cannot read this process's memory.
    fn reference_room(&mut self, to: (LinkAddr, u64)) -> Option<usize>;

    /// As `send_counted`, of a frame whose body its receiver reads where it lies: the link holds it until then, or until its receiver is
    /// gone; `flush` and receiving give up what was read. `Ok(false)`: also if there is no such room.
    fn send_reference(
        &mut self,
        to: (LinkAddr, u64),
        counted: bool,
        head: &[u8],
        body: &Bytes,
    ) -> Result<bool, LinkError>;

    /// How many bytes of bodies each peer may refer to, of those that this process has not read; 0 at first.
    fn set_reference_max(&mut self, bytes: usize);
}

/// The rings of links that have none.
#[derive(Debug, Clone, Copy)]
pub enum NoRings {}

impl Rings for NoRings {
    fn ring_bytes(&self) -> usize {
        match *self {}
    }

    fn process_at(&self, _: LinkAddr) -> Option<u64> {
        match *self {}
    }

    fn generation_heard(&self, _: LinkAddr) -> Option<u64> {
        match *self {}
    }

    fn send_counted(
        &mut self,
        _: (LinkAddr, u64),
        _: bool,
        _: [&[u8]; 3],
    ) -> Result<bool, LinkError> {
        match *self {}
    }

    fn counted_room(&mut self, _: (LinkAddr, u64), _: usize) -> usize {
        match *self {}
    }

    fn unread(&self, _: (LinkAddr, u64)) -> usize {
        match *self {}
    }

    fn reference_room(&mut self, _: (LinkAddr, u64)) -> Option<usize> {
        match *self {}
    }

    fn send_reference(
        &mut self,
        _: (LinkAddr, u64),
        _: bool,
        _: &[u8],
        _: &Bytes,
    ) -> Result<bool, LinkError> {
        match *self {}
    }

    fn set_reference_max(&mut self, _: usize) {
        match *self {}
    }
}
