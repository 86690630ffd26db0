//! Endpoints: one engine over one link, and how the processes of a cluster find each other.
//!
//! A program opens an [`Endpoint`], sends messages, takes arriving ones one by one or in a [`Handler`], and publishes best-effort datagrams. Two
//! endpoints over shared memory, in two threads:
//!
//! ```
//! use std::time::Duration;
//! use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
//! use tsumuji_node::{Endpoint, Channel, Membership, NodeId, Options};
//!
//! let job = ShmJob::create(2, ShmConfig::for_nodes(2))?;
//! let open = |id: u16| -> Result<_, Box<dyn std::error::Error>> {
//!     let link = Shm::attach(&job, id)?;
//!     Ok(Endpoint::new(link, Membership::local(NodeId(id), 2), Options::default())?)
//! };
//! let (mut a, mut b) = (open(0)?, open(1)?);
//! let there = std::thread::spawn(move || b.recv(Duration::from_secs(5)).map(|message| message.map(|m| m.body)));
//! a.send(NodeId(1), Channel::ordered(0), b"hello")?;
//! a.flush(Duration::from_secs(5))?;
//! assert_eq!(there.join().unwrap()?.as_deref(), Some(&b"hello"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Modules: `endpoint` is the API, a file for each kind of call (`send`, `receive`, `datagrams`, `flow` …); `drive` is the loop that joins engine and
//! link; `channel` queues arrived messages by channel, and what handlers and other threads send; `peers` is the state of each peer; `idle` chooses
//! between spinning, yielding and sleeping, with `runqueue`; `assistant` drives while the program computes; `executor` runs services, and hands a
//! program's work over to a thread; `table` maps ids to addresses; [`any_link`] is one type for all links; [`tuning`] has thresholds; [`metrics`] publishes
//! counters; [`bootstrap`] starts processes and lets them meet; `cluster` reads the cluster file. The protocol is in `tsumuji_proto`, links in
//! `tsumuji_link`.

mod absence;
pub mod any_link;
mod assistant;
pub mod bootstrap;
mod channel;
mod clock;
mod cluster;
mod cork;
mod counters;
mod door;
mod drive;
mod endpoint;
mod error;
mod executor;
mod exit;
mod handler;
mod idle;
mod intake;
pub mod link_spec;
mod lock;
mod membership;
pub mod metrics;
mod options;
mod peers;
pub mod quantity;
mod random;
mod route;
mod runqueue;
pub mod security;
#[doc(hidden)]
pub mod simulated;
mod sleep;
mod sys;
mod table;
pub mod text_file;
pub mod tuning;

pub use bytes::Bytes;

pub use absence::{Absence, AbsenceCause, Absent};
pub use any_link::AnyLink;
pub use bootstrap::{
    Binding, Hosts, LaunchError, LaunchSpec, Launcher, Printing, Progress, UserSignal, WorkerExit,
    WorkerFailure, endpoint_from_env, endpoint_in_cluster, endpoint_on, open_in_cluster,
    report_error,
};
pub use channel::{
    Arrived, ChannelOptions, ChannelState, Message, MessageSender, ReceivedDatagram, RemoteFlow,
    Retained, Waker,
};
pub use cluster::{ClusterFile, HostNode};
pub use counters::Counters;
pub use drive::NOW_OR_NEVER;
pub use endpoint::{Batch, Endpoint, JoinRequest, Post, Unposted};
pub use error::{
    ChannelError, CloseError, ClusterFileError, EndpointError, MeetError, OpenError, RecvError,
    SendError,
};
pub use executor::{
    Answers, Beside, Executor, ExecutorOptions, ExecutorState, Reason, Request, Service, Stepped,
    UnknownExecutor, Work,
};
pub use handler::{Context, Handler};
pub use idle::IdleLoop;
pub use link_spec::{InterfaceName, LinkSpec, LinkSpecError};
pub use membership::{Member, Membership};
pub use metrics::MetricsAt;
pub use options::{IdlePolicy, Options, ProgressBy};
pub use security::Security;
pub use tsumuji_link::impair::ImpairConfig;
pub use tsumuji_link::{Link, LinkAddr, SealMode};
pub use tsumuji_proto::{
    Body, Channel, Congestion, CongestionKind, Datagram, Delivery, DeliveryClass, Destination,
    Flow, FlowPolicy, NodeId, Pace, Priority, ReceiveBuffer, Room, SendId, Sender, Window,
};
pub use tuning::{Profile, ProfileError, Tuning};

/// The examples of the guide are doc tests of this crate.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/channels.md")]
struct Guide;
