//! Waiting for the other nodes of a cluster, so that the user sees for whom and why.

use std::time::Duration;

use tsumuji_node::{Endpoint, Link};

use crate::interrupt::Interrupted;

/// Hosts of a cluster are started by hand, one after the other.
const WITHIN: Duration = Duration::from_secs(120);

/// Waits until all are met, or `stop` says so.
pub(crate) fn meet<L: Link>(
    endpoint: &mut Endpoint<L>,
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<()> {
    let met: anyhow::Result<()> = endpoint.meet(WITHIN, |missing| {
        if let Some(missing) = missing {
            eprintln!("waiting for {missing}");
        }
        if stop() {
            return Err(Interrupted.into());
        }
        Ok(())
    });
    match met {
        Err(error) if error.is::<Interrupted>() => Ok(()), // the caller looks itself
        met => met,
    }
}
