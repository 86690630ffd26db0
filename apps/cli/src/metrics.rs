//! `--metrics`: where the nodes of a run show their counters. Shared by the commands that start nodes.

use std::ffi::OsString;

use anyhow::Context;
use tsumuji_node::MetricsAt;
use tsumuji_node::bootstrap::ENV_METRICS;

/// The user's choice, by option or environment; by default `tsumuji top` of this host sees the nodes.
pub(crate) fn wanted(given: Option<MetricsAt>) -> anyhow::Result<MetricsAt> {
    match (given, std::env::var_os(ENV_METRICS)) {
        (Some(at), _) => Ok(at),
        (None, Some(text)) => {
            let text = text.to_string_lossy();
            text.parse()
                .with_context(|| format!("environment variable {ENV_METRICS}=`{text}`"))
        }
        (None, None) => Ok(MetricsAt::Local),
    }
}

/// Passes the choice to started nodes, also on other hosts.
pub(crate) fn env(at: MetricsAt) -> (OsString, OsString) {
    (ENV_METRICS.into(), at.to_string().into())
}
