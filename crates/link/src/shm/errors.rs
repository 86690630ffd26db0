//! Why a job's memory could not be made or joined, each reason with what to do about it.

use std::io;

use super::layout::NODES_MAX;

/// Why a job's memory could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmCreateError {
    /// Too many or no nodes.
    #[error("a shared-memory job of {nodes} nodes is not possible; take 1 to {NODES_MAX}")]
    Nodes {
        /// Number asked for.
        nodes: usize,
    },
    /// A size that the rings cannot have.
    #[error("{what} = {value} is not possible; {accepted}")]
    Size {
        /// Which.
        what: &'static str,
        /// Value asked for.
        value: u64,
        /// Accepted values.
        accepted: &'static str,
    },
    /// The process may not make a file that large.
    #[error(
        "shared memory for {nodes} nodes needs an address range of {bytes} bytes, the file size limit is {limit}; raise it with `ulimit -f unlimited`"
    )]
    FileSizeLimit {
        /// Nodes.
        nodes: usize,
        /// Bytes that the smallest layout needs.
        bytes: u64,
        /// RLIMIT_FSIZE.
        limit: u64,
    },
    /// A system call failed.
    #[error("cannot make shared memory (memfd_create, ftruncate, seals): {0}")]
    Io(#[from] io::Error),
}

/// Why a process could not join a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ShmAttachError {
    /// The descriptor is something else.
    #[error("the descriptor is no tsumuji shared memory of this version: {reason}")]
    Foreign {
        /// What is wrong with the descriptor.
        reason: &'static str,
    },
    /// No such node in the job.
    #[error("node {node} does not exist in a job of at most {nodes} nodes (0 to {last})", last = nodes - 1)]
    NoSuchNode {
        /// The index asked for.
        node: u16,
        /// Nodes that the job can have.
        nodes: usize,
    },
    /// Live processes hold all indices that joining ones may take.
    #[error("all of this job's {nodes} nodes are taken by living processes; end one first")]
    Full {
        /// Nodes that the job can have.
        nodes: usize,
    },
    /// A live process holds the index.
    #[error(
        "node {node} of this job is taken by a living process; end it first or take another index"
    )]
    Taken {
        /// The index asked for.
        node: u16,
    },
    /// The job has no generation left: it was made with a small limit of file sizes, or a process wrote garbage.
    #[error(
        "this job's {generations} generations are used up (each attach takes one); start the job anew, with `ulimit -f unlimited`"
    )]
    NoGenerationsLeft {
        /// The job's limit.
        generations: u64,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed, and what may help.
        what: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
}
