//! What can go wrong, one enum per operation. Names of peers in the texts are node numbers; `Endpoint::name_of` gives names.

use std::path::PathBuf;

use tsumuji_link::{LinkAddr, LinkError};
use tsumuji_proto::{Congestion, NodeId};

use crate::bootstrap::WorkerFailure;
use crate::cluster::ClusterFileError;

/// Why no endpoint could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// `Membership::me` is not in the table, or a launcher that takes no part asks for its endpoint (or asks twice).
    #[error("this process is not a member of the cluster")]
    NotAMember,
    /// Ids are not dense from 0.
    #[error(
        "member {place} of the table does not have the id {place}: ids must be 0, 1, 2 … in order"
    )]
    OutOfOrder {
        /// Where.
        place: usize,
    },
    /// Two members cannot be told apart.
    #[error("{first} and {second} have the same address {addr:?}")]
    SameAddress {
        /// One of them.
        first: NodeId,
        /// The other.
        second: NodeId,
        /// Of both.
        addr: LinkAddr,
    },
    /// Incarnation 0 means "unknown" on the wire.
    #[error("incarnation 0 is reserved; give another or none")]
    ZeroIncarnation,
    /// The link cannot carry a useful frame.
    #[error("link `{link}` carries frames of {frame_bytes} bytes; at least {least} are needed")]
    FrameTooSmall {
        /// Its name.
        link: &'static str,
        /// What it carries.
        frame_bytes: usize,
        /// What the protocol needs.
        least: usize,
    },
    /// The link failed.
    #[error("cannot open the link: {0}")]
    Link(#[from] LinkError),
    /// The shared memory cannot be joined.
    #[error("cannot join the shared memory: {0}")]
    Attach(#[from] tsumuji_link::shm::ShmAttachError),
    /// The UDP socket cannot be opened.
    #[error("cannot open the link: {0}")]
    Bind(#[from] tsumuji_link::udp::UdpBindError),
    /// The interface cannot be used for raw Ethernet.
    #[error("cannot open the link: {0}")]
    Packet(#[from] tsumuji_link::packet::PacketOpenError),
    /// The same, by AF_XDP.
    #[cfg(feature = "xdp")]
    #[error("cannot open the link: {0}")]
    Xdp(#[from] tsumuji_link::xdp::XdpOpenError),
    /// The DPDK device cannot be used.
    #[error("cannot open the link: {0}")]
    Dpdk(#[from] tsumuji_link::dpdk::DpdkOpenError),
    /// A link of an interface, and none is named.
    #[error("link `{link}` needs an interface: `{link}:INTERFACE`, for example `{link}:eth1`")]
    NoInterface {
        /// As given.
        link: &'static str,
    },
    /// A link that others on the network can reach, and not a word about its safety.
    #[error(
        "frames over `{link}` leave this host: give a cluster key (--key FILE, or TSUMUJI_KEY), or say that all who can reach this network are trusted (--open, or TSUMUJI_OPEN=1)"
    )]
    Unprotected {
        /// Its name.
        link: &'static str,
    },
    /// The program was built without what is asked for.
    #[error("this program was built without {feature}; build it with the feature `{feature}`")]
    NotBuilt {
        /// The feature.
        feature: &'static str,
    },
    /// The key file cannot be used.
    #[cfg(feature = "seal")]
    #[error(transparent)]
    Key(#[from] tsumuji_seal::KeyError),
    /// The link cannot be sealed.
    #[cfg(feature = "seal")]
    #[error("cannot seal the link: {0}")]
    Seal(#[from] tsumuji_seal::SealError),
    /// The wanted misfortune makes no sense.
    #[error(transparent)]
    Impair(#[from] tsumuji_link::impair::ImpairError),
    /// No launcher's variables in the environment.
    #[error(
        "this process was not launched: start it by `tsumuji launch -n N -- PROGRAM`, or set TSUMUJI_CLUSTER and TSUMUJI_NODE"
    )]
    NotLaunched,
    /// A variable that a launcher or a user set cannot be used.
    #[error("environment variable {name}=`{value}`: {problem}")]
    Environment {
        /// Which.
        name: &'static str,
        /// What it holds.
        value: String,
        /// What is wrong, and what is accepted.
        problem: String,
    },
    /// The rendezvous with the launcher failed.
    #[error("rendezvous with the launcher: {what}: {source}")]
    Rendezvous {
        /// Which step.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// The launcher does not take this process.
    #[error("the launcher refused this process: {reason}")]
    Refused {
        /// In its words.
        reason: String,
    },
    /// The launcher ended or gave up before all had joined.
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
        /// Which file.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Metrics cannot be shown there.
    #[error("cannot show metrics at {addr}: {source}")]
    Metrics {
        /// As given, or where this node's place would be.
        addr: std::net::SocketAddr,
        /// The kernel's answer.
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

/// Why an endpoint can no longer be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EndpointError {
    /// The link failed for good.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
    /// Something is asked of a channel that is not open; the endpoint can be used.
    #[error(transparent)]
    Channel(#[from] ChannelError),
}

/// What is wrong with a channel's number or state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ChannelError {
    /// It has an owner.
    #[error("channel {channel_id} is open already; close it first, or use another")]
    AlreadyOpen {
        /// Which.
        channel_id: u16,
    },
    /// Nobody opened it here.
    #[error("channel {channel_id} is not open; open it first")]
    NotOpen {
        /// Which.
        channel_id: u16,
    },
    /// The endpoints' own.
    #[error("channel {channel_id} is the endpoints' own; use another, 0 to {}", channel_id - 1)]
    Reserved {
        /// Which.
        channel_id: u16,
    },
    /// A channel that may keep nothing.
    #[error("channel {channel_id} has a budget of 0 bytes; give it at least 1")]
    NoBudget {
        /// Which.
        channel_id: u16,
    },
    /// It has a handler, so nothing can be taken from it.
    #[error("channel {channel_id} has a handler that takes its messages; open it without one")]
    HasHandler {
        /// Which.
        channel_id: u16,
    },
    /// Another endpoint's post.
    #[error(
        "no buffer was posted under number {number} at this endpoint; ask the one where it was"
    )]
    NoSuchPost {
        /// Of the post.
        number: u64,
    },
}

/// Why nothing can be received any more.
pub type RecvError = EndpointError;

/// Why a message was not sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SendError {
    /// `try_send` only: as many bytes as `Options::send_queue_bytes` allows wait already, or the peer's owner of the channel wants nothing
    /// more for now, or there is no memory for a copy before one that waits is acknowledged.
    #[error(
        "queue or channel to {peer} is full, or memory short; poll and try again, or wait_writable"
    )]
    WouldBlock {
        /// To whom.
        peer: NodeId,
    },
    /// Larger than the peer takes.
    #[error("message is {size} bytes; {peer} takes at most {limit}")]
    TooLarge {
        /// Of the message.
        size: usize,
        /// The peer's limit.
        limit: usize,
        /// To whom.
        peer: NodeId,
    },
    /// Declared dead; nothing reaches it until it comes back as a new life.
    #[error("{peer} is dead: nothing was heard from it for too long, or it left")]
    PeerDead {
        /// Who.
        peer: NodeId,
    },
    /// Messages that earlier calls accepted were not acknowledged when their session with the peer ended: it died, left, was started
    /// again, or had taken this node for dead. Told once, by the next `send` to that peer, `flush`, `wait_writable` or `close`, which does
    /// nothing else. (Some may have arrived: their acknowledgements did not. Of tracked ones `is_sent` tells.)
    #[error(
        "{messages} messages to {peer} were lost: it died, left or was started again before it acknowledged them"
    )]
    MessagesLost {
        /// To whom.
        peer: NodeId,
        /// How many.
        messages: usize,
    },
    /// The peer's endpoint was opened with another congestion control than this one; the two never meet.
    #[error(
        "{peer} runs the congestion control `{theirs}`, this node another one: start all nodes with the same (--congestion, or TSUMUJI_CONGESTION)"
    )]
    OtherCongestion {
        /// Who.
        peer: NodeId,
        /// What it runs.
        theirs: Congestion,
    },
    /// Not in the table, or this node itself.
    #[error("{peer} is not another member of this cluster")]
    UnknownPeer {
        /// Who.
        peer: NodeId,
    },
    /// A channel for libraries between endpoint and program, which this endpoint has not opened.
    #[error("channel {channel_id} is reserved for libraries; use another, 0 to {}", tsumuji_proto::Channel::LIBRARY_IDS - 1)]
    ReservedChannel {
        /// Which.
        channel_id: u16,
    },
    /// Something is asked of a channel that is not open.
    #[error(transparent)]
    Channel(#[from] ChannelError),
    /// By a sender of another thread: the endpoint was closed or dropped.
    #[error("the endpoint is closed")]
    Closed,
    /// The copy of a message finds no memory, and nothing that waits for the peer would give any back.
    #[error("no memory for a copy of {bytes} bytes; send_shared needs none")]
    NoMemory {
        /// Of the message.
        bytes: usize,
    },
    /// The engine refused for a reason of its own.
    #[error(transparent)]
    Refused(tsumuji_proto::SubmitError),
    /// The link failed for good.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
}

/// What was not delivered when an endpoint was closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CloseError {
    /// By peer, how many messages: lost with its session and not told of before, or not acknowledged in the time that `close` was given.
    #[error("{}", undelivered(lost, given_up))]
    Undelivered {
        /// Lost.
        lost: Vec<(NodeId, usize)>,
        /// Given up.
        given_up: Vec<(NodeId, usize)>,
    },
    /// The link failed for good.
    #[error("the link failed: {0}")]
    Link(#[from] LinkError),
}

fn undelivered(lost: &[(NodeId, usize)], given_up: &[(NodeId, usize)]) -> String {
    let list = |what: &str, peers: &[(NodeId, usize)]| {
        let all: Vec<String> = peers
            .iter()
            .map(|(peer, messages)| format!("{messages} messages to {peer}"))
            .collect();
        (!all.is_empty()).then(|| format!("{} {what}", all.join(", ")))
    };
    let lost = list("were lost with it", lost);
    let given_up = list("were not acknowledged in the time given to close", given_up);
    let all: Vec<String> = lost.into_iter().chain(given_up).collect();
    all.join("; ")
}

impl From<EndpointError> for SendError {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Link(error) => Self::Link(error),
            EndpointError::Channel(error) => Self::Channel(error),
        }
    }
}
