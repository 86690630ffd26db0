//! The thread that answers readers: HTTP/1.0, `GET /metrics`, over TCP where asked for and over an abstract UNIX socket always.
//!
//! Started by `Publisher`; ends when its `Server` is dropped. It never waits for one reader: it serves `TALKS_MAX` of each door
//! at a time, whichever has something to say or takes something.
//!
//! Readers are hostile: a request has `REQUEST_BYTES_MAX` and `CONVERSATION_MOST` of time, whatever is sent, and an answer
//! that nobody takes is given up. Where more come than are served, the one that came first makes room. The UNIX socket answers the
//! same user and root only; whoever else calls is turned away, a crowd of them in `CROWD_PAUSE` at most once.

use std::io;
use std::io::{PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tsumuji_proto::NodeId;

use super::{Snapshot, local, text};
use crate::error::OpenError;

/// Of a request, headers included. Those of known clients have less than 1 KiB.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// From accept to close.
const CONVERSATION_MOST: Duration = Duration::from_secs(2);
/// What a refused client may still send while it is told; without reading it, the kernel would take our answer back.
const DRAINED_BYTES_MAX: usize = 64 << 10;
/// After a failed accept (no descriptors left), before the next.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);
/// Readers that one door serves at a time. Each may keep an answer in memory; `top` and a scraper are two.
const TALKS_MAX: usize = 8;
/// Calls that one door takes in one turn: half a millisecond's work.
const CALLS_PER_TURN: usize = 2 * BACKLOG as usize;
/// Callers that the kernel keeps waiting at the UNIX socket: one turn takes them all, so none of ours stands behind strangers for long.
const BACKLOG: i32 = 64;
/// Fewer calls in a turn are no crowd.
const CROWD: usize = 8;
/// After a crowd, before its door is looked at again: strangers cost a few percent of a core, and a reader does not notice.
const CROWD_PAUSE: Duration = Duration::from_millis(10);

const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Running until dropped.
#[derive(Debug)]
pub(crate) struct Server {
    addr: Option<SocketAddr>,
    /// Its closing wakes the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    /// In whose process it runs.
    process: u32,
}

impl Server {
    pub(super) fn start(
        shared: Arc<Mutex<Snapshot>>,
        tcp: Option<SocketAddr>,
        me: NodeId,
    ) -> Result<Self, OpenError> {
        let failed = |addr| move |source| OpenError::Metrics { addr, source };
        let mut addr = None;
        let mut doors = Vec::new();
        if let Some(wanted) = tcp {
            let listener = TcpListener::bind(wanted).map_err(failed(wanted))?;
            listener.set_nonblocking(true).map_err(failed(wanted))?;
            addr = Some(listener.local_addr().map_err(failed(wanted))?);
            doors.push(Door::Tcp(listener));
        }
        // Whoever only wants to compute must not fail because nobody can watch.
        match own_door(me) {
            Ok(listener) => doors.push(Door::Local(listener)),
            Err(error) => tracing::warn!("`tsumuji top` cannot see this node: {error}"),
        }
        let parts = std::io::pipe().and_then(|(reader, writer)| {
            let thread = std::thread::Builder::new().name("tsumuji-metrics".to_owned());
            let thread = thread.spawn(move || serve(doors, &reader, &shared))?;
            Ok((writer, thread))
        });
        match (parts, tcp) {
            (Ok((stop, thread)), _) => Ok(Self {
                addr,
                stop: Some(stop),
                thread: Some(thread),
                process: std::process::id(),
            }),
            (Err(source), Some(addr)) => Err(OpenError::Metrics { addr, source }),
            (Err(error), None) => {
                tracing::warn!("`tsumuji top` cannot see this node: {error}");
                Ok(Self {
                    addr: None,
                    stop: None,
                    thread: None,
                    process: std::process::id(),
                })
            }
        }
    }

    pub(super) fn addr(&self) -> Option<SocketAddr> {
        self.addr
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        // A child of `fork` has a copy of all this but the thread.
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            let _ = thread.join(); // it holds nothing that its panic could spoil
        }
    }
}

/// An abstract socket: it vanishes with the process, however that ends.
fn own_door(me: NodeId) -> io::Result<UnixListener> {
    /// Several endpoints of one process, even with the same number, have names of their own.
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let name = local::name_of(std::process::id(), me, serial);
    let addr = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&addr)?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

enum Door {
    Tcp(TcpListener),
    Local(UnixListener),
}

impl Door {
    fn fd(&self) -> BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Local(listener) => listener.as_fd(),
        }
    }

    /// The next caller.
    fn accept(&self) -> io::Result<Caller> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(client, _)| OwnedFd::from(client)),
            Self::Local(listener) => listener.accept().map(|(client, _)| OwnedFd::from(client)),
        };
        match accepted {
            Ok(client) if matches!(self, Self::Tcp(_)) || local::is_friend(client.as_fd()) => {
                Ok(Caller::Welcome(client))
            }
            Ok(_) => Ok(Caller::Stranger),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => Ok(Caller::Nobody),
                io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted => {
                    Ok(Caller::Stranger)
                }
                _ => Err(error),
            },
        }
    }
}

enum Caller {
    Welcome(OwnedFd),
    /// Who may not ask, or has gone.
    Stranger,
    Nobody,
}

/// A door, whom it serves, in order of their coming, and how long it stays shut after a crowd.
struct Listener {
    door: Door,
    talks: Vec<Conversation>,
    opens: Instant,
}

fn serve(doors: Vec<Door>, stop: &PipeReader, shared: &Mutex<Snapshot>) {
    let listener = |door| Listener {
        door,
        talks: Vec::with_capacity(TALKS_MAX),
        opens: Instant::now(),
    };
    let mut listeners: Vec<Listener> = doors.into_iter().map(listener).collect();
    loop {
        let now = Instant::now();
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        let mut wake: Option<Instant> = None;
        for listener in &listeners {
            let looks = if listener.opens <= now {
                PollFlags::IN
            } else {
                wake = wake.into_iter().chain([listener.opens]).min();
                PollFlags::empty()
            };
            fds.push(PollFd::from_borrowed_fd(listener.door.fd(), looks));
            for talk in &listener.talks {
                wake = wake.into_iter().chain([talk.deadline]).min();
                fds.push(PollFd::new(&talk.client, talk.wants()));
            }
        }
        let span = wake.map(|wake| wake.saturating_duration_since(now));
        let span = span.and_then(|span| Timespec::try_from(span).ok());
        match rustix::event::poll(&mut fds, span.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return, // no memory for a few descriptors: nothing to serve with
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        let mut ready = ready.into_iter();
        if ready.next() == Some(true) {
            return;
        }
        for listener in &mut listeners {
            let called = ready.next() == Some(true);
            let now = Instant::now();
            listener.talks.retain_mut(|talk| {
                let moves = ready.next() == Some(true);
                // A client that failed has itself told enough.
                now < talk.deadline && (!moves || talk.go_on(shared).unwrap_or(false))
            });
            if called && listener.opens <= now {
                listener.take_calls(shared);
            }
        }
    }
}

impl Listener {
    fn take_calls(&mut self, shared: &Mutex<Snapshot>) {
        let mut welcomed = 0;
        for calls in 0..CALLS_PER_TURN {
            if calls == CROWD {
                self.opens = Instant::now() + CROWD_PAUSE;
            }
            match self.door.accept() {
                Ok(Caller::Welcome(client)) => {
                    let mut talk = Conversation::new(client);
                    // Most have asked by now.
                    if talk.go_on(shared).unwrap_or(false) {
                        if self.talks.len() == TALKS_MAX {
                            self.talks.remove(0);
                        }
                        self.talks.push(talk);
                    }
                    welcomed += 1;
                    // Each of these gets a turn to speak before it has to make room.
                    if welcomed == TALKS_MAX {
                        self.opens = Instant::now() + CROWD_PAUSE;
                        return;
                    }
                }
                Ok(Caller::Stranger) => {}
                Ok(Caller::Nobody) => return,
                Err(_) => {
                    self.opens = Instant::now() + ACCEPT_PAUSE;
                    return;
                }
            }
        }
    }
}

struct Conversation {
    client: OwnedFd,
    deadline: Instant,
    state: State,
}

enum State {
    /// What was asked so far.
    Asked(Vec<u8>),
    /// The answer, and how much of it was sent.
    Answering {
        page: Vec<u8>,
        sent: usize,
        refused: bool,
    },
    /// A refused client talks on: how much it has said.
    Draining(usize),
}

impl Conversation {
    fn new(client: OwnedFd) -> Self {
        Self {
            client,
            deadline: Instant::now() + CONVERSATION_MOST,
            state: State::Asked(Vec::with_capacity(1024)),
        }
    }

    fn wants(&self) -> PollFlags {
        match self.state {
            State::Answering { .. } => PollFlags::OUT,
            State::Asked(_) | State::Draining(_) => PollFlags::IN,
        }
    }

    /// Does what can be done without waiting. `false`: it is over.
    fn go_on(&mut self, shared: &Mutex<Snapshot>) -> io::Result<bool> {
        let mut chunk = [0_u8; 2048];
        loop {
            match &mut self.state {
                State::Asked(request) => {
                    let answer = if is_complete(request) {
                        answer(request)
                    } else if request.len() >= REQUEST_BYTES_MAX {
                        Answer::Refused("431 Request Header Fields Too Large")
                    } else {
                        let room = chunk.len().min(REQUEST_BYTES_MAX - request.len());
                        match receive(&self.client, &mut chunk[..room])? {
                            Some(0) => return Ok(false), // it hung up before it had asked
                            Some(bytes) => request.extend_from_slice(&chunk[..bytes]),
                            None => return Ok(true),
                        }
                        continue;
                    };
                    self.state = State::Answering {
                        refused: matches!(answer, Answer::Refused(_)),
                        page: page(answer, shared).into_bytes(),
                        sent: 0,
                    };
                }
                State::Answering {
                    page,
                    sent,
                    refused,
                } => {
                    if *sent < page.len() {
                        match send(&self.client, &page[*sent..])? {
                            Some(bytes) => *sent += bytes,
                            None => return Ok(true),
                        }
                        continue;
                    }
                    rustix::net::shutdown(&self.client, Shutdown::Write)?;
                    if !*refused {
                        return Ok(false);
                    }
                    self.state = State::Draining(0);
                }
                State::Draining(said) => {
                    if *said >= DRAINED_BYTES_MAX {
                        return Ok(false);
                    }
                    match receive(&self.client, &mut chunk)? {
                        Some(0) => return Ok(false),
                        Some(bytes) => *said += bytes,
                        None => return Ok(true),
                    }
                }
            }
        }
    }
}

fn page(answer: Answer, shared: &Mutex<Snapshot>) -> String {
    let (status, body, with_body) = match answer {
        Answer::Metrics { with_body } => {
            // A poisoned lock cannot be: nothing panics while it is held. The numbers would be sound all the same.
            let snapshot = shared
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            ("200 OK", text::render(&snapshot), with_body)
        }
        Answer::Refused(status) => (status, format!("{status}\n"), true),
    };
    let mut page = format!(
        "HTTP/1.0 {status}\r\nContent-Type: {TEXT_TYPE}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    if with_body {
        page.push_str(&body);
    }
    page
}

/// Reads what there is; 0: the end. `None`: nothing now.
fn receive(client: &OwnedFd, into: &mut [u8]) -> io::Result<Option<usize>> {
    loop {
        match rustix::net::recv(client, &mut *into, RecvFlags::DONTWAIT) {
            Ok((bytes, _)) => return Ok(Some(bytes)),
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Sends what fits. `None`: nothing does now.
fn send(client: &OwnedFd, bytes: &[u8]) -> io::Result<Option<usize>> {
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    loop {
        match rustix::net::send(client, bytes, flags) {
            Ok(sent) => return Ok(Some(sent)),
            Err(rustix::io::Errno::AGAIN) => return Ok(None),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// The empty line that ends a request has come.
fn is_complete(request: &[u8]) -> bool {
    let ends = |mark: &[u8]| request.windows(mark.len()).any(|some| some == mark);
    ends(b"\r\n\r\n") || ends(b"\n\n")
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Metrics { with_body: bool },
    Refused(&'static str),
}

/// Only the first line matters.
fn answer(request: &[u8]) -> Answer {
    let line = request.split(|byte| *byte == b'\n').next();
    let line = line.and_then(|line| std::str::from_utf8(line).ok());
    let words: Vec<&str> = line.unwrap_or_default().split_ascii_whitespace().collect();
    let [method, target, version] = words[..] else {
        return Answer::Refused("400 Bad Request");
    };
    let path = target.split('?').next().unwrap_or_default();
    match (method, path) {
        _ if !version.starts_with("HTTP/1.") => Answer::Refused("505 HTTP Version Not Supported"),
        ("GET", "/metrics") => Answer::Metrics { with_body: true },
        ("HEAD", "/metrics") => Answer::Metrics { with_body: false },
        ("GET" | "HEAD", _) => Answer::Refused("404 Not Found"),
        _ => Answer::Refused("405 Method Not Allowed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is asked decides the answer; nothing that is asked can do more.
    #[test]
    fn requests_are_judged() {
        let metrics = |with_body| Answer::Metrics { with_body };
        let cases: [(&[u8], Answer); 9] = [
            (b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", metrics(true)),
            (b"GET /metrics?x=1 HTTP/1.0\n\n", metrics(true)),
            (b"HEAD /metrics HTTP/1.0\r\n\r\n", metrics(false)),
            (b"GET / HTTP/1.1\r\n\r\n", Answer::Refused("404 Not Found")),
            (
                b"POST /metrics HTTP/1.1\r\n\r\n",
                Answer::Refused("405 Method Not Allowed"),
            ),
            (
                b"GET /metrics HTTP/2\r\n\r\n",
                Answer::Refused("505 HTTP Version Not Supported"),
            ),
            (b"GET /metrics\r\n\r\n", Answer::Refused("400 Bad Request")),
            (b"\xff\xfe\r\n\r\n", Answer::Refused("400 Bad Request")),
            (b"\n\n", Answer::Refused("400 Bad Request")),
        ];
        for (request, expected) in cases {
            assert!(is_complete(request));
            assert_eq!(answer(request), expected);
        }
        assert!(!is_complete(b"GET /metrics HTTP/1.1\r\nHost: x\r\n"));
    }
}
