//! Signals: Ctrl-C and TERM, of which the first asks the command to end cleanly and the second ends the program at once, and those that a launch
//! passes on.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGUSR2};
use tsumuji_node::UserSignal;

/// Exit code of a command that was interrupted: that of a shell for SIGINT.
pub(crate) const INTERRUPTED: u8 = 130;

/// The error of a command that was interrupted.
#[derive(Debug, thiserror::Error)]
#[error("interrupted; nothing was left behind")]
pub(crate) struct Interrupted;

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

/// Signals for the programs of a launch.
#[derive(Debug)]
pub(crate) struct UserSignals([(UserSignal, Arc<AtomicBool>); 2]);

impl UserSignals {
    /// Takes them from now on; without this they would end the program.
    pub(crate) fn take() -> anyhow::Result<Self> {
        let taken = |signal, name| -> anyhow::Result<_> {
            let flag = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
            Ok((name, flag))
        };
        Ok(Self([
            taken(SIGUSR1, UserSignal::Usr1)?,
            taken(SIGUSR2, UserSignal::Usr2)?,
        ]))
    }

    /// Those that have come since the last call.
    pub(crate) fn come(&self) -> impl Iterator<Item = UserSignal> {
        let come = self.0.iter();
        come.filter(|(_, flag)| flag.swap(false, Ordering::Relaxed))
            .map(|(signal, _)| *signal)
    }
}
