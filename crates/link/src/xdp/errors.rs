//! Why an AF_XDP link may not open, each reason with what to do about it.

use std::io;

use rustix::thread::CapabilitySet;

use super::open::{FRAME_BYTES_MIN, MTU_ONE_BUFFER_BYTES};
use crate::ether::{self, Capability, ClaimError, InterfaceError};

/// Why the link could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum XdpOpenError {
    /// The interface does not exist, is not up, or is no Ethernet.
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    /// Another process of ours has the interface.
    #[error(transparent)]
    Claimed(#[from] ClaimError),
    /// The process lacks a capability.
    #[error("{step} on {interface} needs {missing}; grant it: `{mend}`")]
    Rights {
        /// The interface.
        interface: String,
        /// The step that failed.
        step: &'static str,
        /// The capabilities that are missing.
        missing: String,
        /// A command that grants it.
        mend: String,
    },
    /// The limit on locked memory is too low for the smallest rings.
    #[error(
        "the shared memory of {bytes} bytes exceeds the limit on locked memory; grant CAP_IPC_LOCK: `{mend}`, \
         or raise the limit (`ulimit -l`), or ask for smaller rings"
    )]
    LockedMemory {
        /// Bytes asked for.
        bytes: usize,
        /// A command that grants it.
        mend: String,
    },
    /// A foreign XDP program is on the interface.
    #[error(
        "{interface} already has an XDP program: {program}; it is not replaced. `ip link show {interface}` shows it, \
         `ip link set {interface} xdp off` removes it unless its owner holds it"
    )]
    Occupied {
        /// The interface.
        interface: String,
        /// Name, number and mode of the program, as far as known.
        program: String,
    },
    /// Another AF_XDP socket has the queue.
    #[error("the queue of {interface} is held by another AF_XDP socket; end its process")]
    QueueBusy {
        /// The interface.
        interface: String,
    },
    /// Frames may arrive at queues that the link does not see.
    #[error(
        "{interface} has {queues} receive queues and the link serves one; `ethtool -L {interface} {channels} 1` makes it one"
    )]
    ManyQueues {
        /// The interface.
        interface: String,
        /// Queues in use.
        queues: u32,
        /// The parameter of `ethtool -L` for this driver.
        channels: &'static str,
    },
    /// The interface cannot have this frame size.
    #[error(
        "frames of {frame_bytes} bytes do not fit {interface}; take {FRAME_BYTES_MIN} to {limit}"
    )]
    FrameBytes {
        /// The interface.
        interface: String,
        /// The frame size asked for.
        frame_bytes: usize,
        /// The largest that fits.
        limit: usize,
    },
    /// The ring size is out of range.
    #[error("{ring_frames} frames of {frame_bytes} bytes are no useful ring; take 1 to {limit}")]
    RingFrames {
        /// The ring size asked for.
        ring_frames: u32,
        /// The frame size in bytes.
        frame_bytes: usize,
        /// The largest ring size.
        limit: u32,
    },
    /// The driver cannot run the program, as was asked for.
    #[error(
        "{interface} ({driver}) has no native XDP for this MTU: {source}; leave the choice to `auto`"
    )]
    NotNative {
        /// The interface.
        interface: String,
        /// Its driver.
        driver: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The MTU is larger than kernels before 6.6 pass.
    #[error(
        "{interface} has an MTU of {mtu} bytes, which AF_XDP passes from Linux 6.6 on; \
         `ip link set {interface} mtu {MTU_ONE_BUFFER_BYTES}` or less"
    )]
    Mtu {
        /// The interface.
        interface: String,
        /// Its MTU.
        mtu: usize,
    },
    /// The kernel's verifier refused the program.
    #[error("the kernel refused the XDP program: {source}; its verifier says: {verifier}")]
    Program {
        /// The kernel's error.
        source: io::Error,
        /// The last meaningful line of its log.
        verifier: String,
    },
    /// The kernel was built without AF_XDP.
    #[error("this kernel has no AF_XDP (CONFIG_XDP_SOCKETS); use the packet link")]
    NoAfXdp,
    /// A system call failed.
    #[error("{what} on {interface}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The interface.
        interface: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// The command that grants all capabilities that the link needs.
pub(super) fn mend_rights() -> String {
    ether::setcap_command(&[
        Capability::NetRaw,
        Capability::NetAdmin,
        Capability::Bpf,
        Capability::IpcLock,
    ])
}

/// Required capabilities that this thread lacks.
pub(super) fn missing_rights() -> Vec<&'static str> {
    let wanted = [Capability::NetRaw, Capability::NetAdmin, Capability::Bpf];
    // CAP_SYS_ADMIN includes both that bpf(2) needs.
    let administers = rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    wanted
        .into_iter()
        .filter(|capability| !ether::has_capability(*capability))
        .filter(|capability| *capability != Capability::Bpf || !administers)
        .map(Capability::name)
        .collect()
}
