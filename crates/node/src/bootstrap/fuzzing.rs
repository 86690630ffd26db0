//! Entry points for fuzz targets: arbitrary input from a launcher or an agent, from other launchers' services, from their other ranks, and from members
//! about members.

use serde::de::DeserializeOwned;

pub use super::foreign::is_understood;
use super::frames::{Frames, FromAgent, Item, ToAgent};
pub use crate::channel::members::is_understood as is_news;

/// Reads a stream in pieces of `piece_bytes` as a launcher (`from_agent`) or an agent does, until it ends or is rejected. Returns the number of valid
/// messages.
pub fn stream(bytes: &[u8], piece_bytes: usize, from_agent: bool) -> usize {
    if from_agent {
        understood::<FromAgent>(bytes, piece_bytes, Frames::new(true))
    } else {
        understood::<ToAgent>(bytes, piece_bytes, Frames::new(false))
    }
}

fn understood<M: DeserializeOwned>(bytes: &[u8], piece_bytes: usize, mut frames: Frames) -> usize {
    let mut understood = 0;
    for piece in bytes.chunks(piece_bytes.max(1)) {
        frames.feed(piece);
        loop {
            match frames.next::<M>() {
                Ok(None) => break,
                Ok(Some(item)) => understood += usize::from(matches!(item, Item::Message(_))),
                Err(_) => return understood,
            }
        }
    }
    understood
}
