//! Urgent before bulk, slow programs, large messages.

use super::{config, figure};
use tsumuji_proto::{Channel, Config, DeliveryClass, Duration, Priority};
use tsumuji_sim::{Net, Pace, Received, Seed};

const URGENT: Channel = Channel::new(DeliveryClass::Ordered, Priority::URGENT, 0);
const BULK: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 0);

/// A small urgent message passes 64 MiB of bulk: it waits for what the card already holds, not for the bulk.
#[test]
fn urgent_passes_bulk() {
    // The card's ring of 64 frames and those under way in it, at 12.304 µs each, two passes of its own, 10 µs of delay: 0.85 ms.
    const BOUND: Duration = Duration::from_millis(1);
    let mut net = Net::new(Seed::from_env_or(30))
        .rate_mbit(1_000)
        .switch_buffer(512 << 10);
    let (a, b) = net.pair(Config {
        budget_bytes: 128 << 20,
        send_queue_bytes: 128 << 20,
        ..config()
    });
    net.stream(a, b, BULK, 64 << 20, 1);
    for _ in 0..100 {
        net.run_for(Duration::from_micros(4_321));
        net.stream(a, b, URGENT, 100, 1);
    }
    net.run_until_idle();
    let (urgent, bulk): (Vec<Received>, Vec<Received>) = net
        .deliveries(b)
        .iter()
        .copied()
        .partition(|message| message.channel == URGENT);
    assert_eq!((urgent.len(), bulk.len()), (100, 1));
    let worst = urgent
        .iter()
        .map(|message| message.at.since(message.submitted))
        .max()
        .unwrap();
    figure(&net, worst <= BOUND, || {
        format!("an urgent message took {} µs", worst.as_nanos() / 1_000)
    });
    let took = bulk[0].at.since(bulk[0].submitted);
    net.check(took >= Duration::from_millis(540), || {
        String::from("64 MiB faster than the wire")
    });
    figure(&net, took <= Duration::from_millis(620), || {
        format!("bulk took {} ms", took.as_nanos() / 1_000_000)
    });
}

/// Urgent small messages keep their bound when the receiver is the target of everybody's bulk.
#[test]
fn urgent_passes_others_bulk() {
    // The sender's own ring is empty; what waits in the receiver's port is at most what credit lets into it.
    const BOUND: Duration = Duration::from_millis(5);
    let mut net = Net::new(Seed::from_env_or(31))
        .rate_mbit(1_000)
        .switch_buffer(512 << 10);
    let nodes = net.star(9, &config());
    net.run_until_up();
    for sender in &nodes[1..8] {
        net.stream(*sender, nodes[0], BULK, 1 << 20, 4);
    }
    for _ in 0..40 {
        net.run_for(Duration::from_millis(4));
        net.stream(nodes[8], nodes[0], URGENT, 100, 1);
    }
    net.run_until_idle();
    let urgent = net
        .deliveries(nodes[0])
        .iter()
        .filter(|message| message.channel == URGENT);
    let worst = urgent
        .map(|message| message.at.since(message.submitted))
        .max()
        .unwrap();
    figure(&net, worst <= BOUND, || {
        format!("an urgent message took {} µs", worst.as_nanos() / 1_000)
    });
}

/// A program that takes nothing closes the window: nothing is dropped, nobody dies, the wire is quiet; then all goes on.
#[test]
fn stopped_program_closes_the_window() {
    let budget = 1 << 20;
    for bytes in [100, 30_000, 700_000] {
        let mut net = Net::new(Seed::from_env_or(32)).rate_mbit(1_000);
        let (a, b) = net.pair(Config {
            budget_bytes: budget,
            ..config()
        });
        net.set_pace(b, Pace::Stopped);
        let count = (8 << 20) / bytes as u64;
        net.stream(a, b, Channel::ordered(0), bytes, count);
        net.run_for(Duration::from_millis(300));
        let (held, before) = (net.held(b), net.traffic().sent_frames);
        net.check(held <= budget + bytes, || format!("{bytes}: holds {held}"));
        // The engine charges each message for its bookkeeping too: small ones fill the budget before their bytes do.
        let charged = held / bytes * (bytes + 64);
        net.check(charged + bytes >= budget / 2, || {
            format!("{bytes}: holds only {held} of {budget}")
        });
        net.run_for(Duration::from_secs(1));
        let sent = net.traffic().sent_frames - before;
        net.check(sent <= 1_000, || {
            format!("{bytes}: {sent} frames in a second with a closed window")
        });
        assert_eq!(net.held(b), held);
        net.set_pace(b, Pace::Prompt);
        net.run_until_idle();
        assert_eq!(net.deliveries(b).len() as u64, count);
        assert_eq!((net.receive_full(b), net.declared_dead(a, b)), (0, None));
        net.check(net.held_peak(b) <= budget + bytes, || {
            format!("{bytes}: held {}", net.held_peak(b))
        });
    }
}

/// A program that takes 20 MB/s gets 20 MB/s, and all of it.
#[test]
fn slow_program_sets_the_pace() {
    let mut net = Net::new(Seed::from_env_or(33))
        .rate_mbit(1_000)
        .loss_percent(1);
    let (a, b) = net.pair(Config {
        budget_bytes: 1 << 20,
        ..config()
    });
    net.set_pace(b, Pace::BytesPerSecond(20_000_000));
    let start = net.now();
    net.stream(a, b, Channel::ordered(0), 40_000, 250);
    net.run_until_idle();
    // 10 MB less what fits into the budget at the end.
    let took = net.now().since(start).as_nanos() / 1_000_000;
    figure(&net, (440..=550).contains(&took), || {
        format!("10 MB took {took} ms")
    });
}

/// Several senders share a small budget of a slow program, and none is shut out.
#[test]
fn small_budget_is_shared() {
    let mut net = Net::new(Seed::from_env_or(34)).rate_mbit(1_000);
    let nodes = net.star(
        9,
        &Config {
            budget_bytes: 256 << 10,
            ..config()
        },
    );
    net.run_until_up();
    net.set_pace(nodes[0], Pace::BytesPerSecond(20_000_000));
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), 20_000, 50);
    }
    net.run_for(Duration::from_millis(200));
    for sender in &nodes[1..] {
        let got = net
            .deliveries(nodes[0])
            .iter()
            .filter(|message| message.from == *sender)
            .count();
        net.check(got >= 5, || {
            format!("{sender} delivered {got} of about 25 by now")
        });
    }
    net.run_until_idle();
    assert_eq!(net.deliveries(nodes[0]).len(), 400);
}

/// One message larger than budget and queue passes; so do several at once from different senders.
#[test]
fn message_larger_than_the_budget() {
    let mut net = Net::new(Seed::from_env_or(35))
        .rate_mbit(10_000)
        .loss_percent(1);
    let nodes = net.star(
        4,
        &Config {
            budget_bytes: 1 << 20,
            send_queue_bytes: 1 << 20,
            ..config()
        },
    );
    net.run_until_up();
    for sender in &nodes[1..] {
        net.stream(*sender, nodes[0], Channel::ordered(0), 3 << 20, 2);
    }
    net.run_until_idle();
    assert_eq!(net.deliveries(nodes[0]).len(), 6);
}

/// Bulk that has filled the receiver's budget and is not yet whole cannot lock out what is more urgent, nor be locked out by it:
/// whatever has been admitted gets its remaining fragments, whatever was refused gets its turn.
#[test]
fn full_budget_is_no_deadlock() {
    for class in [DeliveryClass::Ordered, DeliveryClass::Unordered] {
        for (senders, bytes, urgent_bytes) in [
            (1, 4 << 20, 100),
            (1, 40_000, 40_000),
            (3, 40_000, 40_000),
            (3, 300_000, 100),
        ] {
            let mut net = Net::new(Seed::from_env_or(38))
                .rate_mbit(1_000)
                .loss_percent(2);
            let nodes = net.star(
                1 + senders,
                &Config {
                    budget_bytes: 70_000,
                    ..config()
                },
            );
            net.run_until_up();
            for (priority, bytes) in [
                (Priority::BULK, bytes),
                (Priority::NORMAL, bytes),
                (Priority::URGENT, urgent_bytes),
            ] {
                for sender in &nodes[1..] {
                    net.stream(
                        *sender,
                        nodes[0],
                        Channel::new(class, priority, 0),
                        bytes,
                        5,
                    );
                }
                net.run_for(Duration::from_micros(300));
            }
            net.run_until_idle();
            assert_eq!(net.deliveries(nodes[0]).len(), senders * 15);
        }
    }
}

/// 256 MiB in one message, at the rate of the wire.
#[test]
fn quarter_gibibyte_message() {
    const BYTES: usize = 256 << 20;
    let mut net = Net::new(Seed::from_env_or(36))
        .rate_mbit(10_000)
        .switch_buffer(512 << 10);
    let (a, b) = net.pair(Config {
        frame_bytes: 9_000,
        ..config()
    });
    net.stream(a, b, Channel::ordered(0), BYTES, 1);
    net.run_until_idle();
    let message = net.deliveries(b)[0];
    let share = tsumuji_sim::goodput(
        BYTES as u64,
        message.at.since(message.submitted),
        10_000_000_000,
    );
    figure(&net, share >= 0.95, || {
        format!("{:.1} % of the wire", share * 100.0)
    });
}

/// What the kernel would give without swapping; 0 where it does not tell.
fn available_bytes() -> usize {
    let all = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = all
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"));
    let kib = line.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok());
    kib.unwrap_or(0) * 1024
}

/// One message of more than 1 GiB.
#[test]
fn message_over_a_gibibyte() {
    const BYTES: usize = (1 << 30) + (1 << 28) + 1;
    // The sender's copy, the receiver's, and the frames between them; and something for everybody else.
    const NEEDED_BYTES: usize = 4 << 30;
    let available = available_bytes();
    if available < NEEDED_BYTES {
        println!(
            "SKIPPED message_over_a_gibibyte: wants {} GiB of available memory, and there are {:.1}",
            NEEDED_BYTES >> 30,
            available as f64 / (1 << 30) as f64
        );
        return;
    }
    let mut net = Net::new(Seed::from_env_or(37))
        .rate_mbit(100_000)
        .switch_buffer(4 << 20);
    // Long frames, so that it takes few.
    let (a, b) = net.pair(Config {
        frame_bytes: 65_000,
        message_limit_bytes: 2 << 30,
        ..config()
    });
    net.stream(a, b, Channel::ordered(0), BYTES, 1);
    net.run_until_idle();
    assert_eq!(net.deliveries(b)[0].bytes, BYTES);
}
