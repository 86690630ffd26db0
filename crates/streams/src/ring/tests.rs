//! Rings against a naive model, and against a peer that writes anything.

use std::collections::VecDeque;

use super::*;

/// Numbers that look random and are the same each time.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

fn buffers(bytes: &mut [u8], cut: usize) -> [iovec; 2] {
    let (first, second) = bytes.split_at_mut(cut);
    [first, second].map(|part| iovec {
        iov_base: part.as_mut_ptr().cast(),
        iov_len: part.len(),
    })
}

/// What is read, peeked at and thrown away is what was written, in order, whatever the sizes; a ring holds its size and no more.
#[test]
fn rings_are_queues() {
    let memory = segment_for_tests();
    reset(memory.slot(3));
    let (writer, reader) = (memory.writer(3, CLIENT), memory.reader(3, SERVER));
    let mut numbers = Numbers(0x9e37_79b9_7f4a_7c15);
    let mut model: VecDeque<u8> = VecDeque::new();
    let mut scratch = vec![0u8; 3 << 19];
    for round in 0..6000 {
        // Long phases of small messages, where the ring is often empty, and of large ones.
        let limit = if round / 500 % 2 == 0 {
            3000
        } else {
            scratch.len()
        };
        let bytes = 1 + numbers.below(limit);
        if numbers.below(2) == 0 {
            let mut data: Vec<u8> = (0..bytes).map(|at| (at * 31 + round) as u8).collect();
            let cut = numbers.below(bytes);
            let skip = numbers.below(bytes);
            let room = writer.room().expect("a ring") as usize;
            assert_eq!(room, RING_BYTES as usize - model.len());
            let written = writer.write(&buffers(&mut data, cut), skip, usize::MAX);
            assert_eq!(written, Ok(room.min(bytes - skip)));
            model.extend(&data[skip..skip + room.min(bytes - skip)]);
        } else {
            let how = [
                Reading::Take,
                Reading::Take,
                Reading::Peek,
                Reading::Discard,
            ];
            let how = how[numbers.below(4)];
            let cut = numbers.below(bytes);
            scratch[..bytes].fill(0xee);
            let read = reader.read(&buffers(&mut scratch[..bytes], cut), 0, how);
            let expected = bytes.min(model.len());
            assert_eq!(read, Ok(expected), "{how:?}");
            if how != Reading::Discard {
                assert!(model.iter().take(expected).eq(&scratch[..expected]));
            }
            if how != Reading::Peek {
                model.drain(..expected);
            }
        }
        assert_eq!(reader.unread(), Ok(model.len() as u64));
    }
}

/// Pieces that are written and read in place are those that are copied.
#[test]
fn places_are_of_the_ring() {
    let memory = segment_for_tests();
    reset(memory.slot(0));
    let (writer, reader) = (memory.writer(0, SERVER), memory.reader(0, CLIENT));
    let mut out = [0u8; 64];
    for round in 0..40_000u32 {
        let text = round.to_le_bytes();
        let filled = writer.write_with(1000, |place, bytes| {
            let most = bytes.min(4);
            let part = iovec {
                iov_base: place.cast(),
                iov_len: most,
            };
            Ok::<_, ()>(scatter(&text[..most], &[part], 0))
        });
        let written = filled.expect("a ring").expect("no error");
        if written < 4 {
            let mut copy = text;
            let rest = &mut copy[written..];
            let cut = rest.len();
            assert_eq!(writer.write(&buffers(rest, cut), 0, 64), Ok(4 - written));
        }
        let mut taken = 0;
        while taken < 4 {
            let step = reader.read_with(4 - taken, |place, bytes| {
                let mut part = [iovec {
                    iov_base: out.as_mut_ptr().wrapping_add(taken).cast(),
                    iov_len: bytes,
                }];
                part[0].iov_len = bytes;
                let from = iovec {
                    iov_base: place.cast(),
                    iov_len: bytes,
                };
                Ok::<_, ()>(copy(&from, &part[0]))
            });
            taken += step.expect("a ring").expect("no error");
        }
        assert_eq!(out[..4], text, "round {round}");
    }
}

/// Positions that cannot be are found, and whatever the words say, nothing outside of the ring is read or written.
#[test]
fn a_hostile_peer_is_found() {
    let memory = segment_for_tests();
    let mut numbers = Numbers(77);
    let mut found = 0;
    for _ in 0..20_000 {
        let slot = memory.slot(SLOTS - 1);
        reset(slot);
        let out = &slot.ends[CLIENT].out;
        let inn = &slot.ends[SERVER].inn;
        let extreme = [
            0,
            1,
            RING_BYTES,
            RING_BYTES + 1,
            u64::MAX,
            u64::MAX - RING_BYTES,
            1 << 63,
        ];
        let mut any = || match numbers.below(3) {
            0 => numbers.next(),
            1 => extreme[numbers.below(extreme.len())],
            _ => numbers.next() % (4 * RING_BYTES),
        };
        out.tail.store(any(), Ordering::Relaxed);
        out.skip_from.store(any(), Ordering::Relaxed);
        inn.head.store(any(), Ordering::Relaxed);
        let (writer, reader) = (
            memory.writer(SLOTS - 1, CLIENT),
            memory.reader(SLOTS - 1, SERVER),
        );
        let mut bytes = vec![1u8; 2000];
        let parts = buffers(&mut bytes, 700);
        let results = [
            reader.unread().is_err(),
            writer.write(&parts, 3, usize::MAX).is_err(),
            reader.read(&parts, 0, Reading::Peek).is_err(),
            reader.read(&parts, 1, Reading::Take).is_err(),
        ];
        found += usize::from(results[0]);
        let _ = writer.replay(|part| {
            assert!(part.len() <= RING_BYTES as usize);
            Ok::<_, ()>(())
        });
    }
    assert!(found > 1000, "{found}");
}

/// Readings while others write and read show no broken ring.
#[test]
fn readings_from_outside_are_whole() {
    let memory = segment_for_tests();
    reset(memory.slot(0));
    let (writer, reader) = (memory.writer(0, CLIENT), memory.reader(0, SERVER));
    let is_over = std::sync::atomic::AtomicU32::new(0);
    std::thread::scope(|scope| {
        let observer = scope.spawn(|| {
            let (writer, reader) = (memory.writer(0, CLIENT), memory.reader(0, SERVER));
            let mut found = 0;
            while is_over.load(Ordering::Relaxed) == 0 {
                found += u32::from(reader.unread().is_err() || writer.room().is_err());
            }
            found
        });
        let mut room = vec![0; 300_000];
        for _ in 0..20_000 {
            // Each time at the ring's beginning again.
            assert_eq!(writer.write_bytes(&[7; 17_000]), Ok(17_000));
            assert_eq!(reader.read_bytes(&mut room, Reading::Take), Ok(17_000));
        }
        is_over.store(1, Ordering::Relaxed);
        assert_eq!(observer.join().expect("no panic"), 0);
    });
}

/// A process that leaves a slot which was reset under it counts nobody down, and is not the last.
#[test]
fn counts_end_at_zero() {
    let memory = segment_for_tests();
    let slot = memory.slot(1);
    let own = &slot.ends[SERVER].own;
    reset(slot);
    own.processes.fetch_add(2, Ordering::Relaxed);
    assert!(!own.leave());
    assert!(own.leave());
    assert!(!own.leave());
    assert_ne!(own.processes.load(Ordering::Relaxed), 0, "last words");
    own.left();
    assert_eq!(own.processes.load(Ordering::Relaxed), 0);
    own.processes.fetch_add(1, Ordering::Relaxed);
    reset(slot);
    assert!(!own.leave());
    assert_eq!(own.processes.load(Ordering::Relaxed), 0);
}
