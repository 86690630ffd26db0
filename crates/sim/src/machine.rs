//! What the net runs: the production engine, or a stand-in when the net itself is under test.

use tsumuji_proto::{
    Config, Congestion, Datagram, Destination, Duration, Engine, Event, Flow, Instant, Lane, Loan,
    NodeId, Payload, SendId, Sink, SubmitError,
};

/// The engine as the net drives it. Every function means what the engine's own function of that name means.
#[expect(
    missing_docs,
    reason = "the engine documents them; a second text would drift"
)]
pub trait Machine {
    fn new(config: Config) -> Self;
    fn add_peer(&mut self, now: Instant, peer: NodeId);
    fn revive_peer(&mut self, now: Instant, peer: NodeId);
    fn handle_frame(&mut self, now: Instant, frame: &[u8], sink: &mut impl Sink);
    fn submit(
        &mut self,
        to: NodeId,
        lane: Lane,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError>;
    fn submit_datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Instant>,
    ) -> Result<usize, SubmitError>;
    /// A stand-in need not know how to be lent a message.
    fn submit_lent(
        &mut self,
        to: NodeId,
        _lane: Lane,
        _length_bytes: usize,
        _notify: bool,
    ) -> Result<SendId, SubmitError> {
        Err(SubmitError::UnknownPeer { peer: to })
    }
    fn unsent_bytes(&self, loan: &Loan<'_>) -> Result<Option<usize>, SubmitError> {
        Err(SubmitError::UnknownPeer { peer: loan.to() })
    }
    fn keep(&mut self, _loan: &Loan<'_>) -> bool {
        true
    }
    fn next_destination(&mut self, now: Instant) -> Option<Destination>;
    fn write_frame(
        &mut self,
        now: Instant,
        to: Destination,
        loan: &Loan<'_>,
        slot: &mut [u8],
    ) -> usize;
    fn defer(&mut self, to: Destination);
    fn handle_timeout(&mut self, now: Instant);
    fn poll_timeout(&self) -> Option<Instant>;
    fn poll_event(&mut self) -> Option<Event>;
    fn flow(&self, peer: NodeId) -> Option<Flow>;
    fn release(&mut self, peer: NodeId, bytes: usize);
    fn recycle(&mut self, buffer: Vec<u8>);
    fn buffer(&mut self, capacity: usize) -> Vec<u8>;
    fn close(&mut self, now: Instant);
}

/// An engine's configuration for simulations; the net puts `me` and `incarnation` in.
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

impl Machine for Engine {
    fn new(config: Config) -> Self {
        Self::new(config)
    }
    fn add_peer(&mut self, now: Instant, peer: NodeId) {
        self.add_peer(now, peer);
    }
    fn revive_peer(&mut self, now: Instant, peer: NodeId) {
        self.revive_peer(now, peer);
    }
    fn handle_frame(&mut self, now: Instant, frame: &[u8], sink: &mut impl Sink) {
        self.handle_frame(now, frame, sink);
    }
    fn submit(
        &mut self,
        to: NodeId,
        lane: Lane,
        payload: Payload<'_>,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        self.submit(to, lane, payload, notify)
    }
    fn submit_datagram(
        &mut self,
        to: Destination,
        datagram: Datagram<'_>,
        deadline: Option<Instant>,
    ) -> Result<usize, SubmitError> {
        self.submit_datagram(to, datagram, deadline)
    }
    fn submit_lent(
        &mut self,
        to: NodeId,
        lane: Lane,
        length_bytes: usize,
        notify: bool,
    ) -> Result<SendId, SubmitError> {
        self.submit_lent(to, lane, length_bytes, notify)
    }
    fn unsent_bytes(&self, loan: &Loan<'_>) -> Result<Option<usize>, SubmitError> {
        self.unsent_bytes(loan)
    }
    fn keep(&mut self, loan: &Loan<'_>) -> bool {
        self.keep(loan)
    }
    fn next_destination(&mut self, now: Instant) -> Option<Destination> {
        self.next_destination(now)
    }
    fn write_frame(
        &mut self,
        now: Instant,
        to: Destination,
        loan: &Loan<'_>,
        slot: &mut [u8],
    ) -> usize {
        self.write_frame(now, to, loan, slot)
    }
    fn defer(&mut self, to: Destination) {
        self.defer(to);
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.handle_timeout(now);
    }
    fn poll_timeout(&self) -> Option<Instant> {
        self.poll_timeout()
    }
    fn poll_event(&mut self) -> Option<Event> {
        self.poll_event()
    }
    fn flow(&self, peer: NodeId) -> Option<Flow> {
        self.flow(peer)
    }
    fn release(&mut self, peer: NodeId, bytes: usize) {
        self.release(peer, bytes);
    }
    fn recycle(&mut self, buffer: Vec<u8>) {
        self.recycle(buffer);
    }
    fn buffer(&mut self, capacity: usize) -> Vec<u8> {
        self.buffer(capacity)
    }
    fn close(&mut self, now: Instant) {
        self.close(now);
    }
}
