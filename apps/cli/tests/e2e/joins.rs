//! Processes that join a running cluster under traffic, leave it, are killed, and come back at other addresses: a hundred times.
//!
//! Node 0 is this process; everybody talks to everybody and checks what it hears.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::time::{Duration, Instant};

use fastrand::Rng;

use crate::common;
use crate::talk::{self, Over, Place, Talker};

const ENTRY: &str = "joins::members_come_and_go";
const CHANGES: u32 = 100;
/// One upon the other, before all that live hear each other again.
const CHANGES_AT_ONCE: u32 = 2;
/// Most members beside node 0 at a time: more processes than cores, but not so many that all they do is wait.
const MEMBERS_MAX: usize = 5;
/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);

/// Processes by their lives; killed when a test fails.
struct Members(BTreeMap<u32, Child>);

impl Drop for Members {
    fn drop(&mut self) {
        for child in self.0.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

impl Members {
    fn kill(&mut self, life: u32) {
        let mut child = self.0.remove(&life).expect("it lives");
        child.kill().expect("kill");
        child.wait().expect("reap");
    }
}

/// Node 0 talks until all that live have heard each other.
fn until_all_heard(talker: &mut Talker, members: &mut Members, what: &str) {
    let begun = Instant::now();
    loop {
        let lives: BTreeSet<u32> = members.0.keys().copied().chain([1]).collect();
        let missing = talker.not_heard(&lives);
        if missing.is_empty() {
            return;
        }
        for (life, child) in &mut members.0 {
            let ended = child.try_wait().expect("wait");
            assert!(ended.is_none(), "{what}: life {life} ended: {ended:?}");
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{what}: these (life, of which life it heard nothing) remain: {missing:?}"
        );
        talker.talk_once();
    }
}

/// Waits until the process has ended as it was told to.
fn until_ended(talker: &mut Talker, child: &mut Child) {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().expect("wait") {
            return assert!(status.success(), "{status}");
        }
        assert!(begun.elapsed() < PATIENCE, "it does not stop");
        talker.talk_once();
    }
}

/// See the head of this file. Whatever happens, messages of each life arrive in order and whole, and all that live hear each other afterwards.
#[test]
fn members_come_and_go() {
    talk::work_if_started();
    let place = Place::new(Over::Joining, ENTRY);
    let mut talker = Talker::admitting(place.open());
    let mut members = Members(BTreeMap::new());
    let seed = 77;
    let mut dice = Rng::with_seed(seed);
    let mut life = 1;
    let mut counts = [0_u32; 4];
    // One that was just started: node 0 does not know its id yet.
    let mut started = None;
    for change in 0..CHANGES {
        let known = members.0.keys().copied();
        let lives: Vec<u32> = known.filter(|life| Some(*life) != started).collect();
        let kind = match members.0.len() {
            0 | 1 => 0,
            MEMBERS_MAX => [1, 1, 2, 2, 3][dice.usize(..5)],
            _ => [0, 0, 0, 0, 1, 1, 2, 2, 3][dice.usize(..9)],
        };
        let chosen = (kind > 0).then(|| lives[dice.usize(..lives.len())]);
        let what = format!("seed {seed}, change {change}: {kind} of {chosen:?}");
        counts[kind] += 1;
        match (kind, chosen) {
            (1, Some(one)) => members.kill(one),
            (2, Some(one)) => {
                let id = talker.id_of(one).expect("it was heard");
                talker.stop(id);
                let mut child = members.0.remove(&one).expect("it lives");
                until_ended(&mut talker, &mut child);
            }
            (3, Some(one)) => {
                let id = talker.id_of(one).expect("it was heard");
                members.kill(one);
                life += 1;
                started = Some(life);
                members.0.insert(life, place.join(&talker, Some(id), life));
            }
            _ => {
                life += 1;
                started = Some(life);
                members.0.insert(life, place.join(&talker, None, life));
            }
        }
        if (change + 1).is_multiple_of(CHANGES_AT_ONCE) {
            until_all_heard(&mut talker, &mut members, &what);
            started = None;
        }
    }
    println!("{CHANGES} changes: {counts:?} joined, were killed, left, came back elsewhere");
    let members_seen = talker.endpoint.members().len();
    assert!(
        members_seen <= usize::try_from(life).expect("few"),
        "{members_seen} ids"
    );
    let pids: Vec<u32> = members.0.values().map(Child::id).collect();
    for life in members.0.keys().copied().collect::<Vec<_>>() {
        let id = talker.id_of(life).expect("it was heard");
        talker.stop(id);
        let mut child = members.0.remove(&life).expect("it lives");
        until_ended(&mut talker, &mut child);
    }
    common::assert_nothing_left(&pids);
}
