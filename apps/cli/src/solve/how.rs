//! Which processes and which method a run uses: as asked for, or chosen.
//!
//! Without any option that concerns messages or laps, one process solves by whichever method is fastest (`tsumuji_solve::method`). An option that has
//! an effect only between processes asks for processes, and one that has an effect only on laps asks for relaxation.

use anyhow::ensure;
use tsumuji_solve::distributed::Krylov;
use tsumuji_solve::krylov::Preconditioning;
use tsumuji_solve::local::Precision;
use tsumuji_solve::method::Method;
use tsumuji_solve::method::between;
use tsumuji_solve::system::Source;

use super::{Args, ModeName};

/// The resolved choice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct How {
    /// Never `Auto`; `Threads` for one process with as many threads as pay.
    pub(super) mode: ModeName,
    /// `Auto`: still to be chosen.
    pub(super) method: Method,
}

impl How {
    /// Resolves the options, or says which exclude each other.
    pub(super) fn of(args: &Args) -> anyhow::Result<Self> {
        let messages = args.message();
        let laps = args.given.first_of(LAPS);
        let direct = args.method == Method::Direct;
        if let (Some(flag), true) = (messages, direct) {
            anyhow::bail!(
                "{flag}: no effect with --method direct, which solves in one process without messages; leave one of them out"
            );
        }
        if let (Some(flag), true) = (laps, args.method.is_global()) {
            anyhow::bail!(
                "{flag}: no effect with --method {}, which does no laps; leave one of them out",
                args.method
            );
        }
        if let (Some(flag), true) = (args.given.first_of("--max-laps"), direct) {
            anyhow::bail!(
                "{flag}: no effect with --method direct, which does neither laps nor iterations; leave one of them out"
            );
        }
        ensure!(
            args.preconditioner.is_none() || matches!(args.method, Method::Cg | Method::Gmres),
            "--preconditioner: only conjugate gradients and GMRES have one; use --method cg or gmres"
        );
        let relaxes = matches!(args.method, Method::Relax | Method::RelaxGcr) || laps.is_some();
        let mode = match args.mode {
            ModeName::Auto | ModeName::Processes if relaxes => ModeName::Async,
            ModeName::Auto if messages.is_some() => ModeName::Processes,
            // An explicit number asks for processes, unless the method has threads.
            ModeName::Auto if args.workers.is_some() && !args.method.is_global() => {
                ModeName::Processes
            }
            ModeName::Auto if direct => ModeName::Single,
            ModeName::Auto => ModeName::Threads,
            mode => mode,
        };
        ensure!(
            !(args.method.is_global() && matches!(mode, ModeName::Async | ModeName::Sync)),
            "--method {} does no laps: use --mode processes, threads or single, or leave --mode out",
            args.method
        );
        ensure!(
            !(direct && mode.uses_messages()),
            "--method direct solves in one process: use --mode single, or leave --mode out"
        );
        ensure!(
            !(direct && (mode == ModeName::Threads || args.workers.is_some_and(|n| n > 1))),
            "--method direct is one thread's work: leave --mode and --workers out"
        );
        let method = match (args.method, args.mode) {
            (Method::Auto, ModeName::Auto) if mode == ModeName::Threads => Method::Auto,
            (Method::Auto, _) if mode == ModeName::Processes => Method::Auto,
            (Method::Auto, _) => Method::RelaxGcr,
            (method, _) => method,
        };
        Ok(Self { mode, method })
    }

    /// Chooses the method between processes, now that the system is known.
    pub(super) fn settle(
        self,
        source: &Source,
        preconditioner: Option<Preconditioning>,
    ) -> anyhow::Result<Settled> {
        if self.mode != ModeName::Processes {
            return Ok(Settled {
                how: self,
                krylov: None,
                why: None,
            });
        }
        let (krylov, why) = match self.method {
            Method::Auto => {
                let (krylov, why) = between::choose(source);
                (Some(krylov), Some(why))
            }
            method => (between::asked(source, (method, preconditioner))?, None),
        };
        let how = match krylov {
            Some(_) => self,
            None => Self {
                mode: ModeName::Async,
                method: Method::RelaxGcr,
            },
        };
        Ok(Settled { how, krylov, why })
    }

    /// The Krylov method that was asked for by name, also in one process.
    pub(super) fn krylov(
        self,
        preconditioner: Option<Preconditioning>,
        source: &Source,
    ) -> anyhow::Result<Option<Krylov>> {
        Ok(between::asked(source, (self.method, preconditioner))?)
    }

    /// Whether the best combination of laps is taken at pauses. With a lower precision it has no residual of its own to refine.
    pub(super) fn combines(self, precision: Precision) -> bool {
        self.method == Method::RelaxGcr && precision == Precision::Double
    }

    /// Whether laps are done: by `local::single`, `local::threads` or `distributed`.
    pub(super) fn is_relaxation(self) -> bool {
        matches!(self.method, Method::Relax | Method::RelaxGcr)
    }
}

/// The choice once the system is known.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Settled {
    pub(super) how: How,
    /// The Krylov method between processes.
    pub(super) krylov: Option<Krylov>,
    /// Why, if it was chosen here.
    pub(super) why: Option<String>,
}

/// Options that concern laps only.
pub(super) const LAPS: &str = "--executor --elements --inner --omega --precision";

/// Options that have an effect between processes only.
const MESSAGES: &str = "--hosts --link --loss --executor --elements --threads --congestion --metrics --admit --weights --checkpoint --resume --lease \
                        --outlive --take-over --key --seal --open";

impl Args {
    /// The first option that has an effect between processes only.
    pub(super) fn message(&self) -> Option<&'static str> {
        self.given.first_of(MESSAGES)
    }
}
