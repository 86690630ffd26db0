//! Posted receives: messages are put into the buffers that were posted for them, in order, whatever the link does and the program does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use crate::common::{ALL, LONG, Over, PLAIN, cluster, pair, pattern};
use tsumuji_node::{
    Arrived, Channel, ChannelError, ChannelOptions, Congestion, Context, Delivery, Endpoint,
    EndpointError, Handler, NodeId, Options, Post, ProgressBy, ReceiveBuffer,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);
const CHANNEL: Channel = Channel::ordered(7);
const BYTES: usize = 300_000;
/// Over shared memory it leaves past the queue.
const MIDDLE: usize = 100_000;

/// Counts how often it is written to.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl ReceiveBuffer for Counted {
    fn bytes(&self) -> &[u8] {
        &self.0
    }
    fn bytes_mut(&mut self) -> &mut [u8] {
        self.1.fetch_add(1, Ordering::Relaxed);
        &mut self.0
    }
}

fn message(from: NodeId, bytes: usize) -> Arrived {
    let channel = CHANNEL;
    Arrived::Message {
        from,
        channel,
        bytes,
    }
}

fn open(endpoint: &mut Endpoint) {
    endpoint.open(7, ChannelOptions::default()).expect("open");
}

/// Long ones land there in pieces, as they come; short ones are copied once. What nobody posted for waits on the channel.
#[test]
fn messages_land_where_they_are_posted() {
    let ways = [
        (ProgressBy::Assistant, Congestion::Credit),
        (ProgressBy::Program, Congestion::Credit),
        (ProgressBy::Assistant, Congestion::SUCI),
    ];
    for (over, (progress, congestion)) in
        ALL.into_iter().flat_map(|over| ways.map(|way| (over, way)))
    {
        let options = Options {
            progress,
            congestion,
            ..Options::default()
        };
        let (mut a, mut b) = pair(over, &options);
        open(&mut b);
        let writes = Arc::<AtomicUsize>::default();
        let long = Counted(vec![0; 2 * BYTES], Arc::clone(&writes));
        let long = b.post(7, Some(A), long).expect("post");
        let short = b.post(7, None, [0; 100]).expect("post");
        let between = Arc::<AtomicUsize>::default();
        let middle = Counted(vec![0; MIDDLE], Arc::clone(&between));
        let middle = b.post(7, None, middle).expect("post");
        let sender = thread::spawn(move || {
            for (number, bytes) in (0..).zip([BYTES, 50, MIDDLE, 2 * BYTES]) {
                a.send(B, CHANNEL, &pattern(bytes, number)).expect("send");
            }
            assert!(a.flush(LONG).expect("flush"));
            a
        });
        let way = format!("{over:?}, {progress:?}, {congestion:?}");
        assert!(b.wait_posted(&long, LONG).expect("long"), "{way}");
        assert!(b.wait_posted(&short, LONG).expect("short"), "{way}");
        let (long, short) = (b.unpost(long).expect("1"), b.unpost(short).expect("2"));
        assert_eq!(long.arrived, message(A, BYTES), "{way}");
        assert!(long.buffer.0[..BYTES] == pattern(BYTES, 0), "{way}");
        assert!(long.buffer.0[BYTES..].iter().all(|byte| *byte == 0));
        let writes = writes.load(Ordering::Relaxed);
        assert!(writes > 3, "{way}: in {writes} pieces");
        assert_eq!(short.arrived, message(A, 50), "{way}");
        assert!(short.buffer[..50] == pattern(50, 1), "{way}");
        assert!(b.wait_posted(&middle, LONG).expect("middle"), "{way}");
        let middle = b.unpost(middle).expect("3");
        assert_eq!(middle.arrived, message(A, MIDDLE), "{way}");
        assert!(middle.buffer.0 == pattern(MIDDLE, 2), "{way}");
        let between = between.load(Ordering::Relaxed);
        let in_order = PLAIN.contains(&over); // else it may begin before the one before it has come
        assert!(between > 1 || !in_order, "{way}: in {between} pieces");
        let rest = b.recv_on(7, Some(A), LONG).expect("recv").expect("rest");
        assert!(rest.body == pattern(2 * BYTES, 3), "{way}");
        assert_eq!(b.channel(7).expect("open").used_bytes, 0);
        // `a` goes on until all is acknowledged.
        while !sender.is_finished() {
            b.progress().expect("b");
        }
        drop(sender.join());
    }
}

/// While its program computes, the assistant takes in what was posted for.
#[test]
fn the_assistant_fills_buffers() {
    for over in PLAIN {
        let (mut a, mut b) = pair(over, &Options::default());
        open(&mut b);
        let post = b.post(7, None, vec![0; BYTES]).expect("post");
        assert!(a.wait_up(LONG).expect("up").is_empty());
        let sender = thread::spawn(move || {
            a.send(B, CHANNEL, &pattern(BYTES, 3)).expect("send");
            assert!(a.flush(LONG).expect("flush"));
        });
        sender.join().expect("all was taken"); // the program computes until the sender knows
        assert!(b.wait_posted(&post, Duration::ZERO).expect("wait"));
        let filled = b.unpost(post).expect("unpost");
        assert!(filled.buffer == pattern(BYTES, 3), "{over:?}");
    }
}

/// What waits comes first; then posts are filled in the order in which they were made, each by a message of whom it is for.
#[test]
fn posts_are_filled_in_order() {
    for over in PLAIN {
        let mut nodes = cluster(over, 3, &Options::default()).into_iter();
        let mut next = || nodes.next().expect("three");
        let (mut a, mut b, mut c) = (next(), next(), next());
        open(&mut b);
        a.send(B, CHANNEL, b"waits").expect("send");
        a.send(B, CHANNEL, &[9; 100]).expect("send");
        assert_eq!(b.ready_on(Some(7), None, LONG).expect("ready"), Some(5));
        let first = b.post(7, Some(A), vec![0; 10]).expect("post");
        assert!(b.wait_posted(&first, Duration::ZERO).expect("wait"));
        assert_eq!(b.unpost(first).expect("unpost").arrived, message(A, 5));
        while b.channel(7).expect("open").messages == 0 {
            b.progress().expect("b");
        }
        // Too long for the next: it stays where it is.
        let small = b.post(7, None, vec![0; 10]).expect("post");
        let arrived = b.unpost(small).expect("unpost").arrived;
        assert_eq!(
            arrived,
            Arrived::TooLong {
                from: A,
                bytes: 100
            }
        );
        let got = b.recv_on(7, None, LONG).expect("recv").expect("one");
        assert_eq!(got.body, [9; 100]);

        let of_c = b.post(7, Some(C), vec![0; BYTES]).expect("post");
        let posts: Vec<_> = (0..10_u64)
            .map(|_| b.post(7, None, vec![0; BYTES]).expect("post"))
            .collect();
        let last = b.post(7, None, vec![0; BYTES]).expect("post");
        let senders = thread::spawn(move || {
            for number in 0..10 {
                let bytes = if number % 3 == 0 { 100 } else { BYTES };
                a.send(B, CHANNEL, &pattern(bytes, number)).expect("send");
            }
            assert!(a.flush(LONG).expect("flush"));
            c.send(B, CHANNEL, &pattern(BYTES, 77)).expect("send");
            assert!(c.flush(LONG).expect("flush"));
        });
        for (number, post) in (0..).zip(posts) {
            assert!(b.wait_posted(&post, LONG).expect("wait"), "{number}");
            let filled = b.unpost(post).expect("unpost");
            let bytes = if number % 3 == 0 { 100 } else { BYTES };
            assert_eq!(filled.arrived, message(A, bytes), "{number} over {over:?}");
            assert!(filled.buffer[..bytes] == pattern(bytes, number), "{number}");
        }
        assert!(b.wait_posted(&of_c, LONG).expect("wait"));
        let filled = b.unpost(of_c).expect("unpost");
        assert_eq!(filled.arrived, message(C, BYTES));
        assert!(filled.buffer == pattern(BYTES, 77));
        senders.join().expect("senders");
        assert!(!b.wait_posted(&last, Duration::ZERO).expect("wait"));
        assert_eq!(b.unpost(last).expect("unpost").arrived, Arrived::Nothing);
    }
}

struct Nobody;

impl Handler for Nobody {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}
}

/// Buffers come back with their channel's end, and posts are refused where nothing would fill them.
#[test]
fn posts_end_with_their_channel() {
    let (mut a, mut b) = pair(Over::Shm, &Options::default());
    let refused = b.post(7, None, vec![0; 10]);
    assert!(matches!(refused, Err(ChannelError::NotOpen(7))));
    b.open_with(8, ChannelOptions::default(), Nobody)
        .expect("open");
    let refused = b.post(8, None, vec![0; 10]);
    assert!(matches!(refused, Err(ChannelError::HasHandler { .. })));
    open(&mut b);
    let post = b.post(7, None, vec![5; 10]).expect("post");
    assert_eq!(b.close_channel(7).expect("close"), 0);
    assert!(b.wait_posted(&post, LONG).expect("it is over"));
    let back = b.unpost(post).expect("unpost");
    assert_eq!((back.arrived, back.buffer), (Arrived::Nothing, vec![5; 10]));
    // As if it had never been: the next owner's posts are others.
    open(&mut b);
    let post = b.post(7, None, vec![5; 10]).expect("post");
    a.send(B, CHANNEL, b"hello").expect("send");
    assert!(b.wait_posted(&post, LONG).expect("wait"));
    let number = post.number();
    let other = a.wait_posted(&post, Duration::ZERO);
    let unknown = ChannelError::NoSuchPost(number);
    assert!(matches!(other, Err(EndpointError::Channel(error)) if error == unknown));
    assert_eq!(a.unpost(post).expect_err("another's"), unknown);
}

const HUGE: usize = 24 << 20;

/// Three nodes, of which `b` has opened the channel.
fn three(over: Over) -> (Endpoint, Endpoint, Endpoint) {
    let options = Options {
        dead_after: Duration::from_millis(300),
        keep_alive: Duration::from_millis(50),
        ..Options::default()
    };
    let mut nodes = cluster(over, 3, &options).into_iter();
    let mut next = || nodes.next().expect("three");
    let (a, mut b, c) = (next(), next(), next());
    let all = ChannelOptions {
        budget_bytes: 4 * HUGE,
        ..ChannelOptions::default()
    };
    b.open(7, all).expect("open");
    (a, b, c)
}

/// `a` has begun to send a message to `b`, which arrives in what was posted.
fn begin(a: &mut Endpoint, b: &mut Endpoint) -> (Post<Counted>, Arc<AtomicUsize>) {
    let writes = Arc::<AtomicUsize>::default();
    let buffer = Counted(vec![0; HUGE], Arc::clone(&writes));
    let post = b.post(7, None, buffer).expect("post");
    a.send_shared(B, CHANNEL, pattern(HUGE, 1).into())
        .expect("send");
    while writes.load(Ordering::Relaxed) == 0 {
        a.progress().expect("a");
    }
    (post, writes)
}

/// A buffer that is taken back while its message arrives is not written to any more; the message waits on the channel when it is whole.
#[test]
fn buffers_are_taken_back_under_way() {
    let cases = PLAIN
        .into_iter()
        .flat_map(|over| [(over, false), (over, true)]);
    let mut cases: Vec<_> = cases.collect();
    let mut late = 0;
    while let Some((over, closes)) = cases.pop() {
        let (mut a, mut b, _c) = three(over);
        let (post, writes) = begin(&mut a, &mut b);
        if closes {
            assert_eq!(b.close_channel(7).expect("close"), 0);
        }
        let back = b.unpost(post).expect("unpost");
        if back.arrived != Arrived::Nothing {
            // The assistant of a busy machine has taken it all in before: again.
            late += 1;
            assert!(late < 20, "it is always too late");
            cases.push((over, closes));
            continue;
        }
        let before = (back.buffer.0.clone(), writes.load(Ordering::Relaxed));
        let got = loop {
            a.progress().expect("a");
            let got = if closes {
                b.try_recv()
            } else {
                b.recv_on(7, Some(A), Duration::ZERO)
            };
            if let Some(got) = got.expect("recv") {
                break got;
            }
        };
        assert!(got.body == pattern(HUGE, 1), "{over:?}");
        let after = (back.buffer.0, writes.load(Ordering::Relaxed));
        assert!(before == after, "nobody writes there any more");
    }
}

/// A buffer whose message dies with its sender is for what came meanwhile, or for what comes then.
#[test]
fn buffers_wait_for_another_sender() {
    for comes_before in [false, true] {
        let (mut a, mut b, mut c) = three(Over::Udp);
        let (post, _) = begin(&mut a, &mut b);
        a.vanish();
        while !comes_before && !b.is_dead(A) {
            b.progress().expect("b");
        }
        c.send(B, CHANNEL, &pattern(BYTES, 2)).expect("send");
        while comes_before && b.channel(7).expect("open").messages == 0 {
            assert!(!b.is_dead(A), "it came too late");
            b.progress().expect("b");
        }
        assert!(b.wait_posted(&post, LONG).expect("wait"));
        let filled = b.unpost(post).expect("unpost");
        assert_eq!(filled.arrived, message(C, BYTES), "{comes_before}");
        assert!(filled.buffer.0[..BYTES] == pattern(BYTES, 2));
        b.progress().expect("b");
        assert_eq!(b.channel(7).expect("open").used_bytes, 0);
    }
}
