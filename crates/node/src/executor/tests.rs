//! Executors over shared memory: order, moves, bounds, ends.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};

use super::*;
use crate::{ChannelOptions, Datagram, Destination, Endpoint, Membership, Options};

const CHANNEL: u16 = 7;
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(20);

fn endpoints(count: u16) -> Vec<Endpoint> {
    let job = ShmJob::create(count.into(), ShmConfig::for_nodes(count.into())).unwrap();
    let open = |id: u16| {
        let link = Shm::attach(&job, id).unwrap();
        let membership = Membership::local(NodeId(id), count);
        let options = Options {
            // What has left before a peer is told to stop is soon little.
            send_queue_bytes: 64 << 10,
            ..Options::default()
        };
        Endpoint::new(link, membership, options).unwrap()
    };
    (0..count).map(open).collect()
}

fn options(executor: Executor, workers: usize) -> ExecutorOptions {
    ExecutorOptions {
        executor,
        workers,
        cores: Vec::new(),
    }
}

fn spin(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Sets a flag when it goes, also by a panic: the thread that looks at it ends, and the panic is told.
struct Ends<'a>(&'a AtomicBool);

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Drives a server on a thread until all clients are done; returns what `ask` found in the end.
fn serve_while<R: Send>(
    mut server: Endpoint,
    work: impl FnOnce(),
    ask: impl FnOnce(&mut Endpoint) -> R + Send,
) -> R {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.recv(POLL_EVERY).unwrap();
            }
            ask(&mut server)
        });
        let ends = Ends(&is_over);
        work();
        drop(ends);
        thread.join().unwrap()
    })
}

/// Sends `count` numbers with some outstanding, and expects them back in order.
fn expect_in_order(client: &mut Endpoint, count: u64, outstanding: u64) {
    let (mut sent, mut received) = (0, 0);
    while received < count {
        while sent < count && sent - received < outstanding {
            let number = u64::to_le_bytes(sent);
            client
                .send(NodeId(0), Channel::ordered(CHANNEL), &number)
                .unwrap();
            sent += 1;
        }
        let answer = client.recv(PATIENCE).unwrap().expect("an answer");
        assert_eq!(answer.body, u64::to_le_bytes(received), "in order");
        received += 1;
    }
}

/// Every executor answers all that several peers send, each peer in order and never two messages of a peer at a time.
#[test]
fn answers_come_in_order() {
    for (executor, workers) in [
        (Executor::RunToCompletion, 0),
        (Executor::Pipeline, 1),
        (Executor::Pipeline, 3),
        (Executor::Adaptive, 0),
    ] {
        let mut nodes = endpoints(4);
        let mut server = nodes.remove(0);
        let serving: Arc<Mutex<HashMap<NodeId, bool>>> = Arc::default();
        let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
            let set = |is_served| serving.lock().unwrap().insert(request.from, is_served);
            assert_ne!(set(true), Some(true), "one at a time");
            let number = u64::from_le_bytes(request.body.try_into().unwrap());
            spin(Duration::from_nanos(number % 7 * 1_000));
            set(false);
            answers.reply(request.body).unwrap();
        };
        server
            .serve(
                CHANNEL,
                ChannelOptions::default(),
                options(executor, workers),
                service,
            )
            .unwrap();
        let work = || {
            std::thread::scope(|scope| {
                for client in &mut nodes {
                    scope.spawn(|| expect_in_order(client, 3_000, 40));
                }
            });
        };
        let state = serve_while(server, work, |server| server.executor(CHANNEL).unwrap());
        assert_eq!(state.driver_messages + state.worker_messages, 9_000);
        assert_eq!(state.waiting_messages, 0);
        match executor {
            Executor::RunToCompletion => assert_eq!(state.worker_messages, 0),
            Executor::Pipeline => {
                assert_eq!(state.driver_messages, 0);
                let cores = std::thread::available_parallelism().map_or(1, usize::from);
                assert_eq!(state.workers, workers.min(cores - 1).max(1), "fewer cores");
            }
            Executor::Adaptive => {}
        }
    }
}

/// A service that grows heavy goes to the workers, and comes back when it is light again; answers stay in order all the time.
#[test]
fn services_move_and_come_back() {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED services_move_and_come_back: there is one core");
        return;
    }
    let mut nodes = endpoints(2);
    let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
    let time_ns = Arc::new(AtomicU64::new(0));
    let spent = Arc::clone(&time_ns);
    let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
        spin(Duration::from_nanos(spent.load(Ordering::Relaxed)));
        answers.reply(request.body).unwrap();
    };
    let adaptive = options(Executor::Adaptive, 0);
    server
        .serve(CHANNEL, ChannelOptions::default(), adaptive, service)
        .unwrap();
    let (asks, asked) = mpsc::channel::<mpsc::Sender<ExecutorState>>();
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let _ends = Ends(is_over);
        scope.spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                server.recv(Duration::from_millis(1)).unwrap();
                while let Ok(to) = asked.try_recv() {
                    let _ = to.send(server.executor(CHANNEL).unwrap());
                }
            }
        });
        let state = || {
            let (to, answer) = mpsc::channel();
            asks.send(to).unwrap();
            answer.recv().unwrap()
        };
        let mut moves = 0;
        for (nanoseconds, with_workers, reason) in [
            (0, false, Reason::Light),
            (20_000, true, Reason::Heavy),
            (0, false, Reason::Light),
            (300_000, true, Reason::Long),
            (0, false, Reason::Light),
        ] {
            time_ns.store(nanoseconds, Ordering::Relaxed);
            let begun = Instant::now();
            loop {
                expect_in_order(&mut client, 200, 32);
                let state = state();
                if state.with_workers == with_workers && state.reason == reason {
                    assert!(state.moves >= moves);
                    moves = state.moves + u64::from(nanoseconds == 0);
                    break;
                }
                assert!(begun.elapsed() < PATIENCE, "{nanoseconds} ns: {state:?}");
            }
        }
    });
}

/// A service that is heavy each 32nd time counts by its mean, 119 ns, whichever call is the heavy one.
#[test]
fn rare_heavy_calls_count_by_their_mean() {
    for heavy in 0..32 {
        let shared = Shared::default();
        for number in 0..50_000_u32 {
            if !shared.is_timed(number) {
                continue;
            }
            shared.took(if number % 32 == heavy { 3_200 } else { 20 });
            let call_ns = shared.state().call_ns;
            assert!(
                number < 10_000 || (20..500).contains(&call_ns),
                "heavy {heavy}: {call_ns} ns"
            );
        }
    }
}

/// A driving thread that is bound to one core has its heavy service served on others, whether it was bound before it opened the channel or later.
#[test]
fn bound_drivers_have_workers_elsewhere() {
    let all = sched_getaffinity(None).unwrap();
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        println!("SKIPPED bound_drivers_have_workers_elsewhere: there is one core");
        return;
    }
    let core = (0..CpuSet::MAX_CPU).find(|core| all.is_set(*core)).unwrap();
    let mut one = CpuSet::new();
    one.set(core);
    for is_bound_before in [true, false] {
        let mut nodes = endpoints(2);
        let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
        let service = |request: &Request<'_>, answers: &mut Answers<'_>| {
            spin(Duration::from_micros(300));
            answers.reply(request.body).unwrap();
        };
        let bound = std::thread::spawn(move || {
            if is_bound_before {
                sched_setaffinity(None, &one).unwrap();
            }
            let adaptive = options(Executor::Adaptive, 0);
            server
                .serve(CHANNEL, ChannelOptions::default(), adaptive, service)
                .unwrap();
            sched_setaffinity(None, &one).unwrap(); // also for the thread that drives from now on
            let work = || expect_in_order(&mut client, 200, 32);
            serve_while(server, work, |server| server.executor(CHANNEL).unwrap())
        });
        let state = bound.join().unwrap();
        assert!(state.worker_messages > 0, "{is_bound_before}: {state:?}");
    }
}

/// Workers run on the cores that were asked for; one whose core is beyond all runs anywhere.
#[test]
fn workers_run_on_their_cores() {
    let all = sched_getaffinity(None).unwrap();
    let last = (0..CpuSet::MAX_CPU).rfind(|core| all.is_set(*core));
    let last = last.unwrap();
    let mut one = CpuSet::new();
    one.set(last);
    for (core, wanted) in [(last, one), (CpuSet::MAX_CPU, all)] {
        let mut nodes = endpoints(2);
        let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
        let runs_there = Arc::new(AtomicBool::new(false));
        let found = Arc::clone(&runs_there);
        let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
            let own = sched_getaffinity(None).unwrap();
            found.store(own == wanted, Ordering::Relaxed);
            answers.reply(request.body).unwrap();
        };
        let pinned = ExecutorOptions {
            cores: vec![core],
            ..options(Executor::Pipeline, 1)
        };
        server
            .serve(CHANNEL, ChannelOptions::default(), pinned, service)
            .unwrap();
        serve_while(server, || expect_in_order(&mut client, 1, 1), |_| ());
        assert!(runs_there.load(Ordering::Relaxed), "core {core}");
    }
}

/// What waits for workers counts against the channel's budget: a fast sender is stopped, and nothing is lost.
#[test]
fn budgets_bound_what_waits() {
    let mut nodes = endpoints(2);
    let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
    let service = |request: &Request<'_>, answers: &mut Answers<'_>| {
        spin(Duration::from_micros(50));
        answers.reply(&request.body[..8]).unwrap();
    };
    let budget = ChannelOptions {
        budget_bytes: 64 << 10,
        ..ChannelOptions::default()
    };
    server
        .serve(CHANNEL, budget, options(Executor::Pipeline, 1), service)
        .unwrap();
    let most = Arc::new(AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _ends = Ends(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                server.recv(Duration::from_millis(1)).unwrap();
                let waiting = server.executor(CHANNEL).unwrap().waiting_messages as u64;
                most.fetch_max(waiting, Ordering::Relaxed);
            }
        });
        for number in 0..4_000_u64 {
            let mut body = [0; 1000];
            body[..8].copy_from_slice(&number.to_le_bytes());
            client
                .send(NodeId(0), Channel::ordered(CHANNEL), &body)
                .unwrap();
        }
        for number in 0..4_000_u64 {
            let answer = client.recv(PATIENCE).unwrap().expect("an answer");
            assert_eq!(answer.body, number.to_le_bytes());
        }
    });
    let most = most.load(Ordering::Relaxed);
    // What lay in the ring and the queue of the sender when it was told to stop, and the budget.
    assert!((10..2_000).contains(&most), "{most} waited at most");
}

/// A channel that is closed while workers are busy ends their threads, and nothing of the service stays.
#[test]
fn closing_ends_workers() {
    let mut nodes = endpoints(2);
    let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
    let alive = Arc::new(());
    let held = Arc::clone(&alive);
    let service = move |request: &Request<'_>, answers: &mut Answers<'_>| {
        let _ = &held;
        std::thread::sleep(Duration::from_millis(5));
        let _ = answers.reply(request.body);
    };
    server
        .serve(
            CHANNEL,
            ChannelOptions::default(),
            options(Executor::Pipeline, 2),
            service,
        )
        .unwrap();
    for number in 0..200_u64 {
        client
            .send(NodeId(0), Channel::ordered(CHANNEL), &number.to_le_bytes())
            .unwrap();
    }
    let begun = Instant::now();
    while server.executor(CHANNEL).unwrap().worker_messages < 3 {
        server.recv(Duration::from_millis(1)).unwrap();
        assert!(begun.elapsed() < PATIENCE);
    }
    let begun = Instant::now();
    server.close_channel(CHANNEL).unwrap();
    assert!(begun.elapsed() < Duration::from_millis(800), "200 calls");
    assert_eq!(Arc::strong_count(&alive), 1, "the service is gone");
    assert!(server.executor(CHANNEL).is_none());
    // The channel can be served again.
    let echo = |request: &Request<'_>, answers: &mut Answers<'_>| {
        answers.reply(request.body).unwrap();
    };
    server
        .serve(
            CHANNEL,
            ChannelOptions::default(),
            ExecutorOptions::default(),
            echo,
        )
        .unwrap();
}

/// A panic in a worker reaches the thread that drives the endpoint, also if it sleeps and no other message comes.
#[test]
fn panics_of_workers_are_repeated() {
    let mut nodes = endpoints(2);
    let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
    let service = |_: &Request<'_>, _: &mut Answers<'_>| panic!("as the test wishes");
    server
        .serve(
            CHANNEL,
            ChannelOptions::default(),
            options(Executor::Pipeline, 1),
            service,
        )
        .unwrap();
    client
        .send(NodeId(0), Channel::ordered(CHANNEL), b"x")
        .unwrap();
    let receive = std::panic::AssertUnwindSafe(|| server.recv(PATIENCE).unwrap());
    let caught = std::panic::catch_unwind(receive);
    let text = caught.expect_err("no panic was repeated");
    let text = text.downcast_ref::<&str>().copied().unwrap_or_default();
    // In the worker, or, if that drove meanwhile, in the assistant.
    assert!(text.contains("panicked"), "{text}");
}

/// Datagrams are served, too, and answered by messages.
#[test]
fn datagrams_are_served() {
    for executor in [Executor::RunToCompletion, Executor::Pipeline] {
        let mut nodes = endpoints(2);
        let (mut client, mut server) = (nodes.remove(1), nodes.remove(0));
        let service = |request: &Request<'_>, answers: &mut Answers<'_>| {
            answers.reply(request.body).unwrap();
        };
        server
            .serve(
                CHANNEL,
                ChannelOptions::default(),
                options(executor, 1),
                service,
            )
            .unwrap();
        let work = || {
            assert!(client.wait_up(PATIENCE).unwrap().is_empty());
            let datagram = Datagram {
                channel_id: CHANNEL,
                payload: b"state",
                ..Datagram::EMPTY
            };
            // The first may come before the server knows its sender.
            let begun = Instant::now();
            let answer = loop {
                let missed = client.datagram(Destination::Peer(NodeId(0)), datagram, None);
                assert_eq!(missed.unwrap(), 0);
                if let Some(answer) = client.recv(POLL_EVERY).unwrap() {
                    break answer;
                }
                assert!(begun.elapsed() < PATIENCE);
            };
            assert_eq!(
                (answer.body, answer.channel.id()),
                (b"state".to_vec(), CHANNEL)
            );
        };
        serve_while(server, work, |_| ());
    }
}

/// Names are read back, others are refused; a library's channels are not served.
#[test]
fn names_and_channels_are_checked() {
    for name in ["rtc", "pipeline", "adaptive"] {
        assert_eq!(name.parse::<Executor>().unwrap().to_string(), name);
    }
    assert!("threads".parse::<Executor>().is_err());
    let mut node = endpoints(1).remove(0);
    let service = |_: &Request<'_>, _: &mut Answers<'_>| {};
    let refused = node.serve(
        Channel::LIBRARY_IDS,
        ChannelOptions::default(),
        ExecutorOptions::default(),
        service,
    );
    assert!(refused.is_err());
}
