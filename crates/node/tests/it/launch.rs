//! Launches of real processes with endpoints: they are this same test program, whose test [`ENTRY`] then is a
//! worker.

use std::ffi::OsString;
use std::time::{Duration, Instant};

use crate::common::other_user::OtherUser;
use crate::common::{self, LONG};
use rustix::net::SocketType;
use tsumuji_node::{
    Channel, LaunchSpec, Launcher, LinkSpec, NodeId, Options, Progress, RecvError, SendError,
    endpoint_from_env, report_error,
};

const CHANNEL: Channel = Channel::ordered(0);
/// What starts in a tenth of a second, and is not kept from it, takes no such time.
const IMPATIENT: Duration = Duration::from_secs(5);
const ROLE: &str = "TSUMUJI_TEST_ROLE";

fn spec(nodes: usize, link: &str, role: &str) -> LaunchSpec {
    let program = std::env::current_exe().expect("own path").into_os_string();
    let arguments = [ENTRY, "--exact", "--nocapture", "--test-threads=1"].map(OsString::from);
    let mut spec = LaunchSpec::new(nodes, std::iter::once(program).chain(arguments));
    spec.link = link.parse::<LinkSpec>().expect("link");
    spec.env.push((ROLE.into(), role.into()));
    spec.join_timeout = LONG;
    spec
}

fn options() -> Options {
    Options {
        keep_alive: Duration::from_millis(100),
        dead_after: Duration::from_secs(2),
        ..Options::default()
    }
}

/// The test that a spawned process runs: there it becomes a worker, and ends.
const ENTRY: &str = "launch::ring_of_processes_completes";

/// What a spawned process does; it does not return to its test.
fn work_if_spawned() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let code = match act(&role) {
        Ok(()) => 0,
        Err(error) => {
            report_error(&*error);
            3
        }
    };
    std::process::exit(code);
}

fn act(role: &str) -> Result<(), Box<dyn std::error::Error>> {
    if role == "fail-before" && std::env::var("TSUMUJI_NODE")? == "1" {
        std::process::exit(7);
    }
    if role == "parent" {
        return parent();
    }
    let mut endpoint = endpoint_from_env(options())?;
    let nodes = endpoint.members().len() as u16;
    let (me, next) = (endpoint.me(), NodeId((endpoint.me().0 + 1) % nodes));
    match role {
        // A token of 10 kB round the ring, some laps.
        "ring" => {
            for lap in 0..20_u32 {
                let token = vec![lap as u8; 10_000];
                if me == NodeId(0) {
                    endpoint.send(next, CHANNEL, &token)?;
                }
                let got = endpoint.recv(LONG)?.ok_or("no token")?;
                if got.body != token {
                    return Err("a wrong token".into());
                }
                if me != NodeId(0) {
                    endpoint.send(next, CHANNEL, &token)?;
                }
            }
            let _ = endpoint.close(LONG);
            Ok(())
        }
        // Echoes until its peer leaves.
        "echo" | "fail-before" => loop {
            if let Some(message) = endpoint.recv(Duration::from_millis(5))? {
                if message.body == b"fail" {
                    return Err("told to fail\non two lines".into());
                }
                match endpoint.send(message.from, message.channel, &message.body) {
                    Ok(()) | Err(SendError::PeerDead { .. } | SendError::MessagesLost { .. }) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        },
        other => Err(format!("no role {other}").into()),
    }
}

/// A launcher that tells its workers' processes and then only waits to be killed.
fn parent() -> Result<(), Box<dyn std::error::Error>> {
    let mut launcher = Launcher::start(spec(2, "shm", "echo"))?;
    let pids: Vec<String> = launcher
        .pids()
        .iter()
        .map(|(_, pid)| pid.to_string())
        .collect();
    let path = std::env::var("TSUMUJI_TEST_PIDS")?;
    std::fs::write(format!("{path}.new"), pids.join(" "))?;
    std::fs::rename(format!("{path}.new"), path)?;
    launcher.wait(LONG);
    Ok(())
}

fn nothing_in_dev_shm() {
    let names = std::fs::read_dir("/dev/shm").map(|dir| {
        dir.flatten()
            .map(|entry| entry.file_name())
            .collect::<Vec<_>>()
    });
    let ours = names
        .unwrap_or_default()
        .into_iter()
        .filter(|name| name.to_string_lossy().contains("tsumuji"));
    assert_eq!(ours.collect::<Vec<_>>(), Vec::<OsString>::new());
}

fn is_gone(pid: u32) -> bool {
    std::fs::metadata(format!("/proc/{pid}")).is_err()
}

/// A ring of processes passes its token over every link, also when a fifth of the frames is dropped, and all end well.
#[test]
fn ring_of_processes_completes() {
    work_if_spawned();
    for (link, loss) in [
        ("shm", None),
        ("udp", None),
        ("udp", Some("0.2")),
        ("shm", Some("0.2")),
    ] {
        let mut spec = spec(4, link, "ring");
        spec.env
            .extend(loss.map(|loss| ("TSUMUJI_LOSS".into(), loss.into())));
        let mut launcher = Launcher::start(spec).expect("start");
        assert_eq!(
            launcher.wait(LONG),
            Progress::Finished,
            "over {link} with loss {loss:?}"
        );
        assert!(launcher.pids().iter().all(|(_, pid)| is_gone(*pid)));
    }
    nothing_in_dev_shm();
}

/// Another user who calls at the rendezvous without end does not keep the processes from meeting there.
#[test]
fn other_users_do_not_hold_up_a_launch() {
    common::other_user::act_if_spawned();
    let name = "launch::other_users_do_not_hold_up_a_launch";
    let prefix = "tsumuji-";
    let other_users: Vec<_> = (0..2)
        .filter_map(|_| OtherUser::call(name, SocketType::SEQPACKET, prefix))
        .collect();
    if other_users.is_empty() {
        return;
    }
    for _ in 0..5 {
        let mut spec = spec(4, "shm", "ring");
        spec.join_timeout = IMPATIENT;
        let mut launcher = Launcher::start(spec).expect("start");
        assert_eq!(launcher.wait(LONG), Progress::Finished);
    }
}

/// The parent takes part as node 0; a worker killed in the middle is named by signal and is dead for its peers in bounded time.
#[test]
fn killed_worker_is_named_and_dead() {
    for link in ["shm", "udp"] {
        let mut spec = spec(2, link, "echo");
        spec.with_self = true;
        let mut launcher = Launcher::start(spec).expect("start");
        let mut endpoint = launcher
            .endpoint(options(), None, None, &|| false)
            .expect("endpoint");
        assert_eq!(endpoint.name_of(NodeId(2)), "worker 2");
        for id in [NodeId(1), NodeId(2)] {
            endpoint.send(id, CHANNEL, b"hello").expect("send");
            assert_eq!(
                endpoint.recv(LONG).expect("recv").expect("echo").body,
                b"hello"
            );
        }
        assert_eq!(launcher.check(), None);
        let pid = launcher.pids()[1].1;
        let victim = rustix::process::Pid::from_raw(pid.cast_signed()).expect("pid");
        rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("kill");
        let Progress::Failed(failure) = launcher.wait(LONG) else {
            panic!("not noticed over {link}")
        };
        assert_eq!(
            failure.to_string(),
            format!("worker 2 (pid {pid}) died: killed by signal 9 (SIGKILL)")
        );
        let start = Instant::now();
        while !matches!(
            endpoint.try_send(NodeId(2), CHANNEL, b"?"),
            Err(SendError::PeerDead { .. })
        ) {
            let got: Result<_, RecvError> = endpoint.recv(Duration::from_millis(1));
            assert!(got.expect("recv").is_none());
            assert!(start.elapsed() < LONG, "death goes unnoticed over {link}");
        }
        endpoint
            .send(NodeId(1), CHANNEL, b"still here")
            .expect("send");
        assert_eq!(
            endpoint.recv(LONG).expect("recv").expect("echo").body,
            b"still here"
        );
        let pids = launcher.pids();
        drop(launcher);
        assert!(pids.iter().all(|(_, pid)| is_gone(*pid)), "over {link}");
    }
    nothing_in_dev_shm();
}

/// A worker's own error is told beside its exit code, on one line.
#[test]
fn workers_own_error_is_told() {
    let mut spec = spec(1, "shm", "echo");
    spec.with_self = true;
    let mut launcher = Launcher::start(spec).expect("start");
    let mut endpoint = launcher
        .endpoint(options(), None, None, &|| false)
        .expect("endpoint");
    endpoint.send(NodeId(1), CHANNEL, b"fail").expect("send");
    assert!(endpoint.flush(LONG).is_ok());
    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("not noticed")
    };
    let pid = launcher.pids()[0].1;
    assert_eq!(
        failure.to_string(),
        format!("worker 1 (pid {pid}) exited with code 3: told to fail; on two lines")
    );
}

/// A worker that dies before it joined fails the launch by name for those who wait, instead of hanging them.
#[test]
fn worker_that_dies_before_joining_fails_the_launch() {
    let mut spec = spec(3, "shm", "fail-before");
    spec.with_self = true;
    let mut launcher = Launcher::start(spec).expect("start");
    let error = launcher
        .endpoint(options(), None, None, &|| false)
        .expect_err("worker 1 is not there")
        .to_string();
    assert!(
        error.starts_with("worker 1 (pid ") && error.contains("exited with code 7"),
        "{error}"
    );
    launcher.shutdown(Duration::from_millis(100));
    assert!(launcher.pids().iter().all(|(_, pid)| is_gone(*pid)));
}

/// Workers die with their launcher, even when it is killed and can do nothing about it.
#[test]
fn workers_die_with_a_killed_launcher() {
    let path = std::env::temp_dir().join(format!("tsumuji-pids-{}", std::process::id()));
    let mut spec = spec(1, "shm", "parent");
    spec.env
        .push(("TSUMUJI_TEST_PIDS".into(), path.clone().into_os_string()));
    let mut outer = Launcher::start(spec).expect("start");
    let start = Instant::now();
    let pids = loop {
        if let Ok(text) = std::fs::read_to_string(&path) {
            break text;
        }
        assert!(
            start.elapsed() < LONG && outer.check().is_none(),
            "it does not start: {:?}",
            outer.check()
        );
        std::thread::sleep(Duration::from_millis(2));
    };
    std::fs::remove_file(&path).expect("remove");
    let pids: Vec<u32> = pids
        .split_whitespace()
        .map(|pid| pid.parse().expect("pid"))
        .collect();
    assert!(pids.len() == 2 && !pids.iter().any(|pid| is_gone(*pid)));
    let victim = rustix::process::Pid::from_raw(outer.pids()[0].1.cast_signed()).expect("pid");
    rustix::process::kill_process(victim, rustix::process::Signal::KILL).expect("kill");
    // They belong to nobody now; whoever reaps orphans here may take its time, but they do not run.
    let ended = |pid: &u32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        stat.rsplit_once(')')
            .is_none_or(|(_, rest)| rest.trim_start().starts_with(['Z', 'X']))
    };
    while !pids.iter().all(ended) {
        assert!(start.elapsed() < LONG, "workers outlive their launcher");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A process that nobody launched is told how to be launched.
#[test]
fn unlaunched_process_is_told_so() {
    if std::env::var_os("TSUMUJI_RENDEZVOUS").is_none()
        && std::env::var_os("TSUMUJI_CLUSTER").is_none()
    {
        let error = endpoint_from_env(options())
            .expect_err("not launched")
            .to_string();
        assert!(error.contains("tsumuji launch"), "{error}");
    }
}
