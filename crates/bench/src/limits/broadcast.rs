//! Broadcast over a link alone: one frame to many ends, without engine, acknowledgement or endpoint.

use std::time::Duration;

use tsumuji_link::{Frame, Link, LinkAddr, LinkError, each};

/// Longest wait for the last frames, in milliseconds; where the link lost some, it waits in full.
const LINGER_MS: u32 = 100;

/// Sends `frames` broadcast frames from the first end, with a pause after each, to all the others. Returns the frames that the sender gave to the
/// medium, and those that each other end received.
pub fn broadcast<L: Link>(
    ends: &mut [L],
    size: usize,
    frames: u64,
    pause: Duration,
) -> Result<(u64, Vec<u64>), LinkError> {
    let Some((sender, receivers)) = ends.split_first_mut() else {
        return Ok((0, Vec::new()));
    };
    let frame = vec![1; size];
    let before = sender.counters().sent_frames;
    let mut received = vec![0; receivers.len()];
    // Returns whether all have received all.
    let mut collect = |receivers: &mut [L]| -> Result<bool, LinkError> {
        for (link, received) in receivers.iter_mut().zip(&mut received) {
            *received += link.receive(
                64,
                &mut each(|_, bytes| {
                    std::hint::black_box(bytes);
                }),
            )? as u64;
        }
        Ok(received.iter().all(|&received| received >= frames))
    };
    for _ in 0..frames {
        while !sender.send_one(LinkAddr::Broadcast, Frame::whole(&frame))? {
            sender.flush()?;
            std::thread::yield_now();
        }
        sender.flush()?;
        std::thread::sleep(pause);
        collect(receivers)?;
    }
    for _ in 0..LINGER_MS {
        if collect(receivers)? {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok((sender.counters().sent_frames - before, received))
}
