use super::*;
use crate::plan::{Step, all_gather_direct};

/// A member that carries out its plan.
struct Member {
    plan: Plan,
    /// Input, output and scratch.
    memories: [Vec<u8>; 3],
    done: Vec<bool>,
}

impl Member {
    fn new(plan: &Plan, input: Vec<u8>, output_bytes: usize) -> Self {
        let mut member = Self {
            plan: plan.clone(),
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
        if step.action.transfers() {
            step.after.iter().all(is_done) && is_done(&step.follows)
        } else {
            self.done[..number].iter().all(|done| *done)
        }
    }
}

/// Carries out all plans, every send waiting for its receiver. Members take turns, `backwards` from the last to the first.
fn carried_out(
    plans: &[Plan],
    inputs: &[Vec<u8>],
    bytes: impl Fn(usize) -> usize,
    backwards: bool,
) -> Vec<Member> {
    let mut ranks: Vec<usize> = (0..plans.len()).collect();
    if backwards {
        ranks.reverse();
    }
    let mut members: Vec<Member> = (plans.iter().zip(inputs).enumerate())
        .map(|(rank, (plan, input))| Member::new(plan, input.clone(), bytes(rank)))
        .collect();
    let mut moved = true;
    while moved {
        moved = false;
        for &rank in &ranks {
            let mut number = 0;
            while number < members[rank].done.len() {
                if !members[rank].done[number] && members[rank].may_begin(number) {
                    moved |= carry_out(&mut members, rank, number);
                }
                number += 1;
            }
        }
    }
    for (rank, member) in members.iter().enumerate() {
        let ended = member.done.iter().all(|done| *done);
        assert!(ended, "{rank} waits for ever");
    }
    members
}

/// Carries out a step that may begin; `false`: its receiver is not ready, or it is a receive.
fn carry_out(members: &mut [Member], rank: usize, number: usize) -> bool {
    let step = members[rank].plan.steps[number];
    match step.action {
        Action::Move { first, end } => {
            for number in first..end {
                let copy = members[rank].plan.moves[number as usize];
                members[rank].copy(copy);
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
fn crossings(members: &[Member], numbers: &[u16]) -> usize {
    let of = |(member, host): (&Member, &u16)| {
        let crosses = |step: &&Step| step.action == Action::Send && numbers[step.peer] != *host;
        member.plan.steps.iter().filter(crosses).count()
    };
    members.iter().zip(numbers).map(of).sum()
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
    let outputs = |members: &[Member]| -> Vec<Vec<u8>> {
        members
            .iter()
            .map(|member| member.memories[1].clone())
            .collect()
    };
    let wanted = outputs(&carried_out(flat, inputs, &bytes, false));
    for backwards in [false, true] {
        let members = carried_out(by_hosts, inputs, &bytes, backwards);
        assert_eq!(outputs(&members), wanted, "{numbers:?}");
        assert_eq!(crossings(&members, numbers), messages, "{numbers:?}");
        for (rank, member) in members.iter().enumerate() {
            let is_within = member.plan.scratch_bytes <= scratch_bytes;
            assert!(is_within, "{rank} of {numbers:?}");
        }
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

/// All-gather by hosts gives what the flat one gives, with one message from each host to each other one.
#[test]
fn all_gather_is_as_the_flat_one() {
    for numbers in SPREAD {
        let ((hosts, count), size) = (hosts_of(numbers), numbers.len());
        for (len, ring) in [0, 1, 24]
            .into_iter()
            .flat_map(|len| [(len, false), (len, true)])
        {
            let lens: Vec<usize> = (0..size).map(|rank| len * (rank % 4)).collect();
            let total: usize = lens.iter().sum();
            let parts_bytes = if hosts.are_ordered() { 0 } else { total };
            let bounds = (count * (count - 1), parts_bytes);
            let flat = all(size, |rank| all_gather_direct(rank, size, &lens));
            let inputs: Vec<_> = (0..size).map(|rank| bytes_of(rank, lens[rank])).collect();
            let by_hosts = |rank| all_gather_hosts(&hosts, rank, &lens, ring);
            let by_hosts = all(size, by_hosts);
            check(numbers, (&by_hosts, &flat), &inputs, |_| total, bounds);
        }
    }
}
