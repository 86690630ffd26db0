//! Workers of `solve` that are killed or stopped at random moments, a hundred in all: whatever is left of them solves the system.

use std::process::Command;
use std::time::Duration;

use crate::common::{assert_nothing_left, finish, start, text, wait_for_children};

/// Workers of a run, of which all but one are killed.
const WORKERS: usize = 5;
/// Deaths in all.
const DEATHS: usize = 100;

fn runs(method: &str, link: &str, killed: &mut usize, random: &mut fastrand::Rng) {
    // About a second and a half, so that deaths fall into every stage.
    let (system, more) = match method {
        "relax+gcr" => ("poisson2d:150", ["--inner", "sweep"]),
        "cg" => ("poisson2d:300", ["--tol", "1e-12"]),
        _ => ("poisson2d:220", ["--tol", "1e-11"]),
    };
    let words = ["solve", "--generate", system, "--rhs", "random"];
    let how = ["--method", method, "--mode"];
    let mode = if method == "relax+gcr" {
        "async"
    } else {
        "processes"
    };
    let team = ["--workers", "5", "--link", link, "--lease", "3", "--json"];
    let child = start(&[&words[..], &more, &how, &[mode], &team].concat());
    let mut workers = wait_for_children(child.id(), WORKERS);
    let all = workers.clone();
    let mut told = String::new();
    while workers.len() > 1 {
        let pause = random.u64(0..400);
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
    // Before all have met, a death ends the run by name.
    if output.status.code() != Some(0) {
        assert!(
            complaint.contains("died") || complaint.contains("ended") || complaint.contains("left"),
            "{what}"
        );
    } else {
        let run: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(run["converged"], true, "{what}: {run}");
    }
    assert_nothing_left(&all);
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
    let mut killed = 0;
    while killed < DEATHS {
        for method in ["relax+gcr", "cg", "gmres"] {
            for link in ["shm", "udp"] {
                runs(method, link, &mut killed, &mut random);
            }
        }
    }
}
