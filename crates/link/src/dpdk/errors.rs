//! Why a DPDK link may not open, each reason with what to do about it.

use std::io;
use std::time::Duration;

use super::DpdkSpecError;
use super::sys::Absent;
use crate::ether::{ClaimError, InterfaceError};

/// Why the link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DpdkOpenError {
    /// Without the feature.
    #[error(
        "this program was built without DPDK; `apt-get install libdpdk-dev`, then build it with `make build`"
    )]
    NotBuiltIn,
    /// Built in, but DPDK itself is not here.
    #[error("DPDK cannot be loaded ({reason}); `apt-get install libdpdk-dev` installs it")]
    NotInstalled {
        /// What the loader said.
        reason: String,
    },
    /// Its environment layer refused to start.
    #[error("DPDK did not start ({source}): {log}")]
    Start {
        /// Its answer.
        source: io::Error,
        /// What it said.
        log: String,
    },
    /// It can be started only once.
    #[error(
        "DPDK was started for virtual devices in this process; open the network card first, or in a process of its own"
    )]
    StartedWithoutPci,
    /// A network card without hugepages.
    #[error(
        "a network card needs {needed} free hugepages of {page_kib} KiB, {free} are there; `{command}` reserves them"
    )]
    Hugepages {
        /// Pages.
        needed: u64,
        /// Of that size.
        page_kib: u64,
        /// Free now.
        free: u64,
        /// What mends it.
        command: String,
    },
    /// No such card.
    #[error(
        "there is no network card at {address}; there are {there} (`dpdk-devbind.py --status`)"
    )]
    NoCard {
        /// Asked for.
        address: String,
        /// Those that exist.
        there: String,
    },
    /// The kernel's driver has the card.
    #[error(
        "the card {address} belongs to the driver `{driver}`; \
         `modprobe vfio-pci && dpdk-devbind.py --bind=vfio-pci {address}` gives it to DPDK and takes its interface from the kernel"
    )]
    NotBound {
        /// The card.
        address: String,
        /// Its driver now, or `none`.
        driver: String,
    },
    /// No such driver.
    #[error("there is no DPDK driver `{driver}`; installed are {there}")]
    NoDriver {
        /// Asked for.
        driver: String,
        /// Those that are there.
        there: String,
    },
    /// A parameter that the driver cannot do without.
    #[error("{spec} lacks `{parameter}=`; for example `{example}`")]
    Lacks {
        /// Asked for.
        spec: String,
        /// The parameter.
        parameter: &'static str,
        /// A whole name.
        example: &'static str,
    },
    /// The interface is not there, not up, or no Ethernet.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Another process of ours has the interface.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The driver refused the device.
    #[error("{spec}: {what} failed ({source}){needs}: {log}")]
    Device {
        /// Asked for.
        spec: String,
        /// Which step.
        what: &'static str,
        /// DPDK's answer.
        source: io::Error,
        /// `; it needs …`, or nothing.
        needs: String,
        /// What DPDK said.
        log: String,
    },
    /// Not enough memory for the mbufs.
    #[error(
        "{spec}: no memory for {bytes} bytes of frames; ask for a smaller ring, or free hugepages, or give the first link of this \
         process more than {memory_bytes} bytes of memory"
    )]
    Memory {
        /// Asked for.
        spec: String,
        /// Of the pool.
        bytes: u64,
        /// What the EAL was started with.
        memory_bytes: u64,
    },
    /// A frame size that the device does not have.
    #[error("frames of {frame_bytes} bytes do not fit {spec}; take {least} to {limit}{hint}")]
    FrameBytes {
        /// Asked for.
        frame_bytes: usize,
        /// Where.
        spec: String,
        /// The least.
        least: usize,
        /// The most.
        limit: usize,
        /// What allows more.
        hint: &'static str,
    },
    /// The text names no device.
    #[error(transparent)]
    Spec(#[from] DpdkSpecError),
    /// No timer for those who wait.
    #[error("cannot make a timer ({0}); raise the limit of open files (`ulimit -n`)")]
    Timer(io::Error),
    /// Nobody at the other end.
    #[error("{spec} has no link after {waited:?}; {hint}")]
    NoLink {
        /// Asked for.
        spec: String,
        /// How long was waited.
        waited: Duration,
        /// What is probably missing.
        hint: &'static str,
    },
}

impl From<Absent> for DpdkOpenError {
    fn from(absent: Absent) -> Self {
        match absent {
            Absent::NotBuiltIn => Self::NotBuiltIn,
            Absent::NotLoaded(reason) => Self::NotInstalled { reason },
        }
    }
}
