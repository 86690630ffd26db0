//! All interleavings and all permitted reorderings of the rings and the doorbell of shared memory, by loom.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p tsumuji-link --test loom_ring --release`
//!
//! The sources under test are included as they are; only the memory below them is loom's.
#![cfg(loom)]
#![allow(unsafe_code)] // Looks through loom's cells, which report every access that is not ordered.

#[allow(dead_code)]
#[path = "../src/shm/broadcast.rs"]
mod broadcast;
#[allow(dead_code)]
#[path = "../src/shm/doorbell.rs"]
mod doorbell;
#[allow(dead_code)]
#[path = "../src/shm/ring.rs"]
mod ring;
#[allow(dead_code)]
#[path = "../src/tuning.rs"]
mod tuning;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

use broadcast::{BroadcastRead, BroadcastWrite, Heard, Reader, Writer};
use doorbell::{BellWord, Doze, Ring, Sleeper};
use ring::{Consumer, LINE_BYTES, Producer, Received, RingRead, RingWrite, Sent};

/// Switches of threads at other places than waits, per execution. More find nothing more in algorithms of this size and take hours.
const PREEMPTIONS: usize = 3;

fn model(preemptions: usize, f: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

const LINES: usize = 8;
const MARGIN_LINES: usize = 2;
/// Two lines with the commit word.
const FRAME_BYTES: usize = 72;

/// A line's bytes, and its first word, which is an atomic too.
struct Memory {
    words: Vec<AtomicU64>,
    cells: Vec<UnsafeCell<[u8; LINE_BYTES]>>,
    head: AtomicU64,
}

// SAFETY: loom itself checks each access of the cells for races; that is the test.
unsafe impl Sync for Memory {}
// SAFETY: holds no thread's own data.
unsafe impl Send for Memory {}

impl Memory {
    fn new() -> Self {
        Self {
            words: (0..LINES).map(|_| AtomicU64::new(0)).collect(),
            cells: (0..LINES + MARGIN_LINES)
                .map(|_| UnsafeCell::new([0; LINE_BYTES]))
                .collect(),
            head: AtomicU64::new(0),
        }
    }
}

impl RingRead for Memory {
    fn commit(&self, line: usize) -> u64 {
        self.words[line].load(Ordering::Acquire)
    }

    fn copy(&self, line: usize, from: usize, into: &mut [u8]) {
        let mut buffer = Vec::new();
        for cell in &self.cells[line..line + (8 + from + into.len()).div_ceil(LINE_BYTES)] {
            // SAFETY: loom panics if this read is not ordered after the last write.
            cell.with(|at| buffer.extend_from_slice(unsafe { &*at }));
        }
        into.copy_from_slice(&buffer[8 + from..8 + from + into.len()]);
    }
}

impl RingWrite for Memory {
    fn publish(&self, line: usize, word: u64) {
        self.words[line].store(word, Ordering::Release);
    }

    fn clear(&self, line: usize) {
        self.words[line].store(0, Ordering::Relaxed);
    }

    fn published(&self, line: usize) -> u64 {
        self.words[line].load(Ordering::Relaxed)
    }

    fn back(&self, _: std::ops::Range<usize>) {}

    unsafe fn write<R>(&self, line: usize, bytes: usize, f: impl FnOnce(&mut [u8]) -> R) -> R {
        let lines = (8 + bytes).div_ceil(LINE_BYTES);
        let mut buffer = vec![0xEE; lines * LINE_BYTES];
        let result = f(&mut buffer[8..8 + bytes]);
        for (index, chunk) in buffer.chunks(LINE_BYTES).enumerate() {
            // SAFETY: loom panics if this write is not ordered after the last read.
            self.cells[line + index].with_mut(|at| unsafe { (*at).copy_from_slice(chunk) });
            // A payload lies over the commit words of all lines but the first.
            if index > 0 && line + index < LINES {
                let word = u64::from_le_bytes(chunk[..8].try_into().unwrap());
                self.words[line + index].store(word, Ordering::Relaxed);
            }
        }
        result
    }
}

fn frame(number: u8) -> Vec<u8> {
    let bytes = if number % 2 == 0 { 72 } else { 5 };
    vec![number + 1; bytes]
}

/// Every frame arrives once, whole and in order, while the ring wraps, and no byte is touched by both sides at once.
#[test]
fn ring_hands_over() {
    const FRAMES: u8 = 6;
    model(PREEMPTIONS, || {
        let memory = Arc::new(Memory::new());
        let theirs = Arc::clone(&memory);
        let consumer = thread::spawn(move || {
            let mut consumer = Consumer::new(LINES as u64, FRAME_BYTES, 0);
            let mut number = 0;
            while number < FRAMES {
                let received = consumer.receive(&*theirs, |record| {
                    let mut bytes = vec![0; record.bytes];
                    record.copy(0, &mut bytes);
                    assert_eq!(bytes, frame(number));
                    true
                });
                let idle = match received {
                    Received::Frame(_) => {
                        number += 1;
                        false
                    }
                    Received::Empty => true,
                    Received::Corrupt => panic!("took a payload for a commit word"),
                };
                if let Some(head) = consumer.head_to_publish(idle) {
                    theirs.head.store(head, Ordering::Release);
                } else if idle {
                    thread::yield_now();
                }
            }
        });
        let mut producer = Producer::new(LINES as u64, FRAME_BYTES);
        for number in 0..FRAMES {
            loop {
                let frame = frame(number);
                let head = || Some(memory.head.load(Ordering::Acquire));
                let sent = if number % 3 == 0 {
                    producer.send(&*memory, head, 0, &[&frame, &[], &[]])
                } else {
                    let (front, back) = frame.split_at(frame.len() / 2);
                    producer.send(&*memory, head, ring::COUNTED, &[front, &[], back])
                };
                match sent {
                    Sent::Frame(_) => break,
                    Sent::Full => thread::yield_now(),
                    other => panic!("{other:?}"),
                }
            }
            if number == 1 {
                producer.warm(&*memory);
            }
        }
        consumer.join().unwrap();
    });
}

struct Words {
    words: Vec<AtomicU64>,
    tail: AtomicU64,
    newest: AtomicU64,
    reserve: AtomicU64,
}

impl BroadcastRead for Words {
    fn word(&self, index: usize) -> u64 {
        self.words[index].load(Ordering::Relaxed)
    }

    fn tail(&self) -> u64 {
        self.tail.load(Ordering::Acquire)
    }

    fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    fn fenced_reserve(&self) -> u64 {
        fence(Ordering::Acquire);
        self.reserve.load(Ordering::Acquire)
    }
}

impl BroadcastWrite for Words {
    fn set_word(&self, index: usize, word: u64) {
        self.words[index].store(word, Ordering::Relaxed);
    }

    fn reserve(&self, end: u64) {
        self.reserve.store(end, Ordering::Release);
        fence(Ordering::Release);
    }

    fn finish(&self, start: u64, end: u64) {
        self.tail.store(end, Ordering::Release);
        self.newest.store(start, Ordering::Release);
    }
}

/// A reader that is overwritten while it reads never hands over a torn frame, and counts exactly what it missed.
#[test]
fn broadcast_is_never_torn() {
    const FRAMES: u64 = 3;
    model(2, || {
        let memory = Arc::new(Words {
            words: (0..4).map(|_| AtomicU64::new(0)).collect(),
            tail: AtomicU64::new(0),
            newest: AtomicU64::new(0),
            reserve: AtomicU64::new(0),
        });
        let theirs = Arc::clone(&memory);
        let writer = thread::spawn(move || {
            let mut writer = Writer::new(4);
            for number in 0..FRAMES {
                writer.send(&*theirs, &[number as u8; 8]);
            }
        });
        let mut reader = Reader::new(4, 8, (0, 0));
        let mut next = 0;
        let mut hear = || {
            let mut scratch = [0; 8];
            match reader.receive(&*memory, &mut scratch) {
                Heard::Frame { bytes, missed } => {
                    next += missed;
                    assert_eq!((bytes, scratch), (8, [next as u8; 8]));
                    next += 1;
                }
                Heard::Nothing => {}
                Heard::Corrupt => panic!("torn words were believed"),
            }
            next
        };
        hear();
        hear();
        writer.join().unwrap();
        // Nothing moves any more: the newest frame must come.
        while hear() < FRAMES {}
    });
}

/// A bell with the kernel's half: waits and wakes, and a socket with its bytes.
struct Bell {
    word: AtomicU32,
    /// Bytes in the socket. The lock stands for the kernel's own, under which it compares the word and queues the sleeper.
    kernel: Mutex<u32>,
    wake: Condvar,
    records: [AtomicU32; 2],
}

impl BellWord for Bell {
    fn load(&self) -> u32 {
        self.word.load(Ordering::Acquire)
    }

    fn store(&self, word: u32) {
        self.word.store(word, Ordering::Release);
    }

    fn swap_if(&self, from: u32, to: u32) -> Result<(), u32> {
        self.word
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}

impl Bell {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            word: AtomicU32::new(0),
            kernel: Mutex::new(0),
            wake: Condvar::new(),
            records: [AtomicU32::new(0), AtomicU32::new(0)],
        })
    }

    fn has(&self, record: usize) -> bool {
        self.records[record].load(Ordering::Acquire) != 0
    }

    /// A sender's send and flush; `dies`: killed before the system call.
    fn send(&self, record: usize, rung: &mut u32, dies: bool) {
        self.records[record].store(1, Ordering::Release);
        fence(Ordering::SeqCst);
        let ring = doorbell::ring(self, rung);
        if dies {
            return;
        }
        match ring {
            Ring::Nobody => {}
            Ring::Futex => {
                let _kernel = self.kernel.lock().unwrap();
                self.wake.notify_one();
            }
            Ring::Fd => {
                *self.kernel.lock().unwrap() += 1;
                self.wake.notify_one();
            }
        }
    }

    /// `wait`, until the wanted records are there. Loom reports a sleep that nobody ends as a deadlock.
    fn sleep_until(&self, wanted: &[usize]) {
        let mut sleeper = Sleeper::new(self);
        loop {
            let known = [self.has(0), self.has(1)];
            if wanted.iter().all(|&record| known[record]) {
                return;
            }
            let word = sleeper.doze(self, Doze::Futex);
            fence(Ordering::SeqCst);
            if [self.has(0), self.has(1)] == known {
                let mut kernel = self.kernel.lock().unwrap();
                if self.load() == word {
                    kernel = self.wake.wait(kernel).unwrap();
                }
                drop(kernel);
            }
            sleeper.wake(self);
        }
    }

    /// `arm_fd` and somebody's poll.
    fn poll_until(&self, wanted: &[usize]) {
        let mut sleeper = Sleeper::new(self);
        loop {
            let known = [self.has(0), self.has(1)];
            if wanted.iter().all(|&record| known[record]) {
                return;
            }
            *self.kernel.lock().unwrap() = 0;
            sleeper.doze(self, Doze::Fd);
            fence(Ordering::SeqCst);
            if [self.has(0), self.has(1)] == known {
                let mut kernel = self.kernel.lock().unwrap();
                while *kernel == 0 {
                    kernel = self.wake.wait(kernel).unwrap();
                }
            }
            sleeper.wake(self);
        }
    }
}

/// A sleeper always wakes for the records of one sender that sends twice.
#[test]
fn doorbell_loses_no_wake_of_one_sender() {
    model(PREEMPTIONS, || {
        let bell = Bell::new();
        let theirs = Arc::clone(&bell);
        let sender = thread::spawn(move || {
            let mut rung = 0;
            theirs.send(0, &mut rung, false);
            theirs.send(1, &mut rung, false);
        });
        bell.sleep_until(&[0, 1]);
        sender.join().unwrap();
    });
}

/// Nor of two senders, nor if one of them is killed between its compare-and-swap and its system call.
#[test]
fn doorbell_loses_no_wake_beside_a_dying_sender() {
    for dies in [false, true] {
        model(2, move || {
            let bell = Bell::new();
            let senders = [0, 1].map(|record| {
                let theirs = Arc::clone(&bell);
                thread::spawn(move || theirs.send(record, &mut 0, dies && record == 0))
            });
            bell.sleep_until(if dies { &[1] } else { &[0, 1] });
            for sender in senders {
                sender.join().unwrap();
            }
        });
    }
}

/// The same through a descriptor, one sender sending twice.
#[test]
fn doorbell_loses_no_wake_through_a_descriptor() {
    model(PREEMPTIONS, || {
        let bell = Bell::new();
        let theirs = Arc::clone(&bell);
        let sender = thread::spawn(move || {
            let mut rung = 0;
            theirs.send(0, &mut rung, false);
            theirs.send(1, &mut rung, false);
        });
        bell.poll_until(&[0, 1]);
        sender.join().unwrap();
    });
}
