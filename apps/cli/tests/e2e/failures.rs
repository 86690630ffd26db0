//! Runs that fail in the middle: killed workers, Ctrl-C, a full disk. A named failure, soon, and nothing left behind.

use std::io::{BufRead, BufReader, Read};
use std::process::Command;

use crate::common::{
    self, ENDLESS, assert_nothing_left, finish, signal, skipped, start, text, wait_for_children,
    wait_until_at_work, wait_until_gone, wait_until_reaped, wait_until_worked_on,
};

fn endless(link: &str) -> Vec<&str> {
    [&ENDLESS[..], &["--workers", "3", "--json", "--link", link]].concat()
}

/// The last worker killed in the middle ends the run soon, by name, with exit code 1, and takes nobody with it; x is kept as it was told last.
#[test]
fn killed_worker_is_named() {
    let folder = tempfile::tempdir().unwrap();
    for link in ["shm", "udp"] {
        let kept = folder.path().join(format!("{link}.npy"));
        let mut words = endless(link);
        let at = words.iter().position(|word| *word == "--workers").unwrap();
        words[at + 1] = "1";
        words[2] = "poisson2d:600"; // for longer than its x takes to be told
        words.extend(["--output", kept.to_str().unwrap()]);
        let child = start(&words);
        let judge = child.id();
        let workers = wait_for_children(judge, 1);
        // It tells its x each second.
        (0..7).for_each(|_| wait_until_worked_on(workers[0]));
        signal("-KILL", workers[0]);
        let output = finish(child);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{complaint}");
        assert!(
            complaint.contains("worker")
                && complaint.contains(&workers[0].to_string())
                && complaint.contains("SIGKILL"),
            "{complaint}"
        );
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["reason"], "worker_lost", "{run}");
        let beside = kept.with_extension("unfinished.npy");
        let bytes = std::fs::metadata(&beside).unwrap().len();
        assert!(bytes > 8 * 600 * 600 && !kept.exists(), "{bytes}");
        assert_nothing_left(&workers);
    }
}

/// Workers that are killed or stopped in the middle are survived by the others: the run converges, says who was lost and why, and nothing is left of them.
#[test]
fn lost_workers_are_survived() {
    // Long enough for a busy machine, where a worker that lives may be silent for seconds.
    let lease = "5";
    // Those that are killed are told of by the launcher, whatever the link; of those that are stopped links tell differently.
    for (link, name) in [("udp", "-KILL"), ("shm", "-STOP"), ("udp", "-STOP")] {
        let words = ["solve", "--generate", "poisson2d:150", "--inner", "sweep"];
        let more = ["--workers", "4", "--json", "--link", link, "--lease", lease];
        let child = start(&[&words[..], &more].concat());
        let workers = wait_for_children(child.id(), 4);
        wait_until_at_work(&workers);
        signal(name, workers[1]);
        signal(name, workers[3]);
        let output = finish(child);
        let complaint = text(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{link} {name}: {complaint}");
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["converged"], true, "{run}");
        assert!(run["residual"].as_f64().unwrap() <= 1e-10, "{run}");
        assert_eq!(run["lost_workers"], 2, "{link} {name}: {run}");
        let notes = run["notes"].to_string();
        for what in [
            "worker 2 was lost",
            "worker 4 was lost",
            "the others share its",
        ] {
            assert!(notes.contains(what), "{notes}");
        }
        // Both fell silent at once: the second is not given the time that workers have who were just sent rows.
        let silences = notes.split("not heard of for ").skip(1);
        let silences: Vec<f64> = silences
            .map(|silence| silence.split(' ').next().unwrap().parse().unwrap())
            .collect();
        if let [first, second] = silences[..] {
            assert!(second - first < 5.0, "{notes}");
        }
        assert_nothing_left(&workers);
    }
}

/// A worker that joins gets rows and does laps: it goes on alone when the first one is killed, and its x is that of an interrupted run.
#[test]
fn workers_join_a_run() {
    for link in ["udp", "shm"] {
        let mut words = ENDLESS.to_vec();
        words.extend([
            "--method",
            "relax",
            "--workers",
            "1",
            "--admit",
            "--json",
            "--link",
            link,
        ]);
        let mut child = start(&words);
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines
            .find_map(|line| line.ok().filter(|line| line.contains("workers join by")))
            .unwrap();
        let joined = start(&words_of(&line));
        wait_until_at_work(&[joined.id()]);
        let first = wait_for_children(child.id(), 1)[0];
        signal("-KILL", first);
        wait_until_reaped(first);
        wait_until_worked_on(joined.id());
        signal("-INT", child.id());
        let rest: Vec<String> = lines.map(Result::unwrap).collect();
        let output = finish(child);
        assert_eq!(output.status.code(), Some(130), "{link}: {rest:?}");
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let notes = run["notes"].to_string();
        assert!(
            notes.contains("worker 2 joined") && notes.contains("worker 1 was lost"),
            "{notes}"
        );
        assert_eq!(run["laps"].as_array().unwrap().len(), 1, "{run}");
        assert_eq!(
            (&run["workers"], &run["joined"]),
            (&1.into(), &1.into()),
            "{run}"
        );
        assert!(run["residual"].as_f64().unwrap() < 1.0, "{run}");
        let output = finish(joined);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
}

/// Ctrl-C ends the run in good order: the reason is reported and no process is left.
#[test]
fn interrupt_ends_in_good_order() {
    for (name, link) in [("-INT", "shm"), ("-TERM", "udp")] {
        let child = start(&endless(link));
        let workers = wait_for_children(child.id(), 3);
        wait_until_at_work(&workers);
        signal(name, child.id());
        let output = finish(child);
        assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["reason"], "interrupted", "{run}");
        assert_nothing_left(&workers);
    }
}

/// The same without messages: the residual of what there is is told, and an older solution is left as it was.
#[test]
fn interrupt_ends_threads_and_single() {
    let folder = tempfile::tempdir().unwrap();
    for (name, mode, workers) in [("-INT", "threads", "3"), ("-TERM", "single", "1")] {
        let output = common::file(folder.path(), &format!("{mode}.npy"), "an older solution");
        let mut args = endless("shm");
        let at = args.iter().position(|arg| *arg == "--workers").unwrap();
        args[at + 1] = workers;
        args.extend(["--mode", mode, "--output", &output]);
        let at = args.iter().position(|arg| *arg == "--link").unwrap();
        args.drain(at..at + 2);
        let mut child = start(&args);
        // Signals are caught from when the outlook was told; said so on standard error.
        let mut told = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("outlook") {
            line.clear();
            assert!(told.read_line(&mut line).unwrap() > 0, "it ended");
        }
        wait_until_at_work(&[child.id()]);
        signal(name, child.id());
        let run = finish(child);
        let mut complaint = String::new();
        told.read_to_string(&mut complaint).unwrap();
        assert_eq!(run.status.code(), Some(130), "{complaint}");
        assert!(complaint.contains("interrupted"), "{complaint}");
        let run: serde_json::Value = serde_json::from_slice(&run.stdout).unwrap();
        assert_eq!(run["reason"], "interrupted", "{run}");
        assert_eq!(run["converged"], false);
        let residual = run["residual"].as_f64().unwrap();
        assert!(residual > 1e-13 && residual <= 1.0, "{residual}");
        assert!(run["laps"][0].as_u64().unwrap() > 0, "{run}");
        assert_eq!(
            std::fs::read_to_string(&output).unwrap(),
            "an older solution"
        );
    }
    let left = std::fs::read_dir(folder.path()).unwrap().count();
    assert_eq!(
        left, 4,
        "the older solutions, and the x of both interrupted runs"
    );
}

/// When the judge itself is killed its workers go, too.
#[test]
fn killed_judge_takes_its_workers_along() {
    let child = start(&endless("shm"));
    let workers = wait_for_children(child.id(), 3);
    wait_until_at_work(&workers);
    signal("-KILL", child.id());
    finish(child);
    wait_until_gone(&workers);
    assert_nothing_left(&workers);
}

/// A disk that fills up while the solution is written: one line, exit code 2, and no half a file.
#[test]
fn full_disk() {
    let folder = tempfile::tempdir().unwrap();
    let mount = |args: &[&str]| {
        Command::new("mount")
            .args(args)
            .arg(folder.path())
            .stderr(std::process::Stdio::null())
            .status()
    };
    if !mount(&["-t", "tmpfs", "-o", "size=64k", "none"]).is_ok_and(|status| status.success()) {
        return skipped("full_disk", "may not mount a small file system (not root)");
    }
    let output = folder.path().join("x.npy");
    // 80 x 80 unknowns are 51,200 bytes, which fit beside nothing.
    std::fs::write(folder.path().join("filler"), vec![0; 24 << 10]).unwrap();
    let run = common::tsumuji(&[
        "solve",
        "--generate",
        "poisson2d:80",
        "--tol",
        "1e-2",
        "--workers",
        "2",
        "--output",
        output.to_str().unwrap(),
        "--json",
    ]);
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    let unmounted = Command::new("umount")
        .arg(folder.path())
        .status()
        .unwrap()
        .success();
    let complaint = text(&run.stderr);
    assert!(unmounted);
    assert_eq!(run.status.code(), Some(1), "{complaint}");
    let report: serde_json::Value = serde_json::from_slice(&run.stdout).expect("it is kept");
    assert_eq!(report["reason"], "converged", "{report}");
    let error = report["error"].as_str().expect("of the file");
    assert!(error.contains("x.npy") && error.contains("full"), "{error}");
    assert!(
        complaint.contains("x.npy") && complaint.contains("full"),
        "{complaint}"
    );
    assert_eq!(left, ["filler"], "something was left behind");
}

/// A run that fails tells why, names no method that is in use, and does not replace a solution that is there.
#[test]
fn failed_runs_replace_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let wild = "%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 1\n1 2 5\n1 3 2\n2 1 4\n2 2 1\n2 3 7\n3 1 9\n3 2 3\n3 3 1\n";
    let wild = common::file(folder.path(), "wild.mtx", wild);
    let singular = "%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 2\n1 2 -1\n1 3 -1\n2 1 -1\n2 2 2\n2 3 -1\n3 1 -1\n3 2 -1\n3 3 2\n";
    let singular = common::file(folder.path(), "singular.mtx", singular);
    let rhs = "%%MatrixMarket matrix array real general\n3 1\n1\n1\n2\n";
    let rhs = common::file(folder.path(), "b.mtx", rhs);
    let output = common::file(folder.path(), "x.mtx", "an earlier solution");
    let kept = folder.path().join("x.unfinished.mtx");
    for (words, reason) in [
        (vec!["--mode", "async", "--workers", "2"], "diverged"),
        (vec!["--mode", "threads", "--workers", "2"], "diverged"),
        (vec!["--mode", "single"], "diverged"),
    ] {
        let mut all = vec!["solve", &wild, "--method", "relax", "--inner", "sweep"];
        all.extend(["--output", &output]);
        all.extend(words);
        let (code, run) = common::json(&all);
        assert_eq!((code, run["reason"].as_str()), (1, Some(reason)));
        let residual = run["residual"].as_f64().unwrap();
        assert!(residual.is_finite(), "{run}");
        assert!(kept.exists(), "{run}");
        std::fs::remove_file(&kept).unwrap();
    }
    for method in ["gmres", "auto"] {
        let words = ["solve", &singular, "--rhs", &rhs, "--method", method];
        let run = common::tsumuji(&words);
        let said = text(&run.stdout) + &text(&run.stderr);
        assert_eq!(run.status.code(), Some(1), "{method}: {said}");
        assert!(said.contains("singular or nearly so"), "{method}: {said}");
        assert!(!said.contains("--tol above"), "{method}: {said}");
    }
    assert_eq!(std::fs::read(&output).unwrap(), b"an earlier solution");
}

/// Workers that joined say why they end when the judge has died, as those that a user starts by `--id` do.
#[test]
fn joined_workers_tell_of_a_lost_judge() {
    let folder = tempfile::tempdir().unwrap();
    let rows = "1,u\n2,v\n3,u\n4,v\n".repeat(5000);
    let data = common::file(folder.path(), "line.csv", format!("a,y\n{rows}"));
    let mut solve = ENDLESS.to_vec();
    solve.extend(["--method", "relax", "--lease", "2"]);
    let learn = [
        "learn", "logistic", &data, "--method", "sgd", "--epochs", "1000000", "--tol", "1e-300",
    ];
    for words in [&solve[..], &learn] {
        let more = ["--workers", "1", "--admit", "--link", "udp"];
        let mut child = start(&[words, &more].concat());
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let line = lines
            .find_map(|line| line.ok().filter(|line| line.contains("workers join by")))
            .unwrap();
        let joined = start(&words_of(&line));
        wait_until_at_work(&[joined.id()]);
        signal("-KILL", child.id());
        let output = finish(joined);
        child.wait().unwrap();
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{words:?}: {told}");
        // It may have waited, and said so.
        let reasons: Vec<&str> = (told.lines())
            .filter(|line| line.starts_with("tsumuji: "))
            .collect();
        assert!(
            matches!(reasons[..], [reason] if reason.contains("judge")),
            "{words:?}: {told:?}"
        );
    }
}

/// The command that a line of `--admit` prints, without the program.
fn words_of(line: &str) -> Vec<&str> {
    let (_, join) = line.split_once("tsumuji join ").unwrap();
    let (options, program) = join.split_once("-- tsumuji ").unwrap();
    let mut words = vec!["join"];
    words.extend(options.split_whitespace());
    words.extend(["--", env!("CARGO_BIN_EXE_tsumuji"), program]);
    words
}

/// Variables that only workers read are checked before any is started: one line names them.
#[test]
fn bad_variables_are_refused_at_the_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = common::file(folder.path(), "line.csv", "a,y\n1,1\n2,3\n3,5\n");
    let netlist = common::file(
        folder.path(),
        "d.cir",
        "title\nV1 a 0 5\nR1 a b 1k\nR2 b 0 1k\n.end\n",
    );
    let solve = ["solve", "--generate", "poisson2d:30", "--workers", "2"];
    let learn = ["learn", "linear", &data, "--workers", "1"];
    let circuit = ["solve", &netlist, "--mode", "processes", "--workers", "2"];
    for (name, value) in [
        ("TSUMUJI_LOSS", "garbage"),
        ("TSUMUJI_ADMIT", "perhaps"),
        ("TSUMUJI_CAPTURE", "/nonexistent/trace.pcapng"),
    ] {
        for words in [&solve[..], &learn, &circuit] {
            let output = common::run(common::command(words).env(name, value));
            let told = text(&output.stderr);
            let told: Vec<&str> = told
                .lines()
                .filter(|line| line.starts_with("tsumuji: "))
                .collect();
            assert_eq!(output.status.code(), Some(2), "{name}: {words:?}: {told:?}");
            assert!(
                told.len() == 1 && told[0].contains(name),
                "{words:?}: {told:?}"
            );
        }
    }
}
