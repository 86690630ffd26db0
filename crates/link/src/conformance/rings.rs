//! Checks of [`Rings`], which every link passes that has them: those in shared memory and the simulator's.

use std::time::Instant;

use bytes::Bytes;

use super::{HEAD_BYTES, PATIENCE, Placer};
use crate::{Frame, Link, LinkAddr, MayHaveRings, Process, Rings, each};

const HEAD: &[u8] = &[b'h'; HEAD_BYTES];
const BODY_BYTES: usize = 3000;

/// Two processes of one host; only the second ends.
pub trait Neighbours {
    /// Their link.
    type Link: MayHaveRings;

    /// Two that have not heard of each other, with rings of at least two bodies and some frames.
    fn begin() -> Self;

    /// Both links, while both processes live.
    fn links(&mut self) -> [&mut Self::Link; 2];

    /// The first link alone.
    fn first(&mut self) -> &mut Self::Link;

    /// Brings all that was sent to where its receiver takes it.
    fn carry(&mut self);

    /// The second process ends without a word.
    fn vanish(&mut self);

    /// Another process begins in the second one's place.
    fn succeed(&mut self);
}

/// Runs all checks.
pub fn rings_conform<N: Neighbours>() {
    frames_come_in_order::<N>();
    full_ring_refuses_and_resumes::<N>();
    bodies_are_read_where_they_lie::<N>();
    vanished_process_is_noticed::<N>();
}

fn rings<L: MayHaveRings>(link: &mut L) -> &mut impl Rings {
    link.rings_mut().expect("it has rings")
}

/// The first process hears the second one.
fn meet<N: Neighbours>(both: &mut N) -> Process {
    let [a, b] = both.links();
    let (to_a, to_b) = (a.local_addr(), b.local_addr());
    take(a);
    take(b);
    assert!(b.send_one(to_a, Frame::whole(b"here")).expect("send"));
    both.carry();
    assert_eq!(take(both.first()), [b"here"]);
    let heard = rings(both.first()).heard(to_b).expect("a frame came");
    let alive = rings(both.first()).process_at(to_b);
    assert!(heard.generation != 0 && alive.is_none_or(|alive| alive == heard.generation));
    assert_eq!(addr(heard), to_b);
    heard
}

fn addr(of: Process) -> LinkAddr {
    LinkAddr::Local(of.index)
}

/// A process with the same index, and a generation that never existed.
fn other(than: Process) -> Process {
    Process {
        generation: than.generation + 100,
        ..than
    }
}

fn take<L: Link>(link: &mut L) -> Vec<Vec<u8>> {
    let mut taken = Vec::new();
    let mut all = each(|_, frame| taken.push(frame.to_vec()));
    while link.receive(64, &mut all).expect("receive") > 0 {}
    link.flush().expect("flush");
    taken
}

fn count<L: MayHaveRings>(link: &mut L, to: Process, is_counted: bool, frame: &[u8]) -> bool {
    let (head, rest) = frame.split_at(frame.len() / 3);
    let (front, back) = rest.split_at(rest.len() / 2);
    let sent = rings(link).send_counted(to, is_counted, [head, front, back]);
    sent.expect("send")
}

/// Frames in parts arrive whole and in order. Those that are counted are unread until they are taken. Another generation gets none.
fn frames_come_in_order<N: Neighbours>() {
    let mut both = N::begin();
    let to = meet(&mut both);
    let other = other(to);
    for round in 0..100_u8 {
        let a = both.first();
        let mut sent = Vec::new();
        let mut counted = 0;
        for number in 0..round % 8 {
            let frame = vec![number; 1 + usize::from(round) * usize::from(number) % 500];
            let counts = (round + number) % 3 > 0;
            assert!(rings(a).counted_room(to, frame.len()) > 0);
            assert!(count(a, to, counts, &frame), "frame {number} of {round}");
            counted += usize::from(counts);
            sent.push(frame);
        }
        assert_eq!(rings(a).counted_room(other, 1), 0);
        assert!(!count(a, other, true, b"for nobody"));
        assert_eq!((rings(a).unread(to), rings(a).unread(other)), (counted, 0));
        both.carry();
        let [a, b] = both.links();
        assert_eq!(take(b), sent, "round {round}");
        take(a);
        assert_eq!(rings(a).unread(to), 0, "round {round}");
    }
}

/// A ring takes as many frames as it states, refuses the next, and takes frames again when some were taken.
fn full_ring_refuses_and_resumes<N: Neighbours>() {
    let mut both = N::begin();
    let to = meet(&mut both);
    let longest = both.first().caps_to(addr(to)).frame_bytes;
    for bytes in [1, 100, longest, 57, 300] {
        let frame = vec![7; bytes];
        let a = both.first();
        let room = rings(a).counted_room(to, bytes);
        assert!(room > 0 && room * bytes <= rings(a).ring_bytes());
        for number in 0..room {
            assert!(count(a, to, true, &frame), "{number} of {room}");
        }
        assert_eq!(rings(a).counted_room(to, longest), 0);
        assert!(!count(a, to, true, &frame), "more than {room} frames");
        assert_eq!(rings(a).unread(to), room);
        both.carry();
        let [a, b] = both.links();
        assert_eq!(take(b), vec![frame.clone(); room]);
        take(a);
        assert!(count(a, to, true, b"again"));
        both.carry();
        assert_eq!(take(both.links()[1]), [b"again"]);
    }
}

/// Bodies by reference come whole and in order with other frames, as far as their reader permits, and are released when they were read. Where the kernel
/// does not let processes read each other, nothing is checked.
fn bodies_are_read_where_they_lie<N: Neighbours>() {
    let mut both = N::begin();
    let to = meet(&mut both);
    let bytes: Vec<u8> = (0..BODY_BYTES).map(|at| at as u8).collect();
    let whole = [HEAD, &bytes].concat();
    let body = Bytes::from(bytes);
    let refer = |link: &mut N::Link| rings(link).send_reference(to, true, HEAD, &body);
    assert!(!refer(both.first()).expect("send"), "nobody reads any");
    let [a, b] = both.links();
    let most = 2 * BODY_BYTES + 100;
    rings(b).set_reference_max(most);
    let Some(room) = rings(a).reference_room(to) else {
        eprintln!("skipped: the kernel does not let processes read each other here");
        return;
    };
    assert_eq!(room, most);
    assert_eq!(rings(a).reference_room(other(to)), None);
    for round in 0..20 {
        let [a, _] = both.links();
        assert!(refer(a).expect("send") && count(a, to, true, b"between"));
        assert!(refer(a).expect("send"));
        assert_eq!(rings(a).reference_room(to), Some(100), "round {round}");
        assert!(!refer(a).expect("send"), "beyond its room");
        assert_eq!(rings(a).unread(to), 3);
        both.carry();
        let [a, b] = both.links();
        let mut placer = Placer::new(1, BODY_BYTES, |head| head == HEAD);
        while b.receive(64, &mut placer).expect("receive") > 0 {}
        assert!(placer.taken == [&whole[..], b"between", &whole], "{round}");
        take(a);
        assert!(rings(a).unread(to) == 0 && body.is_unique());
        assert_eq!(rings(a).reference_room(to), Some(most));
    }
}

/// A process that vanished is known to be gone, and so is how much it had not read. Its successor gets nothing that was sent to it.
fn vanished_process_is_noticed<N: Neighbours>() {
    let mut both = N::begin();
    let to = meet(&mut both);
    let a = both.first();
    for counts in [true, false, true] {
        assert!(count(a, to, counts, b"never read"));
    }
    both.vanish();
    let begun = Instant::now();
    // A child that another test forks keeps a process's lock until it executes another program.
    while rings(both.first()).process_at(addr(to)) == Some(to.generation) {
        assert!(begun.elapsed() < PATIENCE, "nobody notices");
        take(both.first());
    }
    assert_eq!(rings(both.first()).unread(to), 2);
    both.succeed();
    both.carry();
    let [a, b] = both.links();
    assert!(take(b).is_empty(), "what was for another generation");
    assert!(
        b.send_one(a.local_addr(), Frame::whole(b"anew"))
            .expect("send")
    );
    both.carry();
    let a = both.first();
    assert_eq!(take(a), [b"anew"]);
    let next = rings(a).heard(addr(to)).expect("heard");
    assert!(next != to && !count(a, to, true, b"to the dead"));
    assert!(count(a, next, true, b"to the next"));
    assert_eq!(rings(a).counted_room(to, 1), 0);
    assert_eq!((rings(a).unread(to), rings(a).unread(next)), (2, 1));
    both.carry();
    assert_eq!(take(both.links()[1]), [b"to the next"]);
}
