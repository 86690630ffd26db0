//! Long messages that stay with their caller while they leave, where that goes wrong: the link fails in the middle, memory is refused,
//! the peer dies. A call ends one way or the other, leaves nothing borrowed, and no peer ever gets another's bytes.
//!
//! A program of its own, for it has an allocator of its own.

mod common;
#[path = "common/scarce_alloc.rs"]
mod scarce_alloc;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::thread;
use std::time::Duration;

use common::meddled::{Fate, Meddled, Meddler};
use common::{LONG, inet, pattern, udp};
use scarce_alloc::{REFUSED_BYTES, Scarcity};
use tsumuji_link::LinkError;
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::{
    AnyLink, Channel, Congestion, Endpoint, Membership, NodeId, Options, ProgressBy, SendError,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const C: NodeId = NodeId(2);
const CHANNEL: Channel = Channel::ordered(0);

/// Counts frames down, and then fails until it is mended.
#[derive(Clone)]
struct Fuse {
    frames: Arc<AtomicI64>,
    /// It panics where it would fail.
    panics: Arc<AtomicBool>,
    /// Sends batches, or each frame by itself.
    batches: bool,
}

impl Fuse {
    fn new(batches: bool) -> Self {
        Self {
            frames: Arc::new(AtomicI64::new(i64::MAX)),
            panics: Arc::default(),
            batches,
        }
    }

    fn set(&self, frames: i64) {
        self.frames.store(frames, Ordering::Relaxed);
    }
}

impl Meddler for Fuse {
    fn most_frames(&self) -> usize {
        if self.batches { usize::MAX } else { 1 }
    }

    fn decide(&mut self, frames: usize) -> Result<Fate, LinkError> {
        if self.frames.fetch_sub(frames as i64, Ordering::Relaxed) > frames as i64 {
            return Ok(Fate::Sent);
        }
        self.frames.store(0, Ordering::Relaxed);
        assert!(!self.panics.load(Ordering::Relaxed), "as it was told");
        Err(LinkError::Io {
            what: "sending over a link that fails",
            source: std::io::ErrorKind::NetworkDown.into(),
        })
    }
}

/// Three endpoints on loopback; the first one's link fails when told to.
fn three(options: &Options, batches: bool) -> (Endpoint, [Endpoint; 2], Fuse) {
    let [a, b, c] = [udp(), udp(), udp()];
    let addrs = [inet(&a), inet(&b), inet(&c)];
    let fuse = Fuse::new(batches);
    let link = Meddled {
        link: a,
        meddler: fuse.clone(),
    };
    let join = |id| Membership::inet(id, &addrs);
    let own = Options {
        progress: ProgressBy::Program, // its link fails in its own calls, and where it takes no turn nothing is taken
        ..options.clone()
    };
    let a = Endpoint::new(AnyLink::own(link), join(A), own).expect("endpoint");
    let b = Endpoint::new(b, join(B), options.clone()).expect("endpoint");
    let c = Endpoint::new(c, join(C), options.clone()).expect("endpoint");
    (a, [b, c], fuse)
}

/// Takes messages until the last one is there; each must be one of those that were sent to it.
fn collect(mut endpoint: Endpoint, sent: Vec<Vec<u8>>) -> thread::JoinHandle<()> {
    thread::spawn(move || {
        loop {
            let message = endpoint.recv(LONG).expect("link").expect("message");
            assert!(
                sent.contains(&message.body),
                "{} bytes that nobody sent to {}",
                message.body.len(),
                endpoint.me()
            );
            if Some(&message.body) == sent.last() {
                let _ = endpoint.close(LONG);
                return;
            }
        }
    })
}

/// A receiver without memory for a message through the ring ends the session: its sender is told, and no later message passes the lost one.
#[test]
fn no_message_is_lost_unseen() {
    let options = Options {
        progress: ProgressBy::Program,
        ..Options::default()
    };
    let (mut a, mut b) = common::pair(common::Over::Shm, &options);
    a.send(B, CHANNEL, b"first").expect("sent");
    let (start, mut has_come) = (std::time::Instant::now(), false);
    // Until they have agreed on sending through the ring.
    while !(has_come && a.queue_length(B) == 0) || start.elapsed() < Duration::from_millis(20) {
        assert!(start.elapsed() < LONG, "they do not meet");
        let _ = a.progress();
        has_come |= b.try_recv().expect("link").is_some();
    }
    a.send(B, CHANNEL, &pattern(200 << 10, 1)).expect("sent");
    {
        let _scarcity = Scarcity::begin();
        for _ in 0..100 {
            let _ = b.progress();
        }
    }
    let start = std::time::Instant::now();
    let told = loop {
        let _ = (a.progress(), b.progress());
        match a.flush(Duration::ZERO) {
            Ok(_) => assert!(start.elapsed() < LONG, "nobody is told"),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            told,
            SendError::MessagesLost {
                peer: B,
                messages: 1
            }
        ),
        "{told}"
    );
}

/// The link fails after so many frames of a long message, and memory is refused for what has not been acknowledged, or not: the call
/// ends with the link's error, and what is sent next to another peer, and to the same one, is what arrives there.
#[test]
fn a_link_fails_in_the_middle() {
    const BYTES: usize = 4 << 20; // 64 frames or more
    for (index, (congestion, batches, frames, scarce)) in [
        (Congestion::Credit, true, 5, true),
        (Congestion::Credit, false, 20, true),
        (Congestion::Credit, true, 20, false),
        (Congestion::SUCI, false, 5, true),
        (Congestion::SUCI, false, 20, false),
        (Congestion::Credit, true, 0, true),
    ]
    .into_iter()
    .enumerate()
    {
        let options = Options {
            congestion,
            ..Options::default()
        };
        let (mut a, [b, c], fuse) = three(&options, batches);
        let message = |which: u64| pattern(BYTES, 10 * index as u64 + which);
        let to_b = collect(b, vec![message(1), message(3)]);
        let to_c = collect(c, vec![message(2)]);
        assert!(a.wait_up(LONG).expect("up").is_empty());
        let first = message(1);
        fuse.set(frames);
        let failed = {
            let _scarcity = scarce.then(Scarcity::begin);
            a.send(B, CHANNEL, &first)
        };
        assert!(
            matches!(failed, Err(SendError::Link(_))),
            "{congestion} {batches} {frames} {scarce}: {failed:?}"
        );
        drop(first);
        fuse.set(i64::MAX);
        a.send(C, CHANNEL, &message(2)).expect("send");
        // Even a first frame counts as left: the link fails with it.
        assert_eq!(
            a.ended_sessions(B) > 0,
            scarce,
            "{congestion} {frames}: given up"
        );
        // What was lost is told once. It may have found out, and be back by itself; or it is to be tried again. Until the old session's
        // end is known there, what comes is of no session.
        let mut told = 0;
        while let Err(error) = a.send(B, CHANNEL, &message(3)) {
            match error {
                SendError::MessagesLost { peer: B, .. } => told += 1,
                SendError::PeerDead { peer: B } => a.reconnect(B).expect("a member"),
                other => panic!("{other}"),
            }
        }
        assert!(told <= 1, "{told}");
        while !(to_b.is_finished() && to_c.is_finished()) {
            a.recv(Duration::from_millis(1)).expect("link");
        }
        to_b.join().expect("b");
        to_c.join().expect("c");
    }
}

/// Memory comes back while a message waits for it, or all of it is acknowledged meanwhile: the call succeeds, and a tracked message
/// is told of.
#[test]
fn memory_is_waited_for() {
    for bytes in [REFUSED_BYTES, 200 << 10, 3 << 20] {
        let (mut a, [b, c], _) = three(&Options::default(), true);
        let message = pattern(bytes, 7);
        let to_b = collect(b, vec![message.clone()]);
        let to_c = collect(c, vec![b"end".to_vec()]);
        assert!(a.wait_up(LONG).expect("up").is_empty());
        let id = {
            let _scarcity = Scarcity::begin();
            a.send_tracked(B, CHANNEL, &message)
        };
        let id = id.expect("send");
        assert!(a.wait_sent(B, id, LONG).expect("sent"), "{bytes}");
        a.send(C, CHANNEL, b"end").expect("send");
        while !(to_b.is_finished() && to_c.is_finished()) {
            a.recv(Duration::from_millis(1)).expect("link");
        }
        to_b.join().expect("b");
        to_c.join().expect("c");
    }
}

/// Messages of one frame and of several, sent in loops and one by one, in frames of a cable's size: what leaves by one call is of many
/// messages, borrowed or not, and all arrive as they were and in order.
#[test]
fn batches_of_many_messages() {
    // Fragments as long as the agreed size and shorter, of one length in a row and mixed; from 12 KiB on one may be borrowed.
    const SIZES: [usize; 12] = [
        16 << 10,
        16 << 10,
        16 << 10,
        4096,
        12 << 10,
        28 << 10,
        8920,
        8921,
        20_000,
        2 * 8920 + 1,
        33 << 10,
        70_000,
    ];
    let size = |index: usize| match index {
        0..100 => 16 << 10,
        _ => SIZES[index % SIZES.len()],
    };
    const LOOPS: [usize; 5] = [1, 400, 1, 1, 30];
    let link = || {
        let config = UdpConfig {
            frame_bytes: Some(8960),
            ..UdpConfig::default()
        };
        Udp::bind("127.0.0.1:0".parse().expect("addr"), config).expect("bind")
    };
    let (a, b) = (link(), link());
    let addrs = [inet(&a), inet(&b)];
    let join = |id| Membership::inet(id, &addrs);
    let mut a = Endpoint::new(a, join(A), Options::default()).expect("endpoint");
    let mut b = Endpoint::new(b, join(B), Options::default()).expect("endpoint");
    let peer = thread::spawn(move || {
        for messages in LOOPS {
            for index in 0..messages {
                let message = b.recv(LONG).expect("recv").expect("a message");
                let same = message.body == pattern(size(index), index as u64);
                assert!(same, "message {index} of {messages} differs");
                b.recycle(message);
            }
            b.send(A, CHANNEL, b"next").expect("send");
        }
        let _ = b.close(LONG);
    });
    for messages in LOOPS {
        let bodies: Vec<_> = (0..messages)
            .map(|index| pattern(size(index), index as u64))
            .collect();
        for body in &bodies {
            a.send(B, CHANNEL, body).expect("send");
        }
        a.recv(LONG).expect("recv").expect("an answer");
    }
    let _ = a.close(LONG);
    peer.join().expect("peer");
}

/// A short message for whose copy there is no memory waits until an earlier one is acknowledged and leaves its own.
#[test]
fn a_copy_waits_for_memory_of_another() {
    const BYTES: usize = REFUSED_BYTES - 1; // copied, into a buffer that is refused
    let (mut a, [b, _c], _) = three(&Options::default(), true);
    let messages = [pattern(BYTES, 1), pattern(BYTES, 2)];
    let to_b = collect(b, messages.to_vec());
    while !a.is_up(B) {
        a.recv(Duration::from_millis(1)).expect("link");
    }
    a.send(B, CHANNEL, &messages[0]).expect("send");
    assert_eq!(a.queue_length(B), 1, "no turn was taken since");
    let second = {
        let _scarcity = Scarcity::begin();
        a.send(B, CHANNEL, &messages[1])
    };
    second.expect("send");
    while !to_b.is_finished() {
        a.recv(Duration::from_millis(1)).expect("link");
    }
    to_b.join().expect("b");
}

/// A panic in the middle of a long message leaves nothing borrowed: the link's here, as it might be a policy's. Where the program goes on, the
/// message arrives whole if any of it had left, and those behind it in any case.
#[test]
fn a_panic_leaves_nothing_borrowed() {
    const BYTES: usize = 4 << 20;
    for (batches, frames) in [(true, 5), (false, 20), (true, 0), (false, 0)] {
        let (mut a, [b, c], fuse) = three(&Options::default(), batches);
        let messages = [pattern(BYTES, 1), pattern(BYTES, 2)];
        let to_b = collect(b, messages.to_vec());
        let to_c = collect(c, vec![b"end".to_vec()]);
        assert!(a.wait_up(LONG).expect("up").is_empty());
        fuse.panics.store(true, Ordering::Relaxed);
        fuse.set(frames);
        let call = AssertUnwindSafe(|| a.send(B, CHANNEL, &messages[0]));
        assert!(catch_unwind(call).is_err(), "{batches} {frames}");
        assert_eq!(a.ended_sessions(B), 0, "there is memory to keep it");
        fuse.set(i64::MAX);
        a.send(C, CHANNEL, b"end").expect("send");
        a.send(B, CHANNEL, &messages[1]).expect("send");
        while !(to_b.is_finished() && to_c.is_finished()) {
            a.recv(Duration::from_millis(1)).expect("link");
        }
        to_b.join().expect("b");
        to_c.join().expect("c");
    }
}

/// Room to write means memory, too: who was refused a copy waits until there is some, and is told where nothing would give any back.
#[test]
fn writable_means_memory() {
    const BYTES: usize = REFUSED_BYTES - 1;
    let (mut a, [b, _c], _) = three(&Options::default(), true);
    let messages = [pattern(BYTES, 1), pattern(BYTES, 2)];
    let to_b = collect(b, messages.to_vec());
    while !a.is_up(B) {
        a.recv(Duration::from_millis(1)).expect("link");
    }
    let (alone, writable) = {
        let _scarcity = Scarcity::begin();
        let alone = a.try_send(B, CHANNEL, &messages[0]);
        (
            alone,
            a.wait_writable(B, 0, BYTES, Duration::from_millis(5)),
        )
    };
    assert!(
        matches!(alone, Err(SendError::NoMemory { bytes: BYTES })),
        "{alone:?}"
    );
    assert!(!writable.expect("it lives"), "there is no memory");
    assert!(a.wait_writable(B, 0, BYTES, LONG).expect("it lives"));
    a.try_send(B, CHANNEL, &messages[0])
        .expect("memory came back");
    assert_eq!(a.queue_length(B), 1, "no turn was taken since");
    let (behind, writable, second) = {
        let _scarcity = Scarcity::begin();
        let behind = a.try_send(B, CHANNEL, &messages[1]);
        let writable = a.wait_writable(B, 0, BYTES, LONG);
        (behind, writable, a.try_send(B, CHANNEL, &messages[1]))
    };
    assert!(
        matches!(behind, Err(SendError::WouldBlock { peer: B })),
        "{behind:?}"
    );
    assert!(writable.expect("it lives"), "the first left its memory");
    second.expect("and it is used");
    while !to_b.is_finished() {
        a.recv(Duration::from_millis(1)).expect("link");
    }
    to_b.join().expect("b");
}
