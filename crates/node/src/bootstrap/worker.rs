//! A spawned process's side: reads its environment, meets the launcher, opens its endpoint.
//!
//! The connection to the launcher stays open for the life of the process, so that a fatal error can be reported over it.

use std::fmt::Display;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Signal, set_parent_process_death_signal};
use tsumuji_proto::NodeId;

use super::neighbours::Neighbours;
use super::rendezvous::{
    self, Address, FromLauncher, FromWorker, MAX_NODES, Received, TableEntry, VERSION,
};
use super::{
    ENV_ADMIT, ENV_CAPTURE, ENV_CLUSTER, ENV_CONGESTION, ENV_JOIN, ENV_KEY, ENV_LINK, ENV_LOSS,
    ENV_METRICS, ENV_NODE, ENV_NODES, ENV_OPEN, ENV_RENDEZVOUS, ENV_SEAL, ENV_SEED,
};
use super::{foreign, joining, relay};
use crate::any_link::Base;
use crate::cluster::ClusterFile;
use crate::endpoint::Endpoint;
use crate::error::{OpenError, presentable};
use crate::link_spec::LinkSpec;
use crate::membership::Membership;
use crate::metrics::MetricsAt;
use crate::options::Options;
use crate::security::Security;
use crate::sleep;
use tsumuji_link::Link;
use tsumuji_link::SealMode;
use tsumuji_link::impair::ImpairConfig;

/// Connection to the launcher and our node, once `endpoint_from_env` has opened it.
static LAUNCHER: OnceLock<(OwnedFd, u16)> = OnceLock::new();

/// Was this process started by a [`Launcher`](super::Launcher) or by `mpiexec`, `mpirun` or `srun`, or given a cluster file by its environment?
pub fn was_launched() -> bool {
    let is_ours = [ENV_RENDEZVOUS, ENV_CLUSTER, ENV_JOIN]
        .iter()
        .any(|name| std::env::var_os(name).is_some());
    is_ours || foreign::is_there()
}

/// Opens this process's endpoint as its environment says; waits until all others of the launch have reported.
///
/// Under a launcher: `TSUMUJI_RENDEZVOUS`, `TSUMUJI_NODE`, `TSUMUJI_NODES`, `TSUMUJI_LINK`. On several hosts: `TSUMUJI_CLUSTER` (path of a cluster
/// file) and `TSUMUJI_NODE`. To join a running cluster: `TSUMUJI_JOIN` (address of its node 0, which admits: `TSUMUJI_ADMIT=1`), `TSUMUJI_LINK`, and
/// `TSUMUJI_NODE` for the place of a member that died; a process that waits to be admitted says so on standard error, after three seconds and then
/// every ten. Under `mpiexec`, `mpirun` or `srun`: what these set, and `TSUMUJI_LINK` (without it shared
/// memory within a host, UDP between hosts). In all cases optionally `TSUMUJI_SEED`, `TSUMUJI_LOSS`, `TSUMUJI_CAPTURE`, `TSUMUJI_METRICS` and
/// `TSUMUJI_CONGESTION`.
/// Frames are sealed as `TSUMUJI_KEY` and `TSUMUJI_SEAL` say; a link that leaves the host needs these, or `TSUMUJI_OPEN=1`. Errors are also reported
/// to the launcher.
pub fn endpoint_from_env(options: Options) -> Result<Endpoint, OpenError> {
    let endpoint = open(options);
    if let Err(error) = &endpoint {
        report_error(error);
    }
    endpoint
}

/// Reports to the launcher why this process cannot go on, to be shown with the exit code. Does nothing without a launcher.
pub fn report_error(error: &(impl Display + ?Sized)) {
    if let Some((launcher, node)) = LAUNCHER.get() {
        let failed = FromWorker::Failed {
            node: *node,
            error: presentable(&error.to_string()),
        };
        // A launcher that is gone needs no report.
        let _ = rendezvous::send(launcher.as_fd(), &failed, None);
    }
}

/// Whether a launcher hears what [`report_error`] reports. One that has joined a cluster has none, nor has a process of `mpiexec`.
pub fn has_launcher() -> bool {
    LAUNCHER.get().is_some()
}

/// Refuses values of `TSUMUJI_LOSS` and `TSUMUJI_ADMIT` with which no process of a launch opens its endpoint, so that this can be told before one is
/// started. `has_loss`: the launch sets the first one itself.
pub fn check_env(has_loss: bool) -> Result<(), OpenError> {
    if !has_loss {
        impairment(0)?;
    }
    flag(ENV_ADMIT).map(drop)
}

fn open(options: Options) -> Result<Endpoint, OpenError> {
    let node = NodeId;
    if let Some(name) = text(ENV_RENDEZVOUS)? {
        let me = required(
            ENV_NODE,
            number::<u16>(ENV_NODE, "0 to the number of nodes − 1")?,
        )?;
        let nodes = required(ENV_NODES, number::<u16>(ENV_NODES, "1 to 1024")?)?;
        let link: LinkSpec = required(ENV_LINK, parsed(ENV_LINK)?)?;
        if me >= nodes || usize::from(nodes) > MAX_NODES {
            return Err(bad(
                ENV_NODE,
                &me.to_string(),
                format!("accepted is 0 to {}", i32::from(nodes) - 1),
            ));
        }
        let (membership, ends) = join(&name, node(me), nodes, &link)?;
        configured(ends, membership, options)
    } else if let Some((base, request)) = joining::asked()? {
        let name = format!("joined-{}", std::process::id());
        let (options, impair, capture) = settings(options, &name)?;
        let link = options.security.open(base, impair, capture.as_deref())?;
        let mut tell = |waiting: &str| {
            let _ = writeln!(std::io::stderr(), "waiting for {waiting}"); // whoever reads it may be gone
        };
        Endpoint::join_telling(link, request, options, joining::WITHIN, &mut tell)
    } else if let Some(path) = std::env::var_os(ENV_CLUSTER).map(PathBuf::from) {
        let me = required(
            ENV_NODE,
            number::<u16>(ENV_NODE, "the number of a node of the cluster file")?,
        )?;
        let file = ClusterFile::read(&path)?;
        endpoint_in_cluster(&file, &path, node(me), options)
    } else if foreign::is_there() {
        foreign::join(options, configured)
    } else {
        Err(OpenError::NotLaunched)
    }
}

/// Opens the endpoint of node `me` of a cluster file; `path` is the file's. The environment sets the rest, as for `endpoint_on`.
pub fn endpoint_in_cluster(
    file: &ClusterFile,
    path: &Path,
    me: NodeId,
    mut options: Options,
) -> Result<Endpoint, OpenError> {
    if let (Some(key), Security::Unstated) = (file.key(), &options.security) {
        let (key_file, mode) = (key.to_owned(), SealMode::Encrypt);
        options.security = Security::Sealed { key_file, mode };
    }
    let (membership, ends) = place_in(file, path, me)?;
    configured(ends, membership, options)
}

/// The same, with all settings in `options`, and with frames from other hosts impaired if `impair` says so.
pub fn open_in_cluster(
    file: &ClusterFile,
    path: &Path,
    me: NodeId,
    options: Options,
    impair: Option<ImpairConfig>,
) -> Result<Endpoint, OpenError> {
    let (membership, ends) = place_in(file, path, me)?;
    finish(ends, membership, options, impair, None)
}

fn place_in(file: &ClusterFile, path: &Path, me: NodeId) -> Result<(Membership, Ends), OpenError> {
    let mut membership = file.membership(me, path)?;
    let near = Neighbours::take_over(&mut membership);
    let base = relay::open(&file.hosts()[usize::from(me.0)])?;
    Ok((membership, (base, near)))
}

/// Opens an endpoint on a link that is open already, for a program that finds its peers by itself. The environment still sets the rest:
/// `TSUMUJI_SEED`, `TSUMUJI_LOSS`, `TSUMUJI_CAPTURE`, `TSUMUJI_METRICS`, `TSUMUJI_CONGESTION`, `TSUMUJI_KEY`, `TSUMUJI_SEAL`, `TSUMUJI_OPEN`.
pub fn endpoint_on(
    base: Base,
    membership: Membership,
    options: Options,
) -> Result<Endpoint, OpenError> {
    configured((base, None), membership, options)
}

/// The link that leaves this host, or joins all processes of it; and the nodes of this host that are reached past it.
pub(super) type Ends = (Base, Option<Neighbours>);

/// Opens an endpoint as the environment configures it.
fn configured(ends: Ends, membership: Membership, options: Options) -> Result<Endpoint, OpenError> {
    let (options, impair, capture) = settings(options, &membership.me.0.to_string())?;
    finish(ends, membership, options, impair, capture.as_deref())
}

/// Options as the environment sets them, and how it impairs and captures frames; `name` goes into the name of the capture.
fn settings(
    mut options: Options,
    name: &str,
) -> Result<(Options, Option<ImpairConfig>, Option<PathBuf>), OpenError> {
    if let Some(seed) = number(ENV_SEED, "a whole number, 0 or more")? {
        options.seed = seed;
    }
    options.metrics = match parsed(ENV_METRICS)? {
        Some(at) => at,
        None if options.metrics == MetricsAt::Unstated => MetricsAt::Local,
        None => options.metrics,
    };
    if let Some(congestion) = parsed(ENV_CONGESTION)? {
        options.congestion = congestion;
    }
    let impair = impairment(options.seed)?;
    let capture = std::env::var_os(ENV_CAPTURE).map(PathBuf::from);
    let capture = capture.map(|path| numbered(&path, name));
    if let Some(security) = security_from_env()? {
        options.security = security;
    }
    options.admits |= flag(ENV_ADMIT)?;
    Ok((options, impair, capture))
}

/// Wraps the link, meets the nodes of this host, and opens the endpoint. Losses, captures and seals are those of frames that leave the host.
pub(super) fn finish(
    (base, near): Ends,
    membership: Membership,
    options: Options,
    impair: Option<ImpairConfig>,
    capture: Option<&Path>,
) -> Result<Endpoint, OpenError> {
    let link = options.security.open(base, impair, capture)?;
    let link = match near {
        Some(near) => link.paired(near.meet()?)?,
        None => link,
    };
    Endpoint::new(link, membership, options)
}

/// Meets the launcher, and waits for the table of all nodes.
fn join(
    name: &str,
    me: NodeId,
    nodes: u16,
    link: &LinkSpec,
) -> Result<(Membership, Ends), OpenError> {
    let failed = |what| move |source| OpenError::Rendezvous { what, source };
    // If a shell stands between the launcher and this process, its end must end this process, too.
    let _ = set_parent_process_death_signal(Some(Signal::KILL)); // a kernel without it loses only that
    let connection =
        rendezvous::connect(name).map_err(failed("connect (is the launcher still there?)"))?;
    let _ = LAUNCHER.set((connection.try_clone().map_err(failed("duplicate"))?, me.0)); // a second endpoint keeps the first
    let bound = match link {
        LinkSpec::Shm => None,
        link => Some(Base::open(link)?),
    };
    let addr = bound
        .as_ref()
        .and_then(|base| Address::of(base.local_addr()));
    let hello = FromWorker::Hello {
        version: VERSION,
        node: me.0,
        pid: std::process::id(),
        addr,
    };
    rendezvous::send(connection.as_fd(), &hello, None).map_err(failed("say hello"))?;

    let (table, memory) = wait_for_table(&connection)?;
    if table.len() != usize::from(nodes) {
        let problem = format!("the launcher's table has {} nodes", table.len());
        return Err(bad(ENV_NODES, &nodes.to_string(), problem));
    }
    let base = match (bound, memory) {
        (Some(base), _) => base,
        (None, Some(memory)) => Base::attach(memory.as_fd(), me.0)?,
        (None, None) => return Err(OpenError::Abandoned),
    };
    let (membership, near) = rendezvous::membership(me, table);
    Ok((membership, (base, near)))
}

/// Waits for the table. The launcher bounds the wait: it reports a late worker and ends all, which closes the connection.
fn wait_for_table(connection: &OwnedFd) -> Result<(Vec<TableEntry>, Option<OwnedFd>), OpenError> {
    let failed = |what| move |source| OpenError::Rendezvous { what, source };
    loop {
        let mut fds = [PollFd::new(connection, PollFlags::IN)];
        sleep::poll(&mut fds, None).map_err(failed("wait for the table"))?;
        match rendezvous::receive(connection.as_fd()).map_err(failed("read the table"))? {
            Received::Message(FromLauncher::Table { members }, memory) => {
                return Ok((members, memory));
            }
            Received::Message(FromLauncher::Refused { reason }, _) => {
                return Err(OpenError::Refused(presentable(&reason)));
            }
            Received::Nothing => {}
            Received::Garbage => {
                let what = std::io::Error::other(
                    "the launcher speaks another language; are both of one version?",
                );
                return Err(failed("read the table")(what));
            }
            Received::Closed => return Err(OpenError::Abandoned),
        }
    }
}

/// Security of the link as the environment sets it, if it does.
pub fn security_from_env() -> Result<Option<Security>, OpenError> {
    if let Some(key_file) = std::env::var_os(ENV_KEY) {
        let mode = parsed(ENV_SEAL)?.unwrap_or(SealMode::Encrypt);
        let key_file = key_file.into();
        return Ok(Some(Security::Sealed { key_file, mode }));
    }
    Ok(flag(ENV_OPEN)?.then_some(Security::Open))
}

fn flag(name: &'static str) -> Result<bool, OpenError> {
    match text(name)?.as_deref() {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(bad(name, other, "accepted are 0 and 1".to_owned())),
    }
}

fn impairment(seed: u64) -> Result<Option<ImpairConfig>, OpenError> {
    let Some(text) = text(ENV_LOSS)? else {
        return Ok(None);
    };
    let loss = crate::quantity::loss(&text).map_err(|accepted| bad(ENV_LOSS, &text, accepted))?;
    Ok((loss > 0.0).then(|| ImpairConfig {
        loss,
        seed,
        ..ImpairConfig::default()
    }))
}

/// `trace.pcapng` for node 2: `trace.2.pcapng`.
fn numbered(path: &Path, name: &str) -> PathBuf {
    let extension = path
        .extension()
        .map_or_else(|| "pcapng".into(), std::ffi::OsStr::to_os_string);
    let mut name = std::ffi::OsString::from(name);
    name.push(".");
    name.push(extension);
    path.with_extension(name)
}

pub(super) fn text(name: &'static str) -> Result<Option<String>, OpenError> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value)),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(value)) => Err(bad(
            name,
            &value.to_string_lossy(),
            "not readable as text".to_owned(),
        )),
    }
}

/// What a variable says, if it is set; a value's own error says what is accepted.
pub(super) fn parsed<T: FromStr<Err: Display>>(name: &'static str) -> Result<Option<T>, OpenError> {
    let Some(value) = text(name)? else {
        return Ok(None);
    };
    let parsed = value.parse::<T>();
    (parsed.map(Some)).map_err(|problem| bad(name, &value, problem.to_string()))
}

pub(super) fn number<N: FromStr>(
    name: &'static str,
    accepted: &str,
) -> Result<Option<N>, OpenError> {
    let Some(value) = text(name)? else {
        return Ok(None);
    };
    value
        .parse()
        .map(Some)
        .map_err(|_| bad(name, &value, format!("accepted is {accepted}")))
}

/// The first of these variables that is a number; others' launchers set them.
pub(super) fn first_number<N: FromStr>(names: &[&str]) -> Option<N> {
    names
        .iter()
        .find_map(|name| std::env::var(name).ok()?.parse().ok())
}

fn required<T>(name: &'static str, value: Option<T>) -> Result<T, OpenError> {
    value.ok_or_else(|| bad(name, "", "it must be set".to_owned()))
}

pub(super) fn bad(name: &'static str, value: &str, problem: String) -> OpenError {
    OpenError::Environment {
        name,
        value: value.to_owned(),
        problem,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Captures of several nodes do not overwrite each other.
    #[test]
    fn capture_files_are_numbered() {
        assert_eq!(
            numbered(Path::new("/tmp/a.b/trace.pcapng"), "2"),
            Path::new("/tmp/a.b/trace.2.pcapng")
        );
        assert_eq!(
            numbered(Path::new("trace"), "0"),
            Path::new("trace.0.pcapng")
        );
    }
}
