//! Real processes that die, stand still or leave at random moments of random operations, over shared memory, UDP and raw Ethernet.
//!
//! Survivors must be told who it was, in the world's group; a group of survivors that was made before, and one made afterwards,
//! must work all the while. Among hosts nobody dies, but frames are lost and overtaken (`hosts`).
//!
//! A failure prints the seed: `TSUMUJI_SEED=… cargo test -p tsumuji-collective --test it chaos`; more rounds by
//! `TSUMUJI_CHAOS_ROUNDS=…`. Raw Ethernet needs root and the commands of `tsumuji-testbed`; it says so and is left out where they are missing.

mod case;
mod hosts;
mod member;
mod operations;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::testbed;
use case::{Case, Fate, LinkKind, Where};
use rustix::process::{Pid, Signal, kill_process};
use tsumuji_link::shm::{ShmConfig, ShmJob};
use tsumuji_testbed::Testbed;

/// Rounds where the environment does not say; with those of other links at the same time.
const ROUNDS: u64 = 6;

/// Only turns a hang into a failure; nothing is measured by it.
const LONG: Duration = Duration::from_secs(60);

/// The test that a spawned process runs: there it becomes a member of a case, and ends.
const ENTRY: &str = "chaos::chaos_over_shm";

/// What a spawned process does; it does not return to its test.
fn work_if_spawned() {
    let Ok(case) = std::env::var(member::CASE) else {
        return;
    };
    let code = match member::run(&case.parse().expect("a case")) {
        Ok(said) => {
            println!("\n{said}");
            0
        }
        Err(why) => {
            eprintln!("{why}");
            3
        }
    };
    std::process::exit(code);
}

/// One process of a case, ended with the test.
struct Process {
    node: u16,
    child: Child,
}

impl Process {
    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        kill_process(pid.expect("a pid"), signal).expect("signal");
    }

    fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill(); // it may have ended
        let _ = self.child.wait();
    }
}

fn start(case: &Case, testbed: Option<&Testbed>) -> Vec<Process> {
    let program = std::env::current_exe().expect("own path");
    (0..case.nodes)
        .map(|node| {
            let mut command = match testbed {
                Some(testbed) => testbed.hosts()[usize::from(node)].command(&program),
                None => Command::new(&program),
            };
            command
                .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
                .env(member::CASE, case.to_string())
                .env(member::NODE, node.to_string())
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = command.spawn().expect("started");
            Process { node, child }
        })
        .collect()
}

fn wait_for<'a>(processes: impl IntoIterator<Item = &'a mut Process>, case: &Case) {
    let begun = Instant::now();
    for process in processes {
        while !process.has_ended() {
            let hangs = begun.elapsed() > LONG;
            assert!(!hangs, "node {} hangs: {case}", process.node);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Plays one case to its end; what the survivors said.
fn play(case: &Case, testbed: Option<&Testbed>) -> Vec<String> {
    let mut processes = start(case, testbed);
    let is_victim = |node: u16| case.victims.contains(&node);
    wait_for(
        processes
            .iter_mut()
            .filter(|process| !is_victim(process.node)),
        case,
    );
    for process in processes.iter_mut().filter(|one| is_victim(one.node)) {
        match case.fate {
            // It stands still for good: nobody may wait for it.
            Fate::Stop => process.signal(Signal::KILL),
            Fate::Pause => process.signal(Signal::CONT),
            Fate::Kill | Fate::Leave => {}
        }
    }
    wait_for(&mut processes, case);
    let (mut said, mut wrong) = (Vec::new(), String::new());
    for mut process in processes {
        let taken = std::mem::replace(&mut process.child, nothing());
        let output = taken.wait_with_output().expect("ended");
        let ends_well = !is_victim(process.node) || matches!(case.fate, Fate::Leave | Fate::Pause);
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        if output.status.code() != ends_well.then_some(0) {
            let err = String::from_utf8_lossy(&output.stderr);
            wrong += &format!("node {}: {}\n{out}{err}\n", process.node, output.status);
        }
        let line = out.lines().find(|line| line.starts_with("node"));
        said.extend(line.map(str::to_owned));
    }
    assert!(wrong.is_empty(), "{case}\n{}\n{wrong}", said.join("\n"));
    said
}

/// Takes the place of a process that was waited for.
fn nothing() -> Child {
    Command::new("true").spawn().expect("true")
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok();
    text.map(|text| text.parse().expect("a number"))
}

/// The seed, and the number of rounds.
fn seed_and_rounds() -> (u64, u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let any = now.map_or(1, |now| now.as_nanos() as u64); // any bits do
    let rounds = number("TSUMUJI_CHAOS_ROUNDS").unwrap_or(ROUNDS);
    (number("TSUMUJI_SEED").unwrap_or(any), rounds)
}

fn rounds_over(link: LinkKind, testbed: Option<&Testbed>) {
    let (seed, rounds) = seed_and_rounds();
    eprintln!("{link:?}: TSUMUJI_SEED={seed}");
    for round in 0..rounds {
        let mut dice = fastrand::Rng::with_seed(seed ^ (link as u64 + 1) << 56 ^ round << 32);
        let job;
        let mut case = Case::any(&mut dice, link, Where::None);
        case.place = match (link, testbed) {
            (LinkKind::Shm, _) => {
                let nodes = usize::from(case.nodes);
                job = ShmJob::create(nodes, ShmConfig::for_nodes(nodes)).expect("job");
                Where::Memory(std::process::id(), std::os::fd::AsRawFd::as_raw_fd(&job))
            }
            (LinkKind::Udp, _) => Where::Port(std::process::id(), dice.u16(20_000..40_000)),
            (LinkKind::Packet, Some(testbed)) => Where::Ethernet(
                testbed
                    .hosts()
                    .iter()
                    .map(|host| (host.interface().to_owned(), host.mac().to_string()))
                    .collect(),
            ),
            (LinkKind::Packet, None) => return,
        };
        eprintln!("TSUMUJI_SEED={seed}, round {round}: {case}");
        for said in play(&case, testbed.filter(|_| link == LinkKind::Packet)) {
            eprintln!("  {said}");
        }
    }
}

/// Over shared memory.
#[test]
fn chaos_over_shm() {
    work_if_spawned();
    rounds_over(LinkKind::Shm, None);
}

/// Over UDP.
#[test]
fn chaos_over_udp() {
    rounds_over(LinkKind::Udp, None);
}

/// On two hosts: shared memory within, UDP between.
#[test]
fn chaos_among_hosts() {
    let (seed, rounds) = seed_and_rounds();
    for round in 0..rounds {
        hosts::play(seed, round);
    }
}

/// Over raw Ethernet between hosts of a testbed.
#[test]
fn chaos_over_packet() {
    if let Some(testbed) = testbed("chaos", case::NODES_MAX, None) {
        rounds_over(LinkKind::Packet, Some(&testbed));
    }
}
