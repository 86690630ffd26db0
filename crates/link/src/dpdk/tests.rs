//! Names of devices, and mbufs and frames on a pair of memif devices; without DPDK the latter report that and test nothing.

use std::sync::atomic::AtomicBool;

use super::*;
use crate::{Frames, each};

/// Names are read in all forms and written in one.
#[test]
fn names_are_read() {
    for (given, written) in [
        ("dpdk:0000:03:00.0", "dpdk:0000:03:00.0"),
        ("03:1F.7", "dpdk:0000:03:1f.7"),
        ("0000:03:00.0,rx=1", "dpdk:0000:03:00.0,rx=1"),
        (
            "dpdk:net_memif,role=server,socket=/run/x.sock,id=0",
            "dpdk:net_memif,role=server,socket=/run/x.sock,id=0",
        ),
        ("net_af_xdp,iface=eth0", "dpdk:net_af_xdp,iface=eth0"),
        ("net_tap0", "dpdk:net_tap0"),
    ] {
        let spec: DpdkSpec = given.parse().expect(given);
        assert_eq!(spec.to_string(), written);
        assert_eq!(written.parse(), Ok(spec));
    }
    let spec: DpdkSpec = "net_memif7,role=client,id=3".parse().expect("a name");
    assert_eq!(spec.driver(), Some("net_memif"));
    assert_eq!(
        (spec.parameter("id"), spec.parameter("socket")),
        (Some("3"), None)
    );
    assert_eq!(
        "03:00.0".parse::<DpdkSpec>().expect("a name").driver(),
        None
    );
}

/// Wrong names are refused in one line, however long and strange they are; no part of an accepted name can mean anything else to DPDK.
#[test]
fn bad_names_are_refused() {
    let long = format!("net_memif,socket=/{}", "x".repeat(5000));
    for bad in [
        "",
        "dpdk:",
        "eth0",
        "0000:03:00",
        "0000:03:00.8",
        "0000:03:20.0",
        "0:0:03:00.0",
        "+0000:03:00.0",
        "net_",
        "net_Memif",
        "net_memif ,id=0",
        "net_memif,",
        "net_memif,id",
        "net_memif,id=",
        "net_memif,id=0,id=1",
        "net_memif,id=0,,role=x",
        "net_memif,socket=/a b",
        "net_memif,socket=[a]",
        "net_memif,socket=\u{1b}[2J\n",
        "net_memif,socket=a\0b",
        "net_ü",
        &long,
    ] {
        let text = bad.parse::<DpdkSpec>().expect_err(bad).to_string();
        assert!(
            !text.chars().any(char::is_control) && text.len() < 600,
            "{text}"
        );
    }
}

/// Errors that can be seen without DPDK are reported before DPDK is started, with an example of a good name.
#[test]
fn parameters_that_lack_are_named() {
    let open = |text: &str| {
        let spec: DpdkSpec = text.parse().expect(text);
        Dpdk::open(&spec, DpdkConfig::default())
            .expect_err(text)
            .to_string()
    };
    assert!(
        open("net_memif,id=0").contains("lacks `role=`; for example `dpdk:net_memif,role=server")
    );
    assert!(open("net_af_packet").contains("lacks `iface=`"));
    assert!(open("net_af_xdp,iface=no-such-if").contains("no interface `no-such-if`"));
}

/// Two processes of one host connect by memif's two roles and one socket, or by taps of their own, and not by a device that one process has alone.
#[test]
fn processes_of_one_host_meet() {
    let meet = |text: &str, index, processes| {
        let spec: DpdkSpec = text.parse().expect(text);
        let own = spec.for_process(index, processes, "/meeting");
        own.map(|own| own.to_string())
            .map_err(|error| error.to_string())
    };
    for (text, index, own) in [
        (
            "net_memif",
            0,
            "dpdk:net_memif,role=server,socket=/meeting,socket-abstract=no,id=0",
        ),
        (
            "net_memif,bsize=9216",
            1,
            "dpdk:net_memif,bsize=9216,role=client,socket=/meeting,socket-abstract=no,id=0",
        ),
        (
            "net_memif,id=3,socket=/x",
            1,
            "dpdk:net_memif,id=3,socket=/x,role=client",
        ),
        ("net_tap", 1, "dpdk:net_tap"),
        (
            "net_tap,iface=t,mac=fixed",
            1,
            "dpdk:net_tap,iface=t1,mac=fixed",
        ),
        (
            "net_tap,mac=fixed,iface=t",
            0,
            "dpdk:net_tap,mac=fixed,iface=t0",
        ),
    ] {
        assert_eq!(meet(text, index, 2).expect(text), own);
    }
    let long = format!("net_memif,id=0,bsize={}", "1".repeat(170));
    for (text, processes, problem) in [
        ("net_memif", 3, "not 3; take shm or udp for more"),
        ("net_memif,role=server", 2, "`role` is given to each"),
        ("net_memif,socket-abstract=yes", 2, "state `socket`, too"),
        (&long, 2, "is too long"),
        (
            "net_af_packet,iface=eth0",
            2,
            "joins hosts, one process each",
        ),
        ("03:00.0", 2, "joins hosts, one process each"),
    ] {
        let message = meet(text, 0, processes).expect_err(text);
        assert!(message.contains(problem), "{message}");
    }
}

/// A device on an interface takes the interface that is stated elsewhere if it names none itself.
#[test]
fn interfaces_are_added() {
    let spec: DpdkSpec = "net_af_packet".parse().expect("a name");
    assert_eq!((spec.is_on_interface(), spec.interface()), (true, None));
    let with = spec.with("iface", "eth0").expect("short");
    assert_eq!(with.interface(), Some("eth0"));
    assert_eq!(with.with("iface", "eth1"), None);
    let tap: DpdkSpec = "net_tap,iface=t".parse().expect("a name");
    assert_eq!(tap.interface(), None, "it makes that one");
    let memif: DpdkSpec = "net_memif".parse().expect("a name");
    assert!(memif.stays_on_host() && !tap.stays_on_host());
}

fn pair(parameters: &str, config: DpdkConfig) -> Option<(Dpdk, Dpdk)> {
    pair_of(parameters, config, config)
}

fn pair_of(parameters: &str, one: DpdkConfig, other: DpdkConfig) -> Option<(Dpdk, Dpdk)> {
    match Dpdk::connect_memif(parameters, one, other) {
        Ok(pair) => Some(pair),
        Err(error @ (DpdkOpenError::NotBuiltIn | DpdkOpenError::NotInstalled { .. })) => {
            eprintln!("skipped, no DPDK here: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn offer(link: &mut Dpdk, to: LinkAddr, bytes: usize) -> bool {
    link.send_one(to, Frame::whole(&vec![bytes as u8; bytes]))
        .expect("send_with")
}

/// A full ring refuses, loses nothing, and no mbuf is lost however often that happens.
#[test]
fn no_mbuf_is_lost() {
    let Some((mut a, mut b)) = pair("rsize=5", DpdkConfig::default()) else {
        return;
    };
    let to = b.local_addr();
    let mut before = None;
    for round in 0..40 {
        let mut accepted = 0;
        while offer(&mut a, to, 60 + accepted % 1400) {
            accepted += 1;
        }
        assert!(accepted >= 32, "a ring and a queue full: {accepted}");
        let mut arrived = 0;
        while arrived < accepted {
            a.flush().expect("flush");
            arrived += b
                .receive(
                    7,
                    &mut each(|_, frame| {
                        assert!(frame.iter().all(|byte| *byte == frame.len() as u8))
                    }),
                )
                .expect("receive");
        }
        assert_eq!((arrived, a.tx.waiting()), (accepted, 0));
        a.tx.free_frames();
        let in_use = (a.mbufs_in_use(), b.mbufs_in_use());
        // Spare mbufs vary within the first rounds only.
        if round >= 2 {
            let spread = in_use.0.abs_diff(before.unwrap_or(in_use).0);
            assert!(spread < sys::BURST_FRAMES as u32, "{in_use:?} {before:?}");
            assert_eq!(in_use.1, before.unwrap_or(in_use).1);
        }
        before.get_or_insert(in_use);
    }
    assert_eq!(a.counters().dropped_frames + b.counters().dropped_frames, 0);
    assert!(a.counters().refused >= 40);
}

/// A frame that came in several mbufs is delivered whole; one longer than our frames is dropped and counted.
#[test]
fn chained_mbufs_are_gathered() {
    let config = |frame_bytes| DpdkConfig {
        frame_bytes: Some(frame_bytes),
        ..DpdkConfig::default()
    };
    let Some((mut a, mut b)) = pair_of("bsize=9216", config(9000), config(600)) else {
        return;
    };
    let to = b.local_addr();
    assert!(offer(&mut a, to, 9000));
    a.flush().expect("flush");
    while b.counters().dropped_frames == 0 {
        assert_eq!(b.receive(4, &mut each(|_, _| {})).expect("receive"), 0);
    }
    assert_eq!(b.counters().dropped_frames, 1);
    // As if its frames were long and its mbufs short, as those of some drivers are.
    b.rx = Rx::new(&b.port, 9000);
    assert!(offer(&mut a, to, 8999));
    a.flush().expect("flush");
    let mut got = Vec::new();
    while got.is_empty() {
        b.receive(4, &mut each(|_, frame| got = frame.to_vec()))
            .expect("receive");
    }
    assert!(got == vec![8999_usize as u8; 8999]);
}

/// Batches of long frames arrive in order like others, also frames left behind by a full ring; no mbuf is lost, and each frame is counted once.
#[test]
fn batches_leave_from_where_they_lie() {
    let Some((mut a, mut b)) = pair("bsize=9216,rsize=4", DpdkConfig::default()) else {
        return;
    };
    assert!(a.port.copies() && b.port.copies());
    let to = b.local_addr();
    let (heads, mut bodies) = ([[1; 40], [2; 40]], Vec::new());
    let body = |number: usize| vec![number as u8; 5000 + number % 4000];
    let (mut sent, mut got, mut in_use) = (0, 0, None);
    for _ in 0..20 {
        let mut left_behind = 0;
        loop {
            let room = a.capacity(to).expect("capacity").frames;
            if room == 0 {
                break;
            }
            bodies.clear();
            bodies.extend((sent..sent + room).map(body));
            let frames = heads.iter().cycle().zip(&bodies);
            let frames: Frames<'_> = frames.map(|(head, body)| Frame { head, body }).collect();
            let taken = a.send(to, &frames);
            drop(frames);
            assert_eq!(taken.expect("send"), room);
            sent += room;
            left_behind += a.tx.waiting();
            bodies.iter_mut().for_each(|body| body.fill(0)); // they are ours again
        }
        assert!(left_behind > 0, "the ring of 16 was full");
        while got < sent {
            a.flush().expect("flush");
            b.receive(
                64,
                &mut each(|_, frame| {
                    let (head, rest) = frame.split_at(40);
                    assert!(head.iter().all(|&byte| byte == 1 || byte == 2));
                    assert!(rest == body(got), "frame {got} of {}", frame.len());
                    got += 1;
                }),
            )
            .expect("receive");
        }
        let now = (a.mbufs_in_use(), b.mbufs_in_use());
        let before = *in_use.get_or_insert(now);
        // Some of the sender's mbufs are spare.
        assert!(now.0.abs_diff(before.0) < sys::BURST_FRAMES as u32);
        assert_eq!(now.1, before.1);
    }
    let (a, b) = (a.counters(), b.counters());
    assert_eq!(
        (a.sent_frames, b.received_frames),
        (sent as u64, sent as u64)
    );
    assert_eq!(a.sent_bytes, b.received_bytes);
    assert_eq!(a.dropped_frames + b.dropped_frames, 0);
}

/// For a driver that would put each part of a frame into a buffer of its own, all parts are copied.
#[test]
fn parts_only_where_they_share_a_buffer() {
    if let Some((a, _b)) = pair("", DpdkConfig::default()) {
        assert!(!a.port.copies());
    }
}

/// Small frames to one station share an Ethernet frame: the other end gets them all, and each is counted once at both.
#[test]
fn small_frames_join() {
    let Some((mut a, mut b)) = pair("", DpdkConfig::default()) else {
        return;
    };
    let to = b.local_addr();
    for bytes in 1..=60 {
        assert!(offer(&mut a, to, bytes));
    }
    assert!(
        a.tx.waiting() < 5,
        "sixty short frames fill a few Ethernet frames"
    );
    a.flush().expect("flush");
    let mut sizes = Vec::new();
    while sizes.len() < 60 {
        b.wait(TUNING.dpdk.nap_max).expect("wait");
        b.receive(64, &mut each(|_, frame| sizes.push(frame.len())))
            .expect("receive");
    }
    assert_eq!(sizes, (1..=60).collect::<Vec<_>>());
    let (sent, received) = (a.counters(), b.counters());
    assert_eq!((sent.sent_frames, received.received_frames), (60, 60));
    assert_eq!((sent.sent_bytes, received.received_bytes), (1830, 1830));
}

/// Joined frames are no longer than the station's limit; a single longer frame still leaves.
#[test]
fn frames_join_up_to_what_reaches() {
    let Some((mut a, b)) = pair("", DpdkConfig::default()) else {
        return;
    };
    let to = b.local_addr();
    let mut waiting = |reach: usize| {
        a.set_reach(to, reach);
        for bytes in [90, 90, 90, 300, 90] {
            assert!(offer(&mut a, to, bytes));
        }
        let waiting = a.tx.waiting();
        a.flush().expect("flush");
        waiting
    };
    assert_eq!(waiting(200), 4, "two, one, the long one, one");
    assert_eq!(waiting(50), 5);
    assert_eq!(waiting(usize::MAX), 1);
}

/// While another thread opens and closes links, a flush still leaves no frame behind, and frames arrive without another flush.
#[test]
fn links_come_and_go_beside_others() {
    let Some((mut a, mut b)) = pair("", DpdkConfig::default()) else {
        return;
    };
    let to = b.local_addr();
    let done = AtomicBool::new(false);
    let mut sent = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..20 {
                let (mut one, mut other) = pair("", DpdkConfig::default()).expect("as before");
                let to = other.local_addr();
                assert!(offer(&mut one, to, 100));
                one.flush().expect("flush");
                while other.counters().received_frames == 0 {
                    other.wait(TUNING.dpdk.nap_max).expect("wait");
                    other.receive(4, &mut each(|_, _| {})).expect("receive");
                }
            }
            done.store(true, Ordering::Release);
        });
        while !done.load(Ordering::Acquire) {
            assert!(offer(&mut a, to, 100));
            // The driver's ring is free again once the other side has read it.
            while a.tx.waiting() > 0 {
                a.flush().expect("flush");
            }
            sent += 1;
            while b.counters().received_frames < sent {
                b.receive(4, &mut each(|_, _| {})).expect("receive");
            }
        }
    });
    assert!(sent > 100, "only {sent} frames");
    assert_eq!(a.counters().dropped_frames + b.counters().dropped_frames, 0);
}

/// Frames of other protocols and for other stations are skipped, and counted apart from drops.
#[test]
fn foreign_frames_are_counted() {
    let Some((mut a, mut b)) = pair("", DpdkConfig::default()) else {
        return;
    };
    let unknown = LinkAddr::Ether(MacAddr([2, 9, 9, 9, 9, 9]));
    for _ in 0..5 {
        assert!(offer(&mut a, unknown, 100));
        a.flush().expect("flush"); // so that the next does not join it
    }
    let to = b.local_addr();
    assert!(offer(&mut a, to, 100));
    a.flush().expect("flush");
    while b.counters().received_frames == 0 {
        b.wait(TUNING.dpdk.nap_max).expect("wait");
        b.receive(4, &mut each(|_, _| {})).expect("receive");
    }
    assert_eq!((b.rx.foreign_frames, b.counters().dropped_frames), (5, 0));
}

/// The probe says what works, or what helps.
#[test]
fn probe_explains_itself() {
    let found = probe();
    assert_eq!(found.link, NAME);
    assert!(!found.notes.is_empty());
    assert_eq!(found.works, sys::describe().is_ok(), "{found:?}");
    if !found.works {
        assert!(
            found.mend.starts_with("apt-get install libdpdk-dev"),
            "{found:?}"
        );
    }
}
