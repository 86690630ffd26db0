use std::cell::Cell;
use std::rc::Rc;

use super::*;
use crate::{Capacity, Frame};

/// A link that receives the numbers 0, 1, 2 … as frames of 100 bytes, as fast as it is polled.
struct Numbers(u64);

impl Link for Numbers {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "numbers",
            frame_bytes: 1000,
            receive_frames: 1000,
            burst_frames: 1,
            gathers: false,
            broadcast: false,
            lossless: true,
            damages: false,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Local(0)
    }

    fn capacity(&mut self, _: LinkAddr) -> Result<Capacity, LinkError> {
        Ok(Capacity::NONE)
    }

    fn send(&mut self, _: LinkAddr, _: &[Frame<'_>]) -> Result<usize, LinkError> {
        Ok(0)
    }

    fn receive(&mut self, max: usize, receiver: &mut impl Receiver) -> Result<usize, LinkError> {
        for _ in 0..max {
            let mut frame = [0; 100];
            frame[..8].copy_from_slice(&self.0.to_le_bytes());
            self.0 += 1;
            receiver.frame(LinkAddr::Local(1), &frame);
        }
        Ok(max)
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wait(&mut self, _: Duration) -> Result<(), LinkError> {
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

#[derive(Clone, Default)]
struct Hand(Rc<Cell<Duration>>);

impl Clock for Hand {
    fn now(&self) -> Duration {
        self.0.get()
    }
}

fn impaired(config: ImpairConfig) -> (Impair<Numbers, Hand>, Hand) {
    let hand = Hand::default();
    let link = Impair::with_clock(Numbers(0), config, hand.clone()).expect("a sound configuration");
    (link, hand)
}

fn numbers(link: &mut Impair<Numbers, Hand>, bursts: usize) -> Vec<u64> {
    let mut numbers = Vec::new();
    for _ in 0..bursts {
        link.receive(
            64,
            &mut each(|_, frame| {
                numbers.push(u64::from_le_bytes(frame[..8].try_into().expect("8 bytes")));
            }),
        )
        .expect("receive");
    }
    numbers
}

/// The default changes nothing.
#[test]
fn default_is_transparent() {
    let (mut link, _) = impaired(ImpairConfig::default());
    assert_eq!(numbers(&mut link, 2), (0..128).collect::<Vec<_>>());
    assert!(link.caps().lossless);
    assert_eq!(link.counters().received_frames, 128);
}

/// The configured fraction is lost and counted: the same frames for the same seed, others for another.
#[test]
fn loss_is_seeded_and_counted() {
    let config = ImpairConfig {
        loss: 0.2,
        ..ImpairConfig::default()
    };
    let (mut link, _) = impaired(config);
    let first = numbers(&mut link, 500);
    let lost = link.counters().impaired_frames;
    assert_eq!(first.len() as u64 + lost, 32_000);
    assert!((5_900..6_900).contains(&lost), "{lost} of 32000 at 20 %");
    assert!(!link.caps().lossless);
    assert_eq!(first, numbers(&mut impaired(config).0, 500));
    let other = ImpairConfig { seed: 2, ..config };
    assert_ne!(first, numbers(&mut impaired(other).0, 500));
}

/// A probability of one loses all frames, and one of zero none.
#[test]
fn extremes_are_exact() {
    let config = ImpairConfig {
        loss: 1.0,
        ..ImpairConfig::default()
    };
    assert_eq!(numbers(&mut impaired(config).0, 50), []);
}

/// A corrupted frame differs in one bit.
#[test]
fn corruption_flips_one_bit() {
    let config = ImpairConfig {
        corrupt: 1.0,
        ..ImpairConfig::default()
    };
    let (mut link, _) = impaired(config);
    let mut expected = 0u64;
    link.receive(
        64,
        &mut each(|_, frame| {
            let mut sound = [0; 100];
            sound[..8].copy_from_slice(&expected.to_le_bytes());
            let bits: u32 = frame
                .iter()
                .zip(sound)
                .map(|(a, b)| (a ^ b).count_ones())
                .sum();
            assert_eq!(bits, 1);
            expected += 1;
        }),
    )
    .expect("receive");
    assert_eq!(link.mangler.tally.corrupted, 64);
}

/// A frame without bytes passes as it is, at once or through the queue, and is not counted as corrupted.
#[test]
fn empty_frames_pass() {
    let config = ImpairConfig {
        corrupt: 1.0,
        ..ImpairConfig::default()
    };
    let (mut link, _) = impaired(config);
    assert_eq!(link.mangler.mangle(&[]), Some(&[][..]));
    let from = LinkAddr::Local(1);
    link.mangler.queue(Duration::ZERO, from, &[]);
    assert_eq!(link.mangler.held.len(), 1);
    assert_eq!(link.mangler.tally, Tally::default());
}

/// Repeated frames come twice, all others once.
#[test]
fn duplicates_come_twice() {
    let config = ImpairConfig {
        duplicate: 0.3,
        ..ImpairConfig::default()
    };
    let (mut link, _) = impaired(config);
    let mut got = numbers(&mut link, 10);
    got.sort_unstable();
    let duplicated = link.mangler.tally.duplicated as usize;
    assert!(duplicated > 0);
    let all = got.len();
    got.dedup();
    assert!(all > got.len() && all - got.len() <= duplicated);
}

/// Reordered frames are overtaken by a bounded number of others, and none is lost.
#[test]
fn reordering_is_bounded() {
    let config = ImpairConfig {
        reorder: 0.2,
        ..ImpairConfig::default()
    };
    let (mut link, hand) = impaired(config);
    let mut got = numbers(&mut link, 20);
    assert!(got.windows(2).any(|pair| pair[0] > pair[1]));
    hand.0.set(OVERTAKEN_TIME);
    let fetched = link.inner.0;
    got.extend(numbers(&mut link, 1));
    // Frames fetched together are released together, so a late one is late by a burst at most.
    for (place, &number) in got.iter().enumerate() {
        let late = place as i64 - number as i64;
        assert!(
            late.abs() <= 2 * TUNING.impair.burst_frames as i64,
            "{number} at {place}"
        );
    }
    got.retain(|&number| number < fetched);
    got.sort_unstable();
    assert_eq!(got, (0..fetched).collect::<Vec<_>>());
}

/// No frame comes before its delay is over; `wait` keeps the same bound.
#[test]
fn delay_is_kept() {
    let config = ImpairConfig {
        delay: Duration::from_millis(5),
        queue_frames: 64,
        ..ImpairConfig::default()
    };
    let (mut link, hand) = impaired(config);
    assert_eq!(numbers(&mut link, 1), []);
    assert_eq!(link.time_to_delivery(), Some(Duration::from_millis(5)));
    hand.0.set(Duration::from_millis(4));
    assert_eq!(link.time_to_delivery(), Some(Duration::from_millis(1)));
    assert_eq!(numbers(&mut link, 1), []);
    assert_eq!(link.inner.0, 64, "no more is fetched than may wait");
    hand.0.set(Duration::from_millis(5));
    assert_eq!(link.time_to_delivery(), Some(Duration::ZERO));
    assert!(!link.arm_fd().expect("arm_fd"));
    assert_eq!(numbers(&mut link, 1), (0..64).collect::<Vec<_>>());
    assert_eq!(link.counters().impaired_frames, 0);
}

/// The configured rate passes, and the queue drops the rest.
#[test]
fn rate_is_kept() {
    let config = ImpairConfig {
        rate_bytes_per_second: Some(1_000_000),
        queue_frames: 100,
        ..ImpairConfig::default()
    };
    let (mut link, hand) = impaired(config);
    let mut got = 0;
    for millisecond in 0..100 {
        hand.0.set(Duration::from_millis(millisecond));
        got += numbers(&mut link, 1).len();
    }
    // 10 frames of 100 bytes a millisecond.
    assert!((970..=990).contains(&got), "{got}");
    assert!(link.mangler.tally.overflowed > 0);
}

/// Values out of range are refused by name.
#[test]
fn nonsense_is_refused() {
    let default = ImpairConfig::default();
    for (config, text) in [
        (
            ImpairConfig {
                loss: -0.1,
                ..default
            },
            "loss is -0.1",
        ),
        (
            ImpairConfig {
                corrupt: 1.5,
                ..default
            },
            "corrupt is 1.5",
        ),
        (
            ImpairConfig {
                reorder: f64::NAN,
                ..default
            },
            "reorder is NaN",
        ),
        (
            ImpairConfig {
                queue_frames: 0,
                ..default
            },
            "a queue of 0",
        ),
        (
            ImpairConfig {
                rate_bytes_per_second: Some(0),
                ..default
            },
            "a rate of 0",
        ),
    ] {
        let error = config.check().expect_err("nonsense");
        assert!(error.to_string().starts_with(text), "{error}");
    }
}
