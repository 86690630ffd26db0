//! The gateways of a measurement between hosts: one in each, ended with it.

use std::ffi::{OsStr, OsString};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use tsumuji_testbed::Testbed;

use super::{Path, StreamError};

/// Gateways in the hosts of a testbed, which its hosts file names.
pub(super) struct Gateways {
    file: PathBuf,
    link: &'static str,
    children: Vec<Child>,
}

impl Gateways {
    /// Starts them, and waits until each serves. `program`: `tsumuji`.
    pub(super) fn start(
        program: &OsStr,
        path: Path,
        testbed: &Testbed,
    ) -> Result<Self, StreamError> {
        let mut gateways = Self {
            file: testbed.hosts_file(),
            link: path.link(),
            children: Vec::new(),
        };
        let mut started = Vec::new();
        for (id, host) in testbed.hosts().iter().enumerate() {
            let mut child = host
                .command(program)
                .arg("gateway")
                .args(gateways.node(id))
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            started.extend(child.stderr.take());
            gateways.children.push(child);
        }
        for stderr in started {
            // A warning comes first; what follows the word that it serves goes nowhere.
            let mut lines = BufReader::new(stderr).lines();
            let mut told = String::new();
            loop {
                match lines.next() {
                    Some(Ok(line)) if line.starts_with("node ") => break,
                    Some(Ok(line)) => told = line,
                    Some(Err(error)) => return Err(error.into()),
                    None => {
                        return Err(StreamError::Ended {
                            what: "a gateway",
                            told,
                        });
                    }
                }
            }
        }
        Ok(gateways)
    }

    /// The options that say which node a host is.
    pub(super) fn node(&self, id: usize) -> Vec<OsString> {
        let words = [
            "--hosts".into(),
            self.file.clone().into_os_string(),
            "--id".into(),
            id.to_string().into(),
            "--link".into(),
            self.link.into(),
            "--open".into(),
        ];
        words.to_vec()
    }
}

impl Drop for Gateways {
    fn drop(&mut self) {
        for child in &self.children {
            if let Some(pid) = Pid::from_raw(child.id() as i32) {
                let _ = kill_process(pid, Signal::TERM); // it may have ended
            }
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}
