//! Relays over a segment in memory: the conformance of the link, and what a relay lets through.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::*;
use crate::capture::Capture;
use crate::checked::Checked;
use crate::ether::{announcement, write_header};
use crate::impair::{Impair, ImpairConfig};
use crate::{Capacity, LinkCaps, LinkCounters, Receiver, conformance, pass_on};

const FRAME_BYTES: usize = 1498;
/// Frames in the receive ring of a device.
const DEVICE_FRAMES: usize = 256;

type Ring = Arc<Mutex<VecDeque<Vec<u8>>>>;

/// A device on a segment that copies each frame to all others.
#[derive(Debug)]
struct Station {
    mac: MacAddr,
    own: Ring,
    others: Vec<Ring>,
}

impl Station {
    /// As many devices as asked for, on one segment.
    fn segment(count: usize) -> Vec<Self> {
        let rings: Vec<Ring> = (0..count).map(|_| Ring::default()).collect();
        let station = |(number, own): (usize, &Ring)| Self {
            mac: mac(number as u8),
            own: Arc::clone(own),
            others: (rings.iter())
                .filter(|ring| !Arc::ptr_eq(ring, own))
                .cloned()
                .collect(),
        };
        rings.iter().enumerate().map(station).collect()
    }

    /// Plays the net: a frame arrives.
    fn arrive(&self, frame: &[u8]) {
        self.own.lock().unwrap().push_back(frame.to_vec());
    }
}

fn mac(number: u8) -> MacAddr {
    MacAddr([2, 0, 0, 0, 1, number])
}

impl Link for Station {
    fn caps(&self) -> LinkCaps {
        LinkCaps {
            name: "memory",
            frame_bytes: FRAME_BYTES,
            receive_frames: DEVICE_FRAMES,
            burst_frames: 32,
            gathers: false,
            broadcast: true,
            lossless: false,
            damages: false,
            polls_by_call: false,
        }
    }

    fn local_addr(&self) -> LinkAddr {
        LinkAddr::Ether(self.mac)
    }

    fn capacity(&mut self, _: LinkAddr) -> Result<Capacity, LinkError> {
        let fullest = (self.others.iter()).map(|ring| ring.lock().unwrap().len());
        let frames = DEVICE_FRAMES - fullest.max().unwrap_or(0).min(DEVICE_FRAMES);
        Ok(Capacity {
            frames,
            bytes: usize::MAX,
        })
    }

    fn send(&mut self, _: LinkAddr, _: &[Frame<'_>]) -> Result<usize, LinkError> {
        unreachable!("a relay sends Ethernet frames")
    }

    fn receive(&mut self, _: usize, _: &mut impl Receiver) -> Result<usize, LinkError> {
        unreachable!("a relay receives Ethernet frames")
    }

    fn flush(&mut self) -> Result<(), LinkError> {
        Ok(())
    }

    fn wait(&mut self, timeout: Duration) -> Result<(), LinkError> {
        if self.own.lock().unwrap().is_empty() {
            std::thread::sleep(timeout.min(Duration::from_micros(50)));
        }
        Ok(())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn arm_fd(&mut self) -> Result<bool, LinkError> {
        Ok(false)
    }

    fn note_time(&mut self, _: u64) {}

    fn counters(&self) -> LinkCounters {
        LinkCounters::default()
    }
}

impl Ethernet for Station {
    fn receive_ethernet(
        &mut self,
        max: usize,
        mut take: impl FnMut(&[u8]),
    ) -> Result<usize, LinkError> {
        for count in 0..max {
            let Some(frame) = self.own.lock().unwrap().pop_front() else {
                return Ok(count);
            };
            take(&frame);
        }
        Ok(max)
    }

    fn send_ethernet(&mut self, frame: &[u8]) -> Result<bool, LinkError> {
        for ring in &self.others {
            ring.lock().unwrap().push_back(frame.to_vec());
        }
        Ok(true)
    }
}

/// A link and the relay behind it, which works on a thread of its own.
#[derive(Debug)]
struct Served {
    link: Relayed,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Served {
    fn new(device: Station) -> Self {
        let mut relay = Relay::new(device, 3).unwrap();
        let link = Relayed::attach(relay.memory(), 2, relay.describe()).unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                if relay.poll_once().unwrap() == 0 {
                    relay.wait(Duration::from_millis(1)).unwrap();
                }
            }
            while relay.poll_once().unwrap() > 0 {} // what the link has just sent
        });
        Self {
            link,
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let ended = self.thread.take().unwrap().join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

impl Link for Served {
    pass_on!((link): caps local_addr capacity send receive flush wait fd arm_fd note_time counters);
}

fn make(count: usize) -> Vec<Served> {
    Station::segment(count)
        .into_iter()
        .map(Served::new)
        .collect()
}

macro_rules! conforms {
    ($($check:ident)*) => { $(#[test] fn $check() { conformance::$check(&make); })* };
}

conforms! {
    caps_are_sane frames_arrive_intact burst_arrives full_link_refuses_and_recovers batches_arrive bodies_find_their_places
    wait_ends_without_frames broadcast_reaches_all_others counters_add_up garbage_addresses_do_no_harm many_peers_talk stream_between_threads
    no_wake_is_lost no_wake_through_fd_is_lost
}

/// A relay with three slots, its device, and links in the first two.
fn relay() -> (Relay<Station>, [Relayed; 2]) {
    let mut relay = Relay::new(Station::segment(2).remove(0), 3).unwrap();
    let links = [0, 1].map(|slot| Relayed::attach(relay.memory(), slot, relay.describe()).unwrap());
    assert_eq!(settle(&mut relay), 2, "their announcements");
    (relay, links)
}

/// Passes on all that there is.
fn settle(relay: &mut Relay<Station>) -> usize {
    let polls = std::iter::repeat_with(|| relay.poll_once().unwrap());
    polls.take_while(|frames| *frames > 0).sum()
}

fn ethernet(to: MacAddr, from: MacAddr, content: &[u8]) -> Vec<u8> {
    let mut frame = vec![0; HEADER_BYTES];
    write_header(&mut frame, to, from);
    frame.extend((content.len() as u16).to_le_bytes());
    frame.extend(content);
    frame
}

fn received(link: &mut Relayed) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    link.receive(64, &mut each(|_, frame| frames.push(frame.to_vec())))
        .unwrap();
    frames
}

/// Frames go to the process in whose slot their destination is, and broadcasts to all; all others are counted.
#[test]
fn frames_find_their_slots() {
    let (mut relay, mut links) = relay();
    let own = mac(0);
    let [first, second, third] = [0, 1, 2].map(|slot| own.of_slot(slot).unwrap());
    let unknown = mac(9);
    let mut of_another = ethernet(first, unknown, b"x");
    of_another[12] = 8;
    for frame in [
        ethernet(first, unknown, b"one"),
        ethernet(second, unknown, b"two"),
        ethernet(MacAddr::BROADCAST, unknown, b"all"),
        ethernet(third, unknown, b"nobody"),
        ethernet(own.of_slot(3).unwrap(), unknown, b"no slot"),
        ethernet(second, first, b"by a loop"),
        of_another,
        vec![1, 2, 3],
        vec![],
        ethernet(first, unknown, &[7; 2000]),
    ] {
        relay.device().arrive(&frame);
    }
    assert_eq!(settle(&mut relay), 10);
    assert_eq!(received(&mut links[0]), [&b"one"[..], b"all"]);
    assert_eq!(received(&mut links[1]), [&b"two"[..], b"all"]);
    let counted = relay.counters();
    assert_eq!(counted.received_frames, 4);
    assert_eq!(counted.absent_frames, 1);
    assert_eq!(counted.foreign_frames, 6);
    assert_eq!((counted.full_frames, counted.refused_frames), (0, 0));
}

/// What a process writes that is no frame of ours from its own address to others does not leave.
#[test]
fn forged_frames_stay() {
    let (mut relay, mut links) = relay();
    let own = mac(0);
    let second = own.of_slot(1).unwrap();
    let before = relay.counters().sent_frames;
    let mut of_another = ethernet(mac(9), own, b"x");
    of_another[12] = 8;
    for frame in [
        ethernet(mac(9), second, b"as its neighbour"),
        ethernet(mac(9), mac(7), b"as an unknown"),
        ethernet(second, own, b"to its neighbour"),
        ethernet(MacAddr([1, 0, 0, 0, 0, 1]), own, b"to a group"),
        of_another,
        vec![0; 13],
        vec![7],
    ] {
        let to = LinkAddr::Local(link::RELAY);
        let sent = links[0].in_memory().send_one(to, Frame::whole(&frame));
        assert!(sent.unwrap());
    }
    assert_eq!(settle(&mut relay), 7);
    assert_eq!(relay.counters().refused_frames, 7);
    assert_eq!(relay.counters().sent_frames, before);
    let to = LinkAddr::Ether(mac(9));
    assert!(links[0].send_one(to, Frame::whole(b"sound")).unwrap());
    links[0].flush().unwrap();
    settle(&mut relay);
    assert_eq!(relay.counters().sent_frames, before + 1);
}

/// A process whose ring is full loses frames, and nobody else does.
#[test]
fn full_rings_drop() {
    let (mut relay, mut links) = relay();
    let second = mac(0).of_slot(1).unwrap();
    let frame = ethernet(mac(0), mac(9), &[1; 1400]);
    let mut arrived = 0;
    while relay.counters().full_frames == 0 {
        relay.device().arrive(&frame);
        settle(&mut relay);
        arrived += 1;
        assert!(arrived < 10_000);
    }
    relay.device().arrive(&ethernet(second, mac(9), b"here"));
    settle(&mut relay);
    assert_eq!(received(&mut links[1]), [b"here"]);
    let credit = links[0].caps().receive_frames;
    assert!(arrived > credit, "{arrived} arrived, credit for {credit}");
}

/// A slot has one process; when that has ended, another gets it, and switches learn its address.
#[test]
fn slots_are_given_again() {
    let (mut relay, links) = relay();
    let described = relay.describe();
    assert_eq!(relay.processes(), 2);
    let taken = Relayed::attach(relay.memory(), 1, described);
    assert!(matches!(taken, Err(RelayedError::Attach { slot: 1, .. })));
    let beyond = Relayed::attach(relay.memory(), 3, described);
    assert!(matches!(beyond, Err(RelayedError::Slot { .. })));
    drop(links);
    assert_eq!(relay.processes(), 0);
    let again = Relayed::attach(relay.memory(), 1, described).unwrap();
    assert_eq!(relay.processes(), 1);
    let own = again.local_addr();
    assert_eq!(own, LinkAddr::Ether(mac(0).of_slot(1).unwrap()));
    let told = Arc::clone(&relay.device().others[0]);
    told.lock().unwrap().clear();
    settle(&mut relay);
    let expected = announcement(mac(0).of_slot(1).unwrap());
    assert_eq!(*told.lock().unwrap(), [expected.to_vec()]);
    let odd = Described {
        frame_bytes: 9000,
        ..described
    };
    let odd = Relayed::attach(relay.memory(), 0, odd);
    assert!(matches!(odd, Err(RelayedError::Contradiction)));
}

/// A process learns that its relay has ended.
#[test]
fn the_end_of_a_relay_is_told() {
    let (relay, [mut link, mut sleeper]) = relay();
    link.note_time(1_000_000_000);
    assert!(received(&mut link).is_empty());
    drop(relay);
    link.note_time(2_000_000_000);
    let failed = link.receive(64, &mut each(|_, _| {}));
    assert!(failed.unwrap_err().to_string().contains("relay has ended"));
    assert!(sleeper.wait(Duration::from_secs(60)).is_err());
    assert!(Relay::new(Station::segment(1).remove(0), 0).is_err());
    assert!(Relay::new(Station::segment(1).remove(0), 65).is_err());
}

/// A process learns that its relay has ended, also if it never waits and its link is wrapped.
fn is_told_through<L: Link>(wrap: impl FnOnce(Relayed) -> L) {
    let (relay, [link, _]) = relay();
    let mut link = wrap(link);
    link.note_time(1_000_000_000);
    assert_eq!(link.receive(64, &mut each(|_, _| {})).unwrap(), 0);
    drop(relay);
    link.note_time(2_000_000_000);
    let failed = link.receive(64, &mut each(|_, _| {}));
    assert!(failed.unwrap_err().to_string().contains("relay has ended"));
}

/// Wrappers pass the time on.
#[test]
fn the_end_of_a_relay_is_told_through_wrappers() {
    let held = ImpairConfig {
        delay: Duration::from_millis(1),
        ..ImpairConfig::default()
    };
    is_told_through(Checked::new);
    is_told_through(|link| Capture::new(link, std::io::sink()));
    is_told_through(|link| Impair::new(link, ImpairConfig::default()).unwrap());
    is_told_through(|link| Impair::new(link, held).unwrap());
}
