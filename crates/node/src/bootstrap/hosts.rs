//! Commands that reach other hosts, and the start message for the agent there.
//!
//! Called by `launcher` and by programs that run themselves on another host.

use std::ffi::OsStr;
use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use tsumuji_proto::NodeId;

use super::binding::{Binding, CoreSlot};
use super::child::Order;
use super::frames::{FRAME_BYTES_MAX, ToAgent};
use super::launcher::{LaunchError, LaunchSpec};
use super::{ENV_CLUSTER, ENV_LINK, ENV_NODE, ENV_NODES, ENV_RENDEZVOUS};
use crate::cluster::HostNode;
use crate::link_spec::LinkSpec;

/// Nodes on several hosts: where they run, and how to reach them.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Every node, in order of ids; the launcher itself is the first if it takes part.
    pub nodes: Vec<HostNode>,
    /// Command line of the agent: a program that calls [`serve_agent`](super::serve_agent), and its arguments.
    pub agent: Vec<String>,
}

impl HostNode {
    /// Whether the node runs on this host.
    pub fn is_this_host(&self) -> bool {
        let system = rustix::system::uname();
        let mine = system.nodename().to_string_lossy();
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        if self.host == "localhost" || self.host == mine || label(&self.host) == label(&mine) {
            return true;
        }
        let ip = match self.link {
            LinkSpec::Udp(Some(addr))
            | LinkSpec::Multicast {
                own: Some(addr), ..
            } => Some(addr.ip()),
            // Of a node over raw Ethernet the file may state it all the same.
            _ => self.ip,
        };
        // An address that can be bound belongs to this host.
        ip.is_some_and(|ip| UdpSocket::bind((ip, 0)).is_ok())
    }

    /// The command line that runs `words` on that host: with `via` before it, else by `ssh`, else (on this host) unchanged.
    pub fn command_there(&self, words: &[String]) -> Vec<String> {
        let via = match &self.via {
            Some(via) => via.clone(),
            None if self.is_this_host() => Vec::new(),
            None => vec!["ssh".to_owned(), "-T".to_owned(), self.host.clone()],
        };
        // `ssh` passes its words to a shell on the other side; other commands take them unchanged.
        let is_ssh = via
            .first()
            .is_some_and(|program| Path::new(program).ends_with("ssh"));
        let words = words
            .iter()
            .map(|word| if is_ssh { quoted(word) } else { word.clone() });
        via.into_iter().chain(words).collect()
    }
}

/// Variables of this process that programs on other hosts get, too: ours, but those that say which node this is.
fn is_passed_on(name: &OsStr) -> bool {
    let own = [ENV_RENDEZVOUS, ENV_NODE, ENV_CLUSTER];
    name.as_encoded_bytes().starts_with(b"TSUMUJI_") && !own.iter().any(|own| name == *own)
}

/// The place of node `index` among the nodes of its host.
fn core_slot(hosts: &Hosts, index: u16) -> CoreSlot {
    let host = &hosts.nodes[usize::from(index)].host;
    let same = |nodes: &[HostNode]| nodes.iter().filter(|node| node.host == *host).count() as u16; // `MAX_NODES` is far below
    CoreSlot {
        index: same(&hosts.nodes[..usize::from(index)]),
        of: same(&hosts.nodes),
    }
}

/// Quotes a word for a POSIX shell.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// The command and start message for node `index` of `hosts`; `shared` is the number of its host, if it shares that.
pub(super) fn order(
    spec: &LaunchSpec,
    hosts: &Hosts,
    index: u16,
    shared: Option<u16>,
) -> Result<Order, LaunchError> {
    let host = &hosts.nodes[usize::from(index)];
    let text = |word: &OsStr| {
        let found = word.to_str().map(str::to_owned);
        found.ok_or_else(|| LaunchError::NotText {
            word: word.to_string_lossy().into_owned(),
        })
    };
    // As on this host: what the environment says, unless the launcher says something else.
    let inherited =
        std::env::vars_os().filter(|(name, _)| is_passed_on(name) && !spec.overrules(name));
    let mut env = Vec::new();
    for (name, value) in inherited.chain(spec.env.iter().cloned()) {
        env.push((text(&name)?, text(&value)?));
    }
    env.push((ENV_NODES.to_owned(), hosts.nodes.len().to_string()));
    env.push((ENV_LINK.to_owned(), host.link.to_string()));
    let command: Result<_, _> = spec.command.iter().map(|word| text(word)).collect();
    let start = ToAgent::Start {
        node: index,
        command: command?,
        env,
        directory: std::env::current_dir()
            .ok()
            .and_then(|path| path.to_str().map(str::to_owned)),
        silence_ms: u64::try_from(spec.silence.as_millis()).unwrap_or(u64::MAX),
        relay: host.relay(),
        core_slot: (spec.binding == Binding::Core).then(|| core_slot(hosts, index)),
    };
    let bytes = serde_json::to_vec(&start).map_or(usize::MAX, |message| message.len());
    if bytes >= FRAME_BYTES_MAX {
        return Err(LaunchError::TooLong {
            bytes,
            limit: FRAME_BYTES_MAX,
        });
    }
    let words = host.command_there(&hosts.agent);
    let (program, arguments) = words.split_first().ok_or(LaunchError::NoCommand)?;
    let mut command = Command::new(program);
    // Not reached by the terminal's interrupt; the launcher itself ends the workers in order.
    command.args(arguments).process_group(0);
    Ok(Order {
        node: NodeId(index),
        name: format!("{} {index} on {}", spec.name_prefix, host.host),
        host: shared,
        command,
        core: None,
        start: Some((start, spec.silence)),
        stdout: Some(spec.print_stdout()),
        stderr: Some(spec.print_stderr()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster::ClusterFile;

    fn node(fields: &str) -> HostNode {
        let text = format!("[[node]]\nid = 0\n{fields}\n");
        let file = ClusterFile::parse(&text, Path::new("lab.toml")).expect(fields);
        file.hosts()[0].clone()
    }

    /// A host is reached by the stated command; without one directly if it is this host, else by ssh with quoted words.
    #[test]
    fn commands_lead_to_hosts() {
        let words = ["/a b/tsumuji", "agent", "it's"].map(str::to_owned);
        let far = "host = \"pc-elsewhere\"\naddr = \"udp:192.0.2.7:7000\"";
        assert_eq!(
            node(far).command_there(&words),
            [
                "ssh",
                "-T",
                "pc-elsewhere",
                "'/a b/tsumuji'",
                "agent",
                r"'it'\''s'"
            ]
        );
        let stated = node(&format!(
            "{far}\nvia = [\"ip\", \"netns\", \"exec\", \"x\"]"
        ));
        assert_eq!(stated.command_there(&words)[4], "/a b/tsumuji");
        let near = node("host = \"pc-elsewhere\"\naddr = \"udp:127.0.0.1:7000\"");
        assert_eq!(near.command_there(&words), words);
        let raw = "interface = \"eth0\"\nmac = \"02:00:00:00:00:01\"\naddr = \"packet:eth0\"";
        for (ip, is_near) in [("127.0.0.1", true), ("192.0.2.7", false)] {
            let raw = node(&format!("host = \"pc-elsewhere\"\nip = \"{ip}\"\n{raw}"));
            assert_eq!(raw.is_this_host(), is_near, "{ip}");
        }
        let plain = node(&format!("{far}\nvia = []"));
        assert_eq!(plain.command_there(&words), words);
        for word in ["", "a b", "$(x)", "'", "\\", "new\nline", "plain-1.2/x"] {
            let shell = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quoted(word))])
                .output()
                .expect("sh");
            assert_eq!(String::from_utf8_lossy(&shell.stdout), word);
        }
    }
}
