//! Direct messages between engines joined by a wire that keeps frames in order and loses none.

use super::direct::unasked_bytes;
use super::tests::{Wire, config, next_frame};
use super::*;
use crate::counters::Drop;
use crate::memory::charge;
use crate::message::Payload;
use crate::policy::{FlowPolicy, Room, Sender};
use alloc::vec;
use tsumuji_wire::{Channel, Data, flags};

const RING_BYTES: usize = 64 << 10;
const CHANNEL: Channel = Channel::ordered(3);
const SECOND: Duration = Duration::from_secs(1);

fn engine(me: u16, incarnation: u32, now: Instant) -> Engine {
    let mut engine = Engine::new(Config {
        lossless: true,
        ring_bytes: RING_BYTES,
        dead_after: SECOND.times(1000),
        ..config(me, incarnation)
    });
    for peer in 0..2 {
        engine.add_peer(now, NodeId(peer));
    }
    engine
}

fn wire() -> Wire {
    let mut wire = Wire::new(2);
    for me in 0..2 {
        wire.nodes[usize::from(me)].engine = engine(me, 100 + u32::from(me), wire.now);
    }
    settle(&mut wire);
    wire
}

fn settle(wire: &mut Wire) {
    wire.run(SECOND, |_| false);
    for node in &mut wire.nodes {
        node.events.clear();
    }
}

/// Sends a message as a driver does. `true`: it went directly.
fn send(wire: &mut Wire, from: usize, channel: Channel, message: &[u8]) -> bool {
    let (to, scatters) = (1 - from, wire.scatters);
    let halves = message.split_at(message.len() / 3);
    let engine = &mut wire.nodes[from].engine;
    let passes = |direct: &Direct<'_>| scatters || message.len() <= direct.ring_message_bytes();
    let direct = engine.direct(NodeId(to as u16), channel, message.len());
    if let Some(mut direct) = direct.filter(passes) {
        if message.len() > direct.ring_message_bytes() {
            let head = direct.reference_head(message.len());
            direct.referred(message.len());
            wire.launch(to, [&head, message].concat());
            return true;
        }
        let (count, most_bytes) = direct.frames(message.len());
        let frames: Vec<DirectFrame<'_>> = if message.len() <= direct.frame_message_bytes() {
            vec![direct.whole(halves)]
        } else {
            (0..count).map(|index| direct.part(halves, index)).collect()
        };
        for frame in &frames {
            direct.sent(frame);
        }
        for frame in frames {
            let frame = frame.parts().concat();
            assert!(frame.len() <= most_bytes);
            wire.launch(to, frame);
        }
        return true;
    }
    let payload = Payload::Copied(message, &[]);
    engine
        .submit(NodeId(to as u16), channel, payload, false)
        .unwrap();
    wire.pump();
    false
}

fn lost(wire: &Wire, at: usize) -> usize {
    let of = |event: &Event| match event {
        Event::MessagesLost { messages, .. } => *messages,
        _ => 0,
    };
    wire.nodes[at].events.iter().map(of).sum()
}

/// Short and long messages, in both directions and on several channels, arrive once and in order, whichever way each of them goes.
#[test]
fn both_ways_follow_each_other() {
    assert_eq!(follow_each_other(false, [4000, 20_000]).0, 0);
}

/// The same if a link places payloads, which `foresee` permits from the first frame on: of a direct message of ten parts, most are placed.
#[test]
fn direct_parts_land_in_their_places() {
    let (placed, long) = follow_each_other(true, [14_000, 14_000]);
    assert!(long > 10 && placed > 5 * long, "{placed} frames of {long}");
}

/// Messages by reference are placed, too, each as one frame, whatever its length.
#[test]
fn messages_by_reference_land_in_their_places() {
    let (placed, long) = follow_each_other(true, [18_000, RING_BYTES - 4]);
    assert!(placed >= long && long > 10, "{placed} frames of {long}");
}

/// A head by reference without its payload is malformed, and so is one whose message differs in length from the payload, or exceeds a ring.
#[test]
fn references_without_bodies_are_refused() {
    let mut wire = wire();
    let bytes = RING_BYTES / 2;
    let engine = &mut wire.nodes[0].engine;
    let head = (engine.direct(NodeId(1), CHANNEL, bytes).unwrap()).reference_head(bytes);
    assert!(engine.direct(NodeId(1), CHANNEL, RING_BYTES + 1).is_none());
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    node.engine.handle_frame(now, &head, &mut node.mailbox);
    node.engine.handle_bodiless(now, &head, bytes - 1);
    assert_eq!(node.engine.counters().drops.get(Drop::Truncated), 1);
    assert_eq!(node.engine.counters().drops.get(Drop::Malformed), 1);
    for other in [0, 1, bytes - 1, bytes + 1, 1 << 31] {
        let frame_bytes = head.len() + other;
        (node.engine).foresee(now, &head, frame_bytes, &mut node.mailbox);
        assert!(node.engine.placement().is_none(), "{other}");
        assert!(!node.engine.is_expected(0, &head, other), "{other}");
    }
    (node.engine).foresee(now, &head, head.len() + bytes, &mut node.mailbox);
    assert_eq!(node.engine.placement().unwrap().place.len(), bytes);
    assert!(node.engine.is_expected(0, &head, bytes));
    node.engine
        .handle_placed(now, &head, bytes, &mut node.mailbox);
    assert_eq!(node.mailbox.messages.len(), 1);
}

/// A message by reference whose payload cannot be read ends the session: its sender is told how many are lost, and a later message is not delivered
/// in its place.
#[test]
fn a_lost_body_is_told() {
    let mut wire = wire();
    for _ in 0..3 {
        assert!(send(&mut wire, 0, CHANNEL, b"before"));
    }
    settle(&mut wire);
    let bytes = RING_BYTES / 2;
    let mut direct = wire.nodes[0]
        .engine
        .direct(NodeId(1), CHANNEL, bytes)
        .unwrap();
    let head = direct.reference_head(bytes);
    direct.referred(bytes);
    let (now, node) = (wire.now, &mut wire.nodes[1]);
    (node.engine).foresee(now, &head, head.len() + bytes, &mut node.mailbox);
    node.engine.handle_bodiless(now, &head, bytes);
    assert_eq!(node.engine.counters().drops.get(Drop::Memory), 1);
    assert!(send(&mut wire, 0, CHANNEL, b"behind"));
    wire.run(SECOND.times(10), |_| false);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 3);
    assert_eq!(wire.nodes[1].engine.accounts().memory_bytes, 0);
    assert_eq!(lost(&wire, 0), 2);
    assert!(send(&mut wire, 0, CHANNEL, b"in the next session"));
    settle(&mut wire);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 4);
}

/// How many frames were placed, and how many long messages went directly.
fn follow_each_other(scatters: bool, long_bytes: [usize; 2]) -> (u64, u64) {
    let mut wire = wire();
    wire.scatters = scatters;
    let channels = [CHANNEL, Channel::unordered(4), Channel::ordered(5)];
    let mut sent: [Vec<(Channel, Vec<u8>)>; 2] = Default::default();
    let (mut direct, mut direct_long) = (0, 0);
    for number in 0..3000_u32 {
        let (from, channel) = ((number / 7 % 2) as usize, channels[number as usize % 3]);
        let long = number % 50 == 17;
        let long_bytes = long_bytes[number as usize / 50 % 2];
        let short_bytes = number as usize % 90;
        let mut message = vec![number as u8; if long { long_bytes } else { short_bytes }];
        message.extend_from_slice(&number.to_le_bytes());
        let is_direct = send(&mut wire, from, channel, &message);
        direct += usize::from(is_direct);
        direct_long += u64::from(is_direct && long);
        sent[from].push((channel, message));
        if number % 5 == 0 {
            wire.run(Duration::from_micros(u64::from(number % 4) * 40), |_| false);
        }
    }
    settle(&mut wire);
    for (from, sent) in sent.iter().enumerate() {
        let node = &wire.nodes[1 - from];
        for channel in channels {
            let of_channel = |it: &&(Channel, Vec<u8>)| it.0 == channel;
            let mut expected: Vec<_> = sent.iter().filter(of_channel).map(|it| &it.1).collect();
            let came = node.mailbox.messages.iter().filter(|it| it.1 == channel);
            let mut came: Vec<_> = came.map(|it| &it.2).collect();
            if channel == channels[1] {
                expected.sort_unstable();
                came.sort_unstable();
            }
            assert!(came == expected, "from {from} on {channel:?}");
        }
        assert_eq!(node.engine.accounts().memory_bytes, 0);
        let here = wire.nodes[from].engine.counters().direct_messages;
        assert!(here > 100, "{here} of node {from}");
    }
    assert!(direct > 500, "{direct}: both ways are tried");
    (wire.placed, direct_long)
}

/// A receiver that releases nothing stops its peers in time: what was on its way then fits the headroom, and nothing is dropped. When it has released
/// most, direct messages are sent again.
#[test]
fn memory_stops_who_sends() {
    let mut wire = wire();
    wire.nodes[1].consumes = false;
    let mut in_ring = 0;
    let (mut sent, mut direct) = (0, 0);
    while sent < 40_000 {
        // A full ring arrives at once.
        if send(&mut wire, 0, CHANNEL, b"12345678") {
            direct += 1;
            in_ring += 64;
        }
        sent += 1;
        if in_ring >= RING_BYTES {
            in_ring = 0;
            wire.run(Duration::from_micros(100), |_| false);
        }
        if wire.nodes[0].engine.queued(NodeId(1)).unwrap().messages > 10 {
            break;
        }
    }
    settle(&mut wire);
    let budget = config(1, 1).budget_bytes;
    let half = wire.nodes[1].engine.shared.memory.half_bytes();
    let used = wire.nodes[1].engine.accounts().memory_bytes;
    assert!(
        direct * charge(8) > half && direct < sent,
        "{direct} of {sent}"
    );
    assert!(used <= budget, "{used}");
    let drops = &wire.nodes[1].engine.counters().drops;
    assert_eq!(drops.get(Drop::Memory), 0);
    assert!(!send(&mut wire, 0, CHANNEL, b"12345678"), "still full");
    let taken: Vec<_> = wire.nodes[1].mailbox.messages.drain(..).collect();
    for (from, _, body) in taken {
        wire.nodes[1].engine.release(from, body.len());
    }
    wire.nodes[1].consumes = true;
    settle(&mut wire);
    assert!(send(&mut wire, 0, CHANNEL, b"12345678"), "may go on");
}

/// However much the program holds, what was sent before the stop arrived is taken; of a peer that ignores the stop, no more than some rings.
#[test]
fn nothing_on_its_way_is_dropped() {
    let mut wire = wire();
    wire.nodes[1].consumes = false;
    let session = session(&mut wire);
    settle(&mut wire);
    let before = wire.nodes[1].mailbox.messages.len();
    let config = Config {
        ring_bytes: RING_BYTES,
        ..config(1, 1)
    };
    let budget = config.budget_bytes;
    assert!(
        !send(&mut wire, 0, CHANNEL, &vec![7; 3 * budget]),
        "by number"
    );
    settle(&mut wire);
    let mut sent = before + 1;
    while send(&mut wire, 0, CHANNEL, b"12345678") {
        sent += 1;
        assert!(sent < 100, "is told to stop");
        wire.run(Duration::from_micros(1), |_| false);
    }
    settle(&mut wire);
    let drops = |wire: &Wire| wire.nodes[1].engine.counters().drops.get(Drop::Memory);
    assert_eq!(wire.nodes[1].mailbox.messages.len(), sent, "all of them");
    let refused = drops(&wire); // of a frame of the last message, which went by number

    let data = part(session, Channel::ordered(77), (0, 1000), &[7; 1000]);
    let mut slot = [0; 1472];
    let bytes = data.write(&mut slot).unwrap();
    for _ in 0..10_000 {
        let node = &mut wire.nodes[1];
        node.engine
            .handle_frame(wire.now, &slot[..bytes], &mut node.mailbox);
    }
    let most = unasked_bytes(&config, &PeerLink::of(&config)) / charge(1000) + 1;
    let came = wire.nodes[1].mailbox.messages.len() - sent;
    let dropped = (drops(&wire) - refused) as usize;
    assert!(came <= most && dropped == 10_000 - came, "{came}");
}

/// A frame of a direct message from node 0 to node 1.
fn part(
    session: u32,
    channel: Channel,
    (offset, length): (usize, usize),
    payload: &[u8],
) -> Data<'_> {
    Data {
        source: NodeId(0),
        destination: NodeId(1),
        flags: flags::DIRECT,
        session,
        number: 0,
        ack: 0,
        credit: 0,
        message: 0,
        offset: offset as u32,
        length: length as u32,
        floor_delta: 0,
        channel,
        ack_delay: 0,
        payload,
    }
}

/// The session of node 0 towards node 1, while nothing is on its way.
fn session(wire: &mut Wire) -> u32 {
    let now = wire.now;
    let engine = &mut wire.nodes[0].engine;
    let payload = Payload::Copied(b"?", &[]);
    engine
        .submit(NodeId(1), Channel::ordered(78), payload, true)
        .unwrap();
    let to = engine.next_destination(now).unwrap();
    let frame = next_frame(engine, now, to);
    tsumuji_wire::parse_data(&frame).unwrap().session
}

/// Messages of several frames, up to a quarter of the ring, arrive whole and in order in posted buffers; the sender holds no copies.
#[test]
fn longer_ones_follow_frame_by_frame() {
    let mut wire = wire();
    let bytes = RING_BYTES / 4;
    let long = |seed: u8| -> Vec<u8> { (0..bytes).map(|at| (at / 7) as u8 ^ seed).collect() };
    assert!(
        !send(&mut wire, 0, CHANNEL, &vec![1; bytes + 1]),
        "by number"
    );
    settle(&mut wire);
    wire.nodes[1].mailbox.messages.clear();
    let posted = Box::new(vec![0_u8; bytes]);
    wire.nodes[1].mailbox.posts.push((9, posted));
    for seed in 0..4 {
        assert!(send(&mut wire, 0, CHANNEL, &long(seed)), "{seed}");
        assert!(send(&mut wire, 0, CHANNEL, &[seed]));
        assert_eq!(wire.nodes[0].engine.queued(NodeId(1)).unwrap().messages, 0);
        settle(&mut wire);
    }
    let mailbox = &wire.nodes[1].mailbox;
    for (index, (from, channel, message)) in (0..).zip(&mailbox.messages) {
        let seed = index / 2;
        let wanted = if index % 2 == 0 {
            long(seed)
        } else {
            vec![seed]
        };
        assert!((*from, *channel) == (NodeId(0), CHANNEL) && *message == wanted);
    }
    assert_eq!(mailbox.messages.len(), 8);
    assert!(mailbox.filled.len() == 1 && mailbox.filled[0].1 == long(0));
    let counters = wire.nodes[1].engine.counters();
    let dropped = [Drop::Malformed, Drop::Memory].map(|reason| counters.drops.get(reason));
    assert_eq!((dropped, counters.delivered_messages), ([0, 0], 9));
    assert!(wire.nodes[1].engine.accounts().are_balanced());
}

/// Frames out of sequence are dropped; a message that is incomplete when its session ends returns its posted buffer.
#[test]
fn odd_parts_are_dropped() {
    let mut wire = wire();
    let session = session(&mut wire);
    settle(&mut wire);
    let part = |offset: usize, length: usize, channel: Channel, payload: &[u8]| {
        let data = self::part(session, channel, (offset, length), payload);
        let mut slot = [0; 1472];
        let bytes = data.write(&mut slot).unwrap();
        slot[..bytes].to_vec()
    };
    let block = [5; 1000];
    wire.nodes[1].mailbox.messages.clear();
    wire.nodes[1].mailbox.posts = vec![(7, Box::new(vec![0_u8; 2500]))];
    let mut come = |frame: Vec<u8>| {
        let node = &mut wire.nodes[1];
        let before = node.engine.counters().drops.get(Drop::Malformed);
        (node.engine).handle_frame(wire.now, &frame, &mut node.mailbox);
        node.engine.counters().drops.get(Drop::Malformed) == before
    };
    assert!(!come(part(1000, 2500, CHANNEL, &block)), "nothing began");
    assert!(
        !come(part(0, RING_BYTES + 1, CHANNEL, &block)),
        "no ring holds it"
    );
    assert!(come(part(0, 2500, CHANNEL, &block)));
    assert!(!come(part(0, 2500, CHANNEL, &block)), "twice");
    assert!(!come(part(0, 1000, CHANNEL, &block)), "another between");
    assert!(!come(part(2000, 2500, CHANNEL, &block[..500])), "a gap");
    assert!(
        !come(part(1000, 2600, CHANNEL, &block)),
        "of another length"
    );
    assert!(
        !come(part(1000, 2500, Channel::ordered(99), &block)),
        "of another channel"
    );
    assert!(!come(part(1000, 2500, CHANNEL, &block[..999])), "too short");
    assert!(come(part(1000, 2500, CHANNEL, &block)));
    assert!(come(part(2000, 2500, CHANNEL, &block[..500])));
    assert!(
        !come(part(2000, 2500, CHANNEL, &block[..500])),
        "it is whole"
    );
    assert!(come(part(0, 2000, CHANNEL, &block)), "another begins");
    assert!(wire.nodes[1].mailbox.messages[0].2 == [5; 2500]);
    assert_eq!(wire.nodes[1].mailbox.filled[0].0, 7);
    let now = wire.now;
    wire.nodes[1].engine.abort(now, NodeId(0));
    assert!(
        wire.nodes[1].engine.poll_unused().is_none(),
        "none was posted for it"
    );
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 1);
}

#[derive(Debug)]
struct Usual;

impl FlowPolicy for Usual {
    fn window_frames(&mut self, _: &Room, _: &Sender) -> u64 {
        3
    }
}

/// With a window or a policy of the program no direct messages are taken; without them they are again.
#[test]
fn the_programs_rules_hold() {
    let mut wire = wire();
    type Change = fn(&mut Engine);
    let changes: [(Change, Change); 4] = [
        (|it| it.set_window(2), |it| it.set_window(256)),
        (
            |it| assert!(it.set_peer_window(NodeId(0), Some(2))),
            |it| assert!(it.set_peer_window(NodeId(0), None)),
        ),
        (
            |it| it.set_policy(Some(Box::new(Usual))),
            |it| it.set_policy(None),
        ),
        (|it| it.set_budget(RING_BYTES), |it| it.set_budget(1 << 20)),
    ];
    for (index, (shut, open)) in changes.into_iter().enumerate() {
        assert!(send(&mut wire, 0, CHANNEL, b"before"), "{index}");
        shut(&mut wire.nodes[1].engine);
        settle(&mut wire);
        assert!(!send(&mut wire, 0, CHANNEL, b"by number"), "{index}");
        settle(&mut wire);
        open(&mut wire.nodes[1].engine);
        settle(&mut wire);
    }
    let came = wire.nodes[1].mailbox.messages.len();
    assert_eq!(came, 2 * changes.len());
    // The same with a pace of the sender.
    let (now, pace) = (wire.now, crate::Pace::Drain);
    wire.nodes[0].engine.set_pace(now, NodeId(1), pace);
    assert!(!send(&mut wire, 0, CHANNEL, b"paced"));
}

/// When a receiver that is alive ends the session, its sender learns how many messages it took, whether it closed or reconnects.
#[test]
fn who_lives_says_what_it_took() {
    for leaves in [true, false] {
        let mut wire = wire();
        for _ in 0..5 {
            assert!(send(&mut wire, 0, CHANNEL, b"taken"));
        }
        // Messages of libraries are not counted.
        assert!(send(&mut wire, 0, Channel::ordered(0xff03), b"taken"));
        wire.run(Duration::from_micros(50), |_| false);
        let now = wire.now;
        if leaves {
            wire.nodes[1].engine.close(now);
        } else {
            wire.nodes[1].engine.abort(now, NodeId(0));
            wire.nodes[1].engine.reconnect_peer(now, NodeId(0));
        }
        for _ in 0..3 {
            assert!(send(&mut wire, 0, CHANNEL, b"too late"));
        }
        assert!(send(&mut wire, 0, Channel::ordered(0xff03), b"too late"));
        wire.run(SECOND, |_| false);
        let came = wire.nodes[1].mailbox.messages.len();
        assert_eq!(lost(&wire, 0), 3 + 6 - came.min(6), "{leaves}: {came} came");
        assert!(!wire.nodes[0].engine.take_unsettled(NodeId(1)), "{leaves}");
    }
}

/// Of a process that is gone, only the link knows which messages it has read.
#[test]
fn the_dead_say_nothing() {
    let mut wire = wire();
    assert!(send(&mut wire, 0, CHANNEL, b"who knows"));
    let now = wire.now;
    wire.nodes[0].engine.abort(now, NodeId(1));
    assert!(wire.nodes[0].engine.take_unsettled(NodeId(1)));
    assert!(!wire.nodes[0].engine.take_unsettled(NodeId(1)));
    assert!(wire.nodes[0].engine.direct(NodeId(1), CHANNEL, 8).is_none());
}

/// Frames that no honest peer sends are dropped, and change nothing: numbered messages go on.
#[test]
fn odd_frames_are_dropped() {
    let mut wire = wire();
    assert!(send(&mut wire, 0, CHANNEL, b"x"));
    settle(&mut wire);
    let session = session(&mut wire);
    let good = part(session, CHANNEL, (0, 3), b"abc");
    let odd = [
        (
            Data {
                length: RING_BYTES as u32 + 1,
                ..good
            },
            Drop::Malformed,
        ),
        (
            Data {
                flags: flags::DIRECT | flags::BUNDLE,
                ..good
            },
            Drop::Malformed,
        ),
        (
            Data {
                channel: Channel::datagram(1),
                ..good
            },
            Drop::Malformed,
        ),
        (
            Data {
                session: session ^ 1,
                ..good
            },
            Drop::Session,
        ),
    ];
    let mut slot = [0; 100];
    for (frame, why) in odd {
        let bytes = frame.write(&mut slot).unwrap();
        let node = &mut wire.nodes[1];
        let before = node.engine.counters().drops.get(why);
        node.engine
            .handle_frame(wire.now, &slot[..bytes], &mut node.mailbox);
        assert_eq!(
            node.engine.counters().drops.get(why),
            before + 1,
            "{frame:?}"
        );
    }
    assert_eq!(wire.nodes[1].mailbox.messages.len(), 1);
    // Without a link that keeps frames in order, there are no direct messages.
    let mut plain = Wire::new(2);
    settle(&mut plain);
    assert!(
        plain.nodes[0]
            .engine
            .direct(NodeId(1), CHANNEL, 3)
            .is_none()
    );
    let bytes = good.write(&mut slot).unwrap();
    let node = &mut plain.nodes[1];
    node.engine
        .handle_frame(plain.now, &slot[..bytes], &mut node.mailbox);
    assert!(node.mailbox.messages.is_empty());
}
