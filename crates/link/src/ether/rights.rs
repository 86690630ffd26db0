//! Capabilities of this process, and the command that gives missing ones to a program.

use rustix::thread::CapabilitySet;

/// A capability that a link over Ethernet may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Capability {
    /// Raw sockets: AF_PACKET, AF_XDP.
    NetRaw,
    /// Attaching a program to an interface.
    NetAdmin,
    /// Loading BPF programs and making their maps.
    Bpf,
    /// Locking memory beyond RLIMIT_MEMLOCK.
    IpcLock,
}

impl Capability {
    /// Its name, as in `CAP_NET_RAW`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::NetRaw => "CAP_NET_RAW",
            Self::NetAdmin => "CAP_NET_ADMIN",
            Self::Bpf => "CAP_BPF",
            Self::IpcLock => "CAP_IPC_LOCK",
        }
    }

    fn bit(self) -> CapabilitySet {
        match self {
            Self::NetRaw => CapabilitySet::NET_RAW,
            Self::NetAdmin => CapabilitySet::NET_ADMIN,
            Self::Bpf => CapabilitySet::BPF,
            Self::IpcLock => CapabilitySet::IPC_LOCK,
        }
    }
}

/// Whether the calling thread has it now.
#[must_use]
pub fn has_capability(capability: Capability) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.contains(capability.bit()))
}

/// The command `setcap cap_net_raw+ep PATH` for the running program, quoted for a shell.
#[must_use]
pub fn setcap_command(capabilities: &[Capability]) -> String {
    let names: Vec<_> = capabilities
        .iter()
        .map(|capability| capability.name().to_ascii_lowercase())
        .collect();
    let program = std::env::current_exe()
        .map_or_else(|_| "PROGRAM".to_owned(), |path| path.display().to_string());
    format!("setcap {}+ep {}", names.join(","), quoted(&program))
}

fn quoted(path: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "/._-+=:@%".contains(c);
    if path.chars().all(plain) {
        path.to_owned()
    } else {
        format!("'{}'", path.replace('\'', r"'\''"))
    }
}
