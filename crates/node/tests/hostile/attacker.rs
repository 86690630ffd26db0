//! The one attacker of all links: it has no key, is no member, and sends whatever helps it.
//!
//! It makes frames and says in whose name they go; how they get there, and what it hears, is the link's business (`wiretap`,
//! `in_the_memory`). Seeded; what it remembers is bounded.
//!
//! On a link without key it is blind: it does not use the sessions, lives and nonces that it could read on the wire. Who uses
//! them can speak for a member there, as `docs/security.md` says. Against sealed links it uses all that it hears.

use std::collections::VecDeque;

use fastrand::Rng;
use tsumuji_link::checked::{self, CHECK_BYTES};
use tsumuji_node::{Channel, NodeId};
use tsumuji_wire::{Ack, Control, Data, Datagram, Hello};

/// Nodes of the cluster: two honest ones and a liar (`liar`).
pub(crate) const NODES: usize = 3;
/// The address that a frame bears which does not pretend to come from a node.
pub(crate) const ATTACKER: usize = NODES;
/// What was heard and may be sent again.
const TAPE_FRAMES: usize = 2000;
/// Longer frames than any link here has are cut by the way to it.
const FRAME_BYTES_MAX: usize = 1400;

/// A frame on its way.
#[derive(Debug, Clone)]
pub(crate) struct Sent {
    /// The address that it bears.
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) frame: Vec<u8>,
}

/// What it does, and how often it did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Act {
    Noise,
    Mutation,
    Replay,
    /// What one was sent, to another, or in another's name.
    Reflection,
    ForgedGrant,
    ForgedLengths,
    ForgedHello,
    ForgedEnd,
    ForgedShare,
    /// Sealed frames and handshakes made of noise behind a legal header.
    ForgedSeal,
}

pub(crate) const ACTS: [Act; 10] = [
    Act::Noise,
    Act::Mutation,
    Act::Replay,
    Act::Reflection,
    Act::ForgedGrant,
    Act::ForgedLengths,
    Act::ForgedHello,
    Act::ForgedEnd,
    Act::ForgedShare,
    Act::ForgedSeal,
];

/// Version 1, and a kind that no rule names.
const UNKNOWN_KIND: u8 = 0x1f;

pub(crate) struct Attacker {
    pub(crate) dice: Rng,
    sealed: bool,
    /// Frames bear a checksum, which anybody can compute.
    pub(crate) checked: bool,
    tape: VecDeque<Sent>,
    /// The first frames it ever heard: of lives that have ended since.
    old: Vec<Sent>,
    pub(crate) done: [u64; ACTS.len()],
}

impl Attacker {
    pub(crate) fn new(seed: u64, sealed: bool) -> Self {
        Self {
            dice: Rng::with_seed(seed),
            sealed,
            checked: false,
            tape: VecDeque::new(),
            old: Vec::new(),
            done: [0; ACTS.len()],
        }
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.dice.fill(&mut bytes);
        bytes
    }

    /// It heard this.
    pub(crate) fn hear(&mut self, mut sent: Sent) {
        if self.checked {
            let Ok(frame) = checked::open(&sent.frame) else {
                return;
            };
            sent.frame = frame.to_vec();
        }
        if self.old.len() < TAPE_FRAMES {
            self.old.push(sent.clone());
        }
        if self.tape.len() == TAPE_FRAMES {
            self.tape.pop_front();
        }
        self.tape.push_back(sent);
    }

    fn heard(&mut self) -> Option<Sent> {
        let at = |dice: &mut Rng, len: usize| (len > 0).then(|| dice.usize(..len));
        if self.dice.u8(..3) == 0 {
            at(&mut self.dice, self.old.len()).map(|at| self.old[at].clone())
        } else {
            at(&mut self.dice, self.tape.len()).map(|at| self.tape[at].clone())
        }
    }

    /// The next frame of its own.
    pub(crate) fn act(&mut self) -> Sent {
        let at = self.dice.usize(..ACTS.len());
        let made = self.make(ACTS[at]);
        let (at, mut sent) = match made {
            Some(sent) => (at, sent),
            // Nothing was heard yet.
            None => (0, self.noise()),
        };
        self.done[at] += 1;
        sent.frame.truncate(FRAME_BYTES_MAX);
        if !self.sealed && ACTS[at] != Act::Replay {
            self.blind(&mut sent.frame);
        }
        // Now and then it forgets the checksum, so that frames are refused for the want of it, too.
        if self.checked && self.dice.u8(..16) != 0 {
            let bytes = sent.frame.len();
            sent.frame.splice(..0, [0; CHECK_BYTES]);
            checked::close(&mut sent.frame, bytes);
        }
        sent
    }

    fn make(&mut self, act: Act) -> Option<Sent> {
        let (from, to) = (self.dice.usize(..=NODES), self.dice.usize(..2));
        let source = NodeId(self.dice.u16(..=NODES as u16));
        // Mostly in the name of whom the address is of, so that what lies behind that check is tried, too.
        let source = if self.dice.u8(..4) == 0 {
            source
        } else {
            NodeId(from as u16)
        };
        let destination = NodeId(to as u16);
        let (session, number) = (self.dice.u32(..), self.extreme());
        let write = |write: &dyn Fn(&mut [u8]) -> Option<usize>| {
            let mut slot = [0; FRAME_BYTES_MAX];
            let bytes = write(&mut slot)?;
            Some(Sent {
                from,
                to,
                frame: slot[..bytes].to_vec(),
            })
        };
        match act {
            Act::Noise => Some(self.noise()),
            Act::Mutation => self.mutation(),
            Act::Replay => self.heard(),
            Act::Reflection => {
                let mut sent = self.heard()?;
                if self.dice.bool() {
                    (sent.from, sent.to) = (sent.to, sent.from.min(1));
                } else {
                    (sent.from, sent.to) = (from, to);
                }
                Some(sent)
            }
            Act::ForgedGrant => {
                let bitmap = self.bytes(64);
                let ack = Ack {
                    source,
                    destination,
                    flags: self.dice.u8(..) & 9,
                    session,
                    ack: number,
                    credit: u32::MAX,
                    window_kib: u32::MAX,
                    ack_delay_us: self.extreme(),
                    bitmap: &bitmap,
                };
                write(&|slot| ack.write(slot))
            }
            Act::ForgedLengths => {
                let payload = self.bytes(200);
                let data = Data {
                    source,
                    destination,
                    flags: 3,
                    session,
                    number,
                    ack: self.extreme(),
                    credit: self.extreme(),
                    message: self.extreme(),
                    offset: 0,
                    length: u32::MAX,
                    floor_delta: self.extreme() as u16,
                    channel: Channel::from_number(self.dice.u32(..0xc_0000)).expect("a class"),
                    ack_delay: 255,
                    payload: &payload,
                };
                write(&|slot| data.write(slot))
            }
            Act::ForgedHello => {
                let hello = Hello {
                    flags: self.dice.u8(..) & 0x7f,
                    source,
                    destination,
                    incarnation: self.dice.u32(..) | 1,
                    pairing: self.extreme(),
                    nonce: self.dice.u32(..),
                    frame_bytes: self.extreme(),
                    credit: self.extreme(),
                    message_limit: self.extreme(),
                    taken: self.extreme(),
                };
                if self.dice.u8(..4) == 0 {
                    write(&|slot| hello.write_welcome(slot))
                } else {
                    write(&|slot| hello.write_hello(slot))
                }
            }
            Act::ForgedEnd => {
                let control = Control {
                    source,
                    destination,
                    session,
                };
                let close = Ack {
                    source,
                    destination,
                    flags: 0,
                    session,
                    ack: self.extreme(),
                    credit: self.extreme(),
                    window_kib: 0,
                    ack_delay_us: 0,
                    bitmap: &[0xff; 8],
                };
                if self.dice.bool() {
                    write(&|slot| close.write_close(slot))
                } else {
                    write(&|slot| control.write_reset(slot))
                }
            }
            Act::ForgedShare => {
                let datagram = Datagram {
                    source,
                    incarnation: session,
                    channel_id: self.extreme() as u16,
                    epoch: self.extreme(),
                    lap: self.extreme(),
                    key: self.extreme(),
                    payload: &[0xee; 64],
                };
                write(&|slot| datagram.write(slot))
            }
            Act::ForgedSeal => Some(Sent {
                from,
                to,
                frame: self.forged_seal(),
            }),
        }
    }

    /// Numbers at which arithmetic breaks.
    fn extreme(&mut self) -> u32 {
        match self.dice.usize(..6) {
            0 => 0,
            1 => 1,
            2 => u32::MAX,
            3 => 1 << 31,
            4 => self.dice.u32(..1000),
            _ => self.dice.u32(..),
        }
    }

    fn noise(&mut self) -> Sent {
        let longest = [64, 1400][self.dice.usize(..2)];
        let bytes = 1 + self.dice.usize(..longest);
        let mut frame = self.bytes(bytes);
        if self.dice.bool() {
            frame[0] = 0x10 | self.dice.u8(..16); // version 1 and a kind
        }
        Sent {
            from: self.dice.usize(..=NODES),
            to: self.dice.usize(..2),
            frame,
        }
    }

    fn mutation(&mut self) -> Option<Sent> {
        let mut sent = self.heard()?;
        let frame = &mut sent.frame;
        match self.dice.usize(..4) {
            0 => frame.truncate(1 + self.dice.usize(..frame.len())),
            1 => frame.extend(self.bytes(40)),
            // In a member's name, for what is not is dropped before its kind is looked at.
            2 if self.dice.u8(..4) == 0 => {
                frame[0] = UNKNOWN_KIND;
                return Some(sent);
            }
            _ => {}
        }
        for _ in 0..=self.dice.usize(..3) {
            // Mostly the header.
            let reach = if self.dice.u8(..3) == 0 {
                usize::MAX
            } else {
                40
            };
            let at = self.dice.usize(..frame.len().min(reach));
            frame[at] = match self.dice.usize(..4) {
                0 => 0,
                1 => 255,
                2 => frame[at] ^ 1 << self.dice.usize(..8),
                _ => self.dice.u8(..),
            };
        }
        if self.dice.u8(..4) == 0 {
            sent.from = ATTACKER;
        }
        Some(sent)
    }

    fn forged_seal(&mut self) -> Vec<u8> {
        if self.dice.bool() {
            let inner = 1 + self.dice.usize(..1000);
            let mut frame = self.bytes(32 + inner);
            frame[0] = 0x17;
            frame[1] = self.dice.u8(..5);
            frame[2..4].copy_from_slice(&(inner as u16).to_le_bytes());
            // Key ids count up from small numbers where many are tried.
            if self.dice.bool() {
                frame[6..8].fill(0);
            }
            return frame;
        }
        let step = self.dice.usize(..4);
        let body = [40, 40, 92, 60][step];
        let mut frame = self.bytes(16 + body + 32);
        frame[..8].copy_from_slice(&[0x18, 0, body as u8, 0, step as u8, 0, 0, 0]);
        // The name of the key is no secret.
        let known = self
            .tape
            .iter()
            .find(|sent| sent.frame.first() == Some(&0x18));
        if let Some(heard) = known.filter(|sent| sent.frame.len() > 16) {
            frame[1] = heard.frame[1];
            frame[8..16].copy_from_slice(&heard.frame[8..16]);
        }
        frame
    }

    /// What it must not know on a link without key becomes a guess.
    fn blind(&mut self, frame: &mut [u8]) {
        let secrets: &[usize] = match frame.first() {
            Some(0x10..=0x12 | 0x15 | 0x16) => &[8],
            Some(0x13 | 0x14) => &[8, 16],
            _ => &[],
        };
        for at in secrets {
            if let Some(secret) = frame.get_mut(*at..at + 4) {
                secret.copy_from_slice(&self.dice.u32(..).to_le_bytes());
            }
        }
    }
}
