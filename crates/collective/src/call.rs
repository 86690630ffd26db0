//! A member's call of an operation: buffers and their lengths, plan, how elements are folded, and what follows the plan.

use std::sync::Arc;

use zerocopy::IntoBytes;

use crate::element::{Element, Fold, Memory, RawOp};
use crate::error::CollectiveError;
use crate::header::Called;
use crate::plan::Plan;

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
    pub(crate) called: Called,
    pub(crate) input: Source<'b>,
    pub(crate) output: Target<'b>,
    pub(crate) plan: Plan,
    /// Bytes of an element that is folded; 1 without folding.
    pub(crate) unit: usize,
    pub(crate) fold: Option<Fold>,
    /// Root of the native broadcast of the whole output that follows the plan, if one does.
    pub(crate) native_root: Option<usize>,
}

impl<'b> Call<'b> {
    /// A call that only moves bytes.
    pub(crate) fn moving(
        called: Called,
        plan: Plan,
        input: Source<'b>,
        output: Target<'b>,
    ) -> Self {
        Self {
            called,
            input,
            output,
            plan,
            unit: 1,
            fold: None,
            native_root: None,
        }
    }

    /// A call that folds elements with `op`.
    pub(crate) fn folding(self, op: &RawOp) -> Self {
        Self {
            called: self.called.with(op.digest()),
            unit: op.unit,
            fold: Some(Arc::clone(&op.fold)),
            ..self
        }
    }
}

/// Memory of a blocking call.
pub(crate) fn borrowed<'b, T: Element>(
    send: &'b [T],
    receive: &'b mut [T],
) -> (Source<'b>, Target<'b>) {
    (
        Source::Slice(send.as_bytes()),
        Target::Slice(receive.as_mut_bytes()),
    )
}

/// Memory of a non-blocking call.
pub(crate) fn owned(send: impl Memory, receive: impl Memory) -> (Source<'static>, Target<'static>) {
    (
        Source::Owned(Box::new(send)),
        Target::Owned(Box::new(receive)),
    )
}

/// Refuses a buffer of another length than expected.
pub(crate) fn need(
    what: &'static str,
    given: usize,
    expected: usize,
) -> Result<(), CollectiveError> {
    if given == expected {
        return Ok(());
    }
    Err(CollectiveError::Length {
        what,
        given,
        expected,
    })
}

/// Lengths in bytes of parts of `counts` elements.
pub(crate) fn bytes_of<T>(counts: &[usize]) -> Vec<usize> {
    counts
        .iter()
        .map(|count| count.saturating_mul(size_of::<T>()))
        .collect()
}

/// The sum, or the largest number if it is larger.
pub(crate) fn sum(counts: &[usize]) -> usize {
    counts
        .iter()
        .fold(0, |sum, count| sum.saturating_add(*count))
}
