//! A launcher and its agents whose way to each other is dead without a word: each notices within the agreed time, the launcher
//! names the host, and the agent ends what it started. Played by processes that are stopped (SIGSTOP): their pipes stay open.
//!
//! Launcher and agents are this same test program, whose test [`ENTRY`] then is one of them.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::LONG;
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use tsumuji_node::bootstrap::serve_agent;
use tsumuji_node::{ClusterFile, Hosts, LaunchSpec, Launcher, Printing, Progress, WorkerFailure};

const ROLE: &str = "TSUMUJI_SILENCE_TEST_ROLE";
/// What a launcher of its own process launches.
const PROGRAM: &str = "TSUMUJI_SILENCE_TEST_PROGRAM";
/// Long enough for a busy machine, short enough to wait for.
const SILENCE: Duration = Duration::from_secs(2);

/// The test that a started process runs: there it becomes an agent or a launcher, and ends.
const ENTRY: &str = "silence::silent_programs_live";

/// What a started process does; it does not return to its test.
fn act_if_started() {
    match std::env::var(ROLE).as_deref() {
        Ok("agent") => {
            let code = i32::from(serve_agent().is_err());
            std::process::exit(code);
        }
        Ok("launcher") => {
            let program = std::env::var(PROGRAM).expect("a program");
            let mut launcher = Launcher::start(spec(&program)).expect("start");
            println!("{:?}", pids(&mut launcher));
            launcher.wait(LONG);
            std::process::exit(0);
        }
        _ => {}
    }
}

/// Two processes of `sh -c program`, each by its agent.
fn spec(program: &str) -> LaunchSpec {
    let via = format!("via = [\"env\", \"{ROLE}=agent\"]");
    let nodes = (0..2).map(|id| {
        let port = 7000 + id;
        format!("[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:127.0.0.1:{port}\"\n{via}\n")
    });
    let file = ClusterFile::parse(&nodes.collect::<String>(), Path::new("test.toml"));
    let own = std::env::current_exe().expect("own path");
    let entry = [ENTRY, "--exact", "--nocapture", "--test-threads=1"].map(str::to_owned);
    let mut agent = vec![own.to_str().expect("text").to_owned()];
    agent.extend(entry);
    let mut spec = LaunchSpec::new(2, ["sh", "-c", program]);
    spec.hosts = Some(Hosts {
        nodes: file.expect("sound").hosts().to_vec(),
        agent,
    });
    spec.name_prefix = "node".to_owned();
    spec.stdout = Printing::Lines;
    spec.silence = SILENCE;
    spec
}

/// Of the programs, once the agents have told them: until then a launcher has those of the agents.
fn pids(launcher: &mut Launcher) -> Vec<u32> {
    let begun = Instant::now();
    loop {
        let pids: Vec<u32> = launcher.pids().into_iter().map(|(_, pid)| pid).collect();
        if pids
            .iter()
            .all(|pid| parent(*pid).is_some_and(|agent| agent != std::process::id()))
        {
            return pids;
        }
        assert!(begun.elapsed() < LONG, "the agents do not answer");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// proc_pid_stat(5).
fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(1)?.parse().ok()
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(number as i32).expect("a process")
}

/// Fails the test if they stay; the bound only turns a hang into a failure.
fn until_gone(pids: &[u32]) {
    let begun = Instant::now();
    let runs = |number: &&u32| {
        // A zombie that its reaper has not looked at yet runs no more.
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).unwrap_or_default();
        let zombie = stat
            .rsplit_once(") ")
            .is_some_and(|(_, rest)| rest.starts_with('Z'));
        test_kill_process(pid(**number)).is_ok() && !zombie
    };
    while let Some(left) = pids.iter().find(runs) {
        assert!(begun.elapsed() < LONG, "{left} still runs");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// An agent that stops is noticed, and its host named; then all is ended, what the stopped agent started, too.
#[test]
fn stopped_agent_is_named() {
    let mut launcher = Launcher::start(spec("sleep 1000")).expect("start");
    let programs = pids(&mut launcher);
    let agent = parent(programs[1]).expect("it lives");
    kill_process(pid(agent), Signal::STOP).expect("stop");
    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("the launcher notices nothing");
    };
    assert!(
        matches!(failure, WorkerFailure::Silent { after, .. } if after == SILENCE),
        "{failure:?}"
    );
    let told = failure.to_string();
    assert!(
        told.starts_with("node 1 on pc1 (pid ")
            && told.contains("nothing was heard from its host for 2 s"),
        "{told}"
    );
    launcher.shutdown(Duration::from_millis(100));
    until_gone(&[programs[0], programs[1], agent]);
}

/// Agents whose launcher falls silent end what they started, also while they wait for it to take what the program prints.
#[test]
fn stopped_launcher_is_given_up() {
    for program in ["exec sleep 1000", "exec yes"] {
        let mut launcher = Stopped::start(program);
        let programs = launcher.programs();
        let agents: Vec<u32> = programs.iter().filter_map(|pid| parent(*pid)).collect();
        assert_eq!(agents.len(), 2);
        kill_process(pid(launcher.0.id()), Signal::STOP).expect("stop");
        until_gone(&programs);
        let mut all = agents;
        // They are the stopped launcher's children, which it cannot reap.
        all.retain(|agent| parent(*agent) == Some(launcher.0.id()));
        until_gone(&all);
    }
}

/// Nobody who only has nothing to say is taken for dead.
#[test]
fn silent_programs_live() {
    act_if_started();
    let mut spec = spec("sleep 8");
    // An agent that gets no processor for so long gives no sign of life either.
    spec.silence = 3 * SILENCE;
    spec.join_timeout = LONG;
    let mut launcher = Launcher::start(spec).expect("start");
    assert_eq!(launcher.wait(LONG), Progress::Finished);
}

/// A launcher in a process of its own; killed in the end.
struct Stopped(Child);

impl Stopped {
    fn start(program: &str) -> Self {
        let own = std::env::current_exe().expect("own path");
        let child = Command::new(own)
            .args([ENTRY, "--exact", "--nocapture", "--test-threads=1"])
            .env(ROLE, "launcher")
            .env(PROGRAM, program)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("spawn"))
    }

    /// The line that it prints; what its programs print is not read.
    fn programs(&mut self) -> Vec<u32> {
        let stdout = self.0.stdout.as_mut().expect("piped");
        for line in BufReader::new(stdout).lines() {
            let line = line.expect("text");
            let Some((_, list)) = line.split_once('[') else {
                continue;
            };
            let list = list.trim_end_matches(']').split(", ");
            return list.map(|pid| pid.parse().expect("a number")).collect();
        }
        panic!("the launcher says nothing");
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
