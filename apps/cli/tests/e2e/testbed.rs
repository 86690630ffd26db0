//! `tsumuji testbed` end to end. What the kernel makes of it is tested in its own crate; here: options, output, exit codes.

use std::process::{Command, Output, Stdio};

use crate::common::{self, PATIENCE, command, finish, json, skipped, start, text, tsumuji};

/// A testbed's name that nobody else uses; the testbed is removed in the end, whatever comes of the test.
struct Bed(String);

impl Bed {
    /// Nothing where the rights are missing.
    fn new(test: &str) -> Option<Self> {
        if let Err(error) = tsumuji_testbed::check_rights() {
            skipped(test, &error.to_string());
            return None;
        }
        Some(Self(format!("tc{}-{test}", std::process::id())))
    }

    fn args<'a>(&'a self, command: &'a str, rest: &[&'a str]) -> Vec<&'a str> {
        [&["testbed", command, "--name", &self.0], rest].concat()
    }

    fn run(&self, command: &str, rest: &[&str]) -> Output {
        tsumuji(&self.args(command, rest))
    }

    fn namespaces(&self) -> usize {
        let all = std::fs::read_dir("/run/netns")
            .into_iter()
            .flatten()
            .flatten();
        all.filter(|one| one.file_name().to_string_lossy().starts_with(&self.0))
            .count()
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        self.run("down", &[]);
    }
}

/// A testbed is built, shown, used, impaired and removed; every step tells the same hosts.
#[test]
fn session_of_a_testbed() {
    let Some(bed) = Bed::new("life") else { return };
    let (code, up) = json(&bed.args("up", &["-n", "3", "--rate", "1gbit", "--mtu", "9000"]));
    assert_eq!(code, 0, "{up}");
    assert_eq!((&up["mtu"], &up["rate"]), (&9000.into(), &"1gbit".into()));
    let (code, status) = json(&bed.args("status", &[]));
    assert_eq!((code, &status["hosts"][2]["up"]), (0, &true.into()));
    let hosts = status["hosts"].as_array().unwrap();
    let name = format!("{}-2", bed.0);
    for (field, value) in [
        ("host", name.as_str()),
        ("ip", "10.77.0.3"),
        ("mac", "02:74:73:00:00:03"),
        ("interface", "eth0"),
        ("netns", name.as_str()),
    ] {
        assert_eq!(
            (&hosts[2][field], &up["hosts"][2][field]),
            (&value.into(), &value.into())
        );
    }
    let file = std::fs::read_to_string(status["hosts_file"].as_str().unwrap()).unwrap();
    assert!(file.contains("addr = \"udp:10.77.0.3:7000\""), "{file}");

    let shown = bed.run("exec", &["2", "--", "ip", "-o", "address", "show", "eth0"]);
    assert!(text(&shown.stdout).contains("10.77.0.3/24"), "{shown:?}");
    assert_eq!(
        bed.run("exec", &["0", "--", "sh", "-c", "exit 7"])
            .status
            .code(),
        Some(7)
    );

    let impaired = bed.run("impair", &["1", "--loss", "5%", "--duplicate", "0.01"]);
    assert!(impaired.status.success());
    let (_, status) = json(&bed.args("status", &[]));
    assert_eq!(status["hosts"][1]["impairment"]["loss"], 0.05);
    let shown = text(&bed.run("status", &[]).stdout);
    assert!(shown.contains("impaired: loss 5%, duplicate 1%"), "{shown}");
    assert!(shown.lines().all(|line| line.len() <= 80), "{shown}");
    assert!(bed.run("impair", &["all", "--clear"]).status.success());
    let (_, status) = json(&bed.args("status", &[]));
    assert_eq!(status["hosts"][1]["impairment"]["loss"], 0.0);

    let (code, down) = json(&bed.args("down", &[]));
    assert_eq!((code, &down["namespaces"]), (0, &4.into()));
    assert_eq!(bed.namespaces(), 0);
}

/// All testbeds are listed. One whose bench was killed is known as abandoned, and the next bench removes it.
#[test]
fn testbeds_are_listed_and_abandoned_ones_removed() {
    let Some(bed) = Bed::new("list") else { return };
    assert!(bed.run("up", &["-n", "2"]).status.success());
    let find = |name: &str| {
        let (code, list) = json(&["testbed", "list"]);
        assert_eq!(code, 0);
        let mut all = list["testbeds"].as_array().unwrap().iter();
        all.find(|testbed| testbed["name"] == name).cloned()
    };
    let found = find(&bed.0).unwrap();
    assert_eq!((&found["hosts"], &found["holder"]), (&2.into(), &().into()));
    let file = format!("{}.hosts.toml", bed.0);
    assert!(found["hosts_file"].as_str().unwrap().ends_with(&file));
    let shown = text(&tsumuji(&["testbed", "list"]).stdout);
    assert!(
        shown
            .lines()
            .any(|line| line.contains(&bed.0) && line.contains(&file)),
        "{shown}"
    );

    let bench = |rounds| {
        [
            "bench",
            "pingpong",
            "--testbed",
            "--link",
            "udp",
            "--sizes",
            "4..8",
            "--rounds",
            rounds,
        ]
    };
    let mut child = start(&bench("1000"));
    let name = format!("bench{}", child.id());
    let begun = std::time::Instant::now();
    while find(&name).is_none_or(|testbed| testbed["holder"]["lives"] != true) {
        assert!(begun.elapsed() < PATIENCE, "no testbed");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    // Another test's `up` may have removed it already.
    let holder = find(&name).map(|testbed| testbed["holder"]["lives"].clone());
    assert!(holder.is_none_or(|lives| lives == false));
    assert_eq!(tsumuji(&bench("1")).status.code(), Some(0));
    assert_eq!(find(&name), None);
}

/// An interface that was left down, here or on another host, is named with the command that sets it up; after that the same run works.
#[test]
fn interface_that_is_down_is_told() {
    let Some(bed) = Bed::new("down") else { return };
    assert!(bed.run("up", &["-n", "2"]).status.success());
    let (_, status) = json(&bed.args("status", &[]));
    let hosts = status["hosts_file"].as_str().unwrap();
    let set = |id: &str, state: &str| {
        let words = ["--", "ip", "link", "set", "dev", "eth0", state];
        assert!(
            bed.run("exec", &[&[id], &words[..]].concat())
                .status
                .success()
        );
    };
    // The other host's takes seconds to be missed, by what both links share.
    for (link, ids) in [("packet", &["0", "1"][..]), ("xdp", &["0"])] {
        let solve = [
            "solve",
            "--generate",
            "poisson2d:10",
            "--hosts",
            hosts,
            "--link",
            link,
            "--open",
        ];
        for &id in ids {
            set(id, "down");
            let output = tsumuji(&solve);
            let complaint = text(&output.stderr);
            let last = complaint.lines().last().unwrap();
            // A cable whose other end is down has no carrier.
            let wanted = if id == "1" && last.contains("carrier") {
                "`eth0` is up but has no carrier after 5 s; connect the cable, or set the other end up"
            } else {
                "`eth0` is down; set it up: ip link set dev eth0 up"
            };
            assert_ne!(output.status.code(), Some(0));
            assert!(
                last.contains(wanted) && last.matches("cannot open").count() == 1,
                "{complaint}"
            );
            set(id, "up");
        }
        assert_eq!(tsumuji(&solve).status.code(), Some(0));
    }
}

/// `run` shows whose line it is, and ends with the worst exit code of all.
#[test]
fn run_tells_hosts_apart() {
    let Some(bed) = Bed::new("run") else { return };
    assert!(bed.run("up", &["-n", "2"]).status.success());
    let script = "ip -o address show eth0 | grep -o '10.77.0.[0-9]*/24'; test $(cat /sys/class/net/eth0/address | tail -c 2) = 1 || exit 9";
    let output = bed.run("run", &["--", "sh", "-c", script]);
    assert_eq!(output.status.code(), Some(9));
    let out = text(&output.stdout);
    let mut lines: Vec<_> = out.lines().collect();
    lines.sort_unstable();
    let wanted = [0, 1].map(|id| format!("{}-{id}: 10.77.0.{}/24", bed.0, id + 1));
    assert_eq!(lines, wanted);
    assert_eq!(
        text(&output.stderr),
        format!("tsumuji: {}-1: exit code 9\n", bed.0)
    );

    let (code, run) = json(&bed.args("run", &["--json", "--", "true"])[..]);
    assert_eq!((code, &run["exits"][1]["code"]), (0, &0.into()));
}

/// With one bit changed in every fiftieth frame on every cable, `solve` over raw Ethernet and UDP converges to the right solution each time: what is
/// damaged is counted and sent again, and nothing of it is taken in.
#[test]
fn solve_bears_corruption() {
    const RUNS: usize = 4;
    let Some(bed) = Bed::new("corrupt") else {
        return;
    };
    if Command::new("ethtool").arg("--version").output().is_err() {
        return skipped(
            "solve_bears_corruption",
            "ethtool: not found; apt-get install ethtool",
        );
    }
    assert!(bed.run("up", &["-n", "3"]).status.success());
    let (_, status) = json(&bed.args("status", &[]));
    let hosts = status["hosts_file"].as_str().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let output = folder.path().join("x.npy");
    let matrix = common::file(folder.path(), "A.mtx", common::tridiagonal(300));
    let impaired = bed.run("impair", &["all", "--corrupt", "2%"]);
    assert!(impaired.status.success(), "{impaired:?}");
    for link in ["packet", "xdp", "udp"] {
        for run in 0..RUNS {
            let mut solve = vec!["solve", &matrix, "--hosts", hosts, "--link", link, "--open"];
            solve.extend(["--output", output.to_str().unwrap()]);
            let (code, told) = json(&solve);
            assert_eq!(code, 0, "{link}, run {run}: {told}");
            let ones = vec![1.0; 300];
            assert!(common::distance(&common::read_npy(&output), &ones) < 1e-8);
            std::fs::remove_file(&output).unwrap();
        }
    }
}

/// An interrupted `run` ends everywhere.
#[test]
fn interrupt_reaches_all() {
    let Some(bed) = Bed::new("interrupt") else {
        return;
    };
    assert!(bed.run("up", &["-n", "2"]).status.success());
    let folder = tempfile::tempdir().unwrap();
    let script = format!(
        "trap 'exit 0' INT; touch {}/$$; while :; do sleep 0.01; done",
        folder.path().display()
    );
    let child = start(&bed.args("run", &["--", "sh", "-c", &script]));
    let begun = std::time::Instant::now();
    while std::fs::read_dir(folder.path()).unwrap().count() < 2 {
        assert!(begun.elapsed() < PATIENCE, "the command does not start");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("sh")
            .args(["-c", "kill -TERM $0", &pid])
            .status()
            .unwrap()
            .success()
    );
    assert_eq!(finish(child).status.code(), Some(130));
    for id in ["0", "1"] {
        let pids = Command::new("ip")
            .args(["netns", "pids", &format!("{}-{id}", bed.0)])
            .output()
            .unwrap();
        assert_eq!(text(&pids.stdout), "");
    }
}

/// An interrupted `up` leaves nothing.
#[test]
fn interrupted_up_leaves_nothing() {
    let Some(bed) = Bed::new("up") else { return };
    let child = start(&bed.args("up", &["-n", "200"]));
    let begun = std::time::Instant::now();
    while bed.namespaces() < 3 {
        assert!(begun.elapsed() < PATIENCE, "nothing is built");
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let pid = child.id().to_string();
    assert!(
        Command::new("sh")
            .args(["-c", "kill -INT $0", &pid])
            .status()
            .unwrap()
            .success()
    );
    let output = finish(child);
    assert_eq!(
        (output.status.code(), bed.namespaces()),
        (Some(130), 0),
        "{output:?}"
    );
    assert_eq!(
        text(&output.stderr),
        "tsumuji: interrupted; nothing was left behind\n"
    );
}

/// What is refused is refused in one line that says what to do; what is not there is no failure of `down`.
#[test]
fn refusals_are_one_line() {
    let Some(bed) = Bed::new("refusals") else {
        return;
    };
    let refused = |command: &str, rest: &[&str], word: &str| {
        common::assert_refused(&bed.args(command, rest), &[word]);
    };
    refused("up", &["-n", "0"], "1 to 253");
    refused("up", &["-n", "254"], "1 to 253");
    refused("up", &["-n", "2", "--mtu", "100"], "576 to 65535");
    refused("up", &["-n", "2", "--rate", "fast"], "kbit, mbit or gbit");
    refused("exec", &["0", "--", "true"], "testbed up");
    refused("run", &["--", "true"], "testbed up");
    assert_eq!(bed.run("status", &[]).status.code(), Some(1));
    let down = bed.run("down", &[]);
    assert!(
        down.status.success() && text(&down.stdout).contains("nothing to remove"),
        "{down:?}"
    );

    assert!(bed.run("up", &["-n", "2"]).status.success());
    refused("up", &["-n", "2"], "testbed down");
    refused("exec", &["2", "--", "true"], "0 to 1");
    refused("impair", &["2", "--loss", "5%"], "0 to 1");
    refused("impair", &["all", "--loss", "500%"], "0% to 100%");
}

/// Without rights everything that needs them says which, and touches nothing.
#[test]
fn missing_rights_are_named() {
    let Some(bed) = Bed::new("rights") else {
        return;
    };
    for (subcommand, rest) in [
        ("up", &["-n", "2"][..]),
        ("down", &[]),
        ("run", &["--", "true"]),
    ] {
        let output = Command::new("setpriv")
            .args(["--bounding-set", "-net_admin", "--inh-caps", "-all", "--"])
            .arg(env!("CARGO_BIN_EXE_tsumuji"))
            .args(bed.args(subcommand, rest))
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = text(&output.stderr);
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(2), 1),
            "{said}"
        );
        assert!(
            said.contains("CAP_NET_ADMIN")
                && said.contains("root")
                && !said.contains("CAP_SYS_ADMIN"),
            "{said}"
        );
    }
    assert_eq!(bed.namespaces(), 0);
    assert!(
        command(&["testbed", "--help"])
            .output()
            .unwrap()
            .status
            .success()
    );
}

/// Frames that the own interface's queue drops are told as lost.
#[test]
fn drops_of_the_own_queue_are_counted() {
    let Some(bed) = Bed::new("drop") else { return };
    let up = bed.run("up", &["-n", "3", "--rate", "2mbit"]);
    assert!(up.status.success());
    let tc = |host: u32, words: &str| {
        let name = format!("{}-{host}", bed.0);
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &name, "tc"]);
        let output = command.args(words.split(' ')).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    for host in 0..3 {
        // Shorter than what a socket may have on its way, so that it overflows.
        let queue = "qdisc change dev eth0 root tbf rate 2mbit burst 3028 limit 200000";
        tc(host, queue);
    }
    let hosts = format!("/run/tsumuji/{}.hosts.toml", bed.0);
    let solve = [
        "solve",
        "--generate",
        "dense:500",
        "--mode",
        "async",
        "--elements",
        "16",
    ];
    let (code, run) = json(&[&solve[..], &["--hosts", &hosts, "--open"]].concat());
    assert_eq!((code, &run["converged"]), (0, &true.into()), "{run}");
    let dropped = |host: u32| {
        let shown = tc(host, "-s qdisc show dev eth0");
        let count = shown
            .split("dropped ")
            .nth(1)
            .and_then(|rest| rest.split(',').next());
        count.and_then(|count| count.parse::<u64>().ok()).unwrap()
    };
    let told = run["frames_lost"].as_u64().unwrap();
    let all: u64 = (0..3).map(dropped).sum();
    // Of a batch that is cut on its way the kernel tells one thing only.
    assert!(
        all > 0 && told * 2 > all && told < all * 2,
        "{told} of {all}"
    );
}
