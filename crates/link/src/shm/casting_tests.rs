//! Tests of casting between attached processes: in one thread, and asleep in two.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fastrand::Rng;

use super::*;
use crate::Link;
use crate::shm::sys::WriteWord;
use crate::shm::{ShmConfig, ShmJob};

const GROUP: u64 = 77;
/// The smallest rings.
const CAST_BYTES: usize = 16 << 10;
/// Only turns a hang into a failure: a sleep that lasts half as long was not ended by anybody.
const LONG: Duration = Duration::from_secs(60);

fn job(nodes: usize) -> OwnedFd {
    let config = ShmConfig {
        cast_bytes: CAST_BYTES,
        ..ShmConfig::for_nodes(nodes)
    };
    ShmJob::create(nodes, config).expect("job")
}

fn join(job: &OwnedFd, node: u16) -> Shm {
    Shm::attach(job, node).expect("attach")
}

/// Lets a process see who came.
fn turn(shm: &mut Shm) {
    shm.recv_burst(16, |_, _| {}).expect("receive");
}

fn write(shm: &mut Shm, number: u64, others: &[u16], sequence: u32, bytes: &[u8]) -> bool {
    let group = CastGroup { number, others };
    Cast::new(shm).write(group, (sequence, 9), bytes.len() as u64, bytes)
}

/// The next one's sequence number and bytes.
fn read(shm: &mut Shm, node: u16, number: u64) -> Option<(u32, Vec<u8>)> {
    let mut cast = Cast::new(shm);
    match cast.look(node, number) {
        Found::Nothing => None,
        Found::Piece(piece) => {
            let mut bytes = vec![0; piece.bytes];
            cast.take(node, number, &piece, &mut bytes)
                .then_some((piece.sequence, bytes))
        }
        Found::Garbage => panic!("garbage"),
    }
}

/// Sleeps on the futex until somebody rings; to sleep long is not to be woken.
fn sleep(shm: &mut Shm) {
    let begun = Instant::now();
    shm.wait(LONG).expect("wait");
    assert!(begun.elapsed() < LONG / 2, "nobody rang");
}

/// The same on the descriptor.
fn sleep_on_fd(shm: &mut Shm) {
    if !shm.arm_fd().expect("arm") {
        return;
    }
    let fd = shm.fd().expect("a descriptor");
    let mut fds = [rustix::event::PollFd::new(
        &fd,
        rustix::event::PollFlags::IN,
    )];
    let limit = LONG.try_into().expect("a minute");
    let woken = rustix::event::poll(&mut fds, Some(&limit)).expect("poll");
    assert_eq!(woken, 1, "nobody rang");
}

fn fill(shm: &mut Shm, others: &[u16], from: u32) -> u32 {
    let mut sequence = from;
    while write(shm, GROUP, others, sequence, &[sequence as u8; 100]) {
        sequence += 1;
    }
    sequence
}

/// All members get everything, in order; the slowest holds the writer up, and nobody else does.
#[test]
fn the_slowest_member_is_waited_for() {
    let job = job(4);
    let mut nodes = [0, 1, 2, 3].map(|node| join(&job, node));
    nodes.iter_mut().for_each(turn);
    let [a, b, c, _] = &mut nodes;
    let full = fill(a, &[1, 2], 0);
    assert!(full > 50, "{full}");
    for sequence in 0..full {
        assert_eq!(
            read(b, 0, GROUP),
            Some((sequence, vec![sequence as u8; 100]))
        );
    }
    assert_eq!(read(b, 0, GROUP), None);
    assert!(
        !write(a, GROUP, &[1, 2], full, &[0; 100]),
        "c has read nothing"
    );
    for sequence in 0..full / 2 {
        assert_eq!(
            read(c, 0, GROUP),
            Some((sequence, vec![sequence as u8; 100]))
        );
    }
    let more = fill(a, &[1, 2], full);
    assert!(more > full);
    for sequence in full / 2..more {
        assert_eq!(
            read(c, 0, GROUP),
            Some((sequence, vec![sequence as u8; 100]))
        );
    }
}

/// Groups keep their rings while few are in use; of many groups, those that casted last do.
#[test]
fn groups_keep_their_rings() {
    let job = job(2);
    let (mut a, mut b) = (join(&job, 0), join(&job, 1));
    turn(&mut a);
    turn(&mut b);
    let few = FRESH_RINGS as u64;
    for group in 1..=100 {
        assert!(write(&mut a, group, &[1], 0, b"read"));
        assert!(read(&mut b, 0, group).is_some());
        let oldest = group.saturating_sub(few);
        for older in 1..=group {
            let keeps = Cast::new(&mut a).0.casting.slot_of(older).is_some();
            assert_eq!(keeps, older > oldest, "{older} after {group}");
        }
    }
    for group in 101..=100 + CASTS as u64 {
        assert!(write(&mut a, group, &[1], 0, b"unread"), "{group}");
    }
    assert!(a.casting.slot_of(100).is_none());
}

/// Rings go from group to group once they are read; with all rings unread another group must wait, unless one was given up,
/// whose late reader then takes nothing.
#[test]
fn rings_are_given_to_other_groups() {
    let job = job(2);
    let (mut a, mut b) = (join(&job, 0), join(&job, 1));
    turn(&mut a);
    turn(&mut b);
    for round in 0..3_u32 {
        for group in 1..=100 {
            assert!(write(&mut a, group, &[1], round, &group.to_le_bytes()));
            assert_eq!(
                read(&mut b, 0, group),
                Some((round, group.to_le_bytes().to_vec()))
            );
            assert_eq!(read(&mut b, 0, group), None);
        }
    }
    let rings = CASTS as u64;
    for group in 1..=rings {
        assert!(write(&mut a, group, &[1], 7, b"unread"), "{group}");
    }
    assert!(!write(&mut a, rings + 1, &[1], 8, b"no ring"));
    let Found::Piece(late) = Cast::new(&mut b).look(0, 5) else {
        panic!("it is there");
    };
    Cast::new(&mut a).abandon(5);
    assert!(write(&mut a, rings + 1, &[1], 8, b"taken"));
    assert!(
        !Cast::new(&mut b).take(0, 5, &late, &mut [0; 6]),
        "withdrawn"
    );
    assert_eq!(read(&mut b, 0, 5), None);
    assert_eq!(read(&mut b, 0, rings + 1), Some((8, b"taken".to_vec())));
    for group in (1..=rings).filter(|group| *group != 5) {
        assert_eq!(
            read(&mut b, 0, group),
            Some((7, b"unread".to_vec())),
            "{group}"
        );
    }
}

/// A dead member holds nobody up once it is known to be gone, or lives again; its next life takes nothing that was meant for
/// the earlier one.
#[test]
fn dead_members_hold_nobody_up() {
    let job = job(3);
    let (mut a, mut b, dead) = (join(&job, 0), join(&job, 1), join(&job, 2));
    turn(&mut a);
    turn(&mut b);
    let full = fill(&mut a, &[1, 2], 0);
    for _ in 0..full {
        assert!(read(&mut b, 0, GROUP).is_some());
    }
    assert!(!write(&mut a, GROUP, &[1, 2], full, &[0; 100]));
    let life = Cast::new(&mut a).life_of(2);
    drop(dead);
    Cast::new(&mut a).forget(2, life);
    assert!(write(&mut a, GROUP, &[1, 2], full, b""));
    let mut reborn = join(&job, 2);
    turn(&mut a);
    turn(&mut reborn);
    assert_ne!(Cast::new(&mut a).life_of(2), life);
    assert!(write(&mut a, GROUP + 1, &[1, 2], 0, b"new"));
    assert_eq!(read(&mut reborn, 0, GROUP + 1), Some((0, b"new".to_vec())));
}

/// Of a writer that died what was written is still read; its next life's rings are read from their start.
#[test]
fn a_dead_writers_rings_stay_until_its_next_life() {
    let job = job(2);
    let mut b = join(&job, 1);
    for life in 0..5_u32 {
        let mut a = join(&job, 0);
        turn(&mut a);
        turn(&mut b);
        for sequence in 0..1000 {
            assert!(write(&mut a, GROUP, &[1], sequence, &life.to_le_bytes()));
            if sequence < 900 {
                let found = read(&mut b, 0, GROUP);
                assert_eq!(found, Some((sequence, life.to_le_bytes().to_vec())));
            }
            if sequence == 910 {
                break; // some are left unread
            }
        }
        drop(a);
        assert_eq!(
            read(&mut b, 0, GROUP),
            Some((900, life.to_le_bytes().to_vec()))
        );
    }
}

/// Whatever stands in a peer's region, looking, taking and writing end, stay within their memory, and leave others alone.
#[test]
fn garbage_among_casts_harms_nobody_else() {
    let mut dice = Rng::with_seed(1);
    let mut noticed = 0;
    for seed in 0..100 {
        let job = job(3);
        let (mut a, mut good, mut bad) = (join(&job, 0), join(&job, 1), join(&job, 2));
        turn(&mut a);
        turn(&mut good);
        turn(&mut bad);
        let region = bad.job.own_region_for_test(bad.life);
        let words = a.job.layout.cast_words_for_test(0);
        for sequence in 0..dice.u32(..40) {
            write(&mut bad, GROUP, &[0, 1], sequence, &[7; 90]);
            write(&mut a, GROUP, &[1, 2], sequence, &[8; 90]);
            if dice.u8(..3) == 0 {
                let _ = read(&mut a, 2, GROUP);
            }
        }
        for _ in 0..30 {
            for _ in 0..1 + dice.usize(..4) {
                let word = WriteWord::new(&region, words[dice.usize(..words.len())]);
                let value = match dice.usize(..4) {
                    0 => dice.u64(..),
                    1 => u64::MAX,
                    2 => GROUP,
                    _ => word.load(Ordering::Relaxed).wrapping_add(dice.u64(..64)),
                };
                word.store(value, Ordering::Relaxed);
            }
            for _ in 0..20 {
                let mut cast = Cast::new(&mut a);
                match cast.look(2, GROUP) {
                    Found::Piece(piece) => {
                        let mut bytes = vec![0; piece.bytes];
                        cast.take(2, GROUP, &piece, &mut bytes);
                    }
                    Found::Garbage => noticed += 1,
                    Found::Nothing => {}
                }
                cast.watch_for(2, GROUP);
                cast.watch_room(GROUP);
                cast.attend(true);
                let _ = a.is_stirred();
                Cast::new(&mut a).watch_nothing();
                write(&mut a, GROUP, &[1, 2], 1, &[9; 500]);
            }
        }
        assert!(write(&mut good, GROUP, &[0], 3, b"still here"));
        assert_eq!(
            read(&mut a, 1, GROUP),
            Some((3, b"still here".to_vec())),
            "{seed}"
        );
    }
    assert!(noticed > 100, "the garbage was noticed {noticed} times");
}

/// Sleepers are woken by what is cast to them, and writers by room: each waits for the other, again and again.
#[test]
fn sleepers_are_woken() {
    let job = job(2);
    let (mut a, mut b) = (join(&job, 0), join(&job, 1));
    turn(&mut a);
    turn(&mut b);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for sequence in 0..2_000 {
                while !write(&mut a, GROUP, &[1], sequence, &[1; 900]) {
                    let mut cast = Cast::new(&mut a);
                    cast.watch_nothing();
                    cast.watch_room(GROUP);
                    cast.attend(true);
                    sleep(&mut a);
                    turn(&mut a);
                }
            }
        });
        for sequence in 0..2_000 {
            loop {
                if let Some((found, _)) = read(&mut b, 0, GROUP) {
                    assert_eq!(found, sequence);
                    break;
                }
                let mut cast = Cast::new(&mut b);
                cast.watch_nothing();
                cast.watch_for(0, GROUP);
                cast.attend(true);
                sleep(&mut b);
                turn(&mut b);
            }
        }
    });
}

/// A writer for whose group no ring is free sleeps until a member has read all of another group's, on the futex and on the descriptor.
#[test]
fn sleepers_are_woken_by_a_free_ring() {
    let job = job(2);
    let (mut a, mut b) = (join(&job, 0), join(&job, 1));
    turn(&mut a);
    turn(&mut b);
    let others = &[1_u16];
    for group in 1..=CASTS as u64 {
        assert!(write(&mut a, group, others, 0, b"unread"));
    }
    for round in 0..20 {
        let (unread, next) = (1 + round, 1 + CASTS as u64 + round);
        assert!(!write(&mut a, next, others, 0, b"no ring is free"));
        let mut cast = Cast::new(&mut a);
        cast.watch_nothing();
        cast.watch_room(next);
        cast.attend(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                if round % 2 == 0 {
                    sleep(&mut a);
                } else {
                    sleep_on_fd(&mut a);
                }
            });
            std::thread::sleep(Duration::from_millis(2)); // so that it often sleeps
            assert!(read(&mut b, 0, unread).is_some());
        });
        turn(&mut a);
        assert!(write(&mut a, next, others, 0, b"unread"), "round {round}");
    }
}

/// A ring that is given to one group leaves the others that wait for one waiting, and they are woken by the next.
#[test]
fn who_still_waits_for_a_ring_is_woken() {
    let job = job(2);
    let (mut a, mut b) = (join(&job, 0), join(&job, 1));
    turn(&mut a);
    turn(&mut b);
    let others = &[1_u16];
    let rings = CASTS as u64;
    for group in 1..=rings {
        assert!(write(&mut a, group, others, 0, b"unread"));
    }
    let (one, other) = (rings + 1, rings + 2);
    Cast::new(&mut a).watch_nothing();
    assert!(!write(&mut a, one, others, 0, b"no ring is free"));
    Cast::new(&mut a).watch_room(one);
    assert!(read(&mut b, 0, 1).is_some());
    // In the same turn, so the first does not ask again.
    assert!(write(&mut a, other, others, 0, b"unread"));
    Cast::new(&mut a).attend(true);
    std::thread::scope(|scope| {
        scope.spawn(|| sleep(&mut a));
        std::thread::sleep(Duration::from_millis(2)); // so that it often sleeps
        assert!(read(&mut b, 0, 2).is_some());
    });
    Cast::new(&mut a).watch_nothing();
    assert!(write(&mut a, one, others, 0, b"unread"));
}
