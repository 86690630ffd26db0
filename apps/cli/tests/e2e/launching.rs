//! What `tsumuji launch` gives to its programs: variables, signals, cores; and what it says of a mistyped command line.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::common::{assert_refused, command, finish, signal, text, tsumuji};
use crate::hosts::loopback;

/// The command lines of two launches of `script` by two processes: on this host, and on two hosts.
fn launches(folder: &Path, more: &[&str], script: &str) -> [Vec<String>; 2] {
    let hosts = loopback(folder, 2, "[\"env\", \"-i\", \"PATH=/usr/bin:/bin\"]");
    [["-n", "2"], ["--hosts", &hosts]].map(|place| {
        let words = [&["launch"], &place[..], more, &["--", "sh", "-c", script]].concat();
        words.into_iter().map(str::to_owned).collect()
    })
}

fn lines(output: &Output) -> Vec<String> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let mut lines: Vec<_> = text(&output.stdout).lines().map(str::to_owned).collect();
    lines.sort_unstable();
    lines
}

/// `-np` is the `-n` of other launchers, and stays what it is behind `--`.
#[test]
fn np_is_n() {
    let output = tsumuji(&["launch", "-np", "2", "--", "echo", "-np"]);
    assert_eq!(lines(&output), ["-np", "-np"]);
}

/// Programs of other hosts get the TSUMUJI variables of the launcher's environment, and those that `-x` names, as programs of this host do;
/// what the launcher sets wins over both.
#[test]
fn variables_reach_all_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo $TSUMUJI_TUNE,$TSUMUJI_LOSS,$TSUMUJI_SEED,$TSUMUJI_NODES,$TSUMUJI_CONGESTION,$ONE,$TWO,${HIDDEN-none}";
    let more = [
        "--seed",
        "7",
        "--loss",
        "0.5",
        "--congestion",
        "suci:7",
        "-x",
        "ONE",
        "-x",
        "TWO=2=2",
        "-x",
        "TSUMUJI_SEED=8",
    ];
    for words in launches(folder.path(), &more, script) {
        let mut command = command(&words);
        command
            .env("TSUMUJI_TUNE", "table.toml")
            .env("TSUMUJI_LOSS", "0.25");
        command
            .env("TSUMUJI_NODES", "99")
            .env("TSUMUJI_NODE", "98")
            .env("ONE", "1");
        let output = finish(command.stdout(Stdio::piped()).spawn().unwrap());
        assert_eq!(
            lines(&output),
            ["table.toml,0.5,7,2,suci:7,1,2=2,none"; 2],
            "{words:?}"
        );
    }
}

/// A key in the environment gives way to `--open`, on this host and on others.
#[test]
fn stated_security_replaces_what_is_inherited() {
    let folder = tempfile::tempdir().unwrap();
    let script = "echo ${TSUMUJI_KEY-none},${TSUMUJI_SEAL-none},$TSUMUJI_OPEN";
    for words in launches(folder.path(), &["--open"], script) {
        let mut command = command(&words);
        command
            .env("TSUMUJI_KEY", "lab.key")
            .env("TSUMUJI_SEAL", "auth");
        let output = finish(command.stdout(Stdio::piped()).spawn().unwrap());
        assert_eq!(lines(&output), ["none,none,1"; 2], "{words:?}");
    }
}

/// Variables that cannot be passed on are named, with what is accepted.
#[test]
fn impossible_variables_are_refused() {
    for (variable, wanted) in [
        (
            "NOT_SET_ANYWHERE",
            "not set here; write NOT_SET_ANYWHERE=VALUE",
        ),
        ("=1", "accepted are VAR and VAR=VALUE"),
        ("TSUMUJI_NODE=1", "the launch itself sets TSUMUJI_NODE"),
    ] {
        let words = ["launch", "-n", "1", "-x", variable, "--", "true"];
        assert_refused(&words, &["-x", wanted]);
    }
    let folder = tempfile::tempdir().unwrap();
    let long = "x".repeat(100_000);
    let more = [
        "-x",
        &format!("A={long}"),
        "-x",
        &format!("B={long}"),
        "-x",
        &format!("C={long}"),
    ];
    let [_, words] = launches(folder.path(), &more, "true");
    let output = tsumuji(&words);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("can be told to another host"),
        "{}",
        text(&output.stderr)
    );
}

/// SIGUSR1 and SIGUSR2 reach every program, on this host and on others.
#[test]
fn user_signals_reach_all() {
    let folder = tempfile::tempdir().unwrap();
    let script = "trap 'echo one' USR1; trap 'echo two; exit 0' USR2; echo up; while :; do read -t 1 x < /dev/zero; done";
    let script = script.replace("read -t 1 x < /dev/zero", "sleep 0.05 || :");
    for words in launches(folder.path(), &[], &script) {
        let mut child = command(&words).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut expect = |word: &str| {
            for _ in 0..2 {
                assert_eq!(said.next().unwrap().unwrap(), word, "{words:?}");
            }
        };
        expect("up");
        signal("-USR1", child.id());
        expect("one");
        signal("-USR2", child.id());
        expect("two");
        assert!(finish(child).status.success());
    }
}

/// Number of cores that this process may use; threads of one core are in one list of the kernel's.
fn cores() -> usize {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let list = |cpu: usize| {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        std::fs::read_to_string(path).unwrap_or_else(|_| cpu.to_string())
    };
    let cpus = (0..rustix::thread::CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu));
    cpus.map(list).collect::<BTreeSet<_>>().len()
}

/// `--bind core` gives each program a core of its own, if its host allows so many, and says so if not; without it nothing is bound.
#[test]
fn programs_are_bound_to_cores() {
    let folder = tempfile::tempdir().unwrap();
    let script = "grep Cpus_allowed_list /proc/self/status";
    let allowed = cores();
    for (index, words) in launches(folder.path(), &["--bind", "core"], script)
        .into_iter()
        .enumerate()
    {
        let output = tsumuji(&words);
        let bound = lines(&output);
        // Each of the two hosts of the file has one node.
        let fit = index == 1 || allowed >= 2;
        let single = bound.iter().all(|line| !line.contains(['-', ',']));
        assert!(single || !fit, "{bound:?}");
        assert!(index == 1 || !fit || bound[0] != bound[1], "{bound:?}");
        let said = text(&output.stderr);
        assert_eq!(said.is_empty(), fit, "{said}");
        assert!(fit || said.starts_with("not bound to cores: "), "{said}");
    }
    let free = Command::new("grep")
        .args(["Cpus_allowed_list", "/proc/self/status"])
        .output()
        .unwrap();
    let [words, _] = launches(folder.path(), &[], script);
    assert_eq!(lines(&tsumuji(&words)), [text(&free.stdout).trim(); 2]);

    // More programs than cores: one line for each host.
    let port = 36_000 + std::process::id() % 1_000 * 8;
    let entry = format!(
        "[[node]]\nid = 0\nhost = \"pc0\"\naddr = \"udp:127.0.0.1:{port}\"\nvia = []\nslots = 2\n"
    );
    let hosts = crate::common::file(folder.path(), "slots.toml", entry);
    for place in [["-n", "2"], ["--hosts", &hosts]] {
        let mut taskset = Command::new("taskset");
        taskset.args([
            "-c",
            "0",
            env!("CARGO_BIN_EXE_tsumuji"),
            "launch",
            "--bind",
            "core",
        ]);
        let output = taskset.args(place).args(["--", "true"]).output().unwrap();
        assert!(output.status.success());
        let wanted = "not bound to cores: 2 processes, but 1 allowed on this host\n";
        assert!(
            text(&output.stderr).ends_with(wanted),
            "{}",
            text(&output.stderr)
        );
        assert_eq!(text(&output.stderr).lines().count(), 1);
    }
}

/// A user who forgets the `--` is shown the whole line.
#[test]
fn missing_dashes_are_hinted_at() {
    let output = tsumuji(&["launch", "-np", "2", "./ring", "-v"]);
    assert_eq!(output.status.code(), Some(2));
    let complaint = text(&output.stderr);
    let wanted = "write `--` before the program: tsumuji launch -n 2 -- ./ring -v\n";
    assert!(complaint.ends_with(wanted), "{complaint}");
    // A mistyped option is another mistake.
    let output = tsumuji(&["launch", "-n", "2", "--tags", "--", "./ring"]);
    assert!(
        !text(&output.stderr).contains("write `--`"),
        "{}",
        text(&output.stderr)
    );
}
