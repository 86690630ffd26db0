//! Endpoints in hosts of a testbed, joined by cables of limited rate: priorities, deadlines, and the congestion control `suci` over
//! every link that leaves a host.
//!
//! Needs root and the commands of `tsumuji-testbed`; says so and ends where they are missing. Judged by counts and order, not by the clock.

use std::thread;

use crate::common::hosts::{Wire, endpoint, open, testbed};
use crate::common::{LONG, pattern};
use tsumuji_node::{
    Channel, Congestion, Context, Datagram, Delivery, DeliveryClass, Destination, Endpoint,
    Handler, ImpairConfig, Link, NodeId, Options, Pace, Priority, ProgressBy,
};
use tsumuji_testbed::{Impairment, Testbed};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);
const VIDEO: u16 = 0;

/// One endpoint in each host over UDP.
fn pair(testbed: &Testbed, options: &Options) -> (Endpoint, Endpoint) {
    let [a, b] = [0, 1].map(|id| open(&testbed.hosts()[id], Wire::Udp).expect("bind"));
    let addrs = [a.local_addr(), b.local_addr()];
    (
        endpoint(a, A, &addrs, None, options),
        endpoint(b, B, &addrs, None, options),
    )
}

/// Messages of all sizes go both ways over every link that leaves a host, whole and in order: undisturbed, with a fifth of all frames
/// lost, and with a third overtaken; and after one side has gone and come back.
#[test]
fn suci_works_over_every_link() {
    const SIZES: [usize; 7] = [0, 1, 1_400, 9_000, 70_000, 3, 200_000];
    let Some(testbed) = testbed("suci", 2, None) else {
        return;
    };
    let options = Options {
        congestion: Congestion::SUCI,
        ..Options::default()
    };
    let disturbed = |loss, reorder, seed| ImpairConfig {
        loss,
        reorder,
        seed,
        ..ImpairConfig::default()
    };
    for wire in [Wire::Udp, Wire::Packet, Wire::Xdp] {
        for (loss, reorder) in [(0.0, 0.0), (0.2, 0.0), (0.0, 0.3)] {
            let opened = [0, 1].map(|id| open(&testbed.hosts()[id], wire));
            let [Ok(a), Ok(b)] = opened else {
                eprintln!("skipped: {wire:?}: {opened:?}");
                break;
            };
            let addrs = [a.local_addr(), b.local_addr()];
            let impair = |seed| Some(disturbed(loss, reorder, seed));
            let mut a = endpoint(a, A, &addrs, impair(1), &options);
            let first = endpoint(b, B, &addrs, impair(2), &options);
            let (host, options) = (&testbed.hosts()[1], &options);
            thread::scope(|scope| {
                let peer = scope.spawn(move || {
                    let mut b = first;
                    for session in 0..2 {
                        for (index, size) in (0..).zip(SIZES) {
                            let message = b.recv(LONG).expect("link").expect("message");
                            assert!(message.body == pattern(size, index), "{wire:?}: {index}");
                            b.send(A, CHANNEL, &message.body).expect("send");
                        }
                        let _ = b.close(LONG);
                        if session == 1 {
                            break;
                        }
                        let base = open(host, wire).expect("again");
                        b = endpoint(base, B, &addrs, impair(3), options);
                        b.send(A, CHANNEL, b"again").expect("send");
                    }
                });
                for session in 0..2 {
                    if session == 1 {
                        // A node that hears it knows of the new life: nothing of the old one's is expected any more.
                        let message = a.recv(LONG).expect("link").expect("message");
                        assert_eq!(message.body, b"again", "{wire:?}");
                    }
                    for (index, size) in (0..).zip(SIZES) {
                        a.send(B, CHANNEL, &pattern(size, index)).expect("send");
                    }
                    for (index, size) in (0..).zip(SIZES) {
                        let message = a.recv(LONG).expect("link").expect("echo");
                        assert!(message.body == pattern(size, index), "{wire:?}: {index}");
                    }
                }
                let counters = a.counters().engine;
                assert!(
                    counters.asks > 0 || loss == 0.0,
                    "{wire:?} at {loss}: {counters:?}"
                );
                while !peer.is_finished() {
                    a.recv(std::time::Duration::from_millis(1)).expect("link");
                }
                peer.join().expect("peer");
            });
        }
    }
}

/// Counts datagrams, until a message comes.
#[derive(Debug, Default)]
struct Counted {
    datagrams: usize,
    messages: usize,
}

impl Handler for Counted {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {
        self.messages += 1;
    }

    fn datagram(&mut self, _: &mut Context<'_>, _: Datagram<'_>) {
        self.datagrams += 1;
    }
}

/// Frames that a testbed repeats arrive twice over every link, those to all included: messages come once all the same.
#[test]
fn repeated_frames_reach_every_link() {
    const EACH: usize = 100;
    let Some(testbed) = testbed("twice", 2, None) else {
        return;
    };
    let twice = Impairment {
        duplicate: 1.0,
        ..Impairment::NONE
    };
    testbed.impair(&[1], twice).expect("impaired");
    for wire in [Wire::Udp, Wire::Packet, Wire::Xdp] {
        let opened = [0, 1].map(|id| open(&testbed.hosts()[id], wire));
        let [Ok(a), Ok(b)] = opened else {
            eprintln!("skipped: {wire:?}: {opened:?}");
            continue;
        };
        let addrs = [a.local_addr(), b.local_addr()];
        let options = Options::default();
        let mut a = endpoint(a, A, &addrs, None, &options);
        let mut b = endpoint(b, B, &addrs, None, &options);
        let mut seen = Counted::default();
        assert!(a.wait_up(LONG).expect("up").is_empty());
        assert!(b.wait_up(LONG).expect("up").is_empty());
        let receiver = thread::spawn(move || {
            // A busy machine may drop some.
            while seen.messages < EACH || seen.datagrams < 3 * EACH / 2 {
                assert!(b.poll_wait(&mut seen, LONG).expect("link") > 0, "{seen:?}");
            }
            let counters = b.counters().engine;
            let _ = b.close(LONG);
            (seen, counters)
        });
        for _ in 0..EACH {
            let update = Datagram {
                payload: &[7; 100],
                ..Datagram::EMPTY
            };
            let missed = a.datagram(Destination::Broadcast, update, None);
            assert_eq!(missed.expect("link"), 0);
            a.send(B, CHANNEL, b"once").expect("sent");
            assert!(a.flush(LONG).expect("flush"));
        }
        let (seen, counters) = receiver.join().expect("receiver");
        let _ = a.close(LONG);
        let repeated = counters.drops.get(tsumuji_proto::Drop::Duplicate);
        println!("over {wire:?}: {seen:?}, {repeated} repeated");
        assert_eq!(seen.messages, EACH, "{wire:?}");
        assert!(seen.datagrams <= 2 * EACH, "{wire:?}: {seen:?}");
        assert!(repeated >= EACH as u64 / 2, "{wire:?}: {repeated}");
    }
}

/// Small urgent messages into a bulk transfer: each overtakes all of the bulk that waits at its sender, and waits only for what has left
/// already. Under either congestion control.
#[test]
fn urgent_messages_overtake_bulk() {
    const BULK: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 0);
    const URGENT: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 0);
    const BULK_BYTES: usize = 20_000;
    const BULKS: u64 = 400;
    const FRAME_BYTES: usize = 1_500;
    let Some(testbed) = testbed("prio", 2, Some("200mbit")) else {
        return;
    };
    for congestion in Congestion::ALL {
        let options = Options {
            congestion,
            send_queue_bytes: 64 << 20,
            ..Options::default()
        };
        let (mut a, mut b) = pair(&testbed, &options);
        let receiver = thread::spawn(move || {
            let (mut bulks, mut urgents) = (0_u64, Vec::new());
            while bulks < BULKS {
                let message = b.recv(LONG).expect("link").expect("message");
                if message.channel == BULK {
                    assert!(message.body == pattern(BULK_BYTES, bulks), "{bulks}");
                    bulks += 1;
                    continue;
                }
                let number = message.body.try_into().expect("8 bytes");
                urgents.push((u64::from_le_bytes(number), bulks));
            }
            let _ = b.close(LONG);
            urgents
        });
        let mut ahead = Vec::new();
        assert!(a.wait_up(LONG).expect("up").is_empty());
        for index in 0..BULKS {
            a.try_send(B, BULK, &pattern(BULK_BYTES, index))
                .expect("room");
            if index % 8 == 7 {
                let number = ahead.len() as u64;
                a.try_send(B, URGENT, &number.to_le_bytes()).expect("room");
                // Acknowledged, on its way, or just leaving with this call; what has left once may leave again before it. Asked afterwards: the
                // assistant may have sent while this thread did not run.
                let flow = a.flow(B).expect("peer");
                let waits = flow
                    .queued_bytes
                    .saturating_sub((flow.in_flight_frames + 64) * FRAME_BYTES);
                let left = index + 1 - (waits / BULK_BYTES) as u64;
                let before = ahead.last().map_or(0, |(_, before)| *before);
                ahead.push((index + 1, left.max(before)));
            }
        }
        let _ = a.close(LONG);
        let urgents = receiver.join().expect("receiver");
        let mut overtook = 0;
        for (number, bulks) in &urgents {
            let (submitted, ahead) = ahead[*number as usize];
            assert!(
                *bulks <= ahead,
                "{congestion}: {bulks} of {submitted} came before it, {ahead} may have left"
            );
            overtook += submitted.saturating_sub(*bulks);
        }
        let count = urgents.len();
        println!("{congestion}: {count} urgent messages overtook {overtook} of bulk");
        assert!(count >= 1 && overtook >= 100, "{congestion}: {overtook}");
    }
}

/// Messages of all four priorities that wait for the peer leave strictly by priority, whatever the order in which they were submitted.
#[test]
fn priorities_are_strict() {
    const EACH: u64 = 20;
    let Some(testbed) = testbed("strict", 2, Some("20mbit")) else {
        return;
    };
    for congestion in Congestion::ALL {
        let options = Options {
            congestion,
            progress: ProgressBy::Program, // an assistant would answer hello
            ..Options::default()
        };
        let (mut a, mut b) = pair(&testbed, &options);
        let channel = |priority| {
            let priority = Priority::new(priority).expect("0 to 3");
            Channel::new(DeliveryClass::Ordered, priority, 0)
        };
        // Nobody has answered hello yet: all of them wait.
        for index in 0..EACH {
            for priority in [2, 3, 0, 1] {
                a.try_send(B, channel(priority), &pattern(1_000, index))
                    .expect("room");
            }
        }
        let receiver = thread::spawn(move || {
            let mut order = Vec::new();
            for _ in 0..4 * EACH {
                let message = b.recv(LONG).expect("link").expect("message");
                order.push(message.channel.priority().get());
            }
            let _ = b.close(LONG);
            order
        });
        let _ = a.close(LONG);
        let order = receiver.join().expect("receiver");
        assert!(order.is_sorted(), "{congestion}: {order:?}");
    }
}

/// Takes pictures, each whole and newer than the one before, until a message comes.
#[derive(Default)]
struct Seen {
    pictures: u64,
    next: u64,
    end: bool,
}

impl Handler for Seen {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {
        self.end = true;
    }

    fn datagram(&mut self, _: &mut Context<'_>, picture: Datagram<'_>) {
        let (head, body) = picture.payload.split_at(8);
        let index = u64::from_le_bytes(head.try_into().expect("8 bytes"));
        assert!(index >= self.next, "{index} after {}", self.next);
        assert!(body == pattern(PICTURE_BYTES, index), "{index}");
        (self.pictures, self.next) = (self.pictures + 1, index + 1);
    }
}

const PICTURE_BYTES: usize = 40_000;

/// Video over a cable that carries a fraction of it: pictures that are late are dropped at their sender, and what arrives is whole
/// and in order; each picture is accounted for.
#[test]
fn late_pictures_are_dropped_at_the_sender() {
    const PICTURES: u64 = 300;
    // Three pictures' time on the cable, about: 32 ms each, and more where the receiver's core is busy with others.
    const DEADLINE: std::time::Duration = std::time::Duration::from_millis(100);
    let Some(testbed) = testbed("video", 2, Some("10mbit")) else {
        return;
    };
    let (mut a, mut b) = pair(&testbed, &Options::default());
    let receiver = thread::spawn(move || {
        let mut seen = Seen::default();
        while !seen.end {
            assert!(b.poll_wait(&mut seen, LONG).expect("link") > 0);
        }
        let _ = b.close(LONG);
        seen.pictures
    });
    assert!(a.wait_up(LONG).expect("up").is_empty());
    // So that pictures wait here, where they can be dropped, and not in the cable's queue.
    a.set_pace(B, Pace::Drain).expect("peer");
    let before = a.counters().link.sent_bytes;
    for index in 0..PICTURES {
        let body = [&index.to_le_bytes()[..], &pattern(PICTURE_BYTES, index)].concat();
        // Later many keys in turn, so that pictures are not replaced before they are late.
        let key = if index < PICTURES / 2 { 0 } else { index % 16 };
        let picture = Datagram {
            channel_id: VIDEO,
            key: key as u32,
            payload: &body,
            ..Datagram::EMPTY
        };
        let missed = a.datagram(Destination::Peer(B), picture, Some(DEADLINE));
        assert_eq!(missed.expect("sent"), 0);
        let until = std::time::Instant::now() + std::time::Duration::from_millis(10);
        while std::time::Instant::now() < until {
            a.recv(std::time::Duration::from_millis(2)).expect("link");
        }
    }
    assert!(a.flush(LONG).expect("flush"));
    let sent = a.counters().link.sent_bytes - before;
    let flow = a.flow(B).expect("peer");
    a.send(B, CHANNEL, b"end").expect("send");
    let _ = a.close(LONG);
    let came = receiver.join().expect("receiver");
    let dropped = flow.superseded_datagrams + flow.late_datagrams + flow.lost_datagrams;
    println!("{came} of {PICTURES} pictures came: {flow:?}");
    // One whose acknowledgement was awaited for too long counts as lost, and may have come all the same.
    assert!(came + dropped >= PICTURES, "{came}: {flow:?}");
    assert!(
        came + dropped - flow.lost_datagrams <= PICTURES,
        "{came}: {flow:?}"
    );
    assert!(flow.late_datagrams > 20 && came > 10, "{flow:?}");
    let offered = PICTURES * PICTURE_BYTES as u64;
    assert!(
        sent < offered * 2 / 3,
        "{sent} of {offered} bytes left: nothing was dropped at the sender"
    );
}
