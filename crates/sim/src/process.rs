//! The process of a simulated node: the production engine in the production loop, or a stand-in when the net itself is under test.

use crate::card::Card;
use tsumuji_node::simulated::{Driver, Program, SendError};
use tsumuji_proto::{
    Borrowed, Channel, Config, Congestion, Datagram, Destination, Duration, Engine, Flow, Instant,
    NodeId, Payload, SendId, SubmitError,
};

/// A process as the net drives it. Unless stated otherwise, a function means the same as the engine's function of that name.
#[expect(
    missing_docs,
    reason = "the engine documents them; a second text would drift"
)]
pub trait Process {
    /// The part that tests may inspect.
    type Engine;

    fn new(config: Config, card: Card) -> Self;
    fn engine(&self) -> &Self::Engine;
    fn engine_mut(&mut self) -> &mut Self::Engine;
    fn add_peer(&mut self, now: Instant, peer: NodeId);
    fn reconnect_peer(&mut self, now: Instant, peer: NodeId);
    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError>;
    /// As `Driver::datagram`.
    fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError>;
    /// A stand-in need not support borrowed messages.
    fn submit_borrowed(
        &mut self,
        to: NodeId,
        _channel: Channel,
        _length_bytes: usize,
        _notify: bool,
    ) -> Result<SendId, SubmitError> {
        Err(SubmitError::UnknownPeer { peer: to })
    }
    fn unsent_bytes(&self, borrowed: &Borrowed<'_>) -> Result<Option<usize>, SubmitError> {
        Err(SubmitError::UnknownPeer {
            peer: borrowed.to(),
        })
    }
    fn retain(&mut self, _borrowed: &Borrowed<'_>) -> bool {
        true
    }
    /// Polls: receives the frames that the card allows, handles expired timeouts, and sends as many frames as the card takes.
    fn poll_once(&mut self, program: &mut impl Program);
    /// Latest time of the next poll.
    fn deadline(&self) -> Option<Instant>;
    /// Whether frames are ready to leave once the card has room.
    fn has_backlog(&self) -> bool;
    /// Frames refused for their checksums in all.
    fn refused_frames(&self) -> u64 {
        0
    }
    fn flow(&self, peer: NodeId) -> Option<Flow>;
    fn release(&mut self, peer: NodeId, bytes: usize);
    fn recycle(&mut self, buffer: Vec<u8>);
    fn close(&mut self, now: Instant);
}

/// An engine's configuration for simulations; the net fills in `me` and `incarnation`.
///
/// 1500-byte frames, a ring of 256, 16 MiB for arrived messages, 8 MiB of queue per peer, keep-alive 20 ms, death after 100 ms.
pub fn config() -> Config {
    Config {
        me: NodeId(0),
        incarnation: 1,
        frame_bytes: 1500,
        receive_frames: 256,
        lossless: false,
        ring_bytes: 0,
        congestion: Congestion::Credit,
        budget_bytes: 16 << 20,
        message_limit_bytes: 1 << 30,
        send_queue_bytes: 8 << 20,
        keep_alive: Duration::from_millis(20),
        dead_after: Duration::from_millis(100),
    }
}

/// The production engine, driven by the production loop.
#[derive(Debug)]
pub struct Production(Driver<Card, Card>);

impl Process for Production {
    type Engine = Engine;

    fn new(config: Config, card: Card) -> Self {
        let me = config.me;
        Self(Driver::new(me, card.clone(), Engine::new(config), card))
    }
    fn engine(&self) -> &Engine {
        self.0.engine()
    }
    fn engine_mut(&mut self) -> &mut Engine {
        self.0.engine_mut()
    }
    fn add_peer(&mut self, now: Instant, peer: NodeId) {
        self.0.add_peer(now, peer, Card::addr(peer));
    }
    fn reconnect_peer(&mut self, now: Instant, peer: NodeId) {
        self.engine_mut().reconnect_peer(now, peer);
    }
    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        self.0.submit(to, channel, payload, notify)
    }
    fn datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Duration>,
    ) -> Result<usize, SendError> {
        self.0.datagram(to, datagram, deadline)
    }
    fn submit_borrowed(
        &mut self,
        to: NodeId,
        channel: Channel,
        length_bytes: usize,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        self.engine_mut()
            .submit_borrowed(to, channel, length_bytes, notify)
    }
    fn unsent_bytes(&self, borrowed: &Borrowed<'_>) -> Result<Option<usize>, SubmitError> {
        self.engine().unsent_bytes(borrowed)
    }
    fn retain(&mut self, borrowed: &Borrowed<'_>) -> bool {
        self.engine_mut().retain(borrowed)
    }
    fn poll_once(&mut self, program: &mut impl Program) {
        self.0.poll_once(program).expect("a card does not fail");
    }
    fn deadline(&self) -> Option<Instant> {
        self.0.next_timer()
    }
    fn has_backlog(&self) -> bool {
        self.0.has_backlog()
    }
    fn refused_frames(&self) -> u64 {
        self.0.refused_frames()
    }
    fn flow(&self, peer: NodeId) -> Option<Flow> {
        self.engine().flow(peer)
    }
    fn release(&mut self, peer: NodeId, bytes: usize) {
        self.engine_mut().release(peer, bytes);
    }
    fn recycle(&mut self, buffer: Vec<u8>) {
        self.engine_mut().recycle(buffer);
    }
    fn close(&mut self, now: Instant) {
        self.engine_mut().close(now);
    }
}
