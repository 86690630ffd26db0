//! Two honest nodes exchange checked messages over each link, without and with key, while an attacker and a lying member do what
//! they can: noise, mutations, spoofed sources, replays, reflections, forged grants, lengths, hellos, ends and seals, frames of a
//! incarnation that is over; and all cables go through the attacker, who drops, doubles, delays and, where it would be noticed, changes
//! frames.
//!
//! Nothing may panic, grow without bound, or change an answer, and each attack must be seen in its counter. Links over Ethernet and UDP need
//! root (network namespaces); without, those are skipped. A failure prints the seed; `TSUMUJI_SEED` replays its choices, though not
//! the kernel's.
//!
//! A program of its own, for it has an allocator of its own, which counts what the whole process has.

#[path = "hostile/attacker.rs"]
mod attacker;
mod common;
#[path = "../../link/tests/common/counting_alloc.rs"]
mod counting_alloc;
#[path = "hostile/liar.rs"]
mod liar;
#[path = "../../link/tests/common/segment.rs"]
mod segment;
#[path = "hostile/wiretap.rs"]
mod wiretap;

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use attacker::{ACTS, ATTACKER, Attacker, NODES};
use common::TestKey;
use common::meddled::Meddled;
use fastrand::Rng;
use liar::Liar;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig, DpdkOpenError, DpdkSpec};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_link::xdp::{Xdp, XdpConfig};
use tsumuji_link::{Frame, SealCounters, each};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Channel, Counters, Endpoint, Link, LinkAddr, Membership, Message, NodeId, Options,
    SealMode, Security, SendError,
};
use tsumuji_proto::Drop;
use wiretap::{Plug, Wiretap};

/// Messages of the other's present incarnation that an honest node must hear in each of the two parts of a run.
const MESSAGES: u64 = 200;
/// Frames that the attacker makes in a run, at least.
const FRAMES: u64 = 40_000;
/// And changed frames of the lying member.
const LIES: u64 = 400;
/// Only turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// In every checked message, to be looked for where nothing may be readable.
const MARK: &[u8] = b"nobody else shall read this";
/// A liar that has nothing more to say begins anew.
const SILENCE: Duration = Duration::from_millis(250);
const TALK: Channel = Channel::ordered(0);
const LIAR: u16 = 2;

/// All that an attacker may make one process of three nodes take, beyond what it had when they had met: budgets for what
/// arrives, queues for what leaves to each other, two largest messages each; and the links' own buffers and the attacker's memory.
const GROWTH_BYTES: usize =
    NODES * (BUDGET_BYTES + 2 * MESSAGE_BYTES_MAX + (NODES - 1) * QUEUE_BYTES) + (24 << 20);
const BUDGET_BYTES: usize = 4 << 20;
const QUEUE_BYTES: usize = 1 << 20;
const MESSAGE_BYTES_MAX: usize = 1 << 20;

fn dpdk(device: &str) -> Result<Dpdk, DpdkOpenError> {
    let spec: DpdkSpec = device.parse().expect("a device");
    Dpdk::open(&spec, DpdkConfig::default())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Shm,
    Udp,
    Packet,
    Xdp,
    Dpdk,
}

fn options() -> Options {
    Options {
        budget_bytes: BUDGET_BYTES,
        send_queue_bytes: QUEUE_BYTES,
        message_limit_bytes: MESSAGE_BYTES_MAX,
        keep_alive: Duration::from_millis(100),
        // Nobody honest is given up, however busy the machine: so nothing between them may be missing.
        dead_after: Duration::from_secs(120),
        ..Options::default()
    }
}

/// What all threads of a run share.
struct Run {
    over: Over,
    security: Security,
    /// Messages that honest node *i* has heard in the present part.
    heard: [AtomicU64; 2],
    /// Lives of node 1.
    session: AtomicU64,
    stop: AtomicBool,
    /// For the attacker: when its namespace goes, so do the cables.
    nodes_ended: AtomicBool,
    /// Of the lying member.
    lies: Arc<AtomicU64>,
    seed: u64,
}

/// A message: incarnation, number, mark, and what follows from the first two.
fn compose(session: u64, number: u64, bytes: usize) -> Vec<u8> {
    let mut message = [&session.to_le_bytes()[..], &number.to_le_bytes(), MARK].concat();
    let mut dice = Rng::with_seed(session << 32 ^ number);
    while message.len() < bytes {
        message.extend(dice.u64(..).to_le_bytes());
    }
    message
}

impl Run {
    fn membership(&self, me: usize) -> Membership {
        let mut membership = Membership::local(NodeId(me as u16), NODES as u16);
        for (node, member) in membership.members.iter_mut().enumerate() {
            member.addr = match self.over {
                Over::Shm => LinkAddr::Local(node as u16),
                Over::Udp => LinkAddr::Inet(wiretap::inet(node)),
                Over::Packet | Over::Xdp | Over::Dpdk => LinkAddr::Ether(wiretap::mac(node)),
            };
        }
        membership
    }

    /// `job`: where the link is shared memory. The thread is where the interface is.
    fn link(&self, me: usize, job: Option<&OwnedFd>) -> AnyLink {
        let base = match self.over {
            Over::Shm => Base::Shm(Shm::attach(job.expect("a job"), me as u16).expect("attach")),
            Over::Udp => {
                // The switch passes on datagrams one by one.
                let config = UdpConfig {
                    offload: false,
                    ..UdpConfig::default()
                };
                Base::Udp(Udp::bind(wiretap::inet(me), config).expect("bind"))
            }
            Over::Packet => Base::Packet(
                Packet::open(wiretap::INTERFACE, PacketConfig::default()).expect("packet"),
            ),
            Over::Xdp => {
                Base::Xdp(Xdp::open(wiretap::INTERFACE, XdpConfig::default()).expect("xdp"))
            }
            Over::Dpdk => {
                let device = format!("net_af_packet,iface={}", wiretap::INTERFACE);
                Base::Dpdk(dpdk(&device).expect("dpdk"))
            }
        };
        self.security.open(base, None, None).expect("key")
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn ended(&self) -> bool {
        self.nodes_ended.load(Ordering::Acquire)
    }

    /// An honest node's whole incarnation, or two; returns what each has counted.
    fn honest(&self, me: usize, job: Option<&OwnedFd>) -> Vec<Counters> {
        let mut counters = Vec::new();
        let (mut session, mut last, mut number) = (1, None::<(u64, u64)>, 0);
        let mut dice = Rng::with_seed(self.seed ^ me as u64);
        let open = |link| Endpoint::new(link, self.membership(me), options()).expect("endpoint");
        let mut endpoint = open(self.link(me, job));
        let other = NodeId(1 - me as u16);
        while !self.stopped() {
            if me == 1 && self.session.load(Ordering::Acquire) > session {
                session += 1;
                counters.push(endpoint.counters());
                drop(endpoint);
                (last, number) = (None, 0);
                endpoint = open(self.link(me, job));
            }
            let longest = [100, 2_000, 30_000][dice.usize(..3)];
            let bytes = MARK.len() + 16 + dice.usize(..longest);
            match endpoint.try_send(other, TALK, &compose(session, number, bytes)) {
                Ok(()) => number += 1,
                Err(SendError::WouldBlock { .. }) => {}
                // It left to come back. No other death is true.
                Err(SendError::PeerDead { .. })
                    if last
                        .is_none_or(|(heard, _)| heard < self.session.load(Ordering::Acquire)) => {}
                Err(SendError::MessagesLost { .. }) if endpoint.ended_sessions(other) > 0 => {}
                Err(error) => panic!("{me}: {error}"),
            }
            // The liar may have been given up; what it is told matters to nobody.
            let _ = endpoint.try_send(NodeId(LIAR), TALK, &[7; 3000][..dice.usize(..3000)]);
            let mut wait = Duration::from_millis(1);
            while let Some(message) = endpoint.recv(wait).expect("the link") {
                wait = Duration::ZERO;
                if message.from == other {
                    self.check(me, &message, &mut last);
                }
                endpoint.recycle(message);
            }
        }
        counters.push(endpoint.counters());
        counters
    }

    /// What the other honest node sent, unchanged, once, in order.
    fn check(&self, me: usize, message: &Message, last: &mut Option<(u64, u64)>) {
        let body = &message.body;
        let word = |at: usize| u64::from_le_bytes(body[at..at + 8].try_into().expect("8"));
        assert!(body.len() >= 16, "{me}: {} bytes", body.len());
        let (session, number) = (word(0), word(8));
        let mut expected = compose(session, number, body.len());
        expected.truncate(body.len());
        assert!(
            body.len() >= 16 + MARK.len() && *body == expected,
            "{me}: message {number} of session {session} is changed"
        );
        match last.replace((session, number)) {
            Some((before, previous)) if before == session => {
                assert_eq!(
                    number,
                    previous + 1,
                    "{me}: after {previous} of session {session}"
                );
            }
            Some((before, _)) => assert!(
                session > before && number == 0,
                "{me}: {number} of session {session} after session {before}"
            ),
            None => {}
        }
        // Only what the present part is about.
        if me == 1 || session == self.session.load(Ordering::Acquire) {
            self.heard[me].fetch_add(1, Ordering::AcqRel);
        }
    }

    /// The lying member. Its lies sooner or later ruin what it has with the others; then it begins anew.
    fn liar(&self, job: Option<&OwnedFd>) {
        let mut seed = self.seed;
        while !self.stopped() {
            seed += 1;
            self.lie_on(job, seed);
        }
    }

    fn lie_on(&self, job: Option<&OwnedFd>, seed: u64) {
        let me = usize::from(LIAR);
        let link = Meddled {
            link: self.link(me, job),
            meddler: Liar::new(seed, Arc::clone(&self.lies)),
        };
        let mut endpoint =
            Endpoint::new(AnyLink::own(link), self.membership(me), options()).expect("endpoint");
        let mut dice = Rng::with_seed(seed ^ 77);
        let lies = || self.lies.load(Ordering::Relaxed);
        let (mut told, mut told_at) = (lies(), Instant::now());
        while !self.stopped() && told_at.elapsed() < SILENCE {
            if lies() > told + 10 {
                (told, told_at) = (lies(), Instant::now());
            }
            for to in 0..2 {
                let longest = [100, 5_000, 400_000][dice.usize(..3)];
                let bytes = dice.usize(..longest);
                let _ = endpoint.try_send(NodeId(to), TALK, &vec![0x11; bytes]); // what it is told back matters to nobody
            }
            let mut wait = Duration::from_millis(1);
            // A liar may starve or be given up; it must not end the run.
            while let Ok(Some(message)) = endpoint.recv(wait) {
                wait = Duration::ZERO;
                endpoint.recycle(message);
            }
        }
    }

    /// Waits until both have heard enough in this part and the attacker has `done` its share, or somebody has `ended`.
    fn until_heard(&self, what: &str, done: &dyn Fn() -> bool, ended: &dyn Fn() -> bool) {
        let begun = Instant::now();
        loop {
            let heard = [0, 1].map(|node: usize| self.heard[node].load(Ordering::Acquire));
            if ended() || (done() && heard.iter().all(|count| *count >= MESSAGES)) {
                return;
            }
            assert!(
                begun.elapsed() < PATIENCE,
                "{what}: heard {heard:?} of {MESSAGES}, {} lies; TSUMUJI_SEED={}",
                self.lies.load(Ordering::Relaxed),
                self.seed
            );
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn next_part(&self) {
        self.session.fetch_add(1, Ordering::AcqRel);
        for heard in &self.heard {
            heard.store(0, Ordering::Release);
        }
    }
}

/// What the attacker tells of itself.
#[derive(Default)]
struct Told {
    done: [u64; ACTS.len()],
    /// Frames that showed the mark, and frames whose kind a sealed link does not have.
    readable: u64,
    unsealed: u64,
}

/// The attacker as the switch of a segment.
fn on_the_wire(run: &Arc<Run>, told: &Arc<Mutex<Told>>, give: impl Fn(Plug)) {
    let sealed = matches!(run.security, Security::Sealed { .. });
    let mut tap = Wiretap::new(run.over == Over::Udp, give);
    let mut attacker = Attacker::new(run.seed, sealed);
    attacker.checked = !sealed;
    let seen = Arc::clone(told);
    tap.on_frame = Box::new(move |frame| {
        let mut told = seen.lock().expect("no panic");
        told.readable += u64::from(frame.windows(MARK.len()).any(|part| part == MARK));
        told.unsealed += u64::from(!matches!(frame[0], 0x17 | 0x18));
    });
    while !run.ended() {
        tap.poll_once(&mut attacker, 2);
        told.lock().expect("no panic").done = attacker.done;
    }
}

/// The attacker as a process that has the job's memory and is no member.
fn in_the_memory(run: &Arc<Run>, told: &Arc<Mutex<Told>>, job: &OwnedFd) {
    let sealed = matches!(run.security, Security::Sealed { .. });
    let mut link = Shm::attach(job, ATTACKER as u16).expect("attach");
    let mut attacker = Attacker::new(run.seed, sealed);
    while !run.ended() {
        for _ in 0..16 {
            let sent = attacker.act();
            let to = if attacker.dice.u8(..8) == 0 {
                LinkAddr::Broadcast
            } else {
                LinkAddr::Local(sent.to as u16)
            };
            let frame = Frame::whole(&sent.frame);
            let _ = link.send_one(to, frame).expect("the link"); // full: it is lost
        }
        link.flush().expect("the link");
        link.receive(64, &mut each(|_, _| {})).expect("the link");
        told.lock().expect("no panic").done = attacker.done;
        thread::sleep(Duration::from_micros(200));
    }
}

/// A thread's panic is the test's.
fn unless_panicked<T>(joined: thread::Result<T>, seed: u64) -> T {
    match joined {
        Ok(value) => value,
        Err(panic) => {
            eprintln!("TSUMUJI_SEED={seed}");
            std::panic::resume_unwind(panic)
        }
    }
}

/// One at a time: memory is counted by process.
static TURN: Mutex<()> = Mutex::new(());

/// The whole run; returns what the honest nodes counted, and what the attacker did.
fn attack(over: Over, mode: Option<SealMode>) -> Option<(Vec<Counters>, Told)> {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if over != Over::Shm
        && let Some(reason) = segment::lacking()
    {
        eprintln!("{over:?}: {reason}");
        return None;
    }
    let key = TestKey::new();
    let security = mode.map_or(Security::Open, |mode| key.sealed(mode));
    let given = std::env::var("TSUMUJI_SEED").ok();
    let seed = given.and_then(|seed| seed.parse().ok()).unwrap_or(5);
    let run = Arc::new(Run {
        over,
        security,
        heard: [AtomicU64::new(0), AtomicU64::new(0)],
        session: AtomicU64::new(1),
        stop: AtomicBool::new(false),
        nodes_ended: AtomicBool::new(false),
        lies: Arc::default(),
        seed,
    });
    let told = Arc::new(Mutex::new(Told::default()));
    let job = (over == Over::Shm).then(|| {
        let nodes = NODES + 1;
        Arc::new(ShmJob::create(nodes, ShmConfig::for_nodes(nodes)).expect("job"))
    });

    let (give, plugs) = channel::<Plug>();
    let attacker = {
        let (run, told, job) = (Arc::clone(&run), Arc::clone(&told), job.clone());
        thread::spawn(move || match job {
            Some(job) => in_the_memory(&run, &told, &job),
            None => on_the_wire(&run, &told, |plug| give.send(plug).expect("the test")),
        })
    };
    // All cables are there before anybody speaks.
    let mut ready = Vec::new();
    let mut nodes = Vec::new();
    for node in 0..NODES {
        let plug = job.is_none().then(|| plugs.recv().expect("the switch"));
        let (go, may_go) = channel::<()>();
        ready.push(go);
        let (run, job) = (Arc::clone(&run), job.clone());
        nodes.push(thread::spawn(move || {
            if let Some(plug) = plug {
                plug.plug_in();
            }
            may_go.recv().expect("the test");
            if node == usize::from(LIAR) {
                run.liar(job.as_deref());
                Vec::new()
            } else {
                run.honest(node, job.as_deref())
            }
        }));
    }
    let before = counting_alloc::begin_peak();
    for go in ready {
        go.send(()).expect("a node");
    }
    let ended = || attacker.is_finished() || nodes.iter().any(JoinHandle::is_finished);
    let parts = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        for (part, what) in [(1, "before the restart"), (2, "after the restart")] {
            let done = || {
                let frames: u64 = told.lock().expect("no panic").done.iter().sum();
                let lies = run.lies.load(Ordering::Relaxed);
                frames >= part * FRAMES / 2 && lies >= part * LIES / 2
            };
            run.until_heard(what, &done, &ended);
            if part == 1 {
                run.next_part();
            }
        }
    }));
    let grown = counting_alloc::peak_bytes().saturating_sub(before);
    run.stop.store(true, Ordering::Release);
    let nodes: Vec<_> = nodes.into_iter().map(JoinHandle::join).collect();
    run.nodes_ended.store(true, Ordering::Release);
    let counters: Vec<_> = nodes
        .into_iter()
        .flat_map(|node| unless_panicked(node, seed))
        .collect();
    unless_panicked(attacker.join(), seed);
    if let Err(panic) = parts {
        std::panic::resume_unwind(panic);
    }
    assert_eq!(counters.len(), 3, "three honest incarnations");
    assert!(
        grown < GROWTH_BYTES,
        "{grown} bytes more; TSUMUJI_SEED={seed}"
    );
    let told = std::mem::take(&mut *told.lock().expect("no panic"));
    for (act, count) in ACTS.iter().zip(told.done) {
        assert!(
            count > FRAMES / 40 || over == Over::Shm,
            "{act:?}: only {count}"
        );
    }
    Some((counters, told))
}

/// Counts over all honest incarnations.
fn sum(counters: &[Counters], of: impl Fn(&Counters) -> u64) -> u64 {
    counters.iter().map(of).sum()
}

/// Without key: each attack is seen under its reason, and frames that nobody counted do not exist.
fn open_to_all(over: Over) {
    let Some((counters, told)) = attack(over, None) else {
        return;
    };
    assert!(
        sum(&counters, |c| c.spoofed_source_frames) > 100,
        "{counters:?}"
    );
    let mut reasons = vec![
        Drop::Truncated,
        Drop::Version,
        Drop::Kind,
        Drop::Sealed,
        Drop::Malformed,
        Drop::Duplicate,
        Drop::Window,
    ];
    if over != Over::Shm {
        // Where an attacker can speak in another's name, and repeat what it heard.
        reasons.extend([Drop::Session, Drop::Misdirected]);
        assert!(told.readable > 0, "what is not encrypted can be read");
        for refused in [
            sum(&counters, |c| c.link.damaged_frames),
            sum(&counters, |c| c.link.unchecked_frames),
        ] {
            assert!(refused > 0, "{over:?}: {counters:?}");
        }
    }
    for reason in reasons {
        let drops = sum(&counters, |c| c.engine.drops.get(reason));
        assert!(drops > 0, "{over:?}: no {}: {counters:?}", reason.name());
    }
    for c in &counters {
        assert_eq!(
            c.link.received_frames,
            c.engine.received_frames + c.spoofed_source_frames
        );
    }
}

/// With key: nothing of the attacker's passes the seal, nothing of it is remembered, and it reads no more than its mode lets it.
fn sealed(over: Over, mode: SealMode) {
    let Some((counters, told)) = attack(over, Some(mode)) else {
        return;
    };
    let seal = |of: fn(&SealCounters) -> u64| sum(&counters, |c| of(&c.seal.expect("sealed")));
    let mut reasons: Vec<(&str, u64)> = vec![
        ("unsealed", seal(|seal| seal.unsealed)),
        ("malformed", seal(|seal| seal.malformed)),
        ("unknown_session", seal(|seal| seal.unknown_session)),
        ("wrong_key", seal(|seal| seal.wrong_key)),
        ("other_mode", seal(|seal| seal.other_mode)),
    ];
    if over != Over::Shm {
        reasons.extend([
            ("bad_tag", seal(|seal| seal.bad_tag)),
            ("replayed", seal(|seal| seal.replayed)),
            ("wrong_source", seal(|seal| seal.wrong_source)),
            ("stale_handshake", seal(|seal| seal.stale_handshake)),
        ]);
        assert_eq!(told.unsealed, 0, "frames of other kinds left");
        assert_eq!(
            told.readable > 0,
            mode == SealMode::Auth,
            "{}",
            told.readable
        );
    }
    for (reason, drops) in reasons {
        assert!(drops > 0, "{over:?}: no {reason}: {counters:?}");
    }
    for c in &counters {
        let seal = c.seal.expect("sealed");
        assert!(seal.peers <= 2 && seal.sessions <= 2, "{seal:?}");
        assert_eq!(c.spoofed_source_frames, 0, "a member spoke from elsewhere");
        assert_eq!(seal.opened, c.engine.received_frames);
        assert_eq!((seal.exhausted, seal.unsent), (0, 0), "{seal:?}");
    }
}

/// A process that has the job's memory, and is no member.
#[test]
fn shared_memory_withstands() {
    open_to_all(Over::Shm);
    sealed(Over::Shm, SealMode::Encrypt);
}

/// Datagrams from any address, as any node's.
#[test]
fn udp_withstands() {
    open_to_all(Over::Udp);
    sealed(Over::Udp, SealMode::Auth);
    sealed(Over::Udp, SealMode::Encrypt);
}

/// Ethernet frames from any station, as any node's.
#[test]
fn packet_sockets_withstand() {
    open_to_all(Over::Packet);
    sealed(Over::Packet, SealMode::Auth);
    sealed(Over::Packet, SealMode::Encrypt);
}

/// The same, by DPDK. (memif is left out: it trusts its peer as it trusts itself.)
#[test]
fn dpdk_withstands() {
    if let Err(error @ (DpdkOpenError::NotBuiltIn | DpdkOpenError::NotInstalled { .. })) =
        dpdk("net_null")
    {
        eprintln!("skipped, no DPDK here: {error}");
        return;
    }
    open_to_all(Over::Dpdk);
    sealed(Over::Dpdk, SealMode::Auth);
    sealed(Over::Dpdk, SealMode::Encrypt);
}

/// The same, past the kernel.
#[test]
fn xdp_withstands() {
    open_to_all(Over::Xdp);
    sealed(Over::Xdp, SealMode::Auth);
    sealed(Over::Xdp, SealMode::Encrypt);
}
