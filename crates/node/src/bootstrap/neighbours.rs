//! Nodes of one host: how they find their common shared memory without a launcher.
//!
//! Called by `worker` and `launcher` when other nodes of the cluster run on this host. Each node listens under an abstract name made of the cluster's
//! addresses and its own rank on the host, and gives the memory to whoever asks. A node that begins asks all others; if none has the memory, it makes
//! it. So the memory lives as long as one of the nodes, a restarted node gets the same as before, and nothing is left when all have ended. While no
//! other node has the memory, one that is stopped keeps those that begin from making it: it may have it.
//!
//! Invariant: a node looks for the memory, or makes it, only while it holds the name `…-join`: no two make it. A node that listens has the memory.

use std::fmt::Write;
use std::os::fd::OwnedFd;

use tsumuji_link::LinkAddr;
use tsumuji_link::shm::{ShmConfig, ShmJob};

use super::offer::{Server, ask_any, listen_within};
use crate::error::OpenError;
use crate::membership::Membership;

/// The nodes of this host, and where they meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Neighbours {
    /// First part of all names.
    name: String,
    /// This node's number among them, which is its index in the shared memory.
    pub(super) rank: u16,
    nodes: u16,
}

impl Neighbours {
    /// The nodes that share a host with this one. In `membership` they get their addresses in shared memory beside those on the network. `None`: there
    /// are none.
    pub(super) fn take_over(membership: &mut Membership) -> Option<Self> {
        let hosts = &membership.hosts;
        let me = usize::from(membership.me.0);
        let mine = (*hosts.get(me)?)?;
        let here: Vec<usize> = (0..hosts.len().min(membership.members.len()))
            .filter(|node| hosts[*node] == Some(mine))
            .collect();
        if here.len() < 2 {
            return None;
        }
        let name = name_of(membership, mine);
        let mut own_rank = 0;
        for (rank, &node) in (0..=u16::MAX).zip(&here) {
            if node == me {
                own_rank = rank;
            } else {
                let id = membership.members[node].id;
                membership.near.insert(id, LinkAddr::Local(rank));
            }
        }
        Some(Self {
            name,
            rank: own_rank,
            nodes: u16::try_from(here.len()).ok()?,
        })
    }

    fn of(&self, rank: u16) -> String {
        format!("{}-{rank}", self.name)
    }

    /// Gets the memory from another node, or makes it, and offers it to the others from now on.
    pub(super) fn meet(&self) -> Result<HostMemory, OpenError> {
        let failed = |what| move |source| OpenError::Neighbours { what, source };
        let join = listen_within(&format!("{}-join", self.name)).map_err(failed(
            "take the turn to join (is another node of this host stopped?)",
        ))?;
        let listener = listen_within(&self.of(self.rank)).map_err(failed(
            "listen as this node of this host (does it run already?)",
        ))?;
        let others = (0..self.nodes).filter(|rank| *rank != self.rank);
        let found = ask_any::<()>(others.map(|rank| self.of(rank)));
        let memory = match found.map_err(failed("ask another node of this host"))? {
            Some(((), memory)) => memory,
            None => {
                let nodes = usize::from(self.nodes);
                ShmJob::create(nodes, ShmConfig::for_nodes(nodes))?
            }
        };
        let offered = memory.try_clone().map_err(failed("duplicate"))?;
        let offer = Server::start(listener, offered, ()).map_err(failed("start a thread"))?;
        drop(join);
        Ok(HostMemory {
            memory,
            rank: self.rank,
            offer,
        })
    }
}

/// The shared memory of this host's nodes, and the thread that offers it to the others.
#[derive(Debug)]
pub(crate) struct HostMemory {
    pub(crate) memory: OwnedFd,
    pub(crate) rank: u16,
    /// Kept as long as the memory is used.
    pub(crate) offer: Server,
}

/// A name that only nodes of this cluster, host and user choose: all agree on the addresses of all.
fn name_of(membership: &Membership, host: u16) -> String {
    let mut text = format!("{host};");
    for member in &membership.members {
        let _ = write!(text, "{} {};", member.name, member.addr); // text takes everything
    }
    let hash = |seed: u64| {
        // FNV-1a: the same in every build of this program.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325 ^ seed, |hash, byte| {
                (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
            })
    };
    let user = rustix::process::geteuid().as_raw();
    format!("tsumuji-host-{user}-{:016x}{:016x}", hash(0), hash(1))
}

#[cfg(test)]
mod tests {
    use tsumuji_link::shm::Shm;
    use tsumuji_proto::NodeId;

    use super::super::rendezvous;
    use super::*;

    fn membership(me: u16, port: u16) -> Membership {
        let addrs: Vec<std::net::SocketAddr> = (0..4)
            .map(|node| ([10, 0, 0, 1 + node as u8 / 2], port + node).into())
            .collect();
        Membership {
            hosts: vec![Some(0), Some(0), Some(2), Some(2)],
            ..Membership::inet(NodeId(me), &addrs)
        }
    }

    fn neighbours(me: u16, port: u16) -> Neighbours {
        Neighbours::take_over(&mut membership(me, port)).expect("there is one")
    }

    /// Nodes of one host get addresses in its memory, in the order of their ids; the others keep theirs.
    #[test]
    fn neighbours_are_local() {
        let mut of = membership(3, 7000);
        let before = of.clone();
        let found = Neighbours::take_over(&mut of);
        assert_eq!(found.expect("there is one").rank, 1);
        assert_eq!(of.way(&of.members[2]), LinkAddr::Local(0));
        for same in [0, 1, 3] {
            assert_eq!(of.way(&of.members[same]), before.members[same].addr);
        }
        assert_eq!(of.members, before.members);
        for hosts in [
            vec![Some(0), Some(0), Some(0), Some(3)],
            vec![None; 4],
            vec![],
        ] {
            let mut of = Membership {
                hosts,
                ..before.clone()
            };
            assert_eq!(Neighbours::take_over(&mut of), None);
        }
    }

    /// The first process makes the memory; the other gets the same, also after the first has ended, and when it comes back.
    #[test]
    fn the_memory_passes_from_node_to_node() {
        let port = 20_000 + (std::process::id() % 20_000) as u16;
        let (first, second) = (neighbours(0, port), neighbours(1, port));
        let a = first.meet().expect("made");
        let b = second.meet().expect("given");
        let shm = Shm::attach(&a.memory, a.rank).expect("attach");
        assert!(Shm::attach(&b.memory, a.rank).is_err(), "it is the same");
        drop((a, shm));
        let a = first.meet().expect("given back");
        let _shm = Shm::attach(&b.memory, b.rank).expect("attach");
        assert!(Shm::attach(&a.memory, b.rank).is_err(), "still the same");
        let other = neighbours(1, port + 1).meet().expect("made");
        assert!(
            Shm::attach(&other.memory, b.rank).is_ok(),
            "of another cluster"
        );
    }

    /// A node that is stopped does not keep others from the memory that a third one gives; alone, it keeps them from making another.
    #[test]
    fn stopped_nodes_are_passed_over() {
        let port = 10_000 + (std::process::id() % 10_000) as u16;
        let [stopped, second, third] = [0, 1, 2].map(|me| {
            let mut here = Membership {
                hosts: vec![Some(0); 4],
                ..membership(me, port)
            };
            Neighbours::take_over(&mut here).expect("there are three")
        });
        let made = second.meet().expect("made");
        let _mute = rendezvous::listen(&stopped.of(0)).expect("listen");
        let given = third.meet().expect("given");
        let _shm = Shm::attach(&made.memory, 0).expect("attach");
        assert!(Shm::attach(&given.memory, 0).is_err(), "it is the same");
        drop((made, given));
        let error = third
            .meet()
            .expect_err("it may have the memory")
            .to_string();
        assert!(error.contains("has not answered"), "{error}");
    }

    /// Nodes that begin at the same moment get one memory.
    #[test]
    fn all_begin_at_once() {
        let port = 40_000 + (std::process::id() % 20_000) as u16;
        for round in 0..20 {
            let port = port + 4 * round;
            let met = std::thread::scope(|scope| {
                let meet = [0, 1].map(|me| scope.spawn(move || neighbours(me, port).meet()));
                meet.map(|thread| thread.join().expect("no panic").expect("met"))
            });
            let _shm = Shm::attach(&met[0].memory, 0).expect("attach");
            assert!(Shm::attach(&met[1].memory, 0).is_err(), "it is the same");
        }
    }
}
