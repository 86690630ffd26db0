//! What can go wrong. Members are named by their node numbers; `Endpoint::name_of` gives names.

use std::path::PathBuf;

use tsumuji_node::{EndpointError, NodeId, SendError};

/// Why an operation was not done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A member died or left while it was needed. The group cannot be used from this operation on.
    #[error("{member} died or left; the group can no longer be used: form one of those who remain")]
    MemberDead {
        /// Who.
        member: NodeId,
    },
    /// A member takes part with another operation, length or root. The group cannot be used from this operation on.
    #[error(
        "{member} called another operation, or with another length or root; all members must make the same calls in the same order"
    )]
    Mismatch {
        /// Who.
        member: NodeId,
    },
    /// A member chooses algorithms by another table.
    #[error("{member} uses another table of algorithms; give all members the same TSUMUJI_TUNE")]
    OtherTable {
        /// Who.
        member: NodeId,
    },
    /// A buffer has the wrong length.
    #[error("{what} has {given} elements; {expected} are needed")]
    Length {
        /// Which.
        what: &'static str,
        /// Its length.
        given: usize,
        /// What it must be.
        expected: usize,
    },
    /// The root is no member.
    #[error("there is no rank {rank} in a group of {size}")]
    NoSuchRank {
        /// As given.
        rank: usize,
        /// Members.
        size: usize,
    },
    /// Of another `Collectives`, or closed.
    #[error("no such group here: it was closed, or made by another `Collectives`")]
    NoSuchGroup,
    /// Already waited for, or of another `Collectives`.
    #[error("no such request here: it was waited for, or made by another `Collectives`")]
    NoSuchRequest,
    /// Too many operations under way.
    #[error("{limit} operations are under way already; wait for some of them")]
    TooMany {
        /// Most that may be.
        limit: usize,
    },
    /// The link failed for good.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(SendError),
}

/// Why there is no such group.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This node is not among the members.
    #[error("this node, {me}, is not among the members given; call `group` on members only")]
    NotAMember {
        /// This node.
        me: NodeId,
    },
    /// Not in the endpoint's table.
    #[error("{member} is not a member of the cluster")]
    UnknownMember {
        /// Who.
        member: NodeId,
    },
    /// Named twice.
    #[error("{member} is named twice")]
    Twice {
        /// Who.
        member: NodeId,
    },
    /// Made before.
    #[error(
        "a group of these members with tag {tag} was made before; give another tag, the same on all members"
    )]
    Exists {
        /// As given.
        tag: u32,
    },
    /// A program that makes groups without end would fill the memory.
    #[error("{limit} groups were made; use them again instead of making new ones")]
    TooMany {
        /// Most.
        limit: usize,
    },
    /// Operations of the group are under way.
    #[error("operations of the group are under way; wait for them first")]
    Busy,
    /// Not of this `Collectives`.
    #[error("no such group here: it was closed, or made by another `Collectives`")]
    NoSuchGroup,
}

/// Why a table of algorithms cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Which.
        path: PathBuf,
        /// The kernel's answer.
        source: std::io::Error,
    },
    /// Larger than any table.
    #[error("{} is larger than {limit} bytes; that is no table of algorithms", path.display())]
    TooLarge {
        /// Which.
        path: PathBuf,
        /// Most that is read.
        limit: u64,
    },
    /// It is no table.
    #[error("{origin}: {problem}")]
    Parse {
        /// Which file.
        origin: String,
        /// Where and what, on one line.
        problem: String,
    },
}
