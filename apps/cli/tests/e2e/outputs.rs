//! Files of solutions: what a run leaves, also one that is interrupted, and what stands in their place before.

use crate::common::{self, distance, file, json, read_mtx_vector, read_npy, tridiagonal, tsumuji};
use serde_json::Value;

/// Ctrl-C during a run ends it with the x that it has: verified, reported, and kept beside the output.
#[test]
fn an_interrupted_run_keeps_its_x() {
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.npy");
    std::fs::write(&output, "an earlier solution").unwrap();
    for mode in ["async", "sync", "threads"] {
        let mut words = vec!["solve", "--generate", "poisson2d:300", "--inner", "sweep"];
        words.extend([
            "--mode",
            mode,
            "--method",
            "relax",
            "--workers",
            "2",
            "--json",
        ]);
        words.extend(["--output", output.to_str().unwrap()]);
        let child = common::start(&words);
        let at_work = match mode {
            "threads" => vec![child.id()],
            _ => common::wait_for_children(child.id(), 2),
        };
        common::wait_until_at_work(&at_work);
        // Threads iterate a while after the process has begun to work.
        std::thread::sleep(std::time::Duration::from_millis(1_500));
        // As `timeout` does: to the program, and to its group.
        common::signal("-INT", child.id());
        common::signal("-INT", child.id());
        let done = common::finish(child);
        let said = String::from_utf8_lossy(&done.stderr);
        assert_eq!(done.status.code(), Some(130), "{mode}: {said}");
        let run: Value = serde_json::from_slice(&done.stdout).unwrap();
        assert_eq!(run["reason"], "interrupted");
        let residual = run["residual"].as_f64().unwrap();
        assert!(residual < 1.0 && residual > 1e-10, "{mode}: {residual}");
        assert!(run["laps"][1].as_u64().unwrap() > 0, "{run}");
        let kept = read_npy(&folder.path().join("x.unfinished.npy"));
        assert_eq!(kept.len(), 90_000);
        assert!(kept.iter().any(|x| *x != 0.0));
        std::fs::remove_file(folder.path().join("x.unfinished.npy")).unwrap();
    }
    assert_eq!(std::fs::read(&output).unwrap(), b"an earlier solution");
}

/// Without `--json` people get a table with the residual, and Matrix Market output holds the same numbers.
#[test]
fn table_and_matrix_market_output() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = file(folder.path(), "A.mtx", tridiagonal(50));
    let output = folder.path().join("x.mtx");
    let run = tsumuji(&[
        "solve",
        &matrix,
        "--workers",
        "2",
        "--output",
        output.to_str().unwrap(),
    ]);
    let text = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(
        run.status.success() && text.contains("residual"),
        "{text}\n{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert!(distance(&read_mtx_vector(&output), &[1.0; 50]) < 1e-8);
}

/// A link stays where the solution is written, also one to a file that is not there yet.
#[test]
fn links_to_outputs_stay() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("kept")).unwrap();
    let link = folder.path().join("x.npy");
    std::os::unix::fs::symlink("kept/x.npy", &link).unwrap();
    for _ in 0..2 {
        let (code, _) = json(&[
            "solve",
            "--generate",
            "poisson2d:9",
            "--output",
            link.to_str().unwrap(),
        ]);
        assert_eq!(code, 0);
        assert!(link.is_symlink());
        assert!(
            std::fs::metadata(folder.path().join("kept/x.npy"))
                .unwrap()
                .is_file()
        );
    }
}
