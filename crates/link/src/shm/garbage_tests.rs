//! Garbage that a process writes over its own region or the head harms no other process.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fastrand::Rng;

use super::sys::{Map, WriteWord};
use super::tests::{attach_again, receive, send, small};
use super::*;
use crate::each;

/// Zero, small, a bit changed, near the limits, or anything.
fn garbage(dice: &mut Rng, old: u64) -> u64 {
    match dice.u64(..7) {
        0 => 0,
        1 => dice.u64(..100),
        2 => old ^ 1 << dice.u64(..64),
        3 => u64::MAX - dice.u64(..100),
        4 => old.wrapping_add(dice.u64(..300)),
        5 => (1 << 62) + dice.u64(..1000),
        _ => dice.u64(..),
    }
}

/// Garbage in a peer's region makes no other process panic, hang, or read out of bounds; other peers are served, and the faulty node can attach again
/// as its next generation.
#[test]
fn garbage_in_a_region_harms_nobody_else() {
    let mut broken = 0;
    for seed in 0..300 {
        let job = small(3);
        let mut dice = Rng::with_seed(seed);
        let mut a = Shm::attach(&job, 0).expect("attach");
        let mut good = Shm::attach(&job, 1).expect("attach");
        let mut bad = Shm::attach(&job, 2).expect("attach");
        let region = bad.job.own_region_for_test(bad.generation);
        for _ in 0..dice.u64(..40) {
            send(&mut bad, LinkAddr::Local(0), &[1; 100]);
            send(&mut bad, LinkAddr::Broadcast, &[2; 90]);
            if dice.u8(..3) == 0 {
                receive(&mut a);
            }
        }
        for _ in 0..30 {
            scribble(
                &region,
                &mut dice,
                a.job.layout.interesting_words_for_test(0),
            );
            // Bounded by what the rings hold; each call returns.
            for _ in 0..20 {
                let _ = a.receive(16, &mut each(|_, frame| assert!(frame.len() <= 600)));
                send(&mut a, LinkAddr::Local(2), &[3; 300]);
            }
            a.wait(Duration::ZERO).expect("wait");
        }
        broken += a.counters().dropped_frames;
        assert!(send(&mut good, LinkAddr::Local(0), b"still here"));
        assert!(receive(&mut a).contains(&b"still here".to_vec()), "{seed}");
        // A mapping keeps the lock.
        drop((bad, region));
        let mut reborn = attach_again(&job, 2);
        assert!(send(&mut reborn, LinkAddr::Local(0), b"reborn"));
        assert!(receive(&mut a).contains(&b"reborn".to_vec()), "{seed}");
        assert!(send(&mut a, LinkAddr::Local(2), b"welcome"));
        assert!(
            receive(&mut reborn).contains(&b"welcome".to_vec()),
            "{seed}"
        );
    }
    assert!(broken > 50, "the garbage was noticed {broken} times");
}

fn scribble(region: &Arc<Map>, dice: &mut Rng, words: Vec<usize>) {
    for _ in 0..1 + dice.u64(..4) {
        let at = words[dice.usize(..words.len())];
        let word = WriteWord::new(region, at);
        word.store(
            garbage(dice, word.load(Ordering::Relaxed)),
            Ordering::Relaxed,
        );
    }
}

/// Garbage in the head, which all may write, costs wake-ups and, with a wrong directory entry, frames: never a panic.
#[test]
fn garbage_in_the_head_is_survived() {
    for seed in 0..200 {
        let job = small(3);
        let mut dice = Rng::with_seed(seed);
        let mut a = Shm::attach(&job, 0).expect("attach");
        let mut b = Shm::attach(&job, 1).expect("attach");
        let head = Arc::clone(a.job.head());
        let words: Vec<usize> = (64..512)
            .step_by(8)
            .chain((0..3).map(|node| a.job.layout.bell_at(node)))
            .collect();
        for _ in 0..20 {
            scribble(&head, &mut dice, words.clone());
            for _ in 0..5 {
                send(&mut a, LinkAddr::Local(1), b"x");
                send(&mut b, LinkAddr::Local(0), b"y");
                let _ = a.receive(16, &mut each(|_, _| {}));
                let _ = b.receive(16, &mut each(|_, _| {}));
                a.wait(Duration::ZERO).expect("wait");
                if a.arm_fd().expect("arm_fd") {
                    b.flush().expect("flush");
                }
            }
            let _ = Shm::attach(&job, 2);
        }
    }
}
