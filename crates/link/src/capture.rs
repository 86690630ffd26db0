//! Writes every frame of a link into a pcapng file, for tshark, Wireshark and other tools.
//!
//! Wraps any link; inside of an `Impair` it records the frames of the medium, outside the frames that the program sees. Frames of links without
//! Ethernet headers get one: EtherType 0x88B5 and the frame's length as on the raw links, so one dissector serves all. The link type is
//! LINKTYPE_ETHERNET. The addresses are made up and locally administered:
//!
//! - `02:00:00:00:hh:ll`: node index hhll of a shared-memory job;
//! - `02:pp:pp:bb:cc:dd`: UDP port pppp of a.b.c.d (of IPv6: the last three bytes);
//! - `ff:ff:ff:ff:ff:ff`: broadcast.
//!
//! A capture is a new file: an earlier one of the same user is removed first. A symbolic link is not followed, and nothing is written into files of
//! others, for captures are often named in `/tmp`. A pipe of the same user may be there, too.
//!
//! A write that fails ends the capture, not the link; `Capture::finish` returns the error. A capture by name also writes one line on standard error
//! and sets `has_failed`, since a capture asked for by the environment has no caller that would see the error. Not for measurements: the thread that
//! drives the link writes the file (see `file`).

mod file;

use std::io::{self, Write};
use std::path::Path;
use std::time::Duration;

use crate::{Frame, Link, LinkAddr, LinkError, Receiver, each, hand_over, pass_on};

pub use file::has_failed;
use file::{Direction, Recorder, new_file};

/// A link whose frames are recorded.
#[derive(Debug)]
pub struct Capture<L> {
    inner: L,
    recorder: Recorder,
}

impl<L: Link> Capture<L> {
    /// Wraps a link and records into a new file at `path`. Replaces an earlier capture of this user; anything else at `path` stays as it is, and is
    /// an error.
    pub fn create(inner: L, path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let mut capture = Self::new(inner, new_file(path)?);
        capture.recorder.path = Some(path.to_owned());
        Ok(capture)
    }

    /// Wraps a link and records into `writer`, which need not buffer.
    pub fn new(inner: L, writer: impl Write + Send + 'static) -> Self {
        let recorder = Recorder::new(Box::new(writer), inner.caps().name, inner.local_addr());
        Self { inner, recorder }
    }

    /// Ends the recording and tells whether all was written. (Dropping does the same, silently.)
    pub fn finish(mut self) -> io::Result<()> {
        self.recorder.write_out();
        self.recorder.failed.take().map_or(Ok(()), Err)
    }
}

impl<L: Link> Link for Capture<L> {
    pass_on!((inner): caps local_addr capacity flush fd arm_fd sealing set_reach note_time counters);

    fn send(&mut self, to: LinkAddr, frames: &[Frame<'_>]) -> Result<usize, LinkError> {
        let sent = self.inner.send(to, frames)?;
        for frame in &frames[..sent] {
            self.recorder.frame(Direction::Outbound, to, frame);
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

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        // The program is idle now: what was recorded so far is then in the file if it is killed later.
        self.recorder.write_out();
        self.inner.wait(timeout)
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::io::Seek;

    use rustix::fs::MemfdFlags;

    use super::*;
    use crate::shm::{Shm, ShmConfig, ShmJob};
    use pcap_file::DataLink;
    use pcap_file::pcapng::PcapNgReader;
    use pcap_file::pcapng::blocks::enhanced_packet::EnhancedPacketOption;
    use pcap_file::pcapng::blocks::interface_description::InterfaceDescriptionOption;

    fn shm_pair() -> (Shm, Shm) {
        let fd = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("create");
        let a = Shm::attach(&fd, 0).expect("attach");
        (a, Shm::attach(&fd, 1).expect("attach"))
    }

    /// The file holds both directions with addresses, times that do not run backwards, and the frames as they were.
    #[test]
    fn frames_are_recorded() {
        let (a, mut b) = shm_pair();
        // A file without a name.
        let memory = rustix::fs::memfd_create("capture", MemfdFlags::CLOEXEC).expect("a file");
        let mut file = File::from(memory);
        {
            let mut a = Capture::new(a, file.try_clone().expect("a second handle"));
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
        file.rewind().expect("rewind");
        let mut file = PcapNgReader::new(file).expect("a section");
        let mut last = Duration::ZERO;
        let interface = file.next_block().expect("a block").expect("sound");
        let interface = interface.into_interface_description().expect("interface");
        assert_eq!(
            (interface.linktype, interface.snaplen),
            (DataLink::ETHERNET, 0)
        );
        let nanoseconds = InterfaceDescriptionOption::IfTsResol(9);
        assert!(interface.options.contains(&nanoseconds));
        for index in 0..18 {
            let packet = file.next_block().expect("a block").expect("sound");
            let packet = packet.into_enhanced_packet().expect("packet");
            assert!(packet.timestamp >= last);
            last = packet.timestamp;
            let number = index / 2 + 1;
            let (frame, to, from, flags) = match index % 2 {
                0 => (vec![number as u8; number], 1, 0, 2),
                _ => (b"ack".to_vec(), 0, 1, 1),
            };
            let mut expected = vec![2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 0x88, 0xb5];
            expected.extend([frame.len() as u8, 0]);
            expected.extend(frame);
            assert_eq!(packet.original_len as usize, expected.len());
            assert_eq!(packet.data, expected);
            assert_eq!(packet.options, [EnhancedPacketOption::Flags(flags)]);
        }
        assert!(file.next_block().is_none());
    }

    /// An earlier capture is replaced; a symbolic link, a folder and another user's file stay as they are and are refused with advice.
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

    /// A full disk ends the capture with its error, and the link goes on.
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
