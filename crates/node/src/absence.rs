//! Members that are not met, and what is known of the causes: for people who wait for them.
//!
//! Made by `Endpoint::absence`. What the link itself cannot know is asked of the kernel: whether the member's host answers at all, and whether a
//! process listens there. Nothing here is certain, as frames may be forged or lost; so the text says what was seen, and what to check.

use std::fmt;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use tsumuji_link::LinkAddr;
use tsumuji_proto::{CongestionKind, NodeId};

use crate::counters::Counters;
use crate::route::socket_towards;

/// Nodes that are up meet in milliseconds. After a wait longer than this, the user is told which nodes are missing.
pub(crate) const QUIET: Duration = Duration::from_secs(3);
/// Time from one such notice to the next.
pub(crate) const TOLD_EVERY: Duration = Duration::from_secs(10);
/// The kernel's answer comes from the host within a round trip, and takes longer only where none comes.
const ASK_WITHIN: Duration = Duration::from_millis(100);
/// Most members that are named and asked about; the others are only counted.
const NAMED_MAX: usize = 8;

/// The nodes that are missing, and why. Its text is for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absence {
    /// Those that are missing, in order of their ids.
    pub members: Vec<Absent>,
    /// Frames that came and were not taken, from whomever: their number and what may have caused them.
    pub turned_away: Vec<(u64, &'static str)>,
}

/// A member that is not met.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent {
    /// Its id.
    pub peer: NodeId,
    /// Its name and address.
    pub name: String,
    /// What is known of the cause.
    pub cause: AbsenceCause,
}

/// Why a member is not met, as far as is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum AbsenceCause {
    /// Nothing that could be taken came from it.
    NoAnswer,
    /// Its host is on this network segment and answers nothing.
    NoHost,
    /// Its host answers that nobody has the port.
    NoProcess,
    /// It runs another congestion control.
    OtherCongestion(CongestionKind),
}

impl Absence {
    pub(crate) fn of(missing: Vec<Absent>, counters: &Counters) -> Self {
        Self {
            members: missing,
            turned_away: turned_away(counters),
        }
    }

    /// Asks the kernel about those that do not answer.
    pub(crate) fn ask(&mut self, addr_of: impl Fn(NodeId) -> Option<LinkAddr>) {
        for member in self.members.iter_mut().take(NAMED_MAX) {
            if let (AbsenceCause::NoAnswer, Some(LinkAddr::Inet(addr))) =
                (member.cause, addr_of(member.peer))
            {
                member.cause = ask(addr);
            }
        }
    }
}

/// What the kernel knows of the host and the process at an address.
fn ask(addr: SocketAddr) -> AbsenceCause {
    let neighbours = std::fs::read_to_string("/proc/net/arp").unwrap_or_default();
    if is_silent(&neighbours, addr.ip()) {
        return AbsenceCause::NoHost;
    }
    // A datagram without content, which a node of ours counts as malformed and drops.
    let answer = socket_towards(addr).and_then(|socket| {
        socket.set_read_timeout(Some(ASK_WITHIN))?;
        socket.send(&[])?;
        socket.recv(&mut [0])
    });
    match answer.map_err(|error| error.kind()) {
        Err(ErrorKind::ConnectionRefused) => AbsenceCause::NoProcess,
        Err(ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable) => AbsenceCause::NoHost,
        _ => AbsenceCause::NoAnswer,
    }
}

/// Whether the kernel has asked for the Ethernet address of a neighbour, without an answer.
fn is_silent(neighbours: &str, ip: IpAddr) -> bool {
    let ip = ip.to_string();
    neighbours.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace();
        fields.next() == Some(&ip) && fields.nth(1) == Some("0x0")
    })
}

/// Counts of frames that were dropped and that a node with other settings sends.
fn turned_away(counters: &Counters) -> Vec<(u64, &'static str)> {
    let causes = match &counters.seal {
        Some(seal) => vec![
            (
                seal.wrong_key,
                "with another key: all nodes need the same key file",
            ),
            (
                seal.other_mode,
                "sealed in the other mode: all nodes need the same --seal",
            ),
            (seal.unsealed, "without a seal: that node has no key"),
        ],
        None => vec![(
            counters.link.unchecked_frames + counters.link.damaged_frames,
            "sealed or damaged: this node has no key",
        )],
    };
    causes
        .into_iter()
        .filter(|(frames, _)| *frames > 0)
        .collect()
}

impl fmt::Display for Absence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, member) in self.members.iter().take(NAMED_MAX).enumerate() {
            let between = if index == 0 { "" } else { "; " };
            write!(f, "{between}{} ({})", member.name, member.cause)?;
        }
        if self.members.len() > NAMED_MAX {
            write!(f, "; and {} more", self.members.len() - NAMED_MAX)?;
        }
        for (frames, cause) in &self.turned_away {
            write!(f, "; {frames} frames came {cause}")?;
        }
        Ok(())
    }
}

impl fmt::Display for AbsenceCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoAnswer => f.write_str("no answer"),
            Self::NoHost => f.write_str("there is no such host, or it is off"),
            Self::NoProcess => f.write_str("its host is there, but nothing runs at that port"),
            Self::OtherCongestion(theirs) => write!(
                f,
                "it runs the congestion control `{theirs}`: start all with the same --congestion"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    /// The kernel's table says which neighbours do not answer, and nothing of others.
    #[test]
    fn silent_neighbours_are_found() {
        let table = "IP address       HW type     Flags       HW address            Mask     Device\n\
            10.0.0.2         0x1         0x2         02:74:73:00:00:02     *        eth0\n\
            10.0.0.22        0x1         0x0         00:00:00:00:00:00     *        eth0\n";
        for (ip, silent) in [
            ("10.0.0.2", false),
            ("10.0.0.22", true),
            ("10.0.0.3", false),
        ] {
            assert_eq!(is_silent(table, ip.parse().expect(ip)), silent, "{ip}");
        }
        assert!(!is_silent("", "::1".parse().expect("address")));
    }

    /// A port that nobody has is told apart from one of a process that does not speak.
    #[test]
    fn ports_without_process_are_found() {
        let is_found = || {
            let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
            let addr = socket.local_addr().expect("its address");
            assert_eq!(ask(addr), AbsenceCause::NoAnswer);
            drop(socket);
            ask(addr) == AbsenceCause::NoProcess
        };
        // Another test may get a port that has just become free, or hold its socket in a process that it is about to start.
        assert!((0..10).any(|_| is_found()));
    }

    /// The text names some members, counts the rest, and says what came instead.
    #[test]
    fn text_is_bounded() {
        let absent = |peer| Absent {
            peer: NodeId(peer),
            name: format!("pc{peer}"),
            cause: AbsenceCause::NoAnswer,
        };
        let counters = Counters {
            seal: Some(tsumuji_link::SealCounters {
                wrong_key: 3,
                ..Default::default()
            }),
            ..Counters::default()
        };
        let absence = Absence::of((1..=20).map(absent).collect(), &counters);
        let text = absence.to_string();
        assert!(
            text.starts_with("pc1 (no answer); pc2 (no answer); "),
            "{text}"
        );
        assert!(
            text.ends_with(
                "; and 12 more; 3 frames came with another key: all nodes need the same key file"
            ),
            "{text}"
        );
    }
}
