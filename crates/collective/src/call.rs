//! A member's call of an operation: buffers, plan, how elements are folded, and what follows the plan.

use crate::element::{Fold, Memory};
use crate::plan::Plan;
use crate::table::Algorithm;

/// Memory that a member sends.
pub(crate) enum Source<'b> {
    None,
    Slice(&'b [u8]),
    Owned(Box<dyn Memory>),
}

/// Memory that a member receives into.
pub(crate) enum Target<'b> {
    None,
    Slice(&'b mut [u8]),
    Owned(Box<dyn Memory>),
}

impl Source<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes(),
        }
    }
}

impl Target<'_> {
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::None => &mut [],
            Self::Slice(bytes) => bytes,
            Self::Owned(memory) => memory.bytes_mut(),
        }
    }
}

/// An operation before it gets its sequence number.
pub(crate) struct Call<'b> {
    pub(crate) algorithm: u8,
    pub(crate) input: Source<'b>,
    pub(crate) output: Target<'b>,
    pub(crate) plan: Plan,
    /// Bytes of an element that is folded; 1 without folding.
    pub(crate) unit: usize,
    pub(crate) fold: Option<Fold>,
    pub(crate) after: After,
}

/// What follows the plan: nothing, or a broadcast of the whole output from a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum After {
    Nothing,
    Native(usize),
}

impl After {
    pub(crate) fn of(algorithm: Algorithm, root: usize) -> Self {
        match algorithm {
            Algorithm::Native => Self::Native(root),
            _ => Self::Nothing,
        }
    }
}
