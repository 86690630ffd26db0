//! Real processes, one of which is killed without warning: they are this same test program, whose test [`ENTRY`] then
//! is a worker.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::common::LONG;
use tsumuji_collective::{CollectiveError, Collectives, Op, Table};
use tsumuji_node::{
    Endpoint, LaunchSpec, Launcher, LinkSpec, NodeId, Options, endpoint_from_env, report_error,
};

const ROLE: &str = "TSUMUJI_TEST_ROLE";
/// The test that a spawned process runs: there it becomes a worker, and ends.
const ENTRY: &str = "processes::killed_process_is_named_to_all";
const VICTIM: NodeId = NodeId(2);

fn options() -> Options {
    Options {
        keep_alive: Duration::from_millis(100),
        // Longer than a busy machine keeps a process waiting: nobody else may be taken for dead.
        dead_after: Duration::from_secs(3),
        ..Options::default()
    }
}

/// Operations of all kinds, again and again, until one fails; `meanwhile` is told the round. What it failed with, and what the
/// survivors can still do.
fn until_failure(endpoint: &mut Endpoint, mut meanwhile: impl FnMut(usize)) -> Result<(), String> {
    let mut collectives = Collectives::with_table(endpoint, Table::default());
    collectives.read_directly_from(0);
    let world = collectives.world();
    let start = Instant::now();
    for round in 0.. {
        meanwhile(round);
        let mut data = vec![1.0_f64; if round.is_multiple_of(2) { 3 } else { 40_000 }];
        let outcome = collectives
            .broadcast(endpoint, world, round % 4, &mut data)
            .and_then(|()| collectives.all_reduce(endpoint, world, &mut data, &Op::sum()))
            .and_then(|()| collectives.barrier(endpoint, world));
        match outcome {
            Ok(()) if start.elapsed() < LONG => {}
            Err(CollectiveError::MemberDead { member: VICTIM }) => break,
            other => return Err(format!("round {round}: {other:?}")),
        }
    }
    let survivors = [0, 1, 3].map(NodeId);
    let rest = collectives
        .group(endpoint, &survivors, 1)
        .map_err(|error| error.to_string())?;
    let mut sum = [u64::from(endpoint.me().0)];
    collectives
        .all_reduce(endpoint, rest, &mut sum, &Op::sum())
        .map_err(|error| error.to_string())?;
    if sum == [4] {
        Ok(())
    } else {
        Err(format!("sum {sum:?}"))
    }
}

/// Broadcasts from one root, of a long message and short ones, until one fails, and then what survivors can do.
fn stream_until_failure(
    endpoint: &mut Endpoint,
    root: usize,
    mut meanwhile: impl FnMut(usize),
) -> Result<(), String> {
    let mut collectives = Collectives::with_table(endpoint, Table::default());
    collectives.read_directly_from(0);
    let world = collectives.world();
    let start = Instant::now();
    for round in 0.. {
        meanwhile(round);
        let mut data = vec![
            round as u8;
            if round.is_multiple_of(4) {
                3_000_000
            } else {
                50
            }
        ];
        match collectives.broadcast(endpoint, world, root, &mut data) {
            Ok(()) if start.elapsed() < LONG => {
                assert!(data.iter().all(|byte| *byte == round as u8))
            }
            Err(CollectiveError::MemberDead { member: VICTIM }) => break,
            other => return Err(format!("round {round}: {other:?}")),
        }
    }
    let survivors = [0, 1, 3].map(NodeId);
    let rest = collectives
        .group(endpoint, &survivors, 1)
        .map_err(|error| error.to_string())?;
    let mut data = [if endpoint.me() == NodeId(3) { 7 } else { 0 }];
    collectives
        .broadcast(endpoint, rest, 2, &mut data)
        .and_then(|()| collectives.barrier(endpoint, rest))
        .map_err(|error| error.to_string())?;
    if data == [7] {
        Ok(())
    } else {
        Err(format!("{data:?}"))
    }
}

/// What a spawned process does; it does not return to its test.
fn work_if_spawned() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let outcome = endpoint_from_env(options())
        .map_err(|error| error.to_string())
        .and_then(|mut endpoint| {
            match role
                .strip_prefix("root ")
                .and_then(|root| root.parse().ok())
            {
                Some(root) => stream_until_failure(&mut endpoint, root, |_| {})?,
                None => until_failure(&mut endpoint, |_| {})?,
            }
            let _ = endpoint.close(LONG);
            Ok(())
        });
    if let Err(error) = outcome {
        report_error(&error);
        eprintln!("{error}");
        std::process::exit(3);
    }
    std::process::exit(0);
}

/// A process is killed in the middle of its work: all others are told its name and go on without it.
#[test]
fn killed_process_is_named_to_all() {
    work_if_spawned();
    for link in ["shm", "udp"] {
        with_victim(link, "member", |endpoint, kill| {
            until_failure(endpoint, |round| {
                if round == 20 {
                    kill();
                }
            })
        });
    }
}

/// So it is in the middle of broadcasts, of the root and of another one.
#[test]
fn killed_in_the_middle_of_broadcasts() {
    for root in [usize::from(VICTIM.0), 0, 1] {
        with_victim("shm", &format!("root {root}"), |endpoint, kill| {
            stream_until_failure(endpoint, root, |round| {
                if round == 20 {
                    kill();
                }
            })
        });
    }
}

/// Three processes beside this one, which is given the means to kill the victim.
fn with_victim(
    link: &str,
    role: &str,
    body: impl FnOnce(&mut Endpoint, &dyn Fn()) -> Result<(), String>,
) {
    let program = std::env::current_exe().expect("own path").into_os_string();
    let arguments = [ENTRY, "--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
    let mut spec = LaunchSpec::new(3, std::iter::once(program).chain(arguments));
    spec.link = link.parse::<LinkSpec>().expect("link");
    spec.with_self = true;
    spec.env.push((ROLE.into(), role.into()));
    spec.join_timeout = LONG;
    let mut launcher = Launcher::start(spec).expect("start");
    let mut endpoint = launcher
        .endpoint(options(), None, None, &|| false)
        .expect("endpoint");
    let pids = launcher.pids();
    let kill = || {
        let victim = pids
            .iter()
            .find(|(node, _)| *node == VICTIM)
            .expect("started");
        let pid = rustix::process::Pid::from_raw(victim.1 as i32).expect("a pid");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("kill");
    };
    let outcome = body(&mut endpoint, &kill);
    assert_eq!(outcome, Ok(()), "{role} over {link}");
    let _ = endpoint.close(LONG);
    let exits = launcher.wait_all(LONG);
    for exit in &exits {
        let code = exit.status.code();
        let wanted = (exit.node != VICTIM).then_some(0);
        assert_eq!(code, wanted, "{} over {link}", exit.name);
    }
    assert_eq!(exits.len(), 3);
}
