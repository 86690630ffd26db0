//! Metrics of real endpoints, read by real clients: the numbers are the endpoint's, and no client does harm.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::other_user::OtherUser;
use crate::common::{self, LONG, Over, cluster};
use rustix::net::SocketType;
use tsumuji_node::metrics::{Sample, local_nodes, parse};
use tsumuji_node::{Channel, Endpoint, LinkAddr, MetricsAt, NodeId, OpenError, Options, SealMode};

const CHANNEL: Channel = Channel::ordered(0);

fn shown_at(at: MetricsAt) -> Options {
    Options {
        metrics: at,
        ..Options::default()
    }
}

fn on_loopback() -> Options {
    shown_at(MetricsAt::Tcp("127.0.0.1:0".parse().expect("address")))
}

/// A connected pair; node 1 has received `messages`.
fn pair(over: Over, options: &Options, messages: usize) -> (Endpoint, Endpoint) {
    let mut both = cluster(over, 2, options).into_iter();
    let (mut a, mut b) = (both.next().expect("two"), both.next().expect("two"));
    let done = Arc::new(AtomicBool::new(false));
    let is_done = Arc::clone(&done);
    let receiver = std::thread::spawn(move || {
        for _ in 0..messages {
            assert!(b.recv(LONG).expect("link").is_some());
        }
        // The last acknowledgement leaves in a poll after the last message.
        while !is_done.load(Ordering::Acquire) {
            b.progress().expect("link");
        }
        b
    });
    for _ in 0..messages {
        a.send(NodeId(1), CHANNEL, &[1; 3000]).expect("send");
    }
    assert!(a.flush(LONG).expect("link"));
    done.store(true, Ordering::Release);
    (a, receiver.join().expect("receiver"))
}

/// Sends `request` and returns all that is answered.
fn talk(addr: SocketAddr, request: &[u8]) -> String {
    let mut stream = TcpStream::connect(addr).expect("connect");
    stream.set_read_timeout(Some(LONG)).expect("time-out");
    // A client that is refused early may find the door closed while it still talks.
    let _ = stream.write_all(request);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8(answer).expect("text")
}

fn body(answer: &str) -> &str {
    let (head, body) = answer.split_once("\r\n\r\n").expect("head and body");
    assert!(head.starts_with("HTTP/1.0 200 OK\r\n"), "{head}");
    assert!(
        head.contains("\r\nContent-Type: text/plain; version=0.0.4"),
        "{head}"
    );
    assert!(
        head.contains(&format!("\r\nContent-Length: {}\r\n", body.len())),
        "{head}"
    );
    body
}

fn scrape(addr: SocketAddr) -> Vec<Sample> {
    let answer = talk(
        addr,
        b"GET /metrics HTTP/1.1\r\nHost: here\r\nAccept: */*\r\n\r\n",
    );
    parse(body(&answer))
}

fn value(samples: &[Sample], name: &str, label: Option<(&str, &str)>) -> f64 {
    let name = format!("tsumuji_{name}");
    let mut found = samples.iter().filter(|sample| {
        sample.name == name && label.is_none_or(|(label, value)| sample.label(label) == Some(value))
    });
    let one = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert!(found.next().is_none(), "{name} is there twice");
    one.value
}

/// What the seal counted is shown by reason where frames are sealed, and only there.
#[test]
fn sealing_is_shown() {
    let (a, _b) = pair(Over::Udp, &on_loopback(), 1);
    let samples = scrape(a.metrics_addr().expect("listens"));
    assert!(samples.iter().all(|sample| !sample.name.contains("_seal_")));

    let (mut a, b) = pair(Over::SealedUdp(SealMode::Encrypt), &on_loopback(), 50);
    // What anybody may send to the port: nothing sealed, and a sealed frame of no session.
    let unknown_peer = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
    let door = match a.members()[0].addr {
        LinkAddr::Inet(addr) => addr,
        other => panic!("{other}"),
    };
    let mut envelope = [0; 64];
    envelope[0] = 0x17;
    envelope[2] = 32;
    for frame in [&[0x10; 40][..], &envelope] {
        unknown_peer.send_to(frame, door).expect("send");
    }
    // A busy machine may make the two themselves repeat what the seal drops, for other reasons.
    let unknown = |a: &Endpoint| {
        let seal = a.counters().seal.expect("sealed");
        (seal.unsealed, seal.unknown_session)
    };
    let start = std::time::Instant::now();
    while unknown(&a) != (1, 1) {
        a.progress().expect("link");
        assert!(start.elapsed() < LONG, "{:?}", a.counters().seal);
    }
    a.publish_metrics();
    let seal = a.counters().seal.expect("sealed");
    let samples = scrape(a.metrics_addr().expect("listens"));
    let same = |name, expected: u64| {
        assert_eq!(value(&samples, name, None), expected as f64, "{name}");
        expected
    };
    assert!(same("seal_frames_sealed_total", seal.sealed) >= 50);
    assert!(same("seal_frames_opened_total", seal.opened) > 0);
    assert!(same("seal_control_frames_total", seal.control) > 0);
    assert!(same("seal_handshake_frames_total", seal.handshake_frames) > 0);
    assert_eq!(same("seal_handshakes_total", seal.handshakes), 1);
    assert_eq!(same("seal_rekeys_total", seal.rekeys), 0);
    assert_eq!(same("seal_sessions", seal.sessions), 1);
    assert_eq!(same("seal_peers", seal.peers), 1);
    for (metric, reasons) in [
        ("seal_frames_dropped_total", &seal.drops_by_reason()[..]),
        ("seal_frames_unsent_total", &seal.unsent_by_reason()[..]),
    ] {
        for (reason, count) in reasons {
            let shown = value(&samples, metric, Some(("reason", reason)));
            assert_eq!(shown, *count as f64, "{reason}");
        }
    }
    drop(b);
}

/// What a reader gets is what the endpoint itself says.
#[test]
fn numbers_are_the_endpoints() {
    for over in [Over::Shm, Over::Udp] {
        let (mut a, b) = pair(over, &on_loopback(), 50);
        a.publish_metrics();
        let counters = a.counters();
        let samples = scrape(a.metrics_addr().expect("listens"));
        let kind = if over == Over::Shm { "shm" } else { "udp" };
        for sample in &samples {
            assert_eq!(sample.label("node"), Some("0"));
            assert_eq!(sample.label("link"), Some(kind));
        }
        let same = |name, expected: u64| {
            assert_eq!(value(&samples, name, None), expected as f64, "{name}");
        };
        same("frames_sent_total", counters.engine.sent_frames);
        same("sent_bytes_total", counters.engine.sent_bytes);
        same("frames_received_total", counters.engine.received_frames);
        same(
            "frames_retransmitted_total",
            counters.engine.retransmitted_frames,
        );
        same("link_frames_sent_total", counters.link.sent_frames);
        same("link_received_bytes_total", counters.link.received_bytes);
        same("spoofed_source_frames_total", 0);
        assert!(value(&samples, "sent_bytes_total", None) > 150_000.0);
        let flow = a.flow(NodeId(1)).expect("peer");
        let peer = Some(("peer", "1"));
        assert_eq!(value(&samples, "peer_up", peer), 1.0);
        assert_eq!(value(&samples, "queued_messages", peer), 0.0);
        assert_eq!(
            value(&samples, "window_bytes", peer),
            flow.window_bytes as f64
        );
        assert_eq!(
            value(&samples, "credit_frames", peer),
            flow.credit_frames as f64
        );
        assert_eq!(
            value(&samples, "rtt_seconds", peer),
            flow.rtt.as_nanos() as f64 / 1e9
        );
        let dropped = value(
            &samples,
            "frames_dropped_total",
            Some(("reason", "malformed")),
        );
        assert_eq!(dropped, 0.0);
        assert_eq!(value(&samples, "node_info", None), 1.0);
        drop(b);
    }
}

/// Receiving and waiting publish by themselves, within what a program does anyway.
#[test]
fn polling_publishes() {
    let (a, mut b) = pair(Over::Shm, &on_loopback(), 20);
    let addr = b.metrics_addr().expect("listens");
    let start = std::time::Instant::now();
    loop {
        let none = b.recv(std::time::Duration::from_millis(20)).expect("link");
        assert!(none.is_none());
        if value(&scrape(addr), "messages_delivered_total", None) == 20.0 {
            break;
        }
        assert!(start.elapsed() < LONG, "nothing was published");
    }
    drop(a);
}

/// Whatever clients send, or do not send, the next one is answered.
#[test]
fn hostile_clients_are_survived() {
    let (a, b) = pair(Over::Shm, &on_loopback(), 1);
    let addr = a.metrics_addr().expect("listens");
    let mut endless = b"GET /metrics HTTP/1.1\r\n".to_vec();
    endless.resize(1 << 20, b'x');
    let garbage: Vec<u8> = (0..4000_u32).map(|i| ((i * 7919) >> 3) as u8).collect();
    let refused: [(&[u8], &str); 5] = [
        (b"GET /secret HTTP/1.1\r\n\r\n", "404"),
        (b"DELETE /metrics HTTP/1.1\r\n\r\n", "405"),
        (b"\0\0\0\0\r\n\r\n", "400"),
        (b"GET /metrics SPDY/3\r\n\r\n", "505"),
        (&[b'a'; 8192], "431"),
    ];
    for (request, status) in refused {
        let answer = talk(addr, request);
        assert!(
            answer.starts_with(&format!("HTTP/1.0 {status} ")),
            "{answer}"
        );
    }
    talk(addr, &endless);
    let head = talk(addr, b"HEAD /metrics HTTP/1.0\r\n\r\n");
    assert!(
        head.starts_with("HTTP/1.0 200 ") && head.ends_with("\r\n\r\n"),
        "{head}"
    );
    // Hangs up before, within and after a request; says nothing; does not read.
    drop(TcpStream::connect(addr).expect("connect"));
    for words in [&b"GET /met"[..], &garbage, b"GET /metrics HTTP/1.1\r\n\r\n"] {
        let mut client = TcpStream::connect(addr).expect("connect");
        let _ = client.write_all(words);
        let _ = client.shutdown(Shutdown::Both);
    }
    let silent = TcpStream::connect(addr).expect("connect");
    assert!(value(&scrape(addr), "uptime_seconds", None) > 0.0);
    drop((silent, a, b));
}

/// A node of this process is found on this host, answers the same, and is gone with its endpoint.
#[test]
fn nodes_are_found_on_this_host() {
    let (mut a, b) = pair(Over::Udp, &shown_at(MetricsAt::Local), 5);
    assert!(a.metrics_addr().is_none());
    a.publish_metrics();
    // Other tests of this process show nodes, too: ours are those that know what was sent.
    let sent = a.counters().engine.sent_bytes as f64;
    let find = || {
        let nodes = local_nodes().expect("list");
        let ours = nodes
            .into_iter()
            .filter(|node| node.pid == std::process::id());
        let texts = ours.filter_map(|node| node.ask(LONG).ok());
        let pages: Vec<Vec<Sample>> = texts.map(|text| parse(&text)).collect();
        pages
            .iter()
            .filter(|page| {
                value(page, "sent_bytes_total", None) == sent
                    && page[0].label("link") == Some("udp")
            })
            .count()
    };
    assert_eq!(find(), 1);
    drop((a, b));
    assert_eq!(find(), 0);
}

/// Silent readers of any number keep nobody from being answered: neither at their own door nor at the other.
#[test]
fn a_crowd_of_readers_does_not_block() {
    let (a, b) = pair(Over::Udp, &on_loopback(), 1);
    let addr = a.metrics_addr().expect("listens");
    /// Ends the crowd, also where an assertion fails.
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let _done = Done(&done);
        scope.spawn(|| {
            let mut silent = std::collections::VecDeque::new();
            while !done.load(Ordering::Acquire) {
                silent.extend(TcpStream::connect(addr));
                if silent.len() > 200 {
                    silent.pop_front();
                }
            }
        });
        // Before, each silent reader held the thread for two seconds: three in a row are beyond this.
        for _ in 0..5 {
            assert!(value(&scrape(addr), "uptime_seconds", None) > 0.0);
            let nodes = local_nodes().expect("list").into_iter();
            let mut ours = nodes.filter(|node| node.pid == std::process::id());
            let within = std::time::Duration::from_secs(5);
            assert!(ours.any(|node| node.ask(within).is_ok()));
        }
    });
    drop((a, b));
}

/// Names that are no text, and more names than nodes are looked at, hide no node.
#[test]
fn foreign_names_hide_no_node() {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener};
    let (a, b) = pair(Over::Udp, &shown_at(MetricsAt::Local), 1);
    let bind = |name: &[u8]| {
        UnixListener::bind_addr(&SocketAddr::from_abstract_name(name).expect("a name"))
            .expect("bind")
    };
    let id = std::process::id();
    let mut foreign = vec![bind(&[&b"\xff\xfe\n"[..], &id.to_ne_bytes()].concat())];
    // They name processes that there are not, and hold no socket of theirs.
    foreign.extend(
        (0..5000).map(|serial| bind(format!("tsumuji-metrics-0-{id}-{serial}").as_bytes())),
    );
    let nodes = local_nodes().expect("list");
    assert!(nodes.iter().filter(|node| node.pid == id).count() >= 2);
    drop((a, b, foreign));
}

/// Another user who calls without end is turned away, and takes neither our time nor the place of those who may ask.
#[test]
fn other_users_keep_nobody_out() {
    common::other_user::act_if_spawned();
    let (a, b) = pair(Over::Udp, &shown_at(MetricsAt::Local), 1);
    let id = std::process::id();
    let prefix = format!("tsumuji-metrics-{id}-");
    let Some(other_user) = OtherUser::call(
        "metrics::other_users_keep_nobody_out",
        SocketType::STREAM,
        &prefix,
    ) else {
        return;
    };
    for _ in 0..20 {
        let nodes = local_nodes().expect("list").into_iter();
        let ours: Vec<_> = nodes.filter(|node| node.pid == id).collect();
        assert!(ours.len() >= 2);
        let within = std::time::Duration::from_secs(5);
        let answers = ours.iter().filter(|node| node.ask(within).is_ok());
        assert!(answers.count() >= 2); // those of other tests may have gone
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    drop((other_user, a, b));
}

/// Without the option nothing listens; with an impossible address the endpoint is refused, and the message names it.
#[test]
fn places_are_checked() {
    let plain = cluster(Over::Shm, 1, &Options::default());
    assert!(plain[0].metrics_addr().is_none());
    let shown = cluster(Over::Shm, 1, &on_loopback());
    let taken = shown[0].metrics_addr().expect("listens");
    let job = tsumuji_link::shm::ShmJob::create(1, tsumuji_link::shm::ShmConfig::for_nodes(1));
    let link = tsumuji_link::shm::Shm::attach(job.expect("job"), 0).expect("attach");
    let membership = tsumuji_node::Membership::local(NodeId(0), 1);
    let error = Endpoint::new(link, membership, shown_at(MetricsAt::Tcp(taken)));
    let error = error.expect_err("taken");
    assert!(matches!(error, OpenError::Metrics { .. }));
    let start = format!("cannot show metrics at {taken}: ");
    assert!(error.to_string().starts_with(&start), "{error}");
}
