//! `tsumuji worker`: started by `tsumuji solve` for each worker. Not for users.
//!
//! All its input comes by messages. Errors are reported to the launcher, which names the worker to the user.

use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use tsumuji_node::{
    ClusterFile, Endpoint, Link, Options, Security, endpoint_from_env, report_error,
};
use tsumuji_solve::distributed::{WorkerError, WorkerFault, worker_main};

use crate::{DONE, NOT_REACHED, Outcome, solve};

const FAREWELL: Duration = Duration::from_secs(1);

/// Serve one `tsumuji solve` of this host.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {}

/// Runs a launched worker.
pub(crate) fn run(_: Args) -> Outcome {
    let endpoint = match endpoint_from_env(Options::default()) {
        Ok(endpoint) => endpoint,
        Err(error) => {
            report_error(&error);
            return Err(error.into());
        }
    };
    match serve(endpoint) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            // Told to the launcher only: the judge prints the error, and a second message would repeat it.
            report_error(&error);
            Ok(ExitCode::from(NOT_REACHED))
        }
    }
}

/// Runs a worker that was started by hand, as node `id` of the cluster file.
pub(crate) fn serve_host(
    file: &ClusterFile,
    path: &Path,
    id: u16,
    loss: f64,
    security: &Security,
    options: Options,
) -> Outcome {
    match serve(solve::join(
        file,
        path,
        id,
        loss,
        security,
        options,
        &mut || false,
    )?) {
        Ok(()) => Ok(DONE),
        Err(error) => {
            eprintln!("tsumuji: {error}");
            let code = if matches!(error, WorkerError::Fault(WorkerFault::Aborted { .. })) {
                NOT_REACHED
            } else {
                crate::BAD_INPUT
            };
            Ok(ExitCode::from(code))
        }
    }
}

fn serve<L: Link>(mut endpoint: Endpoint<L>) -> Result<(), WorkerError> {
    let result = worker_main(&mut endpoint);
    let _ = endpoint.close(FAREWELL);
    result
}
