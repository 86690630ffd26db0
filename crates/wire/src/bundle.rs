//! Several small messages in one data frame: how they lie in its payload.
//!
//! Each message stands behind its length (`prefix`). Any bytes may be read: `count` says whether they are a legal bundle before `messages`
//! is asked for what lies in it.

/// A message's length stands before it.
pub const PREFIX_BYTES: usize = 2;
/// A bundle has at least so many messages,
pub const MESSAGES_MIN: usize = 2;
/// and at most.
pub const MESSAGES_MAX: usize = 256;
/// No bundle is longer.
pub const BYTES_MAX: usize = 16 << 10;

/// The messages of a payload in order, up to the first that does not lie within it.
pub fn messages(payload: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    let mut rest = payload;
    core::iter::from_fn(move || {
        let (message, behind) = split(rest)?;
        rest = behind;
        Some(message)
    })
}

/// How many messages a payload has. `None`: it is no bundle.
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

/// The length that stands before a message of so many bytes, which are at most `BYTES_MAX`.
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
        /// What is written is read again, whatever the messages are.
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

        /// Any bytes are a bundle whose messages fill them, or none.
        #[test]
        fn any_bytes(payload in proptest::collection::vec(prop_oneof![Just(0u8), Just(1), any::<u8>()], 0..2000)) {
            if let Some(count) = count(&payload) {
                let bytes: usize = messages(&payload).map(|message| PREFIX_BYTES + message.len()).sum();
                prop_assert_eq!((messages(&payload).count(), bytes), (count, payload.len()));
            }
        }
    }

    /// One message alone is no bundle, nor are too many, nor what is cut off or goes on.
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
