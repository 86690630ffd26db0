//! Datagrams of which only the newest of a key counts, of one frame and of several, with and without deadlines (R-40, R-86 … R-88).

use tsumuji_proto::{
    Channel, Config, DeliveryClass, Destination, Duration, NodeId, Pace, Priority,
};
use tsumuji_sim::{Net, Seed, config};

const SECOND: Duration = Duration::from_secs(1);

/// Publishes picture `number`, of any length.
fn publish(
    net: &mut Net,
    (from, to): (NodeId, NodeId),
    number: u32,
    bytes: usize,
    deadline: Option<Duration>,
) {
    let to = Destination::Peer(to);
    let missed = net.publish_until(from, to, (1, 0), number, 0, bytes, deadline);
    assert_eq!(missed.expect("sent"), 0);
}

/// The numbers of what came, each of the length it was sent with; the net checks the content.
fn numbers(net: &Net, node: NodeId, bytes: impl Fn(u32) -> usize) -> Vec<u32> {
    let came = net.datagrams(node).iter();
    came.map(|picture| {
        assert_eq!(picture.bytes, bytes(picture.lap));
        picture.lap
    })
    .collect()
}

/// Frames that lose a fifth, come twice and late: what arrives is whole, never older than what came before, and all is accounted for.
#[test]
fn newest_wins_under_loss() {
    let mut net = Net::new(Seed::from_env_or(301))
        .delay_us(20..80)
        .loss_percent(4)
        .duplicate_percent(10)
        .reorder_percent(20, 50..500);
    let (a, b) = net.pair(config());
    let bytes = |number: u32| 2_000 + number as usize % 6 * 1_000;
    for number in 0..2_000 {
        publish(&mut net, (a, b), number, bytes(number), None);
        net.run_for(Duration::from_micros(300));
    }
    net.run_for(SECOND);
    let came = numbers(&net, b, bytes);
    net.check(came.is_sorted_by(|a, b| a < b), || {
        format!("out of order: {came:?}")
    });
    net.check(came.len() > 1_200, || {
        format!("{} of 2000 came", came.len())
    });
    let flow = net.flow(a, b).unwrap();
    net.check(
        flow.lost_datagrams > 0 && flow.retransmitted_frames == 0,
        || format!("{flow:?}"),
    );
    // One that was thought lost may have come all the same.
    let accounted = came.len() as u64 + flow.lost_datagrams + flow.superseded_datagrams;
    net.check(accounted >= 2_000 && flow.queued_messages == 0, || {
        format!("{accounted} accounted for: {flow:?}")
    });
    let accounts = net.engine(b).unwrap().accounts();
    net.check(
        accounts.are_balanced() && accounts.memory_bytes == 0,
        || format!("{accounts:?}"),
    );
}

/// Pictures faster than the wire: the queue never holds more than one that waits, and what comes is young.
#[test]
fn a_stream_faster_than_the_wire_stays_young() {
    const BYTES: usize = 50_000;
    // 50 kB every 2 ms are 200 Mbit/s.
    let mut net = Net::new(Seed::from_env_or(302)).rate_mbit(100);
    let (a, b) = net.pair(Config {
        receive_frames: 64, // less than two pictures are under way
        ..config()
    });
    for number in 0..500 {
        publish(&mut net, (a, b), number, BYTES, None);
        let queued = net.flow(a, b).unwrap().queued_messages;
        net.check(queued <= 4, || format!("{queued} queued"));
        net.run_for(Duration::from_millis(2));
        let newest = numbers(&net, b, |_| BYTES).last().copied();
        net.check(
            number < 10 || newest.is_some_and(|newest| newest + 8 >= number),
            || format!("{newest:?} is the newest of {number}"),
        );
    }
    let came = net.datagrams(b).len();
    net.check((200..300).contains(&came), || {
        format!("{came} of 500 came, half could")
    });
    let flow = net.flow(a, b).unwrap();
    net.check(flow.superseded_datagrams > 150, || format!("{flow:?}"));
}

/// Where frames take far longer than what is known of the round trip, that is learned from those that are answered late, though none is sent
/// again: at most the first three datagrams are lost.
#[test]
fn slower_paths_are_learned() {
    let mut net = Net::new(Seed::from_env_or(307)).delay_us(5..6);
    let (a, b) = net.pair(config());
    for _ in 0..20 {
        net.send(a, b, Channel::ordered(0), &[7; 8]);
        net.run_until_idle();
    }
    let mut net = net.delay_us(2_500..2_501);
    // One frame at a time, to begin with.
    let paced = net.call(a, |engine, now| engine.set_pace(now, b, Pace::Drain));
    assert_eq!(paced, Some(true));
    for number in 0..50 {
        publish(&mut net, (a, b), number, 5_000, None);
        net.run_for(Duration::from_millis(40));
    }
    let came = numbers(&net, b, |_| 5_000);
    let learned: Vec<u32> = (3..50).collect();
    net.check(came.ends_with(&learned), || {
        format!("{came:?} came: {:?}", net.flow(a, b))
    });
}

/// Of several keys, each faster than the wire: none is starved by the others.
#[test]
fn each_key_has_its_newest() {
    const KEYS: u32 = 4;
    const BYTES: usize = 20_000;
    let mut net = Net::new(Seed::from_env_or(306)).rate_mbit(100);
    let (a, b) = net.pair(Config {
        receive_frames: 64,
        ..config()
    });
    for lap in 0..200 {
        for key in 0..KEYS {
            let missed = net.publish(a, Destination::Broadcast, (1, 0), lap, key, BYTES);
            assert_eq!(missed.expect("sent"), 0);
        }
        net.run_for(Duration::from_millis(2)); // 320 Mbit/s
    }
    net.run_for(SECOND);
    for key in 0..KEYS {
        let of_key = net.datagrams(b).iter().filter(|came| came.key == key);
        let laps: Vec<u32> = of_key.map(|came| came.lap).collect();
        net.check(laps.len() > 40 && laps.last() == Some(&199), || {
            format!("of key {key} came {laps:?}")
        });
    }
}

/// What is late is dropped where it waits, and counted; what is not, comes.
#[test]
fn late_datagrams_are_dropped_at_the_sender() {
    let mut net = Net::new(Seed::from_env_or(303));
    let (a, b) = net.pair(config());
    net.pause(b);
    let room = net.flow(a, b).unwrap().credit_frames;
    for key in 0..16 {
        // Fills all that may leave unasked.
        let (bytes, until) = ((room + 8) * 1_460, Some(Duration::from_millis(1)));
        let missed = net.publish_until(a, Destination::Peer(b), (1, 0), 0, key, bytes, until);
        assert_eq!(missed.expect("sent"), 0);
    }
    net.run_for(Duration::from_millis(2));
    let flow = net.flow(a, b).unwrap();
    net.check(
        flow.late_datagrams == 16 && flow.queued_messages == 0,
        || format!("{flow:?}"),
    );
    net.resume(b);
    publish(&mut net, (a, b), 99, 20_000, Some(SECOND));
    net.run_for(Duration::from_millis(500));
    net.check(numbers(&net, b, |_| 20_000) == [99], || {
        format!("{} came", net.datagrams(b).len())
    });
}

/// Datagrams of any length go before bulk that waits, and bulk comes whole all the same.
#[test]
fn datagrams_go_before_bulk() {
    let mut net = Net::new(Seed::from_env_or(304)).rate_mbit(1_000);
    let (a, b) = net.pair(config());
    let bulk = Channel::new(DeliveryClass::Ordered, Priority::BULK, 0);
    net.stream(a, b, bulk, 1 << 20, 4);
    for number in 0..100 {
        let before = net.now();
        let bytes = if number % 2 == 0 { 1_000 } else { 5_000 };
        publish(&mut net, (a, b), number, bytes, None);
        net.run_until(|net| net.datagrams(b).len() as u32 == number + 1);
        let took = net.now().since(before);
        net.check(took < Duration::from_millis(2), || {
            format!("{took:?} for a datagram")
        });
    }
    net.run_until_idle();
}

/// A peer that restarts, or never reads, leaves nothing behind of what was sent to it.
#[test]
fn datagrams_end_with_their_session() {
    let mut net = Net::new(Seed::from_env_or(305))
        .delay_us(5..50)
        .loss_percent(5);
    let (a, b) = net.pair(Config {
        budget_bytes: 100_000,
        ..config()
    });
    for incarnation in 0..5 {
        for number in 0..50 {
            let until = Some(Duration::from_millis(5));
            publish(&mut net, (a, b), number, 30_000, until);
            net.run_for(Duration::from_micros(100));
        }
        net.crash(b);
        net.run_for(Duration::from_millis(incarnation));
        net.restart(b);
        net.run_for(Duration::from_millis(300));
        net.reconnect(a, b);
        net.run_until(|net| net.has_met(a, b));
        let flow = net.flow(a, b).unwrap();
        net.check(flow.queued_messages == 0 && flow.queued_bytes == 0, || {
            format!("{flow:?}")
        });
    }
    let accounts = net.engine(b).unwrap().accounts();
    net.check(accounts.are_balanced(), || format!("{accounts:?}"));
}
