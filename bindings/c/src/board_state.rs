//! Boards of a handle: each has a channel of its own, takes the datagrams that arrive on it, and sends its updates there.
//!
//! Used by `api::board`, which checks pointers; numbers are checked here. Calls of the program take in what has arrived: between them it waits on the
//! channel, the newest datagram of each source and key.
//!
//! Invariants: every channel in `Node::boards` is open and has no handler; laps of own elements never go back.

use std::ffi::c_int;
use std::ops::Range;
use std::time::{Duration, Instant};

use tsumuji_board::{Board, Drops, Elements, Lap};
use tsumuji_node::{
    ChannelOptions, Context, Datagram, Delivery, Endpoint, EndpointError, Handler, NodeId,
};

use crate::failure::Failure;
use crate::node::Node;

/// Bytes that a board takes for each element: the value and the lap of it.
const ELEMENT_BYTES: usize = size_of::<f64>() + size_of::<u32>();

/// See the head of this module.
#[derive(Debug)]
pub(crate) struct OpenBoard {
    board: Board<tsumuji_board::Private>,
    me: NodeId,
    /// The process last heard of at each node.
    heard: Vec<Heard>,
    /// Values of the program in memory that is aligned; kept to save allocations.
    aligned: Vec<f64>,
}

/// A process: the incarnation of a node, and the newest session with it.
#[derive(Debug, Clone, Copy, Default)]
struct Heard {
    /// 0: none.
    incarnation: u32,
    session: u64,
}

impl OpenBoard {
    /// Opens a board on that channel: node i owns the elements from `offsets[i]` to `offsets[i + 1]`.
    pub(crate) fn open(node: &mut Node, channel_id: u16, offsets: &[usize]) -> Result<(), Failure> {
        let (Some(0), Some(&len)) = (offsets.first(), offsets.last()) else {
            return Err(Failure::invalid("the first offset must be 0"));
        };
        if !offsets.is_sorted() {
            return Err(Failure::invalid(
                "an offset must not be less than the one before",
            ));
        }
        let nodes = offsets.len() - 1;
        // A longer one is refused for its length.
        if u32::try_from(len).is_ok() {
            check_memory(len)?;
        }
        let owned = offsets.windows(2).map(|ends| ends[0]..ends[1]).collect();
        let me = node.endpoint.me();
        let board = Board::private(channel_id, me, owned);
        let board = board.map_err(|error| Failure::invalid(error.to_string()))?;
        node.endpoint.open(channel_id, ChannelOptions::default())?;
        let opened = Self {
            board,
            me,
            heard: vec![Heard::default(); nodes],
            aligned: Vec::new(),
        };
        node.boards.insert(channel_id, opened);
        Ok(())
    }

    /// Closes the board of that channel, and the channel.
    pub(crate) fn close(node: &mut Node, channel_id: u16) -> Result<(), Failure> {
        if node.boards.remove(&channel_id).is_some() {
            node.endpoint.close_channel(channel_id)?;
        }
        Ok(())
    }

    /// Checks that these elements are on the board.
    pub(crate) fn range(&self, first: usize, count: usize) -> Result<Range<usize>, Failure> {
        within(first, count, &(0..self.board.len()), "the board has")
    }

    /// Checks that these elements are this node's.
    pub(crate) fn own_range(&self, first: usize, count: usize) -> Result<Range<usize>, Failure> {
        within(first, count, &self.board.own(), "this node owns")
    }

    /// Checks a lap of own elements.
    pub(crate) fn own_lap(&self, lap: u32) -> Result<Lap, Failure> {
        let lap = read_lap(lap)?;
        match self.board.lap(self.me) {
            Some(newest) if newest.is_newer_than(lap) => Err(Failure::invalid(format!(
                "{lap} is older than {newest}, which was written before; laps must not go back"
            ))),
            _ => Ok(lap),
        }
    }

    /// Writes own elements; their values are the bytes of numbers. `range` and `lap` were checked.
    pub(crate) fn write(&mut self, range: Range<usize>, values: &[u8], lap: Lap) {
        let (values, _) = values.as_chunks();
        self.aligned.clear();
        (self.aligned).extend(values.iter().map(|bytes| f64::from_ne_bytes(*bytes)));
        self.board.write(range.start, &self.aligned, lap);
    }

    /// Sends own elements as they are; returns how many copies of frames the link had no room for. `range` and `lap` were checked.
    pub(crate) fn announce(
        &mut self,
        endpoint: &mut Endpoint,
        range: Range<usize>,
        lap: Lap,
    ) -> Result<u64, Failure> {
        self.fit_frames(endpoint);
        Ok(self.board.announce(endpoint, range, lap)?.refused)
    }

    /// Sends one frame of own elements again; returns how many copies of it the link had no room for.
    pub(crate) fn repair(&mut self, endpoint: &mut Endpoint) -> Result<u64, Failure> {
        self.fit_frames(endpoint);
        Ok(self.board.repair(endpoint)?.refused)
    }

    /// A frame holds as many elements as fit; that may become less when another peer is met.
    fn fit_frames(&mut self, endpoint: &Endpoint) {
        let capacity_bytes = endpoint.datagram_capacity_bytes();
        (self.board).set_elements(Elements::Fixed(usize::MAX), capacity_bytes);
    }

    /// Takes in what has arrived, and if that is nothing, what arrives within `timeout`; returns how much was done.
    pub(crate) fn poll(
        &mut self,
        endpoint: &mut Endpoint,
        timeout: Duration,
    ) -> Result<usize, Failure> {
        let channel_id = self.board.channel();
        Ok(if timeout.is_zero() {
            endpoint.poll_on(channel_id, self)?
        } else {
            endpoint.poll_on_wait(channel_id, self, timeout)?
        })
    }

    /// Takes in what arrives until all elements of `owner` (`None`: of every other node) are of `lap` or newer; `false`: they are not, after `timeout` or
    /// the use of a waker.
    pub(crate) fn wait(
        &mut self,
        endpoint: &mut Endpoint,
        owner: Option<NodeId>,
        lap: Lap,
        timeout: Duration,
    ) -> Result<bool, Failure> {
        let began = Instant::now();
        self.poll(endpoint, Duration::ZERO)?;
        let (me, nodes) = (self.me, (0..=u16::MAX).take(self.heard.len()));
        let nodes = nodes.map(NodeId);
        for owner in nodes.filter(|node| owner.map_or(*node != me, |owner| *node == owner)) {
            while !self.is_fresh(owner, lap) {
                if endpoint.is_dead(owner) {
                    // What it sent last may lie behind the news of its death.
                    self.poll(endpoint, Duration::ZERO)?;
                    if self.is_fresh(owner, lap) {
                        break;
                    }
                    return Err(EndpointError::PeerDead { peer: owner }.into());
                }
                let left = timeout.saturating_sub(began.elapsed());
                if left.is_zero() || self.poll(endpoint, left)? == 0 {
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Whether all elements of `owner` are of `lap` or newer. The newest lap heard of is checked first: it costs nothing.
    fn is_fresh(&self, owner: NodeId, lap: Lap) -> bool {
        let reaches = |found: Option<Lap>| found.is_some_and(|found| !lap.is_newer_than(found));
        self.board.owned_by(owner).is_empty()
            || reaches(self.board.lap(owner)) && reaches(self.board.oldest(owner))
    }

    /// The elements of a range that was checked.
    pub(crate) fn values(&self, range: Range<usize>) -> &[f64] {
        &self.board.values()[range]
    }

    /// Checks the number of a node of the board.
    pub(crate) fn owner(&self, node: c_int) -> Result<NodeId, Failure> {
        u16::try_from(node)
            .ok()
            .filter(|id| usize::from(*id) < self.heard.len())
            .map(NodeId)
            .ok_or_else(|| Failure::unknown(node))
    }

    /// Checks the number of another node of the board.
    pub(crate) fn other_owner(&self, node: c_int) -> Result<NodeId, Failure> {
        let owner = self.owner(node)?;
        let other = (owner != self.me).then_some(owner);
        other.ok_or_else(|| Failure::unknown(node))
    }

    /// Newest lap of `owner` of which anything arrived; 0: none.
    pub(crate) fn lap(&self, owner: NodeId) -> u32 {
        self.board.lap(owner).map_or(0, Lap::get)
    }

    /// Laps by which the oldest element of `owner` is behind its newest lap; `None`: one has never arrived.
    pub(crate) fn staleness(&self, owner: NodeId) -> Option<u32> {
        if self.board.owned_by(owner).is_empty() {
            return Some(0);
        }
        self.board.staleness(owner)
    }

    pub(crate) fn drops(&self) -> &Drops {
        self.board.drops()
    }
}

impl Handler for OpenBoard {
    /// Boards send no messages: whatever this is, nobody receives it.
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}

    /// A new process at a node begins anew. Laps and values of the former one stay until then: they may be what a program waits for.
    fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
        let heard = self.heard.get_mut(usize::from(datagram.source.0));
        if let Some(heard) = heard.filter(|heard| heard.session <= context.session()) {
            if heard.incarnation != datagram.incarnation {
                self.board.forget(datagram.source);
            }
            *heard = Heard {
                incarnation: datagram.incarnation,
                session: context.session(),
            };
        }
        self.board.apply(&datagram);
    }
}

/// Checks a lap from C.
pub(crate) fn read_lap(lap: u32) -> Result<Lap, Failure> {
    Lap::new(lap).ok_or_else(|| Failure::invalid("laps count from 1"))
}

fn within(
    first: usize,
    count: usize,
    bounds: &Range<usize>,
    holder: &str,
) -> Result<Range<usize>, Failure> {
    let end = first.checked_add(count);
    let range = end.map(|end| first..end);
    let range = range.filter(|range| bounds.start <= range.start && range.end <= bounds.end);
    range.ok_or_else(|| {
        Failure::invalid(format!(
            "{count} elements from {first} on: {holder} {} to {}, without the last",
            bounds.start, bounds.end
        ))
    })
}

/// Fails where there is no memory for so many elements: it would end the process.
fn check_memory(len: usize) -> Result<(), Failure> {
    let mut probe: Vec<[u8; ELEMENT_BYTES]> = Vec::new();
    (probe.try_reserve_exact(len))
        .map_err(|_| Failure::no_memory(format!("no memory for a board of {len} elements")))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A board without memory is an error.
    #[test]
    fn memory_is_checked() {
        assert!(check_memory(1000).is_ok());
        let refused = check_memory(usize::MAX / 64);
        let code = refused.map_err(|failure| failure.code);
        assert_eq!(code, Err(crate::api::TSUMUJI_ENOMEM));
    }

    /// Ranges end within their bounds, and no sum overflows.
    #[test]
    fn ranges_are_checked() {
        let check = |first, count| within(first, count, &(2..5), "this node owns");
        assert_eq!(check(2, 3).expect("all"), 2..5);
        assert_eq!(check(5, 0).expect("none"), 5..5);
        for (first, count) in [(1, 1), (2, 4), (6, 0), (usize::MAX, 1), (3, usize::MAX)] {
            assert!(check(first, count).is_err(), "{first} {count}");
        }
    }
}
