//! A link alone: frames between two ends of it, without engine, acknowledgement or endpoint.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tsumuji_link::{Link, LinkAddr, LinkError};

use super::{pin_to, relax};
use crate::stats::{HalfRtt, RoundTrips};

/// A frame that is this late is lost.
const LOST_AFTER: Duration = Duration::from_secs(1);

/// Why a link alone could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkLimitError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No answer.
    #[error("a frame was lost on a link without other traffic")]
    Lost,
}

fn send<L: Link>(
    link: &mut L,
    to: LinkAddr,
    frame: &[u8],
    cpus: Option<[usize; 2]>,
) -> Result<(), LinkError> {
    while !link.send_with(to, |slot| {
        slot[..frame.len()].copy_from_slice(frame);
        frame.len()
    })? {
        link.flush()?;
        relax(cpus);
    }
    link.flush()
}

/// Half-round-trip of frames of `size` bytes, both sides spinning.
pub fn pingpong<L: Link + Send>(
    ends: [L; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> Result<HalfRtt, LinkLimitError> {
    let [mut asker, mut echo] = ends;
    let to = echo.local_addr();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut frame = vec![0; size];
            while !stop.load(Ordering::Relaxed) {
                let mut from = None;
                let received = echo.recv_burst(1, |addr, bytes| {
                    let bytes = &bytes[..size.min(bytes.len())];
                    frame[..bytes.len()].copy_from_slice(bytes);
                    from = Some(addr);
                });
                match (received, from) {
                    (Ok(_), Some(from)) => drop(send(&mut echo, from, &frame, cpus)), // a failure shows as a loss
                    _ => relax(cpus),
                }
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let mut ask = || -> Result<HalfRtt, LinkLimitError> {
                let frame = vec![1; size];
                let mut trips = RoundTrips::default();
                let mut before = Instant::now();
                for turn in 0..iterations {
                    send(&mut asker, to, &frame, cpus)?;
                    let mut spins = 0_u32;
                    while asker.recv_burst(1, |_, bytes| {
                        std::hint::black_box(bytes);
                    })? == 0
                    {
                        spins = spins.wrapping_add(1);
                        if spins.is_multiple_of(4096) && before.elapsed() > LOST_AFTER {
                            return Err(LinkLimitError::Lost);
                        }
                        relax(cpus);
                    }
                    let now = Instant::now();
                    // The first trip contains the start of the other thread.
                    if turn > 0 || iterations == 1 {
                        trips.record((now - before).as_nanos() as u64);
                    }
                    before = now;
                }
                Ok(trips.half())
            };
            let result = ask();
            stop.store(true, Ordering::Relaxed);
            result
        });
        asking.join().expect("the asking thread does not panic")
    })
}

/// `frames` broadcast frames from the first end, a pause after each, to all the others. Returns the frames that the sender handed to
/// the medium, and those that each other end received.
pub fn broadcast<L: Link>(
    ends: &mut [L],
    size: usize,
    frames: u64,
    pause: Duration,
) -> Result<(u64, Vec<u64>), LinkLimitError> {
    let Some((sender, receivers)) = ends.split_first_mut() else {
        return Ok((0, Vec::new()));
    };
    let frame = vec![1; size];
    let before = sender.counters().sent_frames;
    let mut received = vec![0; receivers.len()];
    let mut collect = |receivers: &mut [L]| -> Result<(), LinkError> {
        for (link, received) in receivers.iter_mut().zip(&mut received) {
            *received += link.recv_burst(64, |_, bytes| {
                std::hint::black_box(bytes);
            })? as u64;
        }
        Ok(())
    };
    for _ in 0..frames {
        send(sender, LinkAddr::Broadcast, &frame, None)?;
        std::thread::sleep(pause);
        collect(receivers)?;
    }
    for _ in 0..100 {
        std::thread::sleep(Duration::from_millis(1));
        collect(receivers)?;
    }
    Ok((sender.counters().sent_frames - before, received))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_link::udp::{Udp, UdpConfig};

    /// Frames come back over a link that is at hand everywhere.
    #[test]
    fn echoes() {
        let open = || Udp::bind("127.0.0.1:0".parse().unwrap(), UdpConfig::default()).unwrap();
        assert!(pingpong([open(), open()], None, 64, 10).unwrap().min > 0.0);
    }
}
