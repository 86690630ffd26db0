//! `--key`, `--seal` and `--open`: security options of commands that send over a network.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::bail;
use tsumuji_node::{ClusterFile, LinkSpec, SealMode, Security, bootstrap, link_spec};

#[derive(Debug, Clone, clap::Args)]
pub(crate) struct Flags {
    /// Seal every frame with the first key of this file (`tsumuji key FILE` makes one); all nodes have the same file
    #[arg(long, value_name = "FILE", conflicts_with = "open")]
    key: Option<PathBuf>,
    /// How: encrypt (default), or auth (nobody can forge a frame, all can read it)
    #[arg(long, value_name = "MODE")]
    seal: Option<SealMode>,
    /// Trust everybody who can reach this network: frames that leave the host need no key
    #[arg(long)]
    open: bool,
}

impl Flags {
    /// Whether one of them is given.
    pub(crate) fn is_given(&self) -> bool {
        self.key.is_some() || self.seal.is_some() || self.open
    }

    /// The security of this run; hosts file and environment may name a key, too, which is then read to be sure of it. Warns once if frames will leave
    /// the host unsealed.
    pub(crate) fn stated(
        &self,
        link: Option<&LinkSpec>,
        file: Option<&ClusterFile>,
    ) -> anyhow::Result<Security> {
        let of_file = || file.and_then(ClusterFile::key).map(PathBuf::from);
        let sealed = |key_file: PathBuf, mode| Security::Sealed {
            // Workers may start elsewhere.
            key_file: std::path::absolute(&key_file).unwrap_or(key_file),
            mode,
        };
        let mode = self.seal.unwrap_or(SealMode::Encrypt);
        let security = match self.key.clone().or_else(of_file) {
            _ if self.open => Security::Open,
            Some(key_file) => sealed(key_file, mode),
            None => match bootstrap::security_from_env()? {
                Some(Security::Sealed { key_file, mode }) => {
                    sealed(key_file, self.seal.unwrap_or(mode))
                }
                stated => stated.unwrap_or_default(),
            },
        };
        match (&security, self.seal) {
            (Security::Sealed { key_file, .. }, _) => check(key_file)?,
            (_, Some(mode)) => bail!(
                "--seal {mode} has no effect without a key: give --key FILE (`tsumuji key FILE` makes one)"
            ),
            (Security::Open, None) if leaves_host(link, file) => tell!(
                "warning: frames leave this host neither authenticated nor encrypted (--open); whoever reaches the network can change the result"
            ),
            _ => {}
        }
        Ok(security)
    }
}

/// The options that state the same to another command.
pub(crate) fn as_words(security: &Security) -> Vec<OsString> {
    match security {
        Security::Unstated => Vec::new(),
        Security::Open => vec!["--open".into()],
        Security::Sealed { key_file, mode } => {
            let mut words = vec!["--key".into(), key_file.clone().into_os_string()];
            if *mode != SealMode::Encrypt {
                words.extend(["--seal".into(), mode.to_string().into()]);
            }
            words
        }
    }
}

/// The same as text, to be shown.
pub(crate) fn as_flags(security: &Security) -> String {
    let words = as_words(security);
    let shown = words.iter().map(|word| format!(" {}", word.display()));
    shown.collect()
}

fn leaves_host(link: Option<&LinkSpec>, file: Option<&ClusterFile>) -> bool {
    match file {
        Some(file) => {
            let mut members = file.members().iter();
            members.any(|member| link_spec::leaves_host(member.addr))
        }
        None => link.is_some_and(LinkSpec::leaves_host),
    }
}

/// Reads the key file, so that a mistake is found before anything starts.
#[cfg(feature = "seal")]
fn check(key_file: &Path) -> anyhow::Result<()> {
    tsumuji_seal::Keys::read(key_file)?;
    Ok(())
}

#[cfg(not(feature = "seal"))]
fn check(_: &Path) -> anyhow::Result<()> {
    bail!("--key: this program was built without sealing; build it with the feature `seal`")
}
