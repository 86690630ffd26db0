//! Shared memory for whoever of this user asks for it, under an abstract name.
//!
//! Used by the nodes of one host (`neighbours`), by launches that others may join (`joining`) and by relays (`relay`). What is said with the memory is one
//! packet: the version, and what the asker needs to know beside.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::rendezvous::{self, Received, VERSION};
use crate::door::{CALLS_PER_ROUND, Door};
use crate::sleep;

/// How long to wait for a name that another process holds, and for an answer: longer than the kernel takes to end a killed process.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long one process is asked before the next is asked, too: a running process answers at once.
const HESITATION: Duration = Duration::from_millis(50);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(2);

/// Listens under a name as soon as nobody else does, or gives up.
pub(super) fn listen_within(name: &str) -> io::Result<OwnedFd> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        match rendezvous::listen(name) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && Instant::now() < deadline => {
                std::thread::sleep(RETRY);
            }
            result => return result,
        }
    }
}

/// Asks whoever listens under a name for its memory, and what it says of it. `None`: nobody is there, it has just ended, or it has none yet.
pub(super) fn ask<A: DeserializeOwned>(name: &str) -> io::Result<Option<(A, OwnedFd)>> {
    ask_any(std::iter::once(name.to_owned()))
}

/// As `ask`, of several names: asks one after the other, and takes the first answer. One that is silent does not keep the others from being asked; an
/// error is told if nobody answers.
pub(super) fn ask_any<A: DeserializeOwned>(
    mut names: impl Iterator<Item = String>,
) -> io::Result<Option<(A, OwnedFd)>> {
    let deadline = Instant::now() + PATIENCE;
    let (mut silent, mut failure) = (Vec::new(), None);
    loop {
        let name = names.next();
        match name.as_deref().map(rendezvous::connect) {
            Some(Ok(connection)) => silent.push(connection),
            Some(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => continue,
            Some(Err(error)) => failure = Some(error),
            None => {}
        }
        let until = match name {
            Some(_) => deadline.min(Instant::now() + HESITATION),
            None => deadline,
        };
        if let Some(answer) = hear(&mut silent, &mut failure, until) {
            return Ok(Some(answer));
        }
        if name.is_none() {
            let is_silent = !silent.is_empty();
            let failure = failure.or_else(|| is_silent.then(timed_out));
            return failure.map_or(Ok(None), Err);
        }
    }
}

/// The first answer on these connections until then. Those that were closed, or failed, are dropped.
fn hear<A: DeserializeOwned>(
    connections: &mut Vec<OwnedFd>,
    failure: &mut Option<io::Error>,
    until: Instant,
) -> Option<(A, OwnedFd)> {
    loop {
        for connection in std::mem::take(connections) {
            match rendezvous::receive(connection.as_fd()) {
                Ok(Received::Message((VERSION, about), Some(memory))) => {
                    return Some((about, memory));
                }
                Ok(Received::Closed) => {}
                Ok(Received::Nothing) => connections.push(connection),
                Ok(_) => {
                    *failure = Some(io::Error::other(
                        "it speaks another language; are both of one version?",
                    ));
                }
                Err(error) => *failure = Some(error),
            }
        }
        let left = until.saturating_duration_since(Instant::now());
        if connections.is_empty() || left.is_zero() {
            return None;
        }
        let fds = connections.iter();
        let mut fds: Vec<_> = fds.map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let _ = sleep::poll(&mut fds, Some(left));
    }
}

fn timed_out() -> io::Error {
    let seconds = PATIENCE.as_secs();
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("it is there, but has not answered for {seconds} s (is it stopped?)"),
    )
}

/// When the memory was given last; `None`: never.
pub(super) type Asked = Arc<Mutex<Option<Instant>>>;

/// Gives the memory to whoever asks, on a thread of its own, until it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    stop: Arc<OwnedFd>,
    asked: Asked,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Offers `memory`, and says `about` of it.
    pub(super) fn start(
        listener: OwnedFd,
        memory: OwnedFd,
        about: impl Serialize + Send + 'static,
    ) -> io::Result<Self> {
        let stop = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let stop = Arc::new(stop);
        let stopped = Arc::clone(&stop);
        let asked = Asked::default();
        let noted = Arc::clone(&asked);
        let thread = std::thread::Builder::new()
            .name("tsumuji-host".to_owned())
            .spawn(move || serve(Door::new(listener), (&memory, &about), &noted, &stopped))?;
        Ok(Self {
            stop,
            asked,
            thread: Some(thread),
        })
    }
}

impl Server {
    /// When somebody asked last; may be kept longer than the server.
    pub(super) fn asked(&self) -> Asked {
        Arc::clone(&self.asked)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&self.stop, &1_u64.to_ne_bytes()); // fails only when it was written before
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // if it panicked, it has ended, too
        }
    }
}

fn serve(
    mut door: Door,
    (memory, about): (&OwnedFd, &impl Serialize),
    asked: &Asked,
    stop: &OwnedFd,
) {
    loop {
        let (watched, pause) = door.watch();
        let mut fds = [watched, PollFd::new(stop, PollFlags::IN)];
        let polled = sleep::poll(&mut fds, pause);
        if polled.is_err() || !fds[1].revents().is_empty() {
            return;
        }
        for caller in door.callers(CALLS_PER_ROUND) {
            *asked.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
            // One that hangs up meanwhile asks again or not.
            let _ = rendezvous::send(caller.as_fd(), &(VERSION, about), Some(memory.as_fd()));
        }
    }
}
