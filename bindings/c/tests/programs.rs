//! C programs built against the installed library, and run: by themselves, and as several processes over each link.

mod common;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use common::{has, installed, run, skip, skip_without, testbed, text};
use tsumuji_node::{LaunchSpec, Launcher, LinkSpec};

/// Only turns a hang into a failure; nothing is measured by it.
const LONG: Duration = Duration::from_secs(100);

/// Processes of one run, ended with the test.
struct Running(Vec<(String, Child)>);

impl Running {
    fn start(commands: impl IntoIterator<Item = (String, Command)>) -> Self {
        let mut running = Self(Vec::new());
        for (name, mut command) in commands {
            command
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let child = command
                .spawn()
                .unwrap_or_else(|error| panic!("{command:?}: {error}"));
            running.0.push((name, child));
        }
        running
    }

    /// Standard output of each, in order; all must end well.
    fn finish(self) -> Vec<String> {
        let well = |(name, output): (String, Output)| {
            assert!(
                output.status.success(),
                "{name}: {}\n{}{}",
                output.status,
                text(&output.stdout),
                text(&output.stderr)
            );
            text(&output.stdout)
        };
        self.ended().into_iter().map(well).collect()
    }

    /// How each ended, in order.
    fn ended(mut self) -> Vec<(String, Output)> {
        let start = std::time::Instant::now();
        let all: Vec<(String, Child)> = self.0.drain(..).collect();
        let mut left = Self(all);
        while left
            .0
            .iter_mut()
            .any(|(_, child)| matches!(child.try_wait(), Ok(None)))
        {
            assert!(start.elapsed() < LONG, "they do not end");
            std::thread::sleep(Duration::from_millis(5));
        }
        let ended: Vec<(String, Child)> = left.0.drain(..).collect();
        ended
            .into_iter()
            .map(|(name, child)| (name, child.wait_with_output().expect("ended")))
            .collect()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        for (_, child) in &mut self.0 {
            let _ = child.kill(); // it may have ended
            let _ = child.wait();
        }
    }
}

fn suci_loop() -> PathBuf {
    installed().build("suci_loop", &["../../examples/c/suci_loop.c"], &[])
}

/// An address that no other process of this machine uses: loopback has 16 million.
fn loopback(port: u16) -> String {
    let pid = std::process::id();
    format!(
        "127.{}.{}.{}:{port}",
        1 + (pid >> 16) % 250,
        (pid >> 8) & 255,
        pid & 255
    )
}

fn database(name: &str, lines: &[String]) -> PathBuf {
    let path = installed().scratch().join(name);
    std::fs::write(&path, lines.join("\n")).expect("written");
    path
}

fn suci_processes(
    program: &Path,
    database: &Path,
    ids: &[u16],
    blocks: u32,
    more: &[(&str, &str)],
) -> Vec<String> {
    let commands = ids.iter().map(|id| {
        let mut command = installed().command(program);
        command
            .arg(blocks.to_string())
            .arg(database)
            .arg(id.to_string())
            .envs(more.iter().copied());
        (format!("id {id}"), command)
    });
    Running::start(commands).finish()
}

fn all_right(outputs: &[String], ids: &[u16], blocks: u32) {
    let total = blocks as usize * (ids.len() - 1);
    for (output, id) in outputs.iter().zip(ids) {
        let wanted = format!("{id}: wrote and read {total} blocks, all right");
        assert!(output.starts_with(&wanted), "{output}");
    }
}

/// The plain API and Suci's calls do what the headers say, and refuse what makes no sense.
#[test]
fn plain_api_in_one_process() {
    let program = installed().build("plain", &["tests/plain.c"], &[]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "plain: all right\n");
}

/// A peer that ended is found again, and a reader that stops stops its writers, by Suci's calls.
#[test]
fn suci_calls_in_one_process() {
    let program = installed().build("suci", &["tests/suci.c"], &[]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "suci: all right\n");
}

/// Channels with owners, handlers that answer, and threads that send, from C.
#[test]
fn channels_have_owners() {
    let program = installed().build("channels", &["tests/channels.c"], &["-pthread"]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "channels: all right\n");
}

/// Boards hold what was published, other receivers lose nothing to them, and misuse is refused.
#[test]
fn boards_in_one_process() {
    let program = installed().build("board", &["tests/board.c"], &[]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "board: all right\n");
}

/// Messages of an ordered channel come in order, by whichever calls a C program receives.
#[test]
fn order_survives_every_call() {
    let program = installed().build("order", &["tests/order.c"], &["-pthread"]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "order: all right\n");
}

/// What no program should do is a documented error, and nothing worse.
#[test]
fn hostile_programs_get_errors() {
    let program = installed().build("hostile", &["tests/hostile.c"], &[]);
    let said = run(&mut installed().command(program));
    assert_eq!(text(&said.stdout), "hostile: all right\n");
}

/// The same with the archive linked in: it needs no shared library of ours.
#[test]
fn archive_needs_nothing_else() {
    let program = installed().build("plain-static", &["tests/plain.c"], &["static-library"]);
    let said = run(&mut Command::new(program));
    assert_eq!(text(&said.stdout), "plain: all right\n");
}

/// No byte of the program is touched that is not meant to be, and all memory is given back.
#[test]
fn memory_is_respected() {
    let name = "memory_is_respected";
    if !has("valgrind") {
        return skip_without("c", name, "valgrind is not installed");
    }
    let checks = [
        "--quiet",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    let program = installed().build("plain-checked", &["tests/plain.c"], &[]);
    run(installed().command("valgrind").args(checks).arg(program));
    let program = installed().build("board-checked", &["tests/board.c"], &[]);
    run(installed().command("valgrind").args(checks).arg(program));
    let program = installed().build("hostile-checked", &["tests/hostile.c"], &[]);
    let mut hostile = installed().command("valgrind");
    run(hostile.args(checks).arg(program).arg("checked"));
    let program = installed().build("collectives-checked", &["tests/collectives.c"], &[]);
    let program = program.to_str().expect("UTF-8");
    let arguments: Vec<&str> = checks.into_iter().chain([program]).collect();
    launch(Path::new("valgrind"), &arguments, 2, "shm");
}

/// The paper's loop between three processes over UDP, ids sparse; also by the paper's rules, and when frames are lost.
#[test]
fn suci_loop_over_udp() {
    let program = suci_loop();
    let ids = [3, 10, 400];
    let lines = |base: u16| {
        ids.iter()
            .zip(base..)
            .map(|(id, port)| format!("{id} {} # a comment", loopback(port)))
            .collect::<Vec<_>>()
    };
    let outputs = suci_processes(&program, &database("udp.txt", &lines(7000)), &ids, 60, &[]);
    all_right(&outputs, &ids, 60);
    let paper = [("TSUMUJI_CONGESTION", "suci")];
    let outputs = suci_processes(
        &program,
        &database("paper.txt", &lines(7020)),
        &ids,
        30,
        &paper,
    );
    all_right(&outputs, &ids, 30);
    let lossy = [("TSUMUJI_LOSS", "0.1")];
    let outputs = suci_processes(
        &program,
        &database("lossy.txt", &lines(7010)),
        &ids,
        20,
        &lossy,
    );
    all_right(&outputs, &ids, 20);
    let both = [("TSUMUJI_LOSS", "0.02"), ("TSUMUJI_CONGESTION", "suci")];
    let outputs = suci_processes(
        &program,
        &database("both.txt", &lines(7030)),
        &ids,
        10,
        &both,
    );
    all_right(&outputs, &ids, 10);
}

/// In processes of a launcher both examples take their endpoint from the environment, over shared memory and UDP.
#[test]
fn examples_under_a_launcher() {
    let pingpong = installed().build("pingpong", &["examples/pingpong.c"], &[]);
    for (program, argument, nodes, link) in [
        (suci_loop(), "50", 4, "shm"),
        (suci_loop(), "20", 3, "udp"),
        (pingpong.clone(), "20", 2, "shm"),
        (pingpong, "10", 2, "udp"),
    ] {
        launch(&program, &[argument], nodes, link);
    }
}

/// What `tsumuji launch` does; all must end well.
fn launch(program: &Path, arguments: &[&str], nodes: usize, link: &str) {
    let program = program.to_str().expect("UTF-8");
    let mut spec = LaunchSpec::new(nodes, std::iter::once(&program).chain(arguments));
    spec.link = link.parse::<LinkSpec>().expect("link");
    spec.env.push(installed().library_path());
    spec.join_timeout = LONG;
    let mut launcher = Launcher::start(spec).expect("start");
    let exits = launcher.wait_all(LONG);
    assert_eq!(exits.len(), nodes);
    for exit in exits {
        assert_eq!(exit.status.code(), Some(0), "{link}: {exit:?}");
    }
}

/// Collectives give what they should, in both forms, on groups, to every type; wrong calls are refused, and a death is told.
#[test]
fn collectives_under_a_launcher() {
    let program = installed().build("collectives", &["tests/collectives.c"], &[]);
    for (nodes, link) in [(4, "shm"), (3, "udp"), (1, "shm")] {
        launch(&program, &[], nodes, link);
    }
}

/// The same among hosts of several nodes each, as a cluster file describes them.
#[test]
fn collectives_among_hosts() {
    let program = installed().build("collectives-hosts", &["tests/collectives.c"], &[]);
    let node = |id: u16| {
        let (host, addr) = (id / 2, loopback(7100 + id));
        format!("[[node]]\nid = {id}\nhost = \"pc{host}\"\naddr = \"udp:{addr}\"\n")
    };
    let nodes: Vec<String> = (0..5).map(node).collect();
    let path = database("hosts.toml", &nodes);
    let commands = (0..5).map(|id: u16| {
        let mut command = installed().command(&program);
        command
            .env("TSUMUJI_CLUSTER", &path)
            .env("TSUMUJI_NODE", id.to_string())
            .env("TSUMUJI_OPEN", "1");
        (format!("node {id}"), command)
    });
    Running::start(commands).finish();
}

/// The same programs over raw Ethernet between hosts: by a link named in the database, and by one named for all.
#[test]
fn suci_loop_over_raw_ethernet() {
    let Some(testbed) = testbed("suci_loop_over_raw_ethernet", 2) else {
        return;
    };
    let program = suci_loop();
    let (library_path, folder) = installed().library_path();
    for (kind, by_database) in [("packet", true), ("packet", false), ("xdp", false)] {
        let lines: Vec<String> = testbed
            .hosts()
            .iter()
            .map(|host| match by_database {
                true => format!(
                    "{} {kind}:{} {}",
                    host.id() + 5,
                    host.interface(),
                    host.mac()
                ),
                false => format!("{} {}", host.id() + 5, host.mac()),
            })
            .collect();
        let path = database(&format!("{kind}-{by_database}.txt"), &lines);
        let commands = testbed.hosts().iter().map(|host| {
            let mut command = host.command(&program);
            command
                .arg("40")
                .arg(&path)
                .arg((host.id() + 5).to_string())
                .env(&library_path, &folder)
                .env("TSUMUJI_OPEN", "1");
            if !by_database {
                command.arg(format!("{kind}:{}", host.interface()));
            }
            (format!("{kind} on {}", host.name()), command)
        });
        let outputs = Running::start(commands).finish();
        all_right(&outputs, &[5, 6], 40);
    }
}

/// And over a DPDK device, where the library is built with DPDK: two ends of shared memory, without rights or a card.
#[test]
fn suci_loop_over_dpdk() {
    let program = suci_loop();
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("memif.sock");
    let device = |role: &str, mac: &str| {
        let socket = socket.display();
        format!(
            "dpdk:net_memif,role={role},socket={socket},socket-abstract=no,id=0,mac={mac} {mac}"
        )
    };
    let lines = [
        format!("0 {}", device("server", "02:00:00:00:00:01")),
        format!("1 {}", device("client", "02:00:00:00:00:02")),
    ];
    let path = database("dpdk.txt", &lines);
    let commands = [0, 1].map(|id| {
        let mut command = installed().command(&program);
        command.arg("40").arg(&path).arg(id.to_string());
        command.env("TSUMUJI_OPEN", "1");
        (format!("id {id}"), command)
    });
    let ended = Running::start(commands).ended();
    let said: String = ended
        .iter()
        .map(|(_, output)| text(&output.stderr))
        .collect();
    if said.contains("built without DPDK") || said.contains("DPDK cannot be loaded") {
        return skip(
            "suci_loop_over_dpdk",
            "DPDK is not built in, or not installed",
        );
    }
    for ((name, output), id) in ended.iter().zip([0, 1]) {
        let printed = text(&output.stdout);
        assert!(output.status.success(), "{name}: {printed}{said}");
        all_right(&[printed], &[id, 1 - id], 40);
    }
}
