//! The thread that serves readers: HTTP/1.0, `GET /metrics`, over TCP if configured and always over an abstract UNIX socket.
//!
//! Started by `Publisher`; ends when its `Server` is dropped. It never waits for one reader: it serves up to `TALKS_MAX` of each listener at a time,
//! whichever are ready.
//!
//! Readers are not trusted: a request is limited to `REQUEST_BYTES_MAX`, a conversation to `CONVERSATION_MOST`; an answer that is not read is
//! dropped. If too many connect, the oldest is closed. The UNIX socket serves the same user and root only; connections of others are closed.

use std::io;
use std::io::{PipeReader, PipeWriter};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::UnixListener;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use tsumuji_proto::NodeId;

use super::{Snapshot, local, text};
use crate::door::Door;
use crate::error::OpenError;
use crate::sleep;

/// Limit of a request with headers. Known clients send less than 1 KiB.
const REQUEST_BYTES_MAX: usize = 8 << 10;
/// Time limit from accept to close.
const CONVERSATION_MOST: Duration = Duration::from_secs(2);
/// Bytes a refused client may still send while it gets the answer; unread input would make the kernel discard the answer.
const DRAINED_BYTES_MAX: usize = 64 << 10;
/// Readers that one listener serves at a time. Each may keep an answer in memory; `top` and a scraper are two.
const TALKS_MAX: usize = 8;
/// Queue of the UNIX socket: one round accepts all of it, so connections of other users do not delay ours for long.
const BACKLOG: i32 = 64;

const TEXT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// The running thread; it ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    addr: Option<SocketAddr>,
    /// Closing it wakes the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
    /// Id of the process in which the thread runs.
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
        let mut listeners = Vec::new();
        if let Some(wanted) = tcp {
            let listener = TcpListener::bind(wanted).map_err(failed(wanted))?;
            listener.set_nonblocking(true).map_err(failed(wanted))?;
            addr = Some(listener.local_addr().map_err(failed(wanted))?);
            listeners.push(Listener::new(Door::public(listener)));
        }
        // A program must not fail because it cannot be watched.
        match own_door(me) {
            Ok(listener) => listeners.push(Listener::new(Door::new(listener))),
            Err(error) => tracing::warn!("`tsumuji top` cannot see this node: {error}"),
        }
        let parts = std::io::pipe().and_then(|(reader, writer)| {
            let thread = std::thread::Builder::new().name("tsumuji-metrics".to_owned());
            let thread = thread.spawn(move || serve(listeners, &reader, &shared))?;
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
        // A child of `fork` has a copy of everything but the thread.
        if let Some(thread) = self.thread.take()
            && self.process == std::process::id()
        {
            let _ = thread.join(); // a panic in it does no harm
        }
    }
}

/// Opens an abstract socket, which vanishes with the process.
fn own_door(me: NodeId) -> io::Result<UnixListener> {
    /// Endpoints of one process have different names, even with the same node id.
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    let name = local::name_of(std::process::id(), me, serial);
    let addr = std::os::unix::net::SocketAddr::from_abstract_name(name)?;
    let listener = UnixListener::bind_addr(&addr)?;
    rustix::net::listen(&listener, BACKLOG)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// A listening socket, and its conversations in order of arrival.
struct Listener {
    door: Door,
    talks: Vec<Conversation>,
}

fn serve(mut listeners: Vec<Listener>, stop: &PipeReader, shared: &Mutex<Snapshot>) {
    loop {
        let now = Instant::now();
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        let mut wake: Option<Instant> = None;
        for listener in &listeners {
            let (door, pause) = listener.door.watch();
            wake = wake.into_iter().chain(pause.map(|pause| now + pause)).min();
            fds.push(door);
            for talk in &listener.talks {
                wake = wake.into_iter().chain([talk.deadline]).min();
                fds.push(PollFd::new(&talk.client, talk.wants()));
            }
        }
        let span = wake.map(|wake| wake.saturating_duration_since(now));
        if sleep::poll(&mut fds, span).is_err() {
            return; // no memory for a few descriptors: nothing to serve with
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
                // A client whose connection failed knows it by itself.
                now < talk.deadline && (!moves || talk.go_on(shared).unwrap_or(false))
            });
            if called {
                listener.take_calls(shared);
            }
        }
    }
}

impl Listener {
    fn new(door: Door) -> Self {
        Self {
            door,
            talks: Vec::with_capacity(TALKS_MAX),
        }
    }

    fn take_calls(&mut self, shared: &Mutex<Snapshot>) {
        for client in self.door.callers(TALKS_MAX) {
            let mut talk = Conversation::new(client);
            // Most clients have sent their request by now.
            if talk.go_on(shared).unwrap_or(false) {
                if self.talks.len() == TALKS_MAX {
                    self.talks.remove(0);
                }
                self.talks.push(talk);
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
    /// The request so far.
    Asked(Vec<u8>),
    /// The answer, and how much was sent.
    Answering {
        page: Vec<u8>,
        sent: usize,
        refused: bool,
    },
    /// A refused client goes on sending: bytes received so far.
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

    /// Does what is possible without waiting. `false`: the conversation is over.
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
                            Some(0) => return Ok(false), // closed before the end of the request
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
            // The lock cannot be poisoned, as nothing panics while it is held; and the numbers would be valid anyway.
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

/// Reads available input; 0: the end. `None`: nothing has arrived.
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

/// Sends what fits; `None`: nothing fits now.
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

/// Whether the empty line that ends a request has arrived.
fn is_complete(request: &[u8]) -> bool {
    let ends = |mark: &[u8]| request.windows(mark.len()).any(|some| some == mark);
    ends(b"\r\n\r\n") || ends(b"\n\n")
}

#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Metrics { with_body: bool },
    Refused(&'static str),
}

/// Only the first line is used.
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

    /// The request alone decides the answer; unexpected requests are refused.
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
