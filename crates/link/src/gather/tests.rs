//! Over a pair of sockets of which one is read late: the kernel refuses what does not fit its queue of some ten datagrams.

use std::os::fd::AsFd;
use std::os::unix::net::UnixDatagram;

use rustix::net::SendFlags;

use super::*;

/// Sends by a socket that is connected.
#[derive(Debug, Default)]
struct Pipe {
    /// Errors of earlier datagrams that are told in place of what becomes of the next.
    foreign_errors: std::cell::Cell<u32>,
}

impl Outlet for Pipe {
    type To = u8;
    const FAILED: &'static str = "sending by the pair";
    const LEAD_BYTES: usize = 2;
    const JOINT_BYTES: usize = 0;

    fn write_lead(&self, _: u8, frame_bytes: usize, lead: &mut [u8]) {
        lead.copy_from_slice(&(frame_bytes as u16).to_le_bytes());
    }

    fn write_joint(&self, _: usize, _: &mut [u8]) {}

    fn joined_bytes_max(&self, _: u8) -> usize {
        0
    }

    fn name(&self, _: u8) -> Option<RawAddr> {
        None
    }

    fn send_one(&self, fd: BorrowedFd<'_>, _: u8, datagram: &[u8]) -> io::Result<()> {
        let left = self.foreign_errors.get();
        if left > 0 {
            self.foreign_errors.set(left - 1);
            return Err(io::Error::from_raw_os_error(libc::EHOSTUNREACH));
        }
        Ok(rustix::net::send(fd, datagram, SendFlags::DONTWAIT).map(drop)?)
    }

    fn cuts(&self) -> bool {
        false
    }

    fn judge(&mut self, error: &io::Error) -> Verdict {
        match error.raw_os_error() {
            Some(libc::EAGAIN) => Verdict::Keep(Blocked::Buffer),
            Some(libc::EHOSTUNREACH) => Verdict::Again,
            _ => Verdict::Fail,
        }
    }
}

/// All that `capacity` permits is taken, however little the kernel takes, and arrives in order once it does: the engine counts what it plans as sent.
#[test]
fn planned_frames_are_taken() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    rustix::net::sockopt::set_socket_send_buffer_size(&ours, 32 << 10).unwrap();
    let mut counters = LinkCounters::default();
    let mut gather = Gather::new(Pipe::default(), 2000);
    let (mut sent, mut arrived, mut was_blocked) = (0u32, 0u32, false);
    let body = [7; 1400];
    let take = |arrived: &mut u32| {
        let mut datagram = [0; 2100];
        while let Ok(bytes) = theirs.recv(&mut datagram) {
            assert!(bytes >= 6);
            let number = u32::from_le_bytes(datagram[2..6].try_into().unwrap());
            assert_eq!(number, *arrived);
            *arrived += 1;
        }
    };
    for round in 0..400 {
        let fd = ours.as_fd();
        let (capacity, _) = gather.capacity(fd, &mut counters).unwrap();
        let bodies = [&body[..], &[], &body[..10]][round % 3];
        let frame_bytes = 4 + bodies.len();
        let count = (capacity.frames.min(8)).min(capacity.bytes / frame_bytes);
        let heads: Vec<[u8; 4]> = (sent..sent + count as u32).map(u32::to_le_bytes).collect();
        let frames = heads.iter().map(|head| Frame { head, body: bodies });
        let frames: Vec<Frame<'_>> = frames.collect();
        let (taken, _) = gather.send(fd, &mut counters, 1, &frames).unwrap();
        assert_eq!(
            taken,
            count,
            "round {round} of {} queued",
            gather.queue.len()
        );
        sent += taken as u32;
        was_blocked |= gather.blocked().is_some();
        if round % 40 == 39 {
            take(&mut arrived);
        }
    }
    while gather.has_frames() {
        gather.flush(ours.as_fd(), &mut counters).unwrap();
        take(&mut arrived);
    }
    take(&mut arrived);
    assert!(was_blocked, "the kernel took everything at once");
    assert_eq!((arrived, counters.dropped_frames), (sent, 0));
}

/// More than `capacity` permits is refused, counted, and nothing is written beyond the arena.
#[test]
fn more_is_refused() {
    let (ours, _theirs) = UnixDatagram::pair().unwrap();
    let mut counters = LinkCounters::default();
    let mut gather = Gather::new(Pipe::default(), 60_000);
    let body = [7; 50_000];
    let frames = [Frame {
        head: &[1; 4],
        body: &body,
    }; 8];
    let mut refused = false;
    for _ in 0..20 {
        let sent = gather.send(ours.as_fd(), &mut counters, 1, &frames);
        refused |= sent.unwrap().0 < frames.len();
    }
    assert!(refused && counters.refused > 0);
}

/// An error about earlier datagrams holds up nobody, and one that comes again costs one datagram only.
#[test]
fn foreign_errors_pass() {
    let (ours, theirs) = UnixDatagram::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    let mut counters = LinkCounters::default();
    let mut gather = Gather::new(Pipe::default(), 100);
    for (errors, arrives) in [(1, true), (2, false), (0, true)] {
        gather.outlet.foreign_errors.set(errors);
        let frames = [Frame::whole(&[1; 4])];
        gather
            .send(ours.as_fd(), &mut counters, 1, &frames)
            .unwrap();
        gather.flush(ours.as_fd(), &mut counters).unwrap();
        assert!(!gather.has_frames() && gather.blocked().is_none());
        assert_eq!(
            theirs.recv(&mut [0; 100]).is_ok(),
            arrives,
            "{errors} errors"
        );
    }
    assert_eq!((counters.dropped_frames, counters.unsent_frames), (1, 0));
}
