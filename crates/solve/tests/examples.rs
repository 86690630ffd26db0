//! The examples of problems that are no linear systems, as users start them, in one process.

use std::path::PathBuf;
use std::process::Command;

/// Standard output of an example.
fn printed(name: &str, words: &[&str]) -> String {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().and_then(|deps| deps.parent());
    let program: PathBuf = folder.expect("a folder").join("examples").join(name);
    let output = Command::new(program)
        .args(words)
        .output()
        .expect("it starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Ranks, distances and ways are right, and a fault is one line.
#[test]
fn other_problems_are_solved() {
    let folder = tempfile::tempdir().expect("a folder");
    let edges = folder.path().join("edges.txt");
    std::fs::write(&edges, "0 1\n1 2\n2 0\n2 1 0.5\n").expect("a file");
    let edges = edges.to_str().expect("UTF-8");
    let ranks = printed("pagerank", &[edges]);
    // r1 = 0.05 + 0.85 (r0 + r2 / 3), r2 = 0.05 + 0.85 r1, r0 = 0.05 + 0.85 · 2 r2 / 3.
    assert!(ranks.starts_with("node 1: 0.3738384"), "{ranks}");
    let distances = printed("shortest_paths", &[edges, "0"]);
    assert!(distances.contains("node 2: 2\n"), "{distances}");
    let ways = printed("value_iteration", &["8", "0.9"]);
    assert!(
        ways.starts_with(">>>>>>>^\n") && ways.contains("converged"),
        "{ways}"
    );
}
