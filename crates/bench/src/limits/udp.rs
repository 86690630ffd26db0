//! UDP used directly: `send`, `recv`, spinning, no acknowledgement.
//!
//! All that a fast program does without a protocol: sockets are connected, so that the kernel looks up no route for each datagram, and their buffers are
//! as large as those of our link. Small messages of a burst share a call, which the kernel cuts into a datagram for each (UDP_SEGMENT) and joins again for
//! the receiver (UDP_GRO), as our link has it do. A message longer than the path's frames is sent in pieces of up to 64 KiB, cut and joined likewise:
//! without these IP would fragment it.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::socket::{getsockopt, setsockopt, sockopt};
use rustix::net::sockopt::{
    set_socket_recv_buffer_size, set_socket_recv_buffer_size_force, set_socket_send_buffer_size,
    set_socket_send_buffer_size_force,
};
use tsumuji_link::udp::UdpConfig;

use super::place::Place;
use super::timing::Timing;
use super::{Checks, core_of, pin_to, relax};
use crate::machine;
use crate::ops::Sample;

/// Largest payload of a UDP datagram over IPv4.
pub const DATAGRAM_BYTES_MAX: usize = 65_507;
/// Bytes of IPv4's and UDP's headers.
const HEADERS_BYTES: usize = 28;
/// Most datagrams into which the kernel cuts what one call sends.
const SEGMENTS_MAX: usize = 64;
/// Calls of a burst at least: the first one's arrival starts the clock, and does not count.
const CALLS_MIN: u64 = 16;
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

/// A socket at that place that never waits, with buffers as large as our link's.
pub(crate) fn open(place: &Place) -> io::Result<UdpSocket> {
    let ip = place.ip;
    let socket = place.enter(move || UdpSocket::bind((ip, 0)))?;
    socket.set_nonblocking(true)?;
    let bytes = UdpConfig::default().buffer_bytes;
    // Forcing needs rights; without them the system's limit may cap both.
    let _ = set_socket_recv_buffer_size_force(&socket, bytes)
        .or_else(|_| set_socket_recv_buffer_size(&socket, bytes));
    let _ = set_socket_send_buffer_size_force(&socket, bytes)
        .or_else(|_| set_socket_send_buffer_size(&socket, bytes));
    Ok(socket)
}

/// Payload of the largest datagram that reaches `to` from `place` in one frame.
pub(crate) fn segment_bytes(place: &Place, to: SocketAddr) -> io::Result<usize> {
    let probe = open(place)?;
    probe.connect(to)?;
    let mtu = usize::try_from(getsockopt(&probe, sockopt::IpMtu)?).unwrap_or_default();
    Ok(mtu
        .saturating_sub(HEADERS_BYTES)
        .clamp(1, DATAGRAM_BYTES_MAX))
}

/// Lets the kernel cut what one call sends into datagrams of so many bytes.
pub(crate) fn cut(socket: &UdpSocket, segment_bytes: usize) -> io::Result<()> {
    let segment_bytes = segment_bytes as i32; // it fits a datagram
    Ok(setsockopt(socket, sockopt::UdpGsoSegment, &segment_bytes)?)
}

/// Lets the kernel join datagrams that are received.
fn join(socket: &UdpSocket) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::UdpGroSegment, &true)?)
}

/// Messages of `size` bytes that one call sends, out of so many: the kernel cuts them apart again, if each fits `segment` bytes.
pub(crate) fn batch(size: usize, segment: usize, messages: u64) -> u64 {
    if size == 0 || size > segment {
        return 1;
    }
    (segments(size) as u64).min(messages / CALLS_MIN).max(1)
}

/// Datagrams of so many bytes that one call may send.
fn segments(datagram: usize) -> usize {
    (DATAGRAM_BYTES_MAX / datagram).min(SEGMENTS_MAX)
}

/// Two sockets that are connected to each other.
pub(crate) fn pair(places: &[Place; 2]) -> io::Result<(UdpSocket, UdpSocket)> {
    let (one, other) = (open(&places[0])?, open(&places[1])?);
    one.connect(other.local_addr()?)?;
    other.connect(one.local_addr()?)?;
    Ok((one, other))
}

/// Sends by a connected socket, spinning while it is full.
fn send(socket: &UdpSocket, message: &[u8], cpus: Option<[usize; 2]>) -> io::Result<()> {
    loop {
        match socket.send(message) {
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == ErrorKind::WouldBlock => relax(cpus),
            Err(error) => return Err(error),
        }
    }
}

/// Sends a message by calls of at most `piece` bytes.
fn send_in_pieces(
    socket: &UdpSocket,
    message: &[u8],
    piece: usize,
    cpus: Option<[usize; 2]>,
) -> io::Result<()> {
    if message.is_empty() {
        return send(socket, message, cpus);
    }
    let mut pieces = message.chunks(piece);
    pieces.try_for_each(|piece| send(socket, piece, cpus))
}

/// Half-round-trip of `size` bytes between two places, both sides spinning on a non-blocking socket.
pub(crate) fn pingpong_between(
    places: &[Place; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> Result<Sample, UdpLimitError> {
    if size > DATAGRAM_BYTES_MAX {
        return Err(UdpLimitError::TooLarge { size });
    }
    let (asker, echo) = pair(places)?;
    let segment = segment_bytes(&places[0], echo.local_addr()?)?;
    let piece = segments(segment) * segment;
    if size > segment {
        for socket in [&asker, &echo] {
            cut(socket, segment)?;
            join(socket)?;
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut buffer = vec![0; size + COALESCED_BYTES_MAX];
            let (mut filled, mut checks) = (0, Checks::default());
            while !(checks.is_due() && stop.load(Ordering::Relaxed)) {
                match echo.recv(&mut buffer[filled..]) {
                    Ok(bytes) if filled + bytes < size => filled += bytes,
                    Ok(_) => {
                        filled = 0;
                        drop(send_in_pieces(&echo, &buffer[..size], piece, cpus)); // a failure shows as a loss
                    }
                    Err(_) => relax(cpus),
                }
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let ask = || -> Result<Sample, UdpLimitError> {
                let mut buffer = vec![1; size + COALESCED_BYTES_MAX];
                let mut checks = Checks::default();
                let mut timing = Timing::new(iterations, None);
                while timing.begins() {
                    send_in_pieces(&asker, &buffer[..size], piece, cpus)?;
                    let mut filled = 0;
                    loop {
                        match asker.recv(&mut buffer[filled..]) {
                            Ok(bytes) if filled + bytes < size => filled += bytes,
                            Ok(_) => break,
                            Err(error) if error.kind() != ErrorKind::WouldBlock => {
                                return Err(error.into());
                            }
                            Err(_) => {}
                        }
                        if checks.is_due() && timing.began().elapsed() > LOST_AFTER {
                            return Err(UdpLimitError::Lost);
                        }
                        relax(cpus);
                    }
                    timing.ends();
                }
                Ok(timing.sample())
            };
            let result = ask();
            stop.store(true, Ordering::Relaxed);
            result
        });
        asking.join().expect("the asking thread does not panic")
    })
}

/// Sends `messages` of `size` bytes one way as fast as the kernel takes them: small ones together, large ones in pieces, from and to their places in a
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
    // Of the time that is measured: without the first datagrams.
    let whole = (arrived.behind_first / senders as f64).round() as u64;
    Ok(Sample {
        receive_drops: Some(arrived.lost_datagrams),
        iterations: Some(whole.max(1)),
        ..Sample::new(arrived.span, arrived.cpu)
    })
}

struct Arrived {
    /// Messages of all senders together, counted by their bytes, without those of the first call, whose arrival starts the clock.
    behind_first: f64,
    lost_datagrams: u64,
    /// Time from the first call's datagrams to the last.
    span: Duration,
    cpu: Duration,
}

/// Datagrams that one side received.
struct Heard {
    calls: u64,
    bytes: u64,
    /// Time and processor time when the first call's had come, and their bytes.
    first: Option<(Instant, Duration, u64)>,
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
    senders.iter().try_for_each(|socket| socket.connect(to))?;
    if let [only] = &senders[..] {
        receiver.connect(only.local_addr()?)?;
    }
    let segment = match others.first() {
        Some(other) => segment_bytes(other, to)?,
        None => DATAGRAM_BYTES_MAX,
    };
    let batch = batch(size, segment, messages);
    let datagram = if batch > 1 { size } else { segment };
    // Whole datagrams, so that only a message's last one is shorter.
    let piece = segments(datagram) * datagram;
    if size > segment || batch > 1 {
        join(&receiver)?;
        senders
            .iter()
            .try_for_each(|socket| cut(socket, datagram))?;
    }
    let sending = AtomicUsize::new(senders.len());
    // Messages without bytes count by themselves.
    let unit = size.max(1) as u64;
    let wanted = messages * senders.len() as u64 * unit;
    std::thread::scope(|scope| {
        let hearing = scope.spawn(|| {
            core_of(0, places.len());
            // Written, so that its first page faults lie before the first arrival.
            let mut message = vec![1; size + COALESCED_BYTES_MAX];
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
                if let Ok(bytes) = receiver.recv(&mut message[place..]) {
                    let bytes = if size == 0 { 1 } else { bytes as u64 };
                    heard.calls += 1;
                    heard.bytes += bytes;
                    let begin = || (Instant::now(), machine::process_cpu(), bytes);
                    heard.first.get_or_insert_with(begin);
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
                    let several = vec![1; size * batch as usize];
                    let mut calls = (0..messages).step_by(batch as usize);
                    let result = calls.try_for_each(|sent| {
                        let now = (messages - sent).min(batch) as usize * size;
                        send_in_pieces(socket, &several[..now], piece, cpus)
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
        let cpu_now = machine::process_cpu();
        let Some((first, cpu, first_bytes)) = heard.first.filter(|_| heard.calls > 1) else {
            return Err(UdpLimitError::Lost);
        };
        let lost_bytes = wanted - heard.bytes.min(wanted);
        Ok(Arrived {
            behind_first: (heard.bytes - first_bytes) as f64 / unit as f64,
            lost_datagrams: lost_bytes.div_ceil(unit.min(segment as u64)),
            span: heard.last - first,
            cpu: (cpu_now - cpu).saturating_sub(heard.waited),
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
            let sample = pingpong_between(&Place::LOOPBACK, None, size, 10).unwrap();
            assert!(sample.half_rtt_us.unwrap().min > 0.0);
        }
        assert!(matches!(
            pingpong_between(&Place::LOOPBACK, None, DATAGRAM_BYTES_MAX + 1, 1),
            Err(UdpLimitError::TooLarge { .. })
        ));
    }

    /// A burst ends although datagrams may be lost; small messages share calls, and large ones are cut.
    #[test]
    fn bursts_end() {
        for (size, messages) in [(0, 50), (8, 50), (8, 5000), (1400, 3000), (100_000, 50)] {
            assert!(burst(None, size, messages).unwrap() > 0.0, "{size}");
        }
    }

    /// As many messages share a call as the kernel cuts apart, but a burst has several calls; messages without bytes and those of several datagrams share
    /// none.
    #[test]
    fn small_messages_share_calls() {
        assert_eq!(batch(8, 1472, 100_000), SEGMENTS_MAX as u64);
        assert_eq!(batch(1472, 1472, 100_000), 44);
        assert_eq!(batch(8, 1472, 50), 3);
        assert_eq!(batch(8, 1472, 1), 1);
        assert_eq!(batch(0, 1472, 100_000), 1);
        assert_eq!(batch(1473, 1472, 100_000), 1);
        assert_eq!(batch(40_000, DATAGRAM_BYTES_MAX, 100_000), 1);
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
