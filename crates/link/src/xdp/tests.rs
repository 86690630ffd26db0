//! The link on a pair of virtual interfaces in a network that only the test's thread sees. Each test needs root (CAP_NET_ADMIN, CAP_NET_RAW,
//! CAP_BPF); without, it reports that and tests nothing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use super::probe::{ip, veth_pair};
use super::umem::Accounts;
use super::*;
use crate::each;
use crate::ether::ETHERTYPE;

const POLL_EVERY: Duration = Duration::from_millis(20);
/// Polls until a frame counts as lost.
const POLLS_MAX: usize = 500;

/// Interfaces `n0` and `n1` of this thread's own; `false`: not possible here, the test is skipped.
pub(super) fn on_veth(mtu: u32) -> bool {
    let made = sys::enter_private_network().and_then(|()| veth_pair(mtu));
    if let Err(error) = &made {
        eprintln!("skipped, no virtual interfaces here (root makes them): {error}");
    }
    made.is_ok()
}

pub(super) fn open(name: &str, config: XdpConfig) -> Xdp {
    Xdp::open(name, config).expect("open")
}

pub(super) fn generic() -> XdpConfig {
    XdpConfig {
        mode: XdpMode::Generic,
        ..XdpConfig::default()
    }
}

pub(super) fn native() -> XdpConfig {
    XdpConfig {
        mode: XdpMode::Native,
        ..XdpConfig::default()
    }
}

/// Sends a frame of payload `bytes`, all of one value.
pub(super) fn send(link: &mut Xdp, to: LinkAddr, bytes: usize, value: u8) {
    for _ in 0..POLLS_MAX {
        let sent = link.send_one(to, Frame::whole(&vec![value; bytes]));
        if sent.expect("send_with") {
            return;
        }
        link.flush().expect("flush");
    }
    panic!("no slot comes free");
}

/// Sends any bytes as an Ethernet frame, without the checks of `send`.
fn send_raw(link: &mut Xdp, frame: &[u8]) {
    let fd = link.socket.as_fd();
    let counters = &mut link.counters;
    for _ in 0..POLLS_MAX {
        link.tx.flush(fd, &mut link.umem, counters).expect("push");
        link.tx.reap(&mut link.umem);
        if let Some(slot) = link.umem.take_slot() {
            link.umem.slot_mut(&slot)[..frame.len()].copy_from_slice(frame);
            let ring = &mut link.tx.ring;
            link.umem
                .send(slot, frame.len(), 1, |desc| assert!(ring.push(desc)));
            link.tx.flush(fd, &mut link.umem, counters).expect("push");
            return;
        }
    }
    panic!("no slot comes free");
}

/// The next frame.
pub(super) fn receive(link: &mut Xdp) -> (LinkAddr, Vec<u8>) {
    let mut got = None;
    for _ in 0..POLLS_MAX {
        link.receive(
            1,
            &mut each(|from, frame| got = Some((from, frame.to_vec()))),
        )
        .expect("receive");
        if let Some(got) = got {
            return got;
        }
        link.wait(POLL_EVERY).expect("wait");
    }
    panic!("no frame arrives");
}

/// Waits until the interface has no program. It may take a while: a process that another test is just starting may still hold a copy of the
/// descriptor.
fn assert_detached(index: u32) {
    for _ in 0..POLLS_MAX {
        if device::attached(index).expect("query").is_none() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("a program stays attached");
}

/// Receives frames until none come for a while; returns their number.
fn drain(link: &mut Xdp) -> usize {
    let mut frames = 0;
    let mut quiet = 0;
    while quiet < 3 {
        match link.receive(64, &mut each(|_, _| {})).expect("receive") {
            0 => {
                quiet += 1;
                link.wait(POLL_EVERY).expect("wait");
            }
            more => {
                frames += more;
                quiet = 0;
            }
        }
    }
    frames
}

/// Checks that all receive chunks are the kernel's and all slots are free, once the kernel has returned those that it sent.
fn assert_settled(link: &mut Xdp) {
    let layout = link.umem.layout();
    let settled = Accounts {
        receive_at_kernel: layout.receive_chunks,
        receive_ours: 0,
        slots_free: layout.slots,
        slots_at_kernel: 0,
    };
    for _ in 0..POLLS_MAX {
        link.flush().expect("flush");
        link.tx.reap(&mut link.umem);
        if link.umem.accounts() == settled {
            assert_eq!(link.umem.astray(), 0);
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(link.umem.accounts(), settled, "chunks are missing");
}

/// After a hundred thousand frames each way, of one chunk and of several, no chunk is missing.
#[test]
fn no_chunk_is_lost() {
    for (mtu, config, rounds) in [
        (1500, generic(), 1300),
        (9000, generic(), 250),
        (9000, native(), 250),
        (65_535, generic(), 250),
    ] {
        std::thread::spawn(move || {
            if !on_veth(mtu) {
                return;
            }
            let (mut a, mut b) = (open("n0", config), open("n1", config));
            assert_eq!(a.is_native(), config.mode == XdpMode::Native);
            let (to_a, to_b) = (a.local_addr(), b.local_addr());
            let largest = a.caps().frame_bytes;
            let mut received = 0;
            for round in 0..rounds {
                for index in 0..80 {
                    let bytes = if index % 20 == 0 {
                        largest
                    } else {
                        1 + (round * 7 + index) % largest.min(4200)
                    };
                    send(&mut a, to_b, bytes, index as u8);
                    send(&mut b, to_a, bytes, index as u8);
                }
                a.flush().expect("flush");
                b.flush().expect("flush");
                for link in [&mut a, &mut b] {
                    received += link
                        .receive(
                            usize::MAX,
                            &mut each(|_, frame| {
                                assert!(frame.iter().all(|byte| *byte == frame[0]))
                            }),
                        )
                        .expect("receive");
                }
            }
            received += drain(&mut a) + drain(&mut b);
            assert_eq!(received, rounds * 160, "no frame was lost either");
            assert_settled(&mut a);
            assert_settled(&mut b);
        })
        .join()
        .expect("no panic");
    }
}

/// For a receiver that does not poll, the kernel counts dropped frames; then the link works again and no chunk is missing.
#[test]
fn empty_fill_ring_drops_and_recovers() {
    if !on_veth(1500) {
        return;
    }
    let config = XdpConfig {
        ring_frames: Some(64),
        ..generic()
    };
    let (mut a, mut b) = (open("n0", config), open("n1", config));
    assert_eq!(
        b.caps().receive_frames,
        56,
        "an eighth is for frames without credit"
    );
    let to = b.local_addr();
    for number in 0..200 {
        send(&mut a, to, 60, number as u8);
        a.flush().expect("flush");
    }
    assert_eq!(drain(&mut b), 64, "what the ring holds arrives");
    assert_eq!(b.counters().dropped_frames, 136, "the rest is counted");
    send(&mut a, to, 60, 9);
    a.flush().expect("flush");
    assert_eq!(receive(&mut b).1, [9; 60]);
    assert_settled(&mut a);
    assert_settled(&mut b);
}

/// Frames that join one another count in the bytes after which the kernel is kicked without a flush.
#[test]
fn joined_frames_fill_a_burst() {
    if !on_veth(65_535) {
        return;
    }
    let (mut a, mut b) = (open("n0", generic()), open("n1", generic()));
    let to = b.local_addr();
    for number in 0..6 {
        send(&mut a, to, 20_000, number);
    }
    assert_eq!(drain(&mut b), 0, "120 kB are gathered");
    send(&mut a, to, 20_000, 6);
    assert_eq!(drain(&mut b), 7, "140 kB in three Ethernet frames are not");
    assert_settled(&mut a);
}

/// A handler that panics costs no chunk, and no frame but those that came joined with its own.
#[test]
fn panics_lose_no_chunk() {
    if !on_veth(1500) {
        return;
    }
    let (mut a, mut b) = (open("n0", generic()), open("n1", generic()));
    let to = b.local_addr();
    for round in 0..50 {
        for number in 0..4 {
            send(&mut a, to, 30, number);
            a.flush().expect("flush");
        }
        let handler = catch_unwind(AssertUnwindSafe(|| {
            for _ in 0..POLLS_MAX {
                let _ = b.receive(
                    9,
                    &mut each(|_, frame| assert!(frame[0] != 1, "handler {round}")),
                );
                let _ = b.wait(POLL_EVERY);
            }
        }));
        assert!(handler.is_err());
        assert_eq!((receive(&mut b).1[0], receive(&mut b).1[0]), (2, 3));
    }
    assert_settled(&mut a);
    assert_settled(&mut b);
}

/// Malformed frames are counted and dropped, frames for others are never delivered, and good ones still arrive.
#[test]
fn hostile_frames_are_dropped() {
    for (mtu, config) in [(1500, generic()), (9000, native()), (9000, generic())] {
        std::thread::spawn(move || {
            if !on_veth(mtu as u32) {
                return;
            }
            let (mut a, mut b) = (open("n0", config), open("n1", config));
            let (from, to) = (a.mac.0, b.mac.0);
            let frame = |to: [u8; 6], from: [u8; 6], ethertype: u16, payload: usize| {
                let mut frame = [&to[..], &from[..], &ethertype.to_be_bytes()].concat();
                frame.resize(14 + payload, 0x5a);
                frame
            };
            // Dropped by us and counted: no payload, our own address as source, a group as source, a length beyond the end.
            for hostile in [
                frame(to, from, ETHERTYPE, 0),
                frame(to, to, ETHERTYPE, 100),
                frame([0xff; 6], to, ETHERTYPE, 100),
                frame(to, [0xff; 6], ETHERTYPE, 100),
                frame(to, [0x33, 0x33, 0, 0, 0, 1], ETHERTYPE, mtu),
                frame(to, from, ETHERTYPE, 100),
            ] {
                send_raw(&mut a, &hostile);
            }
            assert_eq!(drain(&mut b), 0);
            assert_eq!(b.counters().dropped_frames, 6);
            // Left to the kernel: for others, of other types.
            for other in [
                frame([2, 0, 0, 0, 0, 99], from, ETHERTYPE, 100),
                frame([0x33, 0x33, 0, 0, 0, 1], from, ETHERTYPE, 100),
                frame(to, from, 0x88B6, 100),
                frame(to, from, 0xB588, 100),
                frame([0xff; 6], from, 0x0806, 28),
            ] {
                send_raw(&mut a, &other);
            }
            // Any bytes of any length behind any header.
            let mut random = fastrand::Rng::with_seed(7);
            for _ in 0..3000 {
                let length = random.usize(14..14 + mtu);
                let mut frame = vec![0; length];
                random.fill(&mut frame);
                frame[0] = 2;
                send_raw(&mut a, &frame);
            }
            assert_eq!(drain(&mut b), 0);
            assert_eq!(b.counters().dropped_frames, 6);
            let addr = b.local_addr();
            send(&mut a, addr, mtu - 2, 3);
            a.flush().expect("flush");
            assert_eq!(receive(&mut b), (a.local_addr(), vec![3; mtu - 2]));
            assert_settled(&mut a);
            assert_settled(&mut b);
        })
        .join()
        .expect("no panic");
    }
}

/// The loaded program returns what it should: redirects with a socket behind it, passes to the kernel otherwise.
#[test]
fn kernel_runs_the_program() {
    if !on_veth(1500) {
        return;
    }
    let link = open("n0", generic());
    let mac = link.mac.0;
    let run = |frame: &[u8]| sys::test_run(link.program.as_fd(), frame).expect("test run");
    let mut frame = [
        &mac[..],
        &[2, 0, 0, 0, 0, 1],
        &ETHERTYPE.to_be_bytes(),
        &[0; 46],
    ]
    .concat();
    assert_eq!(run(&frame), program::REDIRECT);
    frame[..6].fill(0xff);
    assert_eq!(run(&frame), program::REDIRECT);
    for at in [0, 5, 12, 13] {
        let mut other = frame.clone();
        other[at] ^= 1;
        assert_eq!(run(&other), program::PASS, "byte {at}");
    }
}

/// An interface with a foreign program is left as it is, and the program named.
#[test]
fn foreign_program_is_not_replaced() {
    if !on_veth(1500) {
        return;
    }
    let index = crate::ether::Interface::open("n0").expect("n0").index;
    let map = sys::create_xskmap(1).expect("map");
    let stations = ether::Stations {
        base: MacAddr([2; 6]),
        slots: 1,
    };
    let code = program::assemble(stations, 0x9999, std::os::fd::AsRawFd::as_raw_fd(&map));
    let foreign = sys::load_program("foreign", &code, false).expect("load");
    for flags in [sys::ATTACH_GENERIC, sys::ATTACH_NATIVE] {
        let held = sys::attach(foreign.as_fd(), index, flags).expect("attach");
        let before = device::attached(index).expect("query");
        for config in [generic(), native(), XdpConfig::default()] {
            let error = Xdp::open("n0", config).expect_err("occupied");
            let text = error.to_string();
            assert!(matches!(error, XdpOpenError::Occupied { .. }), "{text}");
            assert!(
                text.contains("'foreign' (id ") && text.contains("ip link show n0"),
                "{text}"
            );
        }
        assert_eq!(device::attached(index).expect("query"), before);
        drop(held);
        assert_detached(index);
    }
    drop(open("n0", native()));
}

/// A link opened right after its predecessor closed gets the queue, each time, and leaves no program behind.
#[test]
fn reopens_at_once() {
    if !on_veth(1500) {
        return;
    }
    for round in 0..12 {
        let config = if round % 2 == 0 { generic() } else { native() };
        let link = open("n0", config);
        let index = crate::ether::Interface::open("n0").expect("n0").index;
        assert!(device::attached(index).expect("query").is_some());
        drop(link);
        if round % 3 == 0 {
            assert_detached(index);
        }
    }
}

/// One process, one interface: a second link on it is refused.
#[test]
fn second_link_is_refused() {
    if !on_veth(1500) {
        return;
    }
    let held = open("n0", generic());
    let error = Xdp::open("n0", generic()).expect_err("claimed");
    assert!(matches!(error, XdpOpenError::Claimed(_)), "{error}");
    drop(held);
    drop(open("n0", generic()));
}

/// While an interface is down frames are dropped and counted, and no call waits; up again, all works.
#[test]
fn down_interface_drops() {
    for side in ["n0", "n1"] {
        std::thread::spawn(move || {
            if !on_veth(1500) {
                return;
            }
            let (mut a, mut b) = (open("n0", generic()), open("n1", generic()));
            let to = b.local_addr();
            ip(&format!("link set {side} down\n")).expect("down");
            let slots = a.umem.layout().slots as usize;
            for _ in 0..slots * 3 {
                assert!(
                    a.send_one(to, Frame::whole(&[1]))
                        .expect("down is no error")
                );
                a.flush().expect("flush");
                a.wait(Duration::ZERO).expect("wait");
            }
            let counters = a.counters();
            assert!(counters.dropped_frames >= slots as u64, "{counters:?}");
            ip(&format!("link set {side} up\n")).expect("up");
            let mut arrived = 0;
            for _ in 0..POLLS_MAX {
                send(&mut a, to, 80, 7);
                a.flush().expect("flush");
                b.wait(POLL_EVERY).expect("wait");
                b.receive(
                    999,
                    &mut each(|_, frame| arrived += usize::from(frame == [7; 80])),
                )
                .expect("recv");
                if arrived > 0 {
                    break;
                }
            }
            assert!(arrived > 0, "works again");
            drain(&mut b);
            assert_settled(&mut a);
        })
        .join()
        .expect("no panic");
    }
}

/// Each of our frames in an Ethernet frame that is dropped on its way out is counted, and an announcement is not.
#[test]
fn joined_frames_count_when_lost() {
    std::thread::spawn(|| {
        if !on_veth(1500) {
            return;
        }
        let (mut a, b) = (open("n0", generic()), open("n1", generic()));
        let to = b.local_addr();
        ip("link set n1 down\n").expect("down");
        for frames in [1, 7, 30] {
            let before = a.counters().dropped_frames;
            for _ in 0..frames {
                send(&mut a, to, 20, 1);
            }
            a.flush().expect("flush");
            assert_eq!(a.counters().dropped_frames - before, frames);
        }
    })
    .join()
    .expect("no panic");
}

/// A link announces its address when it is opened and when its interface comes back; no program receives that.
#[test]
fn announces_itself() {
    if !on_veth(1500) {
        return;
    }
    let mut b = open("n1", generic());
    let mut a = open("n0", generic());
    let mut announced = |a: &mut Xdp| {
        for _ in 0..POLLS_MAX {
            a.wait(Duration::ZERO).expect("wait");
            if b.rx.ring.available() > 0 {
                let received = b.umem.take(b.rx.ring.peek(0)).expect("a chunk");
                assert!(b.umem.received(received) == crate::ether::announcement(a.mac));
                // As if it had not been read.
                b.umem.give_back(received);
                assert_eq!(b.receive(9, &mut each(|_, _| {})).expect("receive"), 0);
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("no announcement");
    };
    announced(&mut a);
    for polls in [false, true, false] {
        ip("link set n0 down\n").expect("down");
        if polls {
            a.checks.hasten();
            assert_eq!(a.receive(9, &mut each(|_, _| {})).expect("receive"), 0);
        } else {
            a.wait(Duration::ZERO).expect("wait");
        }
        ip("link set n0 up\n").expect("up");
        announced(&mut a);
    }
    assert_eq!(
        b.counters().dropped_frames + b.counters().received_frames,
        0
    );
    assert_eq!(a.counters().sent_frames, 0);
    assert_settled(&mut b);
}

/// A link whose interface was removed reports an error and does not hang, whether it sends, waits or polls.
#[test]
fn removed_interface_is_an_error() {
    if !on_veth(1500) {
        return;
    }
    let (mut a, mut b) = (open("n0", generic()), open("n1", native()));
    ip("link del n0\n").expect("remove");
    let mut failed = None;
    for _ in 0..POLLS_MAX {
        let sent = a.send_one(LinkAddr::Broadcast, Frame::whole(&[1]));
        if let Err(error) = sent.and_then(|_| a.flush()) {
            failed = Some(error.to_string());
            break;
        }
    }
    assert!(failed.expect("an error").contains("removed"));
    assert!(b.wait(Duration::from_secs(20)).is_err());
    assert!(b.wait(Duration::from_secs(20)).is_err(), "and again");
    b.checks.hasten();
    assert!(b.receive(1, &mut each(|_, _| {})).is_err(), "and polling");
}
