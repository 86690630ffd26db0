//! Bundles: several small messages in the payload of one data frame.
//!
//! Each message follows its length (`prefix`). Any bytes may be read: `count` checks whether they are a legal bundle, and should be called before
//! `messages`.

/// Length of the prefix that states a message's length.
pub const PREFIX_BYTES: usize = 2;
/// Smallest number of messages in a bundle.
pub const MESSAGES_MIN: usize = 2;
/// Largest number of messages in a bundle.
pub const MESSAGES_MAX: usize = 256;
/// Longest payload of a bundle.
pub const BYTES_MAX: usize = 16 << 10;

/// The messages of a payload in order, up to the first that does not fit into it.
pub fn messages(payload: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = payload;
    core::iter::from_fn(move || {
        let (message, behind) = split(rest)?;
        rest = behind;
        Some(message)
    })
}

/// Number of messages in a payload; `None` if it is no legal bundle.
pub fn count(payload: &[u8]) -> Option<usize> {
    if payload.len() > BYTES_MAX {
        return None;
    }
    let (mut rest, mut count) = (payload, 0);
    while !rest.is_empty() && count <= MESSAGES_MAX {
        rest = split(rest)?.1;
        count += 1;
    }
    (MESSAGES_MIN..=MESSAGES_MAX)
        .contains(&count)
        .then_some(count)
}

fn split(rest: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, behind) = rest.split_first_chunk::<PREFIX_BYTES>()?;
    behind.split_at_checked(u16::from_le_bytes(*length).into())
}

/// The prefix of a message of `message_bytes`, which are at most `BYTES_MAX`.
pub fn prefix(message_bytes: usize) -> [u8; PREFIX_BYTES] {
    debug_assert!(message_bytes <= BYTES_MAX);
    (message_bytes as u16).to_le_bytes()
}

#[cfg(test)]
mod tests {
    extern crate alloc;
    use super::*;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    proptest! {
        /// Any messages survive a round trip.
        #[test]
        fn round_trip(written in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..50), 2..250)) {
            let mut payload = Vec::new();
            for message in &written {
                payload.extend_from_slice(&prefix(message.len()));
                payload.extend_from_slice(message);
            }
            prop_assert_eq!(count(&payload), Some(written.len()));
            prop_assert!(messages(&payload).eq(written.iter().map(Vec::as_slice)));
        }

        /// Any bytes are either a bundle whose messages fill them, or no bundle.
        #[test]
        fn any_bytes(payload in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..2000)) {
            if let Some(count) = count(&payload) {
                let bytes: usize = messages(&payload).map(|message| PREFIX_BYTES + message.len()).sum();
                prop_assert_eq!((messages(&payload).count(), bytes), (count, payload.len()));
            }
        }
    }

    /// A single message, too many of them, and bytes that are cut off or left over are no bundle.
    #[test]
    fn bounds() {
        assert_eq!(count(&[]), None);
        assert_eq!(count(&[1, 0, 7]), None);
        assert_eq!(count(&[1, 0, 7, 0, 0]), Some(2));
        assert_eq!(count(&[1, 0, 7, 0]), None);
        assert_eq!(count(&[1, 0, 7, 1, 0]), None);
        assert_eq!(count(&[0; 2 * MESSAGES_MAX]), Some(MESSAGES_MAX));
        assert_eq!(count(&[0; 2 * MESSAGES_MAX + 2]), None);
        let mut long = [0; BYTES_MAX + 1];
        long[..2].copy_from_slice(&prefix(BYTES_MAX - 4));
        assert_eq!(count(&long[..BYTES_MAX]), Some(2));
        long[0] += 1;
        assert_eq!(count(&long), None);
    }
}
