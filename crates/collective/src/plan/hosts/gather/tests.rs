use super::*;
use crate::plan::{Step, all_gather_direct, all_to_all, gather, scatter};

/// A member that carries out its plan.
struct Member<'a> {
    plan: &'a Plan,
    /// Input, output and scratch.
    memories: [Vec<u8>; 3],
    done: Vec<bool>,
}

impl<'a> Member<'a> {
    fn new(plan: &'a Plan, input: Vec<u8>, output_bytes: usize) -> Self {
        let mut member = Self {
            plan,
            memories: [input, vec![0; output_bytes], vec![0; plan.scratch_bytes]],
            done: vec![false; plan.steps.len()],
        };
        for copy in &plan.copies {
            member.copy(*copy);
        }
        member
    }

    fn bytes(&self, place: Place) -> Vec<u8> {
        self.memories[place.buffer as usize][place.start..place.start + place.len].to_vec()
    }

    fn put(&mut self, place: Place, bytes: &[u8]) {
        assert_ne!(place.buffer, Buffer::Input);
        let memory = &mut self.memories[place.buffer as usize];
        memory[place.start..place.start + place.len].copy_from_slice(bytes);
    }

    fn copy(&mut self, (from, to): (Place, Place)) {
        let bytes = self.bytes(from);
        self.put(to, &bytes);
    }

    fn may_begin(&self, number: usize) -> bool {
        let step = &self.plan.steps[number];
        let is_done = |earlier: &Option<u32>| earlier.is_none_or(|step| self.done[step as usize]);
        match step.action {
            Action::Move { .. } => self.done[..number].iter().all(|done| *done),
            _ => step.after.iter().all(is_done) && is_done(&step.follows),
        }
    }
}

/// Carries out all plans, every send waiting for its receiver, and returns the outputs. Members take turns, `backwards` from the last to the first.
fn outputs(
    plans: &[Plan],
    inputs: &[Vec<u8>],
    bytes: impl Fn(usize) -> usize,
    backwards: bool,
) -> Vec<Vec<u8>> {
    let mut ranks: Vec<usize> = (0..plans.len()).collect();
    if backwards {
        ranks.reverse();
    }
    let mut members: Vec<Member<'_>> = (plans.iter().zip(inputs).enumerate())
        .map(|(rank, (plan, input))| Member::new(plan, input.clone(), bytes(rank)))
        .collect();
    let mut moved = true;
    while moved {
        moved = false;
        for &rank in &ranks {
            for (number, step) in plans[rank].steps.iter().enumerate() {
                if !members[rank].done[number] && members[rank].may_begin(number) {
                    moved |= carry_out(&mut members, rank, number, step);
                }
            }
        }
    }
    for (rank, member) in members.iter().enumerate() {
        assert!(
            member.done.iter().all(|done| *done),
            "{rank} waits for ever"
        );
    }
    let output_of = |member: Member<'_>| {
        let [_, output, _] = member.memories;
        output
    };
    members.into_iter().map(output_of).collect()
}

/// Carries out a step that may begin; `false`: its receiver is not ready, or it is a receive.
fn carry_out(members: &mut [Member<'_>], rank: usize, number: usize, step: &Step) -> bool {
    match step.action {
        Action::Move { first, end } => {
            let plan = members[rank].plan;
            for copy in &plan.moves[first as usize..end as usize] {
                members[rank].copy(*copy);
            }
        }
        Action::Send => {
            let fits = |other: &Step| {
                other.action == Action::Store && other.peer == rank && other.tag == step.tag
            };
            let receiver = &members[step.peer];
            let receive = receiver.plan.steps.iter().position(fits);
            let receive = receive.expect("it has a receive");
            assert!(!receiver.done[receive], "bytes come once");
            if !receiver.may_begin(receive) {
                return false;
            }
            let place = receiver.plan.steps[receive].place;
            let bytes = members[rank].bytes(step.place);
            members[step.peer].put(place, &bytes);
            members[step.peer].done[receive] = true;
        }
        _ => return false,
    }
    members[rank].done[number] = true;
    true
}

/// Bytes that tell ranks and places apart.
fn bytes_of(rank: usize, count: usize) -> Vec<u8> {
    let byte = |at: usize| (1 + 89 * rank + 7 * at + at / 251) as u8;
    (0..count).map(byte).collect()
}

/// Number of messages between hosts.
fn crossings(plans: &[Plan], numbers: &[u16]) -> usize {
    let of = |(plan, host): (&Plan, &u16)| {
        let crosses = |step: &&Step| step.action == Action::Send && numbers[step.peer] != *host;
        plan.steps.iter().filter(crosses).count()
    };
    plans.iter().zip(numbers).map(of).sum()
}

const SPREAD: [&[u16]; 9] = [
    &[0, 0, 1, 1],
    &[0, 0, 0, 0, 1, 1, 1, 1],
    &[0, 1, 0, 1, 0],
    &[0, 0, 0, 1, 2, 2, 2, 2, 2],
    &[0, 1, 1, 2, 3, 3, 4],
    &[7, 7, 7, 7, 7, 7, 1],
    &[0, 1, 2, 3, 4, 5, 0],
    &[5, 3, 3, 5, 4, 4, 3, 5],
    &[0, 1, 2, 0, 1, 2, 2, 1, 0],
];

/// Plans of all members by hosts and flat ones give the same, in any order of events, with as many messages between hosts as stated, and with no
/// more scratch.
fn check(
    numbers: &[u16],
    (by_hosts, flat): (&[Plan], &[Plan]),
    inputs: &[Vec<u8>],
    bytes: impl Fn(usize) -> usize,
    (messages, scratch_bytes): (usize, usize),
) {
    let wanted = outputs(flat, inputs, &bytes, false);
    for backwards in [false, true] {
        let found = outputs(by_hosts, inputs, &bytes, backwards);
        assert_eq!(found, wanted, "{numbers:?}");
    }
    assert_eq!(crossings(by_hosts, numbers), messages, "{numbers:?}");
    for (rank, plan) in by_hosts.iter().enumerate() {
        assert!(plan.scratch_bytes <= scratch_bytes, "{rank} of {numbers:?}");
    }
}

fn hosts_of(numbers: &[u16]) -> (Hosts, usize) {
    let hosts = Hosts::of(numbers.iter().map(|number| Some(*number))).expect("several");
    let count = hosts.ranks.len();
    (hosts, count)
}

fn all(size: usize, plan: impl Fn(usize) -> Plan) -> Vec<Plan> {
    (0..size).map(plan).collect()
}

/// Gather and scatter by hosts give what the flat ones give, for any root, with one message for each other host.
#[test]
fn gather_and_scatter_are_as_the_flat_ones() {
    for numbers in SPREAD {
        let ((hosts, count), size) = (hosts_of(numbers), numbers.len());
        for (root, len) in (0..size).flat_map(|root| [0, 1, 24].map(|len| (root, len))) {
            let lens = vec![len; size];
            let bounds = (count - 1, size * len);
            let at_root = |rank: usize| if rank == root { size * len } else { 0 };

            let by_hosts = all(size, |rank| gather_hosts(&hosts, rank, root, len));
            let flat = all(size, |rank| gather(rank, size, root, &lens, len));
            let inputs: Vec<_> = (0..size).map(|rank| bytes_of(rank, len)).collect();
            check(numbers, (&by_hosts, &flat), &inputs, at_root, bounds);

            let by_hosts = all(size, |rank| scatter_hosts(&hosts, rank, root, len));
            let flat = all(size, |rank| scatter(rank, size, root, &lens, len));
            let inputs: Vec<_> = (0..size)
                .map(|rank| bytes_of(rank, at_root(rank)))
                .collect();
            check(numbers, (&by_hosts, &flat), &inputs, |_| len, bounds);
        }
    }
}

/// All-gather by hosts gives what the flat one gives, for parts of different lengths, with one message from each host to each other one.
#[test]
fn all_gather_is_as_the_flat_one() {
    for numbers in SPREAD {
        let ((hosts, count), size) = (hosts_of(numbers), numbers.len());
        for len in [0, 1, 24] {
            let lens: Vec<usize> = (0..size).map(|rank| len * (rank % 4)).collect();
            let total: usize = lens.iter().sum();
            let scratch_bytes = if hosts.are_ordered() { 0 } else { total };
            let flat = all(size, |rank| all_gather_direct(rank, size, &lens));
            let inputs: Vec<_> = (0..size).map(|rank| bytes_of(rank, lens[rank])).collect();
            for ring in [false, true] {
                let by_hosts = all(size, |rank| all_gather_hosts(&hosts, rank, &lens, ring));
                let bounds = (count * (count - 1), scratch_bytes);
                check(numbers, (&by_hosts, &flat), &inputs, |_| total, bounds);
            }
        }
    }
}

/// All-to-all by hosts gives what the flat one gives, with one message from each host to each other one.
#[test]
fn all_to_all_is_as_the_flat_one() {
    for numbers in SPREAD {
        let ((hosts, count), size) = (hosts_of(numbers), numbers.len());
        for len in [0, 1, 24] {
            let lens = vec![len; size];
            let by_hosts = all(size, |rank| all_to_all_hosts(&hosts, rank, len));
            let flat = all(size, |rank| all_to_all(rank, size, &lens, &lens));
            let inputs: Vec<_> = (0..size).map(|rank| bytes_of(rank, size * len)).collect();
            let bounds = (count * (count - 1), 3 * hosts.most() * size * len);
            check(numbers, (&by_hosts, &flat), &inputs, |_| size * len, bounds);
        }
    }
}
