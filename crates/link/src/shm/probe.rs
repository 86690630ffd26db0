//! The probe for `tsumuji doctor`: whether shared memory works for this user on this machine, and if not, why.

use super::{Shm, ShmAttachError, ShmConfig, ShmCreateError, ShmJob};
use crate::{Link, LinkAddr, Probe};

/// Makes a small job in this process and sends a frame through it and a wake-up.
pub fn probe() -> Probe {
    match try_out() {
        Ok(notes) => Probe::works(super::NAME, notes),
        Err((reason, mend)) => Probe::fails(super::NAME, reason, mend),
    }
}

fn try_out() -> Result<Vec<String>, (String, String)> {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).map_err(|error| {
        let mend = match &error {
            ShmCreateError::FileSizeLimit { .. } => "ulimit -f unlimited",
            ShmCreateError::Io(_) => {
                "allow memfd_create in this container's seccomp profile (for example: docker run --security-opt seccomp=unconfined)"
            }
            _ => "",
        };
        (error.to_string(), mend.to_owned())
    })?;
    let attach = |node| {
        Shm::attach(&job, node).map_err(|error| {
            let mend = match &error {
                ShmAttachError::Io { what, .. } if what.contains("/proc") => {
                    "mount -t proc proc /proc"
                }
                ShmAttachError::Io { what, .. } if what.contains("mmap") => "ulimit -v unlimited",
                _ => "",
            };
            (error.to_string(), mend.to_owned())
        })
    };
    let mut a = attach(0)?;
    let mut b = attach(1)?;
    b.wait(std::time::Duration::ZERO).map_err(|error| {
        let mend = "allow futex in this container's seccomp profile";
        (error.to_string(), mend.to_owned())
    })?;
    Probe::pass_frame((&mut a, &mut b), LinkAddr::Local(1), "shared memory")
        .map_err(|reason| (reason, String::new()))?;
    let mut notes = vec!["memfd, seals, locks and futex work".to_owned()];
    if a.fd().is_none() {
        notes.push("no UNIX sockets here: it cannot sit in an epoll loop".to_owned());
    }
    Ok(notes)
}
