//! The thread that answers readers: HTTP/1.0, `GET /metrics`, over TCP where asked for and over an abstract UNIX socket always.
//!
//! Started by `Publisher`; ends when its `Server` is dropped. One connection at a time.
//!
//! Readers are hostile: a request has `REQUEST_BYTES_MAX` and `CONVERSATION_MOST` of time, whatever is sent, and an answer
//! that nobody takes is given up. The UNIX socket answers the same user and root only.

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
            let thread = thread.spawn(move || serve(&doors, &reader, &shared))?;
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

    /// The next that may ask. `None`: nobody waits, or only somebody who may not.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let accepted = match self {
            Self::Tcp(listener) => listener.accept().map(|(client, _)| OwnedFd::from(client)),
            Self::Local(listener) => listener.accept().map(|(client, _)| OwnedFd::from(client)),
        };
        match accepted {
            Ok(client) => {
                let welcome = matches!(self, Self::Tcp(_)) || local::is_friend(client.as_fd());
                Ok(welcome.then_some(client))
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock
                | io::ErrorKind::Interrupted
                | io::ErrorKind::ConnectionAborted => Ok(None),
                _ => Err(error),
            },
        }
    }
}

fn serve(doors: &[Door], stop: &PipeReader, shared: &Mutex<Snapshot>) {
    loop {
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(
            doors
                .iter()
                .map(|door| PollFd::from_borrowed_fd(door.fd(), PollFlags::IN)),
        );
        match rustix::event::poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return, // no memory for three descriptors: nothing to serve with
        }
        if !fds[0].revents().is_empty() {
            return;
        }
        let ready = fds[1..].iter().map(|fd| !fd.revents().is_empty());
        let ready: Vec<bool> = ready.collect();
        // One of each in turn: a crowd at one door does not lock the other.
        for (door, _) in doors.iter().zip(ready).filter(|(_, ready)| *ready) {
            match door.accept() {
                Ok(Some(client)) => {
                    let deadline = Instant::now() + CONVERSATION_MOST;
                    let talk = Conversation {
                        client,
                        stop,
                        deadline,
                    };
                    let _ = talk.hold(shared); // a client that failed has itself told enough
                }
                Ok(None) => {}
                Err(_) => {
                    let _ = wait(None, stop, ACCEPT_PAUSE);
                }
            }
        }
    }
}

/// Waits for `fd`, at most `span`. `false`: the time is over, or we are to stop.
fn wait(
    fd: Option<(BorrowedFd<'_>, PollFlags)>,
    stop: &PipeReader,
    span: Duration,
) -> io::Result<bool> {
    let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
    fds.extend(fd.map(|(fd, what)| PollFd::from_borrowed_fd(fd, what)));
    let span = Timespec::try_from(span).map_err(io::Error::other)?;
    match rustix::event::poll(&mut fds, Some(&span)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let stopped = !fds[0].revents().is_empty();
    Ok(!stopped && fds.get(1).is_some_and(|fd| !fd.revents().is_empty()))
}

struct Conversation<'a> {
    client: OwnedFd,
    stop: &'a PipeReader,
    deadline: Instant,
}

impl Conversation<'_> {
    fn hold(&self, shared: &Mutex<Snapshot>) -> io::Result<()> {
        let mut request = Vec::with_capacity(1024);
        let answer = loop {
            if is_complete(&request) {
                break answer(&request);
            }
            if request.len() >= REQUEST_BYTES_MAX {
                break Answer::Refused("431 Request Header Fields Too Large");
            }
            if self.receive(&mut request, REQUEST_BYTES_MAX)? == 0 {
                return Ok(()); // it hung up before it had asked
            }
        };
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
        self.send(page.as_bytes())?;
        rustix::net::shutdown(&self.client, Shutdown::Write)?;
        if status != "200 OK" {
            let mut rest = Vec::new();
            while rest.len() < DRAINED_BYTES_MAX && self.receive(&mut rest, DRAINED_BYTES_MAX)? > 0
            {
            }
        }
        Ok(())
    }

    /// Reads what there is, up to `most` bytes in all; 0: the end. Too late is an error.
    fn receive(&self, into: &mut Vec<u8>, most: usize) -> io::Result<usize> {
        let mut chunk = [0_u8; 2048];
        let room = chunk.len().min(most.saturating_sub(into.len()));
        loop {
            match rustix::net::recv(&self.client, &mut chunk[..room], RecvFlags::DONTWAIT) {
                Ok((bytes, _)) => {
                    into.extend_from_slice(&chunk[..bytes]);
                    return Ok(bytes);
                }
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::IN)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(&self, mut bytes: &[u8]) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        while !bytes.is_empty() {
            match rustix::net::send(&self.client, bytes, flags) {
                Ok(sent) => bytes = &bytes[sent..],
                Err(rustix::io::Errno::AGAIN) => self.wait(PollFlags::OUT)?,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wait(&self, what: PollFlags) -> io::Result<()> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if left.is_zero() || !wait(Some((self.client.as_fd(), what)), self.stop, left)? {
            return Err(io::ErrorKind::TimedOut.into());
        }
        Ok(())
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
