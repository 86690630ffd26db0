//! Tests of credit without engines: scheduling, scarce memory, and the bound of the ring.

use super::*;
use crate::policy::FlowPolicy;
use alloc::boxed::Box;
use alloc::vec;
use proptest::prelude::*;

const NOW: Instant = Instant::from_nanos(0);
const SEEN: Seen = Seen {
    next: FIRST_NUMBER + 1,
    floor: FIRST_NUMBER,
    more: true,
    busy: false,
    used: true,
    urgency: (0, 0),
    used_bytes: 0,
};
const PLENTY: MemoryFrames = MemoryFrames {
    free_bytes: 1 << 30,
    reserved_frames: 0,
    frame_bytes: 1500,
    used_bytes: 0,
};

/// A single sender is granted the whole pool, but for what is kept for peers that are added later.
#[test]
fn alone_means_all() {
    let mut credit = Credit::new(256);
    credit.add_peer();
    let mut grant = Grant::new();
    credit.promise(&mut grant);
    credit.begin(&mut grant);
    credit.on_frame(NOW, 0, &mut grant, SEEN);
    credit.raise(0, &mut grant, PLENTY);
    assert_eq!(grant.granted, FIRST_NUMBER + 225);
    assert_eq!(credit.claimed(), 224);
}

/// Where memory is scarce, credit goes to the peer that takes up least, but first to one whose messages wait for the head of a channel.
#[test]
fn scarce_memory_goes_to_the_least() {
    let mut credit = Credit::new(256);
    let scarce = MemoryFrames {
        free_bytes: 9000,
        ..PLENTY
    };
    let mut grants = [Grant::new(), Grant::new(), Grant::new()];
    (0..3).for_each(|_| credit.add_peer());
    let used_bytes = [20_000, 3_000, 4_000];
    for (peer, used_bytes) in used_bytes.into_iter().enumerate() {
        let grant = &mut grants[peer];
        grant.promised = 1;
        credit.claimed += 1;
        credit.begin(grant);
        let seen = Seen { used_bytes, ..SEEN };
        credit.on_frame(NOW, peer as u16, grant, seen);
        credit.raise(peer as u16, grant, scarce);
        assert_eq!(grant.outstanding(), 0);
    }
    let arbitrate = |grants: &[Grant; 3], head: usize| {
        let mut arbiter = Arbiter::default();
        for (peer, grant) in grants.iter().enumerate() {
            let used_bytes = used_bytes[peer];
            let memory = MemoryFrames {
                used_bytes,
                ..scarce
            };
            arbiter.consider(peer as u16, grant, memory, peer == head, None);
        }
        arbiter
    };
    assert_eq!(arbitrate(&grants, 0).peer(), Some(0));
    let next = arbitrate(&grants, 9);
    assert_eq!(next.peer(), Some(1));
    credit.grant_scarce(&next, &mut grants[1], scarce);
    assert_eq!(grants[1].outstanding(), 2, "half of 6000 bytes");
    let next = arbitrate(&grants, 9);
    assert_eq!(next.peer(), Some(2), "promises count");
    credit.grant_scarce(&next, &mut grants[2], scarce);
    assert_eq!(grants[2].outstanding(), 1);
    assert!(credit.is_least_holder(3_000) && !credit.is_least_holder(3_001));
}

/// A policy that returns the given answers round robin, however absurd.
#[derive(Debug)]
struct Mad(Vec<u64>, usize);

impl FlowPolicy for Mad {
    fn window_frames(&mut self, _: &Room, _: &Sender) -> u64 {
        self.1 += 1;
        self.0[self.1 % self.0.len()]
    }

    fn memory_rank(&mut self, _: &Room, sender: &Sender) -> u64 {
        u64::MAX - u64::from(sender.peer.0)
    }
}

/// With any number of active senders, those are scheduled that a comparison of each with all others gives.
#[test]
fn schedules_are_as_if_each_compared_all() {
    let mut credit = Credit::new(4096);
    let mut grants: Vec<Grant> = (0..40).map(|_| Grant::new()).collect();
    let mut random = 7_u64;
    grants.iter().for_each(|_| credit.add_peer());
    for step in 0..2_000_u64 {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(99);
        let peer = (random >> 33) as usize % grants.len();
        let grant = &mut grants[peer];
        let seen = Seen {
            next: FIRST_NUMBER + step,
            more: random >> 44 & 7 != 0,
            urgency: ((random >> 40) as u8 % 3, random >> 50),
            ..SEEN
        };
        credit.on_frame(NOW, peer as u16, grant, seen);
        grant.served += random >> 47 & 1;
        let of_all = |peer: u16, grant: &Grant, active: &[Active]| {
            let key = (grant.urgency, peer);
            let before = active.iter().filter(|a| (a.urgency, a.peer) < key).count();
            let least = |a: &Active| a.peer == peer || (a.served, a.peer) >= (grant.served, peer);
            active.len() <= TUNING.credit.scheduled_senders
                || before < TUNING.credit.scheduled_senders - 1
                || active.iter().all(least)
        };
        for (peer, grant) in (0..).zip(&grants).filter(|(_, grant)| grant.active) {
            let expected = of_all(peer, grant, &credit.active);
            assert_eq!(credit.is_scheduled(peer, grant), expected, "{step}: {peer}");
        }
    }
}

/// An overtaken number counts as outstanding until it arrives, its sender counts it as lost, or a probe shows a silence.
#[test]
fn overtaken_frames_may_come() {
    let mut credit = Credit::new(64);
    credit.add_peer();
    let mut grant = Grant::new();
    credit.promise(&mut grant);
    credit.begin(&mut grant);
    credit.raise(0, &mut grant, PLENTY);
    let see = |credit: &mut Credit, grant: &mut Grant, number: u64, floor: u64| {
        let seen = Seen {
            next: FIRST_NUMBER + number + 1,
            floor: FIRST_NUMBER + floor,
            ..SEEN
        };
        credit.on_frame(NOW, 0, grant, seen);
        credit.raise(0, grant, PLENTY);
        assert_eq!(grant.claim(), credit.claimed());
        grant.overtaken_frames
    };
    assert_eq!(see(&mut credit, &mut grant, 0, 1), 0);
    assert_eq!(see(&mut credit, &mut grant, 11, 1), 10);
    assert_eq!(grant.awaited(), 56, "ring and way together");
    assert_eq!(see(&mut credit, &mut grant, 5, 1), 9, "late");
    assert_eq!(see(&mut credit, &mut grant, 5, 1), 9, "twice");
    assert_eq!(see(&mut credit, &mut grant, 12, 7), 4, "six are lost");
    assert_eq!(see(&mut credit, &mut grant, 13, 14), 0);
    let granted = grant.granted - FIRST_NUMBER;
    assert_eq!(see(&mut credit, &mut grant, granted - 1, 14), granted - 15);
    let beyond = grant.granted + 1_000 - FIRST_NUMBER;
    assert_eq!(see(&mut credit, &mut grant, beyond, 14), 0, "a probe");
    assert!(grant.granted > grant.seen, "and it can go on");
}

proptest! {
    /// Whatever a policy answers, whatever windows the program sets, and whatever peers do: what is granted fits the ring, and after a cut nothing is
    /// granted beyond the window.
    #[test]
    fn no_policy_and_no_window_exceeds_the_ring(
        peers in 1u16..10,
        answers in proptest::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), 0u64..100], 1..9),
        steps in proptest::collection::vec((any::<u16>(), 0u64..5, any::<bool>(), 0u64..200), 1..300),
    ) {
        let mut credit = Credit::new(64);
        credit.rules.set_policy(Some(Box::new(Mad(answers, 0))));
        (0..peers).for_each(|_| credit.add_peer());
        let mut grants: Vec<Grant> = (0..peers).map(|_| Grant::new()).collect();
        for grant in &mut grants {
            credit.promise(grant);
            credit.begin(grant);
        }
        let least: u64 = grants.iter().map(|grant| grant.promised).sum();
        for (peer, skip, more, window) in steps {
            if window < 100 {
                credit.set_window(window);
                prop_assert_eq!(credit.rules.window(), window.clamp(1, 64));
            }
            let peer = peer % peers;
            let grant = &mut grants[usize::from(peer)];
            if window == 150 {
                grant.limit = skip;
            }
            let next = (grant.seen + skip).min(grant.granted.max(grant.seen + 1));
            credit.on_frame(NOW, peer, grant, Seen { next, floor: next.saturating_sub(20), more, ..SEEN });
            let before = credit.claimed();
            credit.raise(peer, grant, PLENTY);
            let memory = MemoryFrames { free_bytes: 5000, ..PLENTY };
            let rank = credit.memory_rank(peer, grant, memory);
            let mut arbiter = Arbiter::default();
            arbiter.consider(peer, grant, memory, false, rank);
            credit.grant_scarce(&arbiter, grant, memory);
            prop_assert_eq!(grants.iter().map(Grant::claim).sum::<u64>(), credit.claimed());
            prop_assert!(credit.claimed() <= 64);
            prop_assert!(credit.claimed() <= before.max(credit.rules.window()).max(least));
        }
    }

    /// The sum of frames that may arrive, overtaken or not, stays within the receive ring, whatever peers do, however often their sessions end and
    /// begin, and whichever peers are added. All begin with the credit that was stated to them last, or before.
    #[test]
    fn credit_never_exceeds_the_ring(
        peers in 1u16..20,
        steps in proptest::collection::vec((any::<u16>(), 0u64..9, any::<bool>(), any::<bool>(), 0u64..5000), 1..400),
        free_bytes in proptest::collection::vec(0usize..200_000, 1..9),
    ) {
        let mut credit = Credit::new(64);
        (0..peers).for_each(|_| credit.add_peer());
        let mut grants: Vec<Grant> = (0..peers).map(|_| Grant::new()).collect();
        for grant in &mut grants {
            credit.promise(grant);
        }
        let mut up = vec![false; usize::from(peers)];
        for (step, (peer, skip, more, busy, remaining)) in steps.into_iter().enumerate() {
            if remaining % 11 == 0 {
                credit.add_peer();
                for (grant, up) in grants.iter_mut().zip(&up) {
                    credit.restate(grant, !*up);
                }
                grants.push(Grant::new());
                up.push(false);
            }
            let peer = peer % grants.len() as u16;
            let grant = &mut grants[usize::from(peer)];
            let up = &mut up[usize::from(peer)];
            if *up && skip == 8 {
                credit.end(NOW, peer, grant);
            } else if !*up {
                let stated = credit.promise(grant);
                prop_assert!(stated <= grant.promised);
                if skip == 7 {
                    continue; // the welcome is lost
                }
                credit.begin(grant);
            }
            *up = !*up || skip != 8;
            if !*up {
                continue;
            }
            // Now and then one that was overtaken, or that arrives twice.
            let late = remaining % 7 == 0 && skip > 0;
            let next = if late { grant.seen - skip } else { grant.seen + skip };
            let floor = grant.seen.saturating_sub(remaining % 30);
            credit.on_frame(NOW, peer, grant, Seen { next, floor, more, busy, used: more, urgency: (0, remaining / 2), used_bytes: 0 });
            let memory = MemoryFrames {
                free_bytes: free_bytes[step % free_bytes.len()],
                reserved_frames: remaining as usize % 300,
                ..PLENTY
            };
            credit.raise(peer, grant, memory);
            let mut arbiter = Arbiter::default();
            arbiter.consider(peer, grant, memory, busy, None);
            credit.grant_scarce(&arbiter, grant, memory);
            let sum: u64 = grants.iter().map(Grant::awaited).sum();
            prop_assert_eq!(grants.iter().map(Grant::claim).sum::<u64>(), credit.claimed());
            prop_assert!(sum <= 64, "{} may come", sum);
        }
    }
}
