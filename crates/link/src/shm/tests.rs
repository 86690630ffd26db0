//! Claims, rings across restarts, and memory. `generation_tests` has many restarts and joins. The conformance suite checks delivery, `tests/crash_shm.rs` crashes of real processes.

use std::os::fd::OwnedFd;

use fastrand::Rng;

use super::*;
use crate::each;

pub(super) const SMALL: ShmConfig = ShmConfig {
    frame_bytes: 600,
    ring_bytes: 8192,
    broadcast_bytes: 8192,
};

pub(super) fn small(nodes: usize) -> OwnedFd {
    ShmJob::create(nodes, SMALL).expect("create")
}

pub(super) fn send(shm: &mut Shm, to: LinkAddr, text: &[u8]) -> bool {
    let taken = shm.send_one(to, Frame::whole(text)).expect("send_with");
    shm.flush().expect("flush");
    taken
}

/// Attaches as a node that another link has just left. A child that another test forks keeps its lock until it executes another program.
pub(super) fn attach_again(job: &OwnedFd, node: u16) -> Shm {
    let begun = std::time::Instant::now();
    loop {
        match Shm::attach(job, node) {
            Err(ShmAttachError::Taken { .. }) if begun.elapsed() < Duration::from_secs(10) => {}
            attached => return attached.expect("attach"),
        }
    }
}

pub(super) fn receive(shm: &mut Shm) -> Vec<Vec<u8>> {
    let mut frames = Vec::new();
    while shm
        .receive(64, &mut each(|_, frame| frames.push(frame.to_vec())))
        .expect("receive")
        > 0
    {}
    frames
}

/// As many frames fit as `capacity` states, wherever the ring's tail and head are, and one more only if it says so.
#[test]
fn room_is_as_told() {
    let job = small(2);
    let (mut a, mut b, to) = met(&job);
    let mut rng = Rng::with_seed(5);
    for round in 0..500 {
        let text = vec![1; rng.usize(1..=a.caps().frame_bytes)];
        let room = a.counted_room(to, text.len());
        for _ in 0..room {
            assert!(count(&mut a, to, &text), "{round}: {room}");
        }
        assert_eq!(a.counted_room(to, a.caps().frame_bytes), 0, "{round}");
        assert!(!count(&mut a, to, &text), "{round}");
        let read = (0..room).take_while(|_| rng.u32(..20) > 0).count();
        b.receive(read, &mut each(|_, _| {})).expect("recv");
        receive(&mut b);
    }
    let process = |index, generation| Process { index, generation };
    let next = process(to.index, to.generation + 1);
    assert_eq!(a.counted_room(next, 8), 0, "another generation");
    assert_eq!(a.counted_room(process(7, 1), 8), 0);
}

/// Memory is allocated for a ring's lines before they are used, but hardly more than is used; after the first lap nothing is asked for again.
#[test]
fn memory_comes_ahead_of_use() {
    let config = ShmConfig::for_nodes(2);
    let job = ShmJob::create(2, config).expect("create");
    let mut a = Shm::attach(&job, 0).expect("attach");
    let mut b = Shm::attach(&job, 1).expect("attach");
    receive(&mut a);
    let held = || rustix::fs::fstat(&job).expect("fstat").st_blocks as usize * 512;
    let before = held();
    let mut pass = |frames: usize| {
        for _ in 0..frames {
            assert!(send(&mut a, LinkAddr::Local(1), b"a line of its own"));
            receive(&mut b);
        }
        held() - before
    };
    let page = super::sys::page_bytes();
    assert!(pass(1) <= 4 * page, "one frame takes {} bytes", pass(0));
    let lines = config.ring_bytes / 64;
    assert!(pass(lines / 4) >= config.ring_bytes / 4 + page);
    let whole = pass(lines / 2);
    assert!((config.ring_bytes..config.ring_bytes + 8 * page).contains(&whole));
    assert_eq!(pass(lines), whole);
}

/// A receiver with one place, or none, that records placed bodies, plain frames and missing bodies.
struct Places {
    room: Option<Vec<u8>>,
    placed: Vec<(Vec<u8>, Vec<u8>)>,
    frames: Vec<Vec<u8>>,
    bodiless: Vec<(Vec<u8>, usize)>,
}

impl Places {
    fn new(room_bytes: Option<usize>) -> Self {
        Self {
            room: room_bytes.map(|bytes| vec![0; bytes]),
            placed: Vec::new(),
            frames: Vec::new(),
            bodiless: Vec::new(),
        }
    }
}

impl Receiver for Places {
    fn frame(&mut self, _from: LinkAddr, frame: &[u8]) {
        self.frames.push(frame.to_vec());
    }

    fn placement(&mut self, _: Option<crate::Coming<'_>>) -> Option<crate::Placement<'_>> {
        let place = self.room.as_mut()?;
        Some(crate::Placement {
            head_bytes: 4,
            body_bytes: place.len(),
            place,
        })
    }

    fn is_expected(&mut self, _: LinkAddr, _: usize, head: &[u8], _: usize) -> bool {
        head == b"head"
    }

    fn placed(&mut self, _from: LinkAddr, head: &[u8], body_bytes: usize) {
        let body = self.room.as_ref().map(|room| room[..body_bytes].to_vec());
        self.placed.push((head.to_vec(), body.unwrap_or_default()));
    }

    fn bodiless(&mut self, _from: LinkAddr, head: &[u8], body_bytes: usize) {
        self.bodiless.push((head.to_vec(), body_bytes));
    }
}

/// Two links of one job that know each other, and the second's process.
fn met(job: &OwnedFd) -> (Shm, Shm, Process) {
    let mut a = Shm::attach(job, 0).expect("attach");
    let mut b = Shm::attach(job, 1).expect("attach");
    let to_b = LinkAddr::Local(1);
    receive(&mut a);
    receive(&mut b);
    assert!(send(&mut b, LinkAddr::Local(0), b"here"));
    assert_eq!(receive(&mut a).len(), 1);
    let process = a.heard(to_b).expect("heard");
    (a, b, process)
}

/// Lets `b` take bodies by reference. `false`, with a message, where the kernel does not let `b` read the memory of `a`.
fn reads(a: &mut Shm, b: &mut Shm, to: Process, max_bytes: usize) -> bool {
    b.set_reference_max(max_bytes);
    let reads = a.reference_room(to).is_some();
    if !reads {
        eprintln!("skipped: the kernel does not let processes read each other here");
    }
    reads
}

/// However much a peer takes by reference, it is sent no more than two rings; one that takes none is sent none.
#[test]
fn references_are_limited() {
    let job = small(2);
    let (mut a, mut b, to) = met(&job);
    if !reads(&mut a, &mut b, to, usize::MAX) {
        return;
    }
    assert_eq!(a.reference_room(to), Some(2 * 8192));
    b.set_reference_max(0);
    assert_eq!(a.reference_room(to), None);
}

/// A sleeping sender is woken when its body was read.
#[test]
fn readers_wake_who_waits_for_memory() {
    let job = small(2);
    let (mut a, mut b, to) = met(&job);
    if !reads(&mut a, &mut b, to, 8192) {
        return;
    }
    let body = Bytes::from(vec![7; 1000]);
    assert!(a.send_reference(to, true, b"head", &body).expect("send"));
    let begun = std::time::Instant::now();
    let reader = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        let mut places = Places::new(Some(1000));
        b.receive(64, &mut places).expect("receive");
        (b, places.placed.len())
    });
    while !body.is_unique() {
        a.wait(Duration::from_secs(20)).expect("wait");
        receive(&mut a);
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
    assert_eq!(reader.join().expect("reader").1, 1);
}

/// A body that has no place, or whose head is not expected, is reported as missing. Later frames arrive, and nothing more is sent by reference.
#[test]
fn bodies_without_a_place_are_not_taken() {
    let body = Bytes::from(vec![7; 1000]);
    for (room, head) in [(None, b"head"), (Some(999), b"head"), (Some(1000), b"hoax")] {
        let job = small(2);
        let (mut a, mut b, to) = met(&job);
        if !reads(&mut a, &mut b, to, 8192) {
            return;
        }
        assert!(a.send_reference(to, true, head, &body).expect("send"));
        assert!(a.send_reference(to, true, head, &body).expect("send"));
        assert!(count(&mut a, to, b"behind"));
        let mut places = Places::new(room);
        while b.receive(64, &mut places).expect("receive") > 0 {}
        assert!(places.placed.is_empty(), "{room:?}");
        assert_eq!(places.bodiless, vec![(head.to_vec(), 1000); 2]);
        assert_eq!(places.frames, [b"behind"]);
        assert_eq!(a.reference_room(to), None);
        assert!(body.is_unique());
    }
}

/// A body that its sender released before it was read is not delivered with other content. A receiver that is gone holds up no body.
#[test]
fn bodies_end_with_either_side() {
    let job = small(2);
    let (mut a, mut b, to) = met(&job);
    if !reads(&mut a, &mut b, to, 8192) {
        return;
    }
    let body = Bytes::from(vec![7; 1000]);
    assert!(a.send_reference(to, true, b"head", &body).expect("send"));
    drop(a);
    assert!(body.is_unique());
    let mut places = Places::new(Some(1000));
    b.receive(64, &mut places).expect("receive");
    assert!(places.placed.is_empty() && places.bodiless.len() == 1);

    let mut a = Shm::attach(&job, 0).expect("attach");
    receive(&mut b);
    receive(&mut a);
    assert!(send(&mut b, LinkAddr::Local(0), b"here"));
    receive(&mut a);
    assert!(a.send_reference(to, true, b"head", &body).expect("send"));
    drop(b);
    let begun = std::time::Instant::now();
    while !body.is_unique() {
        assert!(begun.elapsed() < Duration::from_secs(10));
        receive(&mut a);
    }
}

/// Sends a counted frame to that process.
fn count(shm: &mut Shm, to: Process, text: &[u8]) -> bool {
    let taken = shm.send_counted(to, true, [text, &[], &[]]).expect("send");
    shm.flush().expect("flush");
    taken
}

/// A frame in parts arrives as one, wherever it is cut, also within its first line, and of any length.
#[test]
fn parts_arrive_as_one() {
    let job = small(2);
    let (mut a, mut b, to) = met(&job);
    let mut rng = Rng::with_seed(6);
    for round in 0..4000 {
        let bytes = rng.usize(
            1..=if round % 2 == 0 {
                140
            } else {
                a.caps().frame_bytes
            },
        );
        let text: Vec<u8> = std::iter::repeat_with(|| rng.u8(..)).take(bytes).collect();
        let cut = rng.usize(..=bytes);
        let (head, rest) = text.split_at(cut);
        let (front, back) = rest.split_at(rng.usize(..=rest.len()));
        assert!(
            a.send_counted(to, round % 3 == 0, [head, front, back])
                .expect("send")
        );
        a.flush().expect("flush");
        assert_eq!(receive(&mut b), [text.as_slice()], "{round}: {cut}");
        receive(&mut a);
    }
}

/// Unread counted frames are known, among other frames and round the ring.
#[test]
fn unread_frames_are_counted() {
    let job = small(2);
    let mut a = Shm::attach(&job, 0).expect("attach");
    let mut b = Shm::attach(&job, 1).expect("attach");
    let (to_b, to_a) = (LinkAddr::Local(1), LinkAddr::Local(0));
    assert_eq!(a.heard(to_b), None);
    receive(&mut a);
    assert!(send(&mut b, to_a, b"here"));
    assert_eq!(receive(&mut a), [b"here"]);
    let process = a.heard(to_b).expect("heard");
    let mut rng = Rng::with_seed(3);
    for round in 0..300 {
        let (mut counted, mut frames) = (0, 0);
        for number in 0..rng.usize(0..12) {
            let text = vec![number as u8 + 1; rng.usize(1..300)];
            let counts = rng.bool();
            let sent = if counts {
                count(&mut a, process, &text)
            } else {
                send(&mut a, to_b, &text)
            };
            counted += usize::from(sent && counts);
            frames += usize::from(sent);
        }
        assert_eq!(a.unread(process), counted, "{round}");
        assert_eq!(receive(&mut b).len(), frames, "{round}");
        assert_eq!(a.unread(process), 0, "{round}");
    }
    let nobody = Process {
        index: u16::MAX,
        generation: 1,
    };
    let refused = a.send_counted(nobody, true, [b"x", &[], &[]]);
    assert!(matches!(refused, Err(LinkError::NoSuchPeer { .. })));
}

/// An index has one owner at a time, and is free again when the owner is gone.
#[test]
fn index_is_claimed_once() {
    let job = small(2);
    let a = Shm::attach(&job, 0).expect("attach");
    let error = Shm::attach(&job, 0).expect_err("taken");
    assert!(
        matches!(error, ShmAttachError::Taken { node: 0 }),
        "{error}"
    );
    drop(a);
    Shm::attach(&job, 0).expect("free again");
    let error = Shm::attach(&job, u16::MAX).expect_err("no such node");
    assert!(matches!(
        error,
        ShmAttachError::NoSuchNode { node: u16::MAX, .. }
    ));
}

/// A descriptor that is no job's memory is refused with a reason.
#[test]
fn foreign_descriptors_are_refused() {
    let file = std::fs::File::open("/dev/null").expect("open");
    let error = Shm::attach(&file, 0).expect_err("not a memfd");
    assert!(error.to_string().contains("sealed"), "{error}");
    let empty = sys::sealed_memfd(1 << 20).expect("memfd");
    let error = Shm::attach(&empty, 0).expect_err("no head");
    assert!(error.to_string().contains("magic"), "{error}");
}

/// Sizes that rings cannot have are refused by name.
#[test]
fn impossible_sizes_are_refused() {
    let sound = ShmConfig::for_nodes(2);
    for (nodes, config, text) in [
        (0, sound, "0 nodes"),
        (NODES_MAX + 1, sound, "4097 nodes"),
        (
            2,
            ShmConfig {
                ring_bytes: 3 << 18,
                ..sound
            },
            "ring_bytes",
        ),
        (
            2,
            ShmConfig {
                ring_bytes: 1 << 15,
                ..sound
            },
            "ring_bytes",
        ),
        (
            2,
            ShmConfig {
                frame_bytes: 0,
                ..sound
            },
            "frame_bytes",
        ),
        (
            2,
            ShmConfig {
                broadcast_bytes: 64,
                ..sound
            },
            "broadcast_bytes",
        ),
    ] {
        let error = ShmJob::create(nodes, config).expect_err("impossible");
        assert!(error.to_string().contains(text), "{error}");
    }
    for nodes in [1, 2, 3, 8, 64, NODES_MAX] {
        ShmJob::create(nodes, ShmConfig::for_nodes(nodes)).expect("defaults work");
    }
}

/// A restarted consumer gets no frames for its earlier generation, and all later ones.
#[test]
fn restarted_consumer_starts_fresh() {
    let job = small(2);
    let mut a = Shm::attach(&job, 0).expect("attach");
    let to = LinkAddr::Local(1);
    assert!(!send(&mut a, to, b"nobody there"));
    for generation in 0..10u8 {
        let mut b = Shm::attach(&job, 1).expect("attach");
        assert!(send(&mut a, to, &[generation, 1]));
        assert!(send(&mut a, LinkAddr::Broadcast, &[generation, 2]));
        let mut frames = receive(&mut b);
        frames.sort();
        assert_eq!(frames, [[generation, 1], [generation, 2]]);
        assert!(send(&mut b, LinkAddr::Local(0), &[generation, 3]));
        assert_eq!(receive(&mut a), [[generation, 3]]);
        // Left unread in the ring, and the ring left full.
        while send(&mut a, to, b"for a dead generation") {}
        assert!(send(&mut a, LinkAddr::Broadcast, b"for a dead generation"));
    }
}

/// A restarted producer's frames come from its new ring; frames that its earlier generation sent before it exited are still read.
#[test]
fn restarted_producer_is_followed() {
    let job = small(2);
    let mut b = Shm::attach(&job, 1).expect("attach");
    for generation in 0..10u8 {
        let mut a = Shm::attach(&job, 0).expect("attach");
        for number in 0..generation {
            assert!(send(&mut a, LinkAddr::Local(1), &[generation, number]));
        }
        drop(a);
        let expected: Vec<_> = (0..generation)
            .map(|number| vec![generation, number])
            .collect();
        assert_eq!(receive(&mut b), expected);
    }
}

/// A peer that sends all the time does not keep another's frames from being received.
#[test]
fn busy_peer_starves_nobody() {
    let job = small(3);
    let mut links: Vec<_> = (0..3)
        .map(|node| Shm::attach(&job, node).expect("attach"))
        .collect();
    let (first, rest) = links.split_at_mut(1);
    let (second, third) = rest.split_at_mut(1);
    for round in 0..20u32 {
        send(&mut second[0], LinkAddr::Local(0), b"rare");
        let mut bursts = 0;
        let mut heard = false;
        while !heard {
            while send(&mut third[0], LinkAddr::Local(0), b"often") {}
            first[0]
                .receive(8, &mut each(|from, _| heard |= from == LinkAddr::Local(1)))
                .expect("receive");
            bursts += 1;
            assert!(bursts < 20, "starved in round {round}");
        }
    }
}

/// A reader that broadcasts overran gets the newest frame and knows how many it missed.
#[test]
fn outrun_reader_counts_what_it_missed() {
    let job = small(2);
    let mut a = Shm::attach(&job, 0).expect("attach");
    let mut b = Shm::attach(&job, 1).expect("attach");
    send(&mut a, LinkAddr::Broadcast, &0u32.to_le_bytes());
    assert_eq!(receive(&mut b).len(), 1);
    for number in 1..=1000u32 {
        send(&mut a, LinkAddr::Broadcast, &number.to_le_bytes());
    }
    assert_eq!(receive(&mut b), [1000u32.to_le_bytes()]);
    let counters = b.counters();
    assert_eq!(counters.overrun_frames, 999);
    assert_eq!(counters.received_frames + counters.overrun_frames, 1001);
}

/// Memory is used only where frames were written.
#[test]
fn untouched_rings_cost_nothing() {
    let job = ShmJob::create(32, ShmConfig::for_nodes(32)).expect("create");
    let mut links: Vec<_> = (0..32)
        .map(|node| Shm::attach(&job, node).expect("attach"))
        .collect();
    send(&mut links[0], LinkAddr::Local(1), b"one");
    assert_eq!(receive(&mut links[1]).len(), 1);
    let taken = rustix::fs::fstat(&job).expect("fstat").st_blocks as u64 * 512;
    // Each node reads a line of every other's ring: a page for every ring, once it was opened.
    assert!(taken < 16 << 20, "{taken} bytes");
}

pub(super) fn taken_bytes(job: &OwnedFd) -> u64 {
    rustix::fs::fstat(job).expect("fstat").st_blocks as u64 * 512
}

/// Fills everything that a generation may write towards node 0.
pub(super) fn fill(shm: &mut Shm) {
    while send(shm, LinkAddr::Local(0), &[7; 500]) {}
    for _ in 0..40 {
        assert!(send(shm, LinkAddr::Broadcast, &[8; 500]));
    }
}

/// A hundred restarts of one node, all rings full each time, take no more memory than three.
#[test]
fn restarts_do_not_pile_up_memory() {
    let job = ShmJob::create(4, ShmConfig::for_nodes(4)).expect("create");
    let mut a = Shm::attach(&job, 0).expect("attach");
    let mut c = Shm::attach(&job, 2).expect("attach");
    let dead = Shm::attach(&job, 3).expect("attach");
    drop(dead); // a dead generation, which never sends again, must not keep others' memory
    let mut after_three = 0;
    for restart in 0..100 {
        let mut b = Shm::attach(&job, 1).expect("attach");
        receive(&mut a);
        receive(&mut c);
        fill(&mut b);
        receive(&mut b);
        if restart == 2 {
            after_three = taken_bytes(&job);
        }
    }
    let taken = taken_bytes(&job);
    // Regions start at the same place within a page each time, so the figures may be compared exactly.
    assert!(
        taken <= after_three,
        "{taken} bytes after 100, {after_three} after 3"
    );
}

/// The memory of a dead generation stays as long as a live process may read it, and is released when that process switches to the next one or dies.
#[test]
fn dead_generation_stays_for_its_readers() {
    for reader_dies in [false, true] {
        let job = small(3);
        let mut a = Shm::attach(&job, 0).expect("attach");
        let mut b = Shm::attach(&job, 1).expect("attach");
        receive(&mut a);
        fill(&mut b);
        drop(b);
        let mut b = Shm::attach(&job, 1).expect("attach");
        receive(&mut b);
        assert!(b.has_dead_generations, "a has not checked yet");
        let full = taken_bytes(&job);
        if reader_dies {
            drop(a);
            drop(Shm::attach(&job, 2).expect("attach")); // any attach makes the others refresh
        } else {
            receive(&mut a);
        }
        receive(&mut b);
        assert!(!b.has_dead_generations);
        assert!(taken_bytes(&job) < full);
        let mut a = if reader_dies {
            Shm::attach(&job, 0).expect("attach")
        } else {
            Shm::attach(&job, 2).expect("attach")
        };
        let to = a.local_addr();
        receive(&mut b);
        assert!(send(&mut b, to, b"goes on"));
        assert_eq!(receive(&mut a), [b"goes on"]);
    }
}

/// The probe answers, with yes on any machine that runs these tests.
#[test]
fn probe_answers() {
    let probe = probe();
    assert!(probe.works, "{probe:?}");
}
