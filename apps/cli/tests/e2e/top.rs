//! `tsumuji top` and `--metrics`, end to end: a real run is seen while it lasts, and no longer.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::common::{
    PATIENCE, assert_refused, command, free_ports, json, tsumuji, wait_for_children,
    wait_until_at_work,
};
use serde_json::Value;

/// A run that lasts far longer than its test, and ends with it.
struct Running(Child);

impl Running {
    /// With two workers.
    fn start(extra: &[&str]) -> Self {
        let long = [
            "solve",
            "--generate",
            "poisson2d:600",
            "--workers",
            "2",
            "--tol",
            "1e-13",
            "--max-laps",
            "1000000000",
            "--inner",
            "sweep",
        ];
        let child = command(&[&long[..], extra].concat())
            .env_remove("TSUMUJI_METRICS")
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        Self(child.expect("start"))
    }

    /// Its nodes, as `top` shows them now.
    fn nodes(&self) -> Vec<Value> {
        let (code, all) = json(&["top", "--interval", "0.3"]);
        assert_eq!(code, 0);
        let nodes = all["nodes"].as_array().expect("nodes").clone();
        let ours = |node: &Value| node["job"] == self.0.id();
        nodes.into_iter().filter(ours).collect()
    }

    /// Looks until `wanted` is so.
    fn nodes_when(&mut self, wanted: impl Fn(&[Value]) -> bool) -> Vec<Value> {
        let start = Instant::now();
        loop {
            let nodes = self.nodes();
            if wanted(&nodes) {
                return nodes;
            }
            let ended = self.0.try_wait().expect("wait");
            assert!(ended.is_none(), "the run ended: {ended:?}");
            assert!(start.elapsed() < PATIENCE, "{nodes:#?}");
        }
    }

    fn end(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let start = Instant::now();
        while self.0.try_wait().expect("wait").is_none() {
            if start.elapsed() > PATIENCE {
                let _ = self.0.kill();
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.end();
    }
}

fn is_busy(nodes: &[Value]) -> bool {
    nodes.len() == 3
        && nodes
            .iter()
            .all(|node| node["per_second"]["frames_sent"].as_f64() > Some(0.0))
}

/// Which thread of a worker computes, and why, is shown while it does.
#[test]
fn places_of_work_are_shown() {
    for (executor, wanted) in [
        ("pipeline", ("workers", "fixed")),
        ("rtc", ("driver", "fixed")),
    ] {
        let mut run = Running::start(&["--mode", "async", "--executor", executor]);
        let seen = |node: &Value| {
            let one = &node["executors"][0];
            (one["place"].as_str(), one["reason"].as_str()) == (Some(wanted.0), Some(wanted.1))
        };
        run.nodes_when(|nodes| nodes.iter().filter(|node| seen(node)).count() == 2);
    }
}

/// A run's nodes are shown with names, traffic and processor time, and are gone when it has ended.
#[test]
fn running_nodes_are_shown() {
    let mut run = Running::start(&[]);
    let nodes = run.nodes_when(is_busy);
    let names: Vec<&str> = nodes
        .iter()
        .map(|node| node["name"].as_str().expect("name"))
        .collect();
    assert_eq!(names, ["judge", "worker 1", "worker 2"]);
    for (number, node) in nodes.iter().enumerate() {
        assert_eq!(node["node"], number);
        assert_eq!(
            (&node["link"], &node["answered"]),
            (&"shm".into(), &true.into())
        );
        assert!(node["cpu_percent"].as_f64() >= Some(0.0));
        let peers = node["peers"].as_array().expect("peers");
        assert_eq!(peers.len(), 2);
        assert!(
            peers.iter().all(|peer| peer["values"]["peer_up"] == 1.0),
            "{node:#}"
        );
    }
    let table = tsumuji(&["top", "--once", "--flows", "--interval", "0.2"]);
    assert!(table.status.success());
    let table = String::from_utf8(table.stdout).expect("text");
    let pid = nodes[1]["pid"].to_string();
    let line = table
        .lines()
        .find(|line| line.split_whitespace().nth(1) == Some(&pid));
    let line = line.unwrap_or_else(|| panic!("no process {pid} in\n{table}"));
    assert!(
        line.ends_with("worker 1") && line.contains(" shm "),
        "{line}"
    );
    assert!(table.contains("→ 0 (judge) up: rtt "), "{table}");
    assert!(!table.contains('\u{1b}'));
    run.end();
    assert!(run.nodes().is_empty());
}

/// A node that is stopped is shown as one that does not answer, and holds nobody up for long.
#[test]
fn stopped_nodes_are_shown() {
    let mut run = Running::start(&[]);
    let nodes = run.nodes_when(is_busy);
    let pid = i32::try_from(nodes[2]["pid"].as_u64().expect("pid")).expect("pid");
    let pid = rustix::process::Pid::from_raw(pid).expect("pid");
    rustix::process::kill_process(pid, rustix::process::Signal::STOP).expect("stop");
    let nodes = run.nodes();
    rustix::process::kill_process(pid, rustix::process::Signal::CONT).expect("continue");
    assert_eq!(nodes.len(), 3);
    assert_eq!(nodes[2]["answered"], false);
    assert_eq!(nodes[1]["answered"], true);
    run.nodes_when(is_busy);
}

fn scrape(port: u16) -> Option<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    Some(answer)
}

/// `--metrics` gives every node a port of its own; where one is taken, the command says so.
#[test]
fn metrics_are_served() {
    let port = free_ports(3).start;
    let at = format!("127.0.0.1:{port}");
    let mut run = Running::start(&["--metrics", &at]);
    run.nodes_when(is_busy);
    for node in 0..3 {
        let answer = scrape(port + node).expect("answer");
        assert!(answer.starts_with("HTTP/1.0 200 OK\r\n"), "{answer}");
        let sample = format!("tsumuji_frames_sent_total{{node=\"{node}\",link=\"shm\"}} ");
        let line = answer.lines().find_map(|line| line.strip_prefix(&sample));
        assert!(line.expect("sample").parse::<u64>().expect("number") > 0);
    }
    let small = [
        "solve",
        "--generate",
        "poisson2d:9",
        "--workers",
        "1",
        "--metrics",
        &at,
    ];
    let output = tsumuji(&small);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_ne!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("cannot show metrics at 127.0.0.1:"), "{said}");
    run.end();
    assert!(scrape(port).is_none());
}

/// Metrics that are switched off are not served; what is no place is refused.
#[test]
fn metrics_can_be_off() {
    let mut run = Running::start(&["--metrics", "off"]);
    // Where they are shown, they are before they work.
    let workers = wait_for_children(run.0.id(), 2);
    wait_until_at_work(&workers);
    assert!(run.nodes().is_empty());
    run.end();
    let words = ["solve", "--generate", "poisson2d:9", "--metrics", "here"];
    assert_refused(&words, &["ADDRESS:PORT"]);
}

/// `--job` shows the nodes of one job only, and says so if there are none.
#[test]
fn one_job_is_shown() {
    let mut run = Running::start(&[]);
    run.nodes_when(|nodes| nodes.len() == 3);
    let mut other = Running::start(&[]);
    other.nodes_when(|nodes| nodes.len() == 3);
    let job = run.0.id().to_string();
    let (code, shown) = json(&["top", "--interval", "0.1", "--job", &job]);
    let nodes = shown["nodes"].as_array().expect("nodes");
    assert_eq!((code, nodes.len()), (0, 3), "{shown}");
    assert!(nodes.iter().all(|node| node["job"] == run.0.id()));
    let none = tsumuji(&["top", "--once", "--interval", "0.1", "--job", "1"]);
    assert_eq!(none.stdout, b"no nodes of job 1 run here\n");
}
