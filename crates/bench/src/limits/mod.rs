//! What this machine can do at best: the same exchanges done bare, without header, acknowledgement or protocol.
//!
//! Each limit takes the two cores it may use and answers like our own benchmark does, so that they can be put side by
//! side. They share nothing with the code they are compared with; `bulk` and `broadcast` are
//! the exception: the link alone, to tell what the engine above it costs.

pub mod bandwidth;
pub mod broadcast;
pub mod bulk;
pub mod cacheline;
pub mod copy;
pub mod place;
mod ring;
pub mod tcp;
pub mod udp;

/// Binds the calling thread of a limit, where there are two cores to choose from.
pub(crate) fn pin_to(cpus: Option<[usize; 2]>, side: usize) {
    if let Some(cpus) = cpus {
        let _ = crate::machine::pin(cpus[side]); // unpinned figures are worse, not wrong
    }
}

/// Binds the calling thread to the core of that node, where each of `nodes` has one.
pub(crate) fn core_of(node: usize, nodes: usize) {
    let cores = crate::machine::cpus();
    if nodes <= cores.len() {
        let _ = crate::machine::pin(cores[node]); // unpinned figures are worse, not wrong
    }
}

/// Spins on two cores; where there is one core only, gives it to the other side.
#[inline]
pub(crate) fn relax(cpus: Option<[usize; 2]>) {
    if cpus.is_some() {
        std::hint::spin_loop()
    } else {
        std::thread::yield_now()
    }
}
