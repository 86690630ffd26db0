//! Broadcast by the link: a frame sent once reaches all members, and lost ones are asked for.
//!
//! Part of an `operation`. Members form a tree below the root, of a fixed fan-in (`tuning`), in which they report how far they and all below them have come;
//! the first report means that they are ready. The root stays within a window of bytes ahead of the slowest. Frames contain their offset, so a
//! receiver writes them in place in any order, and asks the root for missing bytes. The root broadcasts them again for the first question, and sends
//! them as a reliable message for a later one: so it ends under any loss. A member that lacks the first report of a child for long asks it, once: a child
//! that has called another operation, or none below this member, is found out.
//!
//! Invariants: the root sends every byte once unless it is asked for; the root is done when all have all; a member sends at most one report for each
//! part of a window, and one question for each round trip.

use std::collections::HashMap;
use std::ops::Range;
use std::time::{Duration, Instant};

use tsumuji_node::{Datagram, Destination, Endpoint, NOW_OR_NEVER, NodeId, Priority, SendError};

use crate::call::Target;
use crate::core::CHANNEL;
use crate::error::CollectiveError;
use crate::group::Members;
use crate::header::{Called, Header, Kind};
use crate::ledger::{Control, Ledger, send_now};
use crate::tuning::TUNING;

/// Most ranges in one question.
const RANGES_MAX: usize = 64;

/// Most pieces sent again for one question.
const REPAIRS_MAX: usize = TUNING.native.window_frames;

#[derive(Debug)]
pub(crate) struct Native {
    root: usize,
    len: usize,
    parent: Option<usize>,
    /// Rank of each child, and how far it and all below it have come; `None`: not ready.
    children: Vec<(usize, Option<usize>)>,
    /// Children that are not ready were asked.
    asked: bool,
    part: Part,
}

#[derive(Debug)]
enum Part {
    Root(Root),
    Receiver(Receiver),
}

#[derive(Debug, Default)]
struct Root {
    sent: usize,
    /// Bytes that were asked for, and by which rank.
    asked: Vec<(usize, Range<usize>)>,
    /// When pieces were sent again, by their offset.
    repaired: HashMap<usize, Instant>,
    blocked_until: Option<Instant>,
}

#[derive(Debug, Default)]
struct Receiver {
    /// Ranges of bytes received, in order, neither overlapping nor touching.
    have: Vec<Range<usize>>,
    /// The last report.
    told: Option<usize>,
    /// Something arrived since the last poll.
    heard: bool,
    /// When something arrived last, or the wait for it began.
    heard_at: Option<Instant>,
    /// Since when there is a gap before received bytes.
    gap_since: Option<Instant>,
    asked_at: Option<Instant>,
    /// Questions since something arrived.
    unheard: u32,
    /// When to ask next.
    ask_at: Option<Instant>,
}

impl Native {
    pub(crate) fn new(group: &Members, root: usize, len: usize) -> Self {
        let (rank, size) = (group.rank, group.size());
        let relative = (rank + size - root) % size;
        let absolute = |relative: usize| (relative + root) % size;
        let first = TUNING.native.fan_in * relative + 1;
        Self {
            root,
            len,
            parent: (relative > 0).then(|| absolute((relative - 1) / TUNING.native.fan_in)),
            children: (first..(first + TUNING.native.fan_in).min(size))
                .map(|relative| (absolute(relative), None))
                .collect(),
            asked: false,
            part: if rank == root {
                Part::Root(Root {
                    sent: if size == 1 { len } else { 0 }, // there is no other member
                    ..Root::default()
                })
            } else {
                Part::Receiver(Receiver::default())
            },
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        let own = match &self.part {
            Part::Root(root) => root.sent == self.len,
            Part::Receiver(receiver) => receiver.told == Some(self.len),
        };
        own && self
            .children
            .iter()
            .all(|(_, reached)| *reached == Some(self.len))
    }

    pub(crate) fn timer(&self) -> Option<Instant> {
        match &self.part {
            _ if self.is_done() => None,
            Part::Root(root) => root.blocked_until,
            Part::Receiver(receiver) => receiver.ask_at,
        }
    }

    /// Whether it cannot end without member `rank`.
    pub(crate) fn needs(&self, rank: usize) -> bool {
        let child = |(child, reached): &(usize, Option<usize>)| {
            *child == rank && *reached != Some(self.len)
        };
        self.lacks_bytes(rank) || self.children.iter().any(child)
    }

    /// Whether member `rank` is a child that is not ready.
    pub(crate) fn lacks_report(&self, rank: usize) -> bool {
        self.children.contains(&(rank, None))
    }

    /// Whether bytes of the root, member `rank`, are missing.
    pub(crate) fn lacks_bytes(&self, rank: usize) -> bool {
        match &self.part {
            Part::Root(_) => false,
            Part::Receiver(receiver) => rank == self.root && receiver.reached() != self.len,
        }
    }

    /// Asks children that are not ready, once.
    pub(crate) fn ask_unheard(
        &mut self,
        at: (u64, u32, Called),
        group: &Members,
        dead: &[usize],
        ledger: &mut Ledger,
    ) {
        if std::mem::replace(&mut self.asked, true) {
            return;
        }
        for &(child, reached) in &self.children {
            if reached.is_none() && !dead.contains(&child) {
                ledger.control(group.nodes[child], header(at, Kind::Unheard, 0, self.len));
            }
        }
    }

    /// Handles a report, a question or a repair; `None`: the member called something else.
    pub(crate) fn handle(
        &mut self,
        rank: usize,
        header: &Header,
        payload: &[u8],
        output: &mut Target<'_>,
    ) -> Option<()> {
        if header.total != self.len as u64 {
            return None;
        }
        let offset = usize::try_from(header.offset).ok()?;
        match (header.kind, &mut self.part) {
            (Kind::Reached, _) => {
                let child = self.children.iter_mut().find(|child| child.0 == rank)?;
                if offset > self.len {
                    return None;
                }
                child.1 = Some(child.1.map_or(offset, |known| known.max(offset)));
            }
            (Kind::Missing, Part::Root(root)) => {
                // Questions are limited: to bytes that were sent, and in number.
                for range in read_ranges(payload).take(RANGES_MAX) {
                    let end = range.end.min(root.sent);
                    if range.start < end && root.asked.len() < RANGES_MAX * self.children.len() {
                        root.asked.push((rank, range.start..end));
                    }
                }
            }
            // Its report is on its way, or waits for those below.
            (Kind::Unheard, _) if self.parent == Some(rank) => {}
            (Kind::Repair, Part::Receiver(_)) if rank == self.root => {
                self.piece_came(rank, offset, payload, output);
            }
            _ => return None,
        }
        Some(())
    }

    /// Takes bytes of the broadcast, from a frame or a repair. Their offset may be any.
    pub(crate) fn piece_came(
        &mut self,
        rank: usize,
        start: usize,
        payload: &[u8],
        output: &mut Target<'_>,
    ) {
        let end = start.saturating_add(payload.len());
        let Part::Receiver(receiver) = &mut self.part else {
            return;
        };
        if rank != self.root || end > self.len || payload.is_empty() {
            return;
        }
        receiver.heard = true;
        if receiver.take(start..end) {
            output.bytes_mut()[start..end].copy_from_slice(payload);
        }
    }

    /// Does what is possible now. `at`: the operation's key, sequence number and call.
    pub(crate) fn advance(
        &mut self,
        at: (u64, u32, Called),
        output: &Target<'_>,
        endpoint: &mut Endpoint,
        group: &Members,
        ledger: &mut Ledger,
    ) -> Result<(), CollectiveError> {
        let capacity = endpoint.datagram_capacity_bytes().max(1);
        let window = (TUNING.native.window_frames * capacity)
            .min(TUNING.native.window_bytes.max(2 * capacity));
        let behind = self
            .children
            .iter()
            .try_fold(self.len, |least, (_, reached)| {
                reached.map(|reached| least.min(reached))
            });
        let Some(behind) = behind else {
            return Ok(()); // some are not ready
        };
        let step = Progress {
            at,
            len: self.len,
            capacity,
            window,
            behind,
        };
        match &mut self.part {
            Part::Root(root) => root.advance(&step, output.bytes(), endpoint, group, ledger),
            Part::Receiver(receiver) => {
                let (Some(parent), root) = (self.parent, self.root) else {
                    return Ok(()); // only the root has no parent
                };
                receiver.report(&step, group.nodes[parent], ledger);
                receiver.ask(&step, group.nodes[root], endpoint, ledger);
                Ok(())
            }
        }
    }
}

const ALL: Destination = Destination::Broadcast;

/// Data for both parts in one poll.
struct Progress {
    at: (u64, u32, Called),
    len: usize,
    /// Payload of a frame, in bytes.
    capacity: usize,
    window: usize,
    /// Number of bytes that all members below have.
    behind: usize,
}

impl Progress {
    /// A frame with bytes of the broadcast from `start` on. Offsets have 32 bits: longer messages are not broadcast natively (`api`).
    fn frame<'a>(&self, start: usize, payload: &'a [u8]) -> Datagram<'a> {
        let (key, sequence, _) = self.at;
        Datagram {
            channel_id: CHANNEL,
            epoch: key as u32,
            lap: sequence,
            key: start as u32,
            payload,
            ..Datagram::EMPTY
        }
    }

    fn header(&self, kind: Kind, offset: usize) -> Header {
        header(self.at, kind, offset, self.len)
    }
}

fn header(
    (key, sequence, called): (u64, u32, Called),
    kind: Kind,
    offset: usize,
    len: usize,
) -> Header {
    Header {
        kind,
        called,
        tag: 0,
        sequence,
        key,
        offset: offset as u64,
        total: len as u64,
    }
}

impl Root {
    fn advance(
        &mut self,
        step: &Progress,
        data: &[u8],
        endpoint: &mut Endpoint,
        group: &Members,
        ledger: &mut Ledger,
    ) -> Result<(), CollectiveError> {
        self.blocked_until = None;
        if !self.asked.is_empty() {
            self.repair(step, data, endpoint, group, ledger)?;
        }
        let broadcasts = endpoint.broadcasts();
        // Members below may report more than was sent.
        let mut batch = endpoint.batch();
        while self.sent < step.len && self.sent < step.behind + step.window {
            let end = (self.sent + step.capacity).min(step.len);
            let payload = &data[self.sent..end];
            let missed = (batch.datagram(ALL, step.frame(self.sent, payload), NOW_OR_NEVER))
                .map_err(CollectiveError::Send)?;
            if missed > 0 && broadcasts {
                self.blocked_until = Some(Instant::now() + TUNING.native.slot_pause);
                break;
            }
            ledger.counters.native_frames += 1;
            self.sent = end;
        }
        Ok(())
    }

    /// Sends again what was asked for. Pieces without room now will be asked for again.
    fn repair(
        &mut self,
        step: &Progress,
        data: &[u8],
        endpoint: &mut Endpoint,
        group: &Members,
        ledger: &mut Ledger,
    ) -> Result<(), CollectiveError> {
        let now = Instant::now();
        self.repaired.retain(|start, _| *start >= step.behind);
        let mut repairs = 0;
        let mut batch = endpoint.batch();
        let endpoint = &mut *batch;
        for (rank, range) in std::mem::take(&mut self.asked) {
            let to = group.nodes[rank];
            let pause = pause(endpoint, to);
            let mut start = range.start / step.capacity * step.capacity;
            while start < range.end && repairs < REPAIRS_MAX {
                let end = (start + step.capacity).min(step.len);
                let payload = &data[start..end];
                match self.repaired.get(&start) {
                    // It is on its way already: another member asked first, or the question crossed the answer.
                    Some(when) if now.saturating_duration_since(*when) < pause / 2 => {}
                    None if group.size() > 2 => {
                        (endpoint.datagram(ALL, step.frame(start, payload), NOW_OR_NEVER))
                            .map_err(CollectiveError::Send)?;
                        self.repaired.insert(start, now);
                        ledger.counters.native_repairs += 1;
                        repairs += 1;
                    }
                    _ => {
                        let head = step.header(Kind::Repair, start).to_bytes();
                        match send_now(endpoint, to, Priority::NORMAL, &head, payload) {
                            Ok(()) => ledger.counters.native_resent += 1,
                            Err(SendError::WouldBlock { .. } | SendError::PeerDead { .. }) => {}
                            Err(error) => return Err(CollectiveError::Send(error)),
                        }
                        self.repaired.entry(start).or_insert(now);
                        repairs += 1;
                    }
                }
                start = end;
            }
        }
        Ok(())
    }
}

impl Receiver {
    /// Number of bytes from the start without gap.
    fn reached(&self) -> usize {
        self.have
            .first()
            .filter(|first| first.start == 0)
            .map_or(0, |first| first.end)
    }

    /// Adds received bytes; `false`: all of them were known.
    fn take(&mut self, new: Range<usize>) -> bool {
        // Nearly always the end of the last range.
        if let Some(last) = self.have.last_mut()
            && new.start == last.end
        {
            last.end = new.end;
            return true;
        }
        let first = self.have.partition_point(|range| range.end < new.start);
        let after = self.have.partition_point(|range| range.start <= new.end);
        let changed = &self.have[first..after];
        if changed
            .iter()
            .any(|range| range.start <= new.start && new.end <= range.end)
        {
            return false;
        }
        let start = changed
            .first()
            .map_or(new.start, |range| range.start.min(new.start));
        let end = changed
            .last()
            .map_or(new.end, |range| range.end.max(new.end));
        self.have.splice(first..after, std::iter::once(start..end));
        true
    }

    fn report(&mut self, step: &Progress, parent: NodeId, ledger: &mut Ledger) {
        let reached = self.reached().min(step.behind);
        let must_report = match self.told {
            None => true,
            Some(told) => {
                reached >= told + step.window / TUNING.native.reports_per_window
                    || reached == step.len && told != reached
            }
        };
        if must_report {
            self.told = Some(reached);
            ledger.control(parent, step.header(Kind::Reached, reached));
        }
    }

    /// Asks for missing bytes, if it is time.
    fn ask(&mut self, step: &Progress, root: NodeId, endpoint: &Endpoint, ledger: &mut Ledger) {
        if self.reached() == step.len {
            self.ask_at = None;
            return;
        }
        let (now, pause) = (Instant::now(), pause(endpoint, root));
        if std::mem::take(&mut self.heard) {
            (self.heard_at, self.unheard) = (Some(now), 0);
        }
        let gap = self.have.len() > 1 || self.have.first().is_some_and(|first| first.start > 0);
        self.gap_since = gap.then(|| self.gap_since.unwrap_or(now));
        let heard_at = *self.heard_at.get_or_insert(now);
        let ask_at = match (self.gap_since, self.asked_at) {
            (Some(since), None) => since + TUNING.native.gap_patience,
            (Some(since), Some(asked)) => (since + TUNING.native.gap_patience).max(asked + pause),
            // No gap is known: the rest may not have been sent yet.
            (None, asked) => {
                let quiet = (4 * pause * (1 + self.unheard)).min(TUNING.native.ask_max);
                asked.map_or(heard_at, |asked| asked.max(heard_at)) + quiet
            }
        };
        self.ask_at = Some(ask_at);
        if now < ask_at {
            return;
        }
        self.unheard = (self.unheard + 1).min(16);
        self.asked_at = Some(now);
        self.ask_at = Some(now + pause);
        ledger.outbox.push_back(Control {
            to: root,
            header: step.header(Kind::Missing, self.reached()),
            body: self.missing(step.len),
        });
    }

    /// The gaps between received ranges, and all after the last.
    fn missing(&self, len: usize) -> Vec<u8> {
        let starts = std::iter::once(0).chain(self.have.iter().map(|range| range.end));
        let ends = self.have.iter().map(|range| range.start).chain([len]);
        let mut bytes = Vec::new();
        for (start, end) in starts
            .zip(ends)
            .filter(|(start, end)| start < end)
            .take(RANGES_MAX)
        {
            bytes.extend_from_slice(&(start as u64).to_le_bytes());
            bytes.extend_from_slice(&(end as u64).to_le_bytes());
        }
        bytes
    }
}

/// Time between two questions about the same bytes.
fn pause(endpoint: &Endpoint, to: NodeId) -> Duration {
    let rtt_ns = endpoint
        .flow(to)
        .map_or(0, |flow| flow.rtt.as_nanos() + 4 * flow.rttvar.as_nanos());
    (2 * Duration::from_nanos(rtt_ns)).clamp(TUNING.native.ask_min, TUNING.native.ask_max)
}

fn read_ranges(bytes: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let (ranges, _) = bytes.as_chunks::<16>();
    ranges.iter().filter_map(|range| {
        let (words, _) = range.as_chunks::<8>();
        let word = |index: usize| usize::try_from(u64::from_le_bytes(words[index])).ok();
        Some(word(0)?..word(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tsumuji_node::NodeId;

    /// Every member but the root has one parent that has it among its children, and all are below the root.
    #[test]
    fn reports_reach_the_root() {
        for size in [1, 2, 9, 10, 75] {
            for root in [0, size / 2] {
                let nodes: Vec<NodeId> = (0..size as u16).map(NodeId).collect();
                let place =
                    |rank| Native::new(&Members::new(0, 1, nodes.clone(), rank, None), root, 1);
                for rank in 0..size {
                    let (mut at, mut steps) = (rank, 0);
                    while let Some(parent) = place(at).parent {
                        assert!(place(parent).children.iter().any(|child| child.0 == at));
                        (at, steps) = (parent, steps + 1);
                        assert!(steps <= 3, "size {size}: rank {rank} is too far away");
                    }
                    assert_eq!(at, root);
                }
            }
        }
    }

    /// Ranges added in any order, repeated and overlapping, match a plain bitmap.
    #[test]
    fn ranges_join_as_a_bitmap_says() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let (mut receiver, mut bits) = (Receiver::default(), [false; 60]);
            for _ in 0..30 {
                let start = random.usize(..59);
                let end = random.usize(start + 1..=60);
                let new = bits[start..end].iter().any(|bit| !bit);
                assert_eq!(receiver.take(start..end), new);
                bits[start..end].fill(true);
                let mut want = Vec::new();
                for place in 0..60 {
                    if bits[place] && (place == 0 || !bits[place - 1]) {
                        want.push(place..place);
                    }
                    if bits[place] {
                        want.last_mut().expect("begun").end = place + 1;
                    }
                }
                assert_eq!(receiver.have, want);
                assert_eq!(
                    receiver.reached(),
                    bits.iter().take_while(|bit| **bit).count()
                );
            }
        }
    }
}
