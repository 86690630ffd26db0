//! Several hosts: agents on loopback, reached through plain commands, and (as root) through network namespaces.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::common::{
    self, ENDLESS, PATIENCE, command, file, finish, free_ports, is_worker, json, pids_in, signal,
    start, testbed, text, tsumuji, wait_until_at_work, wait_until_deserted,
};

/// A hosts file of `nodes` processes on loopback; each is reached through the words `via`.
pub(crate) fn loopback(folder: &Path, nodes: u16, via: &str) -> String {
    let lines = free_ports(nodes).enumerate().map(|(id, port)| {
        let addr = format!("127.0.0.1:{port}");
        format!("[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:{addr}\"\nvia = {via}\n")
    });
    file(folder, "hosts.toml", lines.collect::<String>())
}

/// Processes whose command line or environment holds `mark`.
pub(crate) fn marked(mark: &str) -> Vec<u32> {
    let holds = |pid: u32, name: &str| {
        let bytes = std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        String::from_utf8_lossy(&bytes).contains(mark)
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| {
        *pid != std::process::id() && (holds(*pid, "cmdline") || holds(*pid, "environ"))
    })
    .collect()
}

/// Waits until no process holds the mark. The bound only turns a hang into a failure.
pub(crate) fn assert_all_gone(mark: &str) {
    let begun = Instant::now();
    while !marked(mark).is_empty() {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "still running: {:?}",
            marked(mark)
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Workers of other hosts solve together with the judge, which goes to where node 0 runs; a talkative shell on the way does no harm.
#[test]
fn solve_through_commands() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.npy");
    let talkative = "[\"sh\", \"-c\", \"echo welcome >&2; exec \\\"$@\\\"\", \"sh\"]";
    let noisy =
        "[\"sh\", \"-c\", \"test $# = 2 && echo Welcome to this host; exec \\\"$@\\\"\", \"sh\"]";
    for via in ["[]", "[\"env\"]", talkative, noisy] {
        let hosts = loopback(folder.path(), 3, via);
        let matrix = file(folder.path(), "A.mtx", common::tridiagonal(60));
        let (code, run) = json(&[
            "solve",
            &matrix,
            "--hosts",
            &hosts,
            "--output",
            output.to_str().unwrap(),
        ]);
        assert_eq!(code, 0, "{via}: {run}");
        assert_eq!((&run["workers"], &run["link"]), (&2.into(), &"udp".into()));
        let ones = vec![1.0; 60];
        assert!(common::distance(&common::read_npy(&output), &ones) < 1e-8);
        std::fs::remove_file(&output).unwrap();
    }
}

/// Several nodes of each host: they solve together, over shared memory within a host and UDP between.
#[test]
fn solve_on_slots() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.npy");
    let matrix = file(folder.path(), "A.mtx", common::tridiagonal(60));
    // Each process of a host takes a port, from its entry's on.
    let port = u32::from(free_ports(8).start);
    let entry = |id: u32| {
        let port = port + 4 * id;
        format!(
            "[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"udp:127.0.0.1:{port}\"\nvia = []\n"
        )
    };
    for (text, more) in [
        (entry(0) + &entry(1), ["--slots", "3"]),
        (
            entry(0) + "slots = 2\n" + &entry(1) + "slots = 4\n",
            ["--seed", "0"],
        ),
    ] {
        let hosts = file(folder.path(), "slots.toml", &text);
        let mut words = vec!["solve", &matrix, "--hosts", &hosts, "--output"];
        words.push(output.to_str().unwrap());
        let (code, run) = json(&[&words[..], &more].concat());
        assert_eq!(code, 0, "{more:?}: {run}");
        assert_eq!(
            (&run["workers"], &run["link"]),
            (&5.into(), &"shm+udp".into())
        );
        let ones = vec![1.0; 60];
        assert!(common::distance(&common::read_npy(&output), &ones) < 1e-8);
        std::fs::remove_file(&output).unwrap();
    }
}

/// Programs run on each host, in the launcher's folder, and what they print is tagged by name and host.
#[test]
fn launch_through_commands() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 3, "[\"env\"]");
    let output = tsumuji(&[
        "launch",
        "--hosts",
        &hosts,
        "--tag",
        "--",
        "sh",
        "-c",
        "echo I am $TSUMUJI_NODE of $TSUMUJI_NODES; pwd",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    let here = std::env::current_dir().unwrap();
    for node in 0..3 {
        let name = format!("node {node} on pc{node}: ");
        assert!(
            lines.contains(&format!("{name}I am {node} of 3\n")),
            "{lines}"
        );
        assert!(
            lines.contains(&format!("{name}{}\n", here.display())),
            "{lines}"
        );
    }
}

/// The exit code is that of the first program to fail on any host, the report names program, host, code and last words.
#[test]
fn failures_are_named_with_their_host() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 3, "[\"env\"]");
    let mark = format!("mark-{}-fail", std::process::id());
    let script = format!(
        "test $TSUMUJI_NODE = 1 || exec sh -c 'sleep 1000; : {mark}'; echo no such thing >&2; exit 7"
    );
    let output = tsumuji(&[
        "launch", "--hosts", &hosts, "--json", "--", "sh", "-c", &script,
    ]);
    assert_eq!(output.status.code(), Some(7), "{}", text(&output.stderr));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failure = run["failure"].as_str().unwrap();
    assert!(failure.starts_with("node 1 on pc1 (pid "), "{failure}");
    assert!(
        failure.ends_with("exited with code 7; it said last: no such thing"),
        "{failure}"
    );
    assert_all_gone(&mark);

    for (via, program, wanted) in [
        (
            "[\"/no/such/command\"]",
            "true",
            "node 0 on pc0 could not start: cannot run `/no/such/command`: No such file",
        ),
        (
            "[\"env\"]",
            "/no/such/program",
            "could not start: cannot run `/no/such/program`: No such file",
        ),
        (
            "[\"sh\", \"-c\", \"echo no route to pc >&2; exit 255\"]",
            "true",
            "exited with code 255; it said last: no route to pc",
        ),
    ] {
        let hosts = loopback(folder.path(), 2, via);
        let output = tsumuji(&["launch", "--hosts", &hosts, "--", program]);
        let complaint = text(&output.stderr);
        assert!(!output.status.success());
        assert!(complaint.contains(wanted), "{complaint}");
    }
}

/// A launcher that is killed, or interrupted, leaves nothing running on any host: neither programs nor what they started.
#[test]
fn nothing_outlives_its_launcher() {
    let folder = tempfile::tempdir().unwrap();
    for how in ["-KILL", "-INT", "-TERM"] {
        let hosts = loopback(folder.path(), 2, "[\"env\"]");
        let mark = format!("mark-{}{how}", std::process::id());
        let script =
            format!("sleep 1000 & trap '' TERM; echo up; sh -c 'sleep 1000; : {mark}'; : {mark}");
        let mut child = command(&["launch", "--hosts", &hosts, "--", "sh", "-c", &script])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .env("TSUMUJI_TEST_MARK", &mark)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        assert_eq!(lines.next().unwrap().unwrap(), "up");
        assert!(
            marked(&mark).len() >= 6,
            "launcher, agents, programs, and what they started"
        );
        signal(how, child.id());
        finish(child);
        assert_all_gone(&mark);
    }
}

/// When all workers are killed on their hosts one is named; so is a run that is interrupted. Nothing stays.
#[test]
fn killed_worker_of_a_host_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mark = format!("mark-{}-solve", std::process::id());
    for interrupted in [false, true] {
        let hosts = loopback(folder.path(), 3, "[\"env\"]");
        let child = command(&[&ENDLESS[..], &["--json", "--hosts", &hosts]].concat())
            .env("TSUMUJI_TEST_MARK", &mark)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let begun = Instant::now();
        let workers = loop {
            let workers: Vec<u32> = marked(&mark);
            let workers: Vec<u32> = workers.into_iter().filter(|&pid| is_worker(pid)).collect();
            if workers.len() == 2 {
                break workers;
            }
            assert!(begun.elapsed() < PATIENCE, "the workers do not start");
            std::thread::sleep(Duration::from_millis(10));
        };
        wait_until_at_work(&workers);
        if interrupted {
            signal("-INT", child.id());
        } else {
            workers.iter().for_each(|worker| signal("-KILL", *worker));
        }
        let output = finish(child);
        let complaint = text(&output.stderr);
        let code = if interrupted { 130 } else { 1 };
        assert_eq!(output.status.code(), Some(code), "{complaint}");
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        if interrupted {
            assert_eq!(run["reason"], "interrupted", "{run}");
        } else {
            assert_eq!(run["reason"], "worker_lost", "{run}");
            let is_named = |pid: &u32| complaint.contains(&format!("(pid {pid})"));
            assert!(
                complaint.contains(" on pc")
                    && workers.iter().any(is_named)
                    && complaint.contains("SIGKILL"),
                "{complaint}"
            );
        }
        assert_all_gone(&mark);
    }
}

/// What programs of other hosts print arrives whole, also as a flood; a reader that goes away ends them.
#[test]
fn floods_cross_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 2, "[\"env\"]");
    let output = tsumuji(&[
        "launch",
        "--hosts",
        &hosts,
        "--",
        "sh",
        "-c",
        "head -c 5000000 /dev/zero | tr '\\0' x; head -c 2000000 /dev/zero | tr '\\0' e >&2",
    ]);
    assert_eq!(output.status.code(), Some(0), "{}", output.stderr.len());
    assert_eq!(
        (output.stdout.len(), output.stderr.len()),
        (10_000_000, 4_000_000)
    );

    let mut child = start(&["launch", "--hosts", &hosts, "--", "yes"]);
    let mut first = [0; 2];
    let mut out = child.stdout.take().unwrap();
    out.read_exact(&mut first).unwrap();
    drop(out);
    let output = finish(child); // fails when it hangs
    assert_eq!(
        output.status.code(),
        Some(128 + 13),
        "{}",
        text(&output.stderr)
    );
}

/// Another host without `via` is reached by ssh, whose words a shell reads on the other side, wherever the program lies there.
#[test]
fn other_hosts_are_reached_by_ssh() {
    use std::os::unix::fs::{PermissionsExt, symlink};
    let folder = tempfile::tempdir().unwrap();
    // What ssh does with its words, without the way there.
    let ssh = "#!/bin/sh\ntest \"$1 $2\" = '-T pc-elsewhere' || exit 99\nshift 2\ncd /\nexec sh -c \"$*\"\n";
    let ssh = file(folder.path(), "ssh", ssh);
    std::fs::set_permissions(&ssh, std::fs::Permissions::from_mode(0o755)).unwrap();
    let there = folder.path().join("a folder with 'quotes'");
    symlink(env!("CARGO_BIN_EXE_tsumuji"), &there).unwrap();
    let hosts = file(
        folder.path(),
        "ssh.toml",
        "[[node]]\nid = 0\nhost = \"pc-elsewhere\"\naddr = \"udp:192.0.2.1:7000\"\n",
    );
    let path = format!(
        "{}:{}",
        folder.path().display(),
        std::env::var("PATH").unwrap()
    );
    let script = [
        "sh",
        "-c",
        "echo \"$1\" $TSUMUJI_LINK; exit 5",
        "x",
        "two  words; $HOME",
    ];
    let output = command(&[
        "launch",
        "--hosts",
        &hosts,
        "--program",
        there.to_str().unwrap(),
        "--",
    ])
    .args(script)
    .env("PATH", path)
    .output()
    .unwrap();
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(5), "{complaint}");
    assert_eq!(
        text(&output.stdout),
        "two  words; $HOME udp:192.0.2.1:7000\n"
    );
    assert!(complaint.contains("node 0 on pc-elsewhere"), "{complaint}");
}

/// What cannot be is refused in one line.
#[test]
fn impossible_hosts_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let hosts = loopback(folder.path(), 2, "[]");
    let far = file(
        folder.path(),
        "far.toml",
        "[[node]]\nid = 0\nhost = \"pc-elsewhere\"\naddr = \"udp:192.0.2.1:7000\"\n",
    );
    let generate = ["solve", "--generate", "poisson2d:5"];
    for (args, wanted) in [
        (
            &["--hosts", &far][..],
            "far.toml: node 0 is the one that this command runs on, and `pc-elsewhere` is another host",
        ),
        (
            &["--hosts", &hosts, "--link", "shm"],
            "hosts.toml: node 0 (`pc0`): link `shm` cannot be taken for all hosts",
        ),
        (
            &["--hosts", &hosts, "--link", "packet"],
            "hosts.toml: node 0 (`pc0`): link `packet` needs the field `interface`",
        ),
        (
            &["--hosts", &hosts, "--workers", "3"],
            "--workers and --hosts exclude each other",
        ),
        (
            &["--link", "packet:lo", "--workers", "2"],
            "link `packet:lo` joins hosts, one process each",
        ),
    ] {
        let output = tsumuji(&[&generate[..], args].concat());
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        assert!(
            complaint.lines().last().unwrap().contains(wanted),
            "{complaint}"
        );
    }
    let output = command(&["agent"]).stdin(Stdio::null()).output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(0),
        "a launcher that is gone is no failure"
    );
}

/// Updates of a solver leave as one datagram for all: between four hosts, with loss, and sealed.
#[test]
fn updates_are_multicast() {
    let Some(testbed) = testbed("updates_are_multicast", 4) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("lab.key");
    let key = key.to_str().unwrap();
    let (code, made) = json(&["key", key]);
    assert_eq!(code, 0, "{made}");
    let hosts = testbed.hosts_file();
    let hosts = hosts.to_str().unwrap();
    let mut solve = vec!["solve", "--generate", "dense:300", "--method", "relax"];
    solve.extend(["--rhs", "random", "--hosts", hosts, "--link"]);
    // Frames for each lap of a worker.
    let frames_a_lap = |run: &serde_json::Value| {
        let laps = run["laps"].as_array().unwrap().iter();
        let laps: f64 = laps.map(|laps| laps.as_f64().unwrap()).sum();
        run["wire_frames"].as_f64().unwrap() / laps
    };
    let each = ["--open", "--elements", "20", "--executor", "rtc"];
    let [shared, fanned] = ["udp+multicast", "udp"].map(|link| {
        let (code, run) = json(&[&solve[..], &[link], &each].concat());
        assert_eq!(code, 0, "{run}");
        frames_a_lap(&run)
    });
    // Each update once, not to two others.
    assert!(shared < 0.85 * fanned, "{shared} and {fanned} frames a lap");
    for more in [
        &["--open"][..],
        &["--open", "--loss", "0.1"],
        &["--key", key],
    ] {
        let (code, run) = json(&[&solve[..], &["udp+multicast"], more].concat());
        let link = run["link"].as_str();
        assert_eq!((code, link), (0, Some("udp+multicast")), "{more:?}: {run}");
        assert!(run["residual"].as_f64().unwrap() <= 1e-10);
    }
    testbed.down().unwrap();
}

/// One hosts file serves every link across two hosts; a killed launcher leaves nothing in either.
#[test]
fn namespaces_are_hosts() {
    let Some(testbed) = testbed("namespaces_are_hosts", 2) else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let text_of_hosts = std::fs::read_to_string(testbed.hosts_file()).unwrap();
    let hosts = file(folder.path(), "hosts.toml", &text_of_hosts);
    let solve = ["solve", "--generate", "poisson2d:20", "--hosts", &hosts];
    let key = folder.path().join("lab.key");
    let key = key.to_str().unwrap();
    let (code, made) = json(&["key", key]);
    assert_eq!((code, &made["file"]), (0, &key.into()), "{made}");
    for link in ["udp", "packet", "xdp"] {
        for more in [
            &["--open"][..],
            &["--open", "--loss", "0.2"],
            &["--key", key],
            &["--key", key, "--loss", "0.2"],
            &["--key", key, "--seal", "auth"],
        ] {
            let (code, run) = json(&[&solve[..], &["--link", link], more].concat());
            assert_eq!(
                (code, &run["link"]),
                (0, &link.into()),
                "{link} {more:?}: {run}"
            );
            assert!(run["residual"].as_f64().unwrap() <= 1e-10);
        }
        let (code, run) = json(&[&solve[..], &["--link", link]].concat());
        assert_eq!(code, 2, "without a word about safety: {run}");
        let complaint = run["error"].as_str().unwrap();
        assert!(complaint.contains("--key FILE") && complaint.contains("--open"));
    }
    // The file may name the key, beside itself.
    std::fs::write(&hosts, format!("key = \"lab.key\"\n{text_of_hosts}")).unwrap();
    let (code, run) = json(&solve);
    assert_eq!(code, 0, "{run}");
    let output = tsumuji(&[
        "launch",
        "--hosts",
        &hosts,
        "--link",
        "packet",
        "--",
        "sh",
        "-c",
        "echo $TSUMUJI_LINK; ip -br link show eth0",
    ]);
    let lines = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let mut macs = testbed.hosts().iter().map(|host| host.mac().to_string());
    assert!(
        lines.contains("packet:eth0\n") && macs.all(|mac| lines.contains(&mac)),
        "{lines}"
    );

    let mut child = start(&[
        "launch",
        "--hosts",
        &hosts,
        "--",
        "sh",
        "-c",
        "echo up; sleep 1000 & sleep 1000",
    ]);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    assert_eq!(lines.next().unwrap().unwrap(), "up");
    let hosts = testbed.hosts();
    assert!(hosts.iter().any(|host| !pids_in(host).is_empty()));
    signal("-KILL", child.id());
    finish(child);
    hosts.iter().for_each(wait_until_deserted);
}
