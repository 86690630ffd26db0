//! `--key`, `--seal` and `--open`: security options of commands that send over a network.

use std::path::PathBuf;

use tsumuji_node::{ClusterFile, LinkSpec, SealMode, Security, security};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Seal every frame with the first key of this file (`tsumuji key FILE` makes one); all nodes have the same file
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    key: Option<PathBuf>,
    /// How: encrypt, or auth (nobody can forge a frame, all can read it)
    #[arg(long, value_name = "MODE", default_value = "encrypt")]
    seal: SealMode,
    /// Trust everybody who can reach this network: frames that leave the host need no key
    #[arg(long)]
    open: bool,
}

impl Flags {
    /// The security of this run; the hosts file may name a key, too. Warns once if frames will leave the host unsealed.
    pub(crate) fn stated(&self, link: Option<&LinkSpec>, file: Option<&ClusterFile>) -> Security {
        let of_file = || file.and_then(ClusterFile::key).map(PathBuf::from);
        if self.open {
            let leaves = match (file, link) {
                (Some(file), _) => file
                    .members()
                    .iter()
                    .any(|member| security::leaves_host(member.addr)),
                (None, link) => link.is_some_and(LinkSpec::leaves_host),
            };
            if leaves {
                eprintln!(
                    "warning: frames leave this host neither authenticated nor encrypted (--open); whoever reaches the network can change the result"
                );
            }
            return Security::Open;
        }
        match self.key.clone().or_else(of_file) {
            Some(key_file) => Security::Sealed {
                // Workers may start elsewhere.
                key_file: std::path::absolute(&key_file).unwrap_or(key_file),
                mode: self.seal,
            },
            None => Security::Unstated,
        }
    }
}

/// The options that state the same to another command.
pub(crate) fn as_flags(security: &Security) -> String {
    match security {
        Security::Unstated => String::new(),
        Security::Open => " --open".to_owned(),
        Security::Sealed { key_file, mode } => {
            let mode = match mode {
                SealMode::Encrypt => String::new(),
                mode => format!(" --seal {mode}"),
            };
            format!(" --key {}{mode}", key_file.display())
        }
    }
}
