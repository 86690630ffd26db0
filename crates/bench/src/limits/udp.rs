//! UDP used directly: `sendto`, `recvfrom`, spinning, no acknowledgement.
//!
//! A message longer than the path's frames is sent in pieces of up to 64 KiB, which the kernel cuts into datagrams that fit (UDP_SEGMENT), and is
//! received joined (UDP_GRO): without these IP would fragment it, which fast programs avoid. Messages are as large in memory as stated, on both
//! sides.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use super::place::Place;
use super::{Checks, core_of, pin_to, relax};
use crate::machine;
use crate::ops::Sample;
use crate::stats::{HalfRtt, RoundTrips};

/// Largest payload of a UDP datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of IPv4's and UDP's headers.
const HEADERS_BYTES: usize = 28;
/// Most bytes that the kernel delivers at once.
const COALESCED_BYTES_MAX: usize = 1 << 16;
/// A later datagram counts as lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// A burst is over when nothing came for this long after the last was sent.
const QUIET: Duration = Duration::from_millis(50);

/// Why a limit over UDP could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum UdpLimitError {
    /// A system call failed.
    #[error("bare UDP: {0}")]
    Io(#[from] io::Error),
    /// There was no answer.
    #[error("a bare datagram was lost; the machine is overloaded or a firewall drops it")]
    Lost,
    /// No datagram is that large.
    #[error("{size} bytes do not fit a UDP datagram; at most {DATAGRAM_BYTES_MAX} do")]
    TooLarge {
        /// The size asked for.
        size: usize,
    },
}

/// A socket at that place that never waits, with a large receive buffer.
pub(crate) fn open(place: &Place) -> io::Result<UdpSocket> {
    let ip = place.ip;
    let socket = place.enter(move || UdpSocket::bind((ip, 0)))?;
    socket.set_nonblocking(true)?;
    // The system's limit may cap it.
    let _ = rustix::net::sockopt::set_socket_recv_buffer_size(&socket, 4 << 20);
    Ok(socket)
}

/// Payload of the largest datagram that reaches `to` from `place` in one frame.
fn segment_bytes(place: &Place, to: SocketAddr) -> io::Result<usize> {
    let probe = open(place)?;
    probe.connect(to)?;
    let mtu = usize::try_from(getsockopt(&probe, sockopt::IpMtu)?).unwrap_or_default();
    Ok(mtu
        .saturating_sub(HEADERS_BYTES)
        .clamp(1, DATAGRAM_BYTES_MAX))
}

/// Lets the kernel cut datagrams that are sent, and join those that are received.
fn cut(socket: &UdpSocket, segment_bytes: usize) -> io::Result<()> {
    setsockopt(socket, sockopt::UdpGsoSegment, &(segment_bytes as i32))?;
    Ok(setsockopt(socket, sockopt::UdpGroSegment, &true)?)
}

fn pair(places: &[Place; 2]) -> io::Result<(UdpSocket, UdpSocket)> {
    Ok((open(&places[0])?, open(&places[1])?))
}

/// Sends, spinning while the socket is full.
fn send(
    socket: &UdpSocket,
    message: &[u8],
    to: SocketAddr,
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

/// Half-round-trip of `size` bytes between two places, both sides spinning on a non-blocking socket.
pub(crate) fn pingpong_between(
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
    let segment = segment_bytes(&places[0], echo_addr)?;
    if size > segment {
        cut(&asker, segment)?;
        cut(&echo, segment)?;
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut buffer = vec![0; size + COALESCED_BYTES_MAX];
            let (mut filled, mut checks) = (0, Checks::default());
            while !(checks.is_due() && stop.load(Ordering::Relaxed)) {
                match echo.recv_from(&mut buffer[filled..]) {
                    Ok((bytes, _)) if filled + bytes < size => filled += bytes,
                    Ok(_) => {
                        filled = 0;
                        drop(send(&echo, &buffer[..size], asker_addr, cpus)); // a failure shows as a loss
                    }
                    Err(_) => relax(cpus),
                }
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let ask = || -> Result<HalfRtt, UdpLimitError> {
                let mut buffer = vec![1; size + COALESCED_BYTES_MAX];
                let (mut trips, mut checks) = (RoundTrips::default(), Checks::default());
                let mut before = Instant::now();
                for iteration in 0..iterations {
                    send(&asker, &buffer[..size], echo_addr, cpus)?;
                    let mut filled = 0;
                    loop {
                        match asker.recv_from(&mut buffer[filled..]) {
                            Ok((bytes, _)) if filled + bytes < size => filled += bytes,
                            Ok(_) => break,
                            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                                return Err(error.into());
                            }
                            Err(_) => {}
                        }
                        if checks.is_due() && before.elapsed() > LOST_AFTER {
                            return Err(UdpLimitError::Lost);
                        }
                        relax(cpus);
                    }
                    trips.record_since(&mut before, iteration, iterations);
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

/// Sends `messages` of `size` bytes one way as fast as the kernel takes them; larger ones in pieces of up to 64 KiB, from and to their places in a
/// message. How many arrived whole, a second.
pub fn burst(cpus: Option<[usize; 2]>, size: usize, messages: u64) -> Result<f64, UdpLimitError> {
    let arrived = gather(&Place::LOOPBACK, cpus, size, messages)?;
    Ok(arrived.behind_first / arrived.span.as_secs_f64().max(1e-9))
}

/// Sends `messages` of `size` bytes from each of the other places to the first, as fast as the kernel takes them. Arrived ones count.
pub(crate) fn gather_between(
    places: &[Place],
    size: usize,
    messages: u64,
) -> Result<Sample, UdpLimitError> {
    let cpus = machine::two_cpus().filter(|_| places.len() <= machine::cpus().len());
    let arrived = gather(places, cpus, size, messages)?;
    let senders = places.len().saturating_sub(1).max(1);
    let whole = (arrived.messages / senders as f64) as u64;
    Ok(Sample {
        receive_drops: Some(arrived.lost_datagrams),
        iterations: Some(whole.max(1)),
        ..Sample::new(arrived.span, arrived.cpu)
    })
}

struct Arrived {
    /// Messages of all senders together, counted by their bytes.
    messages: f64,
    /// The same without the first datagram, whose arrival starts the clock.
    behind_first: f64,
    lost_datagrams: u64,
    /// Time from the first datagram to the last.
    span: Duration,
    cpu: Duration,
}

/// Datagrams that one side received.
struct Heard {
    calls: u64,
    bytes: u64,
    first: Option<(Instant, u64)>,
    last: Instant,
    /// Time spent spinning after the last one.
    waited: Duration,
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
    let segment = match others.first() {
        Some(other) => segment_bytes(other, to)?,
        None => DATAGRAM_BYTES_MAX,
    };
    // Whole datagrams, so that only a message's last one is shorter.
    let piece = DATAGRAM_BYTES_MAX / segment * segment;
    if size > segment {
        cut(&receiver, segment)?;
        senders.iter().try_for_each(|socket| cut(socket, segment))?;
    }
    let sending = AtomicUsize::new(senders.len());
    // Messages without bytes count by themselves.
    let unit = size.max(1) as u64;
    let wanted = messages * senders.len() as u64 * unit;
    let cpu = machine::process_cpu();
    std::thread::scope(|scope| {
        let hearing = scope.spawn(|| {
            core_of(0, places.len());
            let mut message = vec![0; size + COALESCED_BYTES_MAX];
            let mut heard = Heard {
                calls: 0,
                bytes: 0,
                first: None,
                last: Instant::now(),
                waited: Duration::ZERO,
            };
            // The clock is read when nothing more is there, not for each datagram.
            let (mut checks, mut is_timed) = (Checks::default(), true);
            while heard.bytes < wanted {
                let place = (heard.bytes % unit) as usize;
                if let Ok((bytes, _)) = receiver.recv_from(&mut message[place..]) {
                    let bytes = if size == 0 { 1 } else { bytes as u64 };
                    heard.calls += 1;
                    heard.bytes += bytes;
                    heard.first.get_or_insert_with(|| (Instant::now(), bytes));
                    is_timed = false;
                    continue;
                }
                if !std::mem::replace(&mut is_timed, true) {
                    heard.last = Instant::now();
                } else if checks.is_due()
                    && sending.load(Ordering::Relaxed) == 0
                    && heard.last.elapsed() > QUIET
                {
                    heard.waited = heard.last.elapsed();
                    break;
                }
                relax(cpus);
            }
            if !is_timed {
                heard.last = Instant::now();
            }
            heard
        });
        let threads: Vec<_> = (1..)
            .zip(&senders)
            .map(|(node, socket)| {
                let sending = &sending;
                scope.spawn(move || {
                    core_of(node, places.len());
                    let message = vec![1; size];
                    let result = (0..messages).try_for_each(|_| {
                        if size == 0 {
                            return send(socket, &message, to, cpus);
                        }
                        message
                            .chunks(piece)
                            .try_for_each(|piece| send(socket, piece, to, cpus))
                    });
                    sending.fetch_sub(1, Ordering::Relaxed);
                    result
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("a sending thread does not panic")?;
        }
        let heard = hearing.join().expect("the hearing thread does not panic");
        let cpu = machine::process_cpu() - cpu;
        let Some((first, first_bytes)) = heard.first.filter(|_| heard.calls > 1) else {
            return Err(UdpLimitError::Lost);
        };
        let lost_bytes = wanted - heard.bytes.min(wanted);
        Ok(Arrived {
            messages: heard.bytes as f64 / unit as f64,
            behind_first: (heard.bytes - first_bytes) as f64 / unit as f64,
            lost_datagrams: lost_bytes.div_ceil(unit.min(segment as u64)),
            span: heard.last - first,
            cpu: cpu.saturating_sub(heard.waited),
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams of many sizes come back; an impossible one is refused.
    #[test]
    fn echoes() {
        for size in [0, 8, 1472, DATAGRAM_BYTES_MAX] {
            let half = pingpong_between(&Place::LOOPBACK, None, size, 10).unwrap();
            assert!(half.min > 0.0);
        }
        assert!(matches!(
            pingpong_between(&Place::LOOPBACK, None, DATAGRAM_BYTES_MAX + 1, 1),
            Err(UdpLimitError::TooLarge { .. })
        ));
    }

    /// A burst ends although datagrams may be lost, and large messages are cut.
    #[test]
    fn bursts_end() {
        for size in [8, 100_000] {
            assert!(burst(None, size, 50).unwrap() > 0.0);
        }
    }

    /// Datagrams of all senders are received, and drops are counted.
    #[test]
    fn gathers() {
        let [here, _] = Place::LOOPBACK;
        let sample = gather_between(&vec![here; 4], 100, 50).unwrap();
        let (whole, lost) = (sample.iterations.unwrap(), sample.receive_drops.unwrap());
        assert!(sample.seconds > 0.0 && whole >= 1 && whole * 3 + lost <= 3 * 50 + 3);
    }
}
