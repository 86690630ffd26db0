//! `tsumuji gateway` and `tsumuji run --hosts`: unmodified programs in two hosts of a testbed, their losses and their deaths. Needs root.

use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, ChildStderr, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use tsumuji_testbed::{Impairment, Testbed};

use crate::common::{finish, run, signal, skipped, testbed, text};
use crate::runs::library;

/// Two hosts, and a gateway in each; gone in the end.
struct Bed {
    gateways: Vec<Child>,
    library: PathBuf,
    testbed: Testbed,
    link: &'static str,
}

/// A server that sends back what comes, to one client after the other, and a client that sends and gets, one way at a time and both at once; each says
/// what it saw.
const PROGRAM: &str = r#"
import hashlib, os, socket, sys, threading, time
role, size = sys.argv[1], int(sys.argv[3])
def get(s, n):
    got = bytearray()
    while len(got) < n:
        part = s.recv(65536)
        if not part:
            raise EOFError(f'{len(got)} of {n}')
        got += part
    return bytes(got)
try:
    if role in ('server', 'sleeper'):
        listener = socket.create_server((sys.argv[2], 7171))
        print('ready', flush=True)
        s, _ = listener.accept()
        print('accepted', flush=True)
        if role == 'sleeper':
            time.sleep(100)
        while part := s.recv(65536):
            s.sendall(part)
        print('end', flush=True)
        s.close()
    else:
        s = socket.create_connection((sys.argv[2], 7171))
        if role == 'listener':
            print('connected', flush=True)
            s.recv(1)
        for n in (1, 1, 1000, 1):
            data = os.urandom(n)
            s.sendall(data)
            assert get(s, n) == data
        print('talked', flush=True)
        if role == 'idle':
            s.recv(1)
            print('end', flush=True)
        data = os.urandom(size)
        sender = threading.Thread(target=lambda: (s.sendall(data), s.shutdown(socket.SHUT_WR)))
        sender.start()
        assert get(s, size) == data
        assert s.recv(1) == b''
        sender.join()
        print('same', hashlib.md5(data).hexdigest() != '', flush=True)
except OSError as error:
    print('error', type(error).__name__, flush=True)
except EOFError as error:
    print('early end', error, flush=True)
"#;

impl Bed {
    fn new(test: &str, link: &'static str) -> Option<Self> {
        let mut bed = Self {
            gateways: Vec::new(),
            library: library(test)?,
            testbed: testbed(test, 2)?,
            link,
        };
        for host in 0..2 {
            let mut command = bed.tsumuji(host, &["gateway"]);
            let child = command.stderr(Stdio::piped()).spawn().unwrap();
            bed.gateways.push(child);
        }
        for gateway in &mut bed.gateways {
            let lines = BufReader::new(gateway.stderr.take().unwrap()).lines();
            let mut told = String::new();
            let serves = lines.map_while(Result::ok).any(|line| {
                told += &line;
                line.starts_with("node ") && !line.contains("not there")
            });
            assert!(serves, "{link}: {told}");
        }
        Some(bed)
    }

    /// The program in a host, with the options that name it.
    fn tsumuji(&self, host: usize, words: &[&str]) -> Command {
        let file = self.testbed.hosts_file();
        let id = host.to_string();
        let node = ["--id", &id, "--link", self.link, "--open", "--hosts"];
        let mut command = self.testbed.hosts()[host].command(env!("CARGO_BIN_EXE_tsumuji"));
        command.args(words).args(node).arg(file);
        command
            .env("TSUMUJI_SOCKETS_LIBRARY", &self.library)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        command
    }

    /// A program in a host, under `tsumuji run`.
    fn run(&self, host: usize, words: &[&str]) -> Child {
        let mut command = self.tsumuji(host, &["run", "--explain", "--json"]);
        command.arg("--").args(words);
        let piped = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        piped.spawn().unwrap()
    }

    fn python(&self, host: usize, role: &str, size: usize) -> Child {
        let ip = self.testbed.hosts()[1].ip().to_string();
        self.run(
            host,
            &["python3", "-c", PROGRAM, role, &ip, &size.to_string()],
        )
    }
}

impl Drop for Bed {
    fn drop(&mut self) {
        for gateway in &mut self.gateways {
            let _ = gateway.kill(); // it may have ended
            let _ = gateway.wait();
        }
    }
}

/// The next line of a program's output.
fn line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

fn lines_of(child: &mut Child) -> BufReader<ChildStdout> {
    BufReader::new(child.stdout.take().unwrap())
}

/// Whether a line of a program's explanation says that the gateway carries a connection.
fn says_carried(line: &str) -> bool {
    line.contains(r#""event":"carries""#) && line.contains(r#""path":"gateway""#)
}

/// Whether the program's explanation says so.
fn is_carried(output: &Output) -> bool {
    text(&output.stderr).lines().any(says_carried)
}

/// Waits until it says so: both ends agree some time after they have connected. What it says later stays in the pipe.
fn until_carried(child: &mut Child) -> BufReader<ChildStderr> {
    let mut said = BufReader::new(child.stderr.take().unwrap());
    let mut line = String::new();
    while !says_carried(&line) {
        line.clear();
        let bytes = said.read_line(&mut line).unwrap();
        assert!(bytes > 0, "it has ended, or is not carried");
    }
    said
}

/// What one program writes the other one reads, both ways at once, over every link; also where frames are lost, repeated and damaged.
#[test]
fn streams_cross_hosts() {
    let links = [
        ("udp", 0.0),
        ("packet", 0.0),
        ("xdp", 0.0),
        ("udp", 0.02),
        ("dpdk:net_af_packet", 0.0),
    ];
    for (link, loss) in links {
        if link.starts_with("dpdk") && crate::dpdk::lacking("streams_cross_hosts") {
            continue;
        }
        let Some(bed) = Bed::new("streams_cross_hosts", link) else {
            return;
        };
        if loss > 0.0 {
            let impairment = Impairment {
                loss,
                duplicate: loss,
                corrupt: loss / 4.0,
            };
            bed.testbed.impair(&[0, 1], impairment).unwrap();
        }
        let mut server = bed.python(1, "server", 0);
        let mut said = lines_of(&mut server);
        assert_eq!(line(&mut said), "ready", "{link}");
        let client = finish(bed.python(0, "client", 3 << 20));
        let what = format!("{link} {loss}: {}", text(&client.stderr));
        assert_eq!(text(&client.stdout), "talked\nsame True\n", "{what}");
        assert!(is_carried(&client), "{what}");
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, "accepted\nend\n", "{what}");
        assert!(is_carried(&finish(server)), "{what}");
    }
}

/// A program that is killed is noticed by the other one; a gateway that is killed takes its connections along, and what is connected later is TCP's.
#[test]
fn deaths_are_noticed() {
    for victim in ["client", "server", "gateway"] {
        let Some(mut bed) = Bed::new("deaths_are_noticed", "udp") else {
            return;
        };
        let mut server = bed.python(1, "server", 0);
        let mut served = lines_of(&mut server);
        assert_eq!(line(&mut served), "ready");
        let mut client = bed.python(0, "idle", 1);
        let mut said = lines_of(&mut client);
        assert_eq!(line(&mut said), "talked");
        assert_eq!(line(&mut served), "accepted");
        let _pipes = [&mut client, &mut server].map(until_carried);
        let begun = Instant::now();
        match victim {
            "client" => {
                signal("-KILL", client.id());
                assert_eq!(line(&mut served), "end");
            }
            "server" => {
                signal("-KILL", server.id());
                assert_eq!(line(&mut said), "end");
            }
            _ => {
                bed.gateways[0].kill().unwrap();
                assert_eq!(line(&mut said), "error ConnectionResetError");
                // Its kernel has told of the client's end, too, once the other gateway misses the first one.
                let told = line(&mut served);
                assert!(
                    told == "error ConnectionResetError" || told == "end",
                    "{told}"
                );
            }
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{victim}");
        finish(client);
        finish(server);
        if victim == "gateway" {
            let mut server = bed.python(1, "server", 0);
            let mut served = lines_of(&mut server);
            assert_eq!(line(&mut served), "ready");
            let ip = bed.testbed.hosts()[1].ip().to_string();
            let mut plain = bed.testbed.hosts()[0].command("python3");
            plain.args(["-c", PROGRAM, "client", &ip, "100000"]);
            let client = run(&mut plain);
            assert_eq!(text(&client.stdout), "talked\nsame True\n");
            assert!(!is_carried(&finish(server)));
        }
    }
}

/// A gateway that ends when one end has gone over and the other has not yet said so resets the connection; nobody waits for what cannot come.
#[test]
fn gateway_that_ends_early_resets() {
    let Some(mut bed) = Bed::new("gateway_that_ends_early_resets", "udp") else {
        return;
    };
    let mut server = bed.python(1, "sleeper", 0);
    let mut served = lines_of(&mut server);
    assert_eq!(line(&mut served), "ready");
    let mut client = bed.python(0, "listener", 0);
    let mut said = lines_of(&mut client);
    assert_eq!(line(&mut said), "connected");
    assert_eq!(line(&mut served), "accepted");
    let _pipe = until_carried(&mut client);
    bed.gateways[0].kill().unwrap();
    assert_eq!(line(&mut said), "error ConnectionResetError");
    finish(client);
    signal("-KILL", server.id());
    finish(server);
}

/// `run` starts the gateway that it needs; wrong options are told in one line.
#[test]
fn run_starts_gateways() {
    let Some(mut bed) = Bed::new("run_starts_gateways", "udp") else {
        return;
    };
    for gateway in &mut bed.gateways {
        signal("-TERM", gateway.id());
        assert!(gateway.wait().unwrap().success());
    }
    let mut server = bed.python(1, "server", 0);
    let mut said = lines_of(&mut server);
    assert_eq!(line(&mut said), "ready");
    let client = finish(bed.python(0, "client", 100_000));
    let what = text(&client.stderr);
    assert_eq!(text(&client.stdout), "talked\nsame True\n", "{what}");
    assert!(is_carried(&client), "{what}");
    assert!(is_carried(&finish(server)));
    // They end when nobody has used them for ten seconds: until then, another one is refused.
    let second = run(&mut bed.tsumuji(0, &["gateway"]));
    assert_eq!(second.status.code(), Some(2));
    let told = text(&second.stderr);
    assert!(told.contains("another gateway of this user"), "{told}");
    let begun = Instant::now();
    let serves = |host: usize| {
        let mut command = bed.testbed.hosts()[host].command("cat");
        let unix = command.arg("/proc/net/unix").output().unwrap();
        text(&unix.stdout).contains("@tsumuji-gateway")
    };
    while serves(0) || serves(1) {
        assert!(begun.elapsed() < Duration::from_secs(40), "they stay");
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// Real programs in two hosts: a key-value server and its benchmark.
#[test]
fn redis_serves_another_host() {
    let test = "redis_serves_another_host";
    let has = |name: &str| {
        let mut shell = Command::new("sh");
        let found = shell.args(["-c", &format!("command -v {name}")]).output();
        found.is_ok_and(|output| output.status.success())
    };
    if !has("redis-server") || !has("redis-benchmark") {
        return skipped(test, "redis is not installed");
    }
    let Some(bed) = Bed::new(test, "udp") else {
        return;
    };
    let ip = bed.testbed.hosts()[1].ip().to_string();
    let words = [
        "redis-server",
        "--port",
        "7172",
        "--bind",
        &ip,
        "--save",
        "",
        "--protected-mode",
        "no",
    ];
    let mut server = bed.run(1, &words);
    let mut said = lines_of(&mut server);
    let mut told = String::new();
    while !told.contains("eady to accept connections") {
        told = line(&mut said);
        assert!(!told.is_empty(), "the server has ended");
    }
    // What it says from now on goes nowhere.
    let rest = std::thread::spawn(move || said.read_to_end(&mut Vec::new()));
    let words = [
        "redis-benchmark",
        "-h",
        &ip,
        "-p",
        "7172",
        "-t",
        "set,get",
        "-n",
        "4000",
        "-c",
        "20",
        "-d",
        "3000",
        "-q",
    ];
    let client = finish(bed.run(0, &words));
    let what = text(&client.stderr);
    assert!(client.status.success(), "{what}");
    assert!(text(&client.stdout).contains("GET"), "{what}");
    assert!(is_carried(&client), "{what}");
    signal("-TERM", server.id());
    assert!(is_carried(&finish(server)));
    rest.join().unwrap().unwrap();
}
