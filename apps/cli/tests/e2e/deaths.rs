//! Workers of `solve` that are killed or stopped at random moments, a hundred in all: whatever is left of them solves the system.

use std::process::Command;
use std::time::Duration;

use crate::common::{
    assert_nothing_left, finish, start, text, wait_for_children, wait_until_at_work,
};
use crate::hosts::loopback;

/// Workers of a run, of which all but one are killed.
const WORKERS: usize = 9;
/// Deaths in all.
const DEATHS: usize = 100;

/// Whether it went on without workers.
fn runs(method: &str, link: &str, killed: &mut usize, random: &mut fastrand::Rng) -> bool {
    // About as long as the deaths take, so that they fall into every stage.
    let (system, more) = match method {
        "relax+gcr" => ("poisson2d:110", ["--inner", "sweep"]),
        "cg" => ("poisson2d:200", ["--tol", "1e-12"]),
        _ => ("poisson2d:150", ["--tol", "1e-11"]),
    };
    let words = ["solve", "--generate", system, "--rhs", "random"];
    let how = ["--method", method, "--mode"];
    let mode = if method == "relax+gcr" {
        "async"
    } else {
        "processes"
    };
    let workers = WORKERS.to_string();
    let team = ["--workers", &workers, "--link", link];
    let folder = tempfile::tempdir().unwrap();
    let known = folder.path().join("x.npy");
    let keeps = ["--checkpoint", known.to_str().unwrap(), "--every", "0.02"];
    let told = ["--lease", "3", "--json"];
    let words = [&words[..], &more, &how, &[mode], &team, &keeps, &told];
    let mut child = start(&words.concat());
    let mut workers = wait_for_children(child.id(), WORKERS);
    let all = workers.clone();
    let mut told = String::new();
    // Half of the runs lose nobody before all have met.
    let is_early = random.bool();
    if !is_early {
        // Of their x the judge has heard while they iterate.
        while !known.exists() && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(2));
        }
        told = "all at work; ".to_owned();
    }
    while workers.len() > 1 {
        // The first falls into the start, or into the iteration.
        let longest = if workers.len() == WORKERS { 800 } else { 150 };
        let pause = random.u64(0..longest);
        std::thread::sleep(Duration::from_millis(pause));
        let victim = workers.swap_remove(random.usize(..workers.len()));
        // It may have ended with the run.
        let kill = Command::new("kill")
            .args(["-KILL", &victim.to_string()])
            .output();
        *killed += usize::from(kill.is_ok_and(|done| done.status.success()));
        told += &format!("{pause} ms, {victim}; ");
    }
    let output = finish(child);
    let complaint = text(&output.stderr);
    let what = format!(
        "{method} {link}, killed after {told}: {} {complaint} {}",
        output.status,
        text(&output.stdout)
    );
    let mut survived = false;
    // Before all have met, a death ends the run by name; afterwards none does.
    if output.status.code() != Some(0) {
        assert!(is_early, "{what}");
        assert!(
            ["died", "ended", "left", "was lost: killed by signal 9"]
                .iter()
                .any(|word| complaint.contains(word)),
            "{what}"
        );
    } else {
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["converged"], true, "{what}: {run}");
        survived = run["lost_workers"].as_u64() > Some(0);
    }
    assert_nothing_left(&all);
    survived
}

/// Deaths at random moments, of relaxation and of Krylov methods, over shared memory and UDP, are survived by the last worker.
#[test]
fn a_hundred_deaths_are_survived() {
    let seed = std::env::var("TSUMUJI_SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("TSUMUJI_SEED={seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let (mut killed, mut survived) = (0, 0);
    while killed < DEATHS {
        for method in ["relax+gcr", "cg", "gmres"] {
            for link in ["shm", "udp"] {
                survived += usize::from(runs(method, link, &mut killed, &mut random));
            }
        }
    }
    assert!(
        survived > 3,
        "only {survived} runs went on without somebody"
    );
}

/// A judge that is killed is replaced: workers go on without it, and keep their rows; also where one of them died with the judge.
#[test]
fn a_killed_judge_is_replaced() {
    let folder = tempfile::tempdir().unwrap();
    for (dies, method) in [(false, "relax"), (true, "relax"), (false, "cg")] {
        let hosts = loopback(folder.path(), 3, "[]");
        let words = [
            "solve",
            "--generate",
            "poisson2d:140",
            "--hosts",
            &hosts,
            "--open",
        ];
        let begin = |id: &str, more: &[&str]| start(&[&words[..], &["--id", id], more].concat());
        let mut workers = vec![begin("1", &[]), begin("2", &[])];
        let pids: Vec<u32> = workers.iter().map(|worker| worker.id()).collect();
        // It takes minutes to relax this; and no tolerance below rounding is ever reached.
        let endless = match method {
            "cg" => ["--method", "cg", "--tol", "1e-17"],
            _ => ["--method", "relax", "--inner", "sweep"],
        };
        let patient = ["--outlive", "60", "--lease", "5", "--json"];
        let mut judge = begin("0", &[&endless[..], &patient].concat());
        wait_until_at_work(&pids);
        judge.kill().unwrap();
        judge.wait().unwrap();
        if dies {
            let mut worker = workers.pop().unwrap();
            worker.kill().unwrap();
            worker.wait().unwrap();
        }
        let output = finish(begin(
            "0",
            &[&patient[..], &["--take-over", "--mode", "async"]].concat(),
        ));
        let what = format!("{dies} {method}: {}", text(&output.stderr));
        assert_eq!(output.status.code(), Some(0), "{what}");
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["converged"], true, "{what} {run}");
        let told = run["notes"].to_string();
        let there = if dies {
            "1 workers went on without it, 1"
        } else {
            "2 workers went on"
        };
        assert!(told.contains(there), "{what} {run}");
        for worker in workers {
            assert!(finish(worker).status.success(), "{what}");
        }
        assert_nothing_left(&pids);
    }
    // Without workers that hold rows, or with those of another system, nothing is begun.
    let hosts = loopback(folder.path(), 2, "[]");
    let begin = |system: &str, more: &[&str]| {
        let words = ["solve", "--generate", system, "--hosts", &hosts, "--open"];
        start(&[&words[..], more].concat())
    };
    let refused = |system: &str, why: &str| {
        let output = finish(begin(system, &["--id", "0", "--take-over", "--lease", "2"]));
        assert_eq!(output.status.code(), Some(2), "{why}");
        let told = text(&output.stderr);
        assert!(told.contains(why), "{told}");
    };
    let mut worker = begin("poisson2d:140", &["--id", "1"]);
    refused("poisson2d:140", "nothing to take over");
    worker.kill().unwrap();
    worker.wait().unwrap();
    let mut worker = begin("poisson2d:140", &["--id", "1"]);
    let relax = [
        "--id",
        "0",
        "--method",
        "relax",
        "--inner",
        "sweep",
        "--outlive",
        "60",
    ];
    let mut judge = begin("poisson2d:140", &relax);
    wait_until_at_work(&[worker.id()]);
    judge.kill().unwrap();
    judge.wait().unwrap();
    refused("poisson2d:100", "rows of another system");
    worker.kill().unwrap();
    worker.wait().unwrap();
}
