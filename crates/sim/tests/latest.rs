//! Best-effort messages of which only the newest counts, with and without deadlines (R-86 … R-88).

use tsumuji_proto::{
    Config, DeliveryClass, Duration, Engine, Instant, Lane, NodeId, Payload, Priority,
};
use tsumuji_sim::{Net, Seed, config};

const VIDEO: Lane = Lane::new(DeliveryClass::Latest, Priority::URGENT, 1);
const SECOND: Duration = Duration::from_secs(1);

/// A message that tells its number, of any length.
fn picture(number: u64, bytes: usize) -> Vec<u8> {
    let mut body = vec![number as u8; bytes.max(8)];
    body[..8].copy_from_slice(&number.to_le_bytes());
    body
}

/// The numbers of what came, each whole and of the length it was sent with.
fn numbers(net: &Net, node: NodeId, bytes: impl Fn(u64) -> usize) -> Vec<u64> {
    let read = |body: &Vec<u8>| {
        let number = u64::from_le_bytes(body[..8].try_into().unwrap());
        assert_eq!(*body, picture(number, bytes(number)));
        number
    };
    net.received(node).iter().map(read).collect()
}

fn publish(net: &mut Net, from: NodeId, to: NodeId, body: &[u8], deadline: Option<Duration>) {
    let submit = |engine: &mut Engine, now: Instant| {
        let deadline = deadline.map(|after| now + after);
        engine.submit_latest(to, VIDEO, Payload::Copied(body), deadline)
    };
    net.call(from, submit).expect("alive").expect("room");
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
    let bytes = |number: u64| 8 + number as usize % 7 * 1_000;
    for number in 0..2_000 {
        publish(&mut net, a, b, &picture(number, bytes(number)), None);
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
        flow.lost_messages > 0 && flow.retransmitted_frames == 0,
        || format!("{flow:?}"),
    );
    // A message that was thought lost may have come all the same.
    let accounted = came.len() as u64 + flow.lost_messages + flow.superseded_messages;
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
        publish(&mut net, a, b, &picture(number, BYTES), None);
        let queued = net.flow(a, b).unwrap().queued_messages;
        net.check(queued <= 4, || format!("{queued} queued"));
        net.run_for(Duration::from_millis(2));
        let newest = numbers(&net, b, |_| BYTES).last().copied();
        net.check(
            number < 10 || newest.is_some_and(|newest| newest + 8 >= number),
            || format!("{newest:?} is the newest of {number}"),
        );
    }
    let came = net.received(b).len();
    net.check((200..300).contains(&came), || {
        format!("{came} of 500 came, half could")
    });
    let flow = net.flow(a, b).unwrap();
    net.check(flow.superseded_messages > 150, || format!("{flow:?}"));
}

/// What is late is dropped where it waits, and counted; what is not, comes.
#[test]
fn late_messages_are_dropped_at_the_sender() {
    let mut net = Net::new(Seed::from_env_or(303));
    let (a, b) = net.pair(config());
    net.pause(b);
    let room = net.flow(a, b).unwrap().credit_frames as u64;
    let streams = |number: u64| Lane::new(DeliveryClass::Latest, Priority::NORMAL, number as u16);
    for number in 0..16 {
        // Fills all that may leave unasked.
        let body = picture(number, (room as usize + 8) * 1_460);
        let submit = |engine: &mut Engine, now: Instant| {
            let deadline = Some(now + Duration::from_millis(1));
            engine.submit_latest(b, streams(number), Payload::Copied(&body), deadline)
        };
        net.call(a, submit).expect("alive").expect("room");
    }
    net.run_for(Duration::from_millis(2));
    let flow = net.flow(a, b).unwrap();
    net.check(
        flow.late_messages == 16 && flow.queued_messages == 0,
        || format!("{flow:?}"),
    );
    net.resume(b);
    publish(&mut net, a, b, &picture(99, 20_000), Some(SECOND));
    net.run_for(Duration::from_millis(500));
    net.check(numbers(&net, b, |_| 20_000) == [99], || {
        format!("{} came", net.received(b).len())
    });
}

/// An urgent stream goes before bulk that waits, and bulk comes whole all the same.
#[test]
fn priorities_hold_for_streams() {
    let mut net = Net::new(Seed::from_env_or(304)).rate_mbit(1_000);
    let (a, b) = net.pair(config());
    let bulk = Lane::new(DeliveryClass::Ordered, Priority::BULK, 0);
    net.stream(a, b, bulk, 1 << 20, 4);
    for number in 0..100 {
        let before = net.now();
        publish(&mut net, a, b, &picture(number, 1_000), None);
        net.run_until(|net| net.received(b).len() as u64 == number + 1);
        let took = net.now().since(before);
        net.check(took < Duration::from_millis(2), || {
            format!("{took:?} for an urgent message")
        });
    }
    net.run_until_idle();
}

/// A peer that restarts, or never reads, leaves nothing behind of what was sent to it.
#[test]
fn streams_end_with_their_session() {
    let mut net = Net::new(Seed::from_env_or(305))
        .delay_us(5..50)
        .loss_percent(5);
    let (a, b) = net.pair(Config {
        budget_bytes: 100_000,
        ..config()
    });
    for life in 0..5 {
        for number in 0..50 {
            publish(
                &mut net,
                a,
                b,
                &picture(number, 30_000),
                Some(Duration::from_millis(5)),
            );
            net.run_for(Duration::from_micros(100));
        }
        net.crash(b);
        net.run_for(Duration::from_millis(life));
        net.restart(b);
        net.run_for(Duration::from_millis(300));
        net.revive(a, b);
        net.run_until(|net| net.has_met(a, b));
        let flow = net.flow(a, b).unwrap();
        net.check(flow.queued_messages == 0 && flow.queued_bytes == 0, || {
            format!("{flow:?}")
        });
    }
    let accounts = net.engine(b).unwrap().accounts();
    net.check(accounts.are_balanced(), || format!("{accounts:?}"));
}
