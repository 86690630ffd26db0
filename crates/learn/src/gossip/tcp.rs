//! Peers by kernel TCP sockets, to compare with: one connection from each worker to each other, on this host's loopback.
//!
//! A frame is its length in 4 bytes and its content. A connection begins with the run's token and the sender's number; one that does not is closed.
//! Nothing blocks: what a socket does not take waits here, and parameters that would wait too long are dropped, as datagrams are.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use crate::tuning::TUNING;

/// Longest frame: a statistic of the widest Hessian.
const FRAME_BYTES_MAX: usize = 1 << 28;
/// Token and number.
const HELLO_BYTES: usize = 10;
/// Connections beyond the workers' own that are open at a time. Unauthenticated ones are closed once they say something false, or, the oldest first,
/// where there is no place for another.
const UNAUTHENTICATED_MAX: usize = 16;

/// Why sockets cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("TCP on 127.0.0.1: {0}")]
pub struct TcpError(#[from] std::io::Error);

/// A connection that others opened.
#[derive(Debug)]
struct Incoming {
    stream: TcpStream,
    /// The worker at the other end, as it states; `None`: it has not stated it yet.
    from: Option<usize>,
    buffer: Vec<u8>,
    is_open: bool,
}

#[derive(Debug)]
struct Outgoing {
    stream: TcpStream,
    buffer: Vec<u8>,
    /// Bytes of `buffer` that were written.
    written: usize,
}

/// The sockets of one worker.
#[derive(Debug)]
pub(super) struct Tcp {
    me: usize,
    workers: usize,
    token: u64,
    listener: TcpListener,
    port: u16,
    incoming: Vec<Incoming>,
    outgoing: Vec<Option<Outgoing>>,
    sent_bytes: u64,
    scratch: Vec<u8>,
}

impl Tcp {
    /// Listens at a port that the kernel chooses.
    pub(super) fn listen(me: usize, workers: usize, token: u64) -> Result<Self, TcpError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        Ok(Self {
            me,
            workers,
            token,
            listener,
            port,
            incoming: Vec::new(),
            outgoing: (0..workers).map(|_| None).collect(),
            sent_bytes: 0,
            scratch: vec![0; TUNING.tcp.read_bytes],
        })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Bytes that were given to sockets.
    pub(super) fn sent_bytes(&self) -> u64 {
        self.sent_bytes
    }

    /// Connects to all other workers with a port.
    pub(super) fn connect(&mut self, ports: &[u16]) -> Result<(), TcpError> {
        for (worker, port) in ports.iter().enumerate().take(self.workers) {
            if worker == self.me || *port == 0 || self.outgoing[worker].is_some() {
                continue;
            }
            let stream = match TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, *port))) {
                Ok(stream) => stream,
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue, // it died; the judge hears of it
                Err(error) => return Err(error.into()),
            };
            stream.set_nodelay(true)?;
            stream.set_nonblocking(true)?;
            let mut buffer = self.token.to_le_bytes().to_vec();
            buffer.extend((self.me as u16).to_le_bytes());
            self.outgoing[worker] = Some(Outgoing {
                stream,
                buffer,
                written: 0,
            });
        }
        Ok(())
    }

    /// Sends a frame, or keeps it until the socket takes it.
    pub(super) fn send(&mut self, to: usize, bytes: &[u8]) {
        let Some(Some(outgoing)) = self.outgoing.get_mut(to) else {
            return; // it is gone, as a datagram would be
        };
        let waiting = outgoing.buffer.len() - outgoing.written;
        if waiting
            > TUNING
                .tcp
                .queue_bytes
                .max(TUNING.tcp.queue_frames * bytes.len())
            || bytes.len() > FRAME_BYTES_MAX
        {
            return;
        }
        outgoing.buffer.extend((bytes.len() as u32).to_le_bytes());
        outgoing.buffer.extend_from_slice(bytes);
        self.write(to);
    }

    fn write(&mut self, to: usize) {
        let Some(outgoing) = &mut self.outgoing[to] else {
            return;
        };
        while outgoing.written < outgoing.buffer.len() {
            match outgoing.stream.write(&outgoing.buffer[outgoing.written..]) {
                Ok(bytes) if bytes > 0 => {
                    outgoing.written += bytes;
                    self.sent_bytes += bytes as u64;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => {
                    self.outgoing[to] = None; // the judge hears of its end, too
                    return;
                }
            }
        }
        outgoing.buffer.clear();
        outgoing.written = 0;
    }

    /// Accepts, writes what waits, and gives each frame that has come to `take`, with its sender.
    pub(super) fn poll(&mut self, take: &mut dyn FnMut(usize, &[u8])) -> Result<(), TcpError> {
        self.accept()?;
        (0..self.workers).for_each(|worker| self.write(worker));
        for incoming in &mut self.incoming {
            incoming.read(&mut self.scratch);
            incoming.hello(self.token, self.workers);
            incoming.frames(take);
        }
        self.incoming.retain(|incoming| incoming.is_open);
        Ok(())
    }

    fn accept(&mut self) -> Result<(), TcpError> {
        let known = self
            .incoming
            .iter()
            .filter(|incoming| incoming.from.is_some());
        if known.count() + 1 >= self.workers {
            return Ok(()); // all are here; asking the kernel each time would only cost
        }
        // No more at a time: a worker's words are read before unauthenticated connections take its place.
        for _ in 0..UNAUTHENTICATED_MAX {
            match self.listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(true)?;
                    if self.incoming.len() >= self.workers + UNAUTHENTICATED_MAX
                        && let Some(oldest) =
                            self.incoming.iter().position(|one| one.from.is_none())
                    {
                        self.incoming.remove(oldest);
                    }
                    self.incoming.push(Incoming {
                        stream,
                        from: None,
                        buffer: Vec::new(),
                        is_open: true,
                    });
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::ConnectionAborted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

impl Incoming {
    /// Reads what there is, up to one frame beyond the limit. A read that does not fill `scratch` has emptied the socket; another call would only learn
    /// that. What comes later is found at the next poll, as is the end of the stream.
    fn read(&mut self, scratch: &mut [u8]) {
        while self.is_open && self.buffer.len() < FRAME_BYTES_MAX {
            match self.stream.read(scratch) {
                Ok(bytes) if bytes > 0 => {
                    self.buffer.extend_from_slice(&scratch[..bytes]);
                    if bytes < scratch.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                _ => self.is_open = false,
            }
            if self.from.is_none() && self.buffer.len() > HELLO_BYTES {
                return; // who it is comes first
            }
        }
    }

    fn hello(&mut self, token: u64, workers: usize) {
        if self.from.is_some() {
            return;
        }
        let Some((hello, _)) = self.buffer.split_first_chunk::<HELLO_BYTES>() else {
            return;
        };
        let (theirs, number) = hello.split_at(8);
        let number = usize::from(u16::from_le_bytes([number[0], number[1]]));
        if theirs == token.to_le_bytes() && number < workers {
            self.from = Some(number);
            self.buffer.drain(..HELLO_BYTES);
        } else {
            self.is_open = false;
        }
    }

    fn frames(&mut self, take: &mut dyn FnMut(usize, &[u8])) {
        let Some(from) = self.from else { return };
        let mut at = 0;
        while let Some((length, rest)) = self.buffer[at..].split_first_chunk::<4>() {
            let length = u32::from_le_bytes(*length) as usize;
            if length > FRAME_BYTES_MAX {
                self.is_open = false;
                break;
            }
            let Some(frame) = rest.get(..length) else {
                break;
            };
            take(from, frame);
            at += 4 + length;
        }
        self.buffer.drain(..at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    fn pair() -> (Tcp, Tcp) {
        let mut a = Tcp::listen(0, 2, 77).unwrap();
        let mut b = Tcp::listen(1, 2, 77).unwrap();
        let ports = [a.port(), b.port()];
        a.connect(&ports).unwrap();
        b.connect(&ports).unwrap();
        (a, b)
    }

    /// Short and long frames arrive whole and in order.
    #[test]
    fn frames_arrive() {
        let (mut a, mut b) = pair();
        let long: Vec<u8> = (0..3_000_000).map(|place| (place % 251) as u8).collect();
        a.send(1, b"first");
        a.send(1, &long);
        let mut come: Vec<Vec<u8>> = Vec::new();
        while come.len() < 2 {
            a.poll(&mut |_, _| panic!("nothing was sent there"))
                .unwrap();
            b.poll(&mut |from, frame| {
                assert_eq!(from, 0);
                come.push(frame.to_vec());
            })
            .unwrap();
        }
        assert_eq!(come, [b"first".to_vec(), long]);
        assert!(a.sent_bytes() > 3_000_000);
    }

    /// Words that come in pieces, from poll to poll, are read as if they had come at once; the connection's end is noticed behind them.
    #[test]
    fn pieces_are_put_together() {
        let mut b = Tcp::listen(1, 2, 77).unwrap();
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, b.port())).unwrap();
        connection.set_nodelay(true).unwrap();
        let mut words = 77_u64.to_le_bytes().to_vec();
        words.extend([0, 0, 3, 0, 0, 0]);
        words.extend(b"one");
        let mut come: Vec<Vec<u8>> = Vec::new();
        for word in words {
            connection.write_all(&[word]).unwrap();
            b.poll(&mut |_, frame| come.push(frame.to_vec())).unwrap();
        }
        drop(connection);
        while come.is_empty() || !b.incoming.is_empty() {
            b.poll(&mut |_, frame| come.push(frame.to_vec())).unwrap();
        }
        assert_eq!(come, [b"one".to_vec()]);
    }

    /// Unauthenticated connections that say nothing do not keep the workers out.
    #[test]
    fn silent_connections_make_place() {
        let (mut a, mut b) = (
            Tcp::listen(0, 2, 77).unwrap(),
            Tcp::listen(1, 2, 77).unwrap(),
        );
        let connect = |_| TcpStream::connect((Ipv4Addr::LOCALHOST, b.port())).unwrap();
        let silent: Vec<TcpStream> = (0..2 + UNAUTHENTICATED_MAX).map(connect).collect();
        while b.incoming.len() < silent.len() {
            b.poll(&mut |_, _| panic!("unauthenticated words")).unwrap();
        }
        a.connect(&[0, b.port()]).unwrap();
        a.send(1, b"here");
        let began = Instant::now();
        let mut has_come = false;
        while !has_come {
            assert!(began.elapsed() < Duration::from_secs(60), "it is kept out");
            a.poll(&mut |_, _| panic!("nothing was sent there"))
                .unwrap();
            b.poll(&mut |from, frame| has_come |= from == 0 && frame == b"here")
                .unwrap();
        }
        assert_eq!(b.incoming.len(), silent.len());
    }

    /// Connections without the token are closed, and what they say goes nowhere.
    #[test]
    fn unauthenticated_connections_are_closed() {
        let (_, mut b) = pair();
        let mut connection = TcpStream::connect((Ipv4Addr::LOCALHOST, b.port())).unwrap();
        connection.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
        connection.set_nonblocking(true).unwrap();
        let mut end = [0; 1];
        while let Err(error) = connection.read(&mut end) {
            if error.kind() != ErrorKind::WouldBlock {
                break; // it was reset
            }
            b.poll(&mut |_, _| panic!("unauthenticated words")).unwrap();
        }
    }
}
