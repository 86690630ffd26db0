//! The actions of the simulated programs, of their operators and of the test: send, take, crash, partition, observe.

use super::Net;
use crate::host::{Arrivals, Pace, Received, ReceivedDatagram, Wish};
use crate::payload::fill;
use crate::process::Process;
use crate::rng::mix;
use crate::switch::garbage;
use crate::timeline::Happening;
use tsumuji_node::Bytes;
use tsumuji_node::simulated::SendError;
use tsumuji_proto::{
    Channel, Config, Datagram, Destination, Duration, Event, Flow, Instant, NodeId,
};

impl<P: Process> Net<P> {
    /// Random bytes.
    pub fn random_payload(&mut self, bytes: usize) -> Vec<u8> {
        let mut payload = vec![0; bytes];
        fill(self.payload_rng.bits(), &mut payload);
        payload
    }

    /// A program sends a message; if its queue is full, as soon as there is room. `received` returns it after delivery.
    pub fn send(&mut self, from: NodeId, to: NodeId, channel: Channel, message: &[u8]) {
        self.copies = true;
        self.wish(from, to, channel, Wish::Given(message.to_vec()));
    }

    /// A program sends `count` messages of `bytes` random bytes, one after the other as its queue has room.
    pub fn stream(&mut self, from: NodeId, to: NodeId, channel: Channel, bytes: usize, count: u64) {
        if count > 0 {
            self.wish(from, to, channel, Wish::Made { bytes, count });
        }
    }

    /// A program lets the engine borrow a message of `bytes` random bytes, and cancels that when some part of it has left.
    pub fn borrow(&mut self, from: NodeId, to: NodeId, channel: Channel, bytes: usize) {
        self.wish(from, to, channel, Wish::Borrowed { bytes });
    }

    /// A program sends a datagram of `bytes`; its content is made from the stamp and checked on arrival. Returns for how many peers it neither left
    /// nor waits.
    pub fn publish(
        &mut self,
        from: NodeId,
        to: Destination,
        (channel_id, epoch): (u16, u32),
        lap: u32,
        key: u32,
        bytes: usize,
    ) -> Result<usize, SendError> {
        self.publish_until(from, to, (channel_id, epoch), lap, key, bytes, None)
    }

    /// As `publish`, with a time at which the datagram is dropped if it has not left.
    #[expect(
        clippy::too_many_arguments,
        reason = "a stamp, a length and a deadline"
    )]
    pub fn publish_until(
        &mut self,
        from: NodeId,
        to: Destination,
        (channel_id, epoch): (u16, u32),
        lap: u32,
        key: u32,
        bytes: usize,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        let incarnation = self.host(from).config.incarnation;
        let mut payload = vec![0; bytes];
        fill(
            datagram_seed(from, incarnation, channel_id, epoch, lap, key),
            &mut payload,
        );
        let datagram = Datagram {
            channel_id,
            epoch,
            lap,
            key,
            payload: &payload,
            ..Datagram::EMPTY
        };
        self.submit_datagram(from, to, datagram, deadline)
    }

    /// As `publish`, with a content of the program's own, which `take_arrivals` returns. The net knows no content of the datagram's channel from now
    /// on, and checks only their stamps.
    pub fn publish_given(
        &mut self,
        from: NodeId,
        to: Destination,
        datagram: Datagram<'_>,
    ) -> Result<usize, SendError> {
        self.given.insert(datagram.channel_id);
        self.submit_datagram(from, to, datagram, None)
    }

    fn submit_datagram(
        &mut self,
        from: NodeId,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        let now = self.now();
        let host = self.host_mut(from);
        let Some(process) = host.process.as_mut() else {
            return Ok(0);
        };
        host.card.begin(now, 0);
        let result = process.datagram(to, datagram, deadline);
        for to in self.host(from).peers.clone() {
            self.oracle.published(from, to);
        }
        self.pump(from);
        result
    }

    /// Sets how fast the node's program takes messages.
    pub fn set_pace(&mut self, node: NodeId, pace: Pace) {
        self.host_mut(node).pace = pace;
        self.take_held(node);
        self.pump(node);
    }

    /// Kills the process. Frames that it had given to its card still leave.
    pub fn crash(&mut self, node: NodeId) {
        self.oracle.ended(node);
        let host = &mut self.hosts[usize::from(node.0)];
        self.medium.traffic.nobody += host.card.clear();
        host.card.end_process();
        self.wishes -= host
            .wishes
            .values()
            .map(|wishes| wishes.len())
            .sum::<usize>();
        host.forget_process();
    }

    /// The process closes its sessions and ends.
    pub fn leave(&mut self, node: NodeId) {
        let now = self.now();
        if let Some(process) = self.host_mut(node).process.as_mut() {
            process.close(now);
        }
        self.pump(node);
        self.crash(node);
    }

    /// Starts the process again as a new incarnation with the same peers.
    pub fn restart(&mut self, node: NodeId) {
        self.check(self.host(node).process.is_none(), || {
            format!("{node} is alive; crash it first")
        });
        self.start(node);
        for peer in self.host(node).peers.clone() {
            self.add_peer(node, peer);
        }
    }

    /// A program reconnects to a dead peer.
    pub fn reconnect(&mut self, node: NodeId, peer: NodeId) {
        let now = self.now();
        if let Some(process) = self.host_mut(node).process.as_mut() {
            process.reconnect_peer(now, peer);
        }
        self.pump(node);
    }

    /// Stops the process (as by SIGSTOP): its ring fills, its timeouts pass.
    pub fn pause(&mut self, node: NodeId) {
        self.host_mut(node).paused = true;
    }

    /// Continues the process.
    pub fn resume(&mut self, node: NodeId) {
        let now = self.now();
        let host = self.host_mut(node);
        host.paused = false;
        host.busy_until = now;
        host.receive_planned = true;
        self.medium.timeline.plan(now, Happening::Receive { node });
        self.pump(node);
    }

    /// Partitions the net: `side` and the other nodes do not reach each other from now on.
    pub fn partition(&mut self, side: &[NodeId]) {
        self.switch.heal();
        for node in side {
            self.switch.set_side(*node, 1);
        }
    }

    /// Ends the partition.
    pub fn heal(&mut self) {
        self.switch.heal();
    }

    /// Puts a frame of a foreign sender into a node's ring.
    pub fn inject(&mut self, to: NodeId, frame: &[u8]) {
        let (from, frame) = (claimed(frame), Bytes::copy_from_slice(frame));
        self.medium
            .timeline
            .plan(self.now(), Happening::AtNode { from, to, frame });
    }

    /// `count` frames of random bytes reach the node at random times within `span`.
    pub fn inject_garbage(&mut self, to: NodeId, count: usize, span: Duration) {
        for _ in 0..count {
            let bytes = garbage(&mut self.medium.rng);
            let at = self.now()
                + Duration::from_nanos(self.medium.rng.within(0..span.as_nanos().max(1)));
            let (from, frame) = (claimed(&bytes), bytes.into());
            self.medium
                .timeline
                .plan(at, Happening::AtNode { from, to, frame });
        }
    }

    /// The state of the traffic with a peer, as the node's program can read it.
    pub fn flow(&self, node: NodeId, peer: NodeId) -> Option<Flow> {
        self.host(node).process.as_ref()?.flow(peer)
    }

    /// The node's engine, if its process runs.
    pub fn engine(&self, node: NodeId) -> Option<&P::Engine> {
        self.host(node).process.as_ref().map(P::engine)
    }

    /// Calls the engine as its program would, and then polls it: for functions without a method here.
    pub fn call<T>(
        &mut self,
        node: NodeId,
        call: impl FnOnce(&mut P::Engine, Instant) -> T,
    ) -> Option<T> {
        self.copies = true;
        let now = self.now();
        let answer = call(self.host_mut(node).process.as_mut()?.engine_mut(), now);
        self.pump(node);
        Some(answer)
    }

    /// The configuration of the node's engine.
    pub fn config_of(&self, node: NodeId) -> &Config {
        &self.host(node).config
    }

    /// All events that its engine reported, in order, over all incarnations.
    pub fn events(&self, node: NodeId) -> &[(Instant, Event)] {
        &self.host(node).events
    }

    /// When the node was first told that `peer` is dead.
    pub fn declared_dead(&self, node: NodeId, peer: NodeId) -> Option<Instant> {
        let dead =
            |event: &Event| matches!(event, Event::PeerDead { peer: who, .. } if *who == peer);
        self.events(node)
            .iter()
            .find(|(_, event)| dead(event))
            .map(|(at, _)| *at)
    }

    /// Whether the node has the peer up now.
    pub fn is_up(&self, node: NodeId, peer: NodeId) -> bool {
        self.oracle.is_up(node, peer)
    }

    /// Whether the node has the peer's present incarnation up.
    pub fn has_met(&self, node: NodeId, peer: NodeId) -> bool {
        self.oracle.has_met(node, peer)
    }

    /// Bodies of the messages that came to `node` by `send`, in order of delivery.
    pub fn received(&self, node: NodeId) -> &[Vec<u8>] {
        &self.host(node).bodies
    }

    /// All messages delivered to `node`, in order.
    pub fn deliveries(&self, node: NodeId) -> &[Received] {
        &self.host(node).received
    }

    /// Bytes of all messages delivered to `node`.
    pub fn delivered_bytes(&self, node: NodeId) -> u64 {
        self.host(node).received_bytes
    }

    /// All datagrams delivered to `node`'s program, in order.
    pub fn datagrams(&self, node: NodeId) -> &[ReceivedDatagram] {
        &self.host(node).datagrams
    }

    /// Takes what has come to `node` since the last call. The net does not keep it: `deliveries`, `received`, `datagrams` and `events` begin anew.
    pub fn take_arrivals(&mut self, node: NodeId) -> Arrivals {
        let host = self.host_mut(node);
        Arrivals {
            deliveries: std::mem::take(&mut host.received),
            bodies: std::mem::take(&mut host.bodies),
            datagrams: std::mem::take(&mut host.datagrams),
            payloads: std::mem::take(&mut host.payloads),
            events: std::mem::take(&mut host.events),
        }
    }

    /// Most bytes of messages ever delivered to the node and not yet taken by its program.
    pub fn held_peak(&self, node: NodeId) -> usize {
        self.host(node).held_peak
    }

    /// Bytes of messages delivered to the node and not yet taken by its program.
    pub fn held(&self, node: NodeId) -> usize {
        self.host(node).held_bytes
    }

    /// Frames that found the node's receive ring full.
    pub fn receive_full(&self, node: NodeId) -> u64 {
        self.host(node).receive_full
    }

    /// Most frames that were ever in the node's receive ring.
    pub fn ring_peak(&self, node: NodeId) -> usize {
        self.host(node).ring_peak
    }

    /// Messages on their way: neither delivered nor failed.
    pub fn waiting(&self) -> usize {
        self.oracle.waiting()
    }

    fn wish(&mut self, from: NodeId, to: NodeId, channel: Channel, wish: Wish) {
        self.host_mut(from)
            .wishes
            .entry(to)
            .or_default()
            .push_back((channel, wish));
        self.wishes += 1;
        self.offer(from, to);
        self.pump(from);
    }
}

/// The source address of a forged frame: that of the node it names.
fn claimed(frame: &[u8]) -> NodeId {
    tsumuji_wire::source_of(frame).unwrap_or(NodeId(0))
}

/// The seed of a datagram's content, from its whole stamp.
pub(super) fn datagram_seed(
    source: NodeId,
    incarnation: u32,
    port: u16,
    epoch: u32,
    lap: u32,
    start: u32,
) -> u64 {
    let who = u64::from(source.0) << 48 | u64::from(port) << 32 | u64::from(incarnation);
    mix(mix(who) ^ mix(u64::from(epoch) << 32 | u64::from(lap)) ^ u64::from(start))
}
