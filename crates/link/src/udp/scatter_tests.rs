//! Batches sent from the caller's memory, and bodies received into their places.

use super::*;
use crate::{BATCH_FRAMES_MAX, Coming, Frames, Placement};

const HEAD_BYTES: usize = 8;
const BODY_BYTES: usize = 1000;
/// First byte of a head that belongs to the message.
const PART: u8 = 0xa7;

fn bind(offload: bool) -> Udp {
    let config = UdpConfig {
        frame_bytes: Some(1472),
        offload,
        ..UdpConfig::default()
    };
    Udp::bind("127.0.0.1:0".parse().expect("an address"), config).expect("bind")
}

fn head(number: usize) -> [u8; HEAD_BYTES] {
    [PART, number as u8, (number >> 8) as u8, 0, 0, 0, 0, 9]
}

fn message(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|i| (i * 7 + i / 253) as u8).collect()
}

/// Sends `count` parts of `message` from number `first` on, in as few sends as there is room for.
fn send(a: &mut Udp, to: LinkAddr, message: &[u8], first: usize, count: usize) {
    let heads: Vec<_> = (first..first + count).map(head).collect();
    let bodies: Vec<_> = message.chunks(BODY_BYTES).skip(first).take(count).collect();
    let mut done = 0;
    while done < bodies.len() {
        let frames = heads.iter().zip(&bodies).skip(done).take(BATCH_FRAMES_MAX);
        let frames: Frames<'_> = frames.map(|(head, body)| Frame { head, body }).collect();
        let sent = a.send(to, &frames);
        done += sent.expect("send");
    }
    a.flush().expect("flush");
}

/// Assembles one message, and keeps all frames that are not part of it.
struct Taker {
    message: Vec<u8>,
    /// Parts that may be expected at once; 0: no place is named.
    most: usize,
    /// The part expected next.
    next: usize,
    came: Vec<bool>,
    placed: usize,
    others: Vec<Vec<u8>>,
}

impl Taker {
    fn new(bytes: usize, most: usize) -> Self {
        Self {
            message: vec![0; bytes],
            most,
            next: 0,
            came: vec![false; bytes.div_ceil(BODY_BYTES)],
            placed: 0,
            others: Vec::new(),
        }
    }

    fn place(&self) -> std::ops::Range<usize> {
        let end = self.message.len();
        let start = (self.next * BODY_BYTES).min(end);
        start..(start + self.most * BODY_BYTES).min(end)
    }

    fn number(head: &[u8]) -> Option<usize> {
        match *head {
            [PART, low, high, 0, 0, 0, 0, 9] => Some(usize::from(low) | usize::from(high) << 8),
            _ => None,
        }
    }

    fn take(&mut self, number: usize) {
        assert!(!self.came[number], "part {number} twice");
        self.came[number] = true;
        self.next = number + 1;
    }

    /// Polls until nothing came for a while.
    fn receive(&mut self, b: &mut Udp) {
        let mut quiet = 0;
        while quiet < 3 {
            if b.receive(64, self).expect("receive") == 0 {
                quiet += 1;
                b.wait(Duration::from_millis(10)).expect("wait");
            } else {
                quiet = 0;
            }
        }
    }
}

impl Receiver for Taker {
    fn frame(&mut self, _: LinkAddr, frame: &[u8]) {
        let number = frame.get(..HEAD_BYTES).and_then(Self::number);
        let Some(number) = number.filter(|&number| number < self.came.len()) else {
            self.others.push(frame.to_vec());
            return;
        };
        let body = &frame[HEAD_BYTES..];
        self.message[number * BODY_BYTES..][..body.len()].copy_from_slice(body);
        self.take(number);
    }

    fn placement(&mut self, _: Option<Coming<'_>>) -> Option<Placement<'_>> {
        let place = self.place();
        (!place.is_empty()).then(|| Placement {
            head_bytes: HEAD_BYTES,
            body_bytes: BODY_BYTES,
            place: &mut self.message[place],
        })
    }

    fn is_expected(&mut self, _: LinkAddr, index: usize, head: &[u8], body_bytes: usize) -> bool {
        let place = self.place();
        let start = place.start + index * BODY_BYTES;
        Self::number(head) == Some(self.next + index)
            && start < place.end
            && body_bytes == BODY_BYTES.min(self.message.len() - start)
    }

    fn placed(&mut self, _: LinkAddr, head: &[u8], body_bytes: usize) {
        let number = Self::number(head).expect("it was expected");
        assert_eq!(
            body_bytes,
            BODY_BYTES.min(self.message.len() - number * BODY_BYTES)
        );
        self.take(number);
        self.placed += 1;
    }
}

/// Batches of every length arrive in their places, cut by the kernel or by us.
#[test]
fn batches_are_placed() {
    for offload in [true, false] {
        let (mut a, mut b) = (bind(offload), bind(offload));
        for parts in [1, 2, 3, 63, 64, 65, 200] {
            let bytes = parts * BODY_BYTES - 300;
            let sent = message(bytes);
            let mut taker = Taker::new(bytes, 65);
            let (before, frames) = (a.counters(), b.counters().received_frames);
            let to = b.local_addr();
            send(&mut a, to, &sent, 0, parts);
            taker.receive(&mut b);
            assert!(taker.message == sent, "{parts} parts, offload {offload}");
            assert_eq!((taker.placed, taker.others.len()), (parts, 0));
            let after = a.counters();
            assert_eq!(after.sent_frames - before.sent_frames, parts as u64);
            let headed = (bytes + parts * HEAD_BYTES) as u64;
            assert_eq!(after.sent_bytes - before.sent_bytes, headed);
            assert_eq!(b.counters().received_frames - frames, parts as u64);
        }
    }
}

/// Frames behind the last one that has a place are delivered as they are.
#[test]
fn more_than_was_expected() {
    let (mut a, mut b) = (bind(true), bind(true));
    for most in [1, 2, 7] {
        let sent = message(30 * BODY_BYTES);
        let mut taker = Taker::new(sent.len(), most);
        let to = b.local_addr();
        send(&mut a, to, &sent, 0, 30);
        taker.receive(&mut b);
        assert!(taker.message == sent, "{most} at once");
        assert!(taker.placed >= most.min(30));
    }
}

/// Unexpected datagrams are put together again, byte for byte, and expected parts still find their place.
#[test]
fn wrong_guesses_are_put_together_again() {
    let (mut a, mut b, mut c) = (bind(true), bind(true), bind(true));
    let to = b.local_addr();
    let sent = message(40 * BODY_BYTES - 1);
    let mut taker = Taker::new(sent.len(), 65);
    let mut unknown = Vec::new();
    for round in 0..10 {
        // Shorter than a head, as long, a little longer, and larger than any part; alone or several in one datagram.
        for bytes in [1, 7, 8, 9, 600, 1007, 1008, 1009, 1472] {
            for copy in 0..=round % 3 {
                let frame: Vec<u8> = (0..bytes)
                    .map(|i| (i + copy + round) as u8 & 0x7f)
                    .collect();
                c.send_one(to, Frame::whole(&frame)).expect("send");
                unknown.push(frame);
            }
        }
        c.flush().expect("flush");
        taker.receive(&mut b);
        // Every other time the parts are not those expected next.
        let first = (round ^ 1) * 4;
        send(&mut a, to, &sent, first, 4);
        taker.receive(&mut b);
    }
    assert!(taker.came.iter().all(|&came| came) && taker.message == sent);
    assert!(taker.others == unknown);
    assert_eq!(b.counters().dropped_frames, 0);
}

/// Datagrams too large for any place, and empty ones, do no harm while a message is expected.
#[test]
fn foreign_datagrams_while_expecting() {
    let mut b = bind(true);
    let LinkAddr::Inet(to) = b.local_addr() else {
        panic!("UDP has Inet addresses");
    };
    let foreign = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let mut taker = Taker::new(3 * BODY_BYTES, 65);
    let mut sent = Vec::new();
    for bytes in [0, 65_507, 3, 0, 20_000] {
        let datagram: Vec<u8> = (0..bytes).map(|i| (i % 101) as u8).collect();
        foreign.send_to(&datagram, to).expect("send");
        sent.push(datagram);
    }
    taker.receive(&mut b);
    sent.retain(|datagram| !datagram.is_empty());
    assert!(taker.others == sent);
    assert_eq!(b.counters().dropped_frames, 2);
}
