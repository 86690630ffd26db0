//! `tsumuji run`: programs of the system over the sockets layer, and those that it cannot reach.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::common::{self, command, finish, text};

/// The preloaded library, where cargo left it for the tests of its own crate.
pub(crate) fn library(test: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().expect("own path");
    let found = own
        .ancestors()
        .skip(1)
        .take(2)
        .map(|folder| folder.join("libtsumuji_sockets.so"))
        .find(|path| path.is_file());
    if found.is_none() {
        common::skipped(
            test,
            "libtsumuji_sockets.so is not built; cargo build -p tsumuji-sockets",
        );
    }
    found
}

fn run(words: &[&str], library: &PathBuf) -> Output {
    let mut command = command(&[&["run"], words].concat());
    command.env("TSUMUJI_SOCKETS_LIBRARY", library);
    let started = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finish(started.expect("the program"))
}

const TALK: &str = "
import socket
listener = socket.create_server(('127.0.0.1', 0))
client = socket.create_connection(listener.getsockname())
server, _ = listener.accept()
for part in (b'one', b'two'):
    client.sendall(part)
    assert server.recv(100) == part
    server.sendall(part)
    assert client.recv(100) == part
print('talked')
";

/// The program's output and exit code are its own; the explanation says which path its connection took, and counts.
#[test]
fn connections_are_carried_and_explained() {
    let Some(library) = library("connections_are_carried_and_explained") else {
        return;
    };
    let output = run(&["--explain", "--", "python3", "-c", TALK], &library);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "talked\n");
    for part in [
        "linked dynamically",
        "datagram sockets are not carried",
        ": shm: both ends have agreed",
        "counters: offered=1 claimed=1 carried=2",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    let output = run(
        &["--explain", "--json", "--", "python3", "-c", TALK],
        &library,
    );
    for line in text(&output.stderr).lines() {
        let value: serde_json::Value = serde_json::from_str(line).expect(line);
        assert!(value["event"].is_string(), "{line}");
    }
    let output = run(
        &["--", "python3", "-c", "import sys; sys.exit(7)"],
        &library,
    );
    assert_eq!(output.status.code(), Some(7));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

/// A program with a library of its own to be preloaded keeps it.
#[test]
fn other_preloaded_libraries_stay() {
    let Some(library) = library("other_preloaded_libraries_stay") else {
        return;
    };
    let mut command = command(&["run", "--", "sh", "-c", "echo $LD_PRELOAD"]);
    command.env("TSUMUJI_SOCKETS_LIBRARY", &library);
    command.env("LD_PRELOAD", "libc.so.6");
    let output = common::run(&mut command);
    let said = text(&output.stdout);
    assert!(
        said.trim().ends_with(":libc.so.6") && said.contains("libtsumuji_sockets"),
        "{said}"
    );
}

/// A static program is named, and runs.
#[test]
fn static_programs_are_named() {
    let Some(library) = library("static_programs_are_named") else {
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("main.c"), folder.path().join("static"));
    std::fs::write(
        &source,
        "#include <stdio.h>\nint main(void) { puts(\"ran\"); return 3; }\n",
    )
    .expect("a file");
    let mut compiler = Command::new("gcc");
    compiler.arg("-static").arg("-o").arg(&program).arg(&source);
    if !compiler
        .output()
        .is_ok_and(|output| output.status.success())
    {
        return common::skipped("static_programs_are_named", "no static C library");
    }
    let output = run(&["--", program.to_str().expect("a path")], &library);
    assert_eq!(text(&output.stdout), "ran\n");
    assert_eq!(output.status.code(), Some(3));
    let said = text(&output.stderr);
    assert!(
        said.contains("stays with kernel TCP: it is linked statically"),
        "{said}"
    );
}

/// What cannot be started is told in one line.
#[test]
fn failures_are_told() {
    let Some(library) = library("failures_are_told") else {
        return;
    };
    for (words, expected) in [
        (
            &["--", "no-such-program"][..],
            "neither a file nor found in PATH",
        ),
        (&["--link", "udp", "--", "true"], "with --hosts FILE"),
        (&["--open", "--", "true"], "no effect without --hosts"),
        (
            &["--hosts", "/nonexistent/lab.toml", "--open", "--", "true"],
            "/nonexistent/lab.toml",
        ),
        (&["--json", "--", "true"], "--explain"),
        (
            &["true"],
            "write `--` before the program: tsumuji run -- true",
        ),
    ] {
        let output = run(words, &library);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
    }
    // What the gateway says is said once, after the warning that frames are open.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lab.toml");
    let node = "[[node]]\nid = 0\nhost = \"elsewhere\"\naddr = \"udp:192.0.2.1:7000\"\n";
    std::fs::write(&file, node).unwrap();
    let hosts = ["--hosts", file.to_str().unwrap(), "--open", "--", "true"];
    let output = run(&hosts, &library);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("tsumuji: no gateway: /"), "{said}");
    assert!(last.contains("no node is of this host"), "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
    let output = run(&["--", "true"], &PathBuf::from("/nonexistent"));
    assert!(text(&output.stderr).contains("TSUMUJI_SOCKETS_LIBRARY=/nonexistent"));
}

/// A measurement of streams, with small messages and short times.
fn streams(library: &PathBuf, words: &[&str]) -> Output {
    let short = ["--size", "1,5000", "--rounds", "1", "--seconds", "0.05"];
    let mut command = command(&[&["bench"], words, &short].concat());
    command.env("TSUMUJI_SOCKETS_LIBRARY", library);
    let started = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    finish(started.expect("the program"))
}

/// Checks what every path of a measurement tells, and returns the paths of its first result.
fn checked(report: &serde_json::Value) -> Vec<String> {
    let results = report["results"].as_array().unwrap();
    let mut names = Vec::new();
    for (place, result) in results.iter().enumerate() {
        for path in result["paths"].as_array().unwrap() {
            let of = |name: &str| path[name]["median"].as_f64().unwrap();
            for name in [
                "per_second",
                "mbits",
                "us_per_kb",
                "client_us_per_kb",
                "machine_us_per_kb",
            ] {
                assert!(of(name) > 0.0, "{name}: {path}");
            }
            assert!(of("machine_cpu") <= 100.0 && of("softirq") >= 0.0, "{path}");
            assert!(of("p99_us") >= of("p50_us"), "{path}");
            let has_times = of("p50_us") > 0.0;
            assert_eq!(has_times, report["shape"] != "stream", "{path}");
            if place == 0 {
                names.push(path["path"].as_str().unwrap().to_owned());
            }
        }
    }
    names
}

/// Streams of an unmodified program are measured over every path, in all shapes, and plotted; of many clients over two of the paths. Paths between hosts need
/// rights; without, one line says so.
#[test]
fn streams_are_measured() {
    let Some(library) = library("streams_are_measured") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let has_rights = tsumuji_testbed::check_rights().is_ok();
    for (kind, more) in [
        ("rr", &["--spin"][..]),
        ("stream", &[]),
        ("crr", &[]),
        ("manyclients", &["--clients", "1,3"]),
        ("manyclients", &["--clients", "1,3", "--shape", "crr"]),
        ("manyclients", &["--clients", "1,3", "--shape", "stream"]),
        ("manyclients", &["--clients", "1,3", "--server", "epoll"]),
    ] {
        let is_of_many = kind == "manyclients";
        let paths: &[&str] = if is_of_many {
            &["--path", "tcp,shm"]
        } else {
            &[]
        };
        let plotted = ["--plot", plot.to_str().unwrap(), "--json"];
        let output = streams(&library, &[&[kind], more, paths, &plotted].concat());
        let said = text(&output.stderr);
        assert!(output.status.success(), "{kind}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["kind"], kind);
        let count = report["results"].as_array().unwrap().len();
        assert_eq!(count, if is_of_many { 4 } else { 2 });
        let names = checked(&report);
        let missing = report["missing"].as_array().unwrap();
        let asked = if is_of_many { 2 } else { 9 };
        assert_eq!(names.len() + missing.len(), asked, "{names:?} {missing:?}");
        if is_of_many {
            assert_eq!(names, ["tcp", "shm"]);
        } else if has_rights {
            let all = [
                "tcp", "tcp-ns", "unix", "shm", "fallback", "udp", "packet", "xdp",
            ];
            assert_eq!(names[..all.len()], all);
            assert!(names[all.len()..].iter().all(|name| name == "dpdk"));
        } else {
            assert_eq!(missing[0]["path"], "tcp-ns");
            assert!(said.contains("tcp-ns: not measured: "), "{said}");
        }
        let available =
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_available_congestion_control");
        let control = report["congestion"].as_str().unwrap();
        let list = available.unwrap();
        assert!(
            list.split_whitespace().any(|name| name == control),
            "{control}"
        );
        assert!(said.contains(&format!("TCP: {control}")), "{said}");
        assert!(std::fs::read_to_string(&plot).unwrap().contains("<svg"));
        std::fs::remove_file(&plot).unwrap();
    }
}

/// The figures of a part, tried.
fn tried(library: &PathBuf, part: &str) -> Vec<serde_json::Value> {
    let words = ["bench", "figures", "--smoke", "--json", "--part", part];
    let mut command = command(&words);
    command.env("TSUMUJI_SOCKETS_LIBRARY", library);
    let started = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let output = finish(started.expect("the program"));
    let said = text(&output.stderr);
    // 1: a figure is missed, as may be where nobody waits for the machine to be quiet.
    assert!(matches!(output.status.code(), Some(0 | 1)), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    report["figures"].as_array().unwrap().clone()
}

/// Checks that each of these figures is there, and that all have numbers that can be had here.
fn check_figures(figures: &[serde_json::Value], wanted: &[&str]) {
    let of = |figure: &serde_json::Value, part: &str| figure[part].as_str().unwrap().to_owned();
    for name in wanted {
        let found = figures
            .iter()
            .any(|figure| of(figure, "name").starts_with(*name));
        assert!(found, "no figure of {name}: {figures:?}");
    }
    for figure in figures {
        let ours = of(figure, "ours");
        let is_missing = ours.contains("no testbed") || ours.contains("not installed");
        assert!(figure["ratio"].is_number() || is_missing, "{figure}");
    }
}

/// The figures of streams can be tried: without rights those within the host only.
#[test]
fn figures_of_streams_can_be_tried() {
    let Some(library) = library("figures_of_streams_can_be_tried") else {
        return;
    };
    let mut wanted = vec![
        "a connection for 1 B",
        "falling back to TCP: time of a request",
        "falling back to TCP: time of a message",
    ];
    if tsumuji_testbed::check_rights().is_ok() {
        wanted.extend([
            "1 B, both ends spinning",
            "requests: service demand",
            "requests, between hosts",
            "one way: service demand",
            "one way, between hosts",
            "64 KiB one way",
            "3 clients' requests",
            "3 clients' requests: p99",
            "3 clients' requests, between hosts",
            "3 clients' streams",
        ]);
    }
    let figures = tried(&library, "streams");
    check_figures(&figures, &wanted);
}

/// The figures of real programs can be tried, of those that are installed.
#[test]
fn figures_of_programs_can_be_tried() {
    let Some(library) = library("figures_of_programs_can_be_tried") else {
        return;
    };
    let figures = tried(&library, "programs");
    let wanted = [
        "redis SET",
        "redis GET",
        "redis SET, 16 at once",
        "redis GET, 16 at once",
        "nginx",
        "memcached",
    ];
    let unmeasured = figures.iter().filter(|figure| figure["ratio"].is_null());
    for figure in unmeasured {
        let ours = figure["ours"].as_str().unwrap();
        common::skipped("figures_of_programs_can_be_tried", ours);
    }
    check_figures(&figures, &wanted);
}

/// The congestion control is the one asked for; one that the kernel has not, and other mistakes, are refused in one line.
#[test]
fn mistakes_about_streams_are_one_line() {
    let words = ["rr", "--path", "tcp", "--congestion", "reno", "--json"];
    let output = streams(&PathBuf::new(), &words);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["congestion"], "reno");
    assert_eq!(checked(&report), ["tcp"]);
    for (words, expected) in [
        (&["rr", "--congestion", "no-such"][..], "it has: "),
        (&["stream", "--path", "sctp"], "tcp-ns"),
        (&["manyclients", "--shape", "round"], "stream"),
        (&["manyclients", "--clients", "65"], "64"),
        (
            &["manyclients", "--server", "epoll", "--shape", "crr"],
            "served by threads",
        ),
    ] {
        let output = streams(&PathBuf::new(), words);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains(expected), "{words:?}: {said}");
        assert_eq!(said.lines().count(), 1, "{words:?}: {said}");
    }
}

/// Without rights a path between hosts that was asked for is an error of one line.
#[test]
fn hosts_need_rights() {
    if tsumuji_testbed::check_rights().is_ok() {
        // A user with all rights can give them up.
        let own = env!("CARGO_BIN_EXE_tsumuji");
        let words = ["--bounding-set", "-sys_admin", "--", own, "bench", "rr"];
        // Of the package util-linux.
        let mut setpriv = Command::new("setpriv");
        let output = common::run(setpriv.args(words).args(["--path", "tcp-ns"]));
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        let last = said.lines().last().unwrap();
        assert!(
            last.starts_with("tsumuji: tcp-ns: a testbed needs CAP_SYS_ADMIN"),
            "{said}"
        );
    } else {
        let output = streams(&PathBuf::new(), &["rr", "--path", "tcp-ns"]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("tcp-ns: a testbed needs"), "{said}");
    }
}

/// Ctrl-C in the middle of a measurement between hosts leaves no host and no process, long before its time is over.
#[test]
fn interrupted_streams_leave_nothing() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return common::skipped("interrupted_streams_leave_nothing", &error.to_string());
    }
    let words = ["bench", "manyclients", "--shape", "stream", "--path"];
    let more = ["tcp-ns", "--clients", "3", "--seconds", "60", "--json"];
    let child = common::start(&[&words[..], &more].concat());
    let pid = child.id();
    let processes = common::wait_for_children(pid, 4);
    let began = std::time::Instant::now();
    common::signal("-INT", pid);
    let output = finish(child);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(
        said.ends_with("tsumuji: interrupted; nothing was left behind\n"),
        "{said}"
    );
    assert!(
        began.elapsed().as_secs() < 50,
        "it waited for the measurement"
    );
    let name = format!("bench{pid}").parse().unwrap();
    assert!(tsumuji_testbed::Testbed::find(&name).unwrap().is_none());
    common::assert_nothing_left(&processes);
}
