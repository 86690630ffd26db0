//! Tests of the casting ring in plain memory.

use std::sync::atomic::{AtomicU64, Ordering};

use super::*;

const RING_BYTES: usize = 16 << 10;

/// Words that any number of threads may touch.
struct Memory(Vec<AtomicU64>);

impl Memory {
    fn new() -> Self {
        let words = (RING_BYTES + margin_bytes(RING_BYTES)) / 8;
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }
}

impl CastRead for Memory {
    fn commit(&self, unit: usize) -> u64 {
        self.0[unit * UNIT_BYTES / 8].load(Ordering::Acquire)
    }

    fn copy(&self, at: usize, target: &mut [u8]) {
        for (place, byte) in (at..).zip(target) {
            *byte = self.0[place / 8].load(Ordering::Relaxed).to_ne_bytes()[place % 8];
        }
    }
}

impl CastWrite for Memory {
    fn publish(&self, unit: usize, word: u64) {
        self.0[unit * UNIT_BYTES / 8].store(word, Ordering::Release);
    }

    fn clear(&self, unit: usize) {
        self.0[unit * UNIT_BYTES / 8].store(0, Ordering::Relaxed);
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        assert_eq!(at % 8, 0);
        for (index, chunk) in bytes.chunks(8).enumerate() {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.0[at / 8 + index].store(u64::from_ne_bytes(word), Ordering::Relaxed);
        }
    }
}

fn head(sequence: u32, bytes: usize, total: u64) -> Head {
    Head {
        group: 7,
        sequence,
        code: 0x26,
        total,
        bytes,
    }
}

fn payload(sequence: u32, bytes: usize) -> Vec<u8> {
    (0..bytes)
        .map(|place| (place as u32 ^ sequence.wrapping_mul(31)) as u8)
        .collect()
}

/// Lengths of all kinds, from nothing to a whole piece.
fn length(sequence: u32) -> usize {
    [0, 1, 4, 8, 9, 31, 32, 33, 64, 500, piece_bytes(RING_BYTES)][sequence as usize % 11]
}

/// Records of all lengths come out as they went in, over many laps; a ring that is full refuses, and takes more once a quarter
/// was read.
#[test]
fn records_come_out_as_they_went_in() {
    let memory = Memory::new();
    let (mut writer, mut reader) = (Writer::new(RING_BYTES), Reader::new(RING_BYTES, 0));
    let (mut written, mut read) = (0_u32, 0_u32);
    while read < 20_000 {
        loop {
            let bytes = length(written);
            if !writer.fits(bytes) && !writer.freed(reader.position()) {
                break;
            }
            let total = if written.is_multiple_of(3) && bytes > 0 {
                1 << 30
            } else {
                bytes as u64
            };
            writer.write(
                &memory,
                &head(written, bytes, total),
                &payload(written, bytes),
            );
            written += 1;
        }
        assert!(written > read, "room for something at least");
        for _ in 0..1 + read % 200 {
            let Look::Record(found) = reader.look(&memory) else {
                assert_eq!((reader.look(&memory), read), (Look::Nothing, written));
                break;
            };
            let bytes = length(read);
            let total = if read.is_multiple_of(3) && bytes > 0 {
                1 << 30
            } else {
                bytes as u64
            };
            assert_eq!(found, head(read, bytes, total));
            let mut copy = vec![0; bytes];
            reader.copy(&memory, &found, &mut copy);
            assert_eq!(copy, payload(read, bytes));
            reader.advance(&found);
            read += 1;
        }
    }
}

/// Payloads that look like commit words are never taken for such.
#[test]
fn payloads_are_no_commit_words() {
    let memory = Memory::new();
    let (mut writer, mut reader) = (Writer::new(RING_BYTES), Reader::new(RING_BYTES, 0));
    for round in 0..5_000_u32 {
        let bytes = if round.is_multiple_of(2) { 992 } else { 8 };
        // What would stand there if a record began at each unit of this one, this lap or the next.
        let words: Vec<u8> = (0..bytes as u64 / 8)
            .flat_map(|word| {
                commit_word(reader.position() + (8 * word + 24) / 32 + 512, 8).to_ne_bytes()
            })
            .collect();
        assert!(writer.fits(bytes) || writer.freed(reader.position()));
        writer.write(&memory, &head(round, bytes, bytes as u64), &words);
        let Look::Record(found) = reader.look(&memory) else {
            panic!("round {round}")
        };
        assert_eq!(found.sequence, round);
        reader.advance(&found);
        assert_eq!(reader.look(&memory), Look::Nothing, "round {round}");
    }
}

/// Words of any kind at a reader's position are nothing, a record within bounds, or corrupt; nothing is read out of range.
#[test]
fn garbage_is_noticed() {
    let memory = Memory::new();
    let piece = piece_bytes(RING_BYTES) as u64;
    let reader = Reader::new(RING_BYTES, 3 * 512 + 511); // the last unit
    let place = 511 * 4;
    for (commit, what, total, corrupt) in [
        (1, 0, 0, true),
        (u64::MAX, 0, 0, true),
        (commit_word(reader.position() - 512, 8), 0, 0, true),
        (commit_word(reader.position(), 8), 0, 0, false),
        (commit_word(reader.position(), 0), 0, 0, false),
        (commit_word(reader.position(), piece as usize), 0, 0, false),
        (
            commit_word(reader.position(), piece as usize + 1),
            0,
            0,
            true,
        ),
        (commit_word(reader.position(), 8), PIECE, 8, true),
        (commit_word(reader.position(), 0), PIECE, 8, true),
        (
            commit_word(reader.position(), 8),
            PIECE | u64::MAX,
            u64::MAX,
            false,
        ),
    ] {
        for (offset, word) in [commit, 7, what, total].into_iter().enumerate() {
            memory.0[place + offset].store(word, Ordering::Relaxed);
        }
        let look = reader.look(&memory);
        assert_eq!(
            look == Look::Corrupt,
            corrupt,
            "{commit:x} {what:x} {total}"
        );
        if let Look::Record(found) = look {
            let mut copy = vec![0; found.bytes];
            reader.copy(&memory, &found, &mut copy);
        }
    }
}

/// One thread writes and three read at once: each gets all records, whole and in order.
#[test]
fn threads_read_what_one_writes() {
    const RECORDS: u32 = 30_000;
    let memory = Memory::new();
    let positions = [const { AtomicU64::new(0) }; 3];
    std::thread::scope(|scope| {
        for position in &positions {
            let memory = &memory;
            scope.spawn(move || {
                let mut reader = Reader::new(RING_BYTES, 0);
                for sequence in 0..RECORDS {
                    let found = loop {
                        match reader.look(memory) {
                            Look::Record(found) => break found,
                            Look::Nothing => std::thread::yield_now(),
                            Look::Corrupt => panic!("corrupt at {sequence}"),
                        }
                    };
                    let bytes = length(sequence);
                    assert_eq!(found, head(sequence, bytes, bytes as u64));
                    let mut copy = vec![0; bytes];
                    reader.copy(memory, &found, &mut copy);
                    assert_eq!(copy, payload(sequence, bytes));
                    reader.advance(&found);
                    position.store(reader.position(), Ordering::Release);
                }
            });
        }
        let mut writer = Writer::new(RING_BYTES);
        for sequence in 0..RECORDS {
            let bytes = length(sequence);
            while !writer.fits(bytes) {
                let least = positions
                    .iter()
                    .map(|one| one.load(Ordering::Acquire))
                    .min();
                if !writer.freed(least.unwrap_or(0)) {
                    std::thread::yield_now();
                }
            }
            writer.write(
                &memory,
                &head(sequence, bytes, bytes as u64),
                &payload(sequence, bytes),
            );
        }
    });
}
