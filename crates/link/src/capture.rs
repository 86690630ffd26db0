//! Writes every frame of a link into a pcapng file, for tshark, Wireshark and whatever else reads it.
//!
//! Wraps any link; inside of an `Impair` it records what the medium brought, outside what the program sees. Frames of links
//! without Ethernet headers get one: EtherType 0x88B5 and the frame's length as on the raw links, so one dissector serves all. The link type is
//! LINKTYPE_ETHERNET. The addresses are made up and locally administered:
//!
//! - `02:00:00:00:hh:ll`: node index hhll of a shared-memory job;
//! - `02:pp:pp:bb:cc:dd`: UDP port pppp of a.b.c.d (of IPv6: the last three bytes);
//! - `ff:ff:ff:ff:ff:ff`: everyone.
//!
//! A capture is a new file: one of ours that is there is removed first, and nothing is written through a link or into what belongs
//! to others, for captures are often named in `/tmp`. A pipe of our own may stand there, too.
//!
//! A write that fails ends the capture, not the link; `Capture::finish` tells. Of a capture by name, one line on standard error tells, too, and
//! `has_failed`, for nobody else may hear of it: whoever asks for one by the environment is not the program. Not for measurements: the file is written by the
//! thread that drives the link, `BUFFER_BYTES` at a time.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::net::IpAddr;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::ether::{ETHERTYPE, HEADER_BYTES, LENGTH_BYTES};
use crate::{
    Capacity, Frame, Link, LinkAddr, LinkCaps, LinkCounters, LinkError, Receiver, SealCounters,
    each, hand_over,
};

/// Written to the file at a time.
const BUFFER_BYTES: usize = 256 << 10;
/// The capture ends here, so that a forgotten one does not fill the disk.
const FILE_BYTES_MAX: u64 = 4 << 30;

const LINKTYPE_ETHERNET: u16 = 1;

/// Blocks and options of pcapng (draft-ietf-opsawg-pcapng), all little-endian.
mod pcapng {
    pub(super) const SECTION_HEADER: u32 = 0x0A0D_0D0A;
    pub(super) const BYTE_ORDER_MAGIC: u32 = 0x1A2B_3C4D;
    pub(super) const INTERFACE_DESCRIPTION: u32 = 1;
    pub(super) const ENHANCED_PACKET: u32 = 6;
    pub(super) const OPTION_END: u16 = 0;
    pub(super) const IF_NAME: u16 = 2;
    pub(super) const IF_TSRESOL: u16 = 9;
    pub(super) const EPB_FLAGS: u16 = 2;
    /// Powers of ten a second.
    pub(super) const NANOSECONDS: u8 = 9;
}

static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Whether a capture of this process, begun by `Capture::create`, could not be written to its end. It was told on standard error.
pub fn has_failed() -> bool {
    HAS_FAILED.load(Ordering::Relaxed)
}

#[derive(Debug, Clone, Copy)]
enum Direction {
    Inbound = 1,
    Outbound = 2,
}

/// Gathers blocks and writes them out.
#[derive(Debug)]
struct Recorder<W: Write> {
    writer: W,
    /// Of a file by name.
    path: Option<PathBuf>,
    buffer: Vec<u8>,
    written_bytes: u64,
    failed: Option<io::Error>,
    full: bool,
    local: [u8; 6],
    began: Instant,
    began_since_epoch: Duration,
}

impl<W: Write> Recorder<W> {
    fn new(writer: W, name: &str, local: LinkAddr) -> Self {
        let mut recorder = Self {
            writer,
            path: None,
            buffer: Vec::with_capacity(BUFFER_BYTES * 2),
            written_bytes: 0,
            failed: None,
            full: false,
            local: mac_of(local),
            began: Instant::now(),
            began_since_epoch: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .unwrap_or_default(),
        };
        recorder.block(pcapng::SECTION_HEADER, |body| {
            body.extend(pcapng::BYTE_ORDER_MAGIC.to_le_bytes());
            body.extend([1, 0, 0, 0]); // version 1.0
            body.extend(u64::MAX.to_le_bytes()); // section length not stated
        });
        recorder.block(pcapng::INTERFACE_DESCRIPTION, |body| {
            body.extend(LINKTYPE_ETHERNET.to_le_bytes());
            body.extend([0; 2]);
            body.extend([0; 4]); // frames are not cut
            option(body, pcapng::IF_NAME, name.as_bytes());
            option(body, pcapng::IF_TSRESOL, &[pcapng::NANOSECONDS]);
            option(body, pcapng::OPTION_END, &[]);
        });
        recorder
    }

    fn frame(&mut self, direction: Direction, peer: LinkAddr, frame: &Frame<'_>) {
        if self.failed.is_some() || self.full {
            return;
        }
        if self.written_bytes + (self.buffer.len() + frame.bytes()) as u64 > FILE_BYTES_MAX {
            self.full = true;
            tracing::warn!(
                "the capture is full at {FILE_BYTES_MAX} bytes; later frames are not in it"
            );
            return;
        }
        let time = (self.began_since_epoch + self.began.elapsed()).as_nanos() as u64;
        let (from, to) = match direction {
            Direction::Inbound => (mac_of(peer), self.local),
            Direction::Outbound => (self.local, mac_of(peer)),
        };
        let bytes = (HEADER_BYTES + LENGTH_BYTES + frame.bytes()) as u32;
        self.block(pcapng::ENHANCED_PACKET, |body| {
            body.extend([0; 4]); // interface 0
            body.extend(((time >> 32) as u32).to_le_bytes());
            body.extend((time as u32).to_le_bytes());
            body.extend(bytes.to_le_bytes()); // captured
            body.extend(bytes.to_le_bytes()); // on the wire
            body.extend(to);
            body.extend(from);
            body.extend(ETHERTYPE.to_be_bytes());
            body.extend((frame.bytes() as u16).to_le_bytes());
            body.extend_from_slice(frame.head);
            body.extend_from_slice(frame.body);
            pad(body);
            option(body, pcapng::EPB_FLAGS, &(direction as u32).to_le_bytes());
            option(body, pcapng::OPTION_END, &[]);
        });
        if self.buffer.len() >= BUFFER_BYTES {
            self.write_out();
        }
    }

    /// A block: kind, length, body, length.
    fn block(&mut self, kind: u32, body: impl FnOnce(&mut Vec<u8>)) {
        let start = self.buffer.len();
        self.buffer.extend(kind.to_le_bytes());
        self.buffer.extend([0; 4]);
        body(&mut self.buffer);
        let bytes = (self.buffer.len() - start + 4) as u32;
        self.buffer[start + 4..start + 8].copy_from_slice(&bytes.to_le_bytes());
        self.buffer.extend(bytes.to_le_bytes());
    }

    fn write_out(&mut self) {
        if self.failed.is_none() {
            self.written_bytes += self.buffer.len() as u64;
            let result = self
                .writer
                .write_all(&self.buffer)
                .and_then(|()| self.writer.flush());
            if let Err(error) = result {
                tracing::warn!("the capture ends here: {error}");
                if let Some(path) = &self.path {
                    eprintln!(
                        "tsumuji: the capture {} is not whole: {error}",
                        path.display()
                    );
                    HAS_FAILED.store(true, Ordering::Relaxed);
                }
                self.failed = Some(error);
            }
        }
        self.buffer.clear();
    }
}

impl<W: Write> Drop for Recorder<W> {
    fn drop(&mut self) {
        self.write_out();
    }
}

/// Kind, length, value, padded to 4 bytes.
fn option(body: &mut Vec<u8>, kind: u16, value: &[u8]) {
    body.extend(kind.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend_from_slice(value);
    pad(body);
}

/// All that is in the buffer is made of blocks whose lengths are multiples of 4, so its own length tells the padding.
fn pad(body: &mut Vec<u8>) {
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A made-up address, as the module's head says.
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

/// A link whose frames are recorded.
#[derive(Debug)]
pub struct Capture<L, W: Write = File> {
    inner: L,
    recorder: Recorder<W>,
}

impl<L: Link> Capture<L> {
    /// Wraps a link and records into a new file at `path`. An earlier capture of this user is replaced; what is not a file of his
    /// stays as it is, and is an error.
    pub fn create(inner: L, path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let mut capture = Self::new(inner, new_file(path)?);
        capture.recorder.path = Some(path.to_owned());
        Ok(capture)
    }
}

/// Creates the file. Nothing that somebody puts there meanwhile is followed or opened for a file.
fn new_file(path: &Path) -> io::Result<File> {
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

impl<L: Link, W: Write> Capture<L, W> {
    /// Wraps a link and records into `writer`, which need not buffer.
    pub fn new(inner: L, writer: W) -> Self {
        let recorder = Recorder::new(writer, inner.caps().name, inner.local_addr());
        Self { inner, recorder }
    }

    /// The wrapped link.
    pub fn inner(&self) -> &L {
        &self.inner
    }

    /// Ends the recording and tells whether all was written. (Dropping does the same, silently.)
    pub fn finish(mut self) -> io::Result<()> {
        self.recorder.write_out();
        self.recorder.failed.take().map_or(Ok(()), Err)
    }
}

impl<L: Link, W: Write> Link for Capture<L, W> {
    fn caps(&self) -> LinkCaps {
        self.inner.caps()
    }

    fn local_addr(&self) -> LinkAddr {
        self.inner.local_addr()
    }

    fn capacity(&mut self, to: LinkAddr) -> Result<Capacity, LinkError> {
        self.inner.capacity(to)
    }

    fn send<'a>(
        &mut self,
        to: LinkAddr,
        frames: impl Iterator<Item = Frame<'a>> + Clone,
    ) -> Result<usize, LinkError> {
        let sent = self.inner.send(to, frames.clone())?;
        for frame in frames.take(sent) {
            self.recorder.frame(Direction::Outbound, to, &frame);
        }
        Ok(sent)
    }

    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        let recorder = &mut self.recorder;
        let mut take = each(|from, frame| {
            recorder.frame(Direction::Inbound, from, &Frame::whole(frame));
            hand_over(receiver, from, frame);
        });
        self.inner.receive(max, &mut take)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        self.inner.flush()
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        // The program has time now: what was recorded so far is in the file if it is killed later.
        self.recorder.write_out();
        self.inner.wait(timeout)
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        self.inner.arm_fd()
    }

    fn sealing(&self) -> Option<SealCounters> {
        self.inner.sealing()
    }

    fn set_reach(&mut self, to: LinkAddr, frame_bytes: usize) {
        self.inner.set_reach(to, frame_bytes);
    }

    fn counters(&self) -> LinkCounters {
        self.inner.counters()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shm::{Shm, ShmConfig, ShmJob};

    /// Block kinds and bodies; panics on anything malformed.
    fn blocks(mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let word = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("4 bytes"));
        let mut blocks = Vec::new();
        while !bytes.is_empty() {
            let length = word(&bytes[4..]) as usize;
            assert!(length.is_multiple_of(4) && length >= 12);
            assert_eq!(word(&bytes[length - 4..]) as usize, length);
            blocks.push((word(bytes), bytes[8..length - 4].to_vec()));
            bytes = &bytes[length..];
        }
        blocks
    }

    fn shm_pair() -> (Shm, Shm) {
        let fd = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("create");
        let a = Shm::attach(&fd, 0).expect("attach");
        (a, Shm::attach(&fd, 1).expect("attach"))
    }

    /// The file holds both directions with addresses, times that do not run backwards, and the frames as they were.
    #[test]
    fn frames_are_recorded() {
        let (a, mut b) = shm_pair();
        let mut file = Vec::new();
        {
            let mut a = Capture::new(a, &mut file);
            for bytes in 1..10 {
                a.send_one(LinkAddr::Local(1), Frame::whole(&vec![bytes as u8; bytes]))
                    .expect("send");
                a.flush().expect("flush");
                while b.receive(1, &mut each(|_, _| {})).expect("recv") == 0 {}
                b.send_one(LinkAddr::Local(0), Frame::whole(b"ack"))
                    .expect("send");
                b.flush().expect("flush");
                while a.receive(1, &mut each(|_, _| {})).expect("recv") == 0 {}
            }
        }
        let blocks = blocks(&file);
        assert_eq!(blocks[0].0, pcapng::SECTION_HEADER);
        assert_eq!(blocks[1].0, pcapng::INTERFACE_DESCRIPTION);
        assert_eq!(blocks.len(), 2 + 18);
        let mut last = 0;
        for (index, (kind, body)) in blocks[2..].iter().enumerate() {
            assert_eq!(*kind, pcapng::ENHANCED_PACKET);
            let word =
                |at: usize| u32::from_le_bytes(body[at..at + 4].try_into().expect("4 bytes"));
            let time = u64::from(word(4)) << 32 | u64::from(word(8));
            assert!(time >= last);
            last = time;
            let number = index / 2 + 1;
            let (frame, to, from, flags) = match index % 2 {
                0 => (vec![number as u8; number], 1, 0, 2),
                _ => (b"ack".to_vec(), 0, 1, 1),
            };
            let captured = word(12) as usize;
            assert_eq!(captured, 14 + 2 + frame.len());
            let mut expected = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
            expected.extend([frame.len() as u8, 0]);
            expected.extend(frame);
            assert_eq!(body[20..20 + captured], expected);
            let options = 20 + captured.next_multiple_of(4);
            assert_eq!(word(options), 2 | 4 << 16);
            assert_eq!(word(options + 4), flags);
            assert_eq!(word(options + 8), 0);
        }
    }

    /// An earlier capture is replaced; a link, a folder and another user's file are refused with what to do, and stay as they are.
    #[test]
    fn only_own_files_are_replaced() {
        use std::os::unix::fs::{chown, symlink};
        let folder = std::env::temp_dir().join(format!("tsumuji-capture-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a temporary folder");
        let at = |name: &str| folder.join(name);
        let text = |name: &str| std::fs::read_to_string(at(name)).expect("read");
        std::fs::write(at("precious"), "precious").expect("write");
        std::fs::hard_link(at("precious"), at("own")).expect("link");
        let mut file = new_file(&at("own")).expect("an earlier capture");
        file.write_all(b"new").expect("write");
        assert_eq!((&*text("own"), &*text("precious")), ("new", "precious"));
        symlink(at("precious"), at("link")).expect("link");
        symlink(at("nowhere"), at("dangling")).expect("link");
        std::fs::create_dir(at("folder")).expect("folder");
        let mut refused = vec!["link", "dangling", "folder"];
        std::fs::write(at("foreign"), "foreign").expect("write");
        let me = rustix::process::geteuid().as_raw();
        if chown(at("foreign"), Some(me + 1), None).is_ok() {
            refused.push("foreign");
        }
        for name in refused {
            let error = new_file(&at(name)).expect_err(name).to_string();
            assert!(
                error.ends_with("; remove it, or name another file"),
                "{name}: {error}"
            );
        }
        assert_eq!(
            (&*text("precious"), &*text("foreign")),
            ("precious", "foreign")
        );
        assert!(!at("nowhere").exists());
        std::fs::remove_dir_all(folder).expect("clean up");
    }

    /// A disk that is full ends the capture with its error, and the link goes on.
    #[test]
    fn full_disk_does_not_stop_the_link() {
        let (a, mut b) = shm_pair();
        let full = File::options()
            .write(true)
            .open("/dev/full")
            .expect("/dev/full");
        let mut a = Capture::new(a, full);
        a.wait(Duration::ZERO).expect("wait");
        a.send_one(LinkAddr::Local(1), Frame::whole(&[0; 5]))
            .expect("send");
        a.flush().expect("flush");
        assert_eq!(b.receive(1, &mut each(|_, _| {})).expect("recv"), 1);
        let error = a.finish().expect_err("the disk is full");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
}
