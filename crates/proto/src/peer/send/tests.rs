//! Tests of the sending half of one peer.

use super::*;
use crate::numbers::FIRST_NUMBER;
use crate::time::Duration;
use alloc::vec;
use tsumuji_wire::{NodeId, flags};

const MILLISECOND: Duration = Duration::from_millis(1);

fn sender(credit_frames: u64, pool: &mut Pool) -> Send {
    let mut send = Send::new(Congestion::Credit);
    let agreed = Agreed {
        fragment_bytes: 100,
        message_limit_bytes: 1000,
        told_frames: 1000,
        credit_frames,
    };
    send.begin(&agreed, pool, |_, _| {});
    send
}

/// Number of the message whose fragment leaves; `None` if none may.
fn leave(send: &mut Send, now: Instant, pool: &mut Pool) -> Option<u64> {
    let mut counters = Counters::default();
    if !send.is_sendable(now) {
        return None;
    }
    let (_, next) = send.next_fragment(now, &Borrowed::NONE, pool, &mut counters)?;
    Some(next.message - FIRST_NUMBER)
}

/// An ack that refuses frames and grants no more credit.
const REFUSAL: Ack<'_> = Ack {
    source: NodeId(1),
    destination: NodeId(0),
    flags: flags::REFUSED,
    session: 0,
    ack: FIRST_NUMBER as u32,
    credit: FIRST_NUMBER as u32,
    window_kib: 0,
    ack_delay_us: 0,
    bitmap: &[],
};

/// While memory refuses frames, probes alternate between fragments: the one that is refused again and again may not be the one that is waited for.
#[test]
fn refused_fragments_alternate() {
    let (mut pool, mut counters) = (Pool::new(), Counters::default());
    let mut send = sender(2, &mut pool);
    let mut now = Instant::from_nanos(0);
    for _ in 0..2 {
        send.queue
            .push_copied(Channel::ordered(0), (&[1], &[]), false, &mut pool);
        assert!(leave(&mut send, now, &mut pool).is_some());
    }
    now += MILLISECOND.times(10);
    send.on_terms(now, &REFUSAL);
    let mut probed = vec![];
    for _ in 0..4 {
        assert_eq!(leave(&mut send, now, &mut pool), None, "no credit");
        now = send.deadline().unwrap();
        send.on_timeout(now, now, false, &mut pool, &mut counters);
        probed.extend(leave(&mut send, now, &mut pool));
        // Refused again, so soon that this may concern what was sent before.
        send.on_terms(now + Duration::from_nanos(1), &REFUSAL);
    }
    assert_eq!(probed, [0, 1, 0, 1]);
}

/// A fragment that was sent twice and arrived once is not sent again: each probe carries a missing one.
#[test]
fn probes_pass_by_what_has_come() {
    let (mut pool, mut counters) = (Pool::new(), Counters::default());
    let mut send = sender(10, &mut pool);
    let mut now = Instant::from_nanos(0);
    send.queue
        .push_copied(Channel::ordered(0), (&[1; 300], &[]), false, &mut pool);
    for _ in 0..3 {
        assert!(leave(&mut send, now, &mut pool).is_some());
    }
    let mut probe = |send: &mut Send, pool: &mut Pool| {
        now = send.deadline().unwrap();
        send.on_timeout(now, now, false, pool, &mut counters);
        leave(send, now, pool)
    };
    assert!(probe(&mut send, &mut pool).is_some());
    let first_came = AckNews {
        ack: FIRST_NUMBER as u32 + 1,
        bitmap: &[],
        delay: Duration::ZERO,
    };
    let later = Instant::from_nanos(0) + MILLISECOND.times(50);
    let mut unused = Counters::default();
    send.on_ack(later, &first_came, &mut pool, &mut unused, |_| ());
    for number in 0..10 {
        assert!(probe(&mut send, &mut pool).is_some(), "{number}");
    }
}

/// Messages are joined under `credit`, while no pace is set.
#[test]
fn who_bundles() {
    let mut pool = Pool::new();
    for congestion in Congestion::ALL {
        let mut send = sender(10, &mut pool);
        send.control = Control::new(congestion);
        send.note_bundling();
        let mut name = |send: &mut Send| {
            let parts = (&b"small"[..], &[][..]);
            send.queue
                .push_copied(Channel::ordered(0), parts, false, &mut pool)
        };
        let joins = congestion == Congestion::Credit;
        assert_eq!(name(&mut send) == name(&mut send), joins, "{congestion}");
        send.set_pace(Pace::Drain);
        assert!(name(&mut send) != name(&mut send), "{congestion}");
        send.set_pace(Pace::Free);
        assert_eq!(name(&mut send) == name(&mut send), joins, "{congestion}");
    }
}

/// A small message's buffer serves the next one of its slot; a larger one goes back to the pool.
#[test]
fn small_buffers_stay() {
    let (mut pool, mut counters) = (Pool::new(), Counters::default());
    let mut send = sender(10, &mut pool);
    let (now, mut places) = (Instant::from_nanos(0), vec![]);
    for (number, bytes) in (1..).zip([8, 64, 90, 8]) {
        let message = vec![number as u8; bytes];
        let parts = (&message[..1], &message[1..]);
        send.queue
            .push_copied(Channel::ordered(0), parts, false, &mut pool)
            .unwrap();
        assert!(send.is_sendable(now));
        let next = send.next_fragment(now, &Borrowed::NONE, &mut pool, &mut counters);
        let payload = next.unwrap().1.payload;
        assert_eq!(payload, message);
        places.push(payload.as_ptr());
        let news = AckNews {
            ack: (FIRST_NUMBER + number) as u32,
            bitmap: &[],
            delay: Duration::ZERO,
        };
        assert!(!send.is_unsent(&news));
        send.on_ack(now, &news, &mut pool, &mut counters, |_| ());
        assert_eq!(
            (send.queue.queued_messages, send.queue.queued_bytes),
            (0, 0)
        );
    }
    assert_eq!((places[1], places[3]), (places[0], places[0]));
    let large = pool.take(90).unwrap();
    assert_eq!(large.as_ptr(), places[2]);
}

/// On a lossless link silence leads to a request for an acknowledgement; a fragment is sent again only to a peer that was heard without answering.
#[test]
fn silence_of_a_lossless_link_is_asked_about() {
    let (mut pool, mut counters) = (Pool::new(), Counters::default());
    for lossless in [true, false] {
        let mut send = sender(10, &mut pool);
        let mut now = Instant::from_nanos(0);
        send.queue
            .push_copied(Channel::ordered(0), (&[1], &[]), false, &mut pool);
        assert!(leave(&mut send, now, &mut pool).is_some());
        let last_heard = now;
        for _ in 0..5 {
            now = send.deadline().unwrap();
            assert_eq!(
                send.on_timeout(now, last_heard, lossless, &mut pool, &mut counters),
                lossless
            );
            assert_eq!(leave(&mut send, now, &mut pool).is_some(), !lossless);
        }
        let last_heard = now + MILLISECOND;
        now = send.deadline().unwrap();
        assert!(!send.on_timeout(now, last_heard, lossless, &mut pool, &mut counters));
        assert_eq!(leave(&mut send, now, &mut pool), Some(0), "was refused");
    }
}
