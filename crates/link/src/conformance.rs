//! The test suite that every link passes, plain or wrapped.
//!
//! Each check takes a factory that makes N links connected with each other; tests call the checks (or `run_all`) for each link. A check panics and
//! says what is wrong. None measures time; `PATIENCE` only turns a hang into a failure.
//!
//! Assumed of a link: frames of few senders that fit `receive_frames` arrive once, perhaps late and in any order. So a link that loses or repeats on
//! purpose is tested by `only_faults_happen` alone; one that delays and reorders is tested in full.

mod batches;
mod faults;
mod placer;
mod rings;

use std::collections::HashSet;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use self::placer::{HEAD_BYTES, Placer};
use crate::{Frame, Link, LinkAddr, each};

pub use self::batches::{batches_arrive, bodies_find_their_places};
pub use self::faults::only_faults_happen;
pub use self::rings::{Neighbours, rings_conform};

/// No step takes this long on a working machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// A sleep that lasts this long was not ended by the frame that came meanwhile.
const LOST_WAKE: Duration = Duration::from_secs(15);
/// Time-out of one wait in `collect`.
const POLL_EVERY: Duration = Duration::from_millis(20);
/// After this long without a frame nothing more is expected to come.
const QUIET: Duration = Duration::from_millis(40);
/// Sleeps and wake-ups of the wake checks.
const WAKE_CYCLES: u32 = 10_000;
const FD_WAKE_CYCLES: u32 = 2_000;
/// The same for a variant of a link that is checked in full: the two share nearly all of their code for sleeping.
const VARIANT_WAKE_CYCLES: u32 = 1_000;
const VARIANT_FD_WAKE_CYCLES: u32 = 200;
/// Frames of the check with threads.
const STREAM_FRAMES: u32 = 20_000;
/// Frames sent in the hope of filling a link.
const FILL_FRAMES_MAX: usize = 200_000;
/// Frames of the overload of a link that may lose.
const OVERLOAD_FRAMES_MAX: usize = 2_000;
const MANY: usize = 8;

/// Runs all checks.
pub fn run_all<L: Link + Send>(make: impl Fn(usize) -> Vec<L>) {
    caps_are_sane(&make);
    frames_arrive_intact(&make);
    burst_arrives(&make);
    full_link_refuses_and_recovers(&make);
    batches_arrive(&make);
    bodies_find_their_places(&make);
    wait_ends_without_frames(&make);
    broadcast_reaches_all_others(&make);
    counters_add_up(&make);
    garbage_addresses_do_no_harm(&make);
    many_peers_talk(&make);
    stream_between_threads(&make);
    no_wake_is_lost(&make);
    no_wake_through_fd_is_lost(&make);
}

/// Checks that no damaged frame arrives changed, and that each is counted under its reason. Not part of `run_all`: the factory makes links that
/// damage what they receive, and a checksum around them.
pub fn damage_is_found<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    const FRAMES: u32 = 2_000;
    let (mut a, mut b) = pair(make);
    let caps = a.caps_to(b.local_addr());
    let longest = caps.frame_bytes;
    let burst = (caps.receive_frames / 2).clamp(1, 16) as u32;
    let refused = |link: &L| {
        let counters = link.counters();
        (counters.damaged_frames, counters.unchecked_frames)
    };
    let (mut sent, mut arrived, begun) = (0, HashSet::new(), Instant::now());
    while sent < FRAMES {
        for _ in 0..burst {
            let bytes = match sent % 5 {
                4 => longest - sent as usize % 50,
                kind => 4 + kind as usize * 90,
            };
            send(&mut a, b.local_addr(), &numbered(sent, bytes));
            sent += 1;
        }
        a.flush().expect("flush");
        // Frames that do not come after a while were lost, as links may lose some also without damage.
        let (mut changed_at, mut seen) = (Instant::now(), 0);
        while seen < u64::from(sent) && changed_at.elapsed() < QUIET {
            let frames = b
                .receive(
                    64,
                    &mut each(|_, frame| {
                        assert!(arrived.insert(number_of(frame)), "it came twice");
                    }),
                )
                .expect("receive");
            let (damaged, unchecked) = refused(&b);
            let now = arrived.len() as u64 + damaged + unchecked;
            if now > seen {
                (seen, changed_at) = (now, Instant::now());
            } else if frames == 0 {
                std::thread::yield_now();
            }
        }
        assert!(begun.elapsed() < PATIENCE, "after {sent} frames");
    }
    let (damaged, unchecked) = refused(&b);
    let share = f64::from(sent) / 5.0;
    assert!(damaged as f64 > share / 4.0, "{damaged} damaged");
    assert!(unchecked < damaged, "{unchecked} without a sum");
    assert!(arrived.len() > sent as usize / 2, "{} came", arrived.len());
}

fn pair<L: Link>(make: &impl Fn(usize) -> Vec<L>) -> (L, L) {
    let mut links = make(2);
    assert_eq!(links.len(), 2, "the factory makes as many as asked");
    let b = links.remove(1);
    (links.remove(0), b)
}

/// Bytes that name their frame: different for each number and length.
fn fill_pattern(slot: &mut [u8], number: u32) {
    let mut state = u64::from(number) << 32 | slot.len() as u64 | 1;
    for chunk in slot.chunks_mut(8) {
        state = state
            .wrapping_mul(0x9E37_79B9_7F4A_7C15)
            .rotate_left(29)
            .wrapping_add(1);
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}

fn pattern(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes];
    fill_pattern(&mut frame, number);
    frame
}

/// A frame that begins with its number, of at least 4 bytes.
fn numbered(number: u32, bytes: usize) -> Vec<u8> {
    let mut frame = pattern(number, bytes);
    frame[..4].copy_from_slice(&number.to_le_bytes());
    frame
}

fn number_of(frame: &[u8]) -> u32 {
    let number = u32::from_le_bytes(frame[..4].try_into().expect("4 bytes"));
    assert!(
        frame == numbered(number, frame.len()),
        "frame {number} of {} bytes arrived damaged",
        frame.len()
    );
    number
}

/// A frame in a head and a body, cut somewhere.
fn cut(frame: &[u8]) -> Frame<'_> {
    let (head, body) = frame.split_at(frame.len().min(frame.len() * 7 % 57));
    Frame { head, body }
}

/// Offers a frame once.
fn offer<L: Link>(link: &mut L, to: LinkAddr, frame: &[u8]) -> bool {
    link.send_one(to, cut(frame)).expect("send")
}

/// Sends a frame now; the link has room.
fn send<L: Link>(link: &mut L, to: LinkAddr, frame: &[u8]) {
    let begun = Instant::now();
    while !offer(link, to, frame) {
        link.flush().expect("flush");
        assert!(begun.elapsed() < PATIENCE, "no slot towards {to}");
        std::thread::yield_now();
    }
}

/// Receives until `enough` returns true.
fn collect_until<L: Link>(
    link: &mut L,
    mut on_frame: impl FnMut(LinkAddr, &[u8]),
    mut enough: impl FnMut() -> bool,
) {
    let begun = Instant::now();
    // The last frame may bring others that were joined with it: frames of one byte, each behind its length.
    let piece = link.caps().frame_bytes / 3 + 1;
    while !enough() {
        let frames = link
            .receive(64, &mut each(|from, frame| on_frame(from, frame)))
            .expect("receive");
        assert!(frames < 64 + piece, "more frames than asked for");
        if frames == 0 {
            assert!(begun.elapsed() < PATIENCE, "frames are missing");
            link.wait(POLL_EVERY).expect("wait");
        }
    }
}

/// Receives `count` frames.
fn collect<L: Link>(link: &mut L, count: usize) -> Vec<(LinkAddr, Vec<u8>)> {
    let mut frames = Vec::new();
    let arrived = std::cell::Cell::new(0);
    collect_until(
        link,
        |from, frame| {
            frames.push((from, frame.to_vec()));
            arrived.set(arrived.get() + 1);
        },
        || arrived.get() >= count,
    );
    assert_eq!(frames.len(), count, "more frames than were sent");
    frames
}

/// Receives what still comes, until nothing comes for a while.
fn drain<L: Link>(link: &mut L) -> Vec<(LinkAddr, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut last = Instant::now();
    while last.elapsed() < QUIET {
        let more = link
            .receive(
                64,
                &mut each(|from, frame| frames.push((from, frame.to_vec()))),
            )
            .expect("receive");
        if more > 0 {
            last = Instant::now();
        } else {
            link.wait(POLL_EVERY).expect("wait");
        }
    }
    frames
}

/// Capabilities have sensible values, since other code divides by them or allocates them; addresses differ.
pub fn caps_are_sane<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (a, b) = pair(make);
    let caps = a.caps_to(b.local_addr());
    assert!(caps.frame_bytes >= 512, "{caps:?}");
    assert!(
        caps.receive_frames >= 1 && caps.burst_frames >= 1,
        "{caps:?}"
    );
    assert!(!caps.name.is_empty());
    assert_eq!(
        caps,
        a.caps_to(b.local_addr()),
        "capabilities do not change"
    );
    assert_ne!(a.local_addr(), b.local_addr());
}

/// A frame of any length arrives unchanged and with its sender's address, both ways.
pub fn frames_arrive_intact<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    let limit = a.caps_to(b.local_addr()).frame_bytes;
    let mut sizes: Vec<usize> = (1..=130).collect();
    sizes.extend((7..=16).flat_map(|bits| {
        let bytes = 1usize << bits;
        [bytes - 9, bytes - 8, bytes - 7, bytes - 1, bytes, bytes + 1]
    }));
    sizes.extend([limit - 1, limit]);
    sizes.retain(|&bytes| bytes <= limit);
    for (number, &bytes) in (0u32..).zip(&sizes) {
        let frame = pattern(number, bytes);
        let (from, to) = if number % 2 == 0 {
            (&mut a, &mut b)
        } else {
            (&mut b, &mut a)
        };
        send(from, to.local_addr(), &frame);
        from.flush().expect("flush");
        let got = collect(to, 1).remove(0);
        assert_eq!(got.0, from.local_addr());
        assert!(got.1 == frame, "a frame of {bytes} bytes changed");
    }
}

/// Frames of mixed lengths, sent at once, all arrive once.
pub fn burst_arrives<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    let caps = a.caps_to(b.local_addr());
    let to = b.local_addr();
    let count = (caps.burst_frames * 3).min(caps.receive_frames / 2).max(1) as u32;
    for round in 0..4 {
        for number in 0..count {
            let bytes = match round {
                0 => 64,
                1 => caps.frame_bytes,
                2 => 4 + number as usize % 1400.min(caps.frame_bytes - 4),
                _ => caps.frame_bytes - number as usize % 400,
            };
            send(&mut a, to, &numbered(number, bytes));
        }
        a.flush().expect("flush");
        let numbers: HashSet<u32> = collect(&mut b, count as usize)
            .iter()
            .map(|(_, frame)| number_of(frame))
            .collect();
        assert_eq!(numbers.len(), count as usize, "frames repeated");
    }
}

/// A link whose receiver does not read refuses frames or counts its losses, and works again once the receiver reads.
pub fn full_link_refuses_and_recovers<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    for small in [true, false] {
        let (mut a, mut b) = pair(make);
        let caps = a.caps_to(b.local_addr());
        let to = b.local_addr();
        let bytes = if small { 24 } else { caps.frame_bytes };
        let mut accepted = 0;
        if caps.lossless {
            while accepted < FILL_FRAMES_MAX && offer(&mut a, to, &numbered(accepted as u32, bytes))
            {
                accepted += 1;
            }
            assert!(accepted < FILL_FRAMES_MAX, "never full");
            assert!(accepted >= 2, "full too soon");
            assert!(a.counters().refused >= 1, "the refusal is counted");
        } else {
            let count = (caps.receive_frames * 2).min(OVERLOAD_FRAMES_MAX);
            for number in 0..count {
                accepted += usize::from(offer(&mut a, to, &numbered(number as u32, bytes)));
            }
        }
        // Frames that a full medium did not take are kept for the next flush.
        let mut arrived = Vec::new();
        loop {
            a.flush().expect("flush");
            let more = drain(&mut b);
            if more.is_empty() {
                break;
            }
            arrived.extend(more);
        }
        let numbers: HashSet<u32> = arrived.iter().map(|(_, frame)| number_of(frame)).collect();
        assert_eq!(numbers.len(), arrived.len(), "frames repeated");
        let lost = a.counters().dropped_frames
            + b.counters().dropped_frames
            + b.counters().impaired_frames;
        assert_eq!(
            arrived.len() as u64 + lost,
            accepted as u64,
            "every frame arrived or was counted"
        );
        assert!(!caps.lossless || lost == 0, "a lossless link loses nothing");
        for number in 0..10 {
            send(&mut a, to, &numbered(number, bytes));
            a.flush().expect("flush");
            assert_eq!(number_of(&collect(&mut b, 1)[0].1), number);
        }
    }
}

/// `wait` ends after its time-out when nothing comes, and at once when a frame is there.
pub fn wait_ends_without_frames<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    b.wait(Duration::ZERO).expect("wait");
    b.wait(Duration::from_millis(3)).expect("wait");
    assert_eq!(b.receive(8, &mut each(|_, _| {})).expect("receive"), 0);
    send(&mut a, b.local_addr(), &[1, 2, 3]);
    a.flush().expect("flush");
    let begun = Instant::now();
    while b.receive(8, &mut each(|_, _| {})).expect("receive") == 0 {
        b.wait(PATIENCE).expect("wait");
    }
    assert!(begun.elapsed() < LOST_WAKE, "slept over a waiting frame");
}

/// A broadcast reaches every other link once and not its sender; a link without broadcast says so.
pub fn broadcast_reaches_all_others<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let mut links = make(4);
    if !links[0].caps().broadcast {
        let sent = links[0].send_one(LinkAddr::Broadcast, Frame::whole(&[1]));
        assert!(sent.is_err());
        return;
    }
    let bytes = links[0].caps().frame_bytes;
    for (number, size) in [(0, 4), (1, 100), (2, bytes)] {
        let frame = numbered(number, size);
        send(&mut links[1], LinkAddr::Broadcast, &frame);
        links[1].flush().expect("flush");
        let from = links[1].local_addr();
        for link in [0, 2, 3] {
            assert!(collect(&mut links[link], 1) == [(from, frame.clone())]);
        }
    }
    // Broadcasts and ordinary frames come side by side, together no more than a receiver holds.
    let to = links[0].local_addr();
    let each = (links[0].caps().receive_frames / 2).clamp(1, 20) as u32;
    for number in 0..each {
        send(&mut links[1], LinkAddr::Broadcast, &numbered(number, 40));
        send(&mut links[1], to, &numbered(100 + number, 40));
    }
    links[1].flush().expect("flush");
    let numbers: HashSet<u32> = collect(&mut links[0], 2 * each as usize)
        .iter()
        .map(|(_, frame)| number_of(frame))
        .collect();
    assert_eq!(numbers.len(), 2 * each as usize);
    assert_eq!(drain(&mut links[1]), [], "not to its sender");
}

/// Counters of frames sent on one side equal those of frames received on the other.
pub fn counters_add_up<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    assert_eq!(a.counters().sent_frames, 0);
    let mut bytes = 0;
    for number in 0..30u32 {
        let frame = numbered(number, 10 + number as usize);
        bytes += frame.len() as u64;
        send(&mut a, b.local_addr(), &frame);
        a.flush().expect("flush");
    }
    collect(&mut b, 30);
    let (sent, received) = (a.counters(), b.counters());
    assert_eq!((sent.sent_frames, sent.sent_bytes), (30, bytes));
    assert_eq!(
        (received.received_frames, received.received_bytes),
        (30, bytes)
    );
    assert_eq!(sent.received_frames + received.sent_frames, 0);
    assert_eq!(sent.dropped_frames + received.dropped_frames, 0);
}

/// Addresses that lead nowhere are answered with an error or a count, and the link works on.
pub fn garbage_addresses_do_no_harm<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    let (mut a, mut b) = pair(make);
    let garbage = [
        LinkAddr::Local(u16::MAX),
        LinkAddr::Local(2),
        LinkAddr::Inet(SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
        LinkAddr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))),
        LinkAddr::Inet(SocketAddr::from((Ipv4Addr::LOCALHOST, 1))),
        LinkAddr::Inet(SocketAddr::from((Ipv4Addr::BROADCAST, 9))),
        LinkAddr::Inet(SocketAddr::from((Ipv6Addr::LOCALHOST, 1))),
        LinkAddr::Inet(SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
    ];
    for to in garbage {
        for _ in 0..3 {
            let _ = a.send_one(to, Frame::whole(&[7; 8]));
            a.flush().expect("a bad address is no error of the link");
        }
    }
    let frame = numbered(5, 77);
    send(&mut a, b.local_addr(), &frame);
    a.flush().expect("flush");
    assert!(collect(&mut b, 1)[0].1 == frame);
}

/// Eight links each send to each other, together no more than a receiver holds, and nothing is lost or mixed up.
pub fn many_peers_talk<L: Link>(make: &impl Fn(usize) -> Vec<L>) {
    const FRAMES_MAX: usize = 40;
    let mut links = make(MANY);
    let caps = links[0].caps_to(links[1].local_addr());
    let frames = caps.receive_frames / (MANY - 1);
    let frames = frames.clamp(1, FRAMES_MAX);
    for link in &mut links {
        // Announcements that the other links made when they were opened take room, too.
        link.receive(FRAMES_MAX, &mut each(|_, _| panic!("nobody sent anything")))
            .expect("receive");
    }
    let addrs: Vec<_> = links.iter().map(Link::local_addr).collect();
    for link in &mut links {
        let me = link.local_addr();
        for number in 0..frames as u32 {
            for &to in addrs.iter().filter(|&&to| to != me) {
                send(link, to, &numbered(number, 60));
            }
        }
        link.flush().expect("flush");
    }
    for link in &mut links {
        let arrived = collect(link, frames * (MANY - 1));
        let distinct: HashSet<_> = arrived
            .iter()
            .map(|(from, frame)| (*from, number_of(frame)))
            .collect();
        assert_eq!(distinct.len(), arrived.len());
        assert!(distinct.iter().all(|(from, _)| addrs.contains(from)));
    }
}

/// Two threads stream at once in both directions, frames of all lengths, a bounded number in flight.
pub fn stream_between_threads<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>) {
    let (a, b) = pair(make);
    std::thread::scope(|scope| {
        let (to_a, to_b) = (a.local_addr(), b.local_addr());
        let one = scope.spawn(move || stream(a, to_b));
        let other = scope.spawn(move || stream(b, to_a));
        one.join().expect("first streamer");
        other.join().expect("second streamer");
    });
}

fn stream<L: Link>(mut link: L, to: LinkAddr) {
    let caps = link.caps_to(to);
    // The first four bytes number a frame, the next four count the peer's frames that arrived here.
    let window = (caps.receive_frames / 2).clamp(1, 200) as u32;
    let big = caps.frame_bytes;
    let mut sent = 0u32;
    let mut seen = HashSet::new();
    let mut peer_has = 0u32;
    let begun = Instant::now();
    let mut last_told = 0;
    // Goes on until the peer has all of our frames, and was told that we have all of its frames.
    while last_told < STREAM_FRAMES as usize || peer_has < STREAM_FRAMES {
        let mut burst = 0;
        while sent < STREAM_FRAMES && sent - peer_has < window && burst < 32 {
            let bytes = match sent % 7 {
                6 if sent.is_multiple_of(35) => big - sent as usize % 100,
                kind => 8 + kind as usize * 31,
            };
            let mut frame = numbered(sent, bytes);
            frame[4..8].copy_from_slice(&(seen.len() as u32).to_le_bytes());
            if !offer(&mut link, to, &frame) {
                break;
            }
            last_told = seen.len();
            sent += 1;
            burst += 1;
        }
        if seen.len() > last_told {
            // A bare acknowledgement: not part of the stream, so it may be refused.
            let mut frame = [0xff; 8];
            frame[4..].copy_from_slice(&(seen.len() as u32).to_le_bytes());
            if offer(&mut link, to, &frame) {
                last_told = seen.len();
            }
        }
        link.flush().expect("flush");
        let frames = link
            .receive(
                48,
                &mut each(|_, frame| {
                    let has = u32::from_le_bytes(frame[4..8].try_into().expect("4 bytes"));
                    peer_has = peer_has.max(has);
                    let number = u32::from_le_bytes(frame[..4].try_into().expect("4 bytes"));
                    if number == u32::MAX {
                        return;
                    }
                    let mut expected = numbered(number, frame.len());
                    expected[4..8].copy_from_slice(&frame[4..8]);
                    assert!(frame == expected, "frame {number} arrived damaged");
                    assert!(seen.insert(number), "frame {number} arrived twice");
                }),
            )
            .expect("receive");
        if frames == 0 && burst == 0 {
            assert!(
                begun.elapsed() < PATIENCE,
                "stuck: sent {sent}, the peer has {peer_has}, arrived {}",
                seen.len()
            );
            link.wait(Duration::from_millis(1)).expect("wait");
        }
    }
}

/// No wake-up is lost in thousands of sleeps, with the frame sent a little sooner or later each time.
pub fn no_wake_is_lost<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>) {
    wakes_by_wait(make, WAKE_CYCLES);
}

/// The same through the descriptor, for links that have one.
pub fn no_wake_through_fd_is_lost<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>) {
    wakes_by_fd(make, FD_WAKE_CYCLES);
}

/// `no_wake_is_lost` in fewer sleeps, for a variant of a link that passes that one.
pub fn no_wake_of_a_variant_is_lost<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>) {
    wakes_by_wait(make, VARIANT_WAKE_CYCLES);
}

/// `no_wake_through_fd_is_lost` in fewer sleeps, likewise.
pub fn no_wake_of_a_variant_through_fd_is_lost<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>) {
    wakes_by_fd(make, VARIANT_FD_WAKE_CYCLES);
}

fn wakes_by_wait<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>, cycles: u32) {
    wake_cycles(make, cycles, |link| {
        link.wait(PATIENCE).expect("wait");
    });
}

fn wakes_by_fd<L: Link + Send>(make: &impl Fn(usize) -> Vec<L>, cycles: u32) {
    if make(2)[0].fd().is_none() {
        return;
    }
    wake_cycles(make, cycles, |link| {
        if !link.arm_fd().expect("arm_fd") {
            return;
        }
        let timeout = rustix::time::Timespec {
            tv_sec: PATIENCE.as_secs() as i64,
            tv_nsec: 0,
        };
        let fd = link.fd().expect("has one");
        let mut fds = [rustix::event::PollFd::new(
            &fd,
            rustix::event::PollFlags::IN,
        )];
        let _ = rustix::event::poll(&mut fds, Some(&timeout));
    });
}

fn wake_cycles<L: Link + Send>(
    make: &impl Fn(usize) -> Vec<L>,
    cycles: u32,
    sleep: impl Fn(&mut L) + Sync,
) {
    let (a, b) = pair(make);
    let (to_a, to_b) = (a.local_addr(), b.local_addr());
    let side = |mut link: L, to: LinkAddr, starts: bool| {
        let receive = |link: &mut L, number: u32| {
            let mut arrived = false;
            while !arrived {
                let frames = link
                    .receive(
                        4,
                        &mut each(|_, frame| {
                            assert_eq!(number_of(frame), number);
                            arrived = true;
                        }),
                    )
                    .expect("receive");
                if frames == 0 {
                    let begun = Instant::now();
                    sleep(link);
                    assert!(begun.elapsed() < LOST_WAKE, "wake-up {number} was lost");
                }
            }
        };
        for number in 0..cycles {
            if !starts {
                receive(&mut link, number);
            }
            // A varied pause, so that the frame arrives at all stages of the other's falling asleep.
            for _ in 0..number.wrapping_mul(2_654_435_761) >> 21 {
                std::hint::spin_loop();
            }
            send(&mut link, to, &numbered(number, 16));
            link.flush().expect("flush");
            if starts {
                receive(&mut link, number);
            }
        }
    };
    let side = &side;
    std::thread::scope(|scope| {
        let one = scope.spawn(move || side(a, to_b, true));
        let other = scope.spawn(move || side(b, to_a, false));
        one.join().expect("first side");
        other.join().expect("second side");
    });
}
