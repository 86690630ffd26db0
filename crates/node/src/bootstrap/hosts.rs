//! Which command leads to a host, and what the agent there is told.
//!
//! Called by `launcher` and by programs that run themselves on another host.

use std::net::UdpSocket;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use tsumuji_proto::NodeId;

use super::child::Order;
use super::frames::ToAgent;
use super::launcher::{LaunchError, LaunchSpec};
use super::{ENV_LINK, ENV_NODES};
use crate::any_link::LinkSpec;
use crate::cluster::HostNode;

/// Processes of several hosts: where they run and what leads there.
#[derive(Debug, Clone)]
pub struct Hosts {
    /// Every node, in order of their ids; the launcher itself is the first where it takes part.
    pub nodes: Vec<HostNode>,
    /// What runs the agent on each host: a program that calls [`serve_agent`](super::serve_agent), and its arguments.
    pub agent: Vec<String>,
}

impl HostNode {
    /// Runs here, without any command that leads there.
    pub fn is_this_host(&self) -> bool {
        let system = rustix::system::uname();
        let mine = system.nodename().to_string_lossy();
        let label = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
        if self.host == "localhost" || self.host == mine || label(&self.host) == label(&mine) {
            return true;
        }
        // An address that can be bound is ours.
        match self.link {
            LinkSpec::Udp(Some(addr)) => UdpSocket::bind((addr.ip(), 0)).is_ok(),
            _ => false,
        }
    }

    /// The words that run the command `words` there: as `via` says, else by `ssh`, else (on this host) as they are.
    pub fn command_there(&self, words: &[String]) -> Vec<String> {
        let via = match &self.via {
            Some(via) => via.clone(),
            None if self.is_this_host() => Vec::new(),
            None => vec!["ssh".to_owned(), "-T".to_owned(), self.host.clone()],
        };
        // `ssh` hands its words to a shell on the other side; all else takes them as they are.
        let is_ssh = via
            .first()
            .is_some_and(|program| Path::new(program).ends_with("ssh"));
        let words = words
            .iter()
            .map(|word| if is_ssh { quoted(word) } else { word.clone() });
        via.into_iter().chain(words).collect()
    }
}

/// A word as a POSIX shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

/// What starts node `index` of `hosts`.
pub(super) fn order(spec: &LaunchSpec, hosts: &Hosts, index: u16) -> Result<Order, LaunchError> {
    let host = &hosts.nodes[usize::from(index)];
    let text = |word: &std::ffi::OsStr| {
        let found = word.to_str().map(str::to_owned);
        found.ok_or_else(|| LaunchError::NotText {
            word: word.to_string_lossy().into_owned(),
        })
    };
    let mut env = vec![
        (ENV_NODES.to_owned(), hosts.nodes.len().to_string()),
        (ENV_LINK.to_owned(), host.link.to_string()),
    ];
    for (name, value) in &spec.env {
        env.push((text(name)?, text(value)?));
    }
    let command: Result<_, _> = spec.command.iter().map(|word| text(word)).collect();
    let start = ToAgent::Start {
        node: index,
        command: command?,
        env,
        directory: std::env::current_dir()
            .ok()
            .and_then(|path| path.to_str().map(str::to_owned)),
        silence_ms: u64::try_from(spec.silence.as_millis()).unwrap_or(u64::MAX),
    };
    let words = host.command_there(&hosts.agent);
    let (program, arguments) = words.split_first().ok_or(LaunchError::NoCommand)?;
    let mut command = Command::new(program);
    // Out of reach of the terminal's interrupt, which the launcher passes on in good order.
    command.args(arguments).process_group(0);
    Ok(Order {
        node: NodeId(index),
        name: format!("{} {index} on {}", spec.name_prefix, host.host),
        command,
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

    /// The command that leads to a host is the stated one; none here; else ssh, whose words a shell reads back as they were.
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
