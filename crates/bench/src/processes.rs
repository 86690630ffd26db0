//! The processes of a measurement of ours: how the parent starts and meets the others, and how each counts what comes.
//!
//! Used by all measurements between endpoints of ours.

use std::ffi::OsStr;
use std::io::Write;
use std::time::{Duration, Instant};

use serde::Serialize;
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{
    Body, Channel, Context, Delivery, Endpoint, Handler, IdlePolicy, LaunchSpec, Launcher,
    LinkSpec, NodeId, Options, Security, SendError,
};

use crate::exchange::ExchangeError;
use crate::serve::{Task, WORD};
use crate::{machine, stop};

/// Channel of the measured messages and of their answers.
pub(crate) const DATA: Channel = Channel::ordered(0);
/// Channel of reports, and of [`READY`].
pub(crate) const CONTROL: Channel = Channel::ordered(1);
/// A message of a node that is ready, or of one that lets others go on.
pub(crate) const READY: &[u8] = b"r";
/// A measurement without any progress for this long is aborted.
pub(crate) const STALLED_AFTER: Duration = Duration::from_secs(30);
/// Less than what the other side waits for, which knows less.
const MET_WITHIN: Duration = Duration::from_secs(15);
/// Polls of a spinning loop between two checks of the clock and of the other processes.
const POLLS_PER_CHECK: u32 = 1 << 16;
/// Longest wait for a message between two checks of the other processes.
pub(crate) const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Longest wait until a report is acknowledged.
const FLUSH_WAIT: Duration = Duration::from_secs(5);

/// Checks whether the other processes still run.
pub(crate) type Watch<'a> = &'a mut dyn FnMut() -> Result<(), ExchangeError>;

/// Starts `program`, which is `tsumuji`, so many times; `names`: of its nodes, and of this process.
pub(crate) fn spec(
    count: usize,
    link: LinkSpec,
    hosts: Option<&Hosts>,
    program: impl AsRef<OsStr>,
    names: [&str; 2],
) -> LaunchSpec {
    let mut spec = LaunchSpec::new(count, [program.as_ref(), WORD.as_ref()]);
    spec.hosts = hosts.cloned();
    spec.link = link;
    spec.name_prefix = names[0].to_owned();
    spec.self_name = names[1].to_owned();
    spec
}

/// Starts the other processes with their task.
pub(crate) fn start(
    mut spec: LaunchSpec,
    task: &Task,
    security: &Security,
) -> Result<Launcher, ExchangeError> {
    spec.command.push(serde_json::to_string(task)?.into());
    spec.env.extend(security.env());
    spec.with_self = true;
    Ok(Launcher::start(spec)?)
}

/// This process's endpoint, once all nodes have met. Says for whom it waits, and what is known of the cause, if that takes long.
pub(crate) fn meet(
    launcher: &mut Launcher,
    options: Options,
    security: &Security,
) -> Result<Endpoint, ExchangeError> {
    let options = Options {
        security: security.clone(),
        ..options
    };
    let mut endpoint = launcher.endpoint(options, None, None, &stop::is_wanted)?;
    endpoint.meet(MET_WITHIN, |missing| {
        if let Some(missing) = missing {
            let _ = writeln!(std::io::stderr(), "waiting for {missing}"); // whoever reads it may be gone
        }
        watch(launcher)
    })?;
    Ok(endpoint)
}

/// Returns an error if another process died or the user wants to stop.
pub(crate) fn watch(launcher: &mut Launcher) -> Result<(), ExchangeError> {
    match launcher.check() {
        _ if stop::is_wanted() => Err(stop::Wanted.into()),
        Some(failure) => Err(failure.into()),
        None => Ok(()),
    }
}

/// Binds this thread to a core, if one is named.
pub(crate) fn pin(cpu: Option<usize>) -> Result<Option<machine::Pinned>, ExchangeError> {
    machine::pinned(cpu).map_err(|source| ExchangeError::Pin {
        cpu: cpu.unwrap_or(0),
        source,
    })
}

/// How an endpoint waits.
pub(crate) fn idle(spins: bool) -> IdlePolicy {
    if spins {
        IdlePolicy::Spin
    } else {
        IdlePolicy::Adaptive
    }
}

/// Options of an endpoint that waits so.
pub(crate) fn options(spins: bool) -> Options {
    Options {
        idle: idle(spins),
        ..Options::default()
    }
}

/// Polls once; waits for a message if nobody is to spin.
#[inline]
pub(crate) fn poll(
    endpoint: &mut Endpoint,
    handler: &mut impl Handler,
    spins: bool,
) -> Result<(), ExchangeError> {
    if spins {
        endpoint.poll(handler)?;
    } else {
        endpoint.poll_wait(handler, CHECK_EVERY)?;
    }
    Ok(())
}

/// Computes for so long.
pub(crate) fn spend(time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Sends a report, and leaves.
pub(crate) fn report(
    mut endpoint: Endpoint,
    to: NodeId,
    report: &impl Serialize,
) -> Result<(), ExchangeError> {
    endpoint.send(to, CONTROL, &serde_json::to_vec(report)?)?;
    match endpoint.flush(FLUSH_WAIT) {
        // The other side has its report and has left: its last acknowledgement got lost.
        Ok(_) | Err(SendError::MessagesLost { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let _ = endpoint.close(Duration::from_secs(1));
    Ok(())
}

/// Counts arriving messages and keeps those that are needed.
///
/// Every message ends in memory of the receiving program, as with other libraries' `recv`: copied there out of its frame, or assembled there. A
/// handler that only reads the borrowed frame would save that copy, and the benchmark would compare messages of one frame that nobody reads with
/// larger ones that are copied.
#[derive(Default)]
pub(crate) struct Arrivals {
    /// Measured messages.
    pub(crate) messages: u64,
    /// Times that a node said [`READY`].
    pub(crate) ready: u64,
    pub(crate) reports: Vec<Vec<u8>>,
    copy: Vec<u8>,
    is_peer_dead: bool,
}

impl Handler for Arrivals {
    #[inline]
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let Delivery { channel, body, .. } = delivery;
        if channel == CONTROL {
            match body.bytes() {
                READY => self.ready += 1,
                report => self.reports.push(report.to_vec()),
            }
            return;
        }
        self.messages += 1;
        match body {
            Body::Frame(bytes) => {
                self.copy.clear();
                self.copy.extend_from_slice(bytes);
                std::hint::black_box(&mut self.copy);
            }
            Body::Whole(body) => drop(std::hint::black_box(body)),
            Body::Posted(_) => {} // none is posted
        }
    }

    fn peer_dead(&mut self, _: NodeId, _: usize) {
        self.is_peer_dead = true;
    }
}

impl Arrivals {
    /// Polls until `done`, checking the other processes from time to time.
    #[inline]
    pub(crate) fn poll_until(
        &mut self,
        endpoint: &mut Endpoint,
        spins: bool,
        watch: Watch<'_>,
        done: impl Fn(&Self) -> bool,
    ) -> Result<(), ExchangeError> {
        let mut polls = 0_u32;
        let mut watched: Option<(Instant, u64)> = None;
        while !done(self) {
            poll(endpoint, self, spins)?;
            polls += if spins { 1 } else { POLLS_PER_CHECK / 8 };
            if polls >= POLLS_PER_CHECK {
                polls = 0;
                watch()?;
                if self.is_peer_dead && !done(self) {
                    return Err(ExchangeError::PeerDead);
                }
                let came = self.messages + self.ready;
                match watched {
                    Some((since, seen)) if seen == came => {
                        if since.elapsed() > STALLED_AFTER {
                            return Err(ExchangeError::Stalled);
                        }
                    }
                    _ => watched = Some((Instant::now(), came)),
                }
            }
        }
        Ok(())
    }
}
