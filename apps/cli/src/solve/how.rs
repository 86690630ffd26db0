//! Which processes and which method a run uses: as asked for, or chosen.
//!
//! Without any option that concerns messages or laps, one process solves by whichever method is fastest (`tsumuji_solve::method`). An option that has
//! an effect only between processes asks for processes, and one that has an effect only on laps asks for relaxation.

use anyhow::ensure;
use tsumuji_board::Elements;
use tsumuji_solve::local::Inner;
use tsumuji_solve::method::Method;

use super::{Args, ModeName};

/// The resolved choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct How {
    /// Never `Auto`; `Threads` for one process with as many threads as pay.
    pub(super) mode: ModeName,
    /// Never `Auto` where laps are done.
    pub(super) method: Method,
}

impl How {
    /// Resolves the options, or says which exclude each other.
    pub(super) fn of(args: &Args) -> anyhow::Result<Self> {
        let messages = args.messages().find(|(_, is_given)| *is_given);
        let laps = laps(args).find(|(_, is_given)| *is_given);
        let direct = matches!(args.method, Method::Direct);
        if let (Some((flag, _)), true) = (messages, args.method.is_global()) {
            anyhow::bail!(
                "{flag}: no effect with --method {}, which solves in one process without messages; leave one of them out",
                args.method
            );
        }
        if let (Some((flag, _)), true) = (laps, args.method.is_global()) {
            anyhow::bail!(
                "{flag}: no effect with --method {}, which does no laps; leave one of them out",
                args.method
            );
        }
        let is_relaxation = matches!(args.method, Method::Relax | Method::RelaxGcr);
        let mode = match args.mode {
            ModeName::Auto if messages.is_some() || laps.is_some() || is_relaxation => {
                ModeName::Async
            }
            // An explicit number asks for workers, as ever, unless the method has threads.
            ModeName::Auto if args.workers.is_some() && !args.method.is_global() => ModeName::Async,
            ModeName::Auto if direct => ModeName::Single,
            ModeName::Auto => ModeName::Threads,
            mode => mode,
        };
        ensure!(
            !(args.method.is_global() && mode.uses_messages()),
            "--method {} solves in one process: use --mode single or threads, or leave --mode out",
            args.method
        );
        ensure!(
            !(direct && (mode == ModeName::Threads || args.workers.is_some_and(|n| n > 1))),
            "--method direct is one thread's work: leave --mode and --workers out"
        );
        let method = match (args.method, args.mode) {
            (Method::Auto, ModeName::Auto) if mode == ModeName::Threads => Method::Auto,
            (Method::Auto, _) if mode.uses_messages() => Method::RelaxGcr,
            (Method::Auto, _) => Method::Relax,
            (method, _) => method,
        };
        ensure!(
            mode.uses_messages() || method != Method::RelaxGcr,
            "--method relax+gcr combines laps of processes: use --mode async or sync"
        );
        Ok(Self { mode, method })
    }

    /// Whether laps are done: by `local::single`, `local::threads` or `distributed`.
    pub(super) fn is_relaxation(self) -> bool {
        matches!(self.method, Method::Relax | Method::RelaxGcr)
    }
}

/// Options that concern laps only.
fn laps(args: &Args) -> impl Iterator<Item = (&'static str, bool)> {
    [
        ("--inner", args.inner != Inner::Auto),
        ("--omega", args.omega != 1.0),
    ]
    .into_iter()
}

impl Args {
    /// Options that have an effect between processes only.
    pub(super) fn messages(&self) -> impl Iterator<Item = (&'static str, bool)> {
        [
            ("--hosts", self.hosts.is_some()),
            ("--link", self.link.is_some()),
            ("--loss", self.loss.is_some()),
            ("--executor", self.executor.is_some()),
            ("--elements", self.elements != Elements::Auto),
            ("--congestion", self.congestion.is_some()),
            ("--metrics", self.metrics.is_some()),
            ("--admit", self.admit),
            ("--weights", self.weights.is_some()),
            ("--checkpoint", self.checkpoint.is_some()),
            ("--resume", self.resume.is_some()),
            ("--key, --seal and --open", self.security.is_given()),
        ]
        .into_iter()
    }
}
