//! `tsumuji relay`: several processes of a host at one device, by relays that a command starts and by those of a launch. On interfaces in namespaces of the
//! test's own; needs root, and is skipped without.

use std::io::{BufRead, BufReader};
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use crate::common::{self, ENDLESS, PATIENCE, command, finish, json, signal, start, text, tsumuji};
use crate::segment;
use crate::talk::{NODES, Over, Place, run};
use tsumuji_node::Congestion;

/// A relay, which ends with the test in any case.
struct Serving(Option<Child>);

impl Serving {
    /// Asks it to end.
    fn end(mut self) -> Output {
        let child = self.0.take().unwrap();
        signal("-INT", child.id());
        finish(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

/// Starts a relay and waits until it serves.
fn relay(words: &[&str]) -> Serving {
    let mut child = command(&[&["relay"], words].concat())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let told = lines.next().unwrap().unwrap();
    assert!(told.contains(" as relay:"), "{told}");
    Serving(Some(child))
}

fn mac(host: u16) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

/// Two interfaces of this thread's network, with known addresses.
fn two_hosts(test: &str) -> Option<segment::Segment> {
    if let Some(reason) = segment::lacking() {
        common::skipped(test, &reason);
        return None;
    }
    let segment = segment::Segment::new(2, 1500);
    let commands = (0..2).map(|host| format!("link set n{host} address {}\n", mac(host)));
    segment::ip(&commands.collect::<String>()).unwrap();
    Some(segment)
}

/// A hosts file with as many nodes on each of the two.
fn cluster(folder: &std::path::Path, slots: u16, more: &str) -> String {
    let entry = |host: u16| {
        format!(
            "[[node]]\nid = {host}\nhost = \"pc{host}\"\nslots = {slots}\naddr = \"relay:n{host}\"\nmac = \"{}\"\n{more}",
            mac(host)
        )
    };
    common::file(folder, "relays.toml", entry(0) + &entry(1))
}

/// Processes of two hosts are killed and come back at their relays, which serve on; in the end these tell what they passed on, and nothing stays.
#[test]
fn restarts_at_relays() {
    let Some(_segment) = two_hosts("restarts at relays") else {
        return;
    };
    let relays =
        ["xdp:n0", "xdp:n1"].map(|link| relay(&["--link", link, "--slots", "2", "--json"]));
    let folder = tempfile::tempdir().unwrap();
    let path = cluster(folder.path(), NODES / 2, "");
    for (congestion, cycles) in [(Congestion::Credit, 30), (Congestion::SUCI, 15)] {
        let place = Place {
            congestion,
            ..Place::new(
                Over::Cluster(path.clone().into()),
                "cycles::restarts_over_shared_memory",
            )
        };
        run(&place, cycles, 8, |_, _| {});
    }
    for relay in relays {
        let output = relay.end();
        assert_eq!(output.status.code(), Some(0));
        let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let count = |name: &str| told[name].as_u64().unwrap();
        assert!(count("sent_frames") > 1000 && count("received_frames") > 1000);
        assert_eq!(count("refused_frames"), 0, "{told}");
    }
    let shown = std::process::Command::new("ip")
        .args(["-details", "link", "show"])
        .output();
    let shown = text(&shown.unwrap().stdout);
    assert!(!shown.contains("prog/xdp"), "a program stayed: {shown}");
}

/// A run whose relay dies ends at once, and says why.
#[test]
fn the_death_of_a_relay_is_told() {
    let Some(_segment) = two_hosts("the death of a relay") else {
        return;
    };
    let relays = ["xdp:n0", "xdp:n1"].map(|link| relay(&["--link", link, "--slots", "2"]));
    let folder = tempfile::tempdir().unwrap();
    let path = cluster(folder.path(), 2, "via = []\n");
    let solve = start(&[&ENDLESS[..], &["--hosts", &path, "--open"]].concat());
    let agents = common::wait_for_children(solve.id(), 3);
    let workers = agents
        .iter()
        .map(|agent| common::wait_for_children(*agent, 1));
    let workers = workers.collect::<Vec<_>>().concat();
    common::wait_until_at_work(&workers);
    let [first, second] = relays;
    drop(first);
    let output = finish(solve);
    let complaint = text(&output.stderr);
    assert!(!output.status.success());
    assert!(complaint.contains("the relay has ended"), "{complaint}");
    common::wait_until_gone(&workers);
    assert_eq!(second.end().status.code(), Some(0));
}

/// Without a relay, at one that has no such slot, and beside another relay: one line that says what to do.
#[test]
fn missing_places_are_told() {
    let Some(_segment) = two_hosts("places at relays") else {
        return;
    };
    let folder = tempfile::tempdir().unwrap();
    let path = cluster(folder.path(), 2, "via = []\n");
    let complaint = |words: &[&str], code: i32| {
        let output = tsumuji(words);
        assert_eq!(output.status.code(), Some(code), "{words:?}");
        text(&output.stderr)
    };
    let solve = [
        "solve",
        "--generate",
        "poisson2d:20",
        "--hosts",
        &path,
        "--open",
    ];
    let told = complaint(&solve, 2);
    let wanted = "no relay of this user has `n0`: start one on this host, for example `tsumuji relay --link xdp:n0 --slots 1`";
    assert!(told.contains(wanted), "{told}");
    let relays = ["xdp:n0", "xdp:n1"].map(|link| relay(&["--link", link, "--slots", "1"]));
    let told = complaint(&solve, 1);
    assert!(
        told.contains("the relay has slots 0 to 0, not 1; start it with more (--slots)"),
        "{told}"
    );
    let told = complaint(&["relay", "--link", "xdp:n0"], 2);
    assert_eq!(told, "tsumuji: a relay has `n0` already\n");
    let told = complaint(&["relay", "--link", "xdp:n0", "--name", "other"], 2);
    assert!(told.contains("`n0` is in use by process"), "{told}");
    for relay in relays {
        assert_eq!(relay.end().status.code(), Some(0));
    }
}

/// What no relay can serve is refused in one line.
#[test]
fn impossible_relays_are_refused() {
    for (words, problem) in [
        (
            &["--link", "udp"][..],
            "`udp` has no need of a relay, or cannot have one: accepted are `xdp:INTERFACE`",
        ),
        (&["--link", "xdp"], "`xdp` has no need of a relay"),
        (
            &["--link", "dpdk:net_memif,role=server"],
            "has no need of a relay",
        ),
        (
            &["--link", "dpdk:net_null0,size=64"],
            "state a name of at most 15 letters",
        ),
        (&["--link", "xdp:nosuch0"], "no interface `nosuch0`"),
        (
            &["--link", "xdp:eth1", "--slots", "65"],
            "accepted are 1 to 64",
        ),
        (
            &["--link", "xdp:eth1", "--slots", "0"],
            "accepted are 1 to 64",
        ),
        (
            &["--link", "xdp:eth1", "--name", "a/b"],
            "accepted are up to 15 letters",
        ),
        (&["--link", "relay:eth1"], "has no need of a relay"),
    ] {
        common::assert_refused(&[&["relay"], words].concat(), &[problem]);
    }
}

/// A launch starts the relays that it needs, on each host one, also if it is repeated at once or killed; they end by themselves.
#[test]
fn launches_bring_their_relays() {
    let Some(testbed) = common::testbed("launches_bring_their_relays", 2) else {
        return;
    };
    let hosts = testbed.hosts_file().to_str().unwrap().to_owned();
    let over = ["--hosts", &hosts, "--link", "xdp", "--slots", "3"];
    for more in [&["--open"][..], &["--open", "--loss", "0.1"]] {
        let words = [&["solve", "--generate", "poisson2d:20"], &over[..], more].concat();
        let (code, run) = json(&words);
        assert_eq!(
            (code, &run["link"]),
            (0, &"shm+relay".into()),
            "{more:?}: {run}"
        );
        assert_eq!(run["workers"], 5);
    }
    let mut solve = start(&[&ENDLESS[..], &over, &["--open"]].concat());
    let begun = Instant::now();
    let inside = |host: usize| common::pids_in(&testbed.hosts()[host]).len();
    // Three programs and their agents (the first host has the judge itself), and a relay.
    while inside(0) < 6 || inside(1) < 7 {
        if solve.try_wait().unwrap().is_some() {
            panic!("it has ended: {}", text(&finish(solve).stderr));
        }
        assert!(
            begun.elapsed() < PATIENCE,
            "{} and {}",
            inside(0),
            inside(1)
        );
        std::thread::sleep(Duration::from_millis(20));
    }
    signal("-KILL", solve.id());
    assert!(!finish(solve).status.success());
    testbed.hosts().iter().for_each(common::wait_until_deserted);
    // A relay that cannot be started is told with its own words.
    let down = [
        "testbed",
        "exec",
        "--name",
        testbed.name().as_str(),
        "1",
        "--",
    ];
    let down = [&down[..], &["ip", "link", "set", "eth0", "down"]].concat();
    assert!(tsumuji(&down).status.success());
    let output = tsumuji(&[&["launch"], &over[..], &["--open", "--", "true"]].concat());
    let told = text(&output.stderr);
    assert!(!output.status.success());
    assert!(
        told.contains("no relay of this user has `eth0`: it cannot be started: ")
            && told.contains("`eth0` is down"),
        "{told}"
    );
    testbed.hosts().iter().for_each(common::wait_until_deserted);
    testbed.down().unwrap();
}
