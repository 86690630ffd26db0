//! Statistics of other nodes: requests for their flows, and the responses, as messages on the control channel.
//!
//! Part of `channel`, which passes arriving messages in and sends the ones made here; `endpoint::flow` asks.
//!
//! Invariants: of each peer only the newest request waits for an answer, and only the newest one to it is open; a response without an open request
//! changes nothing.

use std::collections::BTreeMap;

use tsumuji_proto::{Duration, Flow, NodeId};

/// Most flows of one response: some 4 KiB, so that it delays little.
const FLOWS_MAX: usize = 32;

/// Kinds: the first byte of a message, beside those of `control`.
const REQUEST: u8 = 3;
const RESPONSE: u8 = 4;

/// Bytes of a request, and of a response's head.
const HEAD_BYTES: usize = 12;

/// Numbers in a flow, 64 bits each.
const FLOW_NUMBERS: usize = 16;
const FLOW_BYTES: usize = 8 * FLOW_NUMBERS;

/// Flags of a flow.
const IS_UP: u64 = 1;
const HAS_BACKLOG: u64 = 2;

/// In place of the next peer, if a response holds the last flows.
const NO_MORE: u16 = u16::MAX;

/// State of another node's traffic with one of its peers, as that node reported it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RemoteFlow {
    /// The peer.
    pub peer: NodeId,
    /// Hello and welcome were exchanged, and it is not dead.
    pub up: bool,
    /// Traffic with it as that node sees it, without its pace.
    pub flow: Flow,
}

/// Flows of a node, and the peer from which on there are more.
pub(crate) type Answer = (Vec<RemoteFlow>, Option<NodeId>);

/// A request of a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Request {
    number: u32,
    /// The first peer asked for.
    pub(crate) first: NodeId,
    most: u16,
}

/// Open requests in both directions.
#[derive(Debug, Default)]
pub(crate) struct Statistics {
    /// Requests of peers to be answered, with the number of the session.
    requests: BTreeMap<NodeId, (u64, Request)>,
    /// The program waits in `flush`: requests are answered afterwards.
    pub(crate) is_paused: bool,
    /// Our open requests, by the node asked.
    open: BTreeMap<NodeId, u32>,
    number: u32,
    /// The response that a call waits for, and its content.
    awaited: Option<(NodeId, u32)>,
    answer: Option<Answer>,
}

impl Statistics {
    /// Begins request numbers at `number`, so that they differ from those of an earlier process.
    pub(crate) fn beginning_at(number: u32) -> Self {
        Self {
            number,
            ..Self::default()
        }
    }

    /// Makes a request to `node`, which replaces an open one. `waits`: the calling program waits for the response.
    pub(crate) fn ask(
        &mut self,
        node: NodeId,
        first: NodeId,
        most: u16,
        waits: bool,
    ) -> [u8; HEAD_BYTES] {
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        self.open.insert(node, number);
        if waits {
            (self.awaited, self.answer) = (Some((node, number)), None);
        }
        head(REQUEST, [first.0, most.max(1)], number)
    }

    /// Ends the program's wait; returns the response, if it arrived.
    pub(crate) fn take_answer(&mut self) -> Option<Answer> {
        if let Some((node, number)) = self.awaited.take()
            && self.open.get(&node) == Some(&number)
        {
            self.open.remove(&node);
        }
        self.answer.take()
    }

    pub(crate) fn has_answer(&self) -> bool {
        self.answer.is_some()
    }

    /// Whether the awaited response can still arrive: the session did not end.
    pub(crate) fn is_awaited(&self) -> bool {
        (self.awaited).is_some_and(|(node, number)| self.open.get(&node) == Some(&number))
    }

    /// Whether requests wait for answers.
    #[inline]
    pub(crate) fn is_pending(&self) -> bool {
        !self.is_paused && !self.requests.is_empty()
    }

    pub(crate) fn next_request(&mut self) -> Option<(NodeId, Request)> {
        if self.is_paused {
            return None;
        }
        let (peer, (_, request)) = self.requests.pop_first()?;
        Some((peer, request))
    }

    /// Ends the session with `peer`; `ended_sessions` counts it. A request of the next session stays.
    pub(crate) fn forget(&mut self, peer: NodeId, ended_sessions: u64) {
        (self.requests).retain(|whose, (session, _)| *whose != peer || *session >= ended_sessions);
        self.open.remove(&peer);
    }

    /// Takes a message of these kinds; `Some`: a response to be given as a notice.
    pub(crate) fn take(&mut self, (from, session): (NodeId, u64), bytes: &[u8]) -> Option<Answer> {
        let (head, flows) = bytes.split_first_chunk::<HEAD_BYTES>()?;
        let &[kind, 0, a, b, c, d, 0, 0, n0, n1, n2, n3] = head else {
            return None;
        };
        let number = u32::from_le_bytes([n0, n1, n2, n3]);
        let (one, two) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
        match kind {
            REQUEST if two > 0 && flows.is_empty() => {
                let request = Request {
                    number,
                    first: NodeId(one),
                    most: two,
                };
                self.requests.insert(from, (session, request));
                None
            }
            RESPONSE if two == 0 && self.open.get(&from) == Some(&number) => {
                let (flows, []) = flows.as_chunks::<FLOW_BYTES>() else {
                    return None;
                };
                self.open.remove(&from);
                let flows = flows.iter().take(FLOWS_MAX).map(parse).collect();
                let answer = (flows, (one != NO_MORE).then_some(NodeId(one)));
                if self.awaited == Some((from, number)) {
                    self.answer = Some(answer);
                    return None;
                }
                Some(answer)
            }
            _ => None, // of a later version, or nobody asked
        }
    }
}

impl Request {
    /// The response with `flows`, which begin with `first` and are in order.
    pub(crate) fn answer(self, flows: impl Iterator<Item = RemoteFlow>) -> Vec<u8> {
        let most = usize::from(self.most).min(FLOWS_MAX);
        let (mut told, mut next) = (Vec::new(), NO_MORE);
        for (index, flow) in flows.enumerate() {
            if index == most {
                next = flow.peer.0;
                break;
            }
            told.extend(numbers(&flow).into_iter().flat_map(u64::to_le_bytes));
        }
        [&head(RESPONSE, [next, 0], self.number)[..], &told].concat()
    }
}

fn head(kind: u8, [one, two]: [u16; 2], number: u32) -> [u8; HEAD_BYTES] {
    let ([a, b], [c, d]) = (one.to_le_bytes(), two.to_le_bytes());
    let [n0, n1, n2, n3] = number.to_le_bytes();
    [kind, 0, a, b, c, d, 0, 0, n0, n1, n2, n3]
}

fn numbers(told: &RemoteFlow) -> [u64; FLOW_NUMBERS] {
    let flow = &told.flow;
    let flag = |is_set: bool, flag| if is_set { flag } else { 0 };
    [
        told.peer.0.into(),
        flag(told.up, IS_UP) | flag(flow.incoming_backlog, HAS_BACKLOG),
        flow.rtt.as_nanos(),
        flow.rttvar.as_nanos(),
        flow.in_flight_frames as u64,
        flow.window_bytes as u64,
        flow.queued_messages as u64,
        flow.queued_bytes as u64,
        flow.retransmitted_frames,
        flow.credit_frames as u64,
        flow.superseded_datagrams,
        flow.late_datagrams,
        flow.lost_datagrams,
        flow.granted_frames as u64,
        flow.incoming_window_frames as u64,
        flow.incoming_bytes as u64,
    ]
}

fn parse(bytes: &[u8; FLOW_BYTES]) -> RemoteFlow {
    let mut numbers = bytes
        .as_chunks::<8>()
        .0
        .iter()
        .map(|word| u64::from_le_bytes(*word));
    let mut next = || numbers.next().unwrap_or(0); // there are just as many
    let peer = NodeId(next() as u16);
    let flags = next();
    // The other node may have 64 bits, this one 32.
    let count = |value: u64| usize::try_from(value).unwrap_or(usize::MAX);
    RemoteFlow {
        peer,
        up: flags & IS_UP != 0,
        flow: Flow {
            rtt: Duration::from_nanos(next()),
            rttvar: Duration::from_nanos(next()),
            in_flight_frames: count(next()),
            window_bytes: count(next()),
            queued_messages: count(next()),
            queued_bytes: count(next()),
            retransmitted_frames: next(),
            credit_frames: count(next()),
            superseded_datagrams: next(),
            late_datagrams: next(),
            lost_datagrams: next(),
            granted_frames: count(next()),
            incoming_window_frames: count(next()),
            incoming_bytes: count(next()),
            incoming_backlog: flags & HAS_BACKLOG != 0,
            ..Flow::default()
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: NodeId = NodeId(1);

    fn flow(peer: u16) -> RemoteFlow {
        RemoteFlow {
            peer: NodeId(peer),
            up: peer.is_multiple_of(2),
            flow: Flow {
                rtt: Duration::from_nanos(1 << 40),
                in_flight_frames: 3,
                queued_bytes: 5 << 33,
                lost_datagrams: u64::MAX,
                incoming_bytes: 7,
                incoming_backlog: peer.is_multiple_of(3),
                ..Flow::default()
            },
        }
    }

    /// A node's flows arrive page by page, as that node sees them, in the waiting call or as a notice.
    #[test]
    fn flows_are_told_page_by_page() {
        let (mut asker, mut asked) = (Statistics::default(), Statistics::default());
        let (mut told, mut first) = (Vec::new(), NodeId(0));
        for waits in [true, false, true] {
            let request = asker.ask(PEER, first, u16::MAX, waits);
            assert!(asked.take((NodeId(0), 0), &request).is_none());
            let (to, request) = asked.next_request().expect("one");
            assert!(to == NodeId(0) && request.first == first && !asked.is_pending());
            let response = request.answer((first.0..70).map(flow));
            let noticed = asker.take((PEER, 0), &response);
            assert_eq!((noticed.is_none(), asker.has_answer()), (waits, waits));
            let (flows, next) = noticed.or_else(|| asker.take_answer()).expect("told");
            told.extend(flows);
            first = next.unwrap_or(NodeId(70));
        }
        assert_eq!(told, (0..70).map(flow).collect::<Vec<_>>());
        assert_eq!(first, NodeId(70), "those were all");
    }

    /// Of several requests the last is answered; a response nobody asked for, or asks for no more, changes nothing; nor does garbage.
    #[test]
    fn only_open_requests_are_answered() {
        let (mut asker, mut asked) = (Statistics::default(), Statistics::default());
        for _ in 0..100 {
            let request = asker.ask(PEER, NodeId(0), 1, true);
            asked.take((NodeId(0), 0), &request);
        }
        let (_, request) = asked.next_request().expect("the newest");
        assert!(!asked.is_pending());
        let response = request.answer([flow(4)].into_iter());
        assert!(asker.take((NodeId(2), 0), &response).is_none() && !asker.has_answer());
        for length in 0..response.len() {
            let cut = asker.take((PEER, 0), &response[..length]);
            assert!(cut.is_none_or(|(flows, _)| flows.is_empty()), "{length}");
            asker.ask(PEER, NodeId(0), 1, true);
        }
        assert!(asker.take((PEER, 0), &response).is_none() && !asker.has_answer());
        assert!(asker.take_answer().is_none());
        let request = asker.ask(PEER, NodeId(0), 1, false);
        asked.take((NodeId(0), 0), &request);
        let response = asked.next_request().expect("one").1.answer([].into_iter());
        asker.forget(PEER, 1);
        assert!(
            asker.take((PEER, 0), &response).is_none(),
            "the session is over"
        );
        asker.ask(PEER, NodeId(0), 1, true);
        assert!(asker.is_awaited());
        asker.forget(PEER, 1);
        assert!(!asker.is_awaited(), "it is to be asked again");
    }

    /// Requests that arrive during a pause are answered afterwards; a request of the next session outlives the end of the one before.
    #[test]
    fn requests_outlive_pauses_and_ended_sessions() {
        let mut asked = Statistics::default();
        let request = Statistics::beginning_at(7).ask(PEER, NodeId(0), 1, false);
        asked.is_paused = true;
        asked.take((NodeId(0), 1), &request);
        assert!(!asked.is_pending() && asked.next_request().is_none());
        asked.forget(NodeId(0), 1);
        asked.is_paused = false;
        assert!(asked.is_pending() && asked.next_request().is_some());
        asked.take((NodeId(0), 1), &request);
        asked.forget(NodeId(0), 2);
        assert!(!asked.is_pending(), "of a session that has ended");
    }
}
