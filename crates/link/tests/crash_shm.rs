//! Real processes on one shared-memory job, killed at random moments.
//!
//! Three nodes chatter: the test itself, a child that lives throughout, and a victim that is killed and started again. All check
//! every frame they get. The victim dies while it sends, receives, sleeps, attaches, or rings a bell, as chance has it.
//!
//! A program of its own: in the end nothing of shared memory may be mapped in the process, and children inherit its descriptors.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use fastrand::Rng;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{Frame, Link, LinkAddr, each};

const KILLS: u32 = 50;
/// No survivor goes without frames of the other for this long.
const PATIENCE: Duration = Duration::from_secs(30);
const NODES: u16 = 3;
const VICTIM: u16 = 1;
const SURVIVOR: u16 = 2;
const FD_ENV: &str = "TSUMUJI_CRASH_TEST_FD";
const NODE_ENV: &str = "TSUMUJI_CRASH_TEST_NODE";

/// Kinds of frames.
const TO_ONE: u8 = 1;
const TO_ALL: u8 = 2;
const STOP: u8 = 3;

fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Checksum, generation, number, kind, then bytes that depend on the number.
fn compose(kind: u8, generation: u32, number: u32, bytes: usize) -> Vec<u8> {
    let mut slot = vec![0; bytes];
    slot[8..12].copy_from_slice(&generation.to_le_bytes());
    slot[12..16].copy_from_slice(&number.to_le_bytes());
    slot[16] = kind;
    for (index, byte) in slot[17..bytes].iter_mut().enumerate() {
        *byte = (index as u32).wrapping_mul(number | 1) as u8;
    }
    let sum = checksum(&slot[8..bytes]);
    slot[..8].copy_from_slice(&sum.to_le_bytes());
    slot
}

struct Chatter {
    shm: Shm,
    me: u16,
    generation: u32,
    dice: Rng,
    sent: [u32; NODES as usize],
    broadcast: u32,
    /// Per sender and kind: its generation, and the last number.
    last: HashMap<(u16, u8), (u32, u32)>,
    received: [u64; NODES as usize],
    stopped: bool,
}

impl Chatter {
    fn new(shm: Shm, me: u16, seed: u64) -> Self {
        Self {
            shm,
            me,
            generation: std::process::id(),
            dice: Rng::with_seed(seed),
            sent: [0; NODES as usize],
            broadcast: 0,
            last: HashMap::new(),
            received: [0; NODES as usize],
            stopped: false,
        }
    }

    /// Sends some, receives some, sleeps now and then.
    fn poll_once(&mut self) {
        for _ in 0..self.dice.u64(..6) {
            let bytes = match self.dice.u64(..4) {
                0 => 17 + self.dice.usize(..3000),
                _ => 17 + self.dice.usize(..60),
            };
            let generation = self.generation;
            if self.dice.u64(..8) == 0 {
                let number = self.broadcast;
                let frame = compose(TO_ALL, generation, number, bytes);
                (self.shm)
                    .send_one(LinkAddr::Broadcast, Frame::whole(&frame))
                    .expect("broadcast");
                self.broadcast += 1;
                continue;
            }
            let to = self.dice.u16(..NODES);
            if to == self.me {
                continue;
            }
            let number = self.sent[usize::from(to)];
            let frame = compose(TO_ONE, generation, number, bytes);
            let taken = (self.shm)
                .send_one(LinkAddr::Local(to), Frame::whole(&frame))
                .expect("send");
            self.sent[usize::from(to)] += u32::from(taken);
        }
        if self.dice.u64(..3) > 0 {
            self.shm.flush().expect("flush");
        }
        self.receive();
        match self.dice.u64(..20) {
            0 => self.shm.wait(Duration::from_micros(300)).expect("wait"),
            1 => {
                self.shm.arm_fd().expect("arm_fd");
            }
            _ => {}
        }
    }

    fn receive(&mut self) {
        let Self {
            shm,
            me,
            last,
            received,
            stopped,
            ..
        } = self;
        shm.receive(
            32,
            &mut each(|from, frame| {
                let LinkAddr::Local(from) = from else {
                    panic!("a frame from {from}");
                };
                let word = |at: usize| u32::from_le_bytes(frame[at..at + 4].try_into().expect("4"));
                let sum = u64::from_le_bytes(frame[..8].try_into().expect("8 bytes"));
                assert_eq!(sum, checksum(&frame[8..]), "a damaged frame from {from}");
                let (generation, number, kind) = (word(8), word(12), frame[16]);
                received[usize::from(from)] += 1;
                match kind {
                    STOP => *stopped = true,
                    TO_ONE | TO_ALL => {
                        match last.insert((from, kind), (generation, number)) {
                            Some((old_generation, old)) if old_generation == generation => {
                                let next = old + 1;
                                // Broadcasts may be overwritten, never repeated; the rest is lossless between the living.
                                assert!(number == next || kind == TO_ALL && number > next);
                            }
                            // We were there before the sender was, so all it sent us is here.
                            _ if *me == 0 && kind == TO_ONE => assert_eq!(number, 0),
                            _ => {}
                        }
                    }
                    other => panic!("a frame of kind {other}"),
                }
            }),
        )
        .expect("receive");
    }
}

/// Not a test of its own: what the child processes run.
#[test]
#[ignore = "run by another test as a program to be killed"]
fn child() {
    let [fd, node] = [FD_ENV, NODE_ENV].map(|name| std::env::var(name).expect("set by `start`"));
    let job = File::options()
        .read(true)
        .write(true)
        .open(format!("/proc/self/fd/{fd}"))
        .expect("the job's memory");
    let node: u16 = node.parse().expect("a node");
    let shm = Shm::attach(&job, node).expect("attach");
    let seed = u64::from(std::process::id()) * 77;
    let mut chatter = Chatter::new(shm, node, seed);
    let begun = Instant::now();
    while !chatter.stopped {
        chatter.poll_once();
        // An orphan does not run for ever.
        assert!(begun.elapsed() < PATIENCE * 4, "nobody stopped this child");
    }
}

fn start(fd: &impl AsFd, node: u16) -> Child {
    // Inherited as it is; a copy without close-on-exec.
    let inherited = rustix::io::dup(fd).expect("dup");
    Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "--ignored", "child", "--nocapture"])
        .env(FD_ENV, inherited.as_raw_fd().to_string())
        .env(NODE_ENV, node.to_string())
        .stdout(Stdio::null())
        .spawn()
        .expect("spawn")
}

/// Survivors neither hang nor get a damaged, repeated or missing frame while a peer is killed fifty times; each of its new incarnations
/// works; nothing is left behind.
#[test]
fn killed_peers_harm_nobody() {
    let before = shm_entries();
    let job = ShmJob::create(NODES.into(), ShmConfig::for_nodes(NODES.into())).expect("create");
    let mut chatter = Chatter::new(Shm::attach(&job, 0).expect("attach"), 0, 12345);
    let mut survivor = start(&job, SURVIVOR);
    let mut generations_heard = 0;
    let mut taken_bytes = Vec::new();
    for kill in 0..KILLS {
        let mut victim = start(&job, VICTIM);
        let (old_victim, old_survivor) = (chatter.received[1], chatter.received[2]);
        // Most victims die in the middle of talk, some before they say anything.
        let silent = kill % 10 == 9;
        let begun = Instant::now();
        while !silent && chatter.received[1] < old_victim + 5
            || chatter.received[2] < old_survivor + 5
        {
            chatter.poll_once();
            assert!(begun.elapsed() < PATIENCE, "no frames in round {kill}");
        }
        generations_heard += u32::from(chatter.received[1] > old_victim);
        let moment = Duration::from_micros(chatter.dice.u64(..4000));
        let begun = Instant::now();
        while begun.elapsed() < moment {
            chatter.poll_once();
        }
        victim.kill().expect("kill");
        victim.wait().expect("reap");
        // Talk goes on beside the dead.
        let old_survivor = chatter.received[2];
        let begun = Instant::now();
        while chatter.received[2] < old_survivor + 20 {
            chatter.poll_once();
            assert!(begun.elapsed() < PATIENCE, "hung after kill {kill}");
        }
        let blocks = rustix::fs::fstat(&job).expect("fstat").st_blocks;
        taken_bytes.push(blocks as u64 * 512);
    }
    // A victim killed before it saw that all others had turned to it leaves its predecessor's pages to its successor: never
    // more than a few generations', each at most two rings and a broadcast ring beside its counters.
    let config = ShmConfig::for_nodes(NODES.into());
    let generation_bytes = (2 * config.ring_bytes + config.broadcast_bytes + (512 << 10)) as u64;
    let most = taken_bytes.iter().copied().max().unwrap_or(0);
    assert!(
        most < 6 * generation_bytes,
        "{most} bytes for {NODES} nodes: {taken_bytes:?}"
    );
    assert!(generations_heard >= KILLS * 8 / 10);
    assert_eq!(chatter.shm.counters().dropped_frames, 0, "no ring broke");
    let begun = Instant::now();
    while survivor.try_wait().expect("wait").is_none() {
        let generation = chatter.generation;
        let stop = compose(STOP, generation, 0, 20);
        (chatter.shm)
            .send_one(LinkAddr::Local(SURVIVOR), Frame::whole(&stop))
            .expect("send");
        chatter.poll_once();
        assert!(begun.elapsed() < PATIENCE, "the survivor hangs");
    }
    assert!(
        survivor.wait().expect("wait").success(),
        "the survivor failed"
    );
    drop((chatter, job));
    assert_eq!(shm_entries(), before, "left in /dev/shm");
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    assert!(!maps.contains("memfd:tsumuji"), "left mapped");
}

fn shm_entries() -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = std::fs::read_dir("/dev/shm")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.file_name()))
        .filter(|name| name.to_string_lossy().contains("tsumuji"))
        .collect();
    names.sort();
    names
}
