use super::*;

/// Carries out all members' plans, each transfer only when both sides are ready (`kept`: a receiver that is not ready keeps messages). Panics unless
/// all fit together and end. Returns the number of messages sent by each member.
fn carry_out(plans: &[Plan], kept: bool) -> Vec<usize> {
    let mut done: Vec<Vec<bool>> = plans
        .iter()
        .map(|plan| vec![false; plan.steps.len()])
        .collect();
    let mut here: Vec<Vec<bool>> = done.clone();
    let mut sent = vec![0; plans.len()];
    let begins = |done: &[bool], step: &Step| {
        let is_done = |earlier: &Option<u32>| earlier.is_none_or(|step| done[step as usize]);
        step.after.iter().all(is_done) && is_done(&step.follows)
    };
    let mut moved = true;
    while moved {
        moved = false;
        for (rank, plan) in plans.iter().enumerate() {
            for (number, step) in plan.steps.iter().enumerate() {
                if step.action != Action::Send {
                    if here[rank][number] && !done[rank][number] && begins(&done[rank], step) {
                        done[rank][number] = true;
                        moved = true;
                    }
                    continue;
                }
                if done[rank][number] || !begins(&done[rank], step) {
                    continue;
                }
                let fits = |other: &&Step| {
                    other.action != Action::Send && other.peer == rank && other.tag == step.tag
                };
                let other = &plans[step.peer].steps;
                assert_eq!(
                    other.iter().filter(fits).count(),
                    1,
                    "{step:?} of {rank} has one receive"
                );
                let receive = other.iter().position(|other| fits(&other)).expect("one");
                assert_eq!(other[receive].place.len, step.place.len, "lengths agree");
                if kept || begins(&done[step.peer], &other[receive]) {
                    assert!(!here[step.peer][receive], "bytes come once");
                    here[step.peer][receive] = true;
                    done[rank][number] = true;
                    sent[rank] += 1;
                    moved = true;
                }
            }
        }
    }
    assert!(
        done.iter().flatten().all(|done| *done),
        "somebody waits for ever"
    );
    sent
}

fn all(size: usize, plan: impl Fn(usize) -> Plan) -> Vec<Plan> {
    (0..size).map(plan).collect()
}

/// The plans of all members fit together and end, even if every send waits for its receiver.
#[test]
fn plans_fit_together() {
    for size in 1..=33 {
        let lens: Vec<usize> = (0..size).map(|rank| 8 * (rank % 4)).collect();
        carry_out(&all(size, |rank| barrier(rank, size)), true);
        carry_out(&all(size, |rank| all_reduce_doubling(rank, size, 64)), true);
        for (len, unit) in [(1000, 8), (24, 8), (0, 1)] {
            let halving = all(size, |rank| all_reduce_halving(rank, size, len, unit));
            carry_out(&halving, false);
        }
        carry_out(
            &all(size, |rank| all_reduce_ring(rank, size, 1000, 8)),
            false,
        );
        carry_out(
            &all(size, |rank| all_gather_direct(rank, size, &lens)),
            false,
        );
        carry_out(&all(size, |rank| all_gather_ring(rank, size, &lens)), false);
        carry_out(
            &all(size, |rank| {
                let comes: Vec<usize> = (0..size).map(|from| from * size + rank).collect();
                let goes: Vec<usize> = (0..size).map(|to| rank * size + to).collect();
                all_to_all(rank, size, &goes, &comes)
            }),
            false,
        );
        for chain in [false, true] {
            carry_out(
                &all(size, |rank| all_reduce_tree(rank, size, 64, chain)),
                false,
            );
        }
        for root in [0, size / 2, size - 1] {
            let own = |rank: usize| lens[rank];
            carry_out(
                &all(size, |rank| {
                    rooted(false, (rank, size, root), &lens, own(rank))
                }),
                false,
            );
            carry_out(
                &all(size, |rank| {
                    rooted(true, (rank, size, root), &lens, own(rank))
                }),
                false,
            );
            carry_out(
                &all(size, |rank| broadcast_flat(rank, size, root, 9)),
                false,
            );
            carry_out(
                &all(size, |rank| broadcast_chain(rank, size, root, 9)),
                false,
            );
            for commutative in [false, true] {
                for chain in [false, true] {
                    let plan = |rank| reduce_tree(rank, size, root, 64, commutative, chain);
                    carry_out(&all(size, plan), false);
                }
            }
            let sent = carry_out(
                &all(size, |rank| broadcast_tree(rank, size, root, 9)),
                false,
            );
            assert_eq!(
                sent[root],
                size.next_power_of_two().ilog2() as usize,
                "rounds at the root"
            );
        }
    }
}

/// Plans by hosts fit together and end, however the members are spread; each host's leader alone talks to other hosts.
#[test]
fn plans_by_hosts_fit_together() {
    let spread: [&[u16]; 7] = [
        &[0, 0, 1, 1],
        &[0, 0, 0, 0, 1, 1, 1, 1],
        &[0, 1, 0, 1, 0],
        &[0, 0, 0, 1, 2, 2, 2, 2, 2],
        &[0, 1, 1, 2, 3, 3, 4],
        &[7, 7, 7, 7, 7, 7, 1],
        &[0, 1, 2, 3, 4, 5, 0],
    ];
    for numbers in spread {
        let size = numbers.len();
        let hosts = Hosts::of(numbers.iter().map(|number| Some(*number))).expect("several");
        assert_eq!(
            hosts.are_ordered(),
            numbers != [0, 1, 0, 1, 0] && numbers != [0, 1, 2, 3, 4, 5, 0]
        );
        let crossings = |plans: &[Plan]| {
            let steps = plans.iter().zip(numbers).flat_map(|(plan, host)| {
                let crosses = move |step: &&Step| numbers[step.peer] != *host;
                plan.steps.iter().filter(crosses)
            });
            steps.filter(|step| step.action == Action::Send).count()
        };
        let count = numbers
            .iter()
            .collect::<std::collections::HashSet<_>>()
            .len();
        for doubling in [false, true] {
            let plans = all(size, |rank| {
                all_reduce_hosts(&hosts, rank, 1000, 8, doubling)
            });
            carry_out(&plans, doubling);
        }
        carry_out(&all(size, |rank| barrier_hosts(&hosts, rank)), true);
        for root in [0, size / 2, size - 1] {
            let plans = all(size, |rank| broadcast_hosts(&hosts, rank, root, 9));
            carry_out(&plans, false);
            assert_eq!(crossings(&plans), count - 1);
            let plans = all(size, |rank| reduce_hosts(&hosts, rank, root, 64));
            carry_out(&plans, false);
            assert_eq!(crossings(&plans), count - 1);
        }
    }
    for flat in [
        vec![Some(1); 4],
        vec![None; 4],
        vec![Some(1), Some(2), None],
        vec![],
    ] {
        assert_eq!(Hosts::of(flat.into_iter()), None);
    }
}

/// Pieces follow each other without gap, have whole units, and differ by one unit at most.
#[test]
fn pieces_cover_the_whole() {
    for units in [0, 1, 5, 8, 100] {
        for count in 1..=9 {
            let mut at = 0;
            for index in 0..count {
                let piece = piece(units * 12, 12, count, index);
                assert_eq!(piece.start, at);
                assert!(piece.len().is_multiple_of(12) && piece.len() / 12 <= units / count + 1);
                at = piece.end;
            }
            assert_eq!(at, units * 12);
        }
    }
}
