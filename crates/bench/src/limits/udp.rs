//! UDP as a program would do it by hand: `sendto`, `recvfrom`, spinning, no acknowledgement.

use std::io::{self, ErrorKind};
use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::place::Place;
use super::{core_of, pin_to, relax};
use crate::machine;
use crate::ops::Sample;
use crate::stats::{HalfRtt, RoundTrips};

/// Largest payload of a UDP datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// A datagram that is this late is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// A burst is over when nothing came for this long after the last was sent.
const QUIET: Duration = Duration::from_millis(50);

/// Why a limit over UDP could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpLimitError {
    /// The kernel refused.
    #[error("bare UDP: {0}")]
    Io(#[from] io::Error),
    /// No answer.
    #[error("a bare datagram was lost; the machine is overloaded or a firewall drops it")]
    Lost,
    /// There is no such datagram.
    #[error("{size} bytes do not fit a UDP datagram; at most {DATAGRAM_BYTES_MAX} do")]
    TooLarge {
        /// Asked for.
        size: usize,
    },
}

fn open(place: &Place) -> io::Result<UdpSocket> {
    let ip = place.ip;
    let socket = place.enter(move || UdpSocket::bind((ip, 0)))?;
    socket.set_nonblocking(true)?;
    // Best effort: the system's limit caps it.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20);
    Ok(socket)
}

fn pair(places: &[Place; 2]) -> io::Result<(UdpSocket, UdpSocket)> {
    Ok((open(&places[0])?, open(&places[1])?))
}

/// Sends, spinning while the socket is full.
fn send(
    socket: &UdpSocket,
    message: &[u8],
    to: std::net::SocketAddr,
    cpus: Option<[usize; 2]>,
) -> io::Result<()> {
    loop {
        match socket.send_to(message, to) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => relax(cpus),
            Err(error) => return Err(error),
        }
    }
}

/// Half-round-trip of `size` bytes, both sides spinning on a non-blocking socket.
pub fn pingpong(
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> Result<HalfRtt, UdpLimitError> {
    pingpong_between(&Place::LOOPBACK, cpus, size, iterations)
}

/// [`pingpong`] between two hosts of this machine.
pub fn pingpong_between(
    places: &[Place; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> Result<HalfRtt, UdpLimitError> {
    if size > DATAGRAM_BYTES_MAX {
        return Err(UdpLimitError::TooLarge { size });
    }
    let (asker, echo) = pair(places)?;
    let (asker_addr, echo_addr) = (asker.local_addr()?, echo.local_addr()?);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut buffer = vec![0; size.max(1)];
            while !stop.load(Ordering::Relaxed) {
                match echo.recv_from(&mut buffer) {
                    Ok((bytes, _)) => drop(send(&echo, &buffer[..bytes], asker_addr, cpus)), // a failure shows as a loss
                    Err(_) => relax(cpus),
                }
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let ask = || -> Result<HalfRtt, UdpLimitError> {
                let mut buffer = vec![1; size.max(1)];
                let mut trips = RoundTrips::default();
                let mut before = Instant::now();
                for turn in 0..iterations {
                    send(&asker, &buffer[..size], echo_addr, cpus)?;
                    let mut spins = 0_u32;
                    while let Err(error) = asker.recv_from(&mut buffer) {
                        if error.kind() != ErrorKind::WouldBlock {
                            return Err(error.into());
                        }
                        spins = spins.wrapping_add(1);
                        if spins.is_multiple_of(4096) && before.elapsed() > LOST_AFTER {
                            return Err(UdpLimitError::Lost);
                        }
                        relax(cpus);
                    }
                    let now = Instant::now();
                    // The first trip contains the start of the other thread.
                    if turn > 0 || iterations == 1 {
                        trips.record((now - before).as_nanos() as u64);
                    }
                    before = now;
                }
                Ok(trips.half())
            };
            let result = ask();
            stop.store(true, Ordering::Relaxed);
            result
        });
        asking.join().expect("the asking thread does not panic")
    })
}

/// What a bare burst gave: what arrived counts, the rest was dropped by the socket buffer.
#[derive(Debug, Clone, Copy)]
pub struct Burst {
    /// Messages that arrived whole, a second.
    pub messages_per_second: f64,
    /// Fraction of the datagrams that were dropped.
    pub lost: f64,
}

/// `messages` of `size` bytes one way as fast as the kernel takes them; larger ones in datagrams of the largest size, from and to
/// their places in a message.
pub fn burst(cpus: Option<[usize; 2]>, size: usize, messages: u64) -> Result<Burst, UdpLimitError> {
    let arrived = gather(&Place::LOOPBACK, cpus, size, messages)?;
    let pieces = pieces(size);
    let datagrams_per_second =
        (arrived.datagrams - 1) as f64 / arrived.span.as_secs_f64().max(1e-9);
    Ok(Burst {
        messages_per_second: datagrams_per_second / pieces as f64,
        lost: 1.0 - arrived.datagrams as f64 / (messages * pieces) as f64,
    })
}

/// `messages` of `size` bytes from each of the other places to the first, as fast as the kernel takes them. What arrived counts.
pub fn gather_between(
    places: &[Place],
    size: usize,
    messages: u64,
) -> Result<Sample, UdpLimitError> {
    let cpus = machine::two_cpus().filter(|_| places.len() <= machine::cpus().len());
    let arrived = gather(places, cpus, size, messages)?;
    let senders = places.len().saturating_sub(1).max(1) as u64;
    let whole = arrived.datagrams / pieces(size) / senders;
    Ok(Sample {
        receive_drops: Some(messages * senders * pieces(size) - arrived.datagrams),
        iterations: Some(whole.max(1)),
        ..Sample::new(arrived.span, arrived.cpu)
    })
}

/// Datagrams of a message.
fn pieces(size: usize) -> u64 {
    size.div_ceil(DATAGRAM_BYTES_MAX).max(1) as u64
}

struct Arrived {
    datagrams: u64,
    /// From the first to the last.
    span: Duration,
    cpu: Duration,
}

fn gather(
    places: &[Place],
    cpus: Option<[usize; 2]>,
    size: usize,
    messages: u64,
) -> Result<Arrived, UdpLimitError> {
    let Some((root, others)) = places.split_first() else {
        return Err(UdpLimitError::Lost);
    };
    let receiver = open(root)?;
    let senders = others.iter().map(open).collect::<io::Result<Vec<_>>>()?;
    let to = receiver.local_addr()?;
    let pieces = pieces(size);
    let datagram = size.min(DATAGRAM_BYTES_MAX);
    let sending = AtomicUsize::new(senders.len());
    let cpu = machine::process_cpu();
    std::thread::scope(|scope| {
        let counting = scope.spawn(|| {
            core_of(0, places.len());
            let mut message = vec![0; (datagram * pieces as usize).max(1)];
            let (mut received, mut first, mut last) = (0_u64, None, Instant::now());
            loop {
                let place = (received % pieces) as usize * datagram;
                if receiver.recv_from(&mut message[place..]).is_ok() {
                    received += 1;
                    last = Instant::now();
                    first.get_or_insert(last);
                } else if sending.load(Ordering::Relaxed) == 0 && last.elapsed() > QUIET {
                    break;
                } else {
                    relax(cpus);
                }
            }
            (received, first.map_or(Duration::ZERO, |first| last - first))
        });
        let threads: Vec<_> = (1..)
            .zip(&senders)
            .map(|(node, socket)| {
                let sending = &sending;
                scope.spawn(move || {
                    core_of(node, places.len());
                    let message = vec![1; datagram * pieces as usize];
                    let result = (0..messages * pieces).try_for_each(|piece| {
                        let place = (piece % pieces) as usize * datagram;
                        send(socket, &message[place..place + datagram], to, cpus)
                    });
                    sending.fetch_sub(1, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a sending thread does not panic")?;
        }
        let (datagrams, span) = counting.join().expect("the counting thread does not panic");
        if datagrams < 2 {
            return Err(UdpLimitError::Lost);
        }
        let cpu = machine::process_cpu() - cpu;
        Ok(Arrived {
            datagrams,
            span,
            cpu,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams of all kinds of sizes come back; one that cannot exist is refused.
    #[test]
    fn echoes() {
        for size in [0, 8, 1472, DATAGRAM_BYTES_MAX] {
            assert!(pingpong(None, size, 10).unwrap().min > 0.0);
        }
        assert!(matches!(
            pingpong(None, DATAGRAM_BYTES_MAX + 1, 1),
            Err(UdpLimitError::TooLarge { .. })
        ));
    }

    /// A burst ends although datagrams may be lost, and large messages are cut.
    #[test]
    fn bursts_end() {
        for size in [8, 100_000] {
            let burst = burst(None, size, 50).unwrap();
            assert!(
                burst.messages_per_second > 0.0 && (0.0..1.0).contains(&burst.lost),
                "{burst:?}"
            );
        }
    }

    /// Of several senders each is heard, and what was dropped is counted.
    #[test]
    fn gathers() {
        let [here, _] = Place::LOOPBACK;
        let sample = gather_between(&vec![here; 4], 100, 50).unwrap();
        let (whole, lost) = (sample.iterations.unwrap(), sample.receive_drops.unwrap());
        assert!(sample.seconds > 0.0 && whole >= 1 && whole * 3 + lost <= 3 * 50 + 3);
    }
}
