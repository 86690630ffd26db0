//! What all members settle before the first lap: that they solve the same problem, who owns which range, and who reads what.

use std::ops::Range;
use std::time::SystemTime;

use tsumuji_board::{Board, Elements, Private, Reads};
use tsumuji_collective::{Collectives, Group};
use tsumuji_node::{Endpoint, NodeId};

use super::config::{Config, Error};
use super::member::BOARD_CHANNEL;
use super::{Combine, FixedPoint};
use crate::distributed::in_proportion;

/// Stands for all elements where elements are counted.
const WHOLE: u64 = u64::MAX;
/// What must be the same on all members, in the order in which it is gathered.
const SAME: [&str; 4] = ["length", "tolerance", "limit of laps", "way to combine"];
const WEIGHT: usize = 4;
const SEED: usize = 5;
const WORDS: usize = 6;

/// What was settled.
#[derive(Debug)]
pub(super) struct Agreement {
    /// The range of each member.
    pub(super) ranges: Vec<Range<usize>>,
    /// The first epoch: another one in each run, so that late frames of an earlier run are refused.
    pub(super) epoch: u32,
}

/// Compares the problems, and divides the elements by the members' weights.
pub(super) fn agree<P: FixedPoint + ?Sized>(
    endpoint: &mut Endpoint,
    (collectives, world): (&mut Collectives, Group),
    problem: &P,
    config: &Config<'_>,
) -> Result<Agreement, Error> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let own: [u64; WORDS] = [
        problem.len() as u64,
        config.tolerance.to_bits(),
        config.max_laps,
        u64::from(problem.combine() == Combine::Sum),
        config.weight.to_bits(),
        now.map_or(0, |now| now.as_nanos() as u64),
    ];
    let members = endpoint.members().len();
    let mut all = vec![0; members * WORDS];
    collectives.all_gather(endpoint, world, &own, &mut all)?;
    let (all, _) = all.as_chunks::<WORDS>();
    for (member, words) in all.iter().enumerate() {
        if let Some(place) = (0..SAME.len()).find(|place| words[*place] != all[0][*place]) {
            return Err(Error::Disagreement {
                member: node(member),
                what: SAME[place],
            });
        }
    }
    let weights: Vec<f64> = all.iter().map(|it| f64::from_bits(it[WEIGHT])).collect();
    if let Some(member) = (0..members).find(|it| !(weights[*it] > 0.0 && weights[*it].is_finite()))
    {
        return Err(Error::Disagreement {
            member: node(member),
            what: "idea of a weight",
        });
    }
    Ok(Agreement {
        ranges: in_proportion(problem.len(), &weights),
        epoch: all[0][SEED] as u32,
    })
}

/// Makes this member's board: every member learns what the others read of its range.
pub(super) fn board<P: FixedPoint + ?Sized>(
    endpoint: &mut Endpoint,
    (collectives, world): (&mut Collectives, Group),
    problem: &P,
    ranges: &[Range<usize>],
) -> Result<Board<Private>, Error> {
    let me = endpoint.me();
    let mut board = Board::private(BOARD_CHANNEL, me, ranges.to_vec())?;
    let reads = reads_of(problem, ranges, usize::from(me.0));
    let count = |reads: &Reads| match reads {
        Reads::Whole => WHOLE,
        Reads::Packed(list) => list.len() as u64,
    };
    let counts: Vec<u64> = reads.iter().map(count).collect();
    let members = ranges.len();
    let mut all = vec![0; members * members];
    collectives.all_gather(endpoint, world, &counts, &mut all)?;
    // Row: the reader; column: the owner.
    let listed = |reader: usize, owner: usize| match all[reader * members + owner] {
        WHOLE => 0,
        count => (count as usize).min(ranges[owner].len()),
    };
    let own = usize::from(me.0);
    let sent: Vec<usize> = (0..members).map(|owner| listed(own, owner)).collect();
    let received: Vec<usize> = (0..members).map(|reader| listed(reader, own)).collect();
    let lists: Vec<u32> = (reads.iter())
        .flat_map(|reads| match reads {
            Reads::Whole => &[][..],
            Reads::Packed(list) => list,
        })
        .copied()
        .collect();
    let mut theirs = vec![0_u32; received.iter().sum()];
    collectives.all_to_all_v(endpoint, world, &lists, &sent, &mut theirs, &received)?;
    let mut rest = theirs.as_slice();
    for (member, reads) in reads.into_iter().enumerate() {
        let (list, others) = rest.split_at(received[member]);
        rest = others;
        if member == own {
            continue;
        }
        board.set_reads(node(member), reads);
        let is_read = match all[member * members + own] {
            WHOLE => Reads::Whole,
            _ => Reads::Packed(list.into()),
        };
        if !is_read.fits(&board.own()) {
            return Err(Error::Disagreement {
                member: node(member),
                what: "division of x",
            });
        }
        if !ranges[own].is_empty() {
            board.set_reader(node(member), is_read);
        }
    }
    // One frame for each part of a lap, or as few as hold it.
    let capacity_bytes = endpoint.datagram_capacity_bytes();
    board.set_elements(Elements::Fixed(usize::MAX), capacity_bytes);
    Ok(board)
}

/// What this member reads of each. Panics if the problem names elements beyond its end.
fn reads_of<P: FixedPoint + ?Sized>(
    problem: &P,
    ranges: &[Range<usize>],
    own: usize,
) -> Vec<Reads> {
    let range = ranges[own].clone();
    let mut list = match problem.reads(range.clone()) {
        _ if range.is_empty() => Vec::new(),
        Some(list) => list,
        None => {
            let whole = |member| match member == own {
                true => Reads::Packed(Box::default()),
                false => Reads::Whole,
            };
            return (0..ranges.len()).map(whole).collect();
        }
    };
    list.sort_unstable();
    list.dedup();
    let last = list.last().map_or(0, |last| *last as usize);
    assert!(
        list.is_empty() || last < problem.len(),
        "`reads` names element {last} of {}",
        problem.len()
    );
    let of = |(member, range): (usize, &Range<usize>)| match member == own {
        true => Reads::Packed(Box::default()),
        false => Reads::of(range, &list),
    };
    ranges.iter().enumerate().map(of).collect()
}

/// Member `member` as a node.
pub(super) fn node(member: usize) -> NodeId {
    NodeId(member as u16) // nodes are counted in 16 bits
}
