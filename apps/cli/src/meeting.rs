//! Waiting for the other nodes of a cluster, so that the user sees for whom and why.

use std::time::{Duration, Instant};

use tsumuji_node::Endpoint;

use crate::interrupt::Interrupted;

/// Waits until all are met, or `stop` says so, or `within` has passed. `None`: as long as it takes, as hosts may be started by hand, one after the
/// other.
pub(crate) fn meet(
    endpoint: &mut Endpoint,
    within: Option<Duration>,
    stop: &mut dyn FnMut() -> bool,
) -> anyhow::Result<()> {
    let begun = Instant::now();
    let met: anyhow::Result<()> = endpoint.meet(within.unwrap_or(Duration::MAX), |missing| {
        if let Some(missing) = missing {
            tell!(
                "waiting for {missing}; {} s so far",
                begun.elapsed().as_secs()
            );
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
