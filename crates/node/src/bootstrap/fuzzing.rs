//! Entry points for fuzz targets: arbitrary input from a launcher or an agent, from other launchers' services, from their other ranks, and from members
//! about members.

pub use super::foreign::is_understood;
use super::frames::{Frames, FromAgent, Kind, ToAgent};
pub use crate::channel::members::is_understood as is_news;

/// Reads a stream in pieces of `piece_bytes` as a launcher (`from_agent`) or an agent does, until it ends or is rejected. Returns the number of valid
/// messages.
pub fn stream(bytes: &[u8], piece_bytes: usize, from_agent: bool) -> usize {
    let mut frames = Frames::new(from_agent);
    let mut understood = 0;
    for piece in bytes.chunks(piece_bytes.max(1)) {
        frames.feed(piece);
        loop {
            let content = match frames.next() {
                Ok(None) => break,
                Ok(Some((Kind::Message, content))) => content,
                Ok(Some(_)) => continue,
                Err(_) => return understood,
            };
            let sound = if from_agent {
                serde_json::from_slice::<FromAgent>(content).is_ok()
            } else {
                serde_json::from_slice::<ToAgent>(content).is_ok()
            };
            if !sound {
                return understood;
            }
            understood += 1;
        }
    }
    understood
}
