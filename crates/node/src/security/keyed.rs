//! A sealed link whose keys may change while it runs.

use std::path::PathBuf;
use std::time::SystemTime;

use tsumuji_link::{Link, SealMode, pass_on};
use tsumuji_seal::{Keys, Sealed};

use crate::any_link::AnyLink;
use crate::error::OpenError;

/// Nanoseconds between two checks of the key file.
const CHECK_EVERY_NS: u64 = 1_000_000_000;

/// A sealed link whose key file may change.
#[derive(Debug)]
pub(super) struct Keyed {
    sealed: Sealed<AnyLink>,
    key_file: PathBuf,
    changed: Option<SystemTime>,
    /// When it is checked next, by the clock of `note_time`.
    check_at_ns: u64,
}

impl Keyed {
    pub(super) fn new(link: AnyLink, key_file: PathBuf, mode: SealMode) -> Result<Self, OpenError> {
        // The time is read first, so that a change in between is noticed later.
        let changed = modified(&key_file);
        let keys = Keys::read(&key_file)?;
        Ok(Self {
            sealed: Sealed::new(link, &keys, mode)?,
            key_file,
            changed,
            check_at_ns: 0,
        })
    }

    /// Reads the keys again if their file has changed. An invalid file changes nothing.
    #[cold]
    fn reload_if_changed(&mut self) {
        let changed = modified(&self.key_file);
        if changed.is_none() || changed == self.changed {
            return;
        }
        self.changed = changed;
        let taken = Keys::read(&self.key_file)
            .map_err(|error| error.to_string())
            .and_then(|keys| self.sealed.reload(&keys).map_err(|error| error.to_string()));
        match taken {
            Ok(()) => tracing::info!(file = %self.key_file.display(), "cluster keys changed"),
            Err(error) => tracing::warn!("the cluster keys in use stay: {error}"),
        }
    }
}

fn modified(path: &PathBuf) -> Option<SystemTime> {
    std::fs::metadata(path)
        .and_then(|meta| meta.modified())
        .ok()
}

impl Link for Keyed {
    pass_on!((sealed): caps local_addr capacity send receive flush wait fd arm_fd set_reach counters sealing);

    #[inline]
    fn note_time(&mut self, now_ns: u64) {
        self.sealed.note_time(now_ns);
        if now_ns >= self.check_at_ns {
            self.check_at_ns = now_ns.saturating_add(CHECK_EVERY_NS);
            self.reload_if_changed();
        }
    }
}

#[cfg(test)]
mod tests {
    use tsumuji_link::each;
    use tsumuji_link::ether::{HEADER_BYTES, LENGTH_BYTES, MacAddr};
    use tsumuji_link::relay::{Described, Relayed};
    use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
    use tsumuji_seal::ClusterKey;

    use super::*;
    use crate::any_link::Base;

    /// A process that never waits learns through its seal that its relay has ended.
    #[test]
    fn the_end_of_a_relay_is_told() {
        let described = Described {
            mac: MacAddr([2, 0, 0, 0, 1, 0]),
            slots: 1,
            frame_bytes: 1498,
            receive_frames: 256,
        };
        let config = ShmConfig {
            frame_bytes: described.frame_bytes + HEADER_BYTES + LENGTH_BYTES,
            ..ShmConfig::for_nodes(2)
        };
        let memory = ShmJob::create(2, config).expect("memory");
        let relay = Shm::attach(&memory, 0).expect("the relay's end");
        let link = Relayed::attach(&memory, 0, described).expect("a place");
        let file = std::env::temp_dir().join(format!("tsumuji-keyed-{}", std::process::id()));
        let key = ClusterKey::generate().expect("randomness");
        key.write_new(&file).expect("key file");
        let link = Keyed::new(
            AnyLink::Plain(Base::Relay(link)),
            file.clone(),
            SealMode::Encrypt,
        );
        std::fs::remove_file(file).expect("removed");
        let mut link = link.expect("keys");
        link.note_time(1_000_000_000);
        let frames = link.receive(64, &mut each(|_, _| {}));
        assert_eq!(frames.expect("the relay lives"), 0);
        drop(relay);
        link.note_time(2_000_000_000);
        let failed = link
            .receive(64, &mut each(|_, _| {}))
            .expect_err("no relay");
        assert!(failed.to_string().contains("relay has ended"), "{failed}");
    }
}
