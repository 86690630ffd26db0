//! Errors, one enum per operation, and how texts of other processes are shown. Their texts name peers by number; `Endpoint::name_of` gives names.

use std::path::PathBuf;
use std::time::Duration;

use tsumuji_link::{LinkAddr, LinkError};
use tsumuji_proto::{CongestionKind, NodeId};

use crate::absence::{Absence, Absent};
use crate::exit::WorkerFailure;
use crate::link_spec::{InterfaceName, LinkSpec};

/// Limit of a text that another process reports; the rest is cut.
const MAX_ERROR_BYTES: usize = 4096;

/// Why an endpoint could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// `Membership::me` is not in the table; or a launcher that is no member asks for its endpoint, or asks twice.
    #[error("this process is not a member of the cluster")]
    NotAMember,
    /// Ids are not dense from 0.
    #[error("member {0} of the table does not have the id {0}: ids must be 0, 1, 2 … in order")]
    OutOfOrder(usize),
    /// Two members cannot be told apart.
    #[error("{first} and {second} have the same address {addr:?}")]
    SameAddress {
        /// One of them.
        first: NodeId,
        /// The other.
        second: NodeId,
        /// Their address.
        addr: LinkAddr,
    },
    /// Node 0 of a running cluster did not make this process a member.
    #[error("cannot join the cluster by its node 0 at {to}: {reason}")]
    NotAdmitted {
        /// The address asked.
        to: LinkAddr,
        /// Its answer, or what is missing.
        reason: String,
    },
    /// Incarnation 0 means "unknown" on the wire.
    #[error("incarnation 0 is reserved; give another or none")]
    ZeroIncarnation,
    /// The link cannot carry a useful frame.
    #[error("link `{link}` carries frames of {frame_bytes} bytes; at least {least} are needed")]
    FrameTooSmall {
        /// Name of the link.
        link: &'static str,
        /// Its frame size in bytes.
        frame_bytes: usize,
        /// Least frame size in bytes.
        least: usize,
    },
    /// The profile of this machine cannot be used.
    #[error(transparent)]
    Profile(#[from] crate::tuning::ProfileError),
    /// The link failed.
    #[error("cannot open the link: {0}")]
    Link(#[from] LinkError),
    /// The shared memory cannot be joined.
    #[error("cannot join the shared memory: {0}")]
    Attach(#[from] tsumuji_link::shm::ShmAttachError),
    /// The shared memory of this host's nodes cannot be made.
    #[error("cannot make the shared memory: {0}")]
    Memory(#[from] tsumuji_link::shm::ShmCreateError),
    /// The shared memory of this host's nodes was not found.
    #[error("nodes of this host cannot meet: {what}: {source}")]
    Neighbours {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The launcher that started this process (`mpiexec`, `mpirun`, `srun`) did not tell where the others are.
    #[error("the launcher's key-value space: cannot {what}: {source}")]
    Foreign {
        /// The step that failed.
        what: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The UDP socket cannot be opened.
    #[error("cannot open the link: {0}")]
    Bind(#[from] tsumuji_link::udp::UdpBindError),
    /// Nobody chose a multicast group.
    #[error("`udp+multicast` lacks the job's group; name it as in `udp+multicast:239.77.0.1:7000`")]
    NoGroup,
    /// The interface cannot be used for raw Ethernet.
    #[error("cannot open the link: {0}")]
    Packet(#[from] tsumuji_link::packet::PacketOpenError),
    /// The interface cannot be used by AF_XDP.
    #[cfg(feature = "xdp")]
    #[error("cannot open the link: {0}")]
    Xdp(#[from] tsumuji_link::xdp::XdpOpenError),
    /// The DPDK device cannot be used.
    #[error("cannot open the link: {0}")]
    Dpdk(#[from] tsumuji_link::dpdk::DpdkOpenError),
    /// No slot at the relay of a device.
    #[error("cannot open the link: the relay has no place: {0}")]
    Relay(#[from] tsumuji_link::relay::RelayedError),
    /// No relay has the device.
    #[error("no relay of this user has `{name}`: {reason}")]
    NoRelay {
        /// Name of the relay.
        name: InterfaceName,
        /// What was tried, or what to do.
        reason: String,
    },
    /// The link needs an interface, and none is named.
    #[error("link `{0}` needs an interface: `{0}:INTERFACE`, for example `{0}:eth1`")]
    NoInterface(&'static str),
    /// Other hosts can reach the link, and neither a key nor trust in the network was stated.
    #[error(
        "frames over `{0}` leave this host: give a cluster key (--key FILE, or TSUMUJI_KEY), or say that all who can reach this network are trusted (--open, or TSUMUJI_OPEN=1)"
    )]
    Unprotected(&'static str),
    /// The program was built without this feature.
    #[error("this program was built without {0}; build it with the feature `{0}`")]
    NotBuilt(&'static str),
    /// The key file cannot be used.
    #[cfg(feature = "seal")]
    #[error(transparent)]
    Key(#[from] tsumuji_seal::KeyError),
    /// The link cannot be sealed.
    #[cfg(feature = "seal")]
    #[error("cannot seal the link: {0}")]
    Seal(#[from] tsumuji_seal::SealError),
    /// The impairment is invalid.
    #[error(transparent)]
    Impair(#[from] tsumuji_link::impair::ImpairError),
    /// The environment has no variables of a launcher.
    #[error(
        "this process was not launched: start it by `tsumuji launch -n N -- PROGRAM`, or set TSUMUJI_CLUSTER and TSUMUJI_NODE"
    )]
    NotLaunched,
    /// A variable that a launcher or a user set cannot be used.
    #[error("environment variable {name}=`{value}`: {problem}")]
    Environment {
        /// Name of the variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is wrong, and what is accepted.
        problem: String,
    },
    /// The rendezvous with the launcher failed.
    #[error("rendezvous with the launcher: {what}: {source}")]
    Rendezvous {
        /// The step that failed.
        what: &'static str,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The launcher refused this process.
    #[error("the launcher refused this process: {0}")]
    Refused(String),
    /// The launcher ended, or stopped the launch, before all had joined; or the launcher's own wait for them was to stop.
    #[error("the launch was given up before all processes had joined")]
    Abandoned,
    /// Another worker failed first.
    #[error(transparent)]
    Worker(#[from] WorkerFailure),
    /// The cluster file cannot be used.
    #[error(transparent)]
    Cluster(#[from] ClusterFileError),
    /// The capture file cannot be written.
    #[error("cannot capture to {}: {source}", path.display())]
    Capture {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Metrics cannot be published there.
    #[error("cannot show metrics at {addr}: {source}")]
    Metrics {
        /// The address as given, or with this node's port.
        addr: std::net::SocketAddr,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// No descriptor or thread for the progress assistant.
    #[error(
        "cannot start the progress assistant (open files or threads limited? see `ulimit -a`): {0}"
    )]
    Descriptor(std::io::Error),
    /// The kernel gave no random number.
    #[error("cannot read /dev/urandom: {0}")]
    Random(std::io::Error),
}

/// Why an endpoint cannot go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The link failed permanently.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
    /// The channel is not open, or cannot be used like this; the endpoint still works.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// A message was awaited from this peer alone, which is dead; the endpoint still works.
    #[error(
        "{peer} is dead and has left no message: nothing was heard from it for too long, or it left"
    )]
    PeerDead {
        /// The peer.
        peer: NodeId,
    },
}

/// What is wrong with a channel's id or state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// It is open already.
    #[error("channel {0} is open already; close it first, or use another")]
    AlreadyOpen(u16),
    /// It is not open here.
    #[error("channel {0} is not open; open it first")]
    NotOpen(u16),
    /// It belongs to the endpoints themselves.
    #[error("channel {channel_id} is the endpoints' own; use another, 0 to {}", channel_id - 1)]
    Reserved {
        /// Id of the channel.
        channel_id: u16,
    },
    /// Its budget is 0.
    #[error("channel {0} has a budget of 0 bytes; give it at least 1")]
    NoBudget(u16),
    /// It has a handler, so no message can be taken from it.
    #[error("channel {0} has a handler that takes its messages; open it without one")]
    HasHandler(u16),
    /// The post belongs to another endpoint.
    #[error("no buffer was posted under number {0} at this endpoint; ask the one where it was")]
    NoSuchPost(u64),
}

/// Why nothing can be received.
pub type RecvError = EndpointError;

/// Why members were not met.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeetError {
    /// They did not come.
    #[error(
        "not all nodes have met within {} s: {absence}; are they started there, with the same cluster file?",
        within.as_secs_f64()
    )]
    Absent {
        /// How long they were waited for.
        within: Duration,
        /// The nodes that are missing, and what is known of the cause.
        absence: Absence,
    },
    /// The two will never meet.
    #[error("{}: {}", member.name, member.cause)]
    Differs {
        /// It uses another congestion control.
        member: Absent,
    },
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] SendError),
}

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// `try_send` only: as many bytes as `Options::send_queue_bytes` allows wait already, or the peer has stopped the channel, or there is no memory
    /// for a copy before a waiting message is acknowledged.
    #[error(
        "queue or channel to {peer} is full, or memory short; poll and try again, or wait_writable"
    )]
    WouldBlock {
        /// Receiver of the message.
        peer: NodeId,
    },
    /// Larger than the peer takes.
    #[error("message is {size} bytes; {peer} takes at most {limit}")]
    TooLarge {
        /// Size of the message in bytes.
        size: usize,
        /// The peer's limit in bytes.
        limit: usize,
        /// Receiver of the message.
        peer: NodeId,
    },
    /// The peer was declared dead; nothing reaches it until a new incarnation of it is met.
    #[error("{peer} is dead: nothing was heard from it for too long, or it left")]
    PeerDead {
        /// The peer.
        peer: NodeId,
    },
    /// Accepted messages were not acknowledged when the session with the peer ended: the peer died, left, was restarted, or had taken this node for
    /// dead. Reported once, by the next `send` to that peer, `flush`, `wait_writable` or `close`, which does nothing else. (Some may have arrived
    /// without their acknowledgements. For tracked ones ask `is_sent`.)
    #[error(
        "{messages} messages to {peer} were lost: it died, left or was started again before it acknowledged them"
    )]
    MessagesLost {
        /// The peer.
        peer: NodeId,
        /// Number of messages.
        messages: usize,
    },
    /// The peer's endpoint uses another congestion control; the two never meet.
    #[error(
        "{peer} runs the congestion control `{theirs}`, this node another one: start all nodes with the same (--congestion, or TSUMUJI_CONGESTION)"
    )]
    OtherCongestion {
        /// The peer.
        peer: NodeId,
        /// Its congestion control.
        theirs: CongestionKind,
    },
    /// The peer is not in the table, or is this node itself.
    #[error("{peer} is not another member of this cluster")]
    UnknownPeer {
        /// The peer.
        peer: NodeId,
    },
    /// The channel is reserved for libraries, and this endpoint has not opened it.
    #[error("channel {channel_id} is reserved for libraries; use another, 0 to {}", tsumuji_proto::Channel::LIBRARY_IDS - 1)]
    ReservedChannel {
        /// Which.
        channel_id: u16,
    },
    /// The channel is not open.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// No message to the peer has this id: they come from `send_tracked` and `send_shared_tracked`.
    #[error("no message to {peer} has this id; ids come from tracked sends to that peer")]
    NoSuchMessage {
        /// The peer.
        peer: NodeId,
    },
    /// For a `MessageSender`: the endpoint was closed or dropped.
    #[error("the endpoint is closed")]
    Closed,
    /// There is no memory for a copy of the message, and no message waiting for the peer would free any.
    #[error("no memory for a copy of {bytes} bytes; send_shared needs none")]
    NoMemory {
        /// Size of the message in bytes.
        bytes: usize,
    },
    /// The engine refused the message.
    #[error(transparent)]
    Refused(tsumuji_proto::SubmitError),
    /// The link failed permanently.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
}

/// Messages that were not delivered when an endpoint was closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// Numbers of messages by peer.
    #[error("{}", undelivered(lost, unacknowledged))]
    Undelivered {
        /// Lost with its session and not reported before.
        lost: Vec<(NodeId, usize)>,
        /// Not acknowledged in the time given to `close`.
        unacknowledged: Vec<(NodeId, usize)>,
    },
    /// The link failed permanently.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
}

fn undelivered(lost: &[(NodeId, usize)], unacknowledged: &[(NodeId, usize)]) -> String {
    let list = |what: &str, peers: &[(NodeId, usize)]| {
        let all: Vec<String> = peers
            .iter()
            .map(|(peer, messages)| format!("{messages} messages to {peer}"))
            .collect();
        (!all.is_empty()).then(|| format!("{} {what}", all.join(", ")))
    };
    let lost = list("were lost with it", lost);
    let unacknowledged = list(
        "were not acknowledged in the time given to close",
        unacknowledged,
    );
    let all: Vec<String> = lost.into_iter().chain(unacknowledged).collect();
    all.join("; ")
}

impl From<EndpointError> for SendError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Link(error) => Self::Link(error),
            EndpointError::Channel(error) => Self::Channel(error),
            EndpointError::PeerDead { peer } => Self::PeerDead { peer },
        }
    }
}

/// Makes what another process reports fit to be shown: one line, no control characters, bounded.
pub(crate) fn presentable(error: &str) -> String {
    let line = error
        .split(['\n', '\r'])
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("; ");
    let mut text: String = line
        .chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect();
    let mut end = text.len().min(MAX_ERROR_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

/// Why a cluster file cannot be used. Each error names the file, and the line if there is one.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClusterFileError {
    /// It cannot be read.
    #[error("{}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// It is too large for a cluster file.
    #[error("{} is larger than {limit} bytes; no cluster file is", path.display())]
    TooLarge {
        /// Path of the file.
        path: PathBuf,
        /// The limit in bytes.
        limit: u64,
    },
    /// Its content is invalid.
    #[error("{}:{line}: {problem}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong and what is accepted.
        problem: String,
    },
    /// The file lacks a field that the chosen link needs.
    #[error("{}: node {node} (`{host}`): link `{link}` {problem}", path.display())]
    Over {
        /// Path of the file.
        path: PathBuf,
        /// Number of the node.
        node: usize,
        /// Its host.
        host: String,
        /// The chosen link.
        link: Box<LinkSpec>,
        /// What is missing.
        problem: String,
    },
    /// Nodes of it cannot meet.
    #[error("{}: node {node} (`{host}`): `{kind}` among nodes of `{first}`; state links of one kind in `addr`, or choose one for all by --link", path.display())]
    Mixed {
        /// Path of the file.
        path: PathBuf,
        /// Number of the node.
        node: usize,
        /// Its host.
        host: String,
        /// Kind of its link.
        kind: &'static str,
        /// Kind of the first node's link.
        first: &'static str,
    },
    /// The given node is not in it.
    #[error("{}: there is no {node}; the file has nodes 0 to {last}", path.display())]
    NoSuchNode {
        /// Path of the file.
        path: PathBuf,
        /// The given node.
        node: NodeId,
        /// The highest id in the file.
        last: usize,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a worker reports is one printable line of bounded length.
    #[test]
    fn reports_are_presentable() {
        assert_eq!(presentable("a\x1b[31m\n\n  b\r\n"), "a [31m; b");
        assert!(presentable(&"é".repeat(10_000)).len() <= MAX_ERROR_BYTES);
    }
}
