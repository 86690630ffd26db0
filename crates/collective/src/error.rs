//! Errors. Their texts name members by node number; `Endpoint::name_of` gives names.

use tsumuji_node::{EndpointError, NodeId, SendError};

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollectiveError {
    /// A member died or left while it was needed. The group cannot be used from this operation on.
    #[error("{member} died or left; the group can no longer be used: form one of those who remain")]
    MemberDead {
        /// The member.
        member: NodeId,
    },
    /// A member called another operation, or with another length, root or reduction, or has closed the group. The group cannot be used from this operation
    /// on.
    #[error(
        "{member} called another operation, or with another length, root or reduction, or has closed the group; all members must make the same calls in the same order"
    )]
    Mismatch {
        /// The member.
        member: NodeId,
    },
    /// A member uses another table of algorithms.
    #[error("{member} uses another table of algorithms; give all members the same TSUMUJI_TUNE")]
    OtherTable {
        /// The member.
        member: NodeId,
    },
    /// A member's endpoint has another congestion control: the two never meet.
    #[error(
        "{member} runs another congestion control: start all nodes with the same (--congestion, or TSUMUJI_CONGESTION)"
    )]
    OtherControl {
        /// The member.
        member: NodeId,
    },
    /// A buffer has the wrong length.
    #[error("{what} has the length {given}; {expected} is needed")]
    Length {
        /// The buffer.
        what: &'static str,
        /// Its length.
        given: usize,
        /// Its required length.
        expected: usize,
    },
    /// The root is no member.
    #[error("there is no rank {rank} in a group of {size}")]
    NoSuchRank {
        /// The given rank.
        rank: usize,
        /// Size of the group.
        size: usize,
    },
    /// The group was closed, or belongs to another `Collectives`.
    #[error("no such group here: it was closed, or made by another `Collectives`")]
    NoSuchGroup,
    /// The request was waited for, or belongs to another `Collectives`.
    #[error("no such request here: it was waited for, or made by another `Collectives`")]
    NoSuchRequest,
    /// The endpoint takes no message as long as operations need.
    #[error(
        "operations need messages of {least} bytes, and this endpoint takes {limit} at most: raise `Options::message_limit_bytes`"
    )]
    MessageLimit {
        /// The endpoint's limit.
        limit: usize,
        /// What is needed.
        least: usize,
    },
    /// Too many operations are under way.
    #[error("{limit} operations are under way already; wait for some of them")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// The endpoint failed.
    #[error(transparent)]
    Endpoint(#[from] EndpointError),
    /// A message could not be sent.
    #[error(transparent)]
    Send(SendError),
}

/// Why a group cannot be made or closed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GroupError {
    /// This node is not among the members.
    #[error("this node, {me}, is not among the members given; call `group` on members only")]
    NotAMember {
        /// This node.
        me: NodeId,
    },
    /// The member is not in the endpoint's table.
    #[error("{member} is not a member of the cluster")]
    UnknownMember {
        /// The member.
        member: NodeId,
    },
    /// A member is named twice.
    #[error("{member} is named twice")]
    Twice {
        /// The member.
        member: NodeId,
    },
    /// A group of these members with this tag was made before.
    #[error(
        "a group of these members with tag {tag} was made before; give another tag, the same on all members"
    )]
    Exists {
        /// The given tag.
        tag: u32,
    },
    /// Too many groups were made: without a limit they would exhaust the memory.
    #[error("{limit} groups were made; use them again instead of making new ones")]
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Operations of the group are under way.
    #[error("operations of the group are under way; wait for them first")]
    Busy,
    /// The group was closed, or belongs to another `Collectives`.
    #[error("no such group here: it was closed, or made by another `Collectives`")]
    NoSuchGroup,
}

/// Why a table of algorithms cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The profile cannot be used.
    #[error(transparent)]
    Profile(#[from] tsumuji_node::ProfileError),
    /// The file is not a valid table.
    #[error("{origin}: {problem}")]
    Parse {
        /// Name of the file.
        origin: String,
        /// Place and problem, in one line.
        problem: String,
    },
}
