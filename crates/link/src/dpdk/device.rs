//! From a name to a running device: the driver's parameters, the largest frame, the number of mbufs.
//!
//! Called by `Dpdk::open`. Parameters that users write stand; those that our use needs are added where they are absent.

use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use std::{fs, io};

use super::cards::{check_card, check_driver};
use super::errors::DpdkOpenError;
use super::spec::Device;
use super::sys::{BURST_FRAMES, Info, Port};
use super::{DpdkConfig, DpdkSpec, FRAME_BYTES_MIN, eal, sys};
use crate::ether::{
    self, Capability, Claim, HEADER_BYTES, Interface, InterfaceState, LENGTH_BYTES, MacAddr,
    has_capability, setcap_command,
};
use crate::tuning::TUNING;

/// memif's defaults for `bsize` and, as a power of two, `rsize`.
const MEMIF_BUFFER_BYTES: usize = 2048;
const MEMIF_RING_LOG2: usize = 10;
/// Largest ring that memif takes, and smallest that we choose.
const MEMIF_RING_LOG2_MAX: usize = 14;
const MEMIF_RING_LOG2_MIN: usize = 4;
/// Bytes in a slot of the kernel's AF_PACKET ring beside the frame: its own header, and room for VLAN tags and alignment.
const PACKET_OVERHEAD_BYTES: usize = 128;
const PACKET_SLOT_BYTES: usize = 2048;
const PAGE_BYTES: usize = 4096;
/// Shortest Ethernet frame without its checksum; cards need not pad shorter ones.
const ETHERNET_BYTES_MIN: usize = 60;
/// Room that drivers expect in an mbuf at least, and bytes of two VLAN tags.
const ROOM_BYTES_MIN: usize = 2048;
const TAGS_BYTES: usize = 8;
/// A frame, the kernel's headroom, and DPDK's own headers (of the pool, of an mbuf, and the mbuf's headroom) share a page.
const XDP_FRAME_BYTES_MAX: usize =
    PAGE_BYTES - (64 + 128 + 128) - XDP_HEADROOM_BYTES - HEADER_BYTES - TAGS_BYTES;
/// Bytes that the kernel leaves free before each frame of AF_XDP.
const XDP_HEADROOM_BYTES: usize = 256;
/// A length in an mbuf has 16 bits.
const ROOM_BYTES_MAX: usize = 65_000;
/// The AF_PACKET driver needs its slots, which are whole pages here, to fit an mbuf.
const PACKET_SLOT_BYTES_MAX: usize = ROOM_BYTES_MAX / PAGE_BYTES * PAGE_BYTES;
/// Most bursts in use at once: those both ways and the spare ones, and one that each of four threads may keep for itself (DPDK keeps half as many
/// again).
const BURSTS_OUT: u32 = 4 + 4 * 3 / 2;
/// Mbufs that memif's driver takes from the pool at a time, since DPDK 23.03: all of them or none, even for fewer frames.
const DRIVER_BURST_FRAMES: u32 = 32;
/// Drivers of devices without other stations.
const DEAD_ENDS: [&str; 3] = ["net_null", "net_ring", "net_pcap"];

/// Kind of driver, as far as the set-up differs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    Memif { server: bool },
    Packet(Interface),
    Xdp(Interface),
    Tap,
    OtherVirtual,
    Card,
}

/// A device that is made and set up, then started.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) spec: DpdkSpec,
    kind: Kind,
    pub(super) port: Port,
    pub(super) frame_bytes: usize,
    pub(super) receive_frames: usize,
    pub(super) interface: Option<(Interface, Claim)>,
    up_timeout: Duration,
    deadline: Instant,
}

/// Starts the EAL if needed, makes the device and sets it up.
pub(super) fn make(spec: &DpdkSpec, config: &DpdkConfig) -> Result<Made, DpdkOpenError> {
    let deadline = Instant::now() + config.up_timeout;
    let kind = examine(spec)?;
    match spec.device() {
        Device::Pci(address) => {
            sys::describe()?;
            check_card(address)?;
        }
        Device::Virtual(_) => check_driver(spec)?,
    }
    let running = eal::require(spec.device())?;
    let interface = match &kind {
        Kind::Packet(found) | Kind::Xdp(found) => {
            let claim = ether::claim(found)?;
            found.wait_up(config.up_timeout)?;
            let mut found = found.clone();
            found.state = InterfaceState::Up;
            Some((found, claim))
        }
        _ => None,
    };
    let queue_free_at = Instant::now() + TUNING.dpdk.queue_free_within;
    let made = loop {
        match set_up(spec, &kind, config, running, deadline) {
            // The kernel frees a queue of AF_XDP some time after its socket was closed; a device that failed cannot be used again.
            Err(_) if matches!(kind, Kind::Xdp(_)) && Instant::now() < queue_free_at => {
                std::thread::sleep(TUNING.ether.open_check_every);
            }
            done => break done?,
        }
    };
    Ok(Made { interface, ..made })
}

/// Makes the device with its queues; it has no claim yet.
fn set_up(
    spec: &DpdkSpec,
    kind: &Kind,
    config: &DpdkConfig,
    running: eal::Running,
    deadline: Instant,
) -> Result<Made, DpdkOpenError> {
    let failed = |what| refused(spec, kind, what);
    let (arguments, slot_bytes) = arguments(spec, kind);
    let _ = sys::take_log();
    let mut port = Port::make(&arguments).map_err(failed("making the device"))?;
    let info = port.info().map_err(failed("asking the device"))?;
    let frame_bytes = frame_bytes(spec, kind, &info, config.frame_bytes)?;
    let is_xdp = matches!(kind, Kind::Xdp(_));
    let kernels = if is_xdp { XDP_HEADROOM_BYTES } else { 0 };
    let room_bytes = (frame_bytes + HEADER_BYTES + LENGTH_BYTES + TAGS_BYTES + kernels)
        .next_multiple_of(64)
        .max(ROOM_BYTES_MIN)
        .max(slot_bytes)
        .min(ROOM_BYTES_MAX);
    let wished = |default: u16| {
        if default > 0 {
            default
        } else {
            TUNING.dpdk.ring_frames
        }
    };
    let wished = (
        wished(info.default_receive_frames),
        wished(info.default_transmit_frames),
    );
    let copying = match kind {
        Kind::Packet(_) => true,
        Kind::Memif { .. } => memif_copies(spec),
        _ => false,
    };
    let burst_frames = match kind {
        Kind::Memif { .. } => (TUNING.dpdk.memif_burst_bytes / room_bytes)
            .clamp(TUNING.dpdk.memif_burst_frames_min, BURST_FRAMES),
        _ => BURST_FRAMES,
    };
    let mut frames = pool_frames(burst_frames as u32);
    if !copying {
        // Drivers fill rings ahead and clear them behind; AF_XDP's has twice the descriptors.
        frames += 2 * (u32::from(wished.0) + u32::from(wished.1));
    }
    port.make_pool(
        &next_name("pool"),
        frames,
        burst_frames,
        room_bytes as u16,
        info.numa_node,
        is_xdp,
    )
    .map_err(|()| DpdkOpenError::Memory {
        spec: spec.to_string(),
        bytes: u64::from(frames) * room_bytes as u64,
        memory_bytes: running.memory_bytes,
    })?;
    if matches!(kind, Kind::Memif { .. })
        && copying
        && number(spec, "bsize").unwrap_or(MEMIF_BUFFER_BYTES) < room_bytes
    {
        port.set_copies();
    }
    let mtu = match kind {
        Kind::Card => (frame_bytes + LENGTH_BYTES) as u16,
        _ => 0,
    };
    let rings = port
        .set_up(mtu, config.promiscuous, wished)
        .map_err(failed("setting up its queues"))?;
    if let Kind::Xdp(interface) = kind
        && let Err(error) = port.hold_xdp_program(interface.index)
    {
        tracing::warn!(
            "{spec}: if this process is killed, its XDP program stays on the interface ({error})"
        );
    }
    let receive_frames = match kind {
        Kind::Memif { .. } => {
            let log2 = number(spec, "rsize").unwrap_or_else(|| memif_ring_log2(spec));
            1 << log2.min(MEMIF_RING_LOG2_MAX)
        }
        Kind::Packet(found) => number(spec, "framecnt").unwrap_or(packet_ring(found).1),
        _ => rings.0.into(),
    };
    Ok(Made {
        spec: *spec,
        kind: kind.clone(),
        port,
        frame_bytes,
        receive_frames: receive_frames.max(1),
        interface: None,
        up_timeout: config.up_timeout,
        deadline,
    })
}

/// Mbufs of a pool for a driver that copies: one less than a power of two, the best size for pools.
const fn pool_frames(burst_frames: u32) -> u32 {
    let needed = BURSTS_OUT * burst_frames + DRIVER_BURST_FRAMES;
    let ample = TUNING.dpdk.pool_bursts * burst_frames;
    let frames = if needed > ample { needed } else { ample };
    frames.next_power_of_two() - 1
}

impl Made {
    /// Starts the device; the client of a memif connection waits for its server.
    pub(super) fn start(&mut self) -> Result<(), DpdkOpenError> {
        loop {
            match self.port.start() {
                Ok(()) => return self.part_tap(),
                // No server listens at its socket yet.
                Err(_) if self.kind == (Kind::Memif { server: false }) => {
                    self.pause(TUNING.dpdk.retry_after)?;
                }
                Err(source) => {
                    return Err(refused(&self.spec, &self.kind, "starting the device")(
                        source,
                    ));
                }
            }
        }
    }

    /// The driver gives the kernel's end of a tap the address of our end, as if the cable had one station: a bridge then takes frames for us as
    /// frames for its own host. So that end gets another address, as the other end of any cable has.
    fn part_tap(&self) -> Result<(), DpdkOpenError> {
        // With `remote` the address is a real interface's.
        if self.kind != Kind::Tap || self.spec.parameter("remote").is_some() {
            return Ok(());
        }
        let failed = refused(
            &self.spec,
            &self.kind,
            "giving the tap's other end an address",
        );
        let ours = self.port.info().map_err(&failed)?.mac;
        let mut others = ours;
        others.0[5] ^= 0x80;
        let named = |found: &Interface| match self.spec.parameter("iface") {
            Some(name) => found.name == name,
            None => true,
        };
        let interfaces = ether::list().map_err(&failed)?.into_iter();
        for interface in interfaces.filter(|found| found.mac == ours && named(found)) {
            interface.set_mac(others).map_err(&failed)?;
        }
        Ok(())
    }

    /// Whether this is the server of a memif connection, to which the client connects.
    pub(super) fn is_server(&self) -> bool {
        self.kind == (Kind::Memif { server: true })
    }

    /// Waits until the started device has a link. The client of a memif connection restarts its device, each time with more patience: a client that
    /// connects while its server opens the socket may be refused silently, and the driver connects only once. One whose call was taken is left alone.
    pub(super) fn wait_up(&mut self) -> Result<(), DpdkOpenError> {
        let (mut called, mut patience) = (Instant::now(), TUNING.dpdk.retry_after);
        while !self.port.is_up() {
            self.pause(TUNING.ether.open_check_every)?;
            let is_client = self.kind == (Kind::Memif { server: false });
            if is_client && called.elapsed() >= patience && !self.port.is_up() {
                // If the restart fails, it is as if the server had not answered.
                let restarted = self.port.restart();
                tracing::debug!("{}: no answer, called again: {restarted:?}", self.spec);
                (called, patience) = (Instant::now(), 2 * patience);
            }
        }
        Ok(())
    }

    /// Asks the started device for its address, which it may learn when it starts.
    pub(super) fn mac(&self) -> Result<MacAddr, DpdkOpenError> {
        let failed = refused(&self.spec, &self.kind, "asking the device");
        Ok(self.port.info().map_err(failed)?.mac)
    }

    /// Shorter Ethernet frames are padded to this.
    pub(super) fn frame_bytes_least(&self) -> usize {
        match self.kind {
            Kind::Card => ETHERNET_BYTES_MIN,
            _ => 0,
        }
    }

    /// The device must stay open a while after its last frame.
    pub(super) fn lingers(&self) -> bool {
        matches!(self.kind, Kind::Memif { .. })
    }

    /// Sleeps for `pause`, or until the deadline; an error after it.
    fn pause(&self, pause: Duration) -> Result<(), DpdkOpenError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        if !left.is_zero() {
            std::thread::sleep(pause.min(left));
            return Ok(());
        }
        Err(DpdkOpenError::NoLink {
            spec: self.spec.to_string(),
            waited: self.up_timeout,
            hint: match self.kind {
                Kind::Memif { server: true } => {
                    "start the other end (role=client, the same socket and id)"
                }
                Kind::Memif { server: false } => {
                    "start the other end (role=server, the same socket and id)"
                }
                _ => "connect the cable, or start the other end",
            },
        })
    }
}

fn refused<'a>(
    spec: &'a DpdkSpec,
    kind: &'a Kind,
    what: &'static str,
) -> impl Fn(io::Error) -> DpdkOpenError + 'a {
    move |source| DpdkOpenError::Device {
        spec: spec.to_string(),
        what,
        needs: needs(kind, &source),
        source,
        log: eal::said(),
    }
}

/// Checks what can be checked without DPDK: the parameters, and the interface.
fn examine(spec: &DpdkSpec) -> Result<Kind, DpdkOpenError> {
    let lacks = |parameter, example| DpdkOpenError::Lacks {
        spec: spec.to_string(),
        parameter,
        example,
    };
    let interface = |example| {
        let name = spec
            .parameter("iface")
            .ok_or_else(|| lacks("iface", example))?;
        let found = Interface::open(name)?;
        found.require_ethernet()?;
        Ok::<_, DpdkOpenError>(found)
    };
    Ok(match spec.driver() {
        None => Kind::Card,
        Some("net_af_packet") => Kind::Packet(interface("dpdk:net_af_packet,iface=eth1")?),
        Some("net_af_xdp") => Kind::Xdp(interface("dpdk:net_af_xdp,iface=eth1")?),
        Some("net_memif") => {
            const EXAMPLE: &str = "dpdk:net_memif,role=server,socket=/run/x.sock,id=0";
            let role = spec
                .parameter("role")
                .ok_or_else(|| lacks("role", EXAMPLE))?;
            let server = matches!(role, "server" | "master");
            if server && spec.parameter("socket-abstract") == Some("no") {
                remove_stale_socket(spec.parameter("socket").unwrap_or("/run/memif.sock"));
            }
            Kind::Memif { server }
        }
        Some("net_tap") => Kind::Tap,
        Some(_) => Kind::OtherVirtual,
    })
}

/// Whether frames leave towards other stations: a card, an interface, a cable to one peer or to a switch of another process. The others drop what they
/// are given, return it or write it to a file.
pub(super) fn reaches_others(spec: &DpdkSpec) -> bool {
    !spec
        .driver()
        .is_some_and(|driver| DEAD_ENDS.contains(&driver))
}

/// Removes the socket file of a server that was killed, which would keep the next one from starting. A file with a listener stays.
fn remove_stale_socket(path: &str) {
    let path = Path::new(path);
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = |error: io::Error| error.kind() == io::ErrorKind::ConnectionRefused;
    if is_socket && UnixStream::connect(path).is_err_and(refused) {
        let _ = fs::remove_file(path);
    }
}

fn number(spec: &DpdkSpec, parameter: &str) -> Option<usize> {
    spec.parameter(parameter)?.parse().ok()
}

/// Whether memif's driver copies: it does unless it is told to share its mbufs, by any value that contains *yes*.
fn memif_copies(spec: &DpdkSpec) -> bool {
    let shares = |value: &str| value.contains("yes");
    !spec.parameter("zero-copy").is_some_and(shares)
}

/// Size of a memif ring, as a power of two, where users do not state it.
fn memif_ring_log2(spec: &DpdkSpec) -> usize {
    if !memif_copies(spec) {
        return MEMIF_RING_LOG2; // the ring has no buffers of its own
    }
    let buffer_bytes = number(spec, "bsize").unwrap_or(MEMIF_BUFFER_BYTES).max(1);
    let frames = (TUNING.dpdk.memif_ring_bytes / buffer_bytes).max(1);
    (frames.ilog2() as usize).clamp(MEMIF_RING_LOG2_MIN, MEMIF_RING_LOG2)
}

/// Size and count of the slots of an AF_PACKET ring. Blocks must be multiples of the driver's slots.
fn packet_ring(interface: &Interface) -> (usize, usize) {
    let needed = interface.mtu_bytes + HEADER_BYTES + PACKET_OVERHEAD_BYTES;
    if needed <= PACKET_SLOT_BYTES {
        (PACKET_SLOT_BYTES, TUNING.dpdk.packet_frames)
    } else {
        let bytes = needed.next_multiple_of(PAGE_BYTES);
        (
            bytes.min(PACKET_SLOT_BYTES_MAX),
            TUNING.dpdk.packet_frames_large,
        )
    }
}

fn next_name(stem: &str) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{stem}_t{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// The device's description for DPDK; and the bytes that it needs in an mbuf, if its parameters determine them.
fn arguments(spec: &DpdkSpec, kind: &Kind) -> (String, usize) {
    let name = match spec.device() {
        Device::Pci(address) => address.to_owned(),
        Device::Virtual(_) => next_name(spec.driver().unwrap_or_default()),
    };
    let mut text = name;
    if !spec.parameters().is_empty() {
        text = format!("{text},{}", spec.parameters());
    }
    let mut slot_bytes = 0;
    let mut add = |parameter: &str, value: &str| {
        if spec.parameter(parameter).is_none() {
            text += &format!(",{parameter}={value}");
        }
    };
    match kind {
        Kind::Packet(interface) => {
            let (bytes, count) = packet_ring(interface);
            slot_bytes = number(spec, "framesz").unwrap_or(bytes);
            // The three must fit each other, so all or none are added.
            if ["framesz", "blocksz", "framecnt"]
                .iter()
                .all(|p| spec.parameter(p).is_none())
            {
                add("framesz", &bytes.to_string());
                add("blocksz", &bytes.max(PAGE_BYTES).to_string());
                add("framecnt", &count.to_string());
            }
            add("qdisc_bypass", "1");
        }
        // Busy polling by system call is for cards whose driver supports it; a virtual interface would never get its frames.
        Kind::Xdp(_) => add("busy_budget", "0"),
        Kind::Memif { .. } => add("rsize", &memif_ring_log2(spec).to_string()),
        Kind::Tap | Kind::OtherVirtual | Kind::Card => {}
    }
    (text, slot_bytes)
}

fn frame_bytes(
    spec: &DpdkSpec,
    kind: &Kind,
    info: &Info,
    wanted: Option<usize>,
) -> Result<usize, DpdkOpenError> {
    // Largest payload of an Ethernet frame; our frame is shorter by its length field.
    let (default, limit) = match kind {
        // The device's MTU of 1500 has no meaning. A frame must fit a buffer: frames in several overrun a full ring (DPDK 22.11).
        Kind::Memif { .. } => {
            let buffer = number(spec, "bsize").unwrap_or(MEMIF_BUFFER_BYTES);
            let most = buffer.saturating_sub(HEADER_BYTES);
            let default = if buffer > MEMIF_BUFFER_BYTES {
                most
            } else {
                most.min(1500)
            };
            (default, most)
        }
        Kind::Packet(interface) => {
            let most = PACKET_SLOT_BYTES_MAX - HEADER_BYTES - PACKET_OVERHEAD_BYTES;
            let most = most.min(interface.mtu_bytes);
            (most, most)
        }
        Kind::Xdp(interface) => {
            let most = match info.max_mtu_bytes {
                0 => interface.mtu_bytes,
                most => most.min(interface.mtu_bytes),
            };
            let most = most.min(XDP_FRAME_BYTES_MAX);
            (most, most)
        }
        Kind::Tap | Kind::OtherVirtual => (info.mtu_bytes, info.mtu_bytes),
        Kind::Card => (info.mtu_bytes, info.max_mtu_bytes.max(info.mtu_bytes)),
    };
    let limit = limit.min(ROOM_BYTES_MAX - HEADER_BYTES - TAGS_BYTES - 64);
    let limit = limit.saturating_sub(LENGTH_BYTES);
    let bytes = wanted.unwrap_or(default.saturating_sub(LENGTH_BYTES).min(limit));
    if (FRAME_BYTES_MIN..=limit).contains(&bytes) {
        return Ok(bytes);
    }
    Err(DpdkOpenError::FrameBytes {
        frame_bytes: bytes,
        spec: spec.to_string(),
        least: FRAME_BYTES_MIN,
        limit,
        hint: match kind {
            Kind::Memif { .. } => ", or state a larger `bsize` at both ends",
            _ => "",
        },
    })
}

/// Rights that a driver needs and this process lacks.
fn needs(kind: &Kind, source: &io::Error) -> String {
    let rights: &[Capability] = match kind {
        Kind::Packet(_) => &[Capability::NetRaw],
        Kind::Xdp(interface) if interface.mtu_bytes > XDP_FRAME_BYTES_MAX => {
            return format!(
                "; its frames must fit a page: `ip link set dev {} mtu {XDP_FRAME_BYTES_MAX}` at most, or take the link xdp:{0}",
                interface.name
            );
        }
        Kind::Xdp(_) => &[
            Capability::NetAdmin,
            Capability::NetRaw,
            Capability::Bpf,
            Capability::IpcLock,
        ],
        Kind::Tap => &[Capability::NetAdmin],
        Kind::Card => {
            return "; it needs read and write access to /dev/vfio/* and locked memory (`ulimit -l unlimited`)".to_owned();
        }
        Kind::Memif { .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            return "; it needs a folder for its socket in which this user may write".to_owned();
        }
        _ => &[],
    };
    let missing: Vec<_> = rights
        .iter()
        .copied()
        .filter(|right| !has_capability(*right))
        .collect();
    if missing.is_empty() {
        return String::new();
    }
    let names: Vec<_> = missing.iter().map(|right| right.name()).collect();
    format!(
        "; it needs {}: `{}`",
        names.join(", "),
        setcap_command(&missing)
    )
}

// For any size of burst: while all bursts are in use, the pool still has as many mbufs as a driver takes at a time.
const _: () = {
    let mut burst_frames = TUNING.dpdk.memif_burst_frames_min as u32;
    while burst_frames <= BURST_FRAMES as u32 {
        let left = pool_frames(burst_frames) - BURSTS_OUT * burst_frames;
        assert!(left >= DRIVER_BURST_FRAMES);
        burst_frames += 1;
    }
};

#[cfg(test)]
mod tests {
    use super::*;

    /// A memif ring that is copied has as many buffers as a cache holds, within the driver's limits.
    #[test]
    fn memif_rings_fit_a_cache() {
        for (parameters, log2) in [
            ("", 10),
            (",bsize=9216", 7),
            (",bsize=64896", 5),
            (",bsize=64896,zero-copy=no", 5),
            (",bsize=64896,zero-copy=yes", 10),
            (",bsize=64896,zero-copy=yes1", 10),
            (",bsize=1000000", 4),
            (",bsize=0", 10),
        ] {
            let spec = format!("dpdk:net_memif{parameters}");
            let spec: DpdkSpec = spec.parse().expect("a device");
            assert_eq!(memif_ring_log2(&spec), log2, "{spec}");
        }
    }

    /// Cards, interfaces and cables reach all stations by one frame, other devices nobody.
    #[test]
    fn dead_ends_do_not_broadcast() {
        for (device, reaches) in [
            ("dpdk:0000:03:00.0", true),
            ("dpdk:net_af_packet0,iface=eth1", true),
            ("dpdk:net_af_xdp,iface=eth1", true),
            ("dpdk:net_memif,role=client", true),
            ("dpdk:net_tap7", true),
            ("dpdk:net_null0,size=64", false),
            ("dpdk:net_ring", false),
            ("dpdk:net_pcap1,tx_pcap=all.pcap", false),
        ] {
            let spec: DpdkSpec = device.parse().expect("a device");
            assert_eq!(reaches_others(&spec), reaches, "{device}");
        }
    }

    /// Pools are no larger than needed.
    #[test]
    fn pools_fit_a_cache() {
        for (burst_frames, frames) in [(2, 63), (4, 127), (14, 255), (64, 1023)] {
            assert_eq!(pool_frames(burst_frames), frames);
        }
    }
}
