//! Relays: one process of a host serves a device to the others (`tsumuji relay`), and these find it by its name.
//!
//! A relay listens under an abstract name of its user and network namespace, and offers its memory to those that ask. One that a node needs and does not find
//! is started by `ensure`, and ends by itself when nobody uses it any more. Called by `worker`, `launcher` and `agent`; the command only calls
//! [`serve_relay`].

use std::ffi::CString;
use std::io::{self, Read};
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{ChildStderr, Command, Stdio};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags};
use rustix::thread::{CpuSet, sched_setaffinity, set_name};
use serde::{Deserialize, Serialize};
use tsumuji_link::LinkError;
use tsumuji_link::dpdk::{Dpdk, DpdkConfig, DpdkOpenError};
use tsumuji_link::ether::MacAddr;
use tsumuji_link::packet::PacketOpenError;
use tsumuji_link::relay::{
    Described, Ethernet, PROCESS_NAME, Relay, RelayCounters, RelayError, Relayed,
};
#[cfg(feature = "xdp")]
use tsumuji_link::xdp::{Xdp, XdpConfig, XdpOpenError};

use super::offer::{Server, ask};
use super::{ENV_RENDEZVOUS, rendezvous};
use crate::any_link::Base;
use crate::cluster::HostNode;
use crate::error::{OpenError, presentable};
use crate::idle::IdleLoop;
use crate::link_spec::{InterfaceName, LinkSpec, Station};
use crate::options::IdlePolicy;
use crate::sleep;

/// How often a relay checks whether it is to end.
const POLL_EVERY: Duration = Duration::from_millis(50);
/// A relay that was started for a node ends if none came for so long; and when the last has left, unless somebody has just asked for it: an agent asks
/// before it starts the program that attaches.
const UNUSED_FIRST: Duration = Duration::from_secs(10);
const ASKED_MIN: Duration = Duration::from_secs(3);
/// How long it goes on after it has withdrawn its offer: a process that has just taken it attaches meanwhile.
const LAST_CALL: Duration = Duration::from_millis(100);
/// How long a node waits for a relay that it has started: interfaces may take some seconds to come up.
const START_MAX: Duration = Duration::from_secs(15);
/// How long a slot, or a device, may be taken by a process that is just ending.
const ENDING_MAX: Duration = Duration::from_secs(6);
/// Pause between two attempts.
const RETRY: Duration = Duration::from_millis(20);
/// Most bytes of a relay's complaint.
const COMPLAINT_BYTES_MAX: u64 = 4096;

/// The name under which the relay of this user listens.
fn name_of(name: InterfaceName) -> String {
    let user = rustix::process::geteuid().as_raw();
    format!("tsumuji-relay-{user}-{name}")
}

/// What a relay says of its device ([`Described`]): address, slots, bytes of a frame, frames that it buffers.
type Device = ([u8; 6], u8, usize, usize);

/// Takes a slot at the relay of this user that has that name.
pub(crate) fn attach(station: &Station) -> Result<Relayed, OpenError> {
    let failed = |source| OpenError::NoRelay {
        name: station.interface,
        reason: format!("asking for one: {source}"),
    };
    let begun = Instant::now();
    loop {
        let Some((device, memory)) = ask::<Device>(&name_of(station.interface)).map_err(failed)?
        else {
            let reason = format!(
                "start one on this host, for example `tsumuji relay --link xdp:{} --slots {}`",
                station.interface,
                station.slot + 1
            );
            let name = station.interface;
            return Err(OpenError::NoRelay { name, reason });
        };
        let (mac, slots, frame_bytes, receive_frames) = device;
        let described = Described {
            mac: MacAddr(mac),
            slots,
            frame_bytes,
            receive_frames,
        };
        match Relayed::attach(memory, station.slot, described) {
            Err(error) if error.is_taken() && begun.elapsed() < ENDING_MAX => {
                std::thread::sleep(RETRY);
            }
            done => return Ok(done?),
        }
    }
}

/// Opens a link that may need an interface; waits for a relay that has it and is just ending.
pub(crate) fn opened<D>(open: impl Fn() -> Result<D, OpenError>) -> Result<D, OpenError> {
    let begun = Instant::now();
    loop {
        match open() {
            Err(error) if is_by_relay(&error) && begun.elapsed() < ENDING_MAX => {
                std::thread::sleep(RETRY);
            }
            done => return done,
        }
    }
}

fn is_by_relay(error: &OpenError) -> bool {
    match error {
        OpenError::Packet(PacketOpenError::Claim(claim))
        | OpenError::Dpdk(DpdkOpenError::Claim(claim)) => claim.is_by_relay(),
        #[cfg(feature = "xdp")]
        OpenError::Xdp(XdpOpenError::Claimed(claim)) => claim.is_by_relay(),
        _ => false,
    }
}

/// A relay that a node of a cluster needs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Wanted {
    /// The device, as users write it.
    pub(crate) link: String,
    /// Nodes of the cluster on this host.
    pub(crate) slots: u16,
}

/// Opens the link of a node of this host, and starts the relay that it needs.
pub(super) fn open(node: &HostNode) -> Result<Base, OpenError> {
    if let Some(wanted) = node.relay() {
        ensure(&wanted)?;
    }
    Base::open(&node.link)
}

/// Starts a relay, unless there is one; returns when it serves.
pub(crate) fn ensure(wanted: &Wanted) -> Result<(), OpenError> {
    let device: LinkSpec = (wanted.link.parse()).map_err(|_| OpenError::NoInterface("relay"))?;
    let name = device.relay_name().ok_or(OpenError::NoInterface("relay"))?;
    let no_relay = |reason: String| OpenError::NoRelay { name, reason };
    let is_there = || match ask::<Device>(&name_of(name)) {
        Ok(found) => Ok(found.is_some()),
        // A relay has its name before its device is open, which may take longer than the question waits.
        Err(error) if error.kind() == io::ErrorKind::TimedOut => Ok(false),
        Err(error) => Err(no_relay(format!("asking for one: {error}"))),
    };
    let begun = Instant::now();
    let mut started: Option<ChildStderr> = None;
    while begun.elapsed() < START_MAX {
        // `has_ended` is read before `is_there()`: the relay may begin to serve between the two.
        let has_ended = started.as_ref().is_none_or(has_spoken);
        if is_there()? {
            return Ok(());
        }
        // One that another node has started serves soon, or fails as ours would.
        let is_starting = || rendezvous::connect(&name_of(name)).is_ok();
        if has_ended && !is_starting() {
            let lost = RelayServeError::Taken(name).to_string();
            if let Some(complaint) = started.take().map(said)
                && complaint != lost
            {
                return Err(no_relay(format!("it cannot be started: {complaint}")));
            }
            let child = start(wanted);
            started = Some(
                child.map_err(|error| no_relay(format!("`tsumuji` cannot be started: {error}")))?,
            );
        }
        std::thread::sleep(RETRY);
    }
    let seconds = START_MAX.as_secs();
    Err(no_relay(format!(
        "it does not begin to serve within {seconds} s (is it stopped?)"
    )))
}

/// The complaint of a relay that has ended.
fn said(pipe: ChildStderr) -> String {
    let mut text = String::new();
    let _ = pipe.take(COMPLAINT_BYTES_MAX).read_to_string(&mut text); // what is not text is left out
    let text = presentable(text.trim());
    text.strip_prefix("tsumuji: ").unwrap_or(&text).to_owned()
}

/// Whether something was written into a pipe, or its other end was closed.
fn has_spoken(pipe: &ChildStderr) -> bool {
    let mut fds = [PollFd::new(pipe, PollFlags::IN)];
    sleep::poll(&mut fds, Some(Duration::ZERO)).unwrap_or(false)
}

/// Runs the command in the background, where nobody has it as a child, and where nothing that ends this process or its group reaches it. Returns its
/// standard error.
fn start(wanted: &Wanted) -> io::Result<ChildStderr> {
    let own = std::env::current_exe().ok();
    let beside = own.map(|path| path.with_file_name("tsumuji"));
    let mut found = beside.into_iter().chain(in_path());
    let program = found.find(|path| path.is_file());
    let program = program.ok_or_else(|| {
        let reason = "it lies neither beside this program nor in the path";
        io::Error::new(io::ErrorKind::NotFound, reason)
    })?;
    let mut child = Command::new("sh")
        .args(["-c", "\"$@\" &", "sh"])
        .arg(program)
        .args(["relay", "--until-unused", "--link", &wanted.link])
        .args(["--slots", &wanted.slots.to_string()])
        // It belongs to no launch: it serves whoever comes.
        .env_remove(ENV_RENDEZVOUS)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let complaint = child.stderr.take();
    child.wait()?;
    complaint.ok_or_else(|| io::ErrorKind::BrokenPipe.into())
}

fn in_path() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join("tsumuji"))
        .collect()
}

/// What a relay serves.
#[derive(Debug, Clone, Copy)]
pub struct RelayPlan {
    /// The device: `xdp:INTERFACE` or `dpdk:DEVICE`.
    pub link: LinkSpec,
    /// Its name instead of that of the interface.
    pub name: Option<InterfaceName>,
    /// How many processes can use it at a time.
    pub slots: u8,
    /// End when nobody uses it any more.
    pub until_unused: bool,
}

/// Why a relay does not serve.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RelayServeError {
    /// Another one does.
    #[error("a relay has `{0}` already")]
    Taken(InterfaceName),
    /// Not a link that one process must own.
    #[error(
        "`{0}` has no need of a relay, or cannot have one: accepted are `xdp:INTERFACE` and `dpdk:DEVICE`, where the device leaves this host"
    )]
    NoDevice(Box<LinkSpec>),
    /// The device has no short name.
    #[error("state a name of at most 15 letters for a relay of `{0}` (--name)")]
    NoName(Box<LinkSpec>),
    /// The device cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no memory for the processes.
    #[error(transparent)]
    Relay(#[from] RelayError),
    /// The device failed.
    #[error("the device failed: {0}")]
    Device(#[from] LinkError),
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A relay that has begun to serve.
#[derive(Debug, Clone, Copy)]
pub struct RelayServes {
    /// Name under which processes find the relay: `relay:NAME`.
    pub name: InterfaceName,
    /// Address of slot 0.
    pub mac: MacAddr,
    /// Largest frame in bytes.
    pub frame_bytes: usize,
}

/// What a relay has done.
#[derive(Debug, Clone, Copy)]
pub struct RelayEnd {
    /// Frames passed on, and not.
    pub counters: RelayCounters,
    /// Frames that the device or the kernel dropped.
    pub dropped_frames: u64,
}

/// Serves a device to the processes of this host and user until `is_over`. To be called by a process that does nothing else: it gets the name
/// `tsumuji-relay`.
pub fn serve_relay(
    plan: &RelayPlan,
    is_over: impl Fn() -> bool,
    serves: impl FnOnce(RelayServes),
) -> Result<RelayEnd, RelayServeError> {
    let link = || Box::new(plan.link);
    if !matches!(plan.link, LinkSpec::Xdp(Some(_)) | LinkSpec::Dpdk(_)) {
        return Err(RelayServeError::NoDevice(link()));
    }
    if matches!(plan.link, LinkSpec::Dpdk(device) if device.stays_on_host()) {
        return Err(RelayServeError::NoDevice(link()));
    }
    let name =
        (plan.name.or(plan.link.relay_name())).ok_or_else(|| RelayServeError::NoName(link()))?;
    // Others wait for a relay that is just ending; under its own name it is known.
    let _ = set_name(&CString::new(PROCESS_NAME).unwrap_or_default());
    if plan.until_unused {
        // The process that has started it may be bound to a core.
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
        let _ = sched_setaffinity(None, &all); // it works on one core, too
    }
    // The name is taken before the device is opened: a second relay must not disturb the device of the first.
    let listener = rendezvous::listen(&name_of(name)).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => RelayServeError::Taken(name),
        _ => RelayServeError::Io {
            what: "listen for processes",
            source,
        },
    })?;
    match &plan.link {
        #[cfg(feature = "xdp")]
        LinkSpec::Xdp(Some(interface)) => {
            let config = XdpConfig {
                slots: plan.slots,
                ..XdpConfig::default()
            };
            let device = opened(|| Ok(Xdp::open(interface.as_str(), config)?))?;
            Service::new(device, plan, name, listener)?.run(is_over, serves)
        }
        LinkSpec::Dpdk(device) => {
            let config = DpdkConfig {
                promiscuous: plan.slots > 1,
                ..DpdkConfig::default()
            };
            let device = opened(|| Ok(Dpdk::open(device, config)?))?;
            Service::new(device, plan, name, listener)?.run(is_over, serves)
        }
        _ => Err(OpenError::NotBuilt("xdp").into()),
    }
}

/// A relay, and the thread that offers its memory.
struct Service<D: Ethernet> {
    relay: Relay<D>,
    name: InterfaceName,
    memory: OwnedFd,
    offer: Option<Server>,
    until_unused: bool,
    has_been_used: bool,
    begun: Instant,
}

impl<D: Ethernet> Service<D> {
    fn new(
        device: D,
        plan: &RelayPlan,
        name: InterfaceName,
        listener: OwnedFd,
    ) -> Result<Self, RelayServeError> {
        let relay = Relay::new(device, plan.slots)?;
        let memory = relay.memory().try_clone_to_owned();
        let mut service = Self {
            memory: memory.map_err(failed("duplicate"))?,
            relay,
            name,
            offer: None,
            until_unused: plan.until_unused,
            has_been_used: false,
            begun: Instant::now(),
        };
        service.offer(listener)?;
        Ok(service)
    }

    fn offer(&mut self, listener: OwnedFd) -> Result<(), RelayServeError> {
        let memory = self.memory.try_clone().map_err(failed("duplicate"))?;
        let of = self.relay.describe();
        let device: Device = (of.mac.0, of.slots, of.frame_bytes, of.receive_frames);
        let offer = Server::start(listener, memory, device);
        self.offer = Some(offer.map_err(failed("start a thread"))?);
        Ok(())
    }

    fn run(
        mut self,
        is_over: impl Fn() -> bool,
        serves: impl FnOnce(RelayServes),
    ) -> Result<RelayEnd, RelayServeError> {
        let device = self.relay.describe();
        serves(RelayServes {
            name: self.name,
            mac: device.mac,
            frame_bytes: device.frame_bytes,
        });
        let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
        // The processes that it serves poll, too.
        let is_contended = usize::from(device.slots) + 1 > cores;
        let mut idle = IdleLoop::new(IdlePolicy::Adaptive, is_contended);
        let mut polled = Instant::now();
        loop {
            let frames = self.relay.poll_once()?;
            if frames > 0 {
                idle.worked();
            } else {
                idle.rest(|| self.relay.wait(POLL_EVERY))?;
            }
            if polled.elapsed() >= POLL_EVERY {
                polled = Instant::now();
                if is_over() || self.is_unused()? {
                    return Ok(RelayEnd {
                        counters: self.relay.counters(),
                        dropped_frames: self.relay.device().counters().dropped_frames,
                    });
                }
            }
        }
    }

    /// Whether to end, because nobody needs it.
    fn is_unused(&mut self) -> Result<bool, RelayServeError> {
        if !self.until_unused {
            return Ok(false);
        }
        if self.relay.processes() > 0 {
            self.has_been_used = true;
            return Ok(false);
        }
        if !self.has_been_used && self.begun.elapsed() < UNUSED_FIRST {
            return Ok(false);
        }
        let asked = self.offer.as_ref().map(Server::asked).unwrap_or_default();
        let was_asked = || {
            let asked = asked.lock().unwrap_or_else(PoisonError::into_inner);
            asked.is_some_and(|asked| asked.elapsed() < ASKED_MIN)
        };
        if was_asked() {
            return Ok(false);
        }
        self.offer = None;
        let begun = Instant::now();
        while begun.elapsed() < LAST_CALL {
            if self.relay.processes() > 0 || was_asked() {
                // Another relay may have the name by now: then this one serves its present processes, and ends after them.
                if let Ok(listener) = rendezvous::listen(&name_of(self.name)) {
                    self.offer(listener)?;
                }
                return Ok(false);
            }
            if self.relay.poll_once()? == 0 {
                std::thread::sleep(RETRY);
            }
        }
        Ok(true)
    }
}

fn failed(what: &'static str) -> impl FnOnce(io::Error) -> RelayServeError {
    move |source| RelayServeError::Io { what, source }
}
