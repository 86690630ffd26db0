//! `tsumuji bench` beside its peers, end to end: tiny runs of every operation, and what is written. No figure is judged here.

use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::common::{
    assert_nothing_left, assert_refused, command, finish, json, signal, skipped, testbed, text,
    tsumuji, wait_for_children,
};
use serde_json::Value;
use tsumuji_testbed::Testbed;

/// Every operation runs among processes of this host over both links, and gives the same numbers for each.
#[test]
fn every_operation_runs() {
    for link in ["shm", "udp"] {
        for (op, nodes) in [
            ("pingpong", 2),
            ("burst", 2),
            ("gather", 3),
            ("scatter", 3),
            ("bcast", 3),
            ("allreduce", 3),
            ("alltoall", 3),
        ] {
            let mut args = vec!["bench", op, "--link", link, "--sizes", "4..16,3000"];
            args.extend(["--iterations", "20", "--rounds", "1"]);
            let (code, report) = json(&args);
            assert_eq!(code, 0, "{op} over {link}: {report}");
            assert_eq!(report["nodes"], if nodes == 2 { 2 } else { 4 });
            let results = report["results"].as_array().unwrap();
            let sizes: Vec<_> = results.iter().map(|one| one["size"].as_u64()).collect();
            assert_eq!(sizes, [4, 8, 16, 3000].map(Some));
            for result in results {
                for field in [
                    "seconds",
                    "bytes_per_second",
                    "messages_per_second",
                    "cpu_us_per_message",
                    "cpu_us_per_kb",
                ] {
                    assert!(
                        result[field].as_f64().unwrap() > 0.0,
                        "{op} {field}: {result}"
                    );
                }
                let ours = &result["contenders"][0];
                assert_eq!(ours["name"], format!("tsumuji {link}"));
                assert_eq!(ours["rounds"], 1);
            }
        }
    }
}

/// A sender that computes is measured with its assistant and without, and all of each lap arrives.
#[test]
fn a_computing_sender_is_measured() {
    for link in ["shm", "udp"] {
        let args = [
            "bench",
            "away",
            "--link",
            link,
            "--laps",
            "3",
            "--messages",
            "600",
            "--idle",
            "1",
        ];
        let (code, report) = json(&args);
        assert_eq!((code, &report["link"]), (0, &Value::from(link)), "{report}");
        let runs = report["runs"].as_array().unwrap();
        let names: Vec<_> = runs.iter().map(|run| run["progress"].as_str()).collect();
        assert_eq!(names, [Some("assistant"), Some("program")]);
        for run in runs {
            let measured = &run["measured"];
            for spans in ["sending_us", "arriving_us"] {
                let span = |name: &str| measured[spans][name].as_f64().unwrap();
                assert!(
                    span("p50") > 0.0 && span("p50") <= span("max"),
                    "{spans}: {run}"
                );
            }
            let longest = |spans: &str| measured[spans]["max"].as_f64().unwrap();
            assert!(longest("late_us") < longest("arriving_us"), "{run}");
            assert!(measured["computing"].as_f64().unwrap() > 0.3, "{run}");
        }
    }
}

/// Tables go to standard output, where it is not wanted for an object.
#[test]
fn tables_are_printed() {
    for (args, wanted) in [
        (&["pingpong", "--iterations", "20"][..], "half round trip"),
        (&["idle", "--seconds", "1"], "waiting over shm"),
        (&["away", "--laps", "5", "--idle", "1"], "calls of send"),
        (
            &["sum32", "--time", "0.05", "--rounds", "1", "--loops", "1"],
            "ours, rtc",
        ),
        (
            &["delay", "--delay", "0", "--count", "1000", "--rounds", "1"],
            "keeps pace",
        ),
    ] {
        let args = [&["bench"], args].concat();
        let output = tsumuji(&args);
        assert!(text(&output.stdout).contains(wanted), "{args:?}");
        let output = tsumuji(&[&args[..], &["--json"]].concat());
        assert!(text(&output.stderr).contains(wanted), "{args:?}");
    }
}

/// One size: the fields of a ping-pong are at the top, beside peers and without.
#[test]
fn one_size_has_its_fields_at_the_top() {
    let args = ["bench", "pingpong", "--size", "8", "--iterations", "20"];
    let (_, plain) = json(&args);
    let (code, compared) = json(&[&args[..], &["--vs", "udp", "--rounds", "2"]].concat());
    assert_eq!(code, 0, "{compared}");
    for report in [&plain, &compared] {
        for percentile in ["min", "p50", "p99", "p999"] {
            assert!(report["half_rtt_us"][percentile].as_f64().unwrap() > 0.0);
        }
        assert!(report["bytes_per_second"].as_f64().unwrap() > 0.0);
        assert_eq!(report["size"], 8);
        assert_eq!(report["results"].as_array().unwrap().len(), 1);
    }
    let udp = &compared["contenders"][1];
    assert!(udp["times_better"].as_f64().unwrap() > 0.0, "{udp}");
}

fn is_xml(path: &Path) -> bool {
    let script = "import sys, xml.dom.minidom as m; m.parse(sys.argv[1])";
    let mut python = Command::new("python3");
    python.args(["-c", script]).arg(path);
    python
        .status()
        .expect("python3 (package python3)")
        .success()
}

/// The table, the CSV and the plot tell of the same contenders; nothing else is left in the folder.
#[test]
fn writes_csv_and_plot() {
    let folder = tempfile::tempdir().unwrap();
    let (csv, svg) = (folder.path().join("a.csv"), folder.path().join("a.svg"));
    let mut args = vec!["bench", "gather", "--nodes", "3", "--sizes", "4..64"];
    args.extend(["--iterations", "20", "--rounds", "2", "--vs", "tcp,udp"]);
    args.extend(["--csv", csv.to_str().unwrap()]);
    args.extend(["--plot", svg.to_str().unwrap()]);
    let output = tsumuji(&args);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.contains("tsumuji shm") && table.contains("UDP"),
        "{table}"
    );
    let rows = std::fs::read_to_string(&csv).unwrap();
    let fields: Vec<Vec<_>> = rows.lines().map(|row| row.split(',').collect()).collect();
    assert_eq!(fields.len(), 1 + 5 * 3);
    assert!(
        fields.iter().all(|row| row.len() == fields[0].len()),
        "{rows}"
    );
    assert_eq!(
        (fields[1][2], fields[1][3], fields[1][4]),
        ("4", "tsumuji shm", "2")
    );
    assert!(is_xml(&svg));
    let drawn = std::fs::read_to_string(&svg).unwrap();
    assert!(drawn.contains("tsumuji shm") && drawn.contains("UDP"));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}

/// Peers that are not installed, or have no such operation, are named with the reason; ours is measured all the same.
#[test]
fn missing_peers_are_named() {
    let mut args = vec!["bench", "scatter", "--nodes", "3", "--sizes", "8", "--json"];
    args.extend(["--iterations", "5", "--vs", "mpich,openmpi,zeromq,tcp"]);
    let nowhere = tempfile::tempdir().unwrap();
    let child = command(&args)
        .env("PATH", nowhere.path())
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let output = finish(child);
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{report}");
    let reasons: Vec<_> = report["contenders"].as_array().unwrap()[1..]
        .iter()
        .map(|one| format!("{}: {}", one["name"], one["failure"]))
        .collect();
    for (index, wanted) in [
        (0, "apt-get install mpich"),
        (1, "apt-get install openmpi"),
        (2, "no scatter"),
        (3, "no scatter"),
    ] {
        assert!(reasons[index].contains(wanted), "{reasons:?}");
    }
    assert!(text(&output.stderr).contains("skipped: not installed"));
}

/// Congestion controls take their turns, each under its name.
#[test]
fn congestion_controls_are_compared() {
    let mut args = vec!["bench", "gather", "--nodes", "3", "--link", "udp"];
    args.extend(["--sizes", "64,3000", "--iterations", "20", "--rounds", "2"]);
    args.extend(["--congestion", "credit,suci,suci:0"]);
    let (code, report) = json(&args);
    assert_eq!(code, 0, "{report}");
    for result in report["results"].as_array().unwrap() {
        let contenders = result["contenders"].as_array().unwrap();
        let names: Vec<_> = contenders.iter().map(|one| one["name"].as_str()).collect();
        let wanted = ["credit", "suci", "suci:0"].map(|kind| format!("tsumuji udp {kind}"));
        assert_eq!(names, wanted.each_ref().map(|name| Some(name.as_str())));
        assert!(contenders.iter().all(|one| one["rounds"] == 2), "{result}");
    }
}

/// Wrong requests are refused in one line that says what is accepted, before anything is measured or written.
#[test]
fn refusals_are_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("no/where.svg");
    for (args, wanted) in [
        (&["pingpong", "--sizes", "4..x"][..], "4..64M"),
        (&["pingpong", "--sizes", "8..4"], "range"),
        (
            &["pingpong", "--sizes", "8", "--size", "8"],
            "cannot be used with",
        ),
        (&["pingpong", "--vs", "lam"], "zeromq"),
        (&["burst", "--rate", "1gbit"], "--testbed"),
        (
            &["burst", "--sizes", "8", "--testbed", "--link", "shm"],
            "--link shm",
        ),
        (&["gather", "--nodes", "1"], "2 to 253"),
        (&["idle", "--congestion", "credit,suci"], "give one here"),
        (&["gather", "--link", "packet"], "--testbed"),
        (&["gather", "--hosts", "/nowhere.toml"], "/nowhere.toml"),
        (&["scatter", "--size", "2G"], "1 GiB"),
        (&["allreduce", "--sizes", "4..64,6"], "4 and 8 bytes"),
        (&["allreduce", "--size", "6"], "tsumuji: allreduce adds"),
        (
            &["gather", "--plot", svg.to_str().unwrap()],
            "does not exist",
        ),
    ] {
        assert_refused(&[&["bench"], args].concat(), &[wanted]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// In hosts of a testbed that is made for it and removed again: ours beside a peer, over raw Ethernet and over UDP.
#[test]
fn runs_in_a_testbed() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("runs_in_a_testbed", &error.to_string());
    }
    for (op, link) in [("burst", "packet"), ("gather", "udp")] {
        let mut args = vec!["bench", op, "--testbed", "--link", link, "--rate", "1gbit"];
        args.extend(["--sizes", "64,3000", "--iterations", "20", "--rounds", "1"]);
        args.extend(["--vs", "tcp"]);
        let (code, report) = json(&args);
        assert_eq!(code, 0, "{report}");
        for result in report["results"].as_array().unwrap() {
            for contender in result["contenders"].as_array().unwrap() {
                assert!(contender["median"].as_f64().unwrap() > 0.0, "{contender}");
            }
        }
    }
}

/// Under loss: every contender has both numbers, or says why not; TCP is among them.
#[test]
fn loss_is_measured() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("loss_is_measured", &error.to_string());
    }
    let mut args = vec!["bench", "loss", "--loss", "2%", "--link", "udp,packet"];
    args.extend(["--mib", "1", "--trips", "20", "--rounds", "1"]);
    let (code, report) = json(&args);
    assert_eq!(code, 0, "{report}");
    let results = report["results"].as_array().unwrap();
    let names: Vec<_> = results.iter().map(|line| line["name"].as_str()).collect();
    assert_eq!(names, ["tsumuji udp", "tsumuji packet", "TCP"].map(Some));
    for line in results {
        assert_eq!(line["loss"], 0.02);
        assert!(line["seconds"]["median"].as_f64().unwrap() > 0.0, "{line}");
        assert!(line["p999_us"]["median"].as_f64().unwrap() > 0.0, "{line}");
    }
}

/// The figures beside MPI, among several and under loss can all be tried, and each has a line.
#[test]
fn new_figures_can_be_tried() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("new_figures_can_be_tried", &error.to_string());
    }
    let part = "mpi,collectives,loss";
    // 1: a figure is missed, as may be where nobody waits for the machine to be quiet.
    let (code, report) = json(&["bench", "figures", "--smoke", "--part", part]);
    assert!(code == 0 || code == 1, "{code}: {report}");
    let figures = report["figures"].as_array().unwrap();
    for wanted in [
        "udp, MTU 9000: ping-pong",
        "packet, MTU 65535: burst",
        "xdp, MTU 9000: burst between hosts, no dip",
        "gather 7->1",
        "dropped where they arrived",
        "broadcast to 5 nodes",
        "shm broadcast to 2 nodes",
        "under 1 % loss",
        "p99.9 of half a round trip of 64 B under 5 % loss",
    ] {
        let found = figures
            .iter()
            .any(|figure| figure["name"].as_str().unwrap().contains(wanted));
        assert!(found, "no figure of {wanted}: {report}");
    }
}

/// The figures of raw Ethernet and of sealing can be tried: ours has a number on every line that needs no DPDK.
#[test]
fn ethernet_and_sealing_can_be_tried() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("ethernet_and_sealing_can_be_tried", &error.to_string());
    }
    let part = "ethernet,sealing";
    let (code, report) = json(&["bench", "figures", "--smoke", "--part", part]);
    assert!(code == 0 || code == 1, "{code}: {report}");
    let figures = report["figures"].as_array().unwrap();
    for wanted in [
        "half round trip between hosts, 64 B",
        "rate between hosts",
        "broadcast to 7",
        "waiting",
        "seal a frame of",
        "open a frame of",
        "shm half round trip, 64 B, sealed",
        "packet half round trip, 64 B, sealed",
    ] {
        let mut found = figures
            .iter()
            .filter(|figure| figure["name"].as_str().unwrap().starts_with(wanted))
            .filter(|figure| !figure["ours"].as_str().unwrap().contains("dpdk"))
            .peekable();
        assert!(found.peek().is_some(), "no figure of {wanted}: {report}");
        for figure in found {
            // What sealing adds may be less than nothing in so short a time.
            assert_ne!(figure["ours"], "-", "{figure}");
        }
    }
}

/// Ours and PETSc's methods solve between hosts that lose frames and of which one is slow; what makes no sense is refused.
#[test]
fn solvers_between_hosts() {
    for (more, problem) in [
        (&["--loss", "1%"][..], "--testbed"),
        (&["--testbed", "--link", "shm"], "it does not join hosts"),
        (&["--testbed", "--loss", "60%"], "at most 50 %"),
        (&["--testbed", "--slow", "0"], "accepted are 1 % to 100 %"),
    ] {
        let output = tsumuji(&[&["bench", "solve"], more].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {told}");
        assert!(told.contains(problem), "{more:?}: {told}");
    }
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("solvers_between_hosts", &error.to_string());
    }
    let words = [
        "bench",
        "solve",
        "poisson2d:30",
        "--testbed",
        "--rounds",
        "1",
    ];
    let (code, report) = json(&[&words[..], &["--loss", "0,1%", "--slow", "50%"]].concat());
    assert_eq!(code, 0, "{report}");
    let results = report["results"].as_array().unwrap();
    assert_eq!(results.len(), 2);
    for result in results {
        let ways = result["ways"].as_array().unwrap();
        let of = |start: &str| {
            let by = |way: &&serde_json::Value| way["way"].as_str().unwrap().starts_with(start);
            ways.iter().filter(by).collect::<Vec<_>>()
        };
        assert_eq!(of("ours").len(), 2, "{result}");
        assert!(
            of("ours").iter().all(|way| way["reached"] == true),
            "{result}"
        );
        // PETSc is not everywhere; where it is, all its methods are there.
        let missing = result["missing"].as_array().unwrap();
        let theirs = of("PETSc");
        assert!(theirs.len() == 5 || !missing.is_empty(), "{result}");
    }
}

/// A tolerance that nobody can meet is refused before anything is measured.
#[test]
fn a_tolerance_of_solves_is_checked() {
    let (code, run) = json(&["bench", "solve", "poisson2d:4", "--tol", "0"]);
    assert_eq!(code, 2, "{run}");
    let reason = run["error"].as_str().unwrap();
    assert!(
        reason.contains("a tolerance of 0") && reason.contains("cannot be met"),
        "{run}"
    );
}

/// A host that is slow gives rows away, also while a Krylov method iterates.
#[test]
fn slow_hosts_get_fewer_rows() {
    let Some(testbed) = testbed("slow_hosts_get_fewer_rows", 3) else {
        return;
    };
    let netns = std::path::Path::new("/run/netns").join(testbed.hosts()[2].netns());
    let brake = tsumuji_bench::brake::Brake::start(netns, 0.25).unwrap();
    let hosts = testbed.hosts_file();
    let hosts = hosts.to_str().unwrap();
    // It takes about a minute; slowness is certain, and worth a division, some 14 s after it begins to iterate.
    let words = ["solve", "--generate", "poisson2d:1000", "--method", "cg"];
    let more = ["--preconditioner", "jacobi", "--weights", "auto", "--json"];
    let program = env!("CARGO_BIN_EXE_tsumuji");
    let mut command = std::process::Command::new("timeout");
    command.args(["--foreground", "--kill-after", "20"]);
    command.args(["--signal=INT", "30", program]).args(words);
    command.args(more);
    let output = crate::common::run(command.args(["--hosts", hosts, "--open"]));
    let run: serde_json::Value = serde_json::from_slice(&output.stdout)
        .unwrap_or_else(|_| panic!("{}", text(&output.stderr)));
    drop(brake);
    let notes = run["notes"].as_array().unwrap();
    let shared = notes.iter().find_map(|note| {
        let (_, rows) = note
            .as_str()?
            .split_once("rows were shared anew by measured speed: ")?;
        let rows = rows.split(", ").map(|rows| rows.parse::<u64>().unwrap());
        Some(rows.collect::<Vec<_>>())
    });
    let shared = shared.unwrap_or_else(|| panic!("equal shares: {run}"));
    assert!(shared[0] > shared[1], "{run}");
    testbed.down().unwrap();
}

/// Sums are served by every executor and by TCP, beside the limit; options that make no sense are refused.
#[test]
fn sums_are_served() {
    let words = [
        "bench", "sum32", "--time", "0.1", "--rounds", "1", "--loops", "1,100",
    ];
    for link in ["shm", "udp"] {
        let (code, run) = json(&[&words[..], &["--link", link, "--outstanding", "1,64"]].concat());
        assert_eq!((code, &run["link"]), (0, &link.into()), "{run}");
        let results = run["results"].as_array().unwrap();
        assert_eq!(results.len(), 4);
        for result in results {
            let limit = result["compute_per_second"].as_f64().unwrap();
            let contenders = result["contenders"].as_array().unwrap();
            let names: Vec<_> = contenders.iter().map(|one| &one["name"]).collect();
            assert_eq!(
                names[..4],
                ["ours, rtc", "ours, pipeline", "ours, adaptive", "TCP"]
            );
            // Each is measured, and its answers are checked. How fast they are is not judged: others take the cores meanwhile.
            for contender in contenders {
                let rate = contender["sums_per_second"]["median"].as_f64();
                assert!(rate.is_some_and(|rate| rate > 0.0), "{contender}");
            }
            assert!(limit > 0.0, "{result}");
            let verdicts = result["verdicts"].as_array().unwrap();
            let judged: Vec<_> = (verdicts.iter())
                .filter(|one| one["within"].is_boolean())
                .map(|one| one["against"].as_str().unwrap())
                .collect();
            match result["loops"].as_u64().unwrap() {
                1 => assert_eq!(judged, ["rtc"]),
                _ => assert_eq!(judged, ["pipeline", "tcp"]),
            }
            assert_eq!(verdicts.len(), 5, "{result}");
            for verdict in verdicts {
                let ratio = verdict["ratio"].as_f64().unwrap();
                let least = verdict["least"].as_f64();
                assert!(ratio > 0.0, "{verdict}");
                assert_eq!(
                    verdict["within"].as_bool(),
                    least.map(|least| ratio >= least)
                );
            }
        }
    }
    for (more, problem) in [
        (&["--executor", "threads"][..], "accepted are rtc"),
        (&["--loops", "0"], "accepted are 1 to 1000000"),
        (&["--time", "0"], "accepted are 0.01 to 60 seconds"),
        (&["--outstanding", "5000"], "accepted are 1 to 4096"),
        (&["--link", "xdp"], "joins hosts"),
    ] {
        let output = tsumuji(&[&["bench", "sum32"], more].concat());
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{more:?}: {told}");
        assert!(told.contains(problem), "{more:?}: {told}");
    }
}

/// A receiver's cost is measured for ours and the kernel's, at each rate; what spins takes a core, and a rate that is none is refused.
#[test]
fn costs_of_receiving_are_measured() {
    let words = [
        "bench", "cpu", "--time", "0.1", "--rounds", "1", "--link", "udp",
    ];
    let (code, run) = json(&[&words[..], &["--offered", "1000,20000"]].concat());
    assert_eq!(code, 0, "{run}");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 4);
    for one in results {
        assert!(
            one["received_per_second"]["median"].as_f64().unwrap() > 100.0,
            "{one}"
        );
        assert!(one["cores"]["median"].as_f64().unwrap() > 0.0, "{one}");
    }
    let output = tsumuji(&[&words[..], &["--offered", "0"]].concat());
    assert_eq!(output.status.code(), Some(2));
}

/// Frames that are sent and received are counted between hosts of a testbed, over links and the kernel's sockets.
#[test]
fn drops_are_measured() {
    let refused = tsumuji(&["bench", "drop", "--link", "shm"]);
    assert_eq!(refused.status.code(), Some(2));
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("drops_are_measured", &error.to_string());
    }
    let words = ["bench", "drop", "--time", "0.05", "--rounds", "1"];
    let (code, run) = json(&[&words[..], &["--link", "udp,packet,xdp", "--cores", "1,2"]].concat());
    assert_eq!(code, 0, "{run}");
    let results = run["results"].as_array().unwrap();
    assert_eq!(results.len(), 2 * 4);
    for one in results {
        match one["missing"].as_str() {
            Some(reason) => assert!(one["way"] == "xdp" && one["receivers"] == 2, "{reason}"),
            None => assert!(one["received_per_second"]["median"].as_f64().unwrap() > 1000.0),
        }
    }
}

/// A service that takes longer than the line gives it falls behind by as much; what finds no room is counted in each round, and nothing is lost.
#[test]
fn delays_are_measured() {
    let words = [
        "bench", "delay", "--link", "shm", "--size", "64", "--rate", "50mbit", "--count", "6000",
        "--rounds", "2",
    ];
    let (code, run) = json(&[&words[..], &["--delay", "0,1000000", "--per", "burst"]].concat());
    assert_eq!(code, 0, "{run}");
    let results = run["results"].as_array().unwrap();
    assert_eq!(
        results.len(),
        7,
        "three executors, two times, and the knees"
    );
    let predicted = results[6]["predicted_knee_ns"].as_f64().unwrap();
    assert!((predicted - 84.0 * 8.0 * 32.0 / 0.05).abs() < 1.0, "{run}");
    for knee in results[6]["knees"].as_array().unwrap() {
        assert_eq!(knee["rounds_ns"].as_array().unwrap().len(), 2, "{knee}");
    }
    for result in &results[..6] {
        assert_eq!(result["lost"], 0, "{result}");
        let rounds = result["rounds"].as_array().unwrap();
        assert_eq!((rounds.len(), &result["part"]["rounds"]), (2, &2.into()));
        for round in rounds {
            let [offered, refused, returned] =
                ["offered", "refused", "returned"].map(|name| round[name].as_u64().unwrap());
            assert_eq!(offered, refused + returned, "{result}");
            assert!(round["per_second"].as_f64().unwrap() > 0.0);
        }
        let median = result["per_second"]["median"].as_f64().unwrap();
        let part = result["part"]["median"].as_f64().unwrap();
        assert!((part - median * 84.0 * 8.0 / 50e6).abs() < 1e-6, "{result}");
    }
    let output = tsumuji(&["bench", "delay", "--per", "second"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("frame, burst"));
}

/// Ctrl-C in the middle of a comparison leaves no host, no process and no file, and says so in one line.
#[test]
fn interrupt_leaves_nothing() {
    if let Err(error) = tsumuji_testbed::check_rights() {
        return skipped("interrupt_leaves_nothing", &error.to_string());
    }
    let folder = tempfile::tempdir().unwrap();
    let csv = folder.path().join("a.csv");
    let mut args = vec!["bench", "gather", "--testbed", "--nodes", "3", "--link"];
    args.extend(["udp", "--sizes", "4..1M", "--rounds", "1000", "--json"]);
    args.extend(["--vs", "mpich,zeromq", "--csv", csv.to_str().unwrap()]);
    let mut child = command(&args)
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // The table has begun: hosts stand, and somebody is being measured.
    let mut told = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !line.contains("ours is") {
        line.clear();
        assert!(told.read_line(&mut line).unwrap() > 0, "it ended early");
    }
    let pid = child.id();
    let processes = wait_for_children(pid, 1);
    signal("-INT", pid);
    let output = finish(child);
    let mut rest = String::new();
    told.read_to_string(&mut rest).unwrap();
    assert_eq!(output.status.code(), Some(130), "{rest}");
    let last = rest.lines().last().unwrap();
    assert_eq!(last, "tsumuji: interrupted; nothing was left behind");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["error"].as_str().unwrap().contains("interrupted"));
    let name = format!("bench{pid}").parse().unwrap();
    assert!(Testbed::find(&name).unwrap().is_none());
    assert_nothing_left(&processes);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// Hosts between which nothing crosses: within seconds it is said for whom the measurement waits, and in the end it is an error, not silence.
#[test]
fn absent_nodes_are_told() {
    let Some(testbed) = testbed("absent_nodes_are_told", 2) else {
        return;
    };
    let all = tsumuji_testbed::Impairment {
        loss: 1.0,
        ..tsumuji_testbed::Impairment::NONE
    };
    testbed.impair(&[0, 1], all).unwrap();
    let hosts = testbed.hosts_file();
    // They sleep while they wait, so that other tests have the cores.
    let words = ["bench", "pingpong", "--link", "udp", "--open", "--no-spin"];
    let output = tsumuji(&[&words[..], &["--hosts", hosts.to_str().unwrap()]].concat());
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("waiting for "), "{said}");
    assert!(
        said.contains("not all nodes have met within 15 s"),
        "{said}"
    );
    testbed.down().unwrap();
}
