//! Counters of an endpoint for other programs: Prometheus text over HTTP, also for `tsumuji top`.
//!
//! `drive` publishes a `Snapshot` at most every `PUBLISH_EVERY`, and only if no reader holds it at that moment; a separate thread (`serve`) serves it
//! as text (`text`, for each peer `flows`). `local` finds and asks the nodes of this host, `parse` parses the text.
//!
//! Invariant: the polling thread never waits for a reader and never allocates here. Left out on purpose: rates and histories (readers compute them
//! from two samples), and single frames (see captures).

/// Metrics, one a line: kind, name, value, help.
macro_rules! table {
    ($($kind:ident $name:ident = $value:expr, $help:literal;)+) => {
        [$((stringify!($name), stringify!($kind), $help, $value)),+]
    };
}

mod flows;
mod local;
mod parse;
mod serve;
mod text;

pub use local::{LocalNode, local_nodes};
pub use parse::{Sample, parse};

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};

use tsumuji_link::Link;
use tsumuji_proto::{Duration, Engine, Flow, Instant, NodeId, Window};

use crate::counters::Counters;
use crate::error::OpenError;
use crate::executor::Shared;
use crate::membership::{Member, Membership};
use serve::Server;

/// Greatest age of a snapshot while the node polls. No reader asks more often, and publishing costs nothing notable.
pub(crate) const PUBLISH_EVERY: Duration = Duration::from_millis(100);

/// A time that never comes: without a publisher.
pub(crate) const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// Where an endpoint publishes its counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MetricsAt {
    /// Nowhere; but [`endpoint_from_env`](crate::endpoint_from_env) takes `Local`.
    #[default]
    Unstated,
    /// Nowhere.
    Off,
    /// To `tsumuji top` of the same user, on the same host.
    Local,
    /// As `Local`, and at this TCP address: node *i* listens on the port + *i*. Port 0: the kernel chooses.
    Tcp(SocketAddr),
}

impl std::fmt::Display for MetricsAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unstated | Self::Off => f.write_str("off"),
            Self::Local => f.write_str("local"),
            Self::Tcp(addr) => addr.fmt(f),
        }
    }
}

/// Error for a text that is no such place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "accepted is ADDRESS:PORT (for example 127.0.0.1:9464; node i listens on PORT + i), `local` or `off`"
)]
pub struct MetricsAtError;

impl std::str::FromStr for MetricsAt {
    type Err = MetricsAtError;

    fn from_str(text: &str) -> Result<Self, MetricsAtError> {
        match text {
            "off" => Ok(Self::Off),
            "local" => Ok(Self::Local),
            _ => text.parse().map(Self::Tcp).map_err(|_| MetricsAtError),
        }
    }
}

/// Name, kind, help, and value.
type Metric<V> = (&'static str, &'static str, &'static str, V);

/// How a metric is taken from what it is of.
type ValueOf<T> = fn(&T) -> f64;

/// State of one peer, as the node sees it.
#[derive(Debug, Clone)]
pub(crate) struct PeerSnapshot {
    id: NodeId,
    name: String,
    up: bool,
    flow: Option<Flow>,
}

/// The published state of a node.
#[derive(Debug, Clone)]
pub(crate) struct Snapshot {
    node: NodeId,
    name: String,
    link: &'static str,
    pid: u32,
    born: std::time::Instant,
    published: std::time::Instant,
    counters: Counters,
    window: Window,
    peers: Vec<PeerSnapshot>,
    /// Executors by channel.
    executors: Vec<(u16, Arc<Shared>)>,
}

/// The polling thread's side.
#[derive(Debug)]
pub(crate) struct Publisher {
    shared: Arc<Mutex<Snapshot>>,
    server: Server,
}

impl Publisher {
    /// Starts the server; `None`: nothing is to be published.
    pub(crate) fn start(
        at: MetricsAt,
        membership: &Membership,
        link: &'static str,
    ) -> Result<Option<Self>, OpenError> {
        let tcp = match at {
            MetricsAt::Unstated | MetricsAt::Off => return Ok(None),
            MetricsAt::Local => None,
            MetricsAt::Tcp(addr) => Some(of_node(addr, membership.me)?),
        };
        let own = membership.members.get(usize::from(membership.me.0));
        let now = std::time::Instant::now();
        let shared = Arc::new(Mutex::new(Snapshot {
            node: membership.me,
            name: own.map(|member| member.name.clone()).unwrap_or_default(),
            link,
            pid: std::process::id(),
            born: now,
            published: now,
            counters: Counters::default(),
            window: Window::default(),
            peers: Vec::new(),
            executors: Vec::new(),
        }));
        let server = Server::start(Arc::clone(&shared), tcp, membership.me)?;
        Ok(Some(Self { shared, server }))
    }

    /// Shows a peer from now on, or its new name.
    pub(crate) fn show(&self, member: &Member) {
        let mut snapshot = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let peers = &mut snapshot.peers;
        peers.retain(|peer| peer.id != member.id);
        let at = peers.partition_point(|peer| peer.id < member.id);
        peers.insert(
            at,
            PeerSnapshot {
                id: member.id,
                name: member.name.clone(),
                up: false,
                flow: None,
            },
        );
    }

    /// Shows the executor of a channel from now on, or no more.
    pub(crate) fn show_executor(&self, channel_id: u16, executor: Option<Arc<Shared>>) {
        let mut snapshot = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        let executors = &mut snapshot.executors;
        executors.retain(|(known, _)| *known != channel_id);
        let at = executors.partition_point(|(known, _)| *known < channel_id);
        if let Some(executor) = executor {
            executors.insert(at, (channel_id, executor));
        }
    }

    /// Address of the TCP listener, if there is one.
    pub(crate) fn addr(&self) -> Option<SocketAddr> {
        self.server.addr()
    }

    /// Copies the present state, unless a reader holds the last one: then it waits for the next time.
    #[cold]
    pub(crate) fn publish(
        &self,
        engine: &Engine,
        link: &impl Link,
        spoofed_source_frames: u64,
        dropped_datagrams: u64,
    ) {
        let Ok(mut snapshot) = self.shared.try_lock() else {
            return;
        };
        snapshot.published = std::time::Instant::now();
        snapshot.counters = Counters {
            engine: *engine.counters(),
            link: link.counters(),
            seal: link.sealing(),
            spoofed_source_frames,
            dropped_datagrams,
        };
        snapshot.window = engine.window();
        for peer in &mut snapshot.peers {
            peer.up = engine.is_up(peer.id);
            peer.flow = engine.flow(peer.id);
        }
    }
}

/// Ports are counted up by node, so that all nodes of a host can be given the same address.
fn of_node(addr: SocketAddr, node: NodeId) -> Result<SocketAddr, OpenError> {
    if addr.port() == 0 {
        return Ok(addr);
    }
    let port = addr.port().checked_add(node.0);
    let port = port.ok_or_else(|| OpenError::Metrics {
        addr,
        source: std::io::Error::other(format!(
            "{node} would listen on port {} + {}, and the highest is 65535",
            addr.port(),
            node.0
        )),
    })?;
    Ok(SocketAddr::new(addr.ip(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Printed places are read back; other texts are refused with what is accepted.
    #[test]
    fn places_have_names() {
        for text in ["off", "local", "127.0.0.1:9464", "[::1]:0"] {
            let at: MetricsAt = text.parse().expect(text);
            assert_eq!(at.to_string(), text);
        }
        for text in ["", "9464", "localhost", "on", "1.2.3.4:70000"] {
            let error = text.parse::<MetricsAt>().expect_err(text);
            assert!(error.to_string().contains("ADDRESS:PORT"));
        }
    }

    /// Each node has a port of its own, up to the highest port.
    #[test]
    fn ports_are_counted_by_node() {
        let addr: SocketAddr = "127.0.0.1:65530".parse().expect("address");
        assert_eq!(of_node(addr, NodeId(5)).expect("65535").port(), 65535);
        let error = of_node(addr, NodeId(6)).expect_err("too high").to_string();
        assert!(error.contains("65530 + 6"), "{error}");
        let any = SocketAddr::new(addr.ip(), 0);
        assert_eq!(of_node(any, NodeId(6)).expect("the kernel's"), any);
    }
}
