//! Every example, in Rust and in C, run as its head says: several processes of a launcher, whose output is looked at.

#[path = "../../bindings/c/tests/common/mod.rs"]
mod c_library;
mod slurm;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use c_library::{has, installed, skip_without, testbed, text};
use tsumuji_node::{LaunchSpec, Launcher, LinkSpec, Printing, Progress};

/// Only turns a hang into a failure; nothing is measured by it.
const LONG: Duration = Duration::from_secs(100);
/// Options of `timeout`, for the same.
const LIMIT: [&str; 2] = ["--kill-after=5", "100"];
/// Each has a test here.
const RUST: [&str; 11] = [
    "all_reduce",
    "board",
    "farm",
    "favour",
    "flow",
    "guests",
    "heat",
    "hosts",
    "jacobi",
    "own_problem",
    "ring",
];
const C: [&str; 9] = [
    "all_reduce",
    "board",
    "farm",
    "flow",
    "heat",
    "hosts",
    "jacobi",
    "ring",
    "suci_loop",
];
/// What is longer does not show one thing.
const LINES_MAX: usize = 100;
/// Standard output of each node goes to a file of its own.
const SPLIT: &str = r#"exec "$0" "$@" >"$TSUMUJI_TEST_OUTPUT/$TSUMUJI_NODE""#;

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The example of that name in each language that has it. What two tests run is built once.
fn programs(name: &'static str) -> Vec<PathBuf> {
    static BUILT: Mutex<BTreeMap<&str, PathBuf>> = Mutex::new(BTreeMap::new());
    let mut programs = Vec::new();
    if RUST.contains(&name) {
        programs.push(Path::new(env!("CARGO_BIN_EXE_ring")).with_file_name(name));
    }
    if C.contains(&name) {
        let source = format!("../../examples/c/{name}.c");
        let build = || installed().build(name, &[&source], &["-lm"]);
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        programs.push(built.entry(name).or_insert_with(build).clone());
    }
    programs
}

/// What each node of `nodes` printed, in order; all must end well.
fn launch(program: &Path, argument: &str, nodes: usize, link: &str, loss: &str) -> Vec<String> {
    let outputs = tempfile::tempdir().expect("a folder");
    let program = program.to_str().expect("UTF-8");
    let mut spec = LaunchSpec::new(nodes, ["sh", "-c", SPLIT, program, argument]);
    spec.link = link.parse::<LinkSpec>().expect("link");
    spec.join_timeout = LONG;
    spec.env = vec![
        installed().library_path(),
        ("TSUMUJI_TEST_OUTPUT".into(), outputs.path().into()),
        ("TSUMUJI_LOSS".into(), loss.into()),
    ];
    let mut launcher = Launcher::start(spec).expect("start");
    let exits = launcher.wait_all(LONG);
    assert_eq!(exits.len(), nodes, "{program} over {link} does not end");
    for exit in exits {
        assert_eq!(exit.status.code(), Some(0), "{program}: {link}: {exit:?}");
    }
    (0..nodes)
        .map(|node| std::fs::read_to_string(outputs.path().join(node.to_string())).expect("output"))
        .collect()
}

/// Runs the example over both links, in each language, and shows each run's output to `is_right`.
fn everywhere(
    name: &'static str,
    argument: &str,
    nodes: usize,
    is_right: impl Fn(&str, &[String]) -> bool,
) {
    let programs = programs(name);
    assert!(!programs.is_empty());
    for program in programs {
        for link in ["shm", "udp"] {
            let outputs = launch(&program, argument, nodes, link, "0");
            let wrong = format!("{} over {link} printed {outputs:#?}", program.display());
            assert!(is_right(link, &outputs), "{wrong}");
        }
    }
}

/// The number that follows `before`.
fn number_after(output: &str, before: &str) -> f64 {
    let rest = output.split(before).nth(1).unwrap_or_default().trim_start();
    let end = rest.find([',', '\n', ' ']).unwrap_or(rest.len());
    rest[..end].parse().unwrap_or(f64::NAN)
}

/// The folders hold what is tested here, each program is short, and the README has a line with its command.
#[test]
fn each_example_is_tested_short_and_listed() {
    let readme = std::fs::read_to_string(folder("README.md")).expect("README");
    for (language, extension, names) in [("rust", "rs", &RUST[..]), ("c", "c", &C[..])] {
        let files = std::fs::read_dir(folder(language)).expect("folder");
        let files = files.map(|file| {
            file.expect("file")
                .file_name()
                .into_string()
                .expect("UTF-8")
        });
        let wanted = names.iter().map(|name| format!("{name}.{extension}"));
        let files: BTreeSet<String> = files.collect();
        assert_eq!(files, wanted.collect());
        for file in files {
            let source = std::fs::read_to_string(folder(language).join(&file)).expect("source");
            let lines = source.lines().count();
            assert!(lines < LINES_MAX, "{file} has {lines} lines");
            let link = format!("]({language}/{file})");
            let line = readme.lines().find(|line| line.contains(&link));
            let line =
                line.unwrap_or_else(|| panic!("README.md has no line for {language}/{file}"));
            let command = line
                .split('`')
                .find(|part| part.starts_with("tsumuji launch"));
            let command = command.unwrap_or_else(|| panic!("no command in: {line}"));
            assert!(source.contains(command), "{file} does not say: {command}");
        }
    }
}

/// The token goes round as often as asked.
#[test]
fn ring() {
    everywhere("ring", "20", 4, |link, outputs| {
        outputs[0].starts_with(&format!("20 laps of 4 nodes over {link}"))
    });
}

/// A program that ends within the limit.
fn limited(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("timeout");
    command.args(LIMIT).arg(program);
    command
}

/// What a program prints under another launcher, which must end well; `None`: that launcher is not installed.
fn under(words: &[&str], env: &[(&str, &str)], program: &Path, argument: &str) -> Option<String> {
    if !has(words[0]) {
        return None;
    }
    // It may wait for ever where its daemons do not answer.
    let mut command = limited(words[0]);
    let (name, path) = installed().library_path();
    command
        .args(&words[1..])
        .arg(program)
        .arg(argument)
        .env(name, path)
        .envs(env.iter().copied())
        .stdin(Stdio::null());
    let output = command.output().expect("it runs");
    let said = text(&output.stdout);
    assert!(
        output.status.success(),
        "{words:?} {env:?}: {said}{}",
        text(&output.stderr)
    );
    Some(said)
}

/// Ranks of MPICH's and Open MPI's launchers find each other, in both languages, within the host's memory or as asked.
#[test]
fn other_launchers() {
    let hydra: &[&str] = &["mpiexec.mpich", "-n", "4"];
    let open_mpi: &[&str] = &[
        "mpiexec.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "4",
    ];
    let mut missing = BTreeSet::new();
    for program in programs("ring") {
        for (words, env, link) in [
            (hydra, vec![], "shm"),
            (hydra, vec![("TSUMUJI_PMI", "2")], "shm"),
            (hydra, vec![("TSUMUJI_LINK", "udp:127.0.0.1:0")], "shm+udp"),
            (open_mpi, vec![], "shm"),
            (
                open_mpi,
                vec![("TSUMUJI_LINK", "udp:127.0.0.1:0")],
                "shm+udp",
            ),
        ] {
            match under(words, &env, &program, "20") {
                None => drop(missing.insert(words[0])),
                Some(said) => assert!(
                    said.contains(&format!("20 laps of 4 nodes over {link}")),
                    "{said}"
                ),
            }
        }
    }
    for launcher in missing {
        skip_without(
            "mpi",
            "other_launchers",
            &format!("{launcher} is not installed"),
        );
    }
}

/// On two hosts of two ranks each they meet in shared memory within a host, and over UDP or a shared interface between them.
#[test]
fn other_launchers_between_hosts() {
    const TEST: &str = "other_launchers_between_hosts";
    let Some(testbed) = testbed(TEST, 2) else {
        return;
    };
    let hosts = testbed.hosts();
    let folder = tempfile::tempdir().expect("folder");
    // What the launchers run instead of ssh: options, an address, and a command.
    let remote = folder.path().join("remote");
    let cases = hosts
        .iter()
        .map(|host| format!("{}) netns={};; ", host.ip(), host.netns()));
    let script = format!(
        "#!/bin/sh\nwhile [ \"${{1#-}}\" != \"$1\" ]; do shift; done\ncase $1 in {}esac\nshift\nexec ip netns exec $netns sh -c \"$*\"\n",
        cases.collect::<String>()
    );
    std::fs::write(&remote, script).expect("script");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&remote, mode).expect("mode");
    let remote = remote.to_str().expect("UTF-8");
    let places = format!("{}:2,{}:2", hosts[0].ip(), hosts[1].ip());
    let here = ["ip", "netns", "exec", hosts[0].netns()];
    let hydra = [
        "mpiexec.mpich",
        "-launcher",
        "rsh",
        "-launcher-exec",
        remote,
        "-iface",
        "eth0",
        "-hosts",
        &places,
        "-n",
        "4",
    ];
    let open_mpi = [
        "mpiexec.openmpi",
        "--allow-run-as-root",
        "--oversubscribe",
        "--mca",
        "plm_rsh_agent",
        remote,
        "--mca",
        "oob_tcp_if_include",
        "eth0",
        "-x",
        "TSUMUJI_OPEN",
        "-x",
        "TSUMUJI_LINK",
        "-host",
        &places,
        "-n",
        "4",
    ];
    for (link, named) in [
        ("udp", "shm+udp"),
        ("udp:eth0", "shm+udp"),
        ("packet:eth0", "shm+packet"),
    ] {
        for launcher in [&hydra[..], &open_mpi[..]] {
            if !has(launcher[0]) {
                skip_without("mpi", TEST, &format!("{} is not installed", launcher[0]));
                continue;
            }
            let words = [&here[..], launcher].concat();
            let env = [("TSUMUJI_LINK", link), ("TSUMUJI_OPEN", "1")];
            let said = under(&words, &env, &programs("ring")[0], "20").expect("`ip` is there");
            assert!(
                said.contains(&format!("20 laps of 4 nodes over {named}")),
                "{said}"
            );
        }
    }
}

/// Values cross the edges of all parts: the answer is the closed form's.
#[test]
fn heat() {
    everywhere("heat", "300", 3, |_, outputs| {
        outputs[0].starts_with("300 cells, 300 steps: error ")
            && number_after(&outputs[0], "error ") < 1e-10
    });
}

/// All tasks are done, each once.
#[test]
fn farm() {
    everywhere("farm", "200000", 3, |_, outputs| {
        outputs[0].starts_with("17984 primes below 200000, by 2 workers\n")
    });
}

/// All nodes get the same sums.
#[test]
fn all_reduce() {
    everywhere("all_reduce", "100000", 3, |_, outputs| {
        let said = "pi is 3.141592653598, fewest rectangles 33333, most 33334\n";
        (0..3).all(|node| outputs[node] == format!("node {node}: {said}"))
    });
}

/// Copies become fresh, also where every fifth frame is lost.
#[test]
fn board() {
    let is_right = |outputs: &[String]| {
        let said = |node| format!("node {node}: 300 elements of lap 100; at most ");
        (0..3).all(|node| outputs[node].starts_with(&said(node)))
    };
    everywhere("board", "100", 3, |_, outputs| is_right(outputs));
    for program in programs("board") {
        for link in ["shm", "udp"] {
            let outputs = launch(&program, "100", 3, link, "0.2");
            assert!(is_right(&outputs), "{}: {outputs:#?}", program.display());
        }
    }
}

/// The iteration converges to the answer, also where every fifth frame is lost.
#[test]
fn jacobi() {
    let is_right = |outputs: &[String]| {
        outputs[0].starts_with("300 rows: residual ")
            && number_after(&outputs[0], "residual ") <= 1e-10
            && number_after(&outputs[0], "error ") < 1e-9
    };
    everywhere("jacobi", "1e-10", 3, |_, outputs| is_right(outputs));
    for program in programs("jacobi") {
        for link in ["shm", "udp"] {
            let outputs = launch(&program, "1e-10", 3, link, "0.2");
            assert!(is_right(&outputs), "{}: {outputs:#?}", program.display());
        }
    }
}

/// All processes find what one finds alone.
#[test]
fn own_problem() {
    let first = |output: &str| output.lines().next().unwrap_or_default().to_owned();
    let program = &programs("own_problem")[0];
    let alone = Command::new(program).output().expect("it starts");
    let expected = first(&text(&alone.stdout));
    assert!(expected.starts_with("first points: [0.7"), "{expected}");
    everywhere("own_problem", "", 3, |_, outputs| {
        first(&outputs[0]) == expected && outputs[1..].iter().all(String::is_empty)
    });
}

/// Senders are told to wait, urgent messages overtake, and every block comes.
#[test]
fn flow() {
    everywhere("flow", "700", 3, |_, outputs| {
        let senders_wait = outputs[1..]
            .iter()
            .all(|output| output.contains(" waits; "));
        let all_hurry =
            (1..3).all(|node| outputs[0].contains(&format!("node {node} is in a hurry\n")));
        senders_wait && all_hurry && outputs[0].ends_with("1400 blocks of 2 senders\n")
    });
}

/// A sender that is not favoured gets something, too.
#[test]
fn favour() {
    everywhere("favour", "2", 4, |_, outputs| {
        let line = |node: usize| outputs[0].lines().nth(node - 1).unwrap_or_default();
        let percent = |node: usize| number_after(line(node), " MB/s, ");
        let each = (1..4).all(|node| line(node).starts_with(&format!("node {node}: ")));
        each && (1..4).all(|node| percent(node) > 0.0)
    });
}

/// The paper's loop gets and checks every block.
#[test]
fn suci_loop() {
    everywhere("suci_loop", "20", 3, |_, outputs| {
        (0..3).all(|id| {
            outputs[id].starts_with(&format!("{id}: wrote and read 40 blocks, all right"))
        })
    });
}

/// What two processes print that a cluster file joins; `command` starts a program in the place of a node.
fn joined(program: &Path, file: &Path, command: impl Fn(usize, &Path) -> Command) -> [String; 2] {
    let children = [0, 1].map(|node| {
        let mut command = command(node, program);
        let (library, place) = installed().library_path();
        command
            .env(library, place)
            .env("TSUMUJI_CLUSTER", file)
            .env("TSUMUJI_NODE", node.to_string())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command.spawn().expect("start")
    });
    children.map(|child| {
        let output = child.wait_with_output().expect("ended");
        assert!(
            output.status.success(),
            "{}: {}",
            program.display(),
            text(&output.stderr)
        );
        text(&output.stdout)
    })
}

/// Guests join a launch by the address that it prints, over shared memory and UDP, and all tell who comes and goes.
#[test]
fn guests_come_and_go() {
    let program = programs("guests").remove(0);
    for link in ["shm", "udp"] {
        let mut spec = LaunchSpec::new(2, [program.to_str().expect("UTF-8"), "12"]);
        (spec.link, spec.admits) = (link.parse().expect("link"), true);
        spec.stdout = Printing::Lines;
        let mut launcher = Launcher::start(spec).expect("start");
        let address = loop {
            assert_eq!(launcher.wait(Duration::from_millis(20)), Progress::Running);
            if let Some(address) = launcher.join_address() {
                break address;
            }
        };
        let guest = |seconds: &str| {
            let mut command = limited(&program);
            command.arg(seconds).env("TSUMUJI_JOIN", &address);
            let output = command.output().expect("started");
            assert!(output.status.success(), "{link}: {}", text(&output.stderr));
            text(&output.stdout)
        };
        let said = guest("2");
        let hellos = [
            "node 0: \"hello from node 0\"",
            "node 1: \"hello from node 1\"",
        ];
        for part in ["node 0 (", "node 1 (", "we are 3", hellos[0], hellos[1]] {
            assert!(said.contains(part), "{link}: no `{part}` in {said}");
        }
        let again = guest("1");
        assert!(again.contains("node 1 ("), "{link}: {again}");
        drop(launcher);
    }
}

/// The same between hosts, where the guest's host is in no hosts file: by UDP and by raw Ethernet.
#[test]
fn guests_of_a_testbed() {
    let Some(testbed) = testbed("guests_of_a_testbed", 3) else {
        return;
    };
    let scratch = tempfile::tempdir().expect("a folder");
    let program = programs("guests").remove(0);
    let hosts = testbed.hosts();
    for link in ["udp", "packet"] {
        let address = |host: &tsumuji_testbed::Host| match link {
            "udp" => format!("udp:{}:7000", host.ip()),
            _ => format!("{link}:{}\"\nmac = \"{}", host.interface(), host.mac()),
        };
        let nodes = hosts[..2].iter().enumerate().map(|(id, host)| {
            format!(
                "[[node]]\nid = {id}\nhost = \"pc{id}\"\naddr = \"{}\"\n",
                address(host)
            )
        });
        let file = scratch.path().join("two.toml");
        std::fs::write(&file, nodes.collect::<String>()).expect("written");
        let start = |host: usize, seconds: &str, variables: &[(&str, &str)]| {
            let mut command = hosts[host].command("timeout");
            command.args(LIMIT).arg(&program).arg(seconds);
            command.env("TSUMUJI_OPEN", "1");
            command.envs(variables.iter().copied());
            command.stdout(Stdio::piped()).spawn().expect("started")
        };
        let path = file.to_str().expect("UTF-8");
        let of_file = |node| {
            [
                ("TSUMUJI_CLUSTER", path),
                ("TSUMUJI_NODE", node),
                ("TSUMUJI_ADMIT", "1"),
            ]
        };
        let first = [start(0, "8", &of_file("0")), start(1, "8", &of_file("1"))];
        let (to, own) = match link {
            "udp" => (format!("udp:{}:7000", hosts[0].ip()), "udp".to_owned()),
            _ => (
                hosts[0].mac().to_string(),
                format!("{link}:{}", hosts[2].interface()),
            ),
        };
        let guest = start(2, "2", &[("TSUMUJI_JOIN", &to), ("TSUMUJI_LINK", &own)]);
        let said = text(&guest.wait_with_output().expect("ended").stdout);
        for part in ["node 0 (pc0) is here", "node 1 (pc1) is here", "we are 3"] {
            assert!(said.contains(part), "{link}: no `{part}` in {said}");
        }
        for child in first {
            let output = child.wait_with_output().expect("ended");
            let said = text(&output.stdout);
            assert!(
                output.status.success() && said.contains("node 2 is gone"),
                "{link}: {said}"
            );
        }
    }
}

/// Two nodes find each other by the example's hosts file, moved to ports that are free.
#[test]
fn hosts_on_one_machine() {
    let scratch = tempfile::tempdir().expect("a folder");
    let mut file = std::fs::read_to_string(folder("hosts.toml")).expect("hosts file");
    let sockets = [(); 2].map(|()| std::net::UdpSocket::bind("127.0.0.1:0").expect("a port"));
    let addresses = sockets.map(|it| it.local_addr().expect("an address").to_string());
    for (shown, free) in ["127.0.0.1:7000", "127.0.0.1:7001"].iter().zip(&addresses) {
        assert!(file.contains(shown));
        file = file.replace(shown, free);
    }
    let path = scratch.path().join("hosts.toml");
    std::fs::write(&path, file).expect("written");
    for program in programs("hosts") {
        let said = joined(&program, &path, |_, program| limited(program));
        for (me, other) in [(0, 1), (1, 0)] {
            let address = &addresses[other];
            let wanted = format!("pc{me}: met pc{other} at {address} over udp\n");
            assert_eq!(said[me], wanted);
        }
    }
}

/// The same programs on the two hosts of a testbed, where frames cross a switch.
#[test]
fn hosts_of_a_testbed() {
    let Some(testbed) = testbed("hosts_of_a_testbed", 2) else {
        return;
    };
    for program in programs("hosts") {
        let said = joined(&program, &testbed.hosts_file(), |node, program| {
            let mut command = testbed.hosts()[node].command("timeout");
            command.args(LIMIT).arg(program).env("TSUMUJI_OPEN", "1");
            command
        });
        for (me, other) in [(0, 1), (1, 0)] {
            let (own, host) = (testbed.hosts()[me].name(), &testbed.hosts()[other]);
            let (name, ip) = (host.name(), host.ip());
            let wanted = format!("{own}: met {name} at {ip}:7000 over udp\n");
            assert_eq!(said[me], wanted);
        }
    }
}
