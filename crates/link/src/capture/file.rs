//! The file of a capture: made safely, filled with blocks by `pcap-file`, written `capture.buffer_bytes` of `tuning` at a time.
//!
//! Called by `Capture`. Frames cost no memory of their own: one packet block serves all.

use std::borrow::Cow;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::{Block, PcapNgWriter};
use pcap_file::{DataLink, Endianness};

use crate::ether::{ETHERTYPE, HEADER_BYTES, LENGTH_BYTES};
use crate::tuning::TUNING;
use crate::{Frame, LinkAddr};

/// The capture ends here, so that a forgotten one does not fill the disk.
const FILE_BYTES_MAX: u64 = 4 << 30;
/// Resolution of time stamps: 10⁻⁹ seconds.
const NANOSECONDS: u8 = 9;
/// `pcap-file` fails where its writer does, and where a block names an interface that was not described.
const INTO_MEMORY: &str = "memory takes every block, and all are of interface 0";

static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether a capture of this process, begun by `Capture::create`, could not be written to its end. Standard error has the reason.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// Gathers blocks and writes them out.
pub(super) struct Recorder {
    writer: Box<dyn Write + Send>,
    /// Path of the file, if the capture was begun by name.
    pub(super) path: Option<PathBuf>,
    blocks: PcapNgWriter<Vec<u8>>,
    /// The packet written last; the next one takes its place.
    packet: Block<'static>,
    written_bytes: u64,
    pub(super) failed: Option<io::Error>,
    full: bool,
    local: [u8; 6],
    began: Instant,
    began_since_epoch: Duration,
}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({:?})", self.path)
    }
}

impl Recorder {
    pub(super) fn new(writer: Box<dyn Write + Send>, name: &str, local: LinkAddr) -> Self {
        let buffer = Vec::with_capacity(TUNING.capture.buffer_bytes * 2);
        let mut blocks =
            PcapNgWriter::with_endianness(buffer, Endianness::Little).expect(INTO_MEMORY);
        let interface = InterfaceDescriptionBlock {
            linktype: DataLink::ETHERNET,
            snaplen: 0, // frames are not cut
            options: vec![
                InterfaceDescriptionOption::IfName(name.into()),
                InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
            ],
        };
        blocks.write_pcapng_block(interface).expect(INTO_MEMORY);
        Self {
            writer,
            path: None,
            blocks,
            packet: Block::EnhancedPacket(EnhancedPacketBlock {
                interface_id: 0,
                timestamp: Duration::ZERO,
                original_len: 0,
                data: Cow::Owned(Vec::new()),
                options: vec![EnhancedPacketOption::Flags(0)],
            }),
            written_bytes: 0,
            failed: None,
            full: false,
            local: mac_of(local),
            began: Instant::now(),
            began_since_epoch: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        }
    }

    pub(super) fn frame(&mut self, direction: Direction, peer: LinkAddr, frame: &Frame<'_>) {
        if self.failed.is_some() || self.full {
            return;
        }
        let gathered = self.blocks.get_ref().len();
        if self.written_bytes + (gathered + frame.bytes()) as u64 > FILE_BYTES_MAX {
            self.full = true;
            tracing::warn!(
                "the capture is full at {FILE_BYTES_MAX} bytes; later frames are not in it"
            );
            return;
        }
        let (from, to) = match direction {
            Direction::Inbound => (mac_of(peer), self.local),
            Direction::Outbound => (self.local, mac_of(peer)),
        };
        let Block::EnhancedPacket(packet) = &mut self.packet else {
            unreachable!("it was made as one")
        };
        packet.timestamp = self.began_since_epoch + self.began.elapsed();
        packet.original_len = (HEADER_BYTES + LENGTH_BYTES + frame.bytes()) as u32;
        packet.options[0] = EnhancedPacketOption::Flags(direction as u32);
        let data = packet.data.to_mut();
        data.clear();
        data.extend(to);
        data.extend(from);
        data.extend(ETHERTYPE.to_be_bytes());
        data.extend((frame.bytes() as u16).to_le_bytes());
        data.extend_from_slice(frame.head);
        data.extend_from_slice(frame.body);
        self.blocks.write_block(&self.packet).expect(INTO_MEMORY);
        if self.blocks.get_ref().len() >= TUNING.capture.buffer_bytes {
            self.write_out();
        }
    }

    pub(super) fn write_out(&mut self) {
        let buffer = self.blocks.get_mut();
        if self.failed.is_none() {
            self.written_bytes += buffer.len() as u64;
            let result = self.writer.write_all(buffer);
            if let Err(error) = result.and_then(|()| self.writer.flush()) {
                tracing::warn!("the capture ends here: {error}");
                if let Some(path) = &self.path {
                    let _ = writeln!(
                        io::stderr(),
                        "tsumuji: the capture {} is not whole: {error}",
                        path.display()
                    );
                    HAS_FAILED.store(true, Ordering::Relaxed);
                }
                self.failed = Some(error);
            }
        }
        buffer.clear();
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.write_out();
    }
}

/// A made-up address, as the head of `capture` describes.
fn mac_of(addr: LinkAddr) -> [u8; 6] {
    match addr {
        LinkAddr::Local(node) => {
            let [high, low] = node.to_be_bytes();
            [2, 0, 0, 0, high, low]
        }
        LinkAddr::Inet(addr) => {
            let [high, low] = addr.port().to_be_bytes();
            let [b, c, d] = match addr.ip() {
                IpAddr::V4(ip) => [ip.octets()[1], ip.octets()[2], ip.octets()[3]],
                IpAddr::V6(ip) => [ip.octets()[13], ip.octets()[14], ip.octets()[15]],
            };
            [2, high, low, b, c, d]
        }
        LinkAddr::Ether(mac) => mac.0,
        LinkAddr::Broadcast => [0xff; 6],
    }
}

/// Creates the file. A link or file that appears there meanwhile is neither followed nor opened.
pub(super) fn new_file(path: &Path) -> io::Result<File> {
    let refused = |what: &str| {
        let text = format!("{what}; remove it, or name another file");
        Err(io::Error::new(ErrorKind::AlreadyExists, text))
    };
    let me = rustix::process::geteuid().as_raw();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(there) if there.is_symlink() => return refused("it is a symbolic link"),
        Ok(there) if there.uid() != me => return refused("it belongs to another user"),
        Ok(there) if there.is_file() => std::fs::remove_file(path)?,
        Ok(there) if there.file_type().is_fifo() => {
            let file = OpenOptions::new()
                .write(true)
                .custom_flags(rustix::fs::OFlags::NOFOLLOW.bits() as i32)
                .open(path)?;
            let opened = file.metadata()?;
            return if opened.file_type().is_fifo() && opened.uid() == me {
                Ok(file)
            } else {
                refused("it was exchanged for something else")
            };
        }
        Ok(_) => return refused("it is no file"),
    }
    // Exclusive creation fails where anything is, links included.
    OpenOptions::new().write(true).create_new(true).open(path)
}
