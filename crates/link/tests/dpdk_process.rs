//! Two processes joined by memif: frames pass, a killed one does not take the other with it, a successor is served, and nothing is left
//! behind. Without DPDK the test says so and tests nothing.
//!
//! A program of its own: a process sets DPDK up once, and this looks for what its process leaves behind.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
use tsumuji_link::dpdk::{Dpdk, DpdkConfig, DpdkOpenError, DpdkSpec};
use tsumuji_link::{Frame, Link, LinkAddr, each};

/// Nothing here takes this long on a machine that is alive.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_EVERY: Duration = Duration::from_millis(10);
const FRAMES: u32 = 10_000;
/// Each a moment of its own.
const KILLS_IN_A_STREAM: u32 = 4;
/// Frames in flight at most.
const WINDOW: u32 = 200;
/// Names the device on which `answer_frames` answers.
const ANSWER_ENV: &str = "TSUMUJI_DPDK_TEST_ANSWER";

/// Not a test of its own: what the others start, and kill.
#[test]
#[ignore = "run by other tests as a program to be killed"]
fn answer_frames() {
    let spec = std::env::var(ANSWER_ENV).expect("the device");
    let spec: DpdkSpec = spec.parse().expect("a name");
    let mut link = open(&spec);
    println!("open");
    // One whose test died ends by itself.
    let begun = Instant::now();
    let mut answers: Vec<(LinkAddr, Vec<u8>)> = Vec::new();
    while begun.elapsed() < PATIENCE {
        let got = link
            .receive(
                32,
                &mut each(|from, frame| answers.push((from, frame.to_vec()))),
            )
            .expect("receive");
        answers.retain(|(to, frame)| !link.send_one(*to, Frame::whole(frame)).expect("send_with"));
        link.flush().expect("flush");
        if got == 0 {
            link.wait(POLL_EVERY).expect("wait");
        }
    }
}

fn start_answerer(spec: &str) -> Child {
    Command::new(std::env::current_exe().expect("a path"))
        .args(["--exact", "--ignored", "answer_frames", "--nocapture"])
        .env(ANSWER_ENV, spec)
        .stdout(Stdio::piped())
        .spawn()
        .expect("start")
}

fn wait_open(child: &mut Child) {
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let open = lines.any(|line| line.expect("text").ends_with("open"));
    assert!(open, "the child has its end");
}

/// Opens a device, and waits as long as it takes for its link: while others take the cores, the two ends of memif may need longer than the default.
fn open(spec: &DpdkSpec) -> Dpdk {
    let config = DpdkConfig {
        up_timeout: PATIENCE,
        ..DpdkConfig::default()
    };
    Dpdk::open(spec, config).expect("open")
}

/// Sends numbered frames until all came back.
fn exchange(link: &mut Dpdk, frames: u32) {
    let begun = Instant::now();
    let (mut sent, mut back) = (0, 0);
    while back < frames {
        while sent < frames && sent - back < WINDOW {
            let bytes = 4 + sent as usize % 1400;
            let mut frame = vec![sent as u8; bytes];
            frame[..4].copy_from_slice(&sent.to_le_bytes());
            let taken = (link.send_one(LinkAddr::Broadcast, Frame::whole(&frame))).expect("send");
            if !taken {
                break;
            }
            sent += 1;
        }
        link.flush().expect("flush");
        let got = link
            .receive(
                64,
                &mut each(|_, frame| {
                    assert_eq!(frame[..4], back.to_le_bytes(), "in order");
                    assert_eq!(frame.len(), 4 + back as usize % 1400);
                    assert!(frame[4..].iter().all(|byte| *byte == back as u8));
                    back += 1;
                }),
            )
            .expect("receive");
        if got == 0 {
            assert!(begun.elapsed() < PATIENCE, "{back} of {sent} came back");
            link.wait(POLL_EVERY).expect("wait");
        }
    }
}

fn leftovers(pid: u32) -> Vec<String> {
    let mut found = Vec::new();
    for folder in ["/var/run/dpdk", "/tmp/dpdk", "/dev/hugepages", "/dev/shm"] {
        let names = std::fs::read_dir(folder).into_iter().flatten().flatten();
        let names = names.map(|entry| entry.path().display().to_string());
        found.extend(names.filter(|name| name.contains(&format!("tsumuji-{pid}"))));
    }
    found
}

/// Whether no DPDK device can be made here; says why.
fn lacking() -> bool {
    match Dpdk::open(&"net_null".parse().expect("a name"), DpdkConfig::default()) {
        Ok(_) => false,
        Err(error @ (DpdkOpenError::NotBuiltIn | DpdkOpenError::NotInstalled { .. })) => {
            eprintln!("skipped, no DPDK here: {error}");
            true
        }
        Err(error) => panic!("{error}"),
    }
}

fn kill(child: &mut Child) {
    child.kill().expect("SIGKILL");
    child.wait().expect("dead");
}

/// Sends to a dead peer until the first frame is given up.
fn send_in_vain(link: &mut Dpdk) {
    let dropped = link.counters().dropped_frames;
    let begun = Instant::now();
    while link.counters().dropped_frames == dropped {
        link.send_one(LinkAddr::Broadcast, Frame::whole(&[1; 100]))
            .expect("send_with");
        link.flush().expect("flush");
        link.wait(Duration::from_millis(1)).expect("wait");
        assert!(begun.elapsed() < PATIENCE, "frames go nowhere, uncounted");
    }
    assert_eq!(link.receive(8, &mut each(|_, _| {})).expect("receive"), 0);
}

/// Frames pass between two processes; when the server is killed the client lives on, its frames are dropped and counted, its mbufs come
/// back, and it opens anew to a successor.
#[test]
fn killed_server_is_survived() {
    if lacking() {
        return;
    }
    let name = format!("socket=tsumuji-kill-server-{},id=0", std::process::id());
    let server = format!("dpdk:net_memif,role=server,{name}");
    let client: DpdkSpec = format!("dpdk:net_memif,role=client,{name}")
        .parse()
        .expect("a name");
    for round in 0..3 {
        let mut child = start_answerer(&server);
        // Begun before its server is there: it waits.
        let mut link = open(&client);
        wait_open(&mut child);
        exchange(&mut link, if round == 0 { FRAMES } else { 500 });
        let in_use = link.mbufs_in_use();
        kill(&mut child);
        send_in_vain(&mut link);
        assert!(link.mbufs_in_use() <= in_use.max(64) + 64, "mbufs are lost");
        drop(link);
        assert_eq!(leftovers(child.id()), [""; 0]);
    }
    assert_eq!(leftovers(std::process::id()), [""; 0]);
}

/// DPDK's threads take no signal, SIGPIPE above all: memif writes to sockets whose other end may be gone.
#[test]
fn threads_of_dpdk_take_no_signals() {
    if lacking() {
        return;
    }
    let mut threads = 0;
    for task in std::fs::read_dir("/proc/self/task").expect("threads") {
        let folder = task.expect("a thread").path();
        let name = std::fs::read_to_string(folder.join("comm")).unwrap_or_default();
        let status = std::fs::read_to_string(folder.join("status")).unwrap_or_default();
        let blocked = (status.lines()).find_map(|line| line.strip_prefix("SigBlk:\t"));
        if let Some(blocked) = blocked.filter(|_| name.contains("intr")) {
            let blocked = u64::from_str_radix(blocked, 16).expect("a mask");
            assert_ne!(blocked & 1 << (libc::SIGPIPE - 1), 0, "{name}: {blocked:x}");
            threads += 1;
        }
    }
    assert!(threads > 0, "no thread for interrupts");
}

/// Clients that hang up before the server greets them harm nobody: it lives, and serves the next.
#[test]
fn clients_that_hang_up_are_survived() {
    if lacking() {
        return;
    }
    let socket = format!("tsumuji-hang-up-{}", std::process::id());
    let name = format!("socket={socket},id=0");
    let server: DpdkSpec = format!("dpdk:net_memif,role=server,{name}")
        .parse()
        .expect("a name");
    let callers = std::thread::spawn(move || {
        let address = SocketAddrUnix::new_abstract_name(socket.as_bytes()).expect("short");
        let (begun, mut calls) = (Instant::now(), 0);
        while calls < 200 {
            let caller = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
            match rustix::net::connect(caller.expect("a socket"), &address) {
                Ok(()) => calls += 1,
                // The server is not there yet.
                Err(_) => std::thread::sleep(Duration::from_millis(1)),
            }
            assert!(begun.elapsed() < PATIENCE, "{calls} calls are taken");
        }
        start_answerer(&format!("dpdk:net_memif,role=client,{name}"))
    });
    let mut link = open(&server);
    let mut child = callers.join().expect("all calls are taken");
    wait_open(&mut child);
    exchange(&mut link, 500);
    kill(&mut child);
}

/// A client whose call is taken but never answered gives up in its time. It does not call again meanwhile, for the kernel would let it wait for ever.
#[test]
fn unanswered_calls_end_in_time() {
    if lacking() {
        return;
    }
    let socket = format!("tsumuji-unanswered-{}", std::process::id());
    let address = SocketAddrUnix::new_abstract_name(socket.as_bytes()).expect("short");
    let server = rustix::net::socket(AddressFamily::UNIX, SocketType::SEQPACKET, None);
    let server = server.expect("a socket");
    rustix::net::bind(&server, &address).expect("the name is free");
    rustix::net::listen(&server, 1).expect("it listens");
    let client: DpdkSpec = format!("dpdk:net_memif,role=client,socket={socket},id=0")
        .parse()
        .expect("a name");
    let config = DpdkConfig {
        up_timeout: Duration::from_secs(2),
        ..DpdkConfig::default()
    };
    let (told, tells) = std::sync::mpsc::channel();
    std::thread::spawn(move || told.send(Dpdk::open(&client, config).map(drop)));
    let opened = tells.recv_timeout(PATIENCE / 2).expect("it gives up");
    assert!(opened.is_err(), "nobody answered");
}

/// When the client is killed the server lives on, and serves its successor without being opened anew.
#[test]
fn killed_client_is_survived() {
    if lacking() {
        return;
    }
    let name = format!("socket=tsumuji-kill-client-{},id=0", std::process::id());
    let server: DpdkSpec = format!("dpdk:net_memif,role=server,{name}")
        .parse()
        .expect("a name");
    let client = format!("dpdk:net_memif,role=client,{name}");
    let mut child = start_answerer(&client);
    let mut link = open(&server);
    for _ in 0..3 {
        wait_open(&mut child);
        exchange(&mut link, 500);
        kill(&mut child);
        send_in_vain(&mut link);
        child = start_answerer(&client);
    }
    wait_open(&mut child);
    kill(&mut child);
    assert_eq!(leftovers(child.id()), [""; 0]);
}

/// Streams frames as fast as they are taken, and takes what comes back, for some bursts.
fn stream(link: &mut Dpdk, bursts: u32) {
    for _ in 0..bursts {
        for _ in 0..64 {
            link.send_one(LinkAddr::Broadcast, Frame::whole(&[1; 1400]))
                .expect("send_with");
        }
        link.flush().expect("flush");
        link.receive(64, &mut each(|_, _| {})).expect("receive");
    }
}

/// A peer that is killed in the midst of a stream takes its memory with it, and not the process that is writing there.
#[test]
fn peer_killed_in_a_stream_is_survived() {
    if lacking() {
        return;
    }
    for (own, others) in [("server", "client"), ("client", "server")] {
        for round in 0..KILLS_IN_A_STREAM {
            // A name of its own: a process that another test started meanwhile may still have the socket of the last one.
            let end = |role: &str| {
                let socket = format!("tsumuji-kill-stream-{}-{own}-{round}", std::process::id());
                format!("dpdk:net_memif,role={role},socket={socket},id=0")
            };
            let mut child = start_answerer(&end(others));
            let spec: DpdkSpec = end(own).parse().expect("a name");
            let mut link = open(&spec);
            wait_open(&mut child);
            // A server learns later than its client that both are there.
            let begun = Instant::now();
            while link.counters().sent_frames == 0 {
                assert!(begun.elapsed() < PATIENCE, "no frame leaves");
                link.wait(POLL_EVERY).expect("wait");
                stream(&mut link, 1);
            }
            stream(&mut link, 200 + round);
            std::thread::scope(|scope| {
                scope.spawn(|| child.kill().expect("SIGKILL"));
                stream(&mut link, 3000);
            });
            child.wait().expect("dead");
        }
    }
}
