//! `dpdk`: one Ethernet segment, or one peer, by a DPDK device: a network card by its PCI address, or a virtual device.
//!
//! `device` makes it, `eal` starts DPDK once in the process, `rx` and `tx` hold the mbufs, `sys` is the only `unsafe`, `shim.c` the only C. Without
//! the feature `dpdk` the module is there, and `Dpdk::open` returns an error that says what is missing.
//!
//! ```no_run
//! use tsumuji_link::{Frame, Link, LinkAddr, each, dpdk::{Dpdk, DpdkConfig}};
//! let spec = "dpdk:net_memif,role=client,socket=/run/x.sock,id=0".parse()?;
//! let mut link = Dpdk::open(&spec, DpdkConfig::default())?;
//! link.send_one(LinkAddr::Broadcast, Frame::whole(b"hello"))?;
//! link.flush()?;
//! link.wait(std::time::Duration::from_secs(5))?;
//! link.receive(16, &mut each(|from, frame| println!("{} bytes from {from}", frame.len())))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A DPDK device is polled; nothing signals that a frame came. `wait` therefore naps: 20 µs at first, longer while nothing comes, up to 1 ms. So an
//! idle link answers at most a millisecond late; a program that needs less has to poll. `tsumuji bench figures --part ethernet` prints the cost of an
//! idle link. `fd` is a timer that becomes readable when the next poll is due.
//!
//! Left out on purpose: receive interrupts (few drivers have them); several queues; DPDK's secondary processes. A card has no kernel behind it:
//! foreign frames are dropped and counted. Limits of DPDK's own drivers (22.11):
//!
//! - `net_memif` trusts its peer as it trusts itself, and both ends must state the same `bsize`.
//! - `net_tap` is a cable to the kernel, which holds 500 frames towards us (`ip link set IFACE txqueuelen 10000`) and does not report losses. Two of
//!   them on a bridge reach each other: we give the kernel's end an address of its own, which the driver does not do.
//! - `net_af_packet` does not report how many frames its full ring lost.
//! - `net_af_xdp` takes all traffic of its interface from the kernel, which the link `xdp` does not, and frames must fit a page.

mod cards;
mod device;
mod eal;
mod errors;
mod probe;
mod rx;
mod spec;
mod sys;
#[cfg(test)]
mod tests;
mod tx;

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

pub use errors::DpdkOpenError;
pub use probe::probe;
pub use spec::{DpdkMeetError, DpdkSpec, DpdkSpecError};

use crate::ether::{self, Checks, Claim, InterfaceState, MacAddr, Watch};
use crate::relay::Ethernet;
use crate::sleep::Timer;
use crate::tuning::TUNING;
use crate::{Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, each};
use rx::Rx;
use sys::Port;
use tx::Tx;

/// The link's name.
const NAME: &str = "dpdk";
/// Frame size that every link must offer.
const FRAME_BYTES_MIN: usize = 512;

/// Options of the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DpdkConfig {
    /// Largest frame in bytes; `None`: the device's MTU, or the buffer of memif (`bsize`). All nodes of a cluster should agree on it.
    pub frame_bytes: Option<usize>,
    /// How long to wait for a link. The client of a memif connection has one when its server is there; a server does not wait: like a bound socket it
    /// is open before a client connects, and until then drops the frames sent.
    pub up_timeout: Duration,
    /// Take frames for all stations: for a relay (`relay`). As a link, this one has its own alone.
    pub promiscuous: bool,
}

impl Default for DpdkConfig {
    fn default() -> Self {
        Self {
            frame_bytes: None,
            up_timeout: Duration::from_secs(5),
            promiscuous: false,
        }
    }
}

/// A link over one device.
#[derive(Debug)]
pub struct Dpdk {
    // Before the device and its pool, so that mbufs are returned first.
    tx: Tx,
    rx: Rx,
    port: Port,
    spec: DpdkSpec,
    mac: MacAddr,
    caps: LinkCaps,
    watch: Option<Watch>,
    is_up: bool,
    checks: Checks,
    nap: Duration,
    timer: Timer,
    lingers: bool,
    counters: LinkCounters,
    // Last, so that the interface is free for others only once the device is gone.
    _claim: Option<Claim>,
}

impl Dpdk {
    /// Opens the link on the device that `spec` names and announces its address to the switch.
    ///
    /// Virtual devices on an interface take one of the calling thread's network namespace.
    pub fn open(spec: &DpdkSpec, config: DpdkConfig) -> Result<Self, DpdkOpenError> {
        let mut made = device::make(spec, &config)?;
        made.start()?;
        if !made.is_server() {
            made.wait_up()?;
        }
        Self::new(made)
    }

    /// Both ends of a new memif connection: two links of this process that need no rights, for trying out and for tests.
    /// `parameters`, as in `rsize=8`, may be empty.
    pub fn memif_pair(parameters: &str, config: DpdkConfig) -> Result<(Self, Self), DpdkOpenError> {
        Self::connect_memif(parameters, config, config)
    }

    fn connect_memif(
        parameters: &str,
        server_config: DpdkConfig,
        client_config: DpdkConfig,
    ) -> Result<(Self, Self), DpdkOpenError> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // An abstract socket leaves no file behind.
        let (pid, next) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let comma = if parameters.is_empty() { "" } else { "," };
        let spec = |role| {
            format!("net_memif,role={role},socket=tsumuji-{pid}-{next},id=0{comma}{parameters}")
                .parse::<DpdkSpec>()
        };
        let (server, client) = (spec("server")?, spec("client")?);
        let mut one = device::make(&server, &server_config)?;
        let mut other = device::make(&client, &client_config)?;
        one.start()?;
        other.start()?;
        one.wait_up()?;
        other.wait_up()?;
        Ok((Self::new(one)?, Self::new(other)?))
    }

    fn new(made: device::Made) -> Result<Self, DpdkOpenError> {
        let mac = made.mac()?;
        let timer = Timer::new().map_err(DpdkOpenError::Timer)?;
        let mut link = Self {
            tx: Tx::new(&made.port, mac, made.frame_bytes, made.frame_bytes_least()),
            rx: Rx::new(&made.port, made.frame_bytes),
            spec: made.spec,
            mac,
            caps: LinkCaps {
                name: NAME,
                frame_bytes: made.frame_bytes,
                receive_frames: made.receive_frames,
                burst_frames: made.port.burst_frames(),
                gathers: made.port.copies(),
                broadcast: device::reaches_others(&made.spec),
                lossless: false,
                damages: true,
                polls_by_call: false,
            },
            watch: made.interface.as_ref().map(|(found, _)| Watch::new(found)),
            is_up: made.port.is_up(),
            checks: Checks::default(),
            nap: TUNING.dpdk.nap_min,
            timer,
            lingers: made.lingers(),
            counters: LinkCounters::default(),
            _claim: made.interface.map(|(_, claim)| claim),
            port: made.port,
        };
        if link.is_up {
            link.come_up();
        }
        Ok(link)
    }

    /// The device that was opened.
    pub fn spec(&self) -> &DpdkSpec {
        &self.spec
    }

    /// Mbufs that are not in the device's pool. After traffic the number returns to its earlier value.
    pub fn mbufs_in_use(&self) -> u32 {
        self.port.mbufs_in_use()
    }

    /// Checks whether the device went down, came back, or is gone.
    #[cold]
    fn check_device(&mut self) -> Result<(), LinkError> {
        self.checks.begin();
        let is_up = match &mut self.watch {
            None => self.port.is_up(),
            Some(watch) => {
                watch.refresh();
                watch.check(&self.spec)?;
                watch.state() == InterfaceState::Up
            }
        };
        if is_up != self.is_up {
            self.is_up = is_up;
            tracing::info!("{}: {}", self.spec, if is_up { "up" } else { "down" });
            if is_up {
                self.come_up();
            }
        }
        Ok(())
    }

    /// Announces our address to the segment. The poll is needed: by it the client of a memif connection gives its server the buffers to send into.
    fn come_up(&mut self) {
        self.rx.is_ready(&self.port);
        self.tx.announce(&self.port, &mut self.counters);
    }

    #[inline]
    fn take(
        &mut self,
        own: Option<MacAddr>,
        max: usize,
        receiver: &mut impl Receiver,
    ) -> Result<usize, LinkError> {
        let handed = self
            .rx
            .receive(&self.port, &mut self.counters, own, max, receiver);
        if handed > 0 {
            self.nap = TUNING.dpdk.nap_min;
            return Ok(handed);
        }
        if self.checks.misses() {
            self.check_device()?;
        }
        if self.tx.waiting() > 0 {
            self.flush()?; // the device may take now what it did not before
        }
        Ok(0)
    }

    /// The next nap's length, each longer than the last until a frame comes.
    fn next_nap(&mut self) -> Duration {
        let nap = self.nap;
        self.nap = (nap * 3 / 2).min(TUNING.dpdk.nap_max);
        nap
    }
}

impl Ethernet for Dpdk {
    fn receive_ethernet(
        &mut self,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, LinkError> {
        self.take(None, max, &mut each(|_, frame| take(frame)))
    }

    fn send_ethernet(&mut self, frame: &[u8]) -> Result<bool, LinkError> {
        if self.capacity(LinkAddr::Broadcast)?.frames == 0 {
            return Ok(false);
        }
        self.tx.gather_ethernet(&self.port, frame);
        Ok(true)
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        self.tx.flush(&self.port, &mut self.counters);
        if self.lingers && self.port.is_up() {
            std::thread::sleep(TUNING.dpdk.linger);
        }
    }
}

impl Link for Dpdk {
    fn caps(&self) -> LinkCaps {
        self.caps
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Ether(self.mac)
    }

    #[inline]
    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        ether::destination(NAME, self.mac, to)?;
        let mut frames = self.tx.free_frames();
        if frames == 0 {
            self.flush()?;
            frames = self.tx.free_frames();
            self.counters.refused += u64::from(frames == 0);
        }
        Ok(Capacity {
            frames,
            bytes: usize::MAX,
        })
    }

    #[inline]
    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let mac = ether::destination(NAME, self.mac, to)?;
        let bodies_bytes: usize = frames.iter().map(|frame| frame.body.len()).sum();
        if bodies_bytes >= TUNING.gather.copied_bytes && self.port.copies() {
            self.flush()?;
            if self.tx.waiting() == 0 {
                let most = self.tx.free_frames().min(frames.len());
                (self.tx).send_parted(&self.port, &mut self.counters, mac, &frames[..most]);
                return Ok(most);
            }
        }
        let mut sent = 0;
        for frame in frames {
            if self.tx.free_frames() == 0 {
                self.flush()?;
                if self.tx.free_frames() == 0 {
                    self.counters.refused += 1;
                    break;
                }
            }
            self.tx.gather(&self.port, mac, frame);
            sent += 1;
        }
        Ok(sent)
    }

    #[inline]
    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        self.take(Some(self.mac), max, receiver)
    }

    #[inline]
    fn flush(&mut self) -> Result<(), LinkError> {
        self.tx.flush(&self.port, &mut self.counters);
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        let begun = Instant::now();
        loop {
            self.flush()?;
            if self.checks.is_time() {
                self.check_device()?;
            }
            let left = timeout.saturating_sub(begun.elapsed());
            if self.rx.is_ready(&self.port) || left.is_zero() {
                return Ok(());
            }
            let nap = if self.tx.waiting() > 0 {
                TUNING.dpdk.nap_min
            } else {
                self.next_nap()
            };
            std::thread::sleep(nap.min(left));
        }
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.timer.fd())
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.flush()?;
        if self.checks.is_time() {
            self.check_device()?;
        }
        if self.rx.is_ready(&self.port) {
            return Ok(false);
        }
        let nap = self.next_nap();
        // Setting it anew also clears its readability.
        self.timer.set(Some(nap), "setting the dpdk link's timer")?;
        Ok(true)
    }

    fn has_unsent(&mut self) -> bool {
        self.tx.waiting() > 0
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        if let Ok(mac) = ether::destination(NAME, self.mac, to) {
            let most = self.caps().frame_bytes;
            self.tx.reach.set(mac, frame_bytes, most);
        }
    }

    #[inline]
    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        let stats = self.port.stats();
        let lost = stats.missed + stats.receive_errors + stats.no_mbuf + stats.transmit_errors;
        LinkCounters {
            dropped_frames: self.counters.dropped_frames + lost,
            ..self.counters
        }
    }
}
