use super::control::Control;
use super::mailbox::Mailbox;
use super::outbox::MessageSender;
use super::*;
use crate::error::{ChannelError, SendError};
use crate::membership::{Member, Membership};
use rustix::event::{EventfdFlags, eventfd};
use std::time::Duration;
use tsumuji_link::LinkAddr;
use tsumuji_proto::{Body, Config, Engine, Flow, Pace, Payload, SubmitError};

impl Way for Engine {
    fn engine(&mut self) -> &mut Engine {
        self
    }

    fn flow(&self, peer: NodeId) -> Option<Flow> {
        Self::flow(self, peer)
    }

    fn submit(
        &mut self,
        to: NodeId,
        channel: Channel,
        payload: Payload<'_>,
    ) -> Result<(), SubmitError> {
        Self::submit(self, to, channel, payload, false).map(drop)
    }

    fn meet(&mut self, _: &Member, _: LinkAddr, _: Pace) {}

    fn send_frame(&mut self, _: LinkAddr, _: &[u8]) {}
}

const A: NodeId = NodeId(1);
const B: NodeId = NodeId(2);
const QUEUE_BYTES: usize = 1 << 20;

fn channels() -> Channels {
    let fd = || Arc::new(eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd"));
    let bell = Arc::new(Bell::new(fd(), fd()));
    let membership = Arc::new(Membership::local(NodeId(0), 3));
    let members = Members::new(membership, false, (Pace::Free, Duration::from_secs(1)));
    Channels::new(members, QUEUE_BYTES, bell)
}

fn arrives(channels: &mut Channels, from: NodeId, channel_id: u16, bytes: &[u8]) -> bool {
    channels.message(
        &mut None,
        Delivery {
            from,
            session: 0,
            channel: Channel::ordered(channel_id),
            body: Body::Frame(bytes),
        },
    )
}

fn taken(channels: &mut Channels, number: Option<u16>, from: Option<NodeId>) -> Option<Vec<u8>> {
    let stored = channels.take(number, from)?;
    let charged = channels.charged(&stored);
    channels.release(&charged);
    Some(stored.message.body)
}

fn open(channels: &mut Channels, number: u16, budget_bytes: usize) {
    let options = ChannelOptions {
        budget_bytes,
        ..ChannelOptions::default()
    };
    channels.open(number, &options, None).expect("open");
}

/// An endpoint with two peers that have not been up yet.
fn engine() -> Engine {
    let second = tsumuji_proto::Duration::from_secs(1);
    let mut engine = Engine::new(Config {
        me: NodeId(0),
        incarnation: 1,
        frame_bytes: 1500,
        receive_frames: 256,
        lossless: true,
        ring_bytes: 0,
        congestion: tsumuji_proto::Congestion::Credit,
        budget_bytes: 1 << 20,
        message_limit_bytes: 1 << 20,
        send_queue_bytes: QUEUE_BYTES,
        keep_alive: second,
        dead_after: second,
    });
    for peer in [A, B] {
        engine.add_peer(tsumuji_proto::Instant::from_nanos(0), peer);
    }
    engine
}

#[derive(Default)]
struct Seen {
    datagrams: Vec<(u32, u32, Vec<u8>)>,
    messages: Vec<Vec<u8>>,
    up: usize,
    writable: Vec<(NodeId, u16)>,
}

impl Handler for Seen {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        self.messages.push(delivery.body.bytes().to_vec());
    }
    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        self.datagrams
            .push((datagram.key, datagram.lap, datagram.payload.to_vec()));
    }
    fn peer_up(&mut self, _: NodeId) {
        self.up += 1;
    }
    fn writable(&mut self, peer: NodeId, channel_id: u16) {
        self.writable.push((peer, channel_id));
    }
}

fn datagram(start: u32, lap: u32, payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source: A,
        incarnation: 9,
        channel_id: 2,
        epoch: 0,
        lap,
        key: start,
        payload,
    }
}

/// Of datagrams of one key the newest is kept, also when laps wrap; a new incarnation of the source always counts as newer.
#[test]
fn newest_share_of_a_place_is_kept() {
    let mut channels = channels();
    channels.datagram(&mut None, 0, datagram(0, u32::MAX, b"old"));
    channels.datagram(&mut None, 0, datagram(0, 1, b"new"));
    channels.datagram(&mut None, 0, datagram(0, 0, b"late"));
    channels.datagram(&mut None, 0, datagram(8, 5, b"other"));
    channels.datagram(
        &mut None,
        0,
        Datagram {
            incarnation: 10,
            ..datagram(8, 0, b"restarted")
        },
    );
    let mut seen = Seen::default();
    assert_eq!(channels.hand_over_rest(None, &mut seen), 2);
    assert_eq!(
        seen.datagrams,
        [(0, 1, b"new".to_vec()), (8, 0, b"restarted".to_vec())]
    );
    assert!(channels.is_empty(None));
}

/// A channel with `all_datagrams` gets every datagram in order of arrival, including those from before it was opened.
#[test]
fn owners_may_want_all_datagrams() {
    let mut channels = channels();
    channels.datagram(&mut None, 0, datagram(0, 1, b"first"));
    let options = ChannelOptions {
        all_datagrams: true,
        ..ChannelOptions::default()
    };
    channels.open(2, &options, None).expect("open");
    channels.datagram(&mut None, 0, datagram(0, 2, b"second"));
    channels.datagram(&mut None, 0, datagram(0, 1, b"again"));
    let mut seen = Seen::default();
    assert_eq!(channels.hand_over_rest(Some(2), &mut seen), 3);
    let laps: Vec<u32> = seen.datagrams.iter().map(|datagram| datagram.1).collect();
    assert_eq!(laps, [1, 2, 1]);
}

/// Datagrams that are not taken stay within the limits and are counted.
#[test]
fn shares_are_bounded() {
    let mut channels = channels();
    let payload = vec![7; 4096];
    for start in 0..10_000 {
        channels.datagram(&mut None, 0, datagram(start, 0, &payload));
    }
    let dropped = channels.dropped_datagrams;
    assert!(dropped > 0);
    channels.datagram(&mut None, 0, datagram(0, 1, &payload));
    assert_eq!(
        channels.dropped_datagrams, dropped,
        "a kept place is still renewed"
    );
    let mut seen = Seen::default();
    let kept = channels.hand_over_rest(None, &mut seen);
    assert_eq!(kept as u64, 10_000 - dropped);
    assert!(kept * payload.len() <= 8 << 20);
}

/// Messages come out as they came in, and their buffers are used again.
#[test]
fn messages_keep_order_and_reuse_buffers() {
    let mut channels = channels();
    for text in [&b"one"[..], b"", b"three"] {
        assert!(!arrives(&mut channels, A, 0, text));
    }
    assert_eq!(channels.next_bytes(None, None), Some(3));
    let first = taken(&mut channels, None, None).expect("first");
    assert_eq!(first, b"one");
    let place = first.as_ptr();
    assert!(channels.recycle(first).is_none());
    assert_eq!(taken(&mut channels, None, None).expect("second"), b"");
    arrives(&mut channels, A, 0, b"two");
    assert_eq!(taken(&mut channels, None, None).expect("third"), b"three");
    let again = taken(&mut channels, None, None).expect("fourth");
    assert_eq!((again.as_slice(), again.as_ptr()), (&b"two"[..], place));
    let large = Vec::with_capacity(65 << 10);
    assert!(
        channels.recycle(large).is_some(),
        "large ones are the engine's"
    );
    let returned = (0..100).filter_map(|_| channels.recycle(Vec::with_capacity(100)));
    assert!(
        returned.count() > 0,
        "what is not needed here is the engine's, too"
    );
}

/// Messages of each peer are taken in its order, and those of any in the order of arrival.
#[test]
fn mailboxes_are_taken_from_by_peer() {
    let mut rng = fastrand::Rng::with_seed(7);
    let mut mailbox = Mailbox::default();
    let mut model: Vec<(NodeId, u8)> = Vec::new();
    for step in 0..20_000_u32 {
        if rng.u32(..5) < 2 || model.is_empty() {
            let (from, text) = (NodeId(rng.u16(1..5)), step as u8);
            model.push((from, text));
            mailbox.push(Stored {
                message: Message {
                    from,
                    channel: Channel::ordered(0),
                    body: vec![text],
                },
                session: 0,
                charge: Charge::Endpoint,
            });
        } else {
            let from = rng.bool().then(|| NodeId(rng.u16(1..5)));
            let place = model
                .iter()
                .position(|known| from.is_none_or(|from| known.0 == from));
            let expected = place.map(|place| model.remove(place));
            let next = mailbox
                .next(from)
                .map(|message| (message.from, message.body[0]));
            assert_eq!(next, expected);
            let stored = mailbox.pop(from);
            let got = stored.map(|stored| (stored.message.from, stored.message.body[0]));
            assert_eq!(got, expected);
        }
        assert_eq!(mailbox.messages(), model.len());
    }
}

/// Notices reach the handler once, and those that nobody takes do not pile up.
#[test]
fn notices_are_bounded() {
    let (mut channels, mut peers) = (channels(), Peers::new(3));
    let up = Event::PeerUp {
        peer: A,
        incarnation: 5,
    };
    for _ in 0..NOTICES_LIMIT + 10 {
        channels.event(&up, &mut peers, None);
    }
    let mut seen = Seen::default();
    assert_eq!(channels.hand_over_rest(None, &mut seen), NOTICES_LIMIT);
    assert_eq!(seen.up, NOTICES_LIMIT);
}

/// Waiting messages are charged to the channel's budget; beyond it, to the endpoint's.
#[test]
fn a_channel_has_a_budget_of_its_own() {
    let mut channels = channels();
    open(&mut channels, 7, 1000);
    let own: Vec<bool> = (0..4)
        .map(|_| arrives(&mut channels, A, 7, &[0; 300]))
        .collect();
    assert_eq!(own, [true; 4], "what exceeds the budget was on the way");
    let overdraft = vec![0; OVERDRAWN_QUEUES * QUEUE_BYTES - 1000];
    assert!(arrives(&mut channels, B, 7, &overdraft) && !arrives(&mut channels, B, 7, &[0; 1000]));
    assert!(
        arrives(&mut channels, A, 7, &[0; 300]),
        "another's overdraft"
    );
    let used = channels.state(7).expect("open").used_bytes;
    assert_eq!(used, 5 * 364 + overdraft.len() + 64 + 1064);
    while taken(&mut channels, Some(7), Some(B)).is_some() {}
    assert!(
        arrives(&mut channels, B, 7, &overdraft),
        "it was given back"
    );
    taken(&mut channels, Some(7), Some(B));
    taken(&mut channels, Some(7), Some(A));
    assert!(!arrives(&mut channels, A, 0, b"of nobody"));
    let state = channels.state(7).expect("open");
    assert_eq!((state.messages, state.used_bytes), (4, 4 * 364));
    while taken(&mut channels, Some(7), None).is_some() {}
    assert_eq!(channels.state(7).expect("open").used_bytes, 0);
    assert_eq!(taken(&mut channels, None, None).expect("one"), b"of nobody");
}

/// A peer is told to stop once, when half of the budget is used, and to go on at a quarter or when the channel is closed.
#[test]
fn peers_are_stopped_and_go_on() {
    let mut engine = engine();
    let mut peers = Peers::new(3);
    let mut channels = channels();
    open(&mut channels, 7, 1000);
    let mut said = |channels: &mut Channels| {
        let sent = channels.settle(&mut engine, &mut peers);
        (
            sent,
            channels.state(7).map_or(0, |state| state.stopped_peers),
        )
    };
    arrives(&mut channels, A, 7, &[0; 300]);
    assert_eq!(said(&mut channels), (0, 0));
    arrives(&mut channels, A, 7, &[0; 300]);
    arrives(&mut channels, A, 7, &[0; 300]);
    assert_eq!(said(&mut channels), (1, 1));
    arrives(&mut channels, B, 7, &[0; 300]);
    assert_eq!(said(&mut channels), (1, 2));
    for _ in 0..3 {
        taken(&mut channels, Some(7), None);
        assert_eq!(said(&mut channels), (0, 2));
    }
    taken(&mut channels, Some(7), None);
    assert_eq!(said(&mut channels), (2, 0));
    arrives(&mut channels, A, 7, &[0; 800]);
    assert_eq!(said(&mut channels), (1, 1));
    assert_eq!(channels.close(7).expect("open").len(), 1);
    assert_eq!(said(&mut channels), (1, 0));
}

/// A peer's stop holds for its session until it is taken back; an unknown control message changes nothing.
#[test]
fn a_stop_is_of_one_session() {
    let (mut channels, mut peers) = (channels(), Peers::new(3));
    let say = |channels: &mut Channels, session: u64, word: &[u8]| {
        assert!(channels.message(
            &mut None,
            Delivery {
                from: A,
                session,
                channel: control::CHANNEL,
                body: Body::Frame(word),
            }
        ));
    };
    say(&mut channels, 0, &Control::Stop(7).to_bytes());
    say(&mut channels, 0, b"nonsense");
    assert!(channels.is_stopped(A, 7) && !channels.is_stopped(A, 8) && !channels.is_stopped(B, 7));
    channels.want(A, 7);
    say(&mut channels, 0, &Control::Go(7).to_bytes());
    assert!(!channels.is_stopped(A, 7));
    let mut seen = Seen::default();
    channels.hand_over_rest(None, &mut seen);
    assert_eq!(seen.writable, [(A, 7)]);
    say(&mut channels, 0, &Control::Stop(7).to_bytes());
    say(&mut channels, 1, &Control::Stop(9).to_bytes());
    let dead = Event::PeerDead {
        peer: A,
        failed_messages: 0,
    };
    channels.event(&dead, &mut peers, None);
    assert!(!channels.is_stopped(A, 7) && channels.is_stopped(A, 9));
}

/// A kept message counts until it is dropped, also in another thread; if its channel was closed since, it counts nowhere.
#[test]
fn kept_messages_count_until_they_go() {
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    open(&mut channels, 7, 1000);
    let keep = |channels: &mut Channels| {
        arrives(channels, A, 7, &[1; 200]);
        let stored = channels.take(Some(7), None).expect("a message");
        channels.retain(stored)
    };
    let (one, two) = (keep(&mut channels), keep(&mut channels));
    assert_eq!(channels.state(7).expect("open").used_bytes, 2 * 264);
    std::thread::spawn(move || drop(one))
        .join()
        .expect("thread");
    assert!(channels.is_pending());
    channels.settle(&mut engine, &mut peers);
    assert_eq!(channels.state(7).expect("open").used_bytes, 264);
    channels.close(7).expect("open");
    open(&mut channels, 7, 1000);
    assert_eq!(
        (two.len(), two.from(), two.channel()),
        (200, A, Channel::ordered(7))
    );
    drop(two);
    channels.settle(&mut engine, &mut peers);
    assert_eq!(channels.state(7).expect("open").used_bytes, 0);
}

/// A handler that keeps less than half of the budget and has nothing waiting stops no peer.
#[test]
fn what_is_kept_stops_nobody_below_half() {
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    open(&mut channels, 7, 1000);
    let mut kept = Vec::new();
    for _ in 0..2 {
        arrives(&mut channels, A, 7, &[1; 200]);
    }
    let stored = channels.take(Some(7), None).expect("a message");
    kept.push(channels.retain(stored));
    assert_eq!(channels.state(7).expect("open").stopped_peers, 1);
    assert!(taken(&mut channels, Some(7), None).is_some());
    assert_eq!(channels.state(7).expect("open").stopped_peers, 0);
    channels.settle(&mut engine, &mut peers);
}

/// A handler that keeps two copies is charged only for the delivered message; it sends to members only, and replies to a datagram go to its source.
#[test]
fn handlers_cannot_cheat_the_ledger() {
    struct Greedy(Vec<Retained>);
    impl Handler for Greedy {
        fn message(&mut self, context: &mut Context<'_>, delivery: Delivery<'_>) {
            let (from, session, channel) = (delivery.from, delivery.session, delivery.channel);
            for _ in 0..2 {
                let body = Body::Frame(b"made");
                self.0.push(context.retain(Delivery {
                    from,
                    session,
                    channel,
                    body,
                }));
            }
            self.0.push(context.retain(delivery));
            for nobody in [NodeId(0), NodeId(3), NodeId(999)] {
                let sent = context.send(nobody, channel, b"");
                assert!(
                    matches!(sent, Err(SendError::UnknownPeer { .. })),
                    "{sent:?}"
                );
            }
        }
        fn datagram(&mut self, context: &mut Context<'_>, _: Datagram<'_>) {
            context.reply(b"to the source").expect("room");
        }
    }
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    open(&mut channels, 7, 1000);
    let mut greedy = Greedy(Vec::new());
    let delivery = Delivery {
        from: A,
        session: 0,
        channel: Channel::ordered(7),
        body: Body::Frame(b"one"),
    };
    assert!(channels.message(&mut Some((Some(7), &mut greedy)), delivery));
    assert_eq!(channels.state(7).expect("open").used_bytes, 67);
    greedy.0.clear();
    channels.settle(&mut engine, &mut peers);
    assert_eq!(channels.state(7).expect("open").used_bytes, 0);
    channels.datagram(&mut Some((None, &mut greedy)), 0, datagram(0, 1, b"hello"));
    assert_eq!(channels.tools.outbox.messages_to(A), 1);
}

/// Early messages to absent libraries are bounded, and wake no program that could not take them.
#[test]
fn what_comes_for_no_library_is_bounded() {
    let mut channels = channels();
    let payload = vec![7; 4096];
    for port in [0xff00, 0xff01, 0xffff] {
        for start in 0..1000 {
            let of = datagram(start, 0, &payload);
            channels.datagram(
                &mut None,
                0,
                Datagram {
                    channel_id: port,
                    ..of
                },
            );
        }
    }
    assert_eq!(channels.dropped_datagrams, 3000 - 2 * 64);
    channels.take_news();
    arrives(&mut channels, A, 0xff00, b"early");
    assert!(!channels.take_news());
    open(&mut channels, 7, 1000);
    arrives(&mut channels, A, 7, b"news");
    assert!(channels.take_news() && !channels.take_news());
    arrives(&mut channels, A, 0, b"waits");
    assert!(channels.take_news() && channels.take_news());
}

/// Messages waiting for one channel leave room for others; a handler is told when there is room again.
#[test]
fn letters_are_bounded_by_channel() {
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    channels.stops.insert((A, 7), 0);
    let large = vec![0; QUEUE_BYTES];
    let put = |channels: &mut Channels, to, channel_id| {
        let outbox = &mut channels.tools.outbox;
        outbox.put(to, Channel::ordered(channel_id), &large).is_ok()
    };
    assert!(put(&mut channels, A, 7) && !put(&mut channels, A, 7));
    assert!(put(&mut channels, A, 8) && put(&mut channels, B, 7));
    channels.settle(&mut engine, &mut peers);
    channels.control(A, 0, &Control::Go(7).to_bytes());
    for _ in 0..3 {
        channels.settle(&mut engine, &mut peers);
        engine.abort(tsumuji_proto::Instant::from_nanos(1), A);
        channels.tools.outbox.try_again(A);
    }
    channels.settle(&mut engine, &mut peers);
    let mut seen = Seen::default();
    channels.hand_over_rest(None, &mut seen);
    assert_eq!(seen.writable, [(A, 7)]);
}

/// Messages from before a channel was opened are its first, in order; others stay where they were.
#[test]
fn what_came_early_is_the_owners() {
    let mut channels = channels();
    for (channel_id, text) in [(7, b"a"), (0, b"b"), (7, b"c"), (0xff00, b"d")] {
        arrives(&mut channels, A, channel_id, text);
    }
    open(&mut channels, 7, 1000);
    open(&mut channels, 0xff00, 1000);
    arrives(&mut channels, A, 7, b"e");
    let mut all = |number| {
        let next = std::iter::from_fn(|| taken(&mut channels, number, None));
        next.collect::<Vec<_>>().concat()
    };
    assert_eq!(
        (all(Some(7)), all(Some(0xff00)), all(None)),
        (b"ace".to_vec(), b"d".to_vec(), b"b".to_vec())
    );
    assert_eq!(channels.state(7).expect("open").used_bytes, 0);
}

/// Errors of channels are reported by kind.
#[test]
fn bad_channels_are_refused() {
    let mut channels = channels();
    let options = ChannelOptions::default();
    let none = ChannelOptions {
        budget_bytes: 0,
        ..ChannelOptions::default()
    };
    let number = Channel::CONTROL_ID;
    assert_eq!(
        channels.open(number, &options, None),
        Err(ChannelError::Reserved { channel_id: number })
    );
    assert_eq!(
        channels.open(7, &none, None),
        Err(ChannelError::NoBudget(7))
    );
    open(&mut channels, 7, 1);
    assert_eq!(
        channels.open(7, &options, None),
        Err(ChannelError::AlreadyOpen(7))
    );
    assert_eq!(channels.set_budget(8, 1), Err(ChannelError::NotOpen(8)));
    assert_eq!(channels.close(8).map(drop), Err(ChannelError::NotOpen(8)));
    struct Idle;
    impl Handler for Idle {
        fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
    }
    let handler: Box<dyn Handler + Send> = Box::new(Idle);
    channels.open(9, &options, Some(handler)).expect("open");
    assert_eq!(channels.has_mailbox(9), Err(ChannelError::HasHandler(9)));
}

/// Letters of one peer and channel stay in order, a stopped channel does not block others, and a lost letter is reported once.
#[test]
fn letters_leave_in_order_and_hold_up_no_other_channel() {
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    channels.stops.insert((A, 7), 0);
    for (channel_id, text) in [(7, b"1"), (0, b"2"), (7, b"3")] {
        channels
            .tools
            .outbox
            .put(A, Channel::ordered(channel_id), text)
            .expect("room");
    }
    assert_eq!(channels.settle(&mut engine, &mut peers), 1);
    assert_eq!(
        (
            channels.tools.outbox.messages_to(A),
            engine.promised_messages(A)
        ),
        (2, 1)
    );
    assert!(!channels.is_pending(), "nobody tries what is stopped");
    channels.control(A, 0, &Control::Go(7).to_bytes());
    assert_eq!(channels.settle(&mut engine, &mut peers), 2);
    assert!(channels.tools.outbox.is_empty());
    channels.stops.insert((B, 7), 0);
    channels
        .tools
        .outbox
        .put(B, Channel::ordered(7), b"lost")
        .expect("room");
    channels.settle(&mut engine, &mut peers);
    let dead = Event::PeerDead {
        peer: B,
        failed_messages: 0,
    };
    channels.event(&dead, &mut peers, None);
    let told = peers.tell_losses(B);
    assert!(
        matches!(
            told,
            Err(SendError::MessagesLost {
                peer: B,
                messages: 1
            })
        ),
        "{told:?}"
    );
    assert!(peers.tell_losses(B).is_ok() && channels.tools.outbox.is_empty());
}

/// Other threads wait for room, are told when the endpoint was closed, and cannot send to unknown nodes.
#[test]
fn senders_are_bounded() {
    let (mut engine, mut peers) = (engine(), Peers::new(3));
    let mut channels = channels();
    let sender: MessageSender = channels.sender();
    let send = |sender: &MessageSender, bytes, wait| {
        sender.send(
            A,
            Channel::ordered(0),
            vec![0; bytes],
            Duration::from_millis(wait),
        )
    };
    assert!(matches!(
        sender.send(NodeId(0), Channel::ordered(0), vec![], Duration::ZERO),
        Err(SendError::UnknownPeer { .. })
    ));
    assert!(matches!(
        sender.send(NodeId(3), Channel::ordered(0), vec![], Duration::ZERO),
        Err(SendError::UnknownPeer { .. })
    ));
    assert!(matches!(
        sender.send(A, Channel::ordered(0xff00), vec![], Duration::ZERO),
        Err(SendError::ReservedChannel { .. })
    ));
    send(&sender, QUEUE_BYTES - 100, 0).expect("room");
    assert!(matches!(
        send(&sender, 1000, 1),
        Err(SendError::WouldBlock { .. })
    ));
    let other = sender.clone();
    let waits = std::thread::spawn(move || send(&other, 1000, 20_000));
    while !waits.is_finished() {
        channels.settle(&mut engine, &mut peers); // the engine takes the first
        std::thread::yield_now();
    }
    waits.join().expect("thread").expect("room");
    let waits = {
        let other = sender.clone();
        std::thread::spawn(move || {
            send(&other, QUEUE_BYTES, 0).ok();
            send(&other, QUEUE_BYTES, 20_000)
        })
    };
    std::thread::sleep(Duration::from_millis(5));
    drop(channels);
    assert!(matches!(
        waits.join().expect("thread"),
        Err(SendError::Closed)
    ));
    assert!(matches!(send(&sender, 1, 0), Err(SendError::Closed)));
}
