//! A message copied into shared memory by one core and out of it by another: the lower limit for messages larger than a line.

use std::sync::Barrier;

use rtrb::{Consumer, Producer, RingBuffer};

use super::timing::{Clock, Timing, in_all, warm_up};
use super::{pin_to, relax};
use crate::ops::Sample;

/// Bytes in flight of a stream: a ring beyond the second-level cache is only slower.
const RING_BYTES: usize = 512 << 10;
/// Slots of a stream's ring, however small the messages.
const RING_SLOTS_MAX: usize = 1024;

/// Bytes that are copied at once. `memcpy` of more takes much longer on some processors where both lie badly, and would then be no limit. Where they lie
/// well it may take less, and a link that then copies at once may be ahead of this limit.
const PIECE_BYTES: usize = 1984;

/// A ring of so many messages of `bytes`. All its memory is touched here.
fn channel(messages: usize, bytes: usize) -> (Producer<u8>, Consumer<u8>) {
    let mut memory = vec![1_u8; messages * bytes];
    let (mut writer, mut reader) = RingBuffer::new(memory.len());
    let written = writer.push_entire_slice(&memory);
    let read = reader.pop_entire_slice(&mut memory);
    written.and(read).expect("the ring is as large");
    (writer, reader)
}

fn put(writer: &mut Producer<u8>, message: &[u8], cpus: Option<[usize; 2]>) {
    for piece in message.chunks(PIECE_BYTES) {
        while writer.push_entire_slice(piece).is_err() {
            relax(cpus);
        }
    }
}

fn take(reader: &mut Consumer<u8>, message: &mut [u8], cpus: Option<[usize; 2]>) {
    for piece in message.chunks_mut(PIECE_BYTES) {
        while reader.pop_entire_slice(piece).is_err() {
            relax(cpus);
        }
    }
    // The copy is never read; without this the compiler might leave it out.
    std::hint::black_box(message);
}

/// Half-round-trip of `size` bytes (1 at least), copied in and out each way.
pub fn pingpong(cpus: Option<[usize; 2]>, size: usize, iterations: u64) -> Sample {
    let size = size.max(1);
    let (mut questions, mut asked) = channel(2, size);
    let (mut answers, mut answered) = channel(2, size);
    let ready = &Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin_to(cpus, 1);
            let mut message = vec![1; size];
            ready.wait();
            for _ in 0..in_all(iterations) {
                take(&mut asked, &mut message, cpus);
                put(&mut answers, &message, cpus);
            }
        });
        let asker = scope.spawn(move || {
            pin_to(cpus, 0);
            let mut message = vec![1; size];
            ready.wait();
            let mut timing = Timing::new(iterations, None);
            while timing.begins() {
                put(&mut questions, &message, cpus);
                take(&mut answered, &mut message, cpus);
                timing.ends();
            }
            timing.sample()
        });
        asker.join().expect("the asking thread does not panic")
    })
}

/// `messages` of `size` bytes (1 at least) one way, copied in and out.
pub fn burst(cpus: Option<[usize; 2]>, size: usize, messages: u64) -> Sample {
    let size = size.max(1);
    let slots = (RING_BYTES / size).clamp(2, RING_SLOTS_MAX);
    let (mut writer, mut reader) = channel(slots, size);
    let ready = &Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(move || {
            pin_to(cpus, 0);
            let message = vec![1; size];
            let mut put_all = |messages: u64| {
                for _ in 0..messages {
                    put(&mut writer, &message, cpus);
                }
            };
            put_all(warm_up(messages));
            ready.wait();
            put_all(messages);
        });
        let counter = scope.spawn(move || {
            pin_to(cpus, 1);
            let mut message = vec![1; size];
            let mut take_all = |messages: u64| {
                for _ in 0..messages {
                    take(&mut reader, &mut message, cpus);
                }
            };
            take_all(warm_up(messages));
            ready.wait();
            let clock = Clock::start();
            take_all(messages);
            clock.stop()
        });
        counter.join().expect("the counting thread does not panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both measurements end, for sizes below a line and above a slot's share of the ring.
    #[test]
    fn messages_cross() {
        for size in [0, 8, 5000, 1 << 20] {
            assert!(pingpong(None, size, 20).half_rtt_us.unwrap().min > 0.0);
            assert!(burst(None, size, 20).seconds > 0.0);
        }
    }
}
