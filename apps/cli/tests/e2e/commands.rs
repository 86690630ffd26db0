//! `launch`, `doctor` and `bench` end to end.

use std::time::Duration;

use crate::common::{command, json, run, tsumuji};
use tsumuji_node::{Channel, NodeId, Options, endpoint_from_env};

/// Not a test of its own: what `launch` runs below. Each node tells its neighbour its number, over the link it was given.
#[test]
#[ignore = "run by other tests as a launched program"]
fn launched_program() {
    let mut node = endpoint_from_env(Options::default()).unwrap();
    let nodes = node.members().len() as u16;
    let next = NodeId((node.me().0 + 1) % nodes);
    node.send(next, Channel::ordered(0), &node.me().0.to_le_bytes())
        .unwrap();
    let message = node
        .recv(Duration::from_secs(20))
        .unwrap()
        .expect("a message from the neighbour");
    assert_eq!(message.body, message.from.0.to_le_bytes());
    assert_eq!((message.from.0 + 1) % nodes, node.me().0);
    assert!(node.flush(Duration::from_secs(20)).unwrap());
    let _ = node.close(Duration::from_secs(5));
}

fn launch_myself(options: &[&str]) -> (i32, serde_json::Value) {
    let me = std::env::current_exe().unwrap();
    let mut launch = command(&["launch", "--json"]);
    launch.args(options).arg("--").arg(me).args([
        "--exact",
        "--ignored",
        "commands::launched_program",
    ]);
    let output = run(&mut launch);
    let text = String::from_utf8(output.stdout).unwrap();
    let value = serde_json::from_str(&text)
        .unwrap_or_else(|_| panic!("{text}\n{}", String::from_utf8_lossy(&output.stderr)));
    (output.status.code().unwrap(), value)
}

/// A user's own program reaches its neighbours over every link, also when frames are lost.
#[test]
fn launch_gives_endpoints() {
    for options in [
        &["-n", "3", "--link", "shm"][..],
        &["-n", "3", "--link", "udp"],
        &["-n", "2", "--link", "udp", "--loss", "0.3"],
        &["-n", "3", "--link", "udp+multicast"],
        &["-n", "3", "--link", "udp", "--congestion", "suci"],
    ] {
        let (code, run) = launch_myself(options);
        assert_eq!(
            (code, &run["ok"]),
            (0, &serde_json::Value::Bool(true)),
            "{options:?}: {run}"
        );
    }
}

/// The exit code is that of the first program to fail, and the line names it.
#[test]
fn launch_passes_on_failure() {
    let output = tsumuji(&[
        "launch",
        "-n",
        "3",
        "--",
        "sh",
        "-c",
        "test $TSUMUJI_NODE != 1 || exit 7; exec sleep 60",
    ]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(7), "{complaint}");
    assert!(
        complaint.contains("node 1") && complaint.contains('7'),
        "{complaint}"
    );

    let output = tsumuji(&["launch", "-n", "2", "--", "sh", "-c", "kill -KILL $$"]);
    assert_eq!(output.status.code(), Some(128 + 9));

    let output = tsumuji(&["launch", "-n", "2", "--", "/nonexistent/program"]);
    let complaint = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{complaint}");
    assert!(complaint.contains("/nonexistent/program"), "{complaint}");
}

/// Programs that never open an endpoint are nobody's failure.
#[test]
fn launch_runs_any_program() {
    let output = tsumuji(&[
        "launch",
        "-n",
        "2",
        "--",
        "sh",
        "-c",
        "echo $TSUMUJI_NODE of $TSUMUJI_NODES",
    ]);
    let mut lines: Vec<_> = std::str::from_utf8(&output.stdout)
        .unwrap()
        .lines()
        .collect();
    lines.sort_unstable();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(lines, ["0 of 2", "1 of 2"]);
}

/// Both plain links work here, and every link that does not says why.
#[test]
fn doctor_knows_the_links() {
    let (code, report) = json(&["doctor"]);
    assert_eq!(code, 0, "{report}");
    let links = report["links"].as_array().unwrap();
    let names: Vec<_> = links.iter().map(|link| &link["name"]).collect();
    assert_eq!(names, ["shm", "udp", "packet", "xdp", "dpdk"]);
    for link in links {
        let plain = link["name"] == "shm" || link["name"] == "udp";
        assert!(link["works"].as_bool().unwrap() || !plain, "{link}");
        assert!(!link["detail"].as_str().unwrap().is_empty(), "{link}");
    }
    assert!(report["machine"]["cores"].as_u64().unwrap() >= 1);
    let text = String::from_utf8(tsumuji(&["doctor"]).stdout).unwrap();
    assert!(
        text.contains("shm") && text.contains("net.core.rmem_max"),
        "{text}"
    );
}

/// The object that scripts read has every promised field, for both shapes over both links.
#[test]
fn bench_keeps_its_contract() {
    for (shape, link, congestion) in [
        ("pingpong", "shm", "credit"),
        ("pingpong", "udp", "suci"),
        ("burst", "shm", "suci"),
        ("burst", "udp", "credit"),
    ] {
        let (code, run) = json(&[
            "bench",
            shape,
            "--link",
            link,
            "--size",
            "64",
            "--iterations",
            "200",
            "--congestion",
            congestion,
        ]);
        assert_eq!(code, 0, "{run}");
        let half = &run["half_rtt_us"];
        let [min, p50, p99, p999] =
            ["min", "p50", "p99", "p999"].map(|name| half[name].as_f64().unwrap());
        assert!(
            0.0 < min && min <= p50 && p50 <= p99 && p99 <= p999,
            "{half}"
        );
        for field in [
            "bytes_per_second",
            "messages_per_second",
            "cpu_us_per_message",
            "cpu_us_per_kb",
        ] {
            assert!(run[field].as_f64().unwrap() > 0.0, "{field}: {run}");
        }
        for side in ["sender", "receiver"] {
            assert!(
                run[side]["cpu_us_per_message"].as_f64().unwrap() > 0.0,
                "{run}"
            );
        }
    }
}

/// Several sizes are one object with a list; messages larger than any frame cross as well.
#[test]
fn bench_takes_several_sizes() {
    let (code, run) = json(&[
        "bench",
        "burst",
        "--link",
        "udp",
        "--size",
        "0,1500,1M",
        "--iterations",
        "20",
    ]);
    assert_eq!(code, 0, "{run}");
    let sizes: Vec<_> = run["results"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["size"].as_u64().unwrap())
        .collect();
    assert_eq!(sizes, [0, 1500, 1 << 20]);
}

/// Beside its limit a result carries the ratio to it.
#[test]
fn bench_beside_the_bare_machine() {
    let (code, run) = json(&[
        "bench",
        "pingpong",
        "--size",
        "8",
        "--iterations",
        "200",
        "--vs",
    ]);
    assert_eq!(code, 0, "{run}");
    let contenders = run["contenders"].as_array().unwrap();
    let names: Vec<_> = contenders.iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["tsumuji shm", "bare copy", "bare cache line"]);
    for one in contenders {
        assert!(one["ratio"].as_f64().unwrap() > 0.0, "{run}");
    }
}
