//! Messages over a link alone: cut into the link's frames, read from one buffer and written into another, without engine.
//!
//! The difference to our own messages is the cost of the engine: sequence numbers, repair, memory for many messages. A window, reported by a frame of
//! its own from time to time, keeps the receiver's ring from overflowing; frames arrive in order on the cables this is made for, and a lost one ends
//! the measurement. Each byte is copied twice by us, as in any program: out of the sender's message, into the receiver's, and both messages are as
//! large in memory as stated.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tsumuji_link::{Frame, Link, LinkAddr, LinkError, each};

use super::timing::{Clock, Timing, in_all, warm_up};
use super::{pin_to, relax};
use crate::ops::Sample;

/// Kind and running number, before each payload.
const HEAD_BYTES: usize = 8;
const DATA: u8 = 1;
const TOLD: u8 = 2;
/// Most bytes in flight: more would leave the cache before they are read.
const WINDOW_BYTES: usize = 512 << 10;
/// Parts of a window: after each the receiver reports its count, and the sender flushes. With larger bursts the two sides would work in turn and not
/// at once.
const TOLD_PER_WINDOW: u64 = 4;
/// Fewest and most frames in flight.
const WINDOW_FRAMES: (u64, u64) = (4, 8192);
/// Frames taken from the link at once.
const BURST_FRAMES: usize = 64;
/// Without a frame for this long, one was lost.
const LOST_AFTER: Duration = Duration::from_secs(1);
/// Empty polls between two readings of the clock.
const POLLS_PER_CHECK: u32 = 1 << 14;

/// Why a link alone could not be measured.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LinkLimitError {
    /// The link failed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// There was no answer.
    #[error("a frame was lost on a link without other traffic")]
    Lost,
}

/// One end of the link, with its message.
struct End<L> {
    link: L,
    to: LinkAddr,
    cpus: Option<[usize; 2]>,
    message: Vec<u8>,
    payload_bytes: usize,
    window_frames: u64,
    sent_frames: u64,
    /// Frames that the other side has reported as received.
    told_frames: u64,
    received_frames: u64,
    /// Frames that we have reported as received.
    answered_frames: u64,
    /// Frames that were flushed.
    flushed_frames: u64,
    /// Bytes received of the present message.
    filled_bytes: usize,
    empty_polls: u32,
    heard: Instant,
}

impl<L: Link> End<L> {
    fn new(link: L, to: LinkAddr, cpus: Option<[usize; 2]>, size: usize) -> Self {
        let caps = link.caps();
        let payload_bytes = (caps.frame_bytes - HEAD_BYTES).min(size.max(1));
        // A ring of the largest frames, with room left for reports; small ones share an Ethernet frame.
        let room_bytes = (caps.receive_frames * 3 / 4).max(1) * caps.frame_bytes;
        let frames = (WINDOW_BYTES.min(room_bytes) / (HEAD_BYTES + payload_bytes)) as u64;
        Self {
            link,
            to,
            cpus,
            message: vec![1; size.max(1)],
            payload_bytes,
            window_frames: frames.clamp(WINDOW_FRAMES.0, WINDOW_FRAMES.1),
            sent_frames: 0,
            told_frames: 0,
            received_frames: 0,
            answered_frames: 0,
            flushed_frames: 0,
            filled_bytes: 0,
            empty_polls: 0,
            heard: Instant::now(),
        }
    }

    /// Sends one frame with the message's bytes from `start` on; `None`: a report of how many frames have arrived.
    fn send_frame(&mut self, start: Option<usize>) -> Result<(), LinkError> {
        let payload = start.map_or(&[][..], |start| {
            let end = self.message.len().min(start + self.payload_bytes);
            &self.message[start..end]
        });
        let kind = if start.is_some() { DATA } else { TOLD };
        let number = (self.received_frames as u32).to_le_bytes();
        let mut head = [0; HEAD_BYTES];
        head[0] = kind;
        head[4..].copy_from_slice(&number);
        let frame = Frame {
            head: &head,
            body: payload,
        };
        while !self.link.send_one(self.to, frame)? {
            self.link.flush()?;
            relax(self.cpus);
        }
        Ok(())
    }

    /// Frames after which to report and to flush.
    fn share_frames(&self) -> u64 {
        (self.window_frames / TOLD_PER_WINDOW).max(1)
    }

    fn tell(&mut self) -> Result<(), LinkError> {
        self.answered_frames = self.received_frames;
        self.send_frame(None)?;
        self.link.flush()
    }

    /// Takes arrived frames, and reports their number from time to time.
    fn poll(&mut self) -> Result<(), LinkLimitError> {
        let Self {
            link,
            message,
            filled_bytes,
            received_frames,
            told_frames,
            ..
        } = self;
        let taken = link.receive(
            BURST_FRAMES,
            &mut each(|_, frame| {
                let Some((head, payload)) = frame.split_first_chunk::<HEAD_BYTES>() else {
                    return; // no other sender uses this cable
                };
                if head[0] == TOLD {
                    let [_, _, _, _, number @ ..] = *head;
                    // The difference is far less than 2³² frames.
                    let ahead = u32::from_le_bytes(number).wrapping_sub(*told_frames as u32);
                    *told_frames += u64::from(ahead);
                    return;
                }
                let bytes = payload.len().min(message.len() - *filled_bytes);
                message[*filled_bytes..][..bytes].copy_from_slice(&payload[..bytes]);
                *filled_bytes += bytes;
                *received_frames += 1;
                if *filled_bytes == message.len() {
                    *filled_bytes = 0;
                }
            }),
        )?;
        if taken == 0 {
            self.empty_polls += 1;
            if self.empty_polls.is_multiple_of(POLLS_PER_CHECK) && self.heard.elapsed() > LOST_AFTER
            {
                return Err(LinkLimitError::Lost);
            }
            relax(self.cpus);
            return Ok(());
        }
        if self.empty_polls >= POLLS_PER_CHECK {
            self.heard = Instant::now();
        }
        self.empty_polls = 0;
        let untold = self.received_frames - self.answered_frames;
        if untold >= self.share_frames() {
            self.tell()?;
        }
        Ok(())
    }

    /// Restarts the time-out.
    fn begin(&mut self) {
        (self.heard, self.empty_polls) = (Instant::now(), 0);
    }

    /// Sends the message once.
    fn send(&mut self) -> Result<(), LinkLimitError> {
        for start in (0..self.message.len()).step_by(self.payload_bytes) {
            if self.sent_frames - self.told_frames >= self.window_frames {
                self.link.flush()?;
                self.begin();
                while self.sent_frames - self.told_frames >= self.window_frames {
                    self.poll()?;
                }
            }
            self.send_frame(Some(start))?;
            self.sent_frames += 1;
            if self.sent_frames - self.flushed_frames >= self.share_frames() {
                self.flushed_frames = self.sent_frames;
                self.link.flush()?;
            }
        }
        Ok(())
    }

    /// Sends so many messages, until the other side has reported all of them.
    fn send_all(&mut self, messages: u64) -> Result<(), LinkLimitError> {
        for _ in 0..messages {
            self.send()?;
        }
        self.link.flush()?;
        self.begin();
        while self.told_frames < self.sent_frames {
            self.poll()?;
        }
        Ok(())
    }

    /// Number of frames of `messages` messages.
    fn frames_of(&self, messages: u64) -> u64 {
        messages * self.message.len().div_ceil(self.payload_bytes) as u64
    }

    fn receive_until(&mut self, frames: u64) -> Result<(), LinkLimitError> {
        self.begin();
        while self.received_frames < frames {
            self.poll()?;
        }
        Ok(())
    }
}

fn ends<L: Link>(links: [L; 2], cpus: Option<[usize; 2]>, size: usize) -> [End<L>; 2] {
    let [one, other] = links;
    let addrs = [other.local_addr(), one.local_addr()];
    [
        End::new(one, addrs[0], cpus, size),
        End::new(other, addrs[1], cpus, size),
    ]
}

/// Runs the two sides on their cores; returns the first one's result.
fn between<L: Link + Send>(
    [mut one, mut other]: [End<L>; 2],
    cpus: Option<[usize; 2]>,
    lead: impl FnOnce(&mut End<L>) -> Result<Sample, LinkLimitError> + Send,
    follow: impl FnOnce(&mut End<L>) -> Result<(), LinkLimitError> + Send,
) -> Result<Sample, LinkLimitError> {
    let ready = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let following = scope.spawn(|| {
            pin_to(cpus, 1);
            ready.store(true, Ordering::Release);
            follow(&mut other)
        });
        let leading = scope.spawn(|| {
            pin_to(cpus, 0);
            while !ready.load(Ordering::Acquire) {
                relax(cpus);
            }
            lead(&mut one)
        });
        let led = leading.join().expect("the leading side does not panic");
        following
            .join()
            .expect("the following side does not panic")
            .and(led)
    })
}

/// Messages of `size` bytes there and back, `iterations` times.
pub fn pingpong<L: Link + Send>(
    links: [L; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> Result<Sample, LinkLimitError> {
    let lead = |end: &mut End<L>| {
        let (mut timing, mut trip) = (Timing::new(iterations, None), 0);
        while timing.begins() {
            trip += 1;
            end.send()?;
            end.link.flush()?;
            end.receive_until(end.frames_of(trip))?;
            timing.ends();
        }
        Ok(timing.sample())
    };
    let follow = |end: &mut End<L>| {
        for iteration in 1..=in_all(iterations) {
            end.receive_until(end.frames_of(iteration))?;
            end.send()?;
            end.link.flush()?;
        }
        Ok(())
    };
    between(ends(links, cpus, size), cpus, lead, follow)
}

/// `messages` of `size` bytes one way, until the last has arrived; those of the warm-up before them.
pub fn burst<L: Link + Send>(
    links: [L; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    messages: u64,
) -> Result<Sample, LinkLimitError> {
    let lead = |end: &mut End<L>| {
        end.send_all(warm_up(messages))?;
        let clock = Clock::start();
        end.send_all(messages)?;
        Ok(clock.stop())
    };
    let follow = |end: &mut End<L>| {
        for so_far in [warm_up(messages), in_all(messages)] {
            end.receive_until(end.frames_of(so_far))?;
            end.tell()?;
        }
        Ok(())
    };
    between(ends(links, cpus, size), cpus, lead, follow)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_link::udp::{Udp, UdpConfig};

    fn links() -> [Udp; 2] {
        [(); 2].map(|()| Udp::bind("127.0.0.1:0".parse().unwrap(), UdpConfig::default()).unwrap())
    }

    /// Messages of one frame and of many arrive in both measurements, and none is left out.
    #[test]
    fn messages_cross() {
        for size in [1, 1000, 300_000] {
            let half = pingpong(links(), None, size, 5).unwrap().half_rtt_us;
            assert!(half.unwrap().min > 0.0, "{size}");
            assert!(
                burst(links(), None, size, 20).unwrap().seconds > 0.0,
                "{size}"
            );
        }
    }

    /// A lost frame ends the measurement with an error.
    #[test]
    fn loss_ends_it() {
        let [one, other] = links();
        let nowhere = other.local_addr();
        drop(other);
        let mut end = End::new(one, nowhere, None, 10);
        end.send().unwrap();
        assert!(matches!(end.receive_until(1), Err(LinkLimitError::Lost)));
    }
}
