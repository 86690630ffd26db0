//! A cluster in a box: hosts in network namespaces of one machine, joined by a Linux bridge in a namespace of its own.
//!
//! So several hosts, broadcast, loss and limited rates are real: frames cross real interfaces and a real switch. Called by `tsumuji testbed`,
//! benchmarks and tests.
//!
//! ```no_run
//! use tsumuji_testbed::{Spec, Testbed};
//!
//! let testbed = Testbed::up(&Spec::new(2).named("example".parse()?))?;
//! let status = testbed.hosts()[0].command("ip").args(["address", "show"]).status()?;
//! assert!(status.success());
//! // Dropped, it is removed again; `keep` leaves it standing.
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Uses the commands `ip`, `tc`, `bridge` and `ethtool`. All state is in the kernel (see `mark`), so that a testbed can be found, used and removed by
//! another process, also after a crash.
//!
//! Leaves out on purpose: delay and reordering (the kernel's means for them are often missing; the links' `impair` wrapper has
//! them), IPv6, and isolation of anything but the network: hosts share files, processes and processors.

mod commands;
mod down;
mod dropper;
mod hosts_file;
mod impair;
mod mark;
mod processes;
mod rights;
mod run;
mod spec;
mod status;
mod up;

use std::ffi::{OsStr, OsString};
use std::io::Write;
use std::net::Ipv4Addr;
use std::ops::ControlFlow;
use std::process::Command;

pub use commands::CommandError;
pub use down::{DownError, Removed};
pub use hosts_file::PORT;
pub use impair::{Fraction, ImpairError, Impairment};
pub use rights::{RightsError, check as check_rights};
pub use run::{HostExit, RunError, Stream};
pub use spec::{Mac, Name, Rate, Spec, SpecError};
pub use status::{Counters, HostStatus, Status};
pub use up::UpError;

/// One host: a network namespace with an Ethernet interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    id: u16,
    name: String,
}

impl Host {
    fn new(testbed: &Name, id: u16) -> Self {
        Self {
            id,
            name: testbed.host(id),
        }
    }

    /// Number of the host, from 0.
    pub fn id(&self) -> u16 {
        self.id
    }

    /// Its name, which is that of its namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its namespace, as `ip netns` knows it.
    pub fn netns(&self) -> &str {
        &self.name
    }

    /// Its IP address, in a /24.
    pub fn ip(&self) -> Ipv4Addr {
        spec::host_ip(self.id)
    }

    /// The address of its interface.
    pub fn mac(&self) -> Mac {
        spec::host_mac(self.id)
    }

    /// Its interface.
    pub fn interface(&self) -> &'static str {
        spec::INTERFACE
    }

    /// A command that runs a program in this host; its exit code is passed on (if there is no such program, `ip` prints that and fails).
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", self.netns()]).arg(program);
        command
    }
}

/// A testbed.
///
/// One made by [`Testbed::up`] is removed when dropped, unless kept; if the process is killed instead, by the next `up` of any testbed. One found by
/// [`Testbed::find`] stays.
#[derive(Debug)]
pub struct Testbed {
    name: Name,
    hosts: Vec<Host>,
    is_kept: bool,
}

impl Testbed {
    /// Builds a testbed.
    pub fn up(spec: &Spec) -> Result<Self, UpError> {
        Self::up_watched(spec, &mut |_| ControlFlow::Continue(()))
    }

    /// Builds a testbed; `watch` is called repeatedly with the number of finished hosts, and may stop the work.
    pub fn up_watched(
        spec: &Spec,
        watch: &mut dyn FnMut(u16) -> ControlFlow<()>,
    ) -> Result<Self, UpError> {
        let hosts = up::up(spec, watch)?;
        Ok(Self {
            name: spec.name.clone(),
            hosts,
            is_kept: false,
        })
    }

    /// The testbed of that name, if it exists (or is being built, or half removed).
    pub fn find(name: &Name) -> Result<Option<Self>, CommandError> {
        let found = mark::switch_mark(name)?;
        Ok(found.map(|switch| Self::kept(name.clone(), switch.hosts)))
    }

    fn kept(name: Name, hosts: u16) -> Self {
        Self {
            hosts: (0..hosts).map(|id| Host::new(&name, id)).collect(),
            name,
            is_kept: true,
        }
    }

    /// All testbeds of this machine, by name, each with the process that removes it at its end: `None` if it was kept, `Some((pid, false))` if that
    /// process is dead, and the next `up` removes it.
    pub fn list() -> Vec<(Self, Option<(u32, bool)>)> {
        let found = mark::all().into_iter();
        let listed = found.map(|(name, switch)| {
            let holder = switch.holder.map(|holder| (holder.pid, holder.lives()));
            (Self::kept(name, switch.hosts), holder)
        });
        listed.collect()
    }

    /// Removes the testbed of that name in any state, and ends all processes in its hosts. Does nothing if there is none.
    pub fn remove(name: &Name) -> Result<Removed, DownError> {
        rights::check()?;
        down::remove_all(name)
    }

    /// Keeps the testbed when the handle is dropped.
    pub fn keep(mut self) -> Result<Self, CommandError> {
        up::keep(
            &self.name,
            u16::try_from(self.hosts.len()).unwrap_or(u16::MAX),
        )?;
        self.is_kept = true;
        Ok(self)
    }

    /// Its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Its hosts, by id.
    pub fn hosts(&self) -> &[Host] {
        &self.hosts
    }

    /// The file by which other commands know the hosts.
    pub fn hosts_file(&self) -> std::path::PathBuf {
        hosts_file::path(&self.name)
    }

    /// Sets the impairment of frames to these hosts, replacing the former.
    pub fn impair(&self, ids: &[u16], impairment: Impairment) -> Result<(), ImpairError> {
        rights::check()?;
        let hosts = u16::try_from(self.hosts.len()).unwrap_or(u16::MAX);
        impair::impair(&self.name, hosts, ids, impairment)
    }

    /// Its present state.
    pub fn status(&self) -> Result<Status, CommandError> {
        status::status(&self.name, &self.hosts)
    }

    /// Runs a command on all hosts at once. Lines of output are passed on as they come, from several threads; when `wants_stop` returns true, all are
    /// interrupted. None of the processes runs when this returns.
    pub fn run_all(
        &self,
        command: &[OsString],
        on_line: &(dyn Fn(&Host, Stream, &[u8]) + Sync),
        wants_stop: &dyn Fn() -> bool,
    ) -> Result<Vec<HostExit>, RunError> {
        run::run_all(&self.hosts, command, on_line, wants_stop)
    }

    /// Removes the testbed; the error names what could not be removed.
    pub fn down(mut self) -> Result<Removed, DownError> {
        self.is_kept = true; // it is not tried again, whatever the result
        down::remove_all(&self.name)
    }
}

impl Drop for Testbed {
    fn drop(&mut self) {
        if !self.is_kept
            && let Err(error) = down::remove_all(&self.name)
        {
            let name = &self.name;
            let _ = writeln!(std::io::stderr(), "testbed {name} is left behind: {error}");
        }
    }
}
