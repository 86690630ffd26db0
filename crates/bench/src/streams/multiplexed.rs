//! A server that serves all clients by one thread, as event loops do: it waits for any of them (epoll), reads once what is there, and answers.
//!
//! Called by `ends`. By the C library, not by system calls of its own: a layer that is preloaded must see its calls.

use std::io::{self, ErrorKind};
use std::time::Instant;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};

use super::ends::{LEAST_READ, Served, Stream};
use super::{Plan, Shape};

/// Most events of one wait.
const EVENTS: usize = 64;

/// A client, and how far it is.
struct Conversation<'s> {
    stream: &'s mut dyn Stream,
    message: Vec<u8>,
    /// Bytes of the message that have come, and of its answer that have gone.
    taken: usize,
    given: usize,
    /// Messages that were answered; one way, bytes that have come.
    count: u64,
}

/// What a conversation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    Input,
    Room,
    Nothing,
}

impl Conversation<'_> {
    /// Reads once, and answers what is whole.
    fn go_on(&mut self, shape: Shape) -> io::Result<Next> {
        if self.taken < self.message.len() {
            match waits(self.stream.read(&mut self.message[self.taken..]))? {
                None => return Ok(Next::Input),
                Some(0) => return Ok(Next::Nothing),
                Some(bytes) if shape == Shape::OneWay => {
                    self.count += bytes as u64;
                    return Ok(Next::Input);
                }
                Some(bytes) => self.taken += bytes,
            }
            if self.taken < self.message.len() {
                return Ok(Next::Input);
            }
        }
        while self.given < self.message.len() {
            match waits(self.stream.write(&self.message[self.given..]))? {
                None => return Ok(Next::Room),
                Some(bytes) => self.given += bytes,
            }
        }
        (self.taken, self.given) = (0, 0);
        self.count += 1;
        Ok(Next::Input)
    }
}

/// `None`: the call would wait.
fn waits<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    }
}

/// Serves all to their ends.
pub(super) fn answer_all(
    plan: &Plan,
    streams: &mut [Box<dyn Stream>],
    began: Instant,
) -> io::Result<Served> {
    let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
    let bytes = match plan.shape {
        Shape::OneWay => plan.bytes.max(LEAST_READ),
        Shape::Requests | Shape::Connections => plan.bytes,
    };
    let mut all = Vec::new();
    for (number, stream) in streams.iter_mut().enumerate() {
        stream.set_spinning()?;
        let event = EpollEvent::new(EpollFlags::EPOLLIN, number as u64);
        epoll.add(stream.as_fd(), event)?;
        all.push(Conversation {
            stream: stream.as_mut(),
            message: vec![0; bytes],
            taken: 0,
            given: 0,
            count: 0,
        });
    }
    let patience = match plan.spins {
        true => EpollTimeout::ZERO,
        false => EpollTimeout::NONE,
    };
    let mut events = [EpollEvent::empty(); EVENTS];
    let (mut open, mut first) = (all.len(), None);
    while open > 0 {
        let count = match epoll.wait(&mut events, patience) {
            Err(Errno::EINTR) => continue,
            count => count?,
        };
        for event in &events[..count] {
            first.get_or_insert_with(|| began.elapsed());
            let one = &mut all[event.data() as usize];
            let was = event.events();
            let next = one.go_on(plan.shape)?;
            let flags = match next {
                Next::Nothing => {
                    epoll.delete(one.stream.as_fd())?;
                    open -= 1;
                    continue;
                }
                Next::Input => EpollFlags::EPOLLIN,
                Next::Room => EpollFlags::EPOLLOUT,
            };
            if !was.contains(flags) {
                let mut changed = EpollEvent::new(flags, event.data());
                epoll.modify(one.stream.as_fd(), &mut changed)?;
            }
        }
    }
    let count: u64 = all.iter().map(|one| one.count).sum();
    let messages = match plan.shape {
        Shape::OneWay => count / plan.bytes as u64,
        Shape::Requests | Shape::Connections => count,
    };
    Ok(Served::until_now(messages, first, began))
}
