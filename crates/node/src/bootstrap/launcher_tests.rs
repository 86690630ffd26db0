//! Launches of real processes that never join: how they fail, and that no process stays.

use super::*;

const LONG: Duration = Duration::from_secs(30);

fn sh(nodes: usize, script: &str) -> LaunchSpec {
    let mut spec = LaunchSpec::new(nodes, ["/bin/sh", "-c", script]);
    spec.link = LinkSpec::Udp(None); // no shared memory is needed for these
    spec
}

/// Whether a process is gone, or dead and not reaped yet.
fn is_gone(pid: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{pid}/stat")) {
        Err(_) => true,
        Ok(stat) => stat
            .rsplit_once(')')
            .is_some_and(|(_, rest)| rest.trim_start().starts_with(['Z', 'X'])),
    }
}

/// Polls for a change that the kernel makes; the time limit only turns a hang into a failure.
fn eventually(mut condition: impl FnMut() -> bool) -> bool {
    let start = Instant::now();
    while start.elapsed() < LONG {
        if condition() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    false
}

/// A program that does not exist is named, with its worker.
#[test]
fn missing_program_is_named() {
    let error = Launcher::start(LaunchSpec::new(2, ["/no/such/program"]))
        .expect_err("cannot start")
        .to_string();
    assert!(
        error.starts_with("worker 0 could not start: cannot run `/no/such/program`: No such file"),
        "{error}"
    );
}

/// Programs that use no endpoint may be launched, and end well.
#[test]
fn ordinary_programs_run() {
    let mut launcher = Launcher::start(sh(3, "test $TSUMUJI_NODES = 3")).expect("start");
    assert_eq!(launcher.wait(LONG), Progress::Finished);
    let exits = launcher.wait_all(LONG);
    assert!(
        exits.len() == 3 && exits.iter().all(WorkerExit::success),
        "{exits:?}"
    );
}

/// The first worker that exits with an error is named with its code; the others are ended by `shutdown`.
#[test]
fn early_exit_is_named_and_others_end() {
    let script = "if [ $TSUMUJI_NODE = 1 ]; then exit 3; fi; sleep 1000";
    let mut launcher = Launcher::start(sh(3, script)).expect("start");
    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("no failure")
    };
    let pid = launcher.pids()[1].1;
    assert_eq!(
        failure.to_string(),
        format!("worker 1 (pid {pid}) exited with code 3")
    );
    assert_eq!(
        launcher.check().as_ref().map(WorkerFailure::name),
        Some("worker 1")
    );
    launcher.shutdown(LONG);
    let exits = launcher.exits();
    assert_eq!(exits.len(), 3);
    assert!(
        exits[1..]
            .iter()
            .all(|exit| exit.to_string().contains("SIGTERM")),
        "{exits:?}"
    );
    assert!(launcher.pids().iter().all(|(_, pid)| is_gone(*pid)));
}

/// A worker killed from outside is named with the signal.
#[test]
fn killed_worker_is_named() {
    let mut launcher = Launcher::start(sh(2, "sleep 1000")).expect("start");
    let pid = launcher.pids()[1].1;
    rustix::process::kill_process(pid_of(pid), rustix::process::Signal::KILL).expect("kill");
    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("no failure")
    };
    let line = failure.to_string();
    assert!(
        line.starts_with(&format!(
            "worker 1 (pid {pid}) died: killed by signal 9 (SIGKILL)"
        )),
        "{line}"
    );
}

/// A worker that ignores TERM is killed after the grace, with its children; also when the launcher is only dropped.
#[test]
fn stubborn_workers_and_their_children_are_killed() {
    let dir = std::env::temp_dir().join(rendezvous::random_name().expect("name"));
    std::fs::create_dir(&dir).expect("dir");
    let script = format!(
        "trap '' TERM; sleep 1000 & echo $! > {0}/$TSUMUJI_NODE.new; mv {0}/$TSUMUJI_NODE.new {0}/$TSUMUJI_NODE; wait; sleep 1000",
        dir.display()
    );
    let launcher = Launcher::start(sh(2, &script)).expect("start");
    let grandchild = |node: u16| {
        std::fs::read_to_string(dir.join(node.to_string()))
            .ok()?
            .trim()
            .parse::<u32>()
            .ok()
    };
    assert!(eventually(
        || grandchild(0).is_some() && grandchild(1).is_some()
    ));
    let mut pids: Vec<u32> = launcher.pids().iter().map(|(_, pid)| *pid).collect();
    pids.extend([grandchild(0), grandchild(1)].into_iter().flatten());
    assert!(pids.len() == 4 && !pids.iter().any(|pid| is_gone(*pid)));
    drop(launcher);
    assert!(pids.iter().all(|pid| eventually(|| is_gone(*pid))));
    std::fs::remove_dir_all(&dir).expect("remove");
}

/// If a process waits and one worker never reports, that worker is named with the time it had.
#[test]
fn silent_worker_is_named() {
    let mut spec = sh(2, "sleep 1000");
    spec.with_self = true;
    spec.join_timeout = Duration::from_millis(200);
    let mut launcher = Launcher::start(spec).expect("start");
    let error = launcher
        .endpoint(Options::default(), None, None, &|| false)
        .expect_err("nobody joins")
        .to_string();
    assert!(
        error.starts_with("worker 1 (pid ") && error.contains("did not report within 0.2 s"),
        "{error}"
    );
}

/// If a process waits and one worker ends well without joining, that is a failure, too.
#[test]
fn worker_that_ends_without_joining_is_named() {
    let mut spec = sh(1, "exit 0");
    spec.with_self = true;
    let mut launcher = Launcher::start(spec).expect("start");
    let error = launcher
        .endpoint(Options::default(), None, None, &|| false)
        .expect_err("nobody joins")
        .to_string();
    assert!(
        error.contains("exited with code 0 (before it joined the others"),
        "{error}"
    );
}

/// A worker's report is shown with its exit code. Foreign messages and broken packets change nothing.
#[test]
fn reported_errors_are_told() {
    let spec = sh(2, "sleep 1000");
    let name = rendezvous::random_name().expect("name");
    let listener = rendezvous::listen(&name).expect("listen");
    let (shared, wake) = (
        Arc::new(Shared::default()),
        Arc::new(rustix::event::eventfd(0, EventfdFlags::NONBLOCK).expect("eventfd")),
    );
    let output = Output::start(Arc::clone(&wake)).expect("thread");
    let keeper = Keeper::new(listener, None, None, LONG, output, None);
    let orders = (0..2)
        .map(|node| order(&spec, node, 2, &name, &spec.link, None))
        .collect();
    let thread = {
        let (shared, wake) = (Arc::clone(&shared), Arc::clone(&wake));
        std::thread::spawn(move || keeper.run(orders, &wake, &shared))
    };
    drop(shared.wait(None, |state| state.spawned));
    let mut launcher = Launcher {
        admits: false,
        offer: None,
        shared,
        wake,
        keeper: Some(thread),
        own: None,
        congestion: None,
        link: LinkSpec::Shm,
        _meeting: None,
    };

    let unknown = rendezvous::connect(&name).expect("connect");
    rustix::net::send(&unknown, b"\x00\xff{]", rustix::net::SendFlags::NOSIGNAL).expect("send");
    let bold = rendezvous::connect(&name).expect("connect");
    let hello = rendezvous::FromWorker::Hello {
        version: rendezvous::VERSION,
        node: 7,
        pid: 1,
        addr: None,
    };
    rendezvous::send(bold.as_fd(), &hello, None).expect("send");
    let worker = rendezvous::connect(&name).expect("connect");
    let failed = rendezvous::FromWorker::Failed {
        node: 1,
        error: "x.mtx: line 3\nis no number\x1b".into(),
    };
    rendezvous::send(worker.as_fd(), &failed, None).expect("send");

    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("no failure")
    };
    let pid = launcher.pids()[1].1;
    assert_eq!(
        failure.to_string(),
        format!("worker 1 (pid {pid}) failed: x.mtx: line 3; is no number ")
    );
}

/// Impossible numbers of processes are refused before anything starts.
#[test]
fn impossible_launches_are_refused() {
    assert!(matches!(
        Launcher::start(sh(0, "true")),
        Err(LaunchError::Nodes { nodes: 0, .. })
    ));
    assert!(matches!(
        Launcher::start(sh(100_000, "true")),
        Err(LaunchError::Nodes { .. })
    ));
    assert!(matches!(
        Launcher::start(LaunchSpec::new(1, Vec::<OsString>::new())),
        Err(LaunchError::NoCommand)
    ));
    let mut spec = sh(10, "true");
    spec.link = "udp:127.0.0.1:65530".parse().expect("link");
    assert!(matches!(
        Launcher::start(spec),
        Err(LaunchError::Ports { nodes: 10, .. })
    ));
}

/// Two processes on loopback, reached by the command `via` and run by the agents `agent`.
fn far(via: &str, agent: &[&str]) -> LaunchSpec {
    let node = |id: u16| {
        format!(
            "[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:127.0.0.1:{}\"\nvia = {via}\n",
            7000 + id
        )
    };
    let text = node(0) + &node(1);
    let file = crate::ClusterFile::parse(&text, Path::new("lab.toml")).expect("sound");
    let mut spec = sh(0, "true");
    spec.hosts = Some(Hosts {
        nodes: file.hosts().to_vec(),
        agent: agent.iter().map(ToString::to_string).collect(),
    });
    spec
}

/// A command that reaches no agent is named after the time it had, even if no process waits for the program.
#[test]
fn silent_host_is_named() {
    let mut spec = far("[\"env\"]", &["sleep", "1000"]);
    spec.join_timeout = Duration::from_millis(200);
    let mut launcher = Launcher::start(spec).expect("start");
    let Progress::Failed(failure) = launcher.wait(LONG) else {
        panic!("no failure")
    };
    let line = failure.to_string();
    let pids = launcher.pids();
    let start = format!(
        "worker 0 on pc0 (pid {}): `env` leads to no agent within 0.2 s",
        pids[0].1
    );
    assert!(line.starts_with(&start), "{line}");
    drop(launcher);
    assert!(pids.iter().all(|(_, pid)| is_gone(*pid)));
}

/// A command that prints without being an agent is reported as such, and so is an agent that sends garbage after its greeting.
#[test]
fn garbled_agents_are_named() {
    for script in [
        "printf 'tsumuji agent 5\\nnonsense'; sleep 1000",
        "yes 'a shell that never stops talking'",
        "printf 'tsumuji agent 5\\n\\005\\0\\0\\0\\0null'; sleep 1000",
    ] {
        let mut launcher = Launcher::start(far("[]", &["sh", "-c", script])).expect("start");
        let Progress::Failed(failure) = launcher.wait(LONG) else {
            panic!("no failure")
        };
        let line = failure.to_string();
        assert!(
            line.contains("its agent speaks another language"),
            "{script}: {line}"
        );
        let pids = launcher.pids();
        drop(launcher);
        assert!(pids.iter().all(|(_, pid)| is_gone(*pid)), "{script}");
    }
}

fn pid_of(pid: u32) -> rustix::process::Pid {
    rustix::process::Pid::from_raw(pid.cast_signed()).expect("not 0")
}
