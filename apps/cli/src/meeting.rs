//! Waiting for the other nodes of a cluster, so that the user sees for whom and why.

use std::time::{Duration, Instant};

use anyhow::bail;
use tsumuji_node::{AbsenceCause, Endpoint, Link, SendError};

/// Nodes that are up meet in milliseconds; whoever waits longer than this is told.
const QUIET: Duration = Duration::from_secs(3);
/// Time from one line to the next.
const EVERY: Duration = Duration::from_secs(10);
/// How often `stop` is asked.
const SLICE: Duration = Duration::from_millis(100);
/// Hosts of a cluster are started by hand, one after the other.
const WITHIN: Duration = Duration::from_secs(120);

/// Waits until all are met, or `stop` says so. Nodes that left, and those that were never there, are waited for, too: they may be started yet.
pub(crate) fn meet<L: Link>(
    endpoint: &mut Endpoint<L>,
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut tell_at = begun + QUIET;
    while !stop() {
        match endpoint.wait_up(SLICE) {
            Err(SendError::PeerDead { peer }) => endpoint.reconnect(peer)?,
            Ok(missing) if missing.is_empty() => return Ok(()),
            Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let now = Instant::now();
        let Some(absence) = (now >= tell_at).then(|| endpoint.absence()).flatten() else {
            continue;
        };
        tell_at = now + EVERY;
        let differs = |cause| matches!(cause, AbsenceCause::OtherCongestion(_));
        if let Some(other) = absence.members.iter().find(|member| differs(member.cause)) {
            bail!("{}: {}", other.name, other.cause);
        }
        if begun.elapsed() >= WITHIN {
            bail!(
                "not all nodes have joined within {} s: {absence}; are they started there, with the same cluster file?",
                WITHIN.as_secs()
            );
        }
        eprintln!("waiting for {absence}");
    }
    Ok(())
}
