//! The loop: mailbox, other gateways, and streams.

mod offers;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::io::Errno;
use tsumuji_node::{
    Channel, Context, Delivery, Endpoint, EndpointError, Handler, IdleLoop, IdlePolicy, NodeId,
};
use tsumuji_streams::address::{self, Address};
use tsumuji_streams::hello::NOT_THERE;
use tsumuji_streams::ring::SLOTS;

use crate::addresses::{octets, own_addresses};
use crate::mailbox::{self, Mailbox};
use crate::message::{CONTROL, Control, FIRST};
use crate::segment::Segment;
use crate::stream::{Fault, Listed, Served, Stream, locked};
use crate::tuning::TUNING;

/// Streams at a time; more stay with TCP.
const STREAMS_MAX: usize = 16 << 10;
/// Connections to the mailbox that have left no hello: programs that hold us, and those that are about to leave one.
const HELD_MAX: usize = 4096;

const MAILBOX: u64 = 0;
const ENDPOINT: u64 = 1;
const STREAM: u64 = 2;
const HELD: u64 = 3;

/// Why a gateway cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another gateway of this user serves the host.
    #[error("another gateway of this user serves this host already")]
    Taken,
    /// The kernel refused something.
    #[error("{what}: {source}")]
    System {
        /// What was asked for.
        what: &'static str,
        /// Its word.
        source: std::io::Error,
    },
}

/// What a gateway has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Connections that programs asked to have offered to another host.
    pub asked: u64,
    /// Of those, such as no other host's listener was told of: they stayed with TCP.
    pub not_there: u64,
    /// Connections that both programs carry, or have carried.
    pub carried: u64,
    /// Streams that ended because a program or another gateway broke the rules, or was lost.
    pub broken: u64,
    /// Messages and hellos that made no sense.
    pub refused: u64,
    /// Bytes of data passed on to other hosts.
    pub sent_bytes: u64,
    /// Connections now.
    pub streams: u64,
}

/// Segments that streams of one side lie in.
#[derive(Debug)]
struct Shared {
    segment: Arc<Segment>,
    side: usize,
    waiter: usize,
    /// The listener that it was made for.
    server: Option<Address>,
    streams: [Option<usize>; SLOTS],
}

/// What one poll brought besides messages of streams.
#[derive(Debug, Default)]
struct News {
    controls: Vec<(NodeId, Option<Control>)>,
    up: Vec<NodeId>,
    dead: Vec<NodeId>,
}

impl Handler for News {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        // Others are of streams that have ended.
        if delivery.channel.id() == CONTROL {
            let control = Control::parse(delivery.body.bytes());
            self.controls.push((delivery.from, control));
        }
    }

    fn peer_up(&mut self, peer: NodeId) {
        self.up.push(peer);
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        self.dead.push(peer);
    }
}

/// A gateway: one for each user and host.
#[derive(Debug)]
pub struct Gateway {
    endpoint: Endpoint,
    mailbox: Mailbox,
    epoll: OwnedFd,
    /// Connections to the mailbox without a hello so far.
    held: HashMap<u64, OwnedFd>,
    next_held: u64,
    streams: Vec<Option<Stream>>,
    free: Vec<usize>,
    shared: Vec<Shared>,
    listed: Listed,
    blocked: Vec<usize>,
    /// IP addresses of each node's host.
    addresses: HashMap<NodeId, Vec<[u8; 16]>>,
    own: Vec<[u8; 16]>,
    is_stated: bool,
    addresses_read: Instant,
    random: fastrand::Rng,
    room: Vec<u8>,
    idle: IdlePolicy,
    counters: Counters,
}

impl Gateway {
    /// Opens the mailbox. The endpoint must be driven by its program alone (`ProgressBy::Program`).
    pub fn open(endpoint: Endpoint, idle: IdlePolicy) -> Result<Self, OpenError> {
        Self::open_as(endpoint, idle, false)
    }

    /// As `open`, for tests: stands for a host with these addresses, whatever this one has. With `is_second` no program of this host finds it.
    #[doc(hidden)]
    pub fn open_for(
        endpoint: Endpoint,
        idle: IdlePolicy,
        addresses: &[IpAddr],
        is_second: bool,
    ) -> Result<Self, OpenError> {
        let own = addresses.iter().map(|ip| octets(*ip)).collect();
        Ok(Self {
            own,
            is_stated: true,
            ..Self::open_as(endpoint, idle, is_second)?
        })
    }

    fn open_as(endpoint: Endpoint, idle: IdlePolicy, is_second: bool) -> Result<Self, OpenError> {
        let system = |what| {
            move |error: Errno| OpenError::System {
                what,
                source: error.into(),
            }
        };
        let user = rustix::process::geteuid().as_raw();
        let name = if is_second {
            address::second_gateway(user)
        } else {
            address::gateway(user)
        };
        mailbox::raise_descriptor_limit();
        let mailbox = Mailbox::open(&name).map_err(|error| match error {
            Errno::ADDRINUSE => OpenError::Taken,
            error => system("a mailbox")(error),
        })?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(system("epoll"))?;
        let fds = [(Some(mailbox.as_fd()), MAILBOX), (endpoint.fd(), ENDPOINT)];
        for (fd, data) in fds {
            let Some(fd) = fd else { continue };
            epoll::add(
                &epoll,
                fd,
                epoll::EventData::new_u64(data),
                epoll::EventFlags::IN,
            )
            .map_err(system("epoll"))?;
        }
        Ok(Self {
            endpoint,
            mailbox,
            epoll,
            held: HashMap::new(),
            next_held: 0,
            streams: Vec::new(),
            free: Vec::new(),
            shared: Vec::new(),
            listed: Listed::default(),
            blocked: Vec::new(),
            addresses: HashMap::new(),
            own: own_addresses(),
            is_stated: false,
            addresses_read: Instant::now(),
            random: fastrand::Rng::new(),
            room: vec![0; TUNING.piece_bytes],
            idle,
            counters: Counters::default(),
        })
    }

    /// Whether a gateway of this user serves this host.
    pub fn is_there() -> bool {
        mailbox::reach(&address::gateway(rustix::process::geteuid().as_raw())).is_ok()
    }

    /// Waits until the other hosts' gateways have said which addresses they have. Those that have not within `timeout`.
    pub fn meet(
        &mut self,
        timeout: Duration,
        stop: impl Fn() -> bool,
    ) -> Result<Vec<NodeId>, EndpointError> {
        let begun = Instant::now();
        let me = self.endpoint.me();
        let all = (0..self.endpoint.members().len() as u16).map(NodeId);
        let others: Vec<NodeId> = all.filter(|id| *id != me).collect();
        loop {
            self.step()?;
            let missing = others.iter().filter(|id| !self.addresses.contains_key(id));
            let missing: Vec<NodeId> = missing.copied().collect();
            if missing.is_empty() || begun.elapsed() > timeout || stop() {
                return Ok(missing);
            }
            self.ask(Duration::from_millis(1))?;
        }
    }

    /// Serves until `stop`, or, if asked, until nobody has used it for ten seconds.
    pub fn serve(
        &mut self,
        until_unused: bool,
        stop: impl Fn() -> bool,
    ) -> Result<Counters, EndpointError> {
        let mut steps = 0u32;
        let (mut used, mut was_used, mut is_unused) = (Instant::now(), true, false);
        // The programs want the core.
        let mut idle = IdleLoop::new(self.idle, false).yielding();
        while !stop() && !is_unused {
            let mut did = self.step()?;
            steps = steps.wrapping_add(1);
            if steps.is_multiple_of(TUNING.ask_every) {
                did |= self.ask(Duration::ZERO)?;
                self.refresh();
            }
            if self.is_in_use() {
                was_used = true;
            }
            if did {
                idle.worked();
                continue;
            }
            idle.rest(|| {
                if std::mem::take(&mut was_used) || self.is_in_use() {
                    used = Instant::now();
                } else if until_unused && used.elapsed() > TUNING.unused {
                    is_unused = true;
                    return Ok(());
                }
                self.sleep()
            })?;
        }
        Ok(self.counters())
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        let open = self.streams.iter().flatten();
        let sent: u64 = open.map(|stream| stream.sent_bytes).sum();
        Counters {
            sent_bytes: self.counters.sent_bytes + sent,
            ..self.counters
        }
    }

    /// The endpoint, for its name and counters.
    pub fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// One step. False: there was nothing to do.
    fn step(&mut self) -> Result<bool, EndpointError> {
        let mut news = News::default();
        let polled = self.endpoint.poll(&mut news)?;
        let mut did = polled > 0;
        for peer in news.dead {
            self.lose(peer);
            let _ = self.endpoint.reconnect(peer);
        }
        for peer in news.up {
            self.tell_addresses(peer);
        }
        for (peer, control) in news.controls {
            self.hear(peer, control);
        }
        if polled > 0 {
            let blocked = std::mem::take(&mut self.blocked);
            locked(&self.listed).extend(blocked);
        }
        self.collect();
        let mut listed = std::mem::take(&mut *locked(&self.listed));
        // Each once, however much came for it.
        listed.sort_unstable();
        listed.dedup();
        did |= !listed.is_empty();
        // Messages of several streams share frames and calls.
        self.endpoint.cork();
        for index in listed {
            self.serve_stream(index);
        }
        self.endpoint.uncork()?;
        Ok(did)
    }

    /// Lists the streams whose programs have news.
    fn collect(&mut self) {
        for shared in &self.shared {
            let word = &shared.segment.memory().header().ready[shared.side].0;
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::AcqRel);
            let mut listed = locked(&self.listed);
            while bits != 0 {
                let slot = bits.trailing_zeros() as usize;
                bits &= bits - 1;
                listed.extend(shared.streams[slot % SLOTS]);
            }
        }
    }

    /// Serves one stream.
    fn serve_stream(&mut self, index: usize) {
        let Some(stream) = self.streams.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        let was_agreed = stream.is_agreed();
        let served = stream.serve(&mut self.endpoint, &mut self.room);
        if !was_agreed && stream.is_agreed() {
            self.counters.carried += 1;
        }
        match served {
            Ok(Served::Idle) => {}
            Ok(Served::More) => locked(&self.listed).push(index),
            Ok(Served::Blocked) => self.blocked.push(index),
            Ok(Served::Done) => self.end(index),
            Err(Fault::Broken | Fault::Peer) if stream.abort() => {
                self.counters.broken += 1;
                locked(&self.listed).push(index);
            }
            Err(_) => self.end(index),
        }
    }

    /// Forgets a stream; its program sees the socket between us close.
    fn end(&mut self, index: usize) {
        let Some(stream) = self.streams[index].take() else {
            return;
        };
        self.counters.streams -= 1;
        self.counters.sent_bytes += stream.sent_bytes;
        let _ = self.endpoint.close_channel(FIRST + index as u16);
        if stream.is_ours() {
            let mine = stream.end.mine();
            mine.inn.waiter.store(0, Ordering::Release);
            mine.own.processes.store(0, Ordering::Release);
        }
        let at = self.shared.iter().position(|shared| {
            Arc::ptr_eq(&shared.segment, &stream.end.segment) && shared.side == stream.end.side
        });
        if let Some(at) = at {
            let at_slot = &mut self.shared[at].streams[stream.end.slot];
            *at_slot = at_slot.filter(|other| *other != index);
        }
        self.free.push(index);
        self.trim();
    }

    /// Unmaps segments without streams: those of programs that are gone, and one more if there are many.
    fn trim(&mut self) {
        let is_idle = |shared: &Shared| shared.streams.iter().all(Option::is_none);
        let idle = self.shared.iter().filter(|shared| is_idle(shared)).count();
        let mut most = usize::from(idle > TUNING.idle_segments_max);
        self.shared.retain(|shared| {
            let is_lost = || shared.server.is_none() && !shared.segment.has_client();
            let goes = is_idle(shared) && (is_lost() || std::mem::take(&mut most) > 0);
            if goes {
                shared.segment.free_waiter(shared.side, shared.waiter);
            }
            !goes
        });
    }

    /// A gateway is gone: with it the streams to it.
    fn lose(&mut self, peer: NodeId) {
        self.addresses.remove(&peer);
        let of_peer =
            |stream: &Option<Stream>| stream.as_ref().is_some_and(|stream| stream.peer == peer);
        for index in 0..self.streams.len() {
            if of_peer(&self.streams[index]) {
                self.counters.broken += 1;
                self.end(index);
            }
        }
    }

    fn tell(&mut self, peer: NodeId, control: &Control) {
        // A control message that finds no room is one of very many; whoever waits for it gives up and stays with TCP.
        let _ = self
            .endpoint
            .try_send(peer, Channel::ordered(CONTROL), &control.to_bytes());
    }

    fn tell_addresses(&mut self, peer: NodeId) {
        let control = Control::Addresses(self.own.clone());
        self.tell(peer, &control);
    }

    /// What another gateway says.
    fn hear(&mut self, peer: NodeId, control: Option<Control>) {
        match control {
            Some(Control::Addresses(all)) => {
                self.addresses.insert(peer, all);
            }
            Some(Control::Offer {
                stream,
                client,
                server,
            }) => {
                let made = Address::from_words(client)
                    .zip(Address::from_words(server))
                    .and_then(|(client, server)| self.offer(peer, stream, client, server));
                self.tell(peer, &Control::Offered(stream, made));
            }
            Some(Control::Offered(stream, answer)) => self.answered(peer, stream, answer),
            None => self.counters.refused += 1,
        }
    }

    /// Asks the kernel for news of programs, waiting for them so long. False: there were none.
    fn ask(&mut self, wait: Duration) -> Result<bool, EndpointError> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }; 64];
        let time = rustix::time::Timespec {
            tv_sec: wait.as_secs() as i64,
            tv_nsec: i64::from(wait.subsec_nanos()),
        };
        let count = epoll::wait(&self.epoll, &mut events[..], Some(&time)).unwrap_or(0);
        for event in &events[..count] {
            let data = event.data.u64();
            match data & 0xff {
                MAILBOX => self.let_in(),
                STREAM => self.woken(data),
                HELD => self.read_hello(data),
                _ => {}
            }
        }
        Ok(count > 0)
    }

    /// A program has woken us, or is gone.
    fn woken(&mut self, data: u64) {
        let index = (data as u32 >> 8) as usize;
        let Some(stream) = self.streams.get_mut(index).and_then(Option::as_mut) else {
            return;
        };
        if stream.token != (data >> 32) as u32 {
            return;
        }
        if !mailbox::drain(&*stream.end.wake) {
            stream.is_program_gone = true;
            // It would be reported again and again.
            let _ = epoll::delete(&self.epoll, &*stream.end.wake);
        }
        locked(&self.listed).push(index);
    }

    /// Programs that connect to the mailbox.
    fn let_in(&mut self) {
        for _ in 0..TUNING.let_in_max {
            let Ok(client) = self.mailbox.accept() else {
                return;
            };
            let Some(client) = client.filter(|_| self.held.len() < HELD_MAX) else {
                self.counters.refused += 1;
                continue;
            };
            self.next_held += 1;
            let data = self.next_held << 8 | HELD;
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            if epoll::add(&self.epoll, &client, epoll::EventData::new_u64(data), flags).is_ok() {
                self.held.insert(data, client);
                self.read_hello(data);
            }
        }
    }

    fn read_hello(&mut self, data: u64) {
        let Some(client) = self.held.get(&data) else {
            return;
        };
        let read = mailbox::read(client.as_fd());
        if matches!(read, Err(Errno::AGAIN | Errno::INTR)) {
            return;
        }
        let Some(client) = self.held.remove(&data) else {
            return;
        };
        let _ = epoll::delete(&self.epoll, &client);
        // It has closed, or sent something else.
        let Ok(Some((hello, file, wake))) = read else {
            return;
        };
        self.counters.asked += 1;
        let Ok(asker) = client.try_clone() else {
            return;
        };
        if self.ask_for(asker, &hello, file, wake).is_none() {
            self.counters.not_there += 1;
            mailbox::say(&client, NOT_THERE);
        }
    }

    /// Whether programs hold us or have streams.
    fn is_in_use(&self) -> bool {
        !self.held.is_empty() || self.counters.streams > 0
    }

    /// Now and then: reads the host's addresses, and releases memory of programs that are gone.
    fn refresh(&mut self) {
        if self.addresses_read.elapsed() > TUNING.read_addresses_every {
            self.addresses_read = Instant::now();
            self.trim();
            if self.is_stated {
                return;
            }
            let own = own_addresses();
            if own != self.own {
                self.own = own;
                for id in 0..self.endpoint.members().len() as u16 {
                    if self.endpoint.is_up(NodeId(id)) {
                        self.tell_addresses(NodeId(id));
                    }
                }
            }
        }
    }

    /// Sleeps until something comes.
    fn sleep(&mut self) -> Result<(), EndpointError> {
        self.refresh();
        self.mark_asleep(1);
        fence(Ordering::SeqCst);
        self.collect();
        let has_work = !locked(&self.listed).is_empty() || !self.endpoint.arm_fd()?;
        let wait = self
            .endpoint
            .until_timer()
            .map_or(TUNING.sleep, |timer| timer.min(TUNING.sleep));
        self.ask(if has_work { Duration::ZERO } else { wait })?;
        self.mark_asleep(0);
        Ok(())
    }

    fn mark_asleep(&self, value: u32) {
        for shared in &self.shared {
            let header = shared.segment.memory().header();
            header.asleep[shared.side][shared.waiter]
                .0
                .store(value, Ordering::SeqCst);
        }
    }
}
