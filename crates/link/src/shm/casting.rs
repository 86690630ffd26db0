//! Casting: one process writes a record once, the members of a group read it where it lies. For collective operations.
//!
//! Each life has `CASTS` casting rings (`cast`). One is given to a group when its owner first casts to it, and to another one
//! when all members have read everything in it. Who reads finds the ring by the group's number in the owner's *bindings*, and
//! tells in its own region how far it has come, so every word has one writer.
//!
//! Called through [`Cast`], which `Link::cast` lends. What groups, sequence numbers and codes mean is the caller's.
//!
//! Invariants:
//! 1. The owner overwrites nothing that a member of the bound group, of the life it had at binding, has not read, unless the
//!    caller said that this life is gone, or abandoned the group.
//! 2. A binding's group is zeroed before its ring is given away, and that before anything is written for the next group. So
//!    a reader that finds its binding unchanged after it copied has copied what was meant for it.
//! 3. How far a reader has come names the binding's generation: words of an earlier binding count as nothing read.
//! 4. A sleeper announces itself, makes all others pass a fence, and looks once more (`Shm::doze`); a writer publishes and then
//!    looks at the bells. So no wake-up is lost, and writers need no fence of their own, which would wait for each record to
//!    reach the other cache.
//!
//! Left out on purpose: who is a member, what may follow what, and what to do about the dead (`crates/collective`).

use std::sync::Arc;

use super::Shm;
use super::cast::{self, Head, Look, Reader, Writer};
use super::doorbell::{self, Ring};
use super::layout::{CASTS, Layout};
use super::peers::{Inbound, Peer};
use super::sys::{self, BellSocket, CastRo, CastRw, Map, RowRw};

/// Of a word that tells a position: these bits; above them the binding's generation.
const POSITION_BITS: u32 = 40;
const POSITION_MASK: u64 = (1 << POSITION_BITS) - 1;
/// Words of a line, of which each binding has one behind the line with their count.
const LINE_WORDS: usize = 8;
/// Words of all bindings.
pub(super) const BINDING_WORDS: usize = (1 + CASTS) * LINE_WORDS;

/// In the line with their count: we wait for a ring that everybody has read.
const WANTED_WORD: usize = 1;

/// Rings that are taken into use rather than one that its group has read.
const FRESH_RINGS: usize = 8;

/// Groups looked for in vain that are remembered of a peer: more than operations are under way.
const MISSED_MAX: usize = 512;

fn group_word(slot: usize) -> usize {
    (1 + slot) * LINE_WORDS
}

fn start_word(slot: usize) -> usize {
    group_word(slot) + 1
}

/// One of our rings.
#[derive(Debug)]
struct Out {
    /// 0: nobody's.
    group: u64,
    /// Generation and position at binding, as readers are told.
    start: u64,
    /// The position at binding.
    from: u64,
    writer: Writer,
    ring: CastRw,
    /// Node and its life when the ring was bound.
    members: Vec<(u16, u64)>,
    abandoned: bool,
}

/// One of a peer's rings, as we read it.
#[derive(Debug)]
pub(super) struct In {
    group: u64,
    slot: usize,
    /// As the binding tells it.
    start: u64,
    /// The peer's bindings were counted so when this one was last found unchanged.
    counted: u64,
    reader: Reader,
    ring: CastRo,
}

/// What somebody waits for.
#[derive(Debug, Clone, Copy)]
enum Watch {
    /// A record of `node` for `group`.
    Record { node: u16, group: u64 },
    /// Room in the ring of `group`.
    Room { group: u64 },
    /// Another process attaches.
    Attach { changes: u64 },
}

/// Our half of casting.
#[derive(Debug)]
pub(super) struct Casting {
    own: Arc<Map>,
    bindings: RowRw,
    bound: u64,
    generation: u64,
    out: Vec<Out>,
    watches: Vec<Watch>,
    /// Somebody waits for a ring, which `WANTED_WORD` tells.
    wants: bool,
    /// What is watched for ends a wait.
    attended: bool,
}

impl Casting {
    pub(super) fn new(own: &Arc<Map>, layout: &Layout) -> Self {
        Self {
            bindings: RowRw::new(own, layout.cast_bindings_at(), BINDING_WORDS),
            own: Arc::clone(own),
            bound: 0,
            generation: 0,
            out: Vec::new(),
            watches: Vec::new(),
            wants: false,
            attended: false,
        }
    }

    /// The group's ring.
    #[inline]
    fn slot_of(&self, group: u64) -> Option<usize> {
        self.out.iter().position(|out| out.group == group)
    }
}

/// Who a cast goes to: the group's number, which all members know, and the nodes of the others.
#[derive(Debug, Clone, Copy)]
pub struct CastGroup<'a> {
    /// Not 0.
    pub number: u64,
    /// Without ourselves.
    pub others: &'a [u16],
}

/// What stands before what was cast.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CastHead {
    /// As the writer gave it.
    pub sequence: u32,
    /// As the writer gave it.
    pub code: u8,
    /// Bytes of the whole message, as the writer says.
    pub total: u64,
    /// Bytes of this piece of it.
    pub bytes: usize,
    head: Head,
    slot: usize,
}

/// What a reader finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Found {
    /// Nothing yet.
    Nothing,
    /// The next piece.
    Piece(CastHead),
    /// What no honest process writes.
    Garbage,
}

/// A process's access to casting, lent by [`Link::cast`](crate::Link::cast).
#[derive(Debug)]
pub struct Cast<'a>(&'a mut Shm);

impl<'a> Cast<'a> {
    pub(super) fn new(shm: &'a mut Shm) -> Self {
        Self(shm)
    }

    /// The longest piece.
    pub fn piece_bytes(&self) -> usize {
        cast::piece_bytes(self.0.job.layout.cast_bytes)
    }

    /// The life of the process that is `node` now, as far as we have turned to it; 0: none yet. Of each attach another one.
    pub fn life_of(&self, node: u16) -> u64 {
        if node == self.0.me {
            return self.0.life;
        }
        let peer = self.0.peers.get(usize::from(node));
        peer.filter(|peer| peer.inbound.is_some())
            .map_or(0, |peer| peer.life)
    }

    /// Writes the next piece of message `sequence` for all others of `group`, and wakes those who sleep. `false`: there is no
    /// room now. No allocation and no system call once the group has a ring, but for wake-ups.
    ///
    /// `payload` is at most a piece; the pieces of a message follow one another.
    #[inline]
    pub fn write(
        &mut self,
        group: CastGroup<'_>,
        (sequence, code): (u32, u8),
        total: u64,
        payload: &[u8],
    ) -> bool {
        let shm = &mut *self.0;
        let found = shm.casting.slot_of(group.number);
        let Some(slot) = found.or_else(|| shm.bind(group)) else {
            return false;
        };
        let out = &mut shm.casting.out[slot];
        if !out.writer.fits(payload.len()) {
            let free = least_read(out, slot, &shm.peers, shm.life);
            if !out.writer.freed(free) || !out.writer.fits(payload.len()) {
                return false;
            }
        }
        let head = Head {
            group: group.number,
            sequence,
            code,
            total,
            bytes: payload.len(),
        };
        out.writer.write(&out.ring, &head, payload);
        sys::fence_before_bell(shm.is_fenced);
        for &(node, _) in &out.members {
            ring_bell(&mut shm.peers[usize::from(node)], shm.socket.as_ref());
        }
        true
    }

    /// The next piece that `node` wrote for `group`, if it is there. It stays until it is taken.
    #[inline]
    pub fn look(&mut self, node: u16, group: u64) -> Found {
        let layout = &self.0.job.layout;
        let Some(inbound) = inbound_mut(&mut self.0.peers, node) else {
            return Found::Nothing;
        };
        // Twice: a binding that is no longer ours is looked up anew.
        for _ in 0..2 {
            let place = inbound.casts.iter().position(|cast| cast.group == group);
            let Some(place) = place.or_else(|| bind_in(inbound, layout, group)) else {
                return Found::Nothing;
            };
            let cast = &inbound.casts[place];
            match cast.reader.look(&cast.ring) {
                Look::Record(head) if head.group == group => {
                    return Found::Piece(CastHead {
                        sequence: head.sequence,
                        code: head.code,
                        total: head.total,
                        bytes: head.bytes,
                        slot: cast.slot,
                        head,
                    });
                }
                Look::Nothing if inbound.bindings.load(0) == cast.counted => return Found::Nothing,
                look => {
                    let count = inbound.bindings.load(0);
                    if !is_bound(inbound, cast) {
                        inbound.casts.swap_remove(place);
                    } else if look == Look::Nothing {
                        inbound.casts[place].counted = count;
                        return Found::Nothing;
                    } else {
                        return Found::Garbage;
                    }
                }
            }
        }
        Found::Nothing
    }

    /// Copies the piece that `look` found for `group` into `target`, which is as long, and goes on to the next. `false`: it was
    /// withdrawn meanwhile, and what was copied is worth nothing.
    #[inline]
    pub fn take(&mut self, node: u16, group: u64, piece: &CastHead, target: &mut [u8]) -> bool {
        let shm = &mut *self.0;
        let Some(peer) = shm.peers.get_mut(usize::from(node)) else {
            return false;
        };
        let Some(inbound) = peer.inbound.as_mut() else {
            return false;
        };
        let found = |cast: &In| cast.group == group && cast.slot == piece.slot;
        let Some(place) = inbound.casts.iter().position(found) else {
            return false;
        };
        let cast = &inbound.casts[place];
        if target.len() != piece.bytes {
            return false;
        }
        cast.reader.copy(&cast.ring, &piece.head, target);
        sys::load_fence();
        if !is_bound(inbound, cast) {
            inbound.casts.swap_remove(place);
            return false;
        }
        let cast = &mut inbound.casts[place];
        let before = cast.reader.quarter();
        cast.reader.advance(&piece.head);
        let generation = cast.start & !POSITION_MASK;
        let position = cast.reader.position() & POSITION_MASK;
        peer.cast_taken.store(cast.slot, generation | position);
        // Before both looks: at the owner's wish, and at its bell. It tells its wish, passes a fence and looks at what we told.
        sys::fence_before_bell(shm.is_fenced);
        // Who waits for a ring to be all read is told of that; who waits for room in one, of each quarter.
        let wanted = inbound.bindings.load(WANTED_WORD) != 0 && !cast.reader.is_ready(&cast.ring);
        if cast.reader.quarter() != before || wanted {
            ring_bell(peer, shm.socket.as_ref());
        }
        true
    }

    /// Nothing more will be cast to this group, and what its members have not read may be lost.
    pub fn abandon(&mut self, group: u64) {
        let out = self.0.casting.out.iter_mut();
        for out in out.filter(|out| out.group == group) {
            out.abandoned = true;
        }
    }

    /// This life of `node` reads nothing more.
    pub fn forget(&mut self, node: u16, life: u64) {
        for out in &mut self.0.casting.out {
            out.members.retain(|member| *member != (node, life));
        }
    }

    /// Forgets what was watched for. Who still waits says so again before the next sleep.
    pub fn watch_nothing(&mut self) {
        let casting = &mut self.0.casting;
        casting.watches.clear();
        if casting.wants {
            casting.wants = false;
            casting.bindings.store(WANTED_WORD, 0);
        }
    }

    /// Watches for a piece of `node` for `group`.
    pub fn watch_for(&mut self, node: u16, group: u64) {
        self.0.casting.watches.push(Watch::Record { node, group });
    }

    /// Watches for room for what could not be written: in the group's ring, or for a ring where it has none.
    pub fn watch_room(&mut self, group: u64) {
        let casting = &mut self.0.casting;
        if casting.slot_of(group).is_none() && !casting.wants {
            casting.wants = true;
            casting.bindings.store(WANTED_WORD, 1);
        }
        casting.watches.push(Watch::Room { group });
    }

    /// Whether `node` has a ring for `group`.
    pub fn is_bound(&mut self, node: u16, group: u64) -> bool {
        let layout = &self.0.job.layout;
        inbound_mut(&mut self.0.peers, node).is_some_and(|inbound| {
            inbound.casts.iter().any(|cast| cast.group == group)
                || bind_in(inbound, layout, group).is_some()
        })
    }

    /// Watches for another process that attaches.
    pub fn watch_attach(&mut self) {
        let changes = self.0.changes_seen;
        self.0.casting.watches.push(Watch::Attach { changes });
    }

    /// From now on (or no longer) what is watched for is something that happened on the link, as a frame would be.
    pub fn attend(&mut self, attended: bool) {
        self.0.casting.attended = attended;
    }
}

impl Shm {
    /// Gives a ring to `group`.
    #[cold]
    fn bind(&mut self, group: CastGroup<'_>) -> Option<usize> {
        assert!(group.number != 0);
        let layout = &self.job.layout;
        let casting = &mut self.casting;
        if casting.out.is_empty() {
            let ring = |slot| {
                let (at, bytes) = layout.cast_at(slot);
                Out {
                    group: 0,
                    start: 0,
                    from: 0,
                    writer: Writer::new(layout.cast_bytes),
                    ring: CastRw::new(&casting.own, at, bytes),
                    members: Vec::new(),
                    abandoned: false,
                }
            };
            casting.out = (0..CASTS).map(ring).collect();
        }
        let slot = self.free_slot()?;
        let casting = &mut self.casting;
        let members: Option<Vec<(u16, u64)>> = group
            .others
            .iter()
            .map(|node| {
                let peer = self
                    .peers
                    .get(usize::from(*node))
                    .filter(|_| *node != self.me);
                peer.filter(|peer| peer.inbound.is_some())
                    .map(|peer| (*node, peer.life))
            })
            .collect();
        let members = members?;
        let out = &mut casting.out[slot];
        casting.generation += 1;
        out.writer.restart();
        out.from = out.writer.tail();
        out.start = casting.generation << POSITION_BITS | out.from & POSITION_MASK;
        out.members = members;
        out.abandoned = false;
        out.group = group.number;
        // In this order, all release (invariant 2).
        casting.bindings.store(group_word(slot), 0);
        casting.bindings.store(start_word(slot), out.start);
        casting.bindings.store(group_word(slot), group.number);
        casting.bound += 1;
        casting.bindings.store(0, casting.bound);
        // And all of that before any byte that is written for the next group: those stores are plain.
        sys::store_fence();
        Some(slot)
    }

    /// The ring that another group may have.
    fn free_slot(&self) -> Option<usize> {
        let is_read = |slot: usize, out: &Out| {
            out.group == 0 || least_read(out, slot, &self.peers, self.life) == out.writer.tail()
        };
        let slots = || self.casting.out.iter().enumerate();
        // Rings that were never used come first, as long as few are: all of them would fill the caches. Then the one bound longest
        // ago: its group is the least likely to go on.
        let rank = |slot: usize, out: &Out| match out.group {
            0 if slot >= FRESH_RINGS => u64::MAX,
            0 => 0,
            _ => out.start >> POSITION_BITS,
        };
        slots()
            .filter(|(slot, out)| is_read(*slot, out))
            .min_by_key(|(slot, out)| rank(*slot, out))
            .or_else(|| slots().find(|(_, out)| out.abandoned))
            .map(|(slot, _)| slot)
    }

    /// Whether anything that is watched for is there.
    pub(super) fn is_watched_there(&self) -> bool {
        self.casting.watches.iter().any(|watch| match *watch {
            Watch::Attach { changes } => self.job.changes() != changes,
            Watch::Record { node, group } => {
                let inbound = self.peers[usize::from(node)].inbound.as_ref();
                inbound.is_some_and(|inbound| {
                    match inbound.casts.iter().find(|cast| cast.group == group) {
                        Some(cast) => {
                            cast.reader.is_ready(&cast.ring)
                                || inbound.bindings.load(0) != cast.counted
                        }
                        None => inbound.may_have_bound(group),
                    }
                })
            }
            Watch::Room { group } => match self.casting.slot_of(group) {
                Some(slot) => {
                    let out = &self.casting.out[slot];
                    let free = least_read(out, slot, &self.peers, self.life);
                    out.writer.would_resume(free)
                }
                None => self.free_slot().is_some(),
            },
        })
    }

    /// The same, if somebody waits for just that.
    #[inline]
    pub(super) fn is_attended_there(&self) -> bool {
        self.casting.attended && self.is_watched_there()
    }
}

impl Inbound {
    /// A ring was given to somebody since `group` was looked for in vain, if it was.
    fn may_have_bound(&self, group: u64) -> bool {
        let mut missed = self.casts_missed.iter();
        let count = missed
            .find(|missed| missed.0 == group)
            .map(|missed| missed.1);
        count.is_none_or(|count| count != self.bindings.load(0))
    }
}

fn inbound_mut(peers: &mut [Peer], node: u16) -> Option<&mut Inbound> {
    peers.get_mut(usize::from(node))?.inbound.as_mut()
}

/// How far the slowest member has come; the tail where there is none left.
fn least_read(out: &Out, slot: usize, peers: &[Peer], our_life: u64) -> u64 {
    let tail = out.writer.tail();
    let mut least = tail;
    for &(node, life) in &out.members {
        let peer = &peers[usize::from(node)];
        let Some(inbound) = peer.inbound.as_ref().filter(|_| peer.life == life) else {
            continue; // it is gone
        };
        let word = if inbound.cast_taken_life() == our_life {
            inbound.cast_taken.load(slot)
        } else {
            0
        };
        let is_of_binding = word & !POSITION_MASK == out.start & !POSITION_MASK;
        // Positions are told by their lowest bits: a reader is less than a ring behind.
        let behind = tail.wrapping_sub(word) & POSITION_MASK;
        let read = if is_of_binding && behind <= tail - out.from {
            tail - behind
        } else {
            out.from // it has read nothing yet, or tells nonsense
        };
        least = least.min(read);
    }
    least
}

/// Finds the ring that the peer gave to `group`; the place of our view of it.
#[cold]
fn bind_in(inbound: &mut Inbound, layout: &Layout, group: u64) -> Option<usize> {
    if !inbound.may_have_bound(group) {
        return None;
    }
    let count = inbound.bindings.load(0);
    inbound.casts_missed.retain(|missed| missed.0 != group);
    for slot in 0..CASTS {
        let start = inbound.bindings.load(start_word(slot));
        if inbound.bindings.load(group_word(slot)) != group {
            continue;
        }
        // The group did not stand there before its start did, and does not stand there any more when the next one is stored.
        if inbound.bindings.load(start_word(slot)) != start {
            continue;
        }
        inbound.casts.retain(|cast| cast.slot != slot);
        let (at, bytes) = layout.cast_at(slot);
        inbound.casts.push(In {
            group,
            slot,
            start,
            counted: count,
            reader: Reader::new(layout.cast_bytes, start & POSITION_MASK),
            ring: CastRo::new(inbound.map(), at, bytes),
        });
        return Some(inbound.casts.len() - 1);
    }
    if inbound.casts_missed.len() >= MISSED_MAX {
        inbound.casts_missed.clear(); // they are looked for anew
    }
    inbound.casts_missed.push((group, count));
    None
}

/// The ring is still the group's.
#[inline]
fn is_bound(inbound: &Inbound, cast: &In) -> bool {
    inbound.bindings.load(group_word(cast.slot)) == cast.group
        && inbound.bindings.load(start_word(cast.slot)) == cast.start
}

/// Wakes the peer if it sleeps.
#[inline]
fn ring_bell(peer: &mut Peer, socket: Option<&BellSocket>) {
    match doorbell::ring(&peer.bell, &mut peer.rung) {
        Ring::Nobody => {}
        Ring::Futex => peer.bell.futex_wake(),
        Ring::Fd => {
            if let (Some(socket), Some(inbound)) = (socket, &peer.inbound) {
                socket.ring(inbound.bell_name);
            }
        }
    }
}

#[cfg(test)]
#[path = "casting_tests.rs"]
mod tests;
