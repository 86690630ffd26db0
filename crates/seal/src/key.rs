//! Cluster keys, shared by all nodes of a cluster, read from a file that only its owner may read.
//!
//! A key file is text: one key a line, 32 bytes in hex or base64, `#` begins a comment. A node begins handshakes with the first key; the others are
//! accepted, too, so that a key can be changed while the cluster runs (`docs/security.md`).
//!
//! Invariant: key bytes are wiped when their holder is dropped, and never printed.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::{digest, hmac};
use data_encoding::{
    BASE64, BASE64_NOPAD, BASE64URL, BASE64URL_NOPAD, HEXLOWER, HEXLOWER_PERMISSIVE,
};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;
/// Most keys in use at once: the old, the new, and some for a cluster that is slow to change.
pub const KEYS_MAX: usize = 8;
/// Largest key file in bytes: eight keys with a page of comments each.
const FILE_BYTES_MAX: usize = 64 << 10;

/// Why there are no usable keys.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the key file {path}: {source}", path = path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is no such file.
    #[error("there is no key file {}; make one: tsumuji key {}", .0.display(), .0.display())]
    Missing(PathBuf),
    /// The file's mode lets others read the key.
    #[error("{path} is open to others (mode {mode:03o}); run: chmod 600 {path}", path = path.display())]
    TooOpen {
        /// Path of the file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Another user owns the file, and could open it to others or change it.
    #[error("{path} belongs to user {owner}; its owner must be the user who reads it ({me}), or root: sudo chown {me} {path}", path = path.display())]
    Foreign {
        /// Path of the file.
        path: PathBuf,
        /// User id of its owner.
        owner: u32,
        /// User id of the reader.
        me: u32,
    },
    /// The file is far longer than any key file.
    #[error("{} is larger than {FILE_BYTES_MAX} bytes; a key file has one key of 32 bytes a line", .0.display())]
    TooLong(PathBuf),
    /// A line is no key. (The line itself is not shown: it may be most of a key.)
    #[error("{path}:{line}: {what}; a key is 32 random bytes as 64 hex digits or as base64", path = path.display())]
    Line {
        /// Path of the file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What is wrong.
        what: &'static str,
    },
    /// The file contains no key.
    #[error("{} has no key in it; make a new one: rm {} && tsumuji key {}", .0.display(), .0.display(), .0.display())]
    Empty(PathBuf),
    /// No key was given.
    #[error("no key given; make one with ClusterKey::generate, or a file with `tsumuji key FILE`")]
    None,
    /// There are more than `KEYS_MAX` keys.
    #[error("more than {KEYS_MAX} keys; remove those that no node uses any more")]
    TooMany,
    /// The file cannot be written.
    #[error("cannot write a key to {path}: {source}", path = path.display())]
    Write {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// There is a file of that name, which may hold a key that is in use.
    #[error("{} is there already and is left as it is; give another name, or remove it first", .0.display())]
    Exists(PathBuf),
    /// The kernel gave no random bytes.
    #[error("the kernel has no random bytes: {0}")]
    Random(getrandom::Error),
}

/// 32 random bytes that all nodes of a cluster share.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct ClusterKey([u8; KEY_BYTES]);

impl ClusterKey {
    /// A new key from the kernel's randomness.
    pub fn generate() -> Result<Self, KeyError> {
        let mut key = Self([0; KEY_BYTES]);
        getrandom::fill(&mut key.0).map_err(KeyError::Random)?;
        Ok(key)
    }

    /// Parses 64 hex digits or base64; `Err`: what is wrong.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let encoding = match text.len() {
            64 => HEXLOWER_PERMISSIVE,
            43 if text.contains(['-', '_']) => BASE64URL_NOPAD,
            43 => BASE64_NOPAD,
            44 if text.contains(['-', '_']) => BASE64URL,
            44 => BASE64,
            _ => return Err("not the length of a key"),
        };
        // Decoding writes at most `decode_len` bytes, a little more than a key.
        let mut bytes = Zeroizing::new([0; KEY_BYTES + 4]);
        let most = encoding.decode_len(text.len());
        let decoded = most.ok().filter(|&most| most <= bytes.len());
        let decoded = decoded
            .and_then(|most| {
                encoding
                    .decode_mut(text.as_bytes(), &mut bytes[..most])
                    .ok()
            })
            .ok_or("a digit that is neither hex nor base64")?;
        let mut key = Self([0; KEY_BYTES]);
        if decoded != KEY_BYTES {
            return Err("not the length of a key");
        }
        key.0.copy_from_slice(&bytes[..KEY_BYTES]);
        if key.0.iter().all(|byte| *byte == key.0[0]) {
            return Err("all bytes are the same, which no random key is");
        }
        Ok(key)
    }

    /// The key as 64 hex digits, for a key file.
    pub fn to_hex(&self) -> Zeroizing<String> {
        // Allocated in full: growing would leave a copy behind.
        let mut text = String::with_capacity(2 * KEY_BYTES);
        HEXLOWER.encode_append(&self.0, &mut text);
        Zeroizing::new(text)
    }

    /// Writes a new file with this key that only its owner may read. An existing file is left alone, and a failure leaves none.
    pub fn write_new(&self, path: impl AsRef<Path>) -> Result<(), KeyError> {
        let path = path.as_ref();
        let mut line = Zeroizing::new(Vec::with_capacity(2 * KEY_BYTES + 1));
        line.extend_from_slice(self.to_hex().as_bytes());
        line.push(b'\n');
        OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .and_then(|mut file| {
                let written = file.write_all(&line).and_then(|()| file.sync_all());
                if written.is_err() {
                    let _ = std::fs::remove_file(path); // the first error is returned
                }
                written
            })
            .map_err(|source| match source.kind() {
                io::ErrorKind::AlreadyExists => KeyError::Exists(path.to_owned()),
                _ => KeyError::Write {
                    path: path.to_owned(),
                    source,
                },
            })
    }

    /// The key's public name, for messages and the wire.
    pub fn print(&self) -> KeyPrint {
        let mut context = digest::Context::new(&digest::SHA256);
        context.update(b"tsumuji: name of a cluster key");
        context.update(&self.0);
        let mut print = [0; 8];
        print.copy_from_slice(&context.finish().as_ref()[..8]);
        KeyPrint(print)
    }

    fn derive(&self, purpose: &[u8]) -> Zeroizing<[u8; KEY_BYTES]> {
        let key = hmac::Key::new(hmac::HMAC_SHA256, &self.0);
        let mut derived = Zeroizing::new([0; KEY_BYTES]);
        derived.copy_from_slice(hmac::sign(&key, purpose).as_ref());
        derived
    }
}

impl fmt::Debug for ClusterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClusterKey({})", self.print())
    }
}

/// The public name of a key: 8 bytes of a hash. A key is random, so it cannot be guessed from its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyPrint(pub(crate) [u8; 8]);

impl fmt::Display for KeyPrint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&HEXLOWER.encode(&self.0))
    }
}

/// The keys a node accepts; with the first it begins handshakes.
#[derive(Debug, Clone)]
pub struct Keys(Vec<ClusterKey>);

impl Keys {
    /// Collects these keys without repetitions.
    pub fn new(keys: impl IntoIterator<Item = ClusterKey>) -> Result<Self, KeyError> {
        let mut kept: Vec<ClusterKey> = Vec::with_capacity(KEYS_MAX);
        for key in keys {
            if kept.iter().any(|known| known.print() == key.print()) {
                continue;
            }
            if kept.len() == KEYS_MAX {
                return Err(KeyError::TooMany);
            }
            kept.push(key);
        }
        if kept.is_empty() {
            return Err(KeyError::None);
        }
        Ok(Self(kept))
    }

    /// Reads a key file.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, KeyError> {
        let path = path.as_ref();
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => KeyError::Missing(path.to_owned()),
            _ => KeyError::Read {
                path: path.to_owned(),
                source,
            },
        };
        let file = File::open(path).map_err(failed)?;
        // Metadata of the opened file: the path may lead to another by now.
        let found = file.metadata().map_err(failed)?;
        check_owner(path, found.uid(), rustix::process::geteuid().as_raw())?;
        let mode = found.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::TooOpen {
                path: path.to_owned(),
                mode,
            });
        }
        let mut text = Zeroizing::new(Vec::with_capacity(FILE_BYTES_MAX + 1));
        file.take(FILE_BYTES_MAX as u64 + 1)
            .read_to_end(&mut text)
            .map_err(failed)?;
        if text.len() > FILE_BYTES_MAX {
            return Err(KeyError::TooLong(path.to_owned()));
        }
        Self::parse(&text, path)
    }

    /// Parses the content of a key file; `path` is for messages.
    pub fn parse(text: &[u8], path: &Path) -> Result<Self, KeyError> {
        let mut keys = Vec::with_capacity(KEYS_MAX);
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let wrong = |what| KeyError::Line {
                path: path.to_owned(),
                line: index + 1,
                what,
            };
            let line = std::str::from_utf8(line).map_err(|_| wrong("not text"))?;
            let word = line.split('#').next().unwrap_or_default().trim();
            if word.is_empty() {
                continue;
            }
            if keys.len() == KEYS_MAX {
                return Err(KeyError::TooMany);
            }
            keys.push(ClusterKey::parse(word).map_err(wrong)?);
        }
        if keys.is_empty() {
            return Err(KeyError::Empty(path.to_owned()));
        }
        Self::new(keys)
    }

    pub(crate) fn derive(&self) -> Vec<DerivedKey> {
        self.0.iter().map(DerivedKey::new).collect()
    }
}

fn check_owner(path: &Path, owner: u32, me: u32) -> Result<(), KeyError> {
    if owner == me || owner == 0 {
        return Ok(());
    }
    Err(KeyError::Foreign {
        path: path.to_owned(),
        owner,
        me,
    })
}

/// Keys derived from a cluster key for handshakes, one for each purpose.
#[derive(Debug)]
pub(crate) struct DerivedKey {
    pub(crate) print: KeyPrint,
    /// For the proof of each handshake frame.
    pub(crate) proof: hmac::Key,
    /// The Noise handshake's pre-shared key.
    pub(crate) psk: Zeroizing<[u8; KEY_BYTES]>,
}

impl DerivedKey {
    fn new(key: &ClusterKey) -> Self {
        let proof = key.derive(b"tsumuji: proof of a handshake frame");
        Self {
            print: key.print(),
            proof: hmac::Key::new(hmac::HMAC_SHA256, &*proof),
            psk: key.derive(b"tsumuji: pre-shared key of a handshake"),
        }
    }
}

#[cfg(test)]
mod tests;
