//! Frames received and dropped a second (L2RTC's figure 5): one core sends small frames as fast as it can, others do nothing but count them.
//!
//! Called by `tsumuji bench drop`. All ends are threads of this process, each in its place (a host of a testbed). Receivers have an address each, so that
//! more of them take more cores; a device that one process must own has one receiver.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::udp::{Udp, UdpConfig};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_node::LinkSpec;
use tsumuji_testbed::Testbed;

use crate::alone;
use crate::limits::place::{Place, of_testbed};
use crate::limits::udp;
use crate::{machine, stop};

/// Frames offered to an end at once, and taken from it.
const BATCH: usize = 32;
/// Longest frame that a socket receives.
const FRAME_BYTES_MAX: usize = 9216;
/// After the last frame was sent, what is on its way arrives within this time.
const QUIET: Duration = Duration::from_millis(50);

/// A way to receive frames: by a link of ours, without its engine, or (`None`) by UDP sockets of the kernel, one call for each datagram. Senders give
/// all of them batches of 32 frames, the kernel as many of them as one call takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Way(pub Option<LinkSpec>);

impl Way {
    /// The name in tables.
    pub fn name(&self) -> String {
        self.0
            .map_or_else(|| "kernel UDP".to_owned(), |link| link.to_string())
    }

    /// Most receivers: cores that may share an interface.
    pub fn receivers_max(&self) -> usize {
        match self.0 {
            None | Some(LinkSpec::Udp(_) | LinkSpec::Packet(_)) => 64,
            Some(_) => 1,
        }
    }
}

/// Result of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Flooded {
    /// Frames that the sending side's link took, a second.
    pub offered_per_second: f64,
    /// Frames that receivers counted, a second.
    pub received_per_second: f64,
    /// Frames that did not arrive, a second.
    pub dropped_per_second: f64,
    /// Processor time of the receiving threads, in cores.
    pub receiver_cores: f64,
}

/// Floods `receivers` threads for `time` with frames of `size` bytes.
pub fn measure(
    way: Way,
    testbed: &Testbed,
    receivers: usize,
    size: usize,
    time: Duration,
) -> Result<Flooded, String> {
    let places = of_testbed(testbed);
    let Some([one, other]) = places.first_chunk() else {
        return Err("a testbed of two hosts is needed".to_owned());
    };
    if receivers > way.receivers_max() {
        return Err("one receiver owns the device".to_owned());
    }
    let run = Run { size, time };
    // The first place sends.
    let mut all = vec![one.clone()];
    all.resize(1 + receivers, other.clone());
    match way.0 {
        None => {
            let sockets: io::Result<Vec<Sockets>> = all.iter().map(Sockets::open).collect();
            run.flood(sockets.map_err(|error| error.to_string())?)
        }
        Some(LinkSpec::Udp(_)) => run.flood_link(alone::ends(&all, |place| {
            Udp::bind((place.ip, 0).into(), UdpConfig::default())
        })?),
        Some(LinkSpec::Packet(_)) => {
            let next = AtomicUsize::new(0);
            run.flood_link(alone::ends(&all, |place| {
                let slot = match place == one {
                    true => 0,
                    false => next.fetch_add(1, Ordering::Relaxed) as u8,
                };
                let config = PacketConfig {
                    slot,
                    ..PacketConfig::default()
                };
                Packet::open(&place.interface, config)
            })?)
        }
        #[cfg(feature = "xdp")]
        Some(LinkSpec::Xdp(_)) => run.flood_link(alone::ends(&all, |place| {
            Xdp::open(&place.interface, XdpConfig::default())
        })?),
        Some(link @ LinkSpec::Dpdk(_)) => run.flood_link(alone::dpdk_ends(link, &all)?),
        Some(other) => Err(format!("{other} is not flooded")),
    }
}

/// An end that sends or receives frames without any protocol.
trait End: Send {
    type Addr: Copy + Sync + Send;

    fn addr(&self) -> Result<Self::Addr, String>;
    /// Frames of so many bytes are to be sent there, each by itself.
    fn prepare(&mut self, to: Self::Addr, frame_bytes: usize) -> Result<(), String>;
    /// Offers a batch of frames; returns how many were taken.
    fn offer(&mut self, to: Self::Addr, frame: &[u8]) -> Result<usize, String>;
    /// Takes what has arrived, one batch at most; returns the number of frames.
    fn take(&mut self) -> Result<usize, String>;
}

/// Sockets of the kernel. A sender has one for each receiver, connected to it, and gives it a batch by one call, which the kernel cuts into datagrams
/// (UDP_SEGMENT), as our `udp` does: what is compared are receivers. A receiver makes a call for each datagram.
struct Sockets {
    place: Place,
    socket: UdpSocket,
    outlets: Vec<Outlet>,
    buffer: Box<[u8]>,
}

/// A sender's socket for one receiver.
struct Outlet {
    to: SocketAddr,
    socket: UdpSocket,
    /// So many frames, one behind the other.
    batch: Vec<u8>,
    frames: usize,
}

impl Sockets {
    fn open(place: &Place) -> io::Result<Self> {
        Ok(Self {
            place: place.clone(),
            socket: udp::open(place)?,
            outlets: Vec::new(),
            buffer: vec![0; FRAME_BYTES_MAX].into(),
        })
    }

    fn outlet(&self, to: SocketAddr, frame_bytes: usize) -> io::Result<Outlet> {
        let socket = udp::open(&self.place)?;
        socket.connect(to)?;
        let segment_bytes = udp::segment_bytes(&self.place, to)?;
        let frames = udp::batch(frame_bytes, segment_bytes, u64::MAX).min(BATCH as u64) as usize;
        if frames > 1 {
            udp::cut(&socket, frame_bytes)?;
        }
        Ok(Outlet {
            to,
            socket,
            batch: vec![1; frames * frame_bytes],
            frames,
        })
    }
}

impl End for Sockets {
    type Addr = SocketAddr;

    fn addr(&self) -> Result<SocketAddr, String> {
        let addr = self.socket.local_addr();
        addr.map_err(|error| error.to_string())
    }

    fn prepare(&mut self, to: SocketAddr, frame_bytes: usize) -> Result<(), String> {
        let outlet = self.outlet(to, frame_bytes);
        self.outlets
            .push(outlet.map_err(|error| error.to_string())?);
        Ok(())
    }

    fn offer(&mut self, to: SocketAddr, _frame: &[u8]) -> Result<usize, String> {
        let Some(outlet) = self.outlets.iter().find(|outlet| outlet.to == to) else {
            return Err(format!("no socket is connected to {to}"));
        };
        match outlet.socket.send(&outlet.batch) {
            Ok(_) => Ok(outlet.frames),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error.to_string()),
        }
    }

    fn take(&mut self) -> Result<usize, String> {
        for taken in 0..BATCH {
            match self.socket.recv(&mut self.buffer) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(taken),
                Err(error) => return Err(error.to_string()),
            }
        }
        Ok(BATCH)
    }
}

/// A link without its engine.
struct Bare<L>(L);

impl<L: Link + Send> End for Bare<L> {
    type Addr = LinkAddr;

    fn addr(&self) -> Result<LinkAddr, String> {
        Ok(self.0.local_addr())
    }

    fn prepare(&mut self, to: LinkAddr, frame_bytes: usize) -> Result<(), String> {
        // None is joined with others into one Ethernet frame.
        self.0.set_reach(to, frame_bytes);
        Ok(())
    }

    fn offer(&mut self, to: LinkAddr, frame: &[u8]) -> Result<usize, String> {
        let body = &frame[1..];
        let frame = Frame {
            head: &frame[..1],
            body,
        };
        let sent = self.0.send(to, &[frame; BATCH]);
        sent.and_then(|sent| self.0.flush().map(|()| sent))
            .map_err(|error| error.to_string())
    }

    fn take(&mut self) -> Result<usize, String> {
        self.0
            .receive(BATCH, &mut each(|_, _| ()))
            .map_err(|error| error.to_string())
    }
}

struct Run {
    size: usize,
    time: Duration,
}

impl Run {
    fn flood_link<L: Link + Send>(&self, ends: Vec<L>) -> Result<Flooded, String> {
        self.flood(ends.into_iter().map(Bare).collect())
    }

    /// The first end sends to all others in turn.
    fn flood<E: End>(&self, mut ends: Vec<E>) -> Result<Flooded, String> {
        let cpus = machine::cpus();
        let pin = |number: usize| {
            if number < cpus.len() {
                let _ = machine::pin(cpus[number]); // unpinned figures are worse, not wrong
            }
        };
        let spins = ends.len() <= cpus.len();
        let mut sender = ends.remove(0);
        let addrs: Vec<E::Addr> = ends.iter().map(End::addr).collect::<Result<_, _>>()?;
        let mut to_all = addrs.iter();
        to_all.try_for_each(|to| sender.prepare(*to, self.size))?;
        let (count, ready, over) = (ends.len(), AtomicUsize::new(0), AtomicBool::new(false));
        let rest = || {
            if spins {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let receiving: Vec<_> = ends
                .into_iter()
                .enumerate()
                .map(|(number, mut end)| {
                    let (ready, over) = (&ready, &over);
                    scope.spawn(move || {
                        pin(1 + number);
                        ready.fetch_add(1, Ordering::Release);
                        let (cpu, mut frames) = (machine::thread_cpu(), 0);
                        while !over.load(Ordering::Acquire) {
                            match end.take()? {
                                0 => rest(),
                                some => frames += some as u64,
                            }
                        }
                        Ok::<_, String>((frames, machine::thread_cpu() - cpu))
                    })
                })
                .collect();
            let sending = scope.spawn(|| {
                pin(0);
                while ready.load(Ordering::Acquire) < count {
                    rest();
                }
                let (frame, begun) = (vec![1; self.size], Instant::now());
                let mut sent = 0;
                for to in addrs.iter().cycle() {
                    if begun.elapsed() >= self.time || stop::is_wanted() {
                        break;
                    }
                    match sender.offer(*to, &frame) {
                        Ok(0) => rest(),
                        Ok(some) => sent += some as u64,
                        Err(reason) => return (Err(reason), begun.elapsed()),
                    }
                }
                let span = begun.elapsed();
                std::thread::sleep(QUIET);
                (Ok(sent), span)
            });
            let (sent, span) = sending.join().expect("the sender does not panic");
            over.store(true, Ordering::Release);
            let (mut received, mut cpu) = (0, Duration::ZERO);
            for one in receiving {
                let (frames, spent) = one.join().expect("a receiver does not panic")?;
                received += frames;
                cpu += spent;
            }
            let (sent, seconds) = (sent?, span.as_secs_f64());
            Ok(Flooded {
                offered_per_second: sent as f64 / seconds,
                received_per_second: received as f64 / seconds,
                dropped_per_second: sent.saturating_sub(received) as f64 / seconds,
                receiver_cores: cpu.as_secs_f64() / (seconds + QUIET.as_secs_f64()),
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A receiver's socket counts every datagram by itself, though the sender's gives a batch of them by one call.
    #[test]
    fn a_batch_arrives_one_by_one() {
        let [mut sender, mut receiver] =
            Place::LOOPBACK.map(|place| Sockets::open(&place).unwrap());
        let to = receiver.addr().unwrap();
        sender.prepare(to, 18).unwrap();
        assert_eq!(sender.offer(to, &[1; 18]).unwrap(), BATCH);
        let mut taken = 0;
        while taken < BATCH {
            taken += receiver.take().unwrap();
        }
        assert_eq!(receiver.socket.recv(&mut [0; 18]).ok(), None);
    }

    /// What is received and what is dropped add up to what was sent, for sockets and links.
    #[test]
    fn frames_are_counted() {
        let run = Run {
            size: 18,
            time: Duration::from_millis(50),
        };
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        let links = (0..2).map(|_| Udp::bind(any, UdpConfig::default()).unwrap());
        for flooded in [
            run.flood(
                Place::LOOPBACK
                    .iter()
                    .map(|place| Sockets::open(place).unwrap())
                    .collect(),
            ),
            run.flood_link(links.collect()),
        ] {
            let flooded = flooded.unwrap();
            let sum = flooded.received_per_second + flooded.dropped_per_second;
            assert!(flooded.received_per_second > 0.0, "{flooded:?}");
            assert!((sum / flooded.offered_per_second - 1.0).abs() < 1e-9);
        }
    }
}
