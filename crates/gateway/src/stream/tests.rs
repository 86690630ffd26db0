//! Two gateways' streams of one connection, over shared memory; the programs are written by hand.

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{ChannelOptions, Membership, Options, ProgressBy};
use tsumuji_streams::address::Address;
use tsumuji_streams::ring::{CLIENT, GENERATION_SHIFT, OFFERED, RING_BYTES, SERVER};

use super::*;
use crate::mailbox;
use crate::segment::Segment;

const CHANNEL: u16 = 16;
const BUDGET_BYTES: usize = 512 << 10;
/// Steps in which everything must have happened.
const STEPS: usize = 20_000;

struct Ignored;

impl Handler for Ignored {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
}

/// A gateway with one stream, and the program's end of what wakes it.
struct Half {
    endpoint: Endpoint,
    stream: Stream,
    room: Vec<u8>,
    _wake: OwnedFd,
}

impl Half {
    fn new(job: &OwnedFd, id: u16) -> Self {
        let link = Shm::attach(job, id).expect("a link");
        let options = Options {
            progress: ProgressBy::Program,
            ..Options::default()
        };
        let membership = Membership::local(NodeId(id), 2);
        let mut endpoint = Endpoint::new(link, membership, options).expect("an endpoint");
        let segment = Arc::new(Segment::new().expect("a segment"));
        let slot = segment.memory().slot(0);
        ring::reset(slot);
        let at = |port| Address { ip: [9; 16], port };
        let pair = Pair {
            client: at(1),
            server: at(2),
        };
        pair.store(&slot.pair);
        // The client has confirmed, and the server claimed.
        let (role, side, bit) = match id {
            0 => (Role::Client, SERVER, CONFIRMED),
            _ => (Role::Server, CLIENT, CLAIMED),
        };
        slot.state
            .store(1 << GENERATION_SHIFT | OFFERED | bit, Ordering::Release);
        let (ours, theirs) = mailbox::pair().expect("a pair");
        let end = End {
            segment,
            slot: 0,
            side,
            generation: 1,
            wake: Arc::new(ours),
        };
        let peer = NodeId(1 - id);
        let mut stream = Stream::new(end, role, peer, u32::from(id));
        stream.there = Some((u32::from(1 - id), CHANNEL));
        let options = ChannelOptions {
            budget_bytes: BUDGET_BYTES,
            ..ChannelOptions::default()
        };
        let receiver = stream.receiver(0, &Listed::default());
        endpoint
            .open_with(CHANNEL, options, receiver)
            .expect("a channel");
        Self {
            endpoint,
            stream,
            room: vec![0; TUNING.piece_bytes],
            _wake: theirs,
        }
    }

    fn serve(&mut self) -> Result<Served, Fault> {
        self.endpoint.poll(&mut Ignored).expect("a link");
        self.stream.serve(&mut self.endpoint, &mut self.room)
    }

    /// What the program has written, as far as there is room.
    fn program_writes(&self, bytes: &[u8]) -> usize {
        let End { slot, side, .. } = self.stream.end;
        let ring = self.stream.end.segment.memory().writer(slot, 1 - side);
        ring.write_bytes(bytes).expect("a ring")
    }

    fn program_closes(&self) {
        let out = &self.stream.end.program().out;
        out.is_closed.store(1, Ordering::SeqCst);
    }
}

/// Both halves of a connection that is carried.
fn carried() -> [Half; 2] {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("memory");
    let mut halves = [0, 1].map(|id| Half::new(&job, id));
    for _ in 0..STEPS {
        for half in &mut halves {
            half.serve().expect("no fault");
        }
        if halves.iter().all(|half| half.stream.is_agreed()) {
            return halves;
        }
    }
    panic!("they do not agree");
}

/// A program that closes with much unread on its way ends the stream at both gateways, and the other program may write on meanwhile.
#[test]
fn much_unread_holds_up_no_end() {
    let [mut client, mut server] = carried();
    let much = vec![7; RING_BYTES as usize];
    let mut written = 0;
    for _ in 0..STEPS {
        written += server.program_writes(&much);
        server.serve().expect("no fault");
        client.serve().expect("no fault");
    }
    assert!(written > RING_BYTES as usize + BUDGET_BYTES, "{written}");
    assert_eq!(server.program_writes(&much), 0);
    client.program_closes();
    let mut is_done = [false; 2];
    for _ in 0..STEPS {
        if !is_done[0] {
            is_done[0] = client.serve().expect("no fault") == Served::Done;
        }
        is_done[1] |= server.serve().expect("no fault") == Served::Done;
        let other = &server.stream.end.mine().out;
        if other.is_closed.load(Ordering::Acquire) != 0 {
            // As a program does that is told so.
            server.program_closes();
        }
    }
    assert_eq!(is_done, [true; 2]);
}

/// What one program breaks resets the other's connection.
#[test]
fn faults_are_told() {
    let [mut client, mut server] = carried();
    let out = &client.stream.end.program().out;
    out.tail.store(u64::MAX / 2, Ordering::Release);
    assert!(matches!(client.serve(), Err(Fault::Broken)));
    assert!(client.stream.abort());
    let is_done = (0..STEPS).any(|_| matches!(client.serve(), Ok(Served::Done)));
    assert!(is_done && !client.stream.abort());
    for _ in 0..STEPS {
        client.endpoint.poll(&mut Ignored).expect("a link");
        server.serve().expect("no fault");
    }
    let out = &server.stream.end.mine().out;
    assert_eq!(out.is_closed.load(Ordering::Acquire), 1);
    assert_eq!(out.ends_by_reset.load(Ordering::Acquire), 1);
}
