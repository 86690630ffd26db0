use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use super::*;
use crate::udp::{Udp, UdpConfig};
use crate::{Frames, each};

const PATIENCE: Duration = Duration::from_secs(30);

fn closed(frame: &[u8]) -> Vec<u8> {
    let mut slot = vec![0xee; CHECK_BYTES];
    slot.extend_from_slice(frame);
    assert_eq!(close(&mut slot, frame.len()), CHECK_BYTES + frame.len());
    slot
}

/// The sum is the standard CRC-32C, and covers length and frame.
#[test]
fn the_sum_is_crc32c() {
    assert_eq!(sum(b"", b"1234", b"56789"), 0xe306_9283, "as of RFC 3720");
    let frame = closed(b"frame");
    assert_eq!(frame[..4], [0x1b, 0, 5, 0]);
    let covered = [&frame[..4], &frame[8..]].concat();
    assert_eq!(frame[4..8], crc32c(&covered).to_le_bytes());
}

/// A frame is read as it was written, padding behind it is ignored, and any one to three changed bits are found, wherever they are.
#[test]
fn damage_is_found() {
    let sent: Vec<u8> = (0..200u8).map(|at| at.wrapping_mul(7)).collect();
    let whole = closed(&sent);
    assert_eq!(open(&whole), Ok(&sent[..]));
    assert_eq!(open(&[&whole[..], &[0; 30]].concat()), Ok(&sent[..]));
    let bits = whole.len() * 8;
    let flip = |frame: &mut Vec<u8>, bit: usize| frame[bit / 8] ^= 1 << (bit % 8);
    for bit in 0..bits {
        for others in [&[][..], &[bit / 2 + 1], &[bit * 31 % bits, 77]] {
            let mut frame = whole.clone();
            flip(&mut frame, bit);
            others.iter().for_each(|&other| flip(&mut frame, other));
            assert!(frame == whole || open(&frame).is_err(), "{bit} {others:?}");
        }
    }
    for bytes in 0..whole.len() {
        assert!(open(&whole[..bytes]).is_err(), "cut to {bytes}");
    }
}

/// Frames without a header, as earlier versions and sealed links send them, count as unchecked; a header without a frame counts as damage.
#[test]
fn others_are_told_apart() {
    for frame in [&[][..], &[0x10; 60], &[0x17, 0, 9, 0], &[0x2b; 20]] {
        assert_eq!(open(frame), Err(Unsound::Unchecked), "{frame:?}");
    }
    let about_nothing = vec![0x1b, 0, 1, 0, 0, 0, 0, 0];
    for frame in [closed(b""), vec![0x1b; 20], about_nothing, vec![0x1b, 0]] {
        assert_eq!(open(&frame), Err(Unsound::Damaged), "{frame:?}");
    }
}

fn udp() -> Checked<Udp> {
    let addr = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    Checked::new(Udp::bind(addr, UdpConfig::default()).expect("bind"))
}

const HEAD: [u8; 4] = *b"head";
const BODY_BYTES: usize = 500;

/// A receiver that expects bodies of `BODY_BYTES` behind `HEAD` and a number, in order.
#[derive(Default)]
struct Taker {
    place: Vec<u8>,
    placed: Vec<u8>,
    frames: Vec<Vec<u8>>,
}

impl Receiver for Taker {
    fn frame(&mut self, _: LinkAddr, frame: &[u8]) {
        self.frames.push(frame.to_vec());
    }

    fn placement(&mut self, _: Option<Coming<'_>>) -> Option<Placement<'_>> {
        Some(Placement {
            head_bytes: HEAD.len() + 1,
            body_bytes: BODY_BYTES,
            place: &mut self.place,
        })
    }

    fn is_expected(&mut self, _: LinkAddr, index: usize, head: &[u8], body_bytes: usize) -> bool {
        index == 0 && head[..4] == HEAD && body_bytes == BODY_BYTES
    }

    fn placed(&mut self, _: LinkAddr, head: &[u8], body_bytes: usize) {
        assert_eq!(self.place[..body_bytes], body(head[4]));
        self.placed.push(head[4]);
    }
}

fn body(number: u8) -> Vec<u8> {
    (0..BODY_BYTES).map(|at| at as u8 ^ number).collect()
}

/// A frame as `Checked` sends it, from a socket without checksums.
fn expected(number: u8) -> Vec<u8> {
    closed(&[&HEAD[..], &[number], &body(number)].concat())
}

/// Of placed frames only sound ones are delivered; damaged ones are counted, and no part of them is delivered.
#[test]
fn damaged_bodies_do_not_land() {
    let mut link = udp();
    let LinkAddr::Inet(to) = link.local_addr() else {
        panic!("a socket's address");
    };
    let from = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).expect("bind");
    let mut taker = Taker {
        place: vec![0; BODY_BYTES],
        ..Taker::default()
    };
    let mut damaged = 0;
    for number in 0..60u8 {
        let mut frame = expected(number);
        match number % 3 {
            1 => frame[usize::from(number) * 8] ^= 0x10,
            2 => frame.truncate(frame.len() - 1),
            _ => {}
        }
        damaged += u64::from(number % 3 != 0);
        from.send_to(&frame, to).expect("send");
        let seen = taker.placed.len() as u64 + taker.frames.len() as u64;
        let begun = Instant::now();
        let refused = |link: &Checked<Udp>| {
            let counters = link.counters();
            counters.damaged_frames + counters.unchecked_frames
        };
        let before = refused(&link);
        loop {
            link.receive(8, &mut taker).expect("receive");
            let now = taker.placed.len() as u64 + taker.frames.len() as u64;
            if now + refused(&link) > seen + before {
                break;
            }
            assert!(begun.elapsed() < PATIENCE, "frame {number} does not come");
        }
    }
    let counters = link.counters();
    assert_eq!(counters.damaged_frames + counters.unchecked_frames, damaged);
    assert_eq!(counters.received_frames, 60 - damaged);
    // After a wrong guess some frames are received without one.
    let mut came = taker.placed.clone();
    assert!(!came.is_empty(), "nothing placed");
    for frame in &taker.frames {
        assert_eq!(frame[5..], body(frame[4]));
        came.push(frame[4]);
    }
    came.sort_unstable();
    assert_eq!(came, (0..60).step_by(3).collect::<Vec<u8>>());
}

/// Batches leave with their checksums: frames sent from the caller's memory all arrive, and the stated capacity holds.
#[test]
fn batches_are_checked() {
    let (mut a, mut b) = (udp(), udp());
    let to = b.local_addr();
    let room = a.capacity(to).expect("capacity");
    let bodies: Vec<Vec<u8>> = (0..room.frames.min(20) as u8).map(body).collect();
    let heads: Vec<[u8; 5]> = (0..).take(bodies.len()).map(|n| [1, 2, 3, 4, n]).collect();
    let frames = (heads.iter().zip(&bodies)).map(|(head, body)| Frame { head, body });
    let frames: Frames<'_> = frames.collect();
    assert_eq!(a.send(to, &frames).expect("send"), bodies.len());
    a.flush().expect("flush");
    let (mut arrived, begun) = (Vec::new(), Instant::now());
    while arrived.len() < bodies.len() {
        b.receive(64, &mut each(|_, frame| arrived.push(frame.to_vec())))
            .expect("receive");
        assert!(begun.elapsed() < PATIENCE, "only {} came", arrived.len());
    }
    let wanted: Vec<Vec<u8>> = frames
        .iter()
        .map(|frame| [frame.head, frame.body].concat())
        .collect();
    assert_eq!(arrived, wanted);
    assert_eq!(a.counters().sent_bytes, b.counters().received_bytes);
}
