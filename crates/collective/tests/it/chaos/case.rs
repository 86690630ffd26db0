//! What happens in one round: drawn from dice, and passed to the processes as a line of text.

use std::fmt;
use std::str::FromStr;

use fastrand::Rng;

use super::operations::{KINDS, SIZES};

pub(crate) const NODES_MAX: u16 = 6;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkKind {
    Shm,
    Udp,
    Packet,
}

/// What becomes of the victims.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Killed without warning.
    Kill,
    /// Stopped, for good.
    Stop,
    /// Stopped, and goes on when the others have ended: it must end, too.
    Pause,
    /// Begins an operation and closes its endpoint.
    Leave,
}

const FATES: [Fate; 6] = [
    Fate::Kill,
    Fate::Kill,
    Fate::Kill,
    Fate::Stop,
    Fate::Pause,
    Fate::Leave,
];

/// How the processes meet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Where {
    None,
    /// A descriptor of a process.
    Memory(u32, i32),
    /// A process, whose own address on loopback it is, and the first one's port.
    Port(u32, u16),
    /// Interfaces and addresses.
    Ethernet(Vec<(String, String)>),
}

#[derive(Debug, Clone)]
pub(crate) struct Case {
    pub(crate) link: LinkKind,
    pub(crate) nodes: u16,
    pub(crate) victims: Vec<u16>,
    pub(crate) fate: Fate,
    /// Index in `KINDS`.
    pub(crate) kind: usize,
    /// Elements of 8 bytes.
    pub(crate) size: usize,
    /// When each victim's fate comes.
    pub(crate) delays_us: Vec<u64>,
    pub(crate) place: Where,
}

impl Case {
    pub(crate) fn any(dice: &mut Rng, link: LinkKind, place: Where) -> Self {
        let nodes = dice.u16(2..=NODES_MAX);
        let mut victims = vec![dice.u16(..nodes)];
        let fate = match FATES[dice.usize(..FATES.len())] {
            // On one host a process that is stopped lives: the kernel says so, and the others wait for it.
            Fate::Stop | Fate::Pause if link == LinkKind::Shm => Fate::Kill,
            fate => fate,
        };
        // Sometimes two, one after the other.
        let other = dice.u16(..nodes);
        if fate != Fate::Pause && nodes > 2 && dice.u64(..3) == 0 && !victims.contains(&other) {
            victims.push(other);
        }
        let delay = |dice: &mut Rng| {
            let range = 1_u64 << (6 + dice.u64(..10)); // as often within 0.1 ms as within 50
            dice.u64(..range)
        };
        Self {
            link,
            nodes,
            fate,
            kind: dice.usize(..KINDS.len()),
            size: SIZES[dice.usize(..SIZES.len())],
            delays_us: victims.iter().map(|_| delay(dice)).collect(),
            victims,
            place,
        }
    }
}

fn list<T: fmt::Display>(all: &[T]) -> String {
    let words: Vec<String> = all.iter().map(ToString::to_string).collect();
    words.join("+")
}

fn read_list<T: FromStr>(text: &str) -> Vec<T> {
    text.split('+').filter_map(|one| one.parse().ok()).collect()
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?} nodes={} victims={} {:?} kind={} size={} delays_us={} ",
            self.link,
            self.nodes,
            list(&self.victims),
            self.fate,
            KINDS[self.kind].name,
            self.size,
            list(&self.delays_us),
        )?;
        match &self.place {
            Where::None => write!(f, "none"),
            Where::Memory(pid, fd) => write!(f, "memory,{pid},{fd}"),
            Where::Port(pid, port) => write!(f, "port,{pid},{port}"),
            Where::Ethernet(hosts) => {
                write!(f, "ethernet")?;
                hosts
                    .iter()
                    .try_for_each(|(interface, mac)| write!(f, ",{interface}={mac}"))
            }
        }
    }
}

impl FromStr for Case {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let words: Vec<&str> = text.split(' ').collect();
        let [link, nodes, victims, fate, kind, size, delays, place] = words[..] else {
            return Err(format!("{} words", words.len()));
        };
        let after = |word: &str| {
            word.split_once('=')
                .map_or("", |(_, value)| value)
                .to_owned()
        };
        let link = [LinkKind::Shm, LinkKind::Udp, LinkKind::Packet]
            .into_iter()
            .find(|kind| format!("{kind:?}") == link)
            .ok_or("a link")?;
        let fate = FATES
            .into_iter()
            .find(|known| format!("{known:?}") == fate)
            .ok_or("a fate")?;
        let parts: Vec<&str> = place.split(',').collect();
        let place = match parts[0] {
            "memory" => Where::Memory(
                parts[1].parse().map_err(|_| "a pid")?,
                parts[2].parse().map_err(|_| "a descriptor")?,
            ),
            "port" => Where::Port(
                parts[1].parse().map_err(|_| "a pid")?,
                parts[2].parse().map_err(|_| "a port")?,
            ),
            "ethernet" => Where::Ethernet(
                parts[1..]
                    .iter()
                    .filter_map(|host| host.split_once('='))
                    .map(|(interface, mac)| (interface.to_owned(), mac.to_owned()))
                    .collect(),
            ),
            _ => Where::None,
        };
        Ok(Self {
            link,
            nodes: after(nodes).parse().map_err(|_| "nodes")?,
            victims: read_list(&after(victims)),
            fate,
            kind: KINDS
                .iter()
                .position(|known| known.name == after(kind))
                .ok_or("a kind")?,
            size: after(size).parse().map_err(|_| "a size")?,
            delays_us: read_list(&after(delays)),
            place,
        })
    }
}
