//! AF_XDP links and the kernel side by side: its own traffic passes an interface that has our program, the program goes when its
//! process goes (also by SIGKILL), and a second process is refused. Needs root; without, each test says so and tests nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

use crate::holder;
use crate::segment::{self, Segment, ip, lacking};
use tsumuji_link::xdp::{Xdp, XdpConfig, XdpMode};
use tsumuji_link::{Frame, Link, LinkAddr, each};

const PATIENCE: Duration = Duration::from_secs(20);
/// The test that [`holder::start`] runs.
const HOLDER: &str = "xdp_and_kernel::hold_a_link";
const POLL_EVERY: Duration = Duration::from_millis(10);
const POLLS_MAX: usize = 1000;

fn on(mode: XdpMode) -> XdpConfig {
    XdpConfig {
        mode,
        ..XdpConfig::default()
    }
}

/// What `ip link show` says of an interface.
fn shown(interface: &str) -> String {
    let output = Command::new("ip")
        .args(["-details", "link", "show", "dev", interface])
        .output()
        .expect("ip");
    String::from_utf8(output.stdout).expect("text")
}

fn has_program(interface: &str) -> bool {
    shown(interface).contains("prog/xdp")
}

/// Waits until the kernel has removed the program.
fn assert_detached(interface: &str) {
    for _ in 0..POLLS_MAX {
        if !has_program(interface) {
            return;
        }
        std::thread::sleep(POLL_EVERY);
    }
    panic!("the program stays: {}", shown(interface));
}

/// Answers frames of a link until one is empty but for its kind.
fn answer_frames(link: &mut Xdp) {
    let mut last = false;
    while !last {
        link.wait(POLL_EVERY).expect("wait");
        let mut got = Vec::new();
        link.receive(
            16,
            &mut each(|from, frame| got.push((from, frame.to_vec()))),
        )
        .expect("receive");
        for (from, frame) in got {
            last |= frame.len() == 1;
            link.send_one(from, Frame::whole(&frame))
                .expect("send_with");
        }
        link.flush().expect("flush");
    }
}

fn ask_frame(link: &mut Xdp, to: LinkAddr, bytes: usize) {
    link.send_one(to, Frame::whole(&vec![bytes as u8; bytes]))
        .expect("send_with");
    link.flush().expect("flush");
    for _ in 0..POLLS_MAX {
        link.wait(POLL_EVERY).expect("wait");
        let mut answer = None;
        link.receive(1, &mut each(|_, frame| answer = Some(frame.to_vec())))
            .expect("receive");
        if let Some(answer) = answer {
            assert!(answer == vec![bytes as u8; bytes]);
            return;
        }
    }
    panic!("no answer to a frame of {bytes} bytes");
}

/// The other host: an AF_XDP link, a UDP and a TCP echo on one interface.
fn other_host(mtu: u32, mode: XdpMode, ready: &mpsc::Sender<LinkAddr>) {
    ip(&format!(
        "link set n1 mtu {mtu} up\naddr add 10.9.0.2/24 dev n1\nlink set lo up\n"
    ))
    .expect("n1");
    let mut link = Xdp::open("n1", on(mode)).expect("open");
    let udp = UdpSocket::bind("10.9.0.2:700").expect("bind");
    let tcp = TcpListener::bind("10.9.0.2:700").expect("bind");
    ready.send(link.local_addr()).expect("the test lives");
    let mut buffer = vec![0; 65_536];
    udp.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let (bytes, from) = udp.recv_from(&mut buffer).expect("a datagram");
    udp.send_to(&buffer[..bytes], from).expect("echo");
    let (mut stream, _) = tcp.accept().expect("a connection");
    stream.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("read");
    stream.write_all(&all).expect("write");
    drop(stream);
    answer_frames(&mut link);
}

fn foreign_traffic_passes(mtu: u32, mode: XdpMode) {
    Segment::new(2, mtu);
    let (send_tid, tid) = mpsc::channel();
    let (moved, is_moved) = mpsc::channel::<()>();
    let (send_addr, addr) = mpsc::channel();
    let other = std::thread::spawn(move || {
        segment::enter().expect("a namespace");
        send_tid
            .send(rustix::thread::gettid())
            .expect("the test lives");
        is_moved.recv().expect("the test lives");
        other_host(mtu, mode, &send_addr);
    });
    let tid = tid.recv().expect("a thread").as_raw_nonzero();
    ip(&format!(
        "link set n1 netns {tid}\naddr add 10.9.0.1/24 dev n0\nlink set lo up\n"
    ))
    .expect("two hosts");
    moved.send(()).expect("the thread lives");
    ip("link set n0 up\n").expect("up");
    let mut link = Xdp::open("n0", on(mode)).expect("open");
    assert_eq!(link.is_native(), mode == XdpMode::Native);
    assert!(has_program("n0"));
    let to = addr.recv().expect("the other host");

    // ARP, then a datagram as long as the interface takes, then a stream.
    let udp = UdpSocket::bind("10.9.0.1:0").expect("bind");
    udp.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let sent: Vec<u8> = (0..mtu as usize - 28).map(|at| (at / 3) as u8).collect();
    udp.send_to(&sent, "10.9.0.2:700").expect("send");
    let mut got = vec![0; 65_536];
    let bytes = udp.recv(&mut got).expect("an answer");
    assert!(got[..bytes] == sent);
    let mut stream = TcpStream::connect("10.9.0.2:700").expect("connect");
    stream.set_read_timeout(Some(PATIENCE)).expect("time-out");
    let sent: Vec<u8> = (0..100_000).map(|at| (at / 7) as u8).collect();
    stream.write_all(&sent).expect("write");
    stream
        .shutdown(std::net::Shutdown::Write)
        .expect("shutdown");
    let mut got = Vec::new();
    stream.read_to_end(&mut got).expect("read");
    assert!(got == sent);

    for bytes in [300, mtu as usize - 2, 2, 1] {
        ask_frame(&mut link, to, bytes);
    }
    other.join().expect("no panic");
    let counters = link.counters();
    assert_eq!((counters.received_frames, counters.dropped_frames), (4, 0));
    drop(link);
    assert_detached("n0");
}

/// ARP, UDP and TCP of the kernel's pass interfaces that our programs sit on, beside our frames.
#[test]
fn kernel_traffic_passes() {
    if let Some(reason) = lacking() {
        eprintln!("{reason}");
        return;
    }
    for (mtu, mode) in [
        (1500, XdpMode::Generic),
        (1500, XdpMode::Native),
        (9000, XdpMode::Generic),
        (9000, XdpMode::Native),
    ] {
        std::thread::spawn(move || foreign_traffic_passes(mtu, mode))
            .join()
            .expect("no panic");
    }
}

/// Not a test by itself: what `second_process_is_refused_and_killed` starts.
#[test]
#[ignore = "run by another test as a program to be killed"]
fn hold_a_link() {
    holder::hold(|| Xdp::open("n0", XdpConfig::default()).expect("open"));
}

/// While a process has the interface a second is refused; when it is killed, its program goes and the next gets the interface.
#[test]
fn second_process_is_refused_and_killed() {
    if let Some(reason) = lacking() {
        eprintln!("{reason}");
        return;
    }
    Segment::new(2, 1500);
    for _ in 0..3 {
        let mut child = holder::start(HOLDER);
        assert!(has_program("n0"));
        let error = Xdp::open("n0", XdpConfig::default()).expect_err("taken");
        assert!(error.to_string().contains("n0"), "{error}");
        child.kill().expect("SIGKILL");
        child.wait().expect("dead");
        assert_detached("n0");
        let link = Xdp::open("n0", XdpConfig::default()).expect("free again");
        drop(link);
    }
    // Also without waiting for the kernel to clean up.
    let mut child = holder::start(HOLDER);
    child.kill().expect("SIGKILL");
    child.wait().expect("dead");
    drop(Xdp::open("n0", XdpConfig::default()).expect("free again"));
    assert_detached("n0");
}
