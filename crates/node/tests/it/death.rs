//! Peers that die without a word, leave, and come back as another life.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use crate::common::meddled::Meddled;
use crate::common::{Cut, LONG, Over, inet, pair, udp, udp_again};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{
    AnyLink, Channel, ChannelOptions, Congestion, Context, Datagram, Delivery, Destination,
    Endpoint, Handler, Membership, NodeId, Options, ProgressBy, RecvError, SendError,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

fn quick(congestion: Congestion) -> Options {
    Options {
        congestion,
        keep_alive: Duration::from_millis(50),
        // Longer than a busy machine keeps a thread waiting: nobody else may be taken for dead.
        dead_after: Duration::from_secs(2),
        ..Options::default()
    }
}

/// Polls until the peer's fate is known to `send`; a hang fails.
fn until_dead(a: &mut Endpoint) {
    let start = Instant::now();
    while !matches!(
        a.try_send(B, CHANNEL, b"?"),
        Err(SendError::PeerDead { peer: B })
    ) {
        a.recv(Duration::from_millis(1)).expect("recv");
        assert!(start.elapsed() < LONG, "death goes unnoticed");
    }
}

/// A peer that falls silent is dead in bounded time: blocked senders and waiters get the error, tracked messages fail.
#[test]
fn silent_peer_is_dead_and_fails_everything() {
    Congestion::ALL
        .into_iter()
        .for_each(silent_peer_is_dead_and_fails_everything_under);
}

fn silent_peer_is_dead_and_fails_everything_under(congestion: Congestion) {
    let (a_link, b_link) = (udp(), udp());
    let addrs = [inet(&a_link), inet(&b_link)];
    let cut = Arc::new(AtomicBool::new(false));
    let options = Options {
        send_queue_bytes: 1 << 20,
        ..quick(congestion)
    };
    let mut a = Endpoint::new(a_link, Membership::inet(A, &addrs), options.clone()).expect("a");
    let stop = Arc::new(AtomicBool::new(false));
    let peer = {
        let link = Meddled {
            link: b_link,
            meddler: Cut(Arc::clone(&cut)),
        };
        let stop = Arc::clone(&stop);
        thread::spawn(move || {
            let mut b =
                Endpoint::new(AnyLink::own(link), Membership::inet(B, &addrs), options).expect("b");
            while !stop.load(Ordering::Relaxed) {
                b.recv(Duration::from_millis(1)).expect("recv");
            }
        })
    };
    assert!(a.wait_up(LONG).expect("up").is_empty());
    cut.store(true, Ordering::Relaxed);
    let id = a
        .send_tracked(B, CHANNEL, b"never acknowledged")
        .expect("queued");
    let big = vec![0; 3 << 20];
    let blocked = loop {
        match a.send(B, CHANNEL, &big) {
            Ok(()) => {}
            Err(error) => break error,
        }
    };
    assert!(
        matches!(blocked, SendError::PeerDead { peer: B }),
        "{blocked}"
    );
    assert!(matches!(
        a.wait_sent(B, id, LONG),
        Err(SendError::PeerDead { peer: B })
    ));
    // What untracked messages were queued beside is told once.
    match a.wait_writable(B, 0, 1, LONG) {
        Err(SendError::MessagesLost { peer: B, messages }) => {
            assert!(messages > 0, "something was queued");
            assert!(matches!(
                a.wait_writable(B, 0, 1, LONG),
                Err(SendError::PeerDead { peer: B })
            ));
        }
        told => panic!("{told:?}"),
    }
    assert!(!a.is_up(B));
    assert!(a.flush(LONG).expect("flush"), "nothing is owed to the dead");
    stop.store(true, Ordering::Relaxed);
    peer.join().expect("peer");
}

/// A peer that closes is known to be gone at once, not after silence.
#[test]
fn leaving_is_announced() {
    for over in [Over::Shm, Over::Udp] {
        // With these defaults silence would take ten seconds.
        let (mut a, mut b) = pair(
            over,
            &Options {
                dead_after: Duration::from_secs(3600),
                ..Options::default()
            },
        );
        let peer = thread::spawn(move || {
            assert!(b.wait_up(LONG).expect("up").is_empty());
            b.send(A, CHANNEL, b"bye").expect("send");
            let _ = b.close(LONG);
        });
        assert!(a.wait_up(LONG).expect("up").is_empty());
        assert_eq!(a.recv(LONG).expect("recv").expect("message").body, b"bye");
        until_dead(&mut a);
        peer.join().expect("peer");
    }
}

/// Nobody waits for who has left, not even by name: the error says who it was. Tried again, it is only missing.
#[test]
fn who_left_is_not_waited_for() {
    let options = Options {
        dead_after: Duration::from_secs(3600),
        ..Options::default()
    };
    for left_before in [false, true] {
        let (mut a, mut b) = pair(Over::Shm, &options);
        let met = Arc::new(Barrier::new(2));
        let met_there = Arc::clone(&met);
        let peer = thread::spawn(move || {
            assert!(b.wait_up(LONG).expect("up").is_empty());
            met_there.wait();
            let _ = b.close(LONG);
        });
        assert!(a.wait_up(LONG).expect("up").is_empty());
        met.wait();
        if left_before {
            until_dead(&mut a);
        }
        while a.is_up(B) {
            a.recv(Duration::from_millis(1)).expect("recv");
        }
        let waited = a.wait_up(LONG);
        assert!(
            matches!(waited, Err(SendError::PeerDead { peer: B })),
            "{waited:?}"
        );
        a.reconnect(B).expect("a member");
        assert_eq!(a.wait_up(Duration::ZERO).expect("asked again"), [B]);
        peer.join().expect("peer");
    }
}

/// Receives that name a dead peer get what it has left, and then an error, however long they would wait; those of anybody's messages wait.
#[test]
fn nobody_waits_for_messages_of_the_dead() {
    for over in [Over::Shm, Over::Udp] {
        let (mut a, mut b) = pair(over, &quick(Options::default().congestion));
        a.open(7, ChannelOptions::default()).expect("open");
        a.open(8, ChannelOptions::default()).expect("open");
        let peer = thread::spawn(move || {
            b.send(A, Channel::ordered(7), b"last").expect("send");
            assert!(b.flush(LONG).expect("flush"));
            b.vanish();
        });
        let left = a.ready_on(Some(7), Some(B), LONG).expect("it is alive");
        assert_eq!(left, Some(4));
        let post = a.post(8, Some(B), vec![0; 10]).expect("post");
        let waited = a.wait_posted(&post, LONG);
        let is_told = matches!(waited, Err(RecvError::PeerDead { peer: B }));
        assert!(is_told, "{over:?}: {waited:?}");
        assert_eq!(a.unpost(post).expect("unpost").buffer, [0_u8; 10]);
        peer.join().expect("peer");
        assert!(a.is_dead(B));

        let last = a.recv_on(7, Some(B), LONG).expect("it was left");
        assert_eq!(last.expect("it was left").body, b"last");
        let told = [
            a.recv_on(7, Some(B), LONG).err(),
            a.recv_retained(Some(7), Some(B), LONG).err(),
            a.ready_on(Some(7), Some(B), LONG).err(),
            a.recv_from(B, LONG).err(),
            a.recv_from(B, Duration::ZERO).err(),
        ];
        for error in told {
            let is_told = matches!(error, Some(RecvError::PeerDead { peer: B }));
            assert!(is_told, "{over:?}: {error:?}");
        }
        let of_anyone = a.recv_on(7, None, Duration::from_millis(1));
        assert!(of_anyone.expect("it may be up again").is_none());
    }
}

/// A process that died without a word and was started again at the same address is a new life: old messages fail, new ones pass.
#[test]
fn restarted_peer_joins_as_new_session() {
    Congestion::ALL
        .into_iter()
        .for_each(restarted_peer_joins_as_new_session_under);
}

fn restarted_peer_joins_as_new_session_under(congestion: Congestion) {
    let (a_link, b_link) = (udp(), udp());
    let addrs = [inet(&a_link), inet(&b_link)];
    let mut a = Endpoint::new(a_link, Membership::inet(A, &addrs), quick(congestion)).expect("a");
    let session = |link, cut: &Arc<AtomicBool>, incarnation| {
        let link = Meddled {
            link,
            meddler: Cut(Arc::clone(cut)),
        };
        let options = Options {
            incarnation: Some(incarnation),
            ..quick(congestion)
        };
        Endpoint::new(AnyLink::own(link), Membership::inet(B, &addrs), options).expect("b")
    };
    let first_cut = Arc::new(AtomicBool::new(false));
    let mut b = session(b_link, &first_cut, 1);
    let meet = |a: &mut Endpoint, b: &mut Endpoint| {
        let start = Instant::now();
        while !(a.is_up(B) && b.is_up(A)) {
            let a_got = a.try_recv().expect("a");
            assert!(a_got.is_none() && b.try_recv().expect("b").is_none());
            assert!(start.elapsed() < LONG, "they do not meet");
        }
    };
    meet(&mut a, &mut b);
    a.send(B, CHANNEL, b"first").expect("send");
    assert_eq!(b.recv(LONG).expect("recv").expect("message").body, b"first");
    assert!(a.flush(LONG).expect("it came"));
    first_cut.store(true, Ordering::Relaxed);
    drop(b);
    let lost = a
        .send_tracked(B, CHANNEL, &vec![1; 100_000])
        .expect("queued");

    let mut b = session(udp_again(addrs[1]), &Arc::new(AtomicBool::new(false)), 2);
    let start = Instant::now();
    loop {
        let open = matches!(a.is_sent(B, lost), Ok(false));
        assert!(
            b.try_recv().expect("b").is_none(),
            "nothing of the old life reaches the new one"
        );
        if !open && b.is_up(A) {
            break;
        }
        a.try_recv().expect("a");
        assert!(start.elapsed() < LONG, "the new life is not noticed");
    }
    assert!(
        matches!(a.is_sent(B, lost), Err(SendError::PeerDead { .. })),
        "what the old life had not got has failed"
    );
    meet(&mut a, &mut b);
    assert!(matches!(
        a.send(B, CHANNEL, b"second"),
        Err(SendError::MessagesLost {
            peer: B,
            messages: 1
        })
    ));
    a.send(B, CHANNEL, b"second").expect("told before");
    assert_eq!(
        b.recv(LONG).expect("recv").expect("message").body,
        b"second"
    );
}

/// Frames that bear a member's id but come from elsewhere are dropped before they can do anything.
#[test]
fn frames_from_elsewhere_are_dropped() {
    let (a_link, b_link) = (udp(), udp());
    let addrs = [inet(&a_link), inet(&b_link)];
    let mut a = Endpoint::new(
        a_link,
        Membership::inet(A, &addrs),
        quick(Congestion::Credit),
    )
    .expect("a");
    // The impostor states B's id and lives at another port.
    let impostor = udp();
    let claimed = [addrs[0], inet(&impostor)];
    let mut impostor = Endpoint::new(
        impostor,
        Membership::inet(B, &claimed),
        quick(Congestion::Credit),
    )
    .expect("impostor");
    let start = Instant::now();
    while a.counters().spoofed_source_frames == 0 {
        assert!(a.try_recv().expect("a").is_none() && impostor.try_recv().expect("b").is_none());
        assert!(start.elapsed() < LONG, "no frame came");
    }
    assert!(!a.is_up(B));
}

/// What a library's handler gets says which life of its sender it is of: what came before the library had opened its channel, what waited
/// while its sender died, and what the next life sends before the death is told.
#[test]
fn deliveries_name_the_session() {
    const CHANNEL_ID: u16 = Channel::LIBRARY_IDS;
    #[derive(Default)]
    struct Seen(Vec<(u64, Vec<u8>)>);
    impl Handler for Seen {
        fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
            self.0
                .push((delivery.session, delivery.body.bytes().to_vec()));
        }
        fn datagram(&mut self, context: &mut Context<'_>, datagram: Datagram<'_>) {
            self.0.push((context.session(), datagram.payload.to_vec()));
        }
    }
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
    let open = |id: NodeId| {
        let link = Shm::attach(&job, id.0).expect("attach");
        Endpoint::new(link, Membership::local(id, 2), Options::default()).expect("endpoint")
    };
    let (mut a, mut seen) = (open(A), Seen::default());
    for shelved in [true, false, true] {
        let ended_sessions = a.ended_sessions(B);
        let mut b = open(B);
        let start = Instant::now();
        while !b.is_up(A) {
            assert!(b.try_recv().expect("b").is_none() && a.try_recv().expect("a").is_none());
            assert!(start.elapsed() < LONG, "they do not meet");
        }
        b.open(CHANNEL_ID, ChannelOptions::default()).expect("open");
        b.try_send_joined(A, Channel::ordered(CHANNEL_ID), (b"a", b"side"))
            .expect("room");
        b.datagram(
            Destination::Broadcast,
            Datagram {
                channel_id: CHANNEL_ID,
                payload: b"datagram",
                ..Datagram::EMPTY
            },
            None,
        )
        .expect("datagram");
        let mut b = Some(b);
        if shelved {
            a.progress().expect("a");
            b = None;
            while a.ended_sessions(B) == ended_sessions {
                a.recv(Duration::from_millis(1)).expect("a");
                assert!(start.elapsed() < LONG, "nobody hears of the death");
            }
        }
        if a.channel(CHANNEL_ID).is_none() {
            assert!(a.poll_on(CHANNEL_ID, &mut seen).is_err());
            a.open(CHANNEL_ID, ChannelOptions::default()).expect("open");
        }
        while seen.0.len() < 2 {
            a.poll_on(CHANNEL_ID, &mut seen).expect("a");
            assert!(start.elapsed() < LONG, "nothing came");
        }
        assert_eq!(
            seen.0,
            [
                (ended_sessions, b"aside".to_vec()),
                (ended_sessions, b"datagram".to_vec())
            ]
        );
        seen.0.clear();
        drop(b);
        while a.ended_sessions(B) == ended_sessions {
            a.recv(Duration::from_millis(1)).expect("a");
            assert!(start.elapsed() < LONG, "nobody hears of the death");
        }
    }
}

/// A peer that was started again, unseen so far, gets nothing of a message for its last life, and the sender is told: of one frame, of several,
/// and by number.
#[test]
fn nothing_for_the_last_session_is_lost_silently() {
    for bytes in [10, 100_000, 400_000] {
        let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
        let open = |id: NodeId| {
            let link = Shm::attach(&job, id.0).expect("attach");
            let options = Options {
                progress: ProgressBy::Program,
                ..Options::default()
            };
            Endpoint::new(link, Membership::local(id, 2), options).expect("endpoint")
        };
        let (mut a, mut b) = (open(A), open(B));
        a.send(B, CHANNEL, b"first").expect("send");
        while b.try_recv().expect("recv").is_none() {
            a.progress().expect("a");
        }
        for _ in 0..100 {
            a.progress().expect("a"); // what b takes is known by now
            b.progress().expect("b");
        }
        b.vanish();
        let mut b = open(B);
        let sent = a.send(B, CHANNEL, &vec![7; bytes]);
        let begun = Instant::now();
        let told = sent.err().or_else(|| {
            loop {
                b.progress().expect("b");
                match a.flush(Duration::from_millis(1)) {
                    Ok(flushed) => assert!(!flushed && begun.elapsed() < LONG, "{bytes}"),
                    Err(error) => return Some(error),
                }
            }
        });
        let is_told = matches!(
            told,
            Some(SendError::MessagesLost { .. } | SendError::PeerDead { .. })
        );
        assert!(is_told, "{bytes}: {told:?}");
        assert!(b.try_recv().expect("recv").is_none(), "it was for another");
    }
}
