//! Nodes that wait for others say for whom, and why they may be missing.

use std::io::{BufRead, BufReader, Lines};
use std::process::{Child, ChildStderr, Command, Stdio};

use crate::common::{command, file, free_ports, signal, testbed, text, tsumuji};
use crate::hosts::loopback;
use tsumuji_testbed::Impairment;

/// A solve as node `id`, which is ended with the test.
struct Node(Child, Lines<BufReader<ChildStderr>>);

impl Node {
    fn start(hosts: &str, more: &[&str]) -> Self {
        let words = [
            &["solve", "--generate", "poisson2d:20", "--hosts", hosts],
            more,
        ]
        .concat();
        let mut command = command(&words);
        command.stdout(Stdio::piped());
        Self::spawn(command)
    }

    fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let said = BufReader::new(child.stderr.take().unwrap()).lines();
        Self(child, said)
    }

    /// What it says of whom it waits for, `count` times.
    fn waits(&mut self, count: usize) -> Vec<String> {
        let waits = self
            .1
            .by_ref()
            .map(Result::unwrap)
            .filter_map(|line| Some(line.strip_prefix("waiting for ")?.to_owned()));
        let waits: Vec<_> = waits.take(count).collect();
        assert_eq!(waits.len(), count, "it ended: {waits:?}");
        waits
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Of a node that was not started, of one with another key, one without and one with the other seal, it is told who and why, again and again, by both
/// sides; the judge can be interrupted meanwhile, and a node that comes later is met.
#[test]
fn missing_nodes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let keys = ["a", "b"].map(|name| folder.path().join(name).to_str().unwrap().to_owned());
    for key in &keys {
        assert!(tsumuji(&["key", key]).status.success());
    }
    let key = |index: usize| vec!["--key", keys[index].as_str()];
    let cases = [
        (key(0), None, "nothing runs at that port"),
        (
            key(0),
            Some(key(1)),
            "frames came with another key: all nodes need the same key file",
        ),
        (
            key(0),
            Some(Vec::new()),
            "frames came without a seal: that node has no key",
        ),
        (
            Vec::new(),
            Some(key(0)),
            "frames came sealed or damaged: this node has no key",
        ),
        (
            key(0),
            Some([&key(0)[..], &["--seal", "auth"]].concat()),
            "frames came sealed in the other mode",
        ),
    ];
    // Each says nothing for seconds: side by side.
    std::thread::scope(|scope| {
        for (index, (ours, theirs, wanted)) in cases.into_iter().enumerate() {
            let own = folder.path().join(format!("{index}"));
            std::fs::create_dir(&own).unwrap();
            scope.spawn(move || {
                let hosts = loopback(&own, 2, "[]");
                let theirs =
                    theirs.map(|more| Node::start(&hosts, &[&["--id", "1"], &more[..]].concat()));
                let mut judge = Node::start(&hosts, &[&["--id", "0"], &ours[..]].concat());
                let line = judge.waits(1).remove(0);
                assert!(
                    line.starts_with("pc1 at 127.0.0.1:") && line.contains(wanted),
                    "{line}"
                );
                if let Some(mut theirs) = theirs {
                    let line = theirs.waits(1).remove(0);
                    assert!(line.starts_with("pc0 at 127.0.0.1:"), "{line}");
                }
                signal("-INT", judge.0.id());
                assert_eq!(judge.0.wait().unwrap().code(), Some(130));
            });
        }
    });
    let hosts = loopback(folder.path(), 2, "[]");
    let mut worker = Node::start(&hosts, &["--id", "1"]);
    let waits = worker.waits(2);
    assert!(
        waits.iter().all(|line| line.ends_with(" s so far")),
        "{waits:?}"
    );
    let output = tsumuji(&[
        "solve",
        "--generate",
        "poisson2d:20",
        "--hosts",
        &hosts,
        "--id",
        "0",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
}

/// A wait ends with an error if a limit is stated, which only nodes of several hosts need.
#[test]
fn waits_end_at_a_stated_limit() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 2, "[]");
    let solve = ["solve", "--generate", "poisson2d:20"];
    let limited = ["--join-timeout", "0.2"];
    let output = tsumuji(&[&solve[..], &["--hosts", &hosts, "--id", "1"], &limited].concat());
    assert!(!output.status.success());
    let said = text(&output.stderr);
    let wanted = "not all nodes have met within 0.2 s: pc0 at 127.0.0.1:";
    assert!(said.contains(wanted), "{said}");
    let alone = tsumuji(&[&solve[..], &limited].concat());
    assert_eq!(alone.status.code(), Some(2));
}

/// A launch says which of its processes are waited for, on this host and on others, why, and for how long at most; it can be interrupted meanwhile.
#[test]
fn launches_that_wait_say_so() {
    let folder = tempfile::tempdir().unwrap();
    let mute = loopback(folder.path(), 1, "[\"sh\", \"-c\", \"cat >/dev/null\"]");
    let program = env!("CARGO_BIN_EXE_tsumuji");
    let script = "test $TSUMUJI_NODE = 0 && exec \"$0\" worker; exec sleep 1000";
    let far = vec!["launch", "--hosts", &mute, "--", "true"];
    let near = vec!["launch", "-n", "2", "--", "sh", "-c", script, program];
    let cases = [
        (
            far,
            "node 0 on pc0 (pid ",
            ": `sh` leads to no agent yet)",
            30,
        ),
        (near, "node 1 (pid ", " has opened no endpoint yet)", 10),
    ];
    // Each says nothing for seconds: side by side.
    std::thread::scope(|scope| {
        for (words, name, reason, limit) in cases {
            scope.spawn(move || {
                let mut launch = Node::spawn(command(&words));
                let line = launch.waits(1).remove(0);
                let until = format!(" s so far, {limit} s at most");
                assert!(line.starts_with(name) && line.ends_with(&until), "{line}");
                // Nobody else is waited for.
                assert!(line.contains(&format!("{reason}; ")), "{line}");
                assert_eq!(line.matches("(pid ").count(), 1, "{line}");
                signal("-INT", launch.0.id());
                assert_eq!(launch.0.wait().unwrap().code(), Some(130));
            });
        }
    });
}

/// A program that is to join says where it asks, and that nothing runs there.
#[test]
fn joins_in_vain_are_told() {
    let port = free_ports(1).next().unwrap();
    let to = format!("udp:127.0.0.1:{port}");
    let program = env!("CARGO_BIN_EXE_tsumuji");
    let mut joining = Node::spawn(command(&["join", "--to", &to, "--", program, "worker"]));
    let line = joining.waits(1).remove(0);
    assert!(
        line.starts_with(&format!("node 0 at 127.0.0.1:{port} "))
            && line.contains("nothing runs at that port"),
        "{line}"
    );
}

/// A host that does not exist is told apart from one without the program.
#[test]
fn missing_hosts_are_told() {
    let Some(testbed) = testbed("missing_hosts_are_told", 2) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let hosts = std::fs::read_to_string(testbed.hosts_file()).unwrap();
    let hosts = hosts.replace("10.77.0.2", "10.77.0.99");
    let hosts = file(folder.path(), "hosts.toml", hosts);
    let program = env!("CARGO_BIN_EXE_tsumuji");
    let name = testbed.name().as_str();
    let inside = [
        "testbed", "exec", "--name", name, "0", "--", program, "solve", "--open",
    ];
    let more = ["--generate", "poisson2d:20", "--hosts", &hosts, "--id", "0"];
    let command = command(&[&inside[..], &more].concat());
    let mut judge = Node::spawn(command);
    let line = judge.waits(1).remove(0);
    assert!(
        line.contains("10.77.0.99:7000 (there is no such host, or it is off)"),
        "{line}"
    );
}

/// So is a node that the launcher has started and the network does not reach.
#[test]
fn silent_networks_are_told() {
    let Some(testbed) = testbed("silent_networks_are_told", 2) else {
        return;
    };
    let all = Impairment {
        loss: 1.0,
        ..Impairment::NONE
    };
    testbed.impair(&[1], all).unwrap();
    let hosts = testbed.hosts_file();
    let mut judge = Node::start(hosts.to_str().unwrap(), &["--open"]);
    let line = judge.waits(1).remove(0);
    assert!(line.starts_with("worker 1 on "), "{line}");
    assert!(line.contains(" at 10.77.0.2:7000 ("), "{line}");
}
