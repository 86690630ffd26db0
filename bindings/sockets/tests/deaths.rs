//! Ends that are killed at any moment: the other end notices, a server serves its other clients, and nothing is left.

mod common;

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Carried, build, carried, kill, run, with};

/// Kills of each kind, at times that go through the first tenths of a second.
const ROUNDS: u64 = 25;
/// How long an end may take to notice.
const NOTICED_WITHIN: Duration = Duration::from_secs(10);

struct Mortal {
    program: PathBuf,
    folder: tempfile::TempDir,
}

impl Mortal {
    fn new(test: &str) -> Option<Self> {
        let program = build(test, &format!("mortal-{test}"), &["programs/mortal.c"])?;
        let folder = tempfile::tempdir().expect("a folder");
        Some(Self { program, folder })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words).stdin(Stdio::null());
        with(&mut command, Carried);
        command
    }

    fn start(&self, words: &[&str]) -> Ended {
        let mut command = self.command(words);
        // Its children may outlive it; none shall keep the test's own output open.
        command
            .env_remove("TSUMUJI_SOCKETS_EXPLAIN")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ended(command.spawn().expect("a process"))
    }

    /// A server, and its port.
    fn serve(&self, how: &str) -> (Ended, String) {
        let file = self.folder.path().join("port");
        let _ = std::fs::remove_file(&file); // of the last one
        let server = self.start(&[how, file.to_str().expect("a path")]);
        let until = Instant::now() + NOTICED_WITHIN;
        loop {
            let port = std::fs::read_to_string(&file).unwrap_or_default();
            if port.ends_with('\n') {
                return (server, port.trim().to_owned());
            }
            assert!(Instant::now() < until, "the server does not start");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// A client with so many rounds ends well, and its connections are carried.
    fn talk_well(&self, port: &str) {
        let output = run(&mut self.command(&["talk", port, "50"]), b"");
        let said = common::short(&output.stderr);
        assert!(output.status.success(), "{}: {said}", output.status);
        assert!(carried(&output.stderr) > 0, "{said}");
    }
}

/// A process that does not outlive the test.
struct Ended(Child);

impl Ended {
    /// It ends by itself, with success.
    fn notices(mut self) {
        let until = Instant::now() + NOTICED_WITHIN;
        loop {
            if let Some(status) = self.0.try_wait().expect("a child") {
                assert!(status.success(), "{status}");
                return;
            }
            assert!(Instant::now() < until, "it hangs");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Whether there is a mailbox of a listener of the loopback address at that port: an abstract socket, which lives as long as any process has it open.
fn has_mailbox(port: &str) -> bool {
    let port: u16 = port.parse().expect("a port");
    let name = format!("@tsumuji-tcp/2/{:020}ffff7f000001{port:04x}\n", 0);
    let all = std::fs::read("/proc/net/unix").expect("the kernel's sockets");
    String::from_utf8_lossy(&all).contains(&name)
}

/// What a process has open, and segments that it has mapped.
fn holds(process: &Ended) -> (usize, usize) {
    let folder = format!("/proc/{}", process.0.id());
    let open = std::fs::read_dir(format!("{folder}/fd")).expect("its descriptors");
    let maps = std::fs::read_to_string(format!("{folder}/maps")).expect("its memory");
    (open.count(), maps.matches("memfd:tsumuji").count())
}

fn moment(round: u64) -> Duration {
    Duration::from_micros(500 + round * round * 200)
}

/// Clients of a killed server end, at whatever moment it was killed.
#[test]
fn clients_notice_a_dead_server() {
    let Some(mortal) = Mortal::new("clients_notice_a_dead_server") else {
        return;
    };
    for round in 0..ROUNDS {
        for how in ["serve", "fork"] {
            let (server, port) = mortal.serve(how);
            let clients = [0, 1].map(|_| mortal.start(&["talk", &port, "0"]));
            std::thread::sleep(moment(round));
            if how == "fork" {
                // Its children hold the connections: those die, too.
                let children = format!("/proc/{0}/task/{0}/children", server.0.id());
                kill(server.0.id(), "STOP");
                let children = std::fs::read_to_string(children).unwrap_or_default();
                for child in children.split_ascii_whitespace() {
                    kill(child.parse().expect("a number"), "KILL");
                }
            }
            assert!(has_mailbox(&port), "{how} {round}");
            drop(server);
            for client in clients {
                client.notices();
            }
            // Children that have just been killed may hold it for a moment.
            let until = Instant::now() + NOTICED_WITHIN;
            while has_mailbox(&port) {
                assert!(Instant::now() < until, "{how} {round}: the mailbox stays");
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}

/// A server whose clients are killed serves the others and those that come later, and does not keep what it had for those that are gone.
#[test]
fn a_server_survives_dead_clients() {
    let Some(mortal) = Mortal::new("a_server_survives_dead_clients") else {
        return;
    };
    for how in ["serve", "fork"] {
        let (server, port) = mortal.serve(how);
        let stays = mortal.start(&["talk", &port, "0"]);
        for round in 0..ROUNDS {
            let client = mortal.start(&["talk", &port, "0"]);
            std::thread::sleep(moment(round));
            drop(client);
            if round % 5 == 0 {
                mortal.talk_well(&port);
            }
        }
        mortal.talk_well(&port);
        // It keeps some for next connections, as many as it ever will by now.
        let kept = holds(&server);
        for _ in 0..2 * ROUNDS {
            let client = mortal.start(&["talk", &port, "0"]);
            std::thread::sleep(moment(ROUNDS / 3));
            drop(client);
        }
        mortal.talk_well(&port);
        let held = holds(&server);
        let most = (kept.0 + ROUNDS as usize, kept.1 + ROUNDS as usize);
        assert!(
            held.0 < most.0 && held.1 < most.1,
            "{how}: {kept:?}, then {held:?}"
        );
        drop(server);
        if how == "serve" {
            stays.notices();
        }
    }
}

/// A client that writes anything into the memory that it shares with a server harms itself only.
#[test]
fn a_server_survives_a_hostile_client() {
    let Some(mortal) = Mortal::new("a_server_survives_a_hostile_client") else {
        return;
    };
    for how in ["serve", "fork"] {
        let (mut server, port) = mortal.serve(how);
        for _ in 0..5 {
            // It may be ended by what it has done to itself.
            run(&mut mortal.command(&["scribble", &port]), b"");
            mortal.talk_well(&port);
        }
        let ended = server.0.try_wait().expect("a child");
        assert!(ended.is_none(), "{ended:?}");
    }
}

/// A client that makes a server believe that its connection waits does not stop it.
#[test]
fn a_server_that_does_not_wait_cannot_be_made_to() {
    let Some(mortal) = Mortal::new("a_server_that_does_not_wait_cannot_be_made_to") else {
        return;
    };
    let (_server, port) = mortal.serve("drain");
    let mut client = mortal.start(&["block", &port]);
    for _ in 0..5 {
        std::thread::sleep(Duration::from_millis(100));
        let talker = mortal.start(&["talk", &port, "50"]);
        talker.notices();
    }
    let ended = client.0.try_wait().expect("a child");
    assert!(ended.is_none(), "{ended:?}");
}

/// A server that stands still holds up its clients, who go on when it does.
#[test]
fn a_stopped_server_goes_on() {
    let Some(mortal) = Mortal::new("a_stopped_server_goes_on") else {
        return;
    };
    let (server, port) = mortal.serve("serve");
    let client = mortal.start(&["talk", &port, "2000"]);
    for _ in 0..5 {
        kill(server.0.id(), "STOP");
        std::thread::sleep(Duration::from_millis(30));
        kill(server.0.id(), "CONT");
        std::thread::sleep(Duration::from_millis(10));
    }
    client.notices();
}
