//! tshark with our dissector, and files for it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tsumuji_link::capture::Capture;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{Frame, each};
use tsumuji_node::{Link, LinkAddr};

const BACKLOG_FRAMES: usize = 8; // fewer than any ring holds

/// A folder that goes away with the test, and tshark without the user's own plugins and preferences.
pub(crate) struct Bench {
    folder: PathBuf,
}

impl Bench {
    /// `None`, and says why, where there is no tshark with Lua.
    pub(crate) fn new(test: &str) -> Option<Self> {
        let version = Command::new("tshark").arg("--version").output();
        match version {
            Ok(output) if String::from_utf8_lossy(&output.stdout).contains("with Lua") => {}
            Ok(_) => {
                eprintln!("{test}: skipped: this tshark was built without Lua");
                return None;
            }
            Err(error) => {
                eprintln!(
                    "{test}: skipped: tshark does not run ({error}); `scripts/setup.sh test` installs it"
                );
                return None;
            }
        }
        let folder =
            std::env::temp_dir().join(format!("tsumuji-dissector-{}-{test}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("temporary folder");
        Some(Self { folder })
    }

    pub(crate) fn tshark(&self, file: &Path, arguments: &[&str]) -> String {
        let script =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/wireshark/tsumuji.lua");
        let Output {
            status,
            stdout,
            stderr,
        } = Command::new("tshark")
            .env("WIRESHARK_CONFIG_DIR", self.folder.join("config"))
            .args(["-n", "-X"])
            .arg(format!("lua_script:{}", script.display()))
            .arg("-r")
            .arg(file)
            .args(arguments)
            .output()
            .expect("tshark");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{stderr}");
        let stdout = String::from_utf8_lossy(&stdout).into_owned();
        for text in [&stderr, stdout.as_str()] {
            let place = text.find("Lua Error").or(text.find("lua: "));
            if let Some(place) = place {
                panic!("{}", text[place..].lines().next().unwrap_or_default());
            }
        }
        stdout
    }

    pub(crate) fn lines(&self, file: &Path, arguments: &[&str]) -> Vec<String> {
        let mut all = vec![
            "-T",
            "fields",
            "-e",
            "_ws.col.Protocol",
            "-e",
            "_ws.col.Info",
        ];
        all.extend(arguments);
        self.tshark(file, &all).lines().map(str::to_owned).collect()
    }

    /// Each frame's layer of ours; repeated fields are arrays.
    pub(crate) fn layers(&self, file: &Path) -> Vec<Value> {
        let text = self.tshark(file, &["-T", "json", "--no-duplicate-keys"]);
        let frames: Vec<Value> = serde_json::from_str(&text).expect("JSON");
        frames
            .into_iter()
            .map(|frame| frame["_source"]["layers"]["tsumuji"].clone())
            .collect()
    }

    /// Records frames as a node with `TSUMUJI_CAPTURE` does.
    pub(crate) fn capture(&self, frames: &[Vec<u8>]) -> PathBuf {
        let path = self.folder.join("trace.pcapng");
        let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
        let mut to = Shm::attach(&job, 1).expect("attach");
        let from = Shm::attach(&job, 0).expect("attach");
        let mut link = Capture::create(from, &path).expect("create");
        for some in frames.chunks(BACKLOG_FRAMES) {
            for frame in some {
                let sent = link.send_one(LinkAddr::Local(1), Frame::whole(frame));
                assert!(sent.expect("send"));
            }
            link.flush().expect("flush");
            let mut received = 0;
            while received < some.len() {
                received += to.receive(64, &mut each(|_, _| {})).expect("receive");
            }
        }
        link.finish().expect("written");
        path
    }

    /// A classic capture file of Ethernet frames, each with the bytes it had on the wire.
    pub(crate) fn pcap(&self, frames: &[(Vec<u8>, usize)]) -> PathBuf {
        let mut bytes = Vec::new();
        let words = |bytes: &mut Vec<u8>, words: &[u32]| {
            bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
        };
        words(&mut bytes, &[0xa1b2_c3d4, 4 << 16 | 2, 0, 0, 65535, 1]);
        for (frame, wire_bytes) in frames {
            words(&mut bytes, &[0, 0, frame.len() as u32, *wire_bytes as u32]);
            bytes.extend(frame);
        }
        let path = self.folder.join("trace.pcap");
        std::fs::write(&path, bytes).expect("write");
        path
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
