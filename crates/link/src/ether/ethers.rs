//! `/etc/ethers`: host names to Ethernet addresses, as ethers(5) describes it.
//!
//! Called to resolve the hosts of a cluster. The file's content is untrusted: its size is bounded, nothing panics, and a malformed line is an error
//! that names it.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::MacAddr;

/// Path of the system's file.
pub const ETHERS_PATH: &str = "/etc/ethers";
/// Room for some 30,000 hosts.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// Characters of a bad line that an error shows.
const SHOWN_CHARS_MAX: usize = 60;

/// The parsed file.
#[derive(Debug, Clone)]
pub struct Ethers {
    path: PathBuf,
    hosts: HashMap<String, MacAddr>,
}

/// Why a name has no address.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EthersError {
    /// The file cannot be read.
    #[error(
        "cannot read {}: {source}; it holds one `02:00:00:00:00:01 host` a line", path.display()
    )]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Larger than any sensible file.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// A malformed line.
    #[error(
        "{}:{line}: `{text}` is no `02:00:00:00:00:01 host`, the address of one station and its name", path.display()
    )]
    Line {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// The line, shortened.
        text: String,
    },
    /// The host is not in the file.
    #[error("{host} is not in {}; add a line `02:00:00:00:00:01 {host}` with its address", path.display())]
    NoSuchHost {
        /// The file.
        path: PathBuf,
        /// The host.
        host: String,
    },
}

impl Ethers {
    /// Reads the whole file; `ETHERS_PATH` unless a test has its own.
    pub fn read(path: &Path) -> Result<Self, EthersError> {
        let failed = |source| EthersError::Io {
            path: path.to_owned(),
            source,
        };
        let mut bytes = Vec::new();
        File::open(path)
            .and_then(|file| file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes))
            .map_err(failed)?;
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(EthersError::TooLarge {
                path: path.to_owned(),
            });
        }
        Self::parse(&bytes, path)
    }

    /// Parses a file's content; `path` is for errors.
    pub fn parse(bytes: &[u8], path: &Path) -> Result<Self, EthersError> {
        let mut hosts = HashMap::new();
        for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
            let text = String::from_utf8_lossy(line);
            let content = text.split('#').next().unwrap_or_default().trim();
            if content.is_empty() {
                continue;
            }
            let Some((host, mac)) = parse_line(content) else {
                return Err(EthersError::Line {
                    path: path.to_owned(),
                    line: index + 1,
                    text: shown(content),
                });
            };
            // As in the C library, the first line with a name counts.
            hosts.entry(host).or_insert(mac);
        }
        Ok(Self {
            path: path.to_owned(),
            hosts,
        })
    }

    /// The address of `host`. Names are compared without regard to case.
    pub fn resolve(&self, host: &str) -> Result<MacAddr, EthersError> {
        let found = self.hosts.get(&host.to_ascii_lowercase());
        found.copied().ok_or_else(|| EthersError::NoSuchHost {
            path: self.path.clone(),
            host: shown(host),
        })
    }
}

fn parse_line(content: &str) -> Option<(String, MacAddr)> {
    let mut words = content.split_ascii_whitespace();
    let mac: MacAddr = words.next()?.parse().ok()?;
    let host = words.next()?;
    let sound = mac.is_station()
        && words.next().is_none()
        && host.chars().all(|c| !c.is_control() && c != '\u{fffd}');
    sound.then(|| (host.to_ascii_lowercase(), mac))
}

fn shown(text: &str) -> String {
    let kept = text.chars().take(SHOWN_CHARS_MAX);
    kept.map(|c| if c.is_control() { ' ' } else { c }).collect()
}
