//! Names that are taken, builds that are stopped or killed, and the largest testbed.

use std::ops::ControlFlow;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tsumuji_testbed::{Impairment, Name, Spec, Testbed, UpError};

use super::{Foreign, PATIENCE, ip, name, namespaces_of};

/// One name is one testbed; the second `up` neither harms nor takes it.
#[test]
fn names_are_unique() {
    let Some(name) = name("names_are_unique") else {
        return;
    };
    let spec = Spec::new(1).named(name.clone());
    let testbed = Testbed::up(&spec).unwrap();
    assert!(matches!(Testbed::up(&spec), Err(UpError::Held { .. })));
    let testbed = testbed.keep().unwrap();
    assert!(matches!(Testbed::up(&spec), Err(UpError::Exists(_))));
    drop(testbed);
    let found = Testbed::find(&name).unwrap().expect("a kept testbed stays");
    assert_eq!(found.hosts().len(), 1);
    found.down().unwrap();
    assert!(Testbed::find(&name).unwrap().is_none());
}

/// Stopped half way, and failing half way, it leaves nothing; the error names the command.
#[test]
fn failures_leave_nothing() {
    let Some(name) = name("failures_leave_nothing") else {
        return;
    };
    let spec = Spec::new(40).named(name.clone());
    let stopped = Testbed::up_watched(&spec, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(UpError::Interrupted)));
    assert!(namespaces_of(&name).is_empty());
    // Somebody else takes a name while it is built.
    let foreign = Mutex::new(None);
    let failed = Testbed::up_watched(&spec, &mut |_| {
        let mut foreign = foreign.lock().unwrap();
        if foreign.is_none() {
            let taken = Foreign::new(name.host(39));
            ip(&["-n", &taken.0, "link", "set", "lo", "up"]);
            *foreign = Some(taken);
        }
        ControlFlow::Continue(())
    });
    let message = failed.unwrap_err().to_string();
    assert!(
        message.contains("ip netns add")
            && message.contains(&name.host(39))
            && !message.contains('\n'),
        "{message}"
    );
    assert_eq!(namespaces_of(&name), [name.host(39)]);
}

/// Not a test of its own: what `killed_up_leaves_no_trace` kills.
#[test]
#[ignore = "run by another test as a program to be killed"]
fn build_and_wait() {
    let name: Name = std::env::var("TESTBED_TO_BUILD").unwrap().parse().unwrap();
    let _testbed = Testbed::up(&Spec::new(60).named(name)).unwrap();
    std::thread::sleep(PATIENCE);
}

/// A killed `up`, at whatever point, is cleaned up by `down`, and by the next `up`.
#[test]
fn killed_up_leaves_no_trace() {
    let Some(name) = name("killed_up_leaves_no_trace") else {
        return;
    };
    // Killed when so many of its namespaces exist: the switch only, a few hosts, all of them.
    for (round, namespaces) in [0, 1, 2, 10, 40, 61].into_iter().enumerate() {
        let mut victim = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "--ignored", "faults::build_and_wait"])
            .env("TESTBED_TO_BUILD", name.as_str())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let start = Instant::now();
        while namespaces_of(&name).len() < namespaces {
            assert!(
                start.elapsed() < PATIENCE && victim.try_wait().unwrap().is_none(),
                "nothing is built"
            );
            std::thread::sleep(Duration::from_millis(1));
        }
        victim.kill().unwrap();
        victim.wait().unwrap();
        if round % 2 == 0 {
            Testbed::remove(&name).unwrap();
        } else {
            let testbed = Testbed::up(&Spec::new(1).named(name.clone())).unwrap();
            assert_eq!(testbed.status().unwrap().hosts.len(), 1);
            drop(testbed);
        }
        assert!(
            namespaces_of(&name).is_empty(),
            "{:?}",
            namespaces_of(&name)
        );
    }
}

/// The largest testbed can be built, stopped from outside, and removed.
#[test]
fn largest_is_possible() {
    let Some(name) = name("largest_is_possible") else {
        return;
    };
    let is_watched = AtomicBool::new(false);
    let testbed = Testbed::up_watched(&Spec::new(253).named(name), &mut |done| {
        is_watched.fetch_or(done == 253, Ordering::Relaxed);
        ControlFlow::Continue(())
    })
    .unwrap();
    assert!(is_watched.into_inner());
    let status = testbed.status().unwrap();
    assert!(status.hosts.len() == 253 && status.hosts.iter().all(|host| host.up));
    // So many could not learn of each other by asking.
    let last = testbed.hosts()[252].netns();
    let known = ip(&["-netns", last, "neighbour", "show", "nud", "permanent"]);
    assert_eq!(known.lines().count(), 252);
    let all: Vec<_> = (0..253).collect();
    testbed
        .impair(
            &all,
            Impairment {
                loss: 0.5,
                ..Impairment::NONE
            },
        )
        .unwrap();
    assert!(
        testbed
            .status()
            .unwrap()
            .hosts
            .iter()
            .all(|host| host.impairment.loss == 0.5)
    );
    assert_eq!(testbed.down().unwrap().namespaces, 254);
}
