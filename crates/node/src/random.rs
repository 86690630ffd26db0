//! Random numbers from the kernel: names of rendezvous, incarnations.

use std::io::{self, Read};

/// 64 bits that cannot be guessed.
pub(crate) fn random_u64() -> io::Result<u64> {
    let mut bytes = [0_u8; 8];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u64::from_ne_bytes(bytes))
}
