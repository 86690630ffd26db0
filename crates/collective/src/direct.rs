//! Reading a long transfer where its sender has it: one copy, where both are processes of one host that may trace each other.
//!
//! Used by `operation`. The sender says where the bytes lie and how to know its process; the receiver reads them, says so, and is
//! done when the sender confirms that its operation had not ended meanwhile: only then were the bytes what they should be.
//!
//! Invariant: nothing is read from a process that has not proved to be the peer (numbers of processes differ between
//! containers): a random word of its own lies where it says.

use std::hash::{BuildHasher, Hasher};

use tsumuji_link::shm::read_process;
use zerocopy::{FromBytes, IntoBytes};

/// How others know this process.
#[derive(Debug)]
pub(crate) struct Identity {
    cookie: Box<u64>,
}

/// Whether a peer's memory can be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Reads {
    #[default]
    Unknown,
    Yes,
    No,
}

/// As an identity travels: number of the process, address of its cookie, the cookie.
pub(crate) type Words = [u64; 3];

impl Identity {
    pub(crate) fn new() -> Self {
        // Seeded by the system for each map; what is made of it need only be unlikely.
        let random = std::hash::RandomState::new().build_hasher().finish();
        Self {
            cookie: Box::new(random | 1),
        }
    }

    pub(crate) fn words(&self) -> Words {
        let address = std::ptr::from_ref(&*self.cookie).expose_provenance();
        [std::process::id().into(), address as u64, *self.cookie]
    }
}

/// The words of a payload.
pub(crate) fn parse(payload: &[u8]) -> Option<Words> {
    Words::read_from_bytes(payload).ok()
}

/// Is the process that is named so the one that speaks, and may we read it?
pub(crate) fn verify([pid, address, cookie]: Words) -> bool {
    let mut found = [0_u64];
    cookie != 0 && read(pid, address, found.as_mut_bytes()) && found[0] == cookie
}

/// Fills `target` with what the process has at `address`; `false`: it cannot be read.
pub(crate) fn read(pid: u64, address: u64, target: &mut [u8]) -> bool {
    let Ok(pid) = u32::try_from(pid) else {
        return false;
    };
    let mut done = 0;
    while done < target.len() {
        match read_process(pid, address.wrapping_add(done as u64), &mut target[done..]) {
            Ok(bytes @ 1..) => done += bytes,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Own memory is read like another's; a wrong cookie, process or address is refused.
    #[test]
    fn identities_are_checked() {
        let identity = Identity::new();
        let [pid, address, cookie] = identity.words();
        if !verify([pid, address, cookie]) {
            eprintln!("skipped: the kernel does not let a process read itself here");
            return;
        }
        assert_eq!(
            parse([pid, address, cookie].as_bytes()),
            Some(identity.words())
        );
        assert_eq!(parse(&[0; 23]), None);
        for wrong in [
            [pid, address, cookie ^ 2],
            [pid, 8, cookie],
            [u64::MAX, address, cookie],
            [0, address, 0],
        ] {
            assert!(!verify(wrong), "{wrong:?}");
        }
    }
}
