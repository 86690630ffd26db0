//! Testbeds as the kernel has them: built, used, impaired and removed. Needs root; says so where it is skipped.
//!
//! Each test has a testbed of its own name; one that a killed test leaves is removed by the next `up`.

mod faults;

use std::ffi::OsString;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tsumuji_testbed::{Host, Impairment, Name, Rate, Spec, Stream, Testbed, UpError};

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A name that no other test has, or nothing where the test cannot be run.
fn name(test: &str) -> Option<Name> {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    if let Err(error) = tsumuji_testbed::check_rights() {
        println!("SKIPPED {test}: {error}");
        return None;
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    Some(format!("tt{}-{count}", std::process::id()).parse().unwrap())
}

fn ip(arguments: &[&str]) -> String {
    let output = Command::new("ip").args(arguments).output().unwrap();
    assert!(
        output.status.success(),
        "ip {arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

fn namespaces_of(name: &Name) -> Vec<String> {
    let all = std::fs::read_dir("/run/netns")
        .into_iter()
        .flatten()
        .flatten();
    let prefix = format!("{name}-");
    let names = all.map(|entry| entry.file_name().into_string().unwrap());
    names.filter(|one| one.starts_with(&prefix)).collect()
}

/// A namespace of somebody else's, removed in the end.
struct Foreign(String);

impl Foreign {
    fn new(name: String) -> Self {
        ip(&["netns", "add", &name]);
        Self(name)
    }
}

impl Drop for Foreign {
    fn drop(&mut self) {
        ip(&["netns", "delete", &self.0]);
    }
}

/// A Python program in a host. The kernel kills it when the test's thread ends.
fn python(host: &Host, program: &str) -> Command {
    let mut command = host.command("setpriv");
    command.args(["--pdeathsig", "KILL", "/usr/bin/python3", "-c", program]);
    command
}

/// Runs a Python program to its end and returns what it printed.
fn told(host: &Host, program: &str) -> String {
    let output = python(host, program).output().unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a Python program and waits until it has printed its first line, "ready".
fn ready(host: &Host, program: &str) -> std::process::Child {
    use std::io::Read;
    let mut child = python(host, program)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = [0; 6];
    child
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    assert_eq!(&line, b"ready\n");
    child
}

fn rest(child: std::process::Child) -> String {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Counts datagrams to port 9 until one says "end"; prints how many there were, and how many had their text unharmed.
const COUNT_DATAGRAMS: &str = r#"
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
s.bind(("0.0.0.0", 9))
s.settimeout(50)
print("ready", flush=True)
count = whole = 0
while (data := s.recv(2048)) != b"end":
    count += 1
    whole += data == b"x" * 200
print(count, whole)
"#;

/// Sends so many datagrams to the next host, slowly enough for its queue, and then the end till it is sure to have arrived.
fn send_datagrams(to: &Host, count: u32) -> String {
    format!(
        r#"
import socket, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
for i in range({count}):
    s.sendto(b"x" * 200, ("{ip}", 9))
    if i % 50 == 0: time.sleep(0.001)
for i in range(30):
    s.sendto(b"end", ("{ip}", 9))
    time.sleep(0.01)
"#,
        ip = to.ip()
    )
}

/// How many datagrams of `count` reach host 1 from host 0, and how many of them unharmed.
fn datagrams(testbed: &Testbed, count: u32) -> (u32, u32) {
    let [from, to] = [&testbed.hosts()[0], &testbed.hosts()[1]];
    let receiver = ready(to, COUNT_DATAGRAMS);
    told(from, &send_datagrams(to, count));
    let counts = rest(receiver);
    let (all, whole) = counts.split_once(' ').unwrap();
    (all.parse().unwrap(), whole.parse().unwrap())
}

/// Hosts have the addresses and the frame size that were asked for and reach each other; nothing of it is left in the end, and
/// nothing of it was ever among the machine's own interfaces.
#[test]
fn hosts_reach_each_other_and_go() {
    let Some(name) = name("hosts_reach_each_other_and_go") else {
        return;
    };
    let own_before = ip(&["-o", "link", "show"]);
    let spec = Spec {
        mtu_bytes: 9000,
        ..Spec::new(3)
    }
    .named(name.clone());
    let testbed = Testbed::up(&spec).unwrap();
    assert_eq!(ip(&["-o", "link", "show"]), own_before);
    assert_eq!(namespaces_of(&name).len(), 4);
    assert!(testbed.hosts_file().exists());

    let status = testbed.status().unwrap();
    assert_eq!(
        (status.hosts.len(), status.mtu, status.rate),
        (3, 9000, None)
    );
    assert!(
        status
            .hosts
            .iter()
            .all(|host| host.up && host.impairment == Impairment::NONE)
    );
    for host in testbed.hosts() {
        let link = ip(&["-n", host.netns(), "-d", "link", "show", "eth0"]);
        assert!(
            link.contains(&host.mac().to_string()) && link.contains("mtu 9000"),
            "{link}"
        );
        assert!(link.contains("numtxqueues 1 numrxqueues 1"), "{link}");
    }
    // The largest packet, and its answer by TCP.
    let [a, b] = [&testbed.hosts()[0], &testbed.hosts()[2]];
    let server = ready(
        b,
        r#"
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.bind(("0.0.0.0", 9)); u.settimeout(50)
t = socket.create_server(("0.0.0.0", 9)); t.settimeout(50)
print("ready", flush=True)
data, sender = u.recvfrom(65535)
c, _ = t.accept(); c.sendall(str(len(data)).encode()); c.close()
"#,
    );
    let echo = told(
        a,
        &format!(
            r#"
import socket
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.setsockopt(socket.IPPROTO_IP, 10, 2)  # never fragment
u.sendto(bytes(9000 - 28), ("{ip}", 9))
c = socket.create_connection(("{ip}", 9), 50)
print(c.recv(100).decode())
"#,
            ip = b.ip()
        ),
    );
    rest(server);
    assert_eq!(echo, "8972");
    let sent = testbed.status().unwrap().hosts[0].counters;
    assert!(
        sent.sent_bytes > 9000 && sent.received_frames > 0,
        "{sent:?}"
    );

    let file = testbed.hosts_file();
    let removed = testbed.down().unwrap();
    assert_eq!((removed.namespaces, removed.processes), (4, 0));
    assert!(namespaces_of(&name).is_empty() && !file.exists());
}

/// A broadcast frame reaches all other hosts, and nothing disturbs a quiet network.
#[test]
fn broadcast_reaches_all_others() {
    let Some(name) = name("broadcast_reaches_all_others") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(5).named(name)).unwrap();
    let listen = r#"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
s.bind(("eth0", 0x88b5)); s.settimeout(50)
print("ready", flush=True)
print(s.recv(2048)[14:20].decode())
"#;
    let (first, others) = testbed.hosts().split_first().unwrap();
    let listeners: Vec<_> = others.iter().map(|host| ready(host, listen)).collect();
    told(
        first,
        r#"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW); s.bind(("eth0", 0))
s.send(b"\xff" * 6 + bytes.fromhex("027473000001") + b"\x88\xb5" + b"listen" + bytes(60))
"#,
    );
    for listener in listeners {
        assert_eq!(rest(listener), "listen");
    }
    let counters: Vec<_> = testbed
        .status()
        .unwrap()
        .hosts
        .iter()
        .map(|host| host.counters)
        .collect();
    assert_eq!(
        counters.iter().map(|one| one.sent_frames).sum::<u64>(),
        1,
        "{counters:?}"
    );
}

/// The shaper lets through what was asked for, for a transfer much larger than its bursts.
#[test]
fn rate_is_limited() {
    let Some(name) = name("rate_is_limited") else {
        return;
    };
    let rate: Rate = "100mbit".parse().unwrap();
    let testbed = Testbed::up(
        &Spec {
            rate: Some(rate),
            ..Spec::new(2)
        }
        .named(name),
    )
    .unwrap();
    assert_eq!(testbed.status().unwrap().rate, Some(rate));
    let [a, b] = [&testbed.hosts()[0], &testbed.hosts()[1]];
    let sink = ready(
        b,
        r#"
import socket, time
t = socket.create_server(("0.0.0.0", 9)); t.settimeout(50)
print("ready", flush=True)
c, _ = t.accept(); c.settimeout(50)
c.recv(1 << 20); start = time.monotonic(); count = 0
while data := c.recv(1 << 20): count += len(data)
print(count * 8 / (time.monotonic() - start))
"#,
    );
    told(
        a,
        &format!(
            r#"
import socket
c = socket.create_connection(("{ip}", 9), 50)
c.sendall(bytes(12 << 20)); c.close()
"#,
            ip = b.ip()
        ),
    );
    let bits_per_second: f64 = rest(sink).parse().unwrap();
    // Headers take 4 %.
    assert!(
        (85e6..105e6).contains(&bits_per_second),
        "{bits_per_second}"
    );
}

/// Loss strikes the share that was asked for, on kernel UDP and on raw Ethernet, towards the impaired host only, and ends.
#[test]
fn loss_is_real() {
    let Some(name) = name("loss_is_real") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(2).named(name)).unwrap();
    assert_eq!(datagrams(&testbed, 1000), (1000, 1000));
    let loss = Impairment {
        loss: 0.2,
        ..Impairment::NONE
    };
    testbed.impair(&[1], loss).unwrap();
    let status = testbed.status().unwrap();
    assert_eq!(
        status
            .hosts
            .iter()
            .map(|host| host.impairment)
            .collect::<Vec<_>>(),
        [Impairment::NONE, loss]
    );

    // Six standard deviations of 5000 draws are 0.034.
    let is_a_fifth = |arrived: u32| (0.766..0.834).contains(&(f64::from(arrived) / 5000.0));
    let (arrived, whole) = datagrams(&testbed, 5000);
    assert!(is_a_fifth(arrived) && whole == arrived, "{arrived}");
    let raw = raw_frames(&testbed, 5000);
    assert!(is_a_fifth(raw), "{raw}");
    let lost = testbed.status().unwrap().hosts[1].counters.lost_on_purpose;
    assert!(
        lost >= u64::from(5000 - arrived) + u64::from(5000 - raw),
        "{lost}"
    );

    // Replaced, not added.
    testbed
        .impair(
            &[0, 1],
            Impairment {
                loss: 1.0,
                ..Impairment::NONE
            },
        )
        .unwrap();
    testbed.impair(&[0, 1], Impairment::NONE).unwrap();
    assert_eq!(datagrams(&testbed, 1000), (1000, 1000));
    assert!(
        testbed
            .status()
            .unwrap()
            .hosts
            .iter()
            .all(|host| host.impairment == Impairment::NONE)
    );
}

/// How many raw frames of `count` reach host 1 from host 0, past the sender's queues.
fn raw_frames(testbed: &Testbed, count: u32) -> u32 {
    let [from, to] = [&testbed.hosts()[0], &testbed.hosts()[1]];
    let receiver = ready(
        to,
        r#"
import socket
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x88b5))
s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
s.bind(("eth0", 0x88b5)); s.settimeout(50)
print("ready", flush=True)
count = 0
while (data := s.recv(2048))[14:17] != b"end": count += 1
print(count)
"#,
    );
    told(
        from,
        &format!(
            r#"
import socket, time
s = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
s.setsockopt(263, 20, 1)  # past the queueing discipline
s.bind(("eth0", 0))
head = bytes.fromhex("{to}{from}88b5")
for i in range({count}):
    s.send(head + bytes(100))
    if i % 50 == 0: time.sleep(0.001)
for i in range(30):
    s.send(head + b"end" + bytes(60)); time.sleep(0.01)
"#,
            to = to.mac().to_string().replace(':', ""),
            from = from.mac().to_string().replace(':', "")
        ),
    );
    rest(receiver).parse().unwrap()
}

/// Copies arrive once more and are not copied again; a changed datagram is refused by its checksum, so that none is taken for sound.
#[test]
fn duplicates_and_corruption_are_real() {
    let Some(name) = name("duplicates_and_corruption_are_real") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(2).named(name)).unwrap();
    testbed
        .impair(
            &[1],
            Impairment {
                duplicate: 1.0,
                ..Impairment::NONE
            },
        )
        .unwrap();
    assert_eq!(datagrams(&testbed, 1000), (2000, 2000));

    if Command::new("ethtool").arg("--version").output().is_err() {
        println!("SKIPPED corruption: ethtool: not found; apt-get install ethtool");
        return;
    }
    testbed
        .impair(
            &[0, 1],
            Impairment {
                corrupt: 0.3,
                ..Impairment::NONE
            },
        )
        .unwrap();
    let (arrived, whole) = datagrams(&testbed, 5000);
    // Some bits (of TTL, say, or type of service) are in none of the checked places or pass unharmed: nearly all are refused.
    assert!(
        (0.64..0.78).contains(&(f64::from(arrived) / 5000.0)),
        "{arrived}"
    );
    assert_eq!(whole, arrived);
    testbed.impair(&[0, 1], Impairment::NONE).unwrap();
    let features = testbed.hosts()[0]
        .command("ethtool")
        .args(["-k", "eth0"])
        .output()
        .unwrap();
    let features = String::from_utf8(features.stdout).unwrap();
    assert!(
        features.contains("tx-checksumming: on")
            && features.contains("tcp-segmentation-offload: on"),
        "{features}"
    );
    let link = ip(&[
        "-n",
        testbed.hosts()[0].netns(),
        "-d",
        "link",
        "show",
        "eth0",
    ]);
    assert!(link.contains("gso_max_segs 65535"), "{link}");
}

/// A command runs on all hosts, its lines are told by host and stream, and each exit code is told.
#[test]
fn commands_run_on_all() {
    let Some(name) = name("commands_run_on_all") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(3).named(name)).unwrap();
    let lines = Mutex::new(Vec::new());
    let script = "ip -o addr show eth0 | grep -o 'inet [0-9.]*'; printf 'no newline' >&2; exit $(cat /sys/class/net/eth0/address | tail -c 2)";
    let exits = testbed
        .run_all(
            &command(&["sh", "-c", script]),
            &|host, stream, line| {
                lines.lock().unwrap().push((
                    host.id(),
                    stream,
                    String::from_utf8_lossy(line).into_owned(),
                ))
            },
            &|| false,
        )
        .unwrap();
    assert_eq!(
        exits
            .iter()
            .map(|exit| (exit.id, exit.code()))
            .collect::<Vec<_>>(),
        [(0, 1), (1, 2), (2, 3)]
    );
    let mut lines = lines.into_inner().unwrap();
    lines.sort_by_key(|(id, stream, _)| (*id, *stream == Stream::Error));
    let wanted = (0..3).flat_map(|id| {
        [
            (id, Stream::Output, format!("inet 10.77.0.{}", id + 1)),
            (id, Stream::Error, "no newline".to_owned()),
        ]
    });
    assert_eq!(lines, wanted.collect::<Vec<_>>());
}

fn command(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// When the caller wants to stop, all end; daemons that a command leaves behind are ended, too, and do not keep it waiting.
#[test]
fn nothing_is_left_running() {
    let Some(name) = name("nothing_is_left_running") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(2).named(name)).unwrap();
    let seen = AtomicUsize::new(0);
    let exits = testbed
        .run_all(
            &command(&[
                "sh",
                "-c",
                "trap '' INT; setsid -f sleep 1000; echo begun; sleep 1000 & wait",
            ]),
            &|_, _, _| {
                seen.fetch_add(1, Ordering::Relaxed);
            },
            &|| seen.load(Ordering::Relaxed) == 2,
        )
        .unwrap();
    assert_eq!(
        exits.iter().map(|exit| exit.code()).collect::<Vec<_>>(),
        [128 + 9, 128 + 9]
    );
    for host in testbed.hosts() {
        assert_eq!(ip(&["netns", "pids", host.netns()]), "");
    }
}

/// `down` ends what runs in the hosts, also what does not want to, and nothing else.
#[test]
fn down_ends_processes() {
    let Some(name) = name("down_ends_processes") else {
        return;
    };
    let testbed = Testbed::up(&Spec::new(2).named(name)).unwrap();
    let mut outside = Command::new("sleep").arg("1000").spawn().unwrap();
    let mut stubborn = ready(
        &testbed.hosts()[0],
        "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready', flush=True)\ntime.sleep(1000)",
    );
    let removed = testbed.down().unwrap();
    let is_outside_spared = outside.try_wait().unwrap().is_none();
    outside.kill().unwrap();
    outside.wait().unwrap();
    assert!(is_outside_spared);
    assert!(!stubborn.wait().unwrap().success());
    assert_eq!(removed.processes, 1);
}

/// Names that somebody else has taken are refused, and theirs is left as it was: by `up`, by its cleaning up, and by `down`.
#[test]
fn foreign_namespaces_are_untouched() {
    let Some(name) = name("foreign_namespaces_are_untouched") else {
        return;
    };
    for taken in [name.host(1), name.switch()] {
        let foreign = Foreign::new(taken);
        ip(&["-n", &foreign.0, "link", "set", "lo", "up"]);
        let before = ip(&["-n", &foreign.0, "link", "show"]);
        let error = Testbed::up(&Spec::new(2).named(name.clone())).unwrap_err();
        assert!(
            matches!(&error, UpError::Foreign { namespace } if *namespace == foreign.0),
            "{error}"
        );
        assert_eq!(Testbed::remove(&name).unwrap().namespaces, 0);
        assert_eq!(namespaces_of(&name), [foreign.0.as_str()]);
        assert_eq!(ip(&["-n", &foreign.0, "link", "show"]), before);
    }
    // An empty one beyond the hosts that there are to be stays, too.
    let foreign = Foreign::new(name.host(2));
    let testbed = Testbed::up(&Spec::new(2).named(name.clone())).unwrap();
    testbed.down().unwrap();
    assert_eq!(namespaces_of(&name), [foreign.0.as_str()]);
}
