//! `tsumuji solve` of netlists, by threads, processes and hosts: voltages, reports and refusals.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::common::{
    assert_nothing_left, assert_refused, file, finish, json, signal, start, text, tsumuji,
    wait_for_children, wait_until_at_work,
};
use crate::hosts::loopback;
use tsumuji_circuit::grid::PowerGrid;

const DIVIDER: &str = "divider\nV1 in 0 10\nR1 in out 3k\nR2 out 0 1k\n.op\n.end\n";

fn column(path: &Path, node: &str) -> Vec<f64> {
    let text = std::fs::read_to_string(path).unwrap();
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(&format!("{node},")));
    let values = line.unwrap_or_else(|| panic!("no node {node} in {text}"));
    values
        .split(',')
        .map(|value| value.parse().unwrap())
        .collect()
}

/// A power grid of 1157 nodes, as a file.
fn grid(folder: &Path) -> String {
    let grid = PowerGrid {
        side: 24,
        layers: 2,
        seed: 1,
    };
    let mut text = Vec::new();
    grid.write(&mut text).unwrap();
    file(folder, "grid.spice", &text)
}

/// A sweep of so many points, with a diode at each of so many nodes.
fn long_sweep(folder: &Path, nodes: usize, points: u32) -> String {
    let ladder = (1..nodes).map(|n| format!("R{n} n{n} n{} 1k\nD{n} n{n} 0 d\n", n + 1));
    let ladder: String = ladder.collect();
    let step = f64::from(points).recip();
    let netlist = format!(
        "sweep\nV1 n1 0 1\n{ladder}R{nodes} n{nodes} 0 1k\n.model d D(IS=1e-14)\n.dc V1 {step} 1 {step}\n.end\n"
    );
    file(folder, "sweep.sp", netlist)
}

/// Voltages of an operating point and of a sweep, as a file and as an object with its promised fields.
#[test]
fn netlists_are_solved() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("v.csv");
    let to = output.to_str().unwrap();
    let circuit = file(folder.path(), "divider.sp", DIVIDER);
    let (code, run) = json(&["solve", &circuit, "--output", to]);
    assert_eq!((code, run["converged"].as_bool()), (0, Some(true)), "{run}");
    assert_eq!(run["reason"], "converged", "{run}");
    let written = std::fs::read_to_string(&output).unwrap();
    assert!(
        written.starts_with("node,voltage\n0,0.0\nin,10.0\nout,2."),
        "{written}"
    );
    assert!((column(&output, "out")[0] - 2.5).abs() < 1e-12);
    assert_eq!(
        (run["nodes"].as_u64(), run["unknowns"].as_u64()),
        (Some(3), Some(1))
    );
    assert_eq!(run["smallest"]["node"], "out");
    assert_eq!(run["largest"]["volts"], 10.0);
    for field in ["parts", "interface", "newton_iterations"] {
        assert!(run[field].is_u64(), "{field}: {run}");
    }
    for phase in ["load", "prepare", "factor", "solve"] {
        assert!(run["seconds"][phase].is_f64(), "{phase}: {run}");
    }
    let sweep = DIVIDER.replace(".op", ".dc v1 0 4 1\nD1 out 0 d\n.model d d");
    let circuit = file(folder.path(), "sweep.CIR", sweep);
    let (code, run) = json(&["solve", &circuit, "--output", to]);
    assert_eq!((code, run["points"].as_u64()), (0, Some(5)), "{run}");
    assert!(run["newton_iterations"].as_u64() > Some(5));
    assert_eq!(column(&output, "in"), [0.0, 1.0, 2.0, 3.0, 4.0]);
    let diode = column(&output, "out");
    assert!(
        diode.windows(2).all(|pair| pair[0] < pair[1]) && diode[4] < 0.8,
        "{diode:?}"
    );
}

/// Where Newton's method does not converge, since there is no operating point, the report says so.
#[test]
fn circuits_without_a_point_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let netlist = "t\nI1 a 0 1\nD1 a 0 d\nR1 a 0 -0.5t\n.model d d\n";
    let circuit = file(folder.path(), "none.sp", netlist);
    let (code, run) = json(&["solve", &circuit]);
    assert_eq!(
        (code, &run["converged"], &run["reason"]),
        (1, &false.into(), &"not_converged".into())
    );
    for field in ["explanation", "error"] {
        let why = run[field].as_str().unwrap();
        assert!(why.contains("did not converge in"), "{run}");
    }
}

/// A floating battery that leakage joins to ground has exact voltages.
#[test]
fn small_resistors_beside_large_ones_are_exact() {
    let folder = tempfile::tempdir().unwrap();
    let netlist = "battery\nR1 n 0 1g\nV1 p n 1.5\nRs p q 1m\nR2 q 0 1g\n.op\n.end\n";
    let circuit = file(folder.path(), "battery.sp", netlist);
    let (code, run) = json(&["solve", &circuit]);
    assert_eq!(code, 0, "{run}");
    let least = run["smallest"]["volts"].as_f64().unwrap();
    assert!((least + 0.75).abs() < 1e-9, "{run}");
}

/// A power grid has the same voltages by any number of workers, compressed or not, and the table tells of the parts.
#[test]
fn power_grids_are_solved_in_parts() {
    let folder = tempfile::tempdir().unwrap();
    let circuit = grid(folder.path());
    let voltages = |workers: &str| {
        let output = folder.path().join(format!("{workers}.csv"));
        let run = tsumuji(&[
            "solve",
            &circuit,
            "--workers",
            workers,
            "--output",
            output.to_str().unwrap(),
        ]);
        assert!(run.status.success(), "{}", text(&run.stderr));
        (text(&run.stdout), column(&output, "n1_11_13")[0])
    };
    let ((_, one), (table, three)) = (voltages("1"), voltages("3"));
    assert!((one - three).abs() < 1e-10, "{one} {three}");
    for word in [
        "residual",
        "3 with an interface of",
        "V at n1_",
        "1157 nodes",
        "prepare",
    ] {
        assert!(table.contains(word), "no {word} in\n{table}");
    }
    // A tolerance below what twice the precision of 64 bits gives is not reached, and that is told.
    let run = tsumuji(&["solve", &circuit, "--tol", "1e-60", "--json"]);
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(said.contains("above the tolerance"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(report["reason"], "stagnated", "{report}");
    let why = report["explanation"].as_str().unwrap();
    assert!(why.contains("above the tolerance"), "{report}");
}

/// A sweep that is interrupted keeps the points that are done, beside a file that may be there.
#[test]
fn interrupted_sweeps_keep_their_points() {
    let folder = tempfile::tempdir().unwrap();
    let netlist = long_sweep(folder.path(), 100, 100_000);
    let output = file(folder.path(), "v.csv", "old");
    let child = start(&["solve", &netlist, "--json", "--output", &output]);
    wait_until_at_work(&[child.id()]);
    signal("-INT", child.id());
    let run = finish(child);
    let said = text(&run.stderr);
    assert_eq!(run.status.code(), Some(130), "{said}");
    assert!(said.contains("of 100000 points are done"), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
    assert_eq!(
        (&report["converged"], &report["reason"]),
        (&false.into(), &"interrupted".into())
    );
    assert!(said.contains(report["explanation"].as_str().unwrap()));
    let points = report["points"].as_u64().unwrap() as usize;
    let kept = std::fs::read_to_string(folder.path().join("v.unfinished.csv")).unwrap();
    assert!(
        kept.lines()
            .all(|line| line.split(',').count() == points + 1)
    );
    assert_eq!(std::fs::read_to_string(&output).unwrap(), "old");
}

/// Numbers of a file of voltages.
fn numbers(text: &str) -> Vec<f64> {
    let lines = text.lines().skip(1);
    let words = lines.flat_map(|line| line.split(',').skip(1));
    words.map(|word| word.parse().unwrap()).collect()
}

/// Processes give the voltages that threads give: over links of this host, as nodes of a hosts file, and started by hand.
#[test]
fn processes_solve_circuits() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("v.csv");
    let to = output.to_str().unwrap();
    let rungs = (1..300).map(|n| format!("R{n} n{n} n{} 10\nRg{n} n{n} 0 1k\n", n + 1));
    let sweep = format!(
        "sweep\nV1 n1 0 1\n{}D1 n150 0 d\nE1 e 0 n20 0 2\nRe e n250 1k\n.model d d\n.dc V1 0 2 1\n",
        rungs.collect::<String>()
    );
    for circuit in [grid(folder.path()), file(folder.path(), "sweep.sp", sweep)] {
        let solved = |more: &[&str]| {
            let (code, run) = json(&[&["solve", &circuit, "--output", to], more].concat());
            assert_eq!((code, run["parts"].as_u64()), (0, Some(2)), "{run}");
            let voltages = numbers(&std::fs::read_to_string(&output).unwrap());
            (voltages, run["link"].clone())
        };
        let (wanted, link) = solved(&["--workers", "2"]);
        assert!(link.is_null(), "{link}");
        let agrees = |more: &[&str], wanted_link: &str| {
            let (found, link) = solved(more);
            assert_eq!(
                (link.as_str(), found.len()),
                (Some(wanted_link), wanted.len())
            );
            let mut pairs = found.iter().zip(&wanted);
            assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-9), "{more:?}");
        };
        agrees(&["--workers", "2", "--link", "udp"], "udp");
        agrees(&["--workers", "2", "--mode", "processes"], "shm");
        let hosts = loopback(folder.path(), 3, "[\"env\"]");
        agrees(&["--hosts", &hosts], "udp");

        let hosts = loopback(folder.path(), 3, "[]");
        let by_hand = ["solve", &circuit, "--hosts", &hosts, "--open", "--id"];
        let workers = ["1", "2"].map(|id| start(&[&by_hand[..], &[id]].concat()));
        agrees(&["--hosts", &hosts, "--open", "--id", "0"], "udp");
        for worker in workers {
            let ended = finish(worker);
            assert!(ended.status.success(), "{}", text(&ended.stderr));
        }
    }
}

/// Workers that are killed leave their parts to the others, and the voltages are those of a run without losses.
#[test]
fn lost_workers_leave_their_parts_to_others() {
    let folder = tempfile::tempdir().unwrap();
    let netlist = long_sweep(folder.path(), 200, 400);
    let output = folder.path().join("v.csv");
    let to = ["--json", "--output", output.to_str().unwrap()];
    let (code, _) = json(&[&["solve", &netlist, "--workers", "1"], &to[1..]].concat());
    assert_eq!(code, 0);
    let wanted = numbers(&std::fs::read_to_string(&output).unwrap());
    for link in ["shm", "udp"] {
        let run = ["solve", &netlist, "--workers", "3", "--link", link];
        let mut child = start(&[&run[..], &to].concat());
        let workers = wait_for_children(child.id(), 3);
        let mut said = BufReader::new(child.stderr.take().unwrap()).lines();
        wait_until_at_work(&workers);
        for (lost, pid) in [(1, workers[0]), (2, workers[2])] {
            signal("-KILL", pid);
            let notes = said.by_ref().map_while(Result::ok);
            let mut notes = notes.filter(|line| line.starts_with("note: "));
            let note = notes
                .next()
                .unwrap_or_else(|| panic!("{link}: no note {lost}"));
            let is_named = note.contains(&format!("(pid {pid})")) && note.contains("SIGKILL");
            assert!(is_named && note.contains("; worker"), "{link}: {note}");
        }
        let rest = std::thread::spawn(move || said.map_while(Result::ok).collect::<Vec<_>>());
        let run = finish(child);
        let rest = rest.join().unwrap();
        assert_eq!(run.status.code(), Some(0), "{link}: {rest:?}");
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(
            (&report["lost_workers"], &report["converged"]),
            (&2.into(), &true.into())
        );
        let found = numbers(&std::fs::read_to_string(&output).unwrap());
        assert_eq!(found.len(), wanted.len(), "{link}");
        let mut pairs = found.iter().zip(&wanted);
        assert!(pairs.all(|(a, b)| (a - b).abs() < 1e-9), "{link}");
        assert_nothing_left(&workers);
    }
}

/// Without a worker that is left a sweep ends with one line that names the last; that sweep and an interrupted one keep their points. No process stays.
#[test]
fn processes_are_lost_and_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    let netlist = long_sweep(folder.path(), 200, 100_000);
    let output = folder.path().join("v.csv");
    let kept = folder.path().join("v.unfinished.csv");
    for (link, is_killed) in [("shm", true), ("udp", true), ("udp", false)] {
        let child = start(&[
            "solve",
            &netlist,
            "--workers",
            "2",
            "--link",
            link,
            "--json",
            "--output",
            output.to_str().unwrap(),
        ]);
        let workers = wait_for_children(child.id(), 2);
        wait_until_at_work(&workers);
        let code = if is_killed {
            workers.iter().for_each(|pid| signal("-KILL", *pid));
            1
        } else {
            signal("-INT", child.id());
            130
        };
        let run = finish(child);
        let said = text(&run.stderr);
        assert_eq!(run.status.code(), Some(code), "{link}: {said}");
        let report: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        if is_killed {
            let why = report["error"].as_str().unwrap();
            assert_eq!(report["reason"], "cut_short", "{report}");
            let is_named = workers
                .iter()
                .any(|pid| why.contains(&format!("(pid {pid})")));
            assert!(is_named && why.contains("SIGKILL"), "{link}: {report}");
            let complaints = said.lines().filter(|line| line.starts_with("tsumuji: "));
            assert_eq!(complaints.count(), 1, "{link}: {said}");
        }
        assert!(said.contains("of 100000 points are done"), "{link}: {said}");
        assert_eq!(report["converged"], false, "{link}: {report}");
        let points = report["points"].as_u64().unwrap() as usize;
        assert!(points > 0, "{link}: {report}");
        let columns = column(&kept, "n1").len();
        assert_eq!(columns, points, "{link}");
        std::fs::remove_file(&kept).unwrap();
        assert!(!output.exists(), "{link}");
        assert_nothing_left(&workers);
    }
}

/// Options without effect, wrong names and wrong circuits are refused with one line, and a present output stays.
#[test]
fn refusals_have_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let circuit = file(folder.path(), "divider.net", DIVIDER);
    let looped = file(
        folder.path(),
        "loop.sp",
        "t\nV1 a 0 1\nV2 a 0 2\nR1 a 0 1\n",
    );
    let broken = file(folder.path(), "broken.sp", "t\nV1 a 0 1\nQ1 a b c\n");
    let output = file(folder.path(), "v.csv", "old");
    let compressed = file(folder.path(), "broken.sp.gz", [0x1f, 0x8b, 8, 0, 1]);
    for (words, wanted) in [
        (
            vec![circuit.as_str(), "--rhs", "b.mtx"],
            "--rhs: no effect with a netlist",
        ),
        (vec![&circuit, "--mode", "sync"], "--mode: no effect"),
        (vec![&circuit, "--method", "cg"], "--method: no effect"),
        (
            vec![&circuit, "--sweep", "workers=1,2"],
            "--sweep: no effect",
        ),
        (vec![&circuit, "--seed", "2"], "--seed: no effect"),
        // Also what is so without them.
        (vec![&circuit, "--omega", "1.0"], "--omega: no effect"),
        (vec![&circuit, "--lease", "10"], "--lease: no effect"),
        (
            vec![&circuit, "--mode", "threads", "--link", "udp"],
            "--link: no effect with --mode threads",
        ),
        (
            vec![&circuit, "--workers", "2", "--hosts", "hosts.toml"],
            "--workers and --hosts exclude each other",
        ),
        (vec![&circuit, "--threads", "2"], "--threads: no effect"),
        (
            vec![&circuit, "--preconditioner", "ilu"],
            "--preconditioner: no effect",
        ),
        (vec![&circuit, "--lease", "5"], "--lease: no effect"),
        (vec![&circuit, "--omega", "1.2"], "--omega: no effect"),
        (vec![&circuit, "--workers", "0"], "use at least 1"),
        (vec![&circuit, "--tol", "0"], "tol"),
        (
            vec![&circuit, "--output", "x.npy"],
            "voltages are written as .csv",
        ),
        (
            vec![&looped, "--output", &output],
            "loop.sp: the source 'v2' closes a loop",
        ),
        (
            vec![&broken, "--output", &output],
            "broken.sp: line 3: 'q1' is no element",
        ),
        (vec!["none.sp"], "none.sp: cannot be read"),
        (vec![&compressed], "broken.sp.gz"),
    ] {
        assert_refused(&[&["solve"], &words[..]].concat(), &[wanted]);
    }
    assert_eq!(std::fs::read_to_string(output).unwrap(), "old");
}
