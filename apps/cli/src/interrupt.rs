//! Ctrl-C and TERM: the first asks the command to end cleanly, the second ends the program at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Becomes true when the user wants to stop.
#[derive(Debug, Clone)]
pub(crate) struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on.
    pub(crate) fn listen() -> anyhow::Result<Self> {
        let flag = Arc::new(AtomicBool::new(false));
        Self::listen_for(&flag)?;
        Ok(Self(flag))
    }

    /// Sets a given flag instead.
    pub(crate) fn listen_for(flag: &Arc<AtomicBool>) -> anyhow::Result<()> {
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // Registered first, so that it sees the flag as the previous signal left it.
            signal_hook::flag::register_conditional_default(signal, Arc::clone(flag))?;
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        Ok(())
    }

    /// Whether the user wants to stop.
    pub(crate) fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
