//! DPDK devices through the real program: memif between two processes of this host, AF_PACKET and AF_XDP between network
//! namespaces (as root). Where DPDK is not, or the rights are missing, each test says so.

use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    ENDLESS, PATIENCE, command, finish, is_worker, json, pids_in, signal, skipped, start, testbed,
    text, tsumuji, wait_for_children, wait_until_at_work,
};
use tsumuji_testbed::Testbed;

const MEMIF: &str = "dpdk:net_memif";

/// Whether no DPDK device can be opened here; says why.
pub(crate) fn lacking(test: &str) -> bool {
    let (_, found) = json(&["doctor"]);
    let links = found["links"].as_array().cloned().unwrap_or_default();
    let dpdk = links.iter().find(|link| link["name"] == "dpdk");
    let dpdk = dpdk.expect("doctor tries dpdk");
    if dpdk["works"] == true {
        return false;
    }
    skipped(test, &format!("no DPDK here: {}", dpdk["detail"]));
    true
}

/// What a process of DPDK's could leave: its folder, files of hugepages, memory, sockets of ours.
fn leftovers(pids: &[u32]) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["/var/run/dpdk", "/tmp/dpdk", "/dev/hugepages", "/dev/shm"] {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.path().display().to_string());
        let ours = |name: &String| {
            pids.iter()
                .any(|pid| name.ends_with(&format!("tsumuji-{pid}")))
        };
        found.extend(names.filter(ours));
    }
    found
}

/// What two processes over memif meet by is no name that every user of this host may call, and is gone with them.
#[test]
fn memif_meets_where_nobody_else_may() {
    if lacking("memif_meets_where_nobody_else_may") {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut run = command(&[&ENDLESS[..], &["--workers", "1", "--link", MEMIF]].concat());
    run.env("TMPDIR", folder.path())
        .env_remove("XDG_RUNTIME_DIR")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let run = run.spawn().unwrap();
    let pid = run.id();
    wait_until_at_work(&wait_for_children(pid, 1));
    let list = std::fs::read("/proc/net/unix").unwrap();
    let list = String::from_utf8_lossy(&list).into_owned();
    let ours = || {
        std::fs::read_dir(folder.path())
            .unwrap()
            .map(Result::unwrap)
    };
    let place = ours().next().expect("a folder");
    let (mode, path) = (place.metadata().unwrap().mode(), place.path());
    signal("-TERM", pid);
    finish(run);
    assert_eq!(mode & 0o777, 0o700);
    let socket = path.join("memif").display().to_string();
    assert!(
        list.lines()
            .any(|line| line.ends_with(&format!(" {socket}")))
    );
    assert_eq!(ours().count(), 0);
}

/// Solving, ping-pong and burst over memif: the launcher gives out the roles, the solution is verified, no word about safety is needed.
#[test]
fn memif_joins_two_processes() {
    if lacking("memif_joins_two_processes") {
        return;
    }
    for link in [MEMIF, "dpdk:net_memif,bsize=9216,rsize=8"] {
        let solve = [
            "solve",
            "--generate",
            "poisson2d:20",
            "--workers",
            "1",
            "--link",
            link,
        ];
        for more in [&[][..], &["--loss", "0.1"]] {
            let (code, run) = json(&[&solve[..], more].concat());
            assert_eq!((code, &run["link"]), (0, &link.into()), "{run}");
            assert!(run["residual"].as_f64().expect("verified") <= 1e-10);
        }
        for kind in ["pingpong", "burst"] {
            let args = [
                "bench",
                kind,
                "--link",
                link,
                "--size",
                "64,20K",
                "--iterations",
                "300",
                "--no-spin",
            ];
            let (code, run) = json(&args);
            assert_eq!(code, 0, "{run}");
            assert_eq!(run["results"].as_array().map(Vec::len), Some(2));
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("x.sock");
    let link = format!(
        "{MEMIF},socket={},socket-abstract=no,id=7",
        socket.display()
    );
    let output = tsumuji(&[
        "launch",
        "-n",
        "2",
        "--link",
        &link,
        "--",
        "sh",
        "-c",
        "echo $TSUMUJI_LINK",
    ]);
    let lines = text(&output.stdout);
    for role in ["server", "client"] {
        assert!(lines.contains(&format!("{link},role={role}\n")), "{lines}");
    }
}

/// A worker that is killed is named, and neither it nor the judge leaves anything.
#[test]
fn killed_worker_is_named() {
    if lacking("killed_worker_is_named") {
        return;
    }
    let child = start(&[&ENDLESS[..], &["--workers", "1", "--link", MEMIF, "--json"]].concat());
    let judge = child.id();
    let workers = wait_for_children(judge, 1);
    wait_until_at_work(&workers);
    signal("-KILL", workers[0]);
    let output = finish(child);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{complaint}");
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(run["reason"], "worker_lost", "{run}");
    let wanted = format!("worker 1 (pid {})", workers[0]);
    assert!(
        complaint.contains(&wanted) && complaint.contains("SIGKILL"),
        "{complaint}"
    );
    assert_eq!(leftovers(&[judge, workers[0]]), [""; 0]);
}

/// Devices that cannot join what is asked for, or are not there, are refused in one line that says what can.
#[test]
fn impossible_devices_are_refused() {
    let solve = ["solve", "--generate", "poisson2d:5", "--workers"];
    for (workers, link, wanted) in [
        ("2", MEMIF, "not 3; take shm or udp for more"),
        (
            "1",
            "dpdk:net_memif,role=server",
            "`role` is given to each of the two processes",
        ),
        (
            "1",
            "dpdk:0000:03:00.0",
            "joins hosts, one process each; say which by --hosts FILE",
        ),
        (
            "1",
            "dpdk:net_af_packet,iface=lo",
            "joins hosts, one process each",
        ),
        ("1", "dpdk:eth0", "begins with no PCI address"),
    ] {
        let output = tsumuji(&[&solve[..], &[workers, "--link", link]].concat());
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{complaint}");
        let last = complaint
            .lines()
            .filter(|line| !line.is_empty())
            .find(|line| line.contains(wanted));
        assert!(last.is_some(), "{complaint}");
    }
}

fn in_host(testbed: &Testbed, host: usize, words: &[&str]) -> String {
    let netns = testbed.hosts()[host].netns().to_owned();
    let output = Command::new("ip")
        .args(["netns", "exec", &netns])
        .args(words)
        .output()
        .unwrap();
    text(&output.stdout)
}

/// The program must have let go of the hosts' interfaces: no program attached by whoever was killed.
fn assert_no_program(testbed: &Testbed) {
    let begun = Instant::now();
    for host in 0..3 {
        while in_host(testbed, host, &["ip", "-details", "link", "show", "eth0"])
            .contains("prog/xdp")
        {
            assert!(
                begun.elapsed() < PATIENCE,
                "an XDP program stays on host {host}"
            );
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn solve_over(hosts: &str, link: &str, more: &[&str]) -> (i32, serde_json::Value) {
    json(
        &[
            &[
                "solve",
                "--generate",
                "poisson2d:20",
                "--hosts",
                hosts,
                "--link",
                link,
            ],
            more,
        ]
        .concat(),
    )
}

/// Hosts meet by DPDK's devices on their interfaces, which the hosts file names; a killed worker is named with its host, and what DPDK
/// attached to its interface goes with it; a card that no host has is named.
#[test]
fn devices_join_hosts() {
    let test = "devices_join_hosts";
    if lacking(test) {
        return;
    }
    let Some(testbed) = testbed(test, 3) else {
        return;
    };
    let hosts = testbed.hosts_file().to_str().unwrap().to_owned();
    // Loss and bursts are the same to every device: one driver has them.
    for (link, is_first) in [("dpdk:net_af_packet", true), ("dpdk:net_af_xdp", false)] {
        let loss = is_first.then_some(&["--open", "--loss", "0.1"][..]);
        for more in [&["--open"][..]].into_iter().chain(loss) {
            let (code, run) = solve_over(&hosts, link, more);
            assert_eq!(
                (code, &run["link"]),
                (0, &"dpdk".into()),
                "{link} {more:?}: {run}"
            );
            assert!(run["residual"].as_f64().expect("verified") <= 1e-10);
        }
        let (code, run) = solve_over(&hosts, link, &["--open", "--slots", "2"]);
        assert_eq!(
            (code, &run["link"]),
            (0, &"shm+relay".into()),
            "{link}: {run}"
        );
        let (code, run) = solve_over(&hosts, link, &[]);
        assert_eq!(code, 2, "without a word about safety: {run}");
        if is_first {
            let burst = ["bench", "burst", "--hosts", &hosts, "--open"];
            let how = ["--link", link, "--size", "1400", "--no-spin"];
            let (code, run) = json(&[&burst[..], &how, &["--iterations", "20000"]].concat());
            assert_eq!(code, 0, "{link}: {run}");
        }
        killed_worker_of_a_host(&testbed, &hosts, link);
        assert_no_program(&testbed);
    }
    let (code, run) = solve_over(&hosts, "dpdk:0000:03:00.0", &["--open"]);
    assert_eq!(code, 2, "{run}");
    let problem = run["error"].as_str().unwrap_or_default();
    assert!(
        problem.contains("there is no network card at 0000:03:00.0"),
        "{run}"
    );
    let (code, run) = solve_over(&hosts, MEMIF, &["--open"]);
    assert_eq!(code, 2, "{run}");
    testbed.down().unwrap();
}

fn killed_worker_of_a_host(testbed: &Testbed, hosts: &str, link: &str) {
    let child = start(
        &[
            &ENDLESS[..],
            &["--open", "--hosts", hosts, "--link", link, "--json"],
        ]
        .concat(),
    );
    let begun = Instant::now();
    let worker = loop {
        let pids = pids_in(&testbed.hosts()[1]);
        if let Some(pid) = pids.into_iter().find(|&pid| is_worker(pid)) {
            break pid;
        }
        assert!(begun.elapsed() < PATIENCE, "the worker does not start");
        std::thread::sleep(Duration::from_millis(10));
    };
    wait_until_at_work(&[worker]);
    signal("-KILL", worker);
    let output = finish(child);
    let complaint = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{link}: {complaint}");
    let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        run["lost_workers"], 1,
        "{link}: the other one goes on: {run}"
    );
    assert_eq!(leftovers(&[worker]), [""; 0]);
}
