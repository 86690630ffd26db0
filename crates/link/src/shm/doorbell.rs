//! Doorbells: how a sender wakes a receiver that sleeps, at no cost while it does not.
//!
//! One word per node, in memory that all may write: a sequence number that the owner raises with each sleep, and a state in the two lowest bits.
//! Generic over the word, so that loom can check the handshake. `sys::bell` makes the system calls.
//!
//! The handshake. A sleeper stores *asleep* under a new sequence number, a full fence, and **then** checks all rings again; only if they are empty
//! does it sleep. A sender publishes its record, a full fence, and **then** loads the word. Of the two fences one comes first: if the sleeper's, the
//! sender sees *asleep* (or later) and rings; if the sender's, the sleeper's check finds the record. No wake-up is lost between live processes. Where
//! the kernel can run a fence in all processes (`membarrier`), the sleeper asks for both fences, and senders pay for none: their own would wait until
//! the record has left for the receiver's cache.
//!
//! Futex: the sender turns *asleep* into *ringing* by compare-and-swap and calls `FUTEX_WAKE`. The sleeper waits for as long as the word is *asleep*:
//! if it was rung before it calls the wait, the wait returns at once. A sender that finds *ringing* calls `FUTEX_WAKE` too unless it has done so for
//! this very word: so a sender killed between its two steps delays no frames of others. Only a frame whose own sender was killed before its `flush`
//! ended may wait for the sleeper's time-out.
//!
//! Descriptor: the sender sends one byte to the owner's socket and changes nothing; it remembers the word, so one sleep costs
//! each sender at most one byte. The owner empties the socket before it stores *asleep*, so a byte for this sleep stays. A full
//! socket is readable already.
//!
//! A word overwritten with garbage costs its owner spurious or missed wake-ups, nothing else: sleeps have time-outs.

const STATE_MASK: u32 = 3;
const AWAKE: u32 = 0;
const ASLEEP: u32 = 1;
const RINGING: u32 = 2;
const ASLEEP_ON_FD: u32 = 3;
const SEQUENCE_STEP: u32 = 4;
/// Compare-and-swaps before the sender rings in any case: only a word that changes all the time needs so many.
const RING_TRIES_MAX: usize = 8;

/// The word of one node.
pub(crate) trait BellWord {
    /// Acquire.
    fn load(&self) -> u32;
    /// Release.
    fn store(&self, word: u32);
    /// Compare-and-swap; `Err`: the word found instead.
    fn swap_if(&self, from: u32, to: u32) -> Result<(), u32>;
}

/// How the owner of a word sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Doze {
    /// In a futex wait.
    Futex,
    /// In an epoll loop of the program that watches our socket.
    Fd,
}

/// The owner's half.
#[derive(Debug)]
pub(crate) struct Sleeper {
    word: u32,
}

impl Sleeper {
    /// Takes over the word as an earlier generation left it.
    pub(crate) fn new(bell: &impl BellWord) -> Self {
        let word = (bell.load() & !STATE_MASK).wrapping_add(SEQUENCE_STEP) | AWAKE;
        bell.store(word);
        Self { word }
    }

    /// Announces a sleep; returns the word to sleep on. The caller then makes a full fence and checks all rings.
    pub(crate) fn doze(&mut self, bell: &impl BellWord, how: Doze) -> u32 {
        let state = match how {
            Doze::Futex => ASLEEP,
            Doze::Fd => ASLEEP_ON_FD,
        };
        self.word = (self.word & !STATE_MASK).wrapping_add(SEQUENCE_STEP) | state;
        bell.store(self.word);
        self.word
    }

    /// Announces that the owner is awake.
    pub(crate) fn wake(&mut self, bell: &impl BellWord) {
        self.word = self.word & !STATE_MASK | AWAKE;
        bell.store(self.word);
    }
}

/// What a sender has to do after it sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ring {
    /// Nothing: the receiver is awake, or this sender rang already.
    Nobody,
    /// `FUTEX_WAKE` on the word.
    Futex,
    /// Send a byte to its socket.
    Fd,
}

/// Decides by a peer's word, after a full fence, whether to ring. `rung` is the word that this sender rang last.
#[inline]
pub(crate) fn ring(bell: &impl BellWord, rung: &mut u32) -> Ring {
    let word = bell.load();
    if word & STATE_MASK == AWAKE {
        return Ring::Nobody;
    }
    ring_sleeper(bell, word, rung)
}

#[cold]
fn ring_sleeper(bell: &impl BellWord, mut word: u32, rung: &mut u32) -> Ring {
    for _ in 0..RING_TRIES_MAX {
        if word == *rung {
            return Ring::Nobody;
        }
        match word & STATE_MASK {
            AWAKE => return Ring::Nobody,
            ASLEEP => {
                let ringing = word & !STATE_MASK | RINGING;
                match bell.swap_if(word, ringing) {
                    Ok(()) => {
                        *rung = ringing;
                        return Ring::Futex;
                    }
                    Err(now) => word = now,
                }
            }
            RINGING => {
                *rung = word;
                return Ring::Futex;
            }
            _ => {
                *rung = word;
                return Ring::Fd;
            }
        }
    }
    Ring::Futex
}
