//! Boards over real endpoints, each in its own thread.

use std::thread;
use std::time::Duration;

use std::os::fd::OwnedFd;
use tsumuji_board::{Board, Elements, Feeding, Lap, wait_fresh};
use tsumuji_link::impair::{Impair, ImpairConfig};

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{
    AnyLink, Channel, Context, Delivery, Endpoint, Handler, Membership, NodeId, Options,
    RemoteFlow, SendError,
};

const CHANNEL: u16 = 9;
const LEN: usize = 1000;
/// Only turns a hang into a failure.
const LONG: Duration = Duration::from_secs(60);

#[derive(Default)]
struct Rest {
    messages: usize,
    /// Answers about flows.
    answers: usize,
}

impl Handler for Rest {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {
        self.messages += 1;
    }

    fn flows(&mut self, _: NodeId, _: &[RemoteFlow], _: Option<NodeId>) {
        self.answers += 1;
    }
}

fn node(job: &OwnedFd, id: u16) -> (Endpoint, Board) {
    let impair = ImpairConfig {
        loss: 0.3,
        seed: u64::from(id),
        ..ImpairConfig::default()
    };
    let link = Impair::new(Shm::attach(job, id).unwrap(), impair).unwrap();
    let endpoint = Endpoint::new(
        AnyLink::own(link),
        Membership::local(NodeId(id), 2),
        Options::default(),
    )
    .unwrap();
    let mut board = Board::new(CHANNEL, NodeId(id), vec![0..LEN, LEN..LEN]).unwrap();
    board.set_elements(Elements::Fixed(7), endpoint.datagram_capacity_bytes());
    (endpoint, board)
}

/// Although 30 % of frames are lost and each lap is published once, waiting ends: repairs bring what is missing. A lap that
/// never comes is not waited for beyond the time given, and messages and answers go where they belong meanwhile.
#[test]
fn waiting_for_a_lap_ends_under_loss() {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).unwrap();
    let (mut endpoint, mut board) = node(&job, 0);
    let (mut reader, mut copy) = node(&job, 1);
    let owner = thread::spawn(move || {
        assert!(endpoint.wait_up(LONG).unwrap().is_empty());
        endpoint
            .send(NodeId(1), Channel::ordered(0), b"a message beside")
            .unwrap();
        let first = NodeId(0);
        endpoint.request_flows(NodeId(1), first, 1).unwrap();
        let mut rest = Rest::default();
        let mut lap = Lap::FIRST;
        for pass in 1..=3 {
            board
                .publish(&mut endpoint, 0..LEN, &[f64::from(pass); LEN], lap)
                .unwrap();
            lap = lap.next();
        }
        while rest.messages == 0 || rest.answers == 0 {
            board.repair(&mut endpoint).unwrap();
            let wait = Duration::from_millis(1);
            endpoint
                .poll_wait(
                    &mut Feeding {
                        board: &mut board,
                        rest: &mut rest,
                    },
                    wait,
                )
                .unwrap();
        }
        let _ = endpoint.close(LONG);
    });
    let mut rest = Rest::default();
    let (source, third) = (NodeId(0), Lap::FIRST.next().next());
    let fresh = wait_fresh(&mut copy, &mut reader, &mut rest, source, third, LONG).unwrap();
    assert!(fresh && (0..LEN).all(|index| copy.get(index) == 3.0));
    let short = Duration::from_millis(20);
    let fresh = wait_fresh(
        &mut copy,
        &mut reader,
        &mut rest,
        source,
        third.next(),
        short,
    )
    .unwrap();
    assert!(!fresh);
    while rest.messages == 0 {
        let mut handler = Feeding {
            board: &mut copy,
            rest: &mut rest,
        };
        reader.poll_wait(&mut handler, LONG).unwrap();
    }
    reader.send(source, Channel::ordered(0), b"done").unwrap();
    // It may leave while its acknowledgements get lost.
    let flushed = reader.flush(LONG);
    assert!(
        matches!(flushed, Ok(true) | Err(SendError::MessagesLost { .. })),
        "{flushed:?}"
    );
    owner.join().unwrap();
}
