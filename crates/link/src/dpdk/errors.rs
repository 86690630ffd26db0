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
    /// The program was built without the feature `dpdk`.
    #[error(
        "this program was built without DPDK; `apt-get install libdpdk-dev`, then build it with `make build`"
    )]
    NotBuiltIn,
    /// The feature is built in, but DPDK is not installed.
    #[error("DPDK cannot be loaded ({reason}); `apt-get install libdpdk-dev` installs it")]
    NotInstalled {
        /// The loader's message.
        reason: String,
    },
    /// DPDK's environment layer did not start.
    #[error("DPDK did not start ({source}): {log}")]
    Start {
        /// DPDK's error.
        source: io::Error,
        /// DPDK's log.
        log: String,
    },
    /// DPDK can be started only once in a process.
    #[error(
        "DPDK was started for virtual devices in this process; open the network card first, or in a process of its own"
    )]
    StartedWithoutPci,
    /// There are too few hugepages for a network card.
    #[error(
        "a network card needs {needed} free hugepages of {page_kib} KiB, {free} are there; `{command}` reserves them"
    )]
    Hugepages {
        /// Pages needed.
        needed: u64,
        /// Size of the pages.
        page_kib: u64,
        /// Free now.
        free: u64,
        /// A command that reserves them.
        command: String,
    },
    /// There is no card at this address.
    #[error(
        "there is no network card at {address}; there are {there} (`dpdk-devbind.py --status`)"
    )]
    NoCard {
        /// The address.
        address: String,
        /// Cards that exist.
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
        /// Its present driver, or `none`.
        driver: String,
    },
    /// There is no such driver.
    #[error("there is no DPDK driver `{driver}`; installed are {there}")]
    NoDriver {
        /// The driver.
        driver: String,
        /// Drivers that are there.
        there: String,
    },
    /// A required parameter is missing.
    #[error("{spec} lacks `{parameter}=`; for example `{example}`")]
    Lacks {
        /// The device as given.
        spec: String,
        /// The parameter.
        parameter: &'static str,
        /// A complete name with it.
        example: &'static str,
    },
    /// The interface does not exist, is not up, or is no Ethernet.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Another process of ours has the interface.
    #[error(transparent)]
    Claim(#[from] ClaimError),
    /// The driver did not make or set up the device.
    #[error("{spec}: {what} failed ({source}){needs}: {log}")]
    Device {
        /// The device as given.
        spec: String,
        /// The step that failed.
        what: &'static str,
        /// DPDK's error.
        source: io::Error,
        /// `; it needs …`, or empty.
        needs: String,
        /// DPDK's log.
        log: String,
    },
    /// There is not enough memory for the mbufs.
    #[error(
        "{spec}: no memory for {bytes} bytes of frames; ask for a smaller ring, or free hugepages, or give the first link of this \
         process more than {memory_bytes} bytes of memory"
    )]
    Memory {
        /// The device as given.
        spec: String,
        /// Bytes of the pool.
        bytes: u64,
        /// Bytes of memory with which the EAL was started.
        memory_bytes: u64,
    },
    /// The device cannot have this frame size.
    #[error("frames of {frame_bytes} bytes do not fit {spec}; take {least} to {limit}{hint}")]
    FrameBytes {
        /// The frame size asked for.
        frame_bytes: usize,
        /// The device as given.
        spec: String,
        /// Smallest frame size.
        least: usize,
        /// Largest frame size.
        limit: usize,
        /// Advice for larger frames.
        hint: &'static str,
    },
    /// The text names no device.
    #[error(transparent)]
    Spec(#[from] DpdkSpecError),
    /// The kernel gave no timer for `fd`.
    #[error("cannot make a timer ({0}); raise the limit of open files (`ulimit -n`)")]
    Timer(io::Error),
    /// The device has no link.
    #[error("{spec} has no link after {waited:?}; {hint}")]
    NoLink {
        /// The device as given.
        spec: String,
        /// How long the caller waited.
        waited: Duration,
        /// The probable cause.
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
