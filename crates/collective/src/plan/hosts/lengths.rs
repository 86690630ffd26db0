//! Gather and scatter by hosts of parts whose lengths only the root knows all of. A leader is told those of its host first: in a gather by its
//! members, in a scatter by the root. It then makes the rest of its plan. In a gather it passes them on with the parts, as the root could not tell
//! wrong lengths that have the right sum.
//!
//! Of each part its length says whether it *joins* those of its host, which cross together, or goes directly. Results lie where the flat plans put
//! them. Leaders wait for their own hosts and for the root only, never for each other in a circle.

use super::gather::together;
use super::{Hosts, Part};
use crate::plan::gather::blocks;
use crate::plan::{Action, Buffer, Expected, Place, Plan, WORD_BYTES};

/// Tags of lengths, of parts that have joined (all transfers of a rest), and of those that go directly.
const LENGTHS: usize = 0;
pub(crate) const JOINED: u16 = 1;
const DIRECT: usize = 2;

/// Fewest members on a host whose parts go together. A scatter also tells the host its lengths: with two members its parts would need as many messages
/// between hosts as they do directly, and one more within the host.
const GATHERED_LEAST: usize = 2;
const SCATTERED_LEAST: usize = 3;

/// In place of the length of a part that goes directly.
const GOES_DIRECTLY: u64 = u64::MAX;

/// Lengths of parts, in bytes, as a member knows them.
pub(crate) struct Lengths<'a> {
    /// On the root, by rank.
    pub(crate) all: &'a [usize],
    pub(crate) own: usize,
    /// Whether a part of that length joins those of its host; the same on all members.
    pub(crate) joins: &'a dyn Fn(usize) -> bool,
    /// Length of the longest part that joins.
    pub(crate) most: usize,
}

impl Lengths<'_> {
    /// What a leader is told of a part.
    fn word(&self, len: usize) -> u64 {
        if (self.joins)(len) {
            len as u64
        } else {
            GOES_DIRECTLY
        }
    }

    /// On the root: of the members of another host those whose parts join, and those whose parts go directly; `least`: the fewest members on a host
    /// of which any part joins.
    fn divided(&self, ranks: &[usize], least: usize) -> (Vec<usize>, Vec<usize>) {
        let joins = |rank: &usize| ranks.len() >= least && (self.joins)(self.all[*rank]);
        ranks.iter().copied().partition(joins)
    }
}

/// What a leader still has to do when it knows which parts of its host join. Their lengths are the first words of scratch, by place on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rest {
    is_gather: bool,
    /// Ranks on the host, and the leader's place among them.
    ranks: Vec<usize>,
    place: usize,
    root: usize,
    /// Length of the leader's part, and its word for that.
    own: usize,
    own_word: u64,
    most: usize,
}

impl Rest {
    fn new(is_gather: bool, part: &Part<'_>, lengths: &Lengths<'_>) -> Self {
        Self {
            is_gather,
            ranks: part.ranks.to_vec(),
            place: part.place,
            root: part.root,
            own: lengths.own,
            own_word: lengths.word(lengths.own),
            most: lengths.most,
        }
    }

    /// Where the parts that join lie in scratch, behind the words, by place on the host. An error is the rank of the member that told something
    /// impossible.
    fn places(&self, scratch: &[u8]) -> Result<Vec<Option<Place>>, usize> {
        let (words, _) = scratch.as_chunks::<WORD_BYTES>();
        let mut end = self.ranks.len() * WORD_BYTES;
        let mut places = Vec::with_capacity(self.ranks.len());
        for (place, (&rank, word)) in self.ranks.iter().zip(words).enumerate() {
            let word = u64::from_le_bytes(*word);
            let told_by = if self.is_gather { rank } else { self.root };
            if place == self.place && word != self.own_word {
                return Err(told_by);
            }
            places.push(if word == GOES_DIRECTLY {
                None
            } else {
                let len = usize::try_from(word).ok().filter(|len| *len <= self.most);
                let start = end;
                end += len.ok_or(told_by)?;
                Some(Place::of(Buffer::Scratch, start..end))
            });
        }
        Ok(places)
    }

    /// The rest of the plan, from the lengths in scratch; its places are in the same memories, scratch being longer. An error is the rank of the
    /// member that told something impossible.
    pub(crate) fn plan(&self, scratch: &[u8]) -> Result<Plan, usize> {
        let places = self.places(scratch)?;
        let joined: Vec<Place> = places.iter().copied().flatten().collect();
        let start = self.ranks.len() * WORD_BYTES;
        let len: usize = joined.iter().map(|place| place.len).sum();
        let first = if self.is_gather { 0 } else { start };
        let all = (!joined.is_empty()).then(|| Place::of(Buffer::Scratch, first..start + len));
        let mut plan = Plan {
            scratch_bytes: start + len,
            ..Plan::default()
        };
        let joined_of = |(place, &rank): (usize, &usize)| Some((rank, places[place]?));
        let others = self.ranks.iter().enumerate();
        let others = others.filter(|(place, _)| *place != self.place);
        let others = others.filter_map(joined_of);
        let (me, own) = (self.ranks[self.place], places[self.place]);
        if self.is_gather {
            self.gather(&mut plan, all, own, me, others);
        } else if let Some(all) = all {
            self.scatter(&mut plan, all, own, me, others);
        }
        Ok(plan)
    }

    fn gather(
        &self,
        plan: &mut Plan,
        all: Option<Place>,
        own: Option<Place>,
        me: usize,
        others: impl Iterator<Item = (usize, Place)>,
    ) {
        if let Some(own) = own {
            plan.copy(Place::whole(Buffer::Input, self.own), own);
        }
        for (from, place) in others {
            plan.add(Action::Store, from, JOINED.into(), place);
        }
        if let Some(all) = all {
            let complete = plan.move_after_all(me, []);
            let send = plan.add(Action::Send, self.root, JOINED.into(), all);
            plan.after(send, [Some(complete), None]);
        }
    }

    fn scatter(
        &self,
        plan: &mut Plan,
        all: Place,
        own: Option<Place>,
        me: usize,
        others: impl Iterator<Item = (usize, Place)>,
    ) {
        let came = plan.add(Action::Store, self.root, JOINED.into(), all);
        if let Some(own) = own {
            plan.move_after_all(me, [(own, Place::whole(Buffer::Output, own.len))]);
        }
        for (to, place) in others {
            let send = plan.add(Action::Send, to, JOINED.into(), place);
            plan.after(send, [Some(came), None]);
        }
    }
}

/// Members tell their leaders the lengths of their parts, and send them those that join. Each leader sends all this to the root.
pub(crate) fn gather_v_hosts(
    hosts: &Hosts,
    rank: usize,
    root: usize,
    lengths: &Lengths<'_>,
) -> Plan {
    let part = Part::new(hosts, rank, root);
    let here = part.ranks.len();
    let mut plan = Plan::default();
    let own = Place::whole(Buffer::Input, lengths.own);
    if rank == root {
        gather_at_root(&mut plan, &part, lengths);
        return plan;
    }
    if part.host == part.root_host() || here < GATHERED_LEAST {
        plan.add(Action::Send, root, DIRECT, own);
        return plan;
    }
    let word = lengths.word(lengths.own);
    if !part.leads() {
        plan.words = vec![word];
        plan.scratch_bytes = WORD_BYTES;
        let told = Place::whole(Buffer::Scratch, WORD_BYTES);
        plan.add(Action::Send, part.lead(), LENGTHS, told);
        if word == GOES_DIRECTLY {
            plan.add(Action::Send, root, DIRECT, own);
        } else {
            plan.add(Action::Send, part.lead(), JOINED.into(), own);
        }
        return plan;
    }
    plan.words = vec![0; here];
    plan.words[part.place] = word;
    plan.scratch_bytes = here * WORD_BYTES;
    for (place, &from) in part.ranks.iter().enumerate() {
        if from != rank {
            let start = place * WORD_BYTES;
            let told = Place::of(Buffer::Scratch, start..start + WORD_BYTES);
            plan.add(Action::Store, from, LENGTHS, told);
        }
    }
    plan.extend_after_all(rank, Rest::new(true, &part, lengths));
    if word == GOES_DIRECTLY {
        // Not in the rest: the root may ask for it before that is made.
        plan.add(Action::Send, root, DIRECT, own);
    }
    plan
}

fn gather_at_root(plan: &mut Plan, part: &Part<'_>, lengths: &Lengths<'_>) {
    let blocks = blocks(lengths.all);
    let place = |rank: usize| Place::of(Buffer::Output, blocks[rank].clone());
    let (mut moves, mut direct) = (Vec::new(), Vec::<usize>::new());
    let mut end = 0;
    for host in part.other_hosts() {
        let ranks = &part.hosts.ranks[host];
        let (joined, others) = lengths.divided(ranks, GATHERED_LEAST);
        direct.extend(others);
        if joined.is_empty() {
            continue;
        }
        let start = end;
        for &rank in ranks {
            plan.expected.push(Expected {
                rank,
                word: lengths.word(lengths.all[rank]),
                start: end,
            });
            end += WORD_BYTES;
        }
        for to in joined.into_iter().map(place) {
            moves.push((Place::of(Buffer::Scratch, end..end + to.len), to));
            end += to.len;
        }
        let all = Place::of(Buffer::Scratch, start..end);
        plan.add(Action::Store, part.leaders[host], JOINED.into(), all);
    }
    plan.scratch_bytes = end;
    // It does not wait for parts that go directly: a long one of a wrong length does not come.
    plan.compare_after_all(part.root);
    for from in direct.into_iter().chain(part.neighbours()) {
        plan.add(Action::Store, from, DIRECT, place(from));
    }
    plan.copy(Place::whole(Buffer::Input, lengths.own), place(part.root));
    plan.move_after_all(part.root, moves);
}

/// The root tells each leader of several others the lengths of its host's parts, and sends it those that join. Each leader sends its members theirs.
pub(crate) fn scatter_v_hosts(
    hosts: &Hosts,
    rank: usize,
    root: usize,
    lengths: &Lengths<'_>,
) -> Plan {
    let part = Part::new(hosts, rank, root);
    let here = part.ranks.len();
    let mut plan = Plan::default();
    let own = Place::whole(Buffer::Output, lengths.own);
    if rank == root {
        scatter_from_root(&mut plan, &part, lengths);
        return plan;
    }
    if part.host == part.root_host() || here < SCATTERED_LEAST {
        plan.add(Action::Store, root, DIRECT, own);
        return plan;
    }
    let joins = (lengths.joins)(lengths.own);
    if part.leads() {
        plan.scratch_bytes = here * WORD_BYTES;
        let told = Place::whole(Buffer::Scratch, plan.scratch_bytes);
        plan.add(Action::Store, root, LENGTHS, told);
        plan.extend_after_all(rank, Rest::new(false, &part, lengths));
    }
    if !joins {
        plan.add(Action::Store, root, DIRECT, own);
    } else if !part.leads() {
        plan.add(Action::Store, part.lead(), JOINED.into(), own);
    }
    plan
}

fn scatter_from_root(plan: &mut Plan, part: &Part<'_>, lengths: &Lengths<'_>) {
    let hosts = part.hosts;
    let blocks = blocks(lengths.all);
    let place = |rank: usize| Place::of(Buffer::Input, blocks[rank].clone());
    let is_told = |host: &usize| hosts.ranks[*host].len() >= SCATTERED_LEAST;
    let told = part.other_hosts().filter(is_told);
    let told = told.flat_map(|host| &hosts.ranks[host]);
    plan.words = told.map(|rank| lengths.word(lengths.all[*rank])).collect();
    plan.scratch_bytes = plan.words.len() * WORD_BYTES;
    let mut end = 0;
    for host in part.other_hosts() {
        let (ranks, leader) = (&hosts.ranks[host], part.leaders[host]);
        let (joined, direct) = lengths.divided(ranks, SCATTERED_LEAST);
        if is_told(&host) {
            let start = end;
            end += ranks.len() * WORD_BYTES;
            let told = Place::of(Buffer::Scratch, start..end);
            plan.add(Action::Send, leader, LENGTHS, told);
        }
        if !joined.is_empty() {
            let there: Vec<Place> = joined.into_iter().map(place).collect();
            let (all, pairs) = together(plan, &there);
            plan.copies.extend(pairs);
            plan.add(Action::Send, leader, JOINED.into(), all);
        }
        for to in direct {
            plan.add(Action::Send, to, DIRECT, place(to));
        }
    }
    for to in part.neighbours() {
        plan.add(Action::Send, to, DIRECT, place(to));
    }
    plan.copy(place(part.root), Place::whole(Buffer::Output, lengths.own));
}
