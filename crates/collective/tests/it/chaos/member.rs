//! One process of a case: works until its world fails, and says which member was named; or meets its fate.

use std::fs::OpenOptions;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::process::{Signal, getpid, kill_process};
use tsumuji_collective::{CollectiveError, Collectives, Group, Op};
use tsumuji_link::packet::{Packet, PacketConfig};
use tsumuji_link::shm::Shm;
use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Endpoint, InterfaceName, LinkAddr, Member, Membership, NodeId, Options,
};

use super::case::{Case, Fate, Where};
use super::operations::{Call, KINDS, value};

pub(crate) const CASE: &str = "TSUMUJI_TEST_CASE";
pub(crate) const NODE: &str = "TSUMUJI_TEST_NODE";

/// Only turns a hang into a failure; nothing is measured by it.
const LONG: Duration = Duration::from_secs(60);

/// More than a loaded machine keeps a process waiting.
const DEAD_AFTER: Duration = Duration::from_secs(4);

fn options() -> Options {
    Options {
        keep_alive: Duration::from_millis(150),
        dead_after: DEAD_AFTER,
        ..Options::default()
    }
}

fn open(case: &Case, me: u16) -> Result<Endpoint, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let (base, membership) = match &case.place {
        Where::None => return Err("no place to meet".to_owned()),
        Where::Memory(pid, fd) => {
            let path = format!("/proc/{pid}/fd/{fd}");
            let memory = OpenOptions::new().read(true).write(true).open(path);
            let memory = memory.map_err(|error| text(&error))?;
            let link = Shm::attach(memory.as_fd(), me).map_err(|error| text(&error))?;
            (Base::Shm(link), Membership::local(NodeId(me), case.nodes))
        }
        Where::Port(pid, first) => {
            // Loopback has 16 million addresses: nobody else uses this one.
            let [_, c, b, a] = pid.to_be_bytes();
            let ip = [127, 1 + c % 250, b, a];
            let addrs: Vec<SocketAddr> = (0..case.nodes)
                .map(|node| SocketAddr::from((ip, first + node)))
                .collect();
            let link = Udp::bind(addrs[usize::from(me)], UdpConfig::default());
            let link = link.map_err(|error| text(&error))?;
            (Base::Udp(link), Membership::inet(NodeId(me), &addrs))
        }
        Where::Ethernet(hosts) => {
            let (interface, _) = &hosts[usize::from(me)];
            let name = InterfaceName::new(interface).ok_or("an interface")?;
            let link = Packet::open(name.as_str(), PacketConfig::default());
            let member = |(id, (_, mac)): (u16, &(String, String))| {
                Ok(Member {
                    id: NodeId(id),
                    name: NodeId(id).to_string(),
                    addr: LinkAddr::Ether(mac.parse().map_err(|_| format!("address {mac}"))?),
                })
            };
            let members: Result<Vec<Member>, String> =
                (0..case.nodes).zip(hosts).map(member).collect();
            let membership = Membership::of(NodeId(me), members?);
            (
                Base::Packet(link.map_err(|error| text(&error))?),
                membership,
            )
        }
    };
    let link = AnyLink::open(base, None, None).map_err(|error| text(&error))?;
    Endpoint::new(link, membership, options()).map_err(|error| text(&error))
}

/// The fate comes by itself, whatever this process is doing.
fn meet_fate(fate: Fate, delay: Duration) {
    let signal = match fate {
        Fate::Kill => Signal::KILL,
        Fate::Stop | Fate::Pause => Signal::STOP,
        Fate::Leave => return,
    };
    std::thread::spawn(move || {
        std::thread::sleep(delay);
        let _ = kill_process(getpid(), signal); // it cannot fail, and nothing is left to do if it did
    });
}

/// A process and what it works with.
struct Session {
    endpoint: Endpoint,
    collectives: Collectives,
    case: Case,
    me: u16,
}

impl Session {
    fn run_round(&mut self, group: Group, round: usize) -> Result<(), CollectiveError> {
        let kind = &KINDS[self.case.kind];
        let (rank, size) = (self.collectives.rank(group), self.collectives.size(group));
        let (Some(rank), Some(size)) = (rank, size) else {
            return Err(CollectiveError::NoSuchGroup);
        };
        (kind.body)(Call {
            endpoint: &mut self.endpoint,
            collectives: &mut self.collectives,
            group,
            rank,
            size,
            count: self.case.size,
            round,
        })
    }

    /// Works until its fate, or until somebody else's: a process that was stopped finds itself alone.
    fn play_victim(mut self) -> Result<String, String> {
        let place = self.case.victims.iter().position(|one| *one == self.me);
        let delay = Duration::from_micros(self.case.delays_us[place.unwrap_or(0)]);
        let begun = Instant::now();
        let world = self.collectives.world();
        meet_fate(self.case.fate, delay);
        for round in 0.. {
            if self.case.fate == Fate::Leave && begun.elapsed() >= delay {
                let name = KINDS[self.case.kind].name;
                if name.starts_with("all-reduce") || name == "several" {
                    // In the middle of it; or it is refused, because another one has left before.
                    let sum = vec![value(self.me.into(), round); self.case.size];
                    let (c, e) = (&mut self.collectives, &mut self.endpoint);
                    drop(c.start_all_reduce(e, world, sum, &Op::<u64>::sum()));
                }
                let _ = self.endpoint.close(Duration::from_millis(1));
                return Ok(format!("node {} left in round {round}", self.me));
            }
            match self.run_round(world, round) {
                Ok(()) => {}
                // Another victim was first, or all are gone.
                Err(CollectiveError::MemberDead { member }) if self.case.fate == Fate::Leave => {
                    let _ = self.endpoint.close(Duration::from_millis(1));
                    return Ok(format!("node {} was told of {member}", self.me));
                }
                Err(CollectiveError::MemberDead { .. }) if self.case.victims.len() > 1 => {
                    std::thread::sleep(LONG); // until the signal
                }
                Err(CollectiveError::MemberDead { member }) => {
                    let named = format!("node {} awoke and was told of {member}", self.me);
                    let _ = self.endpoint.close(Duration::from_millis(1));
                    return Ok(named);
                }
                Err(error) => return Err(format!("round {round}: {error}")),
            }
            if begun.elapsed() > LONG {
                return Err(format!("nothing happened in {round} rounds"));
            }
        }
        Err("no more rounds".to_owned())
    }

    /// Works in the world until it fails, and in a group of survivors all the while; then in a new one.
    fn play_survivor(mut self, bystanders: Group, told: Option<NodeId>) -> Result<String, String> {
        let world = self.collectives.world();
        let begun = Instant::now();
        let mut last_ok = Instant::now();
        let mut failed = told.map(|member| (member, 0, Duration::ZERO));
        for round in 0.. {
            // All go on in it until everybody has been told.
            let told = vec![u64::from(failed.is_some()); 2000];
            let (c, e) = (&mut self.collectives, &mut self.endpoint);
            let all_told = c
                .start_all_reduce(e, bystanders, told, &Op::<u64>::minimum())
                .map_err(|error| format!("bystanders, round {round}: {error}"))?;
            if failed.is_none() {
                match self.run_round(world, round) {
                    Ok(()) => last_ok = Instant::now(),
                    Err(CollectiveError::MemberDead { member })
                        if self.case.victims.contains(&member.0) =>
                    {
                        failed = Some((member, round, last_ok.elapsed()));
                    }
                    Err(error) => return Err(format!("round {round}: {error}")),
                }
            }
            let (c, e) = (&mut self.collectives, &mut self.endpoint);
            let all_told = c
                .wait(e, all_told)
                .map_err(|error| format!("bystanders, end of round {round}: {error}"))?;
            if all_told[0] == 1 {
                break;
            }
            if begun.elapsed() > LONG {
                return Err(format!("nobody told in {round} rounds"));
            }
        }
        let after = self.collectives.barrier(&mut self.endpoint, world);
        let refused = matches!(after, Err(CollectiveError::MemberDead { .. }));
        if !refused {
            return Err(format!("the world went on: {after:?}"));
        }
        self.go_on()?;
        let Some((member, round, noticed)) = failed else {
            return Err("nothing happened".to_owned());
        };
        let said = format!(
            "node {} was told of {member} in round {round}, {} ms after the last that ended well",
            self.me,
            noticed.as_millis()
        );
        let _ = self.endpoint.close(LONG);
        Ok(said)
    }

    /// A new group of all who are left does the same work.
    fn go_on(&mut self) -> Result<(), String> {
        let survivors = survivors(&self.case);
        let group = self.collectives.group(&self.endpoint, &survivors, 2);
        let group = group.map_err(|error| error.to_string())?;
        for round in 0..3 {
            self.run_round(group, round)
                .map_err(|error| format!("survivors, round {round}: {error}"))?;
        }
        let last = self.collectives.barrier(&mut self.endpoint, group);
        last.map_err(|error| format!("survivors' barrier: {error}"))
    }
}

fn survivors(case: &Case) -> Vec<NodeId> {
    (0..case.nodes)
        .filter(|node| !case.victims.contains(node))
        .map(NodeId)
        .collect()
}

/// What this process does in the case; a line about it.
pub(crate) fn run(case: &Case) -> Result<String, String> {
    let me: u16 = std::env::var(NODE)
        .ok()
        .and_then(|node| node.parse().ok())
        .ok_or("no node")?;
    let mut endpoint = open(case, me)?;
    let mut collectives = Collectives::with_table(&mut endpoint, KINDS[case.kind].table());
    collectives.read_directly_from(0);
    let is_victim = case.victims.contains(&me);
    let bystanders = survivors(case);
    let bystanders = (!is_victim)
        .then(|| collectives.group(&endpoint, &bystanders, 1))
        .transpose()
        .map_err(|error| error.to_string())?;
    let world = collectives.world();
    // Fates begin when all have come here. A member that has not heard that of all may be told of a death instead.
    let met = match collectives.barrier(&mut endpoint, world) {
        Ok(()) => None,
        Err(CollectiveError::MemberDead { member }) if case.victims.contains(&member.0) => {
            Some(member)
        }
        Err(error) => return Err(format!("first barrier: {error}")),
    };
    let session = Session {
        endpoint,
        collectives,
        case: case.clone(),
        me,
    };
    match bystanders {
        Some(bystanders) => session.play_survivor(bystanders, met),
        None => session.play_victim(),
    }
}
