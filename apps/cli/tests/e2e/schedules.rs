//! Random schedules of two real processes that compute, send, receive and flush, while a third stops them, lets them go on, and kills one of
//! them and starts it again: what is accepted arrives once and in order, or the sender is told.
//!
//! Each process writes what it was told into a file, line by line; the test reads both when they have ended. Twelve schedules a run;
//! `TSUMUJI_SCHEDULES=1000 TSUMUJI_SEED=…` runs more, or others. A failure prints the seed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::common::free_ports;
use crate::talk::{NODES, Over, Place, cluster_file, started};
use fastrand::Rng;
use rustix::process::{Pid, Signal, kill_process};
use tsumuji_link::shm::{ShmConfig, ShmJob};
use tsumuji_node::{
    Channel, ChannelOptions, CloseError, Endpoint, NodeId, Options, ProgressBy, SendError,
};

/// A process silent for so long is dead to others, between hosts.
const DEAD_AFTER: Duration = Duration::from_millis(400);
/// Turns a hang into a failure.
const PATIENCE: Duration = Duration::from_secs(60);
/// One that was dead for so long when the other has said its last does not come back.
const GONE: Duration = Duration::from_secs(3);
const STEPS: u32 = 40;
/// One that nobody opened, and one that the receiver opens.
const CHANNELS: [u16; 2] = [0, 7];
/// The last message of a process, on a channel of its own.
const END: Channel = Channel::ordered(9);

const SEED_ENV: &str = "TSUMUJI_SCHEDULE_TEST_SEED";
const LOG_ENV: &str = "TSUMUJI_SCHEDULE_TEST_LOG";
const PROGRAM_ENV: &str = "TSUMUJI_SCHEDULE_TEST_PROGRAM";

/// The test that a started process runs: there it becomes a worker, and ends.
const ENTRY: &str = "schedules::nothing_is_lost_or_repeated_unseen";

/// What a started process does; it does not return to its test.
fn work_if_started() {
    let options = Options {
        keep_alive: Duration::from_millis(50),
        dead_after: DEAD_AFTER,
        progress: if std::env::var_os(PROGRAM_ENV).is_some() {
            ProgressBy::Program
        } else {
            ProgressBy::Assistant
        },
        ..Options::default()
    };
    let Some((session, endpoint)) = started(options) else {
        return;
    };
    let text = |name| std::env::var(name).expect("set");
    let seed: u64 = text(SEED_ENV).parse().expect("a number");
    let log = File::options()
        .append(true)
        .create(true)
        .open(text(LOG_ENV));
    let other = NodeId(1 - endpoint.me().0);
    let worker = Worker {
        endpoint,
        other,
        session,
        log: log.expect("the log"),
        rng: Rng::with_seed(seed ^ u64::from(session) << 32),
        next: [0; 2],
        sent_bytes: 0,
        is_over: false,
    };
    worker.run();
    std::process::exit(0);
}

struct Worker {
    endpoint: Endpoint,
    other: NodeId,
    session: u32,
    log: File,
    rng: Rng,
    /// By channel.
    next: [u32; 2],
    sent_bytes: usize,
    /// The other one has said its last.
    is_over: bool,
}

impl Worker {
    fn run(mut self) {
        self.endpoint
            .open(CHANNELS[1], ChannelOptions::default())
            .expect("open");
        for _ in 0..STEPS {
            match self.rng.u32(..8) {
                0 => std::thread::sleep(Duration::from_millis(self.rng.u64(..20))),
                1 => {
                    let until = Instant::now() + Duration::from_millis(self.rng.u64(..8));
                    while Instant::now() < until {
                        std::hint::spin_loop();
                    }
                }
                2..=4 => self.send_some(),
                5 | 6 => {
                    let wait = Duration::from_millis(self.rng.u64(..5));
                    self.receive(wait);
                }
                _ => {
                    let flushed = self
                        .endpoint
                        .flush(Duration::from_millis(self.rng.u64(..50)));
                    self.note(flushed.map(drop));
                }
            }
        }
        self.part();
        let ended_sessions = self.endpoint.ended_sessions(self.other);
        self.write(&format!("died {ended_sessions}"));
        let mut log = self.log;
        match self.endpoint.close(Duration::from_secs(5)) {
            Ok(()) => {}
            Err(CloseError::Undelivered {
                lost,
                unacknowledged,
            }) => {
                for (_, messages) in lost.into_iter().chain(unacknowledged) {
                    writeln!(log, "lost {messages}").expect("log");
                }
            }
            Err(error) => panic!("{error}"),
        }
        writeln!(log, "end").expect("log");
    }

    /// Until both have said their last, and know that it has come; or the other one is gone.
    fn part(&mut self) {
        let begun = Instant::now();
        let (mut is_said, mut ended_sessions) = (false, self.endpoint.ended_sessions(self.other));
        let mut dead_since = None;
        loop {
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            self.receive(Duration::from_millis(2));
            if !self.endpoint.is_dead(self.other) {
                dead_since = None;
            } else if dead_since.get_or_insert_with(Instant::now).elapsed() > GONE {
                return;
            }
            // What a former life was told its next one was not.
            let now = self.endpoint.ended_sessions(self.other);
            if now != ended_sessions {
                (ended_sessions, is_said) = (now, false);
            }
            // The last word follows what came before it, by whatever channel: the other one reads no more then.
            match self.endpoint.flush(Duration::from_millis(2)) {
                Ok(true) if is_said && self.is_over => return,
                Ok(true) if !is_said => {
                    let said = self.endpoint.try_send(self.other, END, b"");
                    is_said = said.is_ok();
                    if !matches!(said, Err(SendError::PeerDead { .. })) {
                        self.note(said);
                    }
                }
                Ok(_) => {}
                Err(error) => {
                    is_said = false;
                    self.note(Err(error));
                }
            }
        }
    }

    fn note(&mut self, done: Result<(), SendError>) {
        match done {
            Ok(()) | Err(SendError::WouldBlock { .. }) => {}
            Err(SendError::MessagesLost { messages, .. }) => {
                self.write(&format!("lost {messages}"))
            }
            Err(SendError::PeerDead { peer }) => {
                self.write("dead");
                self.endpoint.reconnect(peer).expect("a member");
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn write(&mut self, line: &str) {
        // One call: a process that is killed leaves whole lines.
        let line = format!("{line}\n");
        self.log.write_all(line.as_bytes()).expect("log");
    }

    fn send_some(&mut self) {
        for _ in 0..self.rng.u32(1..60) {
            let place = self.rng.usize(..2);
            let number = self.next[place];
            let longest = [8, 100, 4000, 50_000, 200_000][self.rng.usize(..5)];
            let bytes = 8 + self.rng.usize(..longest);
            let mut message = vec![number as u8; bytes];
            message[..4].copy_from_slice(&self.session.to_le_bytes());
            message[4..8].copy_from_slice(&number.to_le_bytes());
            let channel = Channel::ordered(CHANNELS[place]);
            // What a channel's budget holds leaves even if the other one receives nothing. Beyond that, two processes that both wait for room, and do
            // not receive meanwhile, would wait for ever.
            let may_wait = self.sent_bytes + bytes <= ChannelOptions::default().budget_bytes;
            let sent = match self.rng.u32(..3) {
                0 if may_wait => self.endpoint.send(self.other, channel, &message),
                1 if may_wait => self
                    .endpoint
                    .send_shared(self.other, channel, message.into()),
                _ => self.endpoint.try_send(self.other, channel, &message),
            };
            if sent.is_ok() {
                self.write(&format!("sent {place} {number}"));
                self.next[place] += 1;
                self.sent_bytes += bytes;
            }
            let goes_on = sent.is_ok();
            self.note(sent);
            if !goes_on {
                return;
            }
        }
    }

    fn receive(&mut self, wait: Duration) {
        for channel_id in [None, Some(CHANNELS[1])] {
            let mut wait = wait;
            while let Some(kept) = self
                .endpoint
                .recv_retained(channel_id, None, wait)
                .expect("recv")
            {
                wait = Duration::ZERO;
                if kept.channel() == END {
                    self.is_over = true;
                    continue;
                }
                let place = CHANNELS
                    .iter()
                    .position(|known| *known == kept.channel().id());
                let word = |at: usize| u32::from_le_bytes(kept[at..at + 4].try_into().expect("4"));
                let (session, number) = (word(0), word(4));
                assert!(
                    kept[8..].iter().all(|byte| *byte == number as u8),
                    "damaged"
                );
                let place = place.expect("a channel of the test");
                drop(kept);
                self.write(&format!("got {place} {session} {number}"));
            }
        }
    }
}

/// What a process wrote, of all its lives.
#[derive(Debug, Default)]
struct Story {
    /// By life and channel.
    sent: BTreeMap<(u32, usize), Vec<u32>>,
    /// By life of the sender, and channel.
    got: BTreeMap<(u32, usize), Vec<u32>>,
    lost: usize,
    dead: usize,
    ended: bool,
}

fn read(path: &Path, sessions: &[u32]) -> Story {
    let mut story = Story::default();
    for session in sessions {
        let text = std::fs::read_to_string(path.with_extension(session.to_string()));
        for line in text.unwrap_or_default().lines() {
            let words: Vec<&str> = line.split(' ').collect();
            let number = |at: usize| words[at].parse::<u32>().expect("a number");
            match words[0] {
                "sent" => {
                    let place = number(1) as usize;
                    story
                        .sent
                        .entry((*session, place))
                        .or_default()
                        .push(number(2));
                }
                "got" => {
                    let key = (number(2), number(1) as usize);
                    story.got.entry(key).or_default().push(number(3));
                }
                "lost" => story.lost += number(1) as usize,
                "dead" => story.dead += 1,
                "died" => story.dead += number(1) as usize,
                "end" => story.ended = true,
                other => panic!("{other}"),
            }
        }
    }
    story
}

/// From one process to the other: nothing twice, nothing out of order, and nothing missing that was not told to the last life of the sender
/// (what a process has that is killed is gone with it).
fn judge(from: &Story, to: &Story, kills: bool, what: &str) {
    let last = from.sent.keys().map(|(session, _)| *session).max();
    let mut missing = 0;
    for (key, got) in &to.got {
        let sent = from.sent.get(key).map_or(&[][..], Vec::as_slice);
        assert!(
            got.is_sorted_by(|a, b| a < b),
            "{what}: {key:?} out of order or twice: {got:?}"
        );
        let known = got.iter().all(|number| sent.contains(number) || kills);
        assert!(known, "{what}: {key:?} came and was never sent");
    }
    for (key, sent) in from.sent.iter().filter(|(key, _)| Some(key.0) == last) {
        let got = to.got.get(key).map_or(&[][..], Vec::as_slice);
        missing += sent
            .iter()
            .filter(|number| got.binary_search(number).is_err())
            .count();
    }
    if kills {
        // What a killed process had acknowledged and not taken is gone with it, too: its death is told.
        let told = from.lost + from.dead > 0;
        assert!(
            missing == 0 || told,
            "{what}: {missing} are missing, and nothing was told"
        );
    } else {
        assert!(
            missing <= from.lost,
            "{what}: {missing} are missing, {} were told",
            from.lost
        );
    }
}

/// Ends what is left when a test fails.
struct Running(Vec<Child>);

impl Drop for Running {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

fn signal(child: &Child, signal: Signal) {
    let pid = Pid::from_child(child);
    kill_process(pid, signal).expect("our own child");
}

fn run(seed: u64, folder: &Path) {
    let mut rng = Rng::with_seed(seed);
    let (over, name) = if rng.bool() {
        let job = ShmJob::create(NODES.into(), ShmConfig::for_nodes(NODES.into())).expect("job");
        (Over::Shm(job), "shm")
    } else {
        let first = free_ports(NODES).start;
        let path = cluster_file(folder, |id| {
            format!("addr = \"udp:127.0.0.1:{}\"", first + id)
        });
        (Over::Cluster(path), "udp")
    };
    let loss = name == "udp" && rng.u32(..3) == 0;
    let program = rng.u32(..4) == 0;
    // A process without an assistant that computes is dead between hosts; so is one that is stopped for long.
    let kills = rng.u32(..3) == 0;
    let place = Place::new(over, ENTRY);
    let log = |node: u16| folder.join(format!("{seed}-{node}.log"));
    let start = |node: u16, session: u32| {
        let path = log(node).with_extension(session.to_string());
        let mut more = vec![
            (SEED_ENV, (seed + 1000 * u64::from(node)).to_string()),
            (LOG_ENV, path.to_str().expect("UTF-8").to_owned()),
        ];
        if loss {
            more.push(("TSUMUJI_LOSS", "0.1".to_owned()));
        }
        if program {
            more.push((PROGRAM_ENV, "1".to_owned()));
        }
        place.start_with(node, session, &more)
    };
    let mut running = Running(vec![start(0, 1), start(1, 1)]);
    let mut sessions = 1;
    for _ in 0..rng.u32(..4) {
        std::thread::sleep(Duration::from_millis(rng.u64(..60)));
        let victim = rng.usize(..2);
        if kills && sessions == 1 && rng.bool() {
            running.0[1].kill().expect("kill");
            running.0[1].wait().expect("reap");
            sessions = 2;
            running.0[1] = start(1, 2);
            continue;
        }
        let span = if rng.u32(..3) == 0 {
            DEAD_AFTER * 3 / 2
        } else {
            Duration::from_millis(rng.u64(..100))
        };
        signal(&running.0[victim], Signal::STOP);
        std::thread::sleep(span);
        signal(&running.0[victim], Signal::CONT);
    }
    let what = format!(
        "seed {seed} over {name}{}{}{}",
        if loss { ", 10 % lost" } else { "" },
        if program { ", without assistants" } else { "" },
        if sessions > 1 {
            ", node 1 killed and started again"
        } else {
            ""
        }
    );
    let begun = Instant::now();
    for child in &mut running.0 {
        let status = loop {
            if let Some(status) = child.try_wait().expect("wait") {
                break status;
            }
            assert!(
                begun.elapsed() < PATIENCE + PATIENCE / 2,
                "{what}: it hangs"
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        assert!(status.success(), "{what}: {status}");
    }
    let (a, b) = (read(&log(0), &[1]), read(&log(1), &[1, 2][..sessions]));
    assert!(a.ended && b.ended, "{what}");
    judge(&a, &b, sessions > 1, &format!("{what}, node 0 to 1"));
    judge(&b, &a, sessions > 1, &format!("{what}, node 1 to 0"));
}

/// See the head of this file.
#[test]
fn nothing_is_lost_or_repeated_unseen() {
    work_if_started();
    let number = |name, otherwise: u64| {
        let text = std::env::var(name);
        text.map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (count, seed) = (number("TSUMUJI_SCHEDULES", 12), number("TSUMUJI_SEED", 1));
    let folder = tempfile::tempdir().expect("folder");
    for seed in seed..seed + count {
        run(seed, folder.path());
    }
}
