//! `tsumuji.h`: everything an endpoint offers, in plain C types.
//!
//! One file for each part of the header, in this order. The comments become the header's: they address C programmers. Every `unsafe` block here
//! relies on what the header's head says of all pointers.
//!
//! Every function enters through `handle::on` or `handle::contained`, so that no panic leaves.

mod board;
mod channels;
mod codes;
mod collectives;
mod datagrams;
mod flow;
mod messages;
mod open;
mod polling;
mod posts;
mod reductions;
mod state;

pub use board::*;
pub use channels::*;
pub use codes::*;
pub use collectives::*;
pub use datagrams::*;
pub use flow::*;
pub(crate) use flow::{Policy, read_pace};
pub use messages::*;
pub use open::*;
pub use polling::*;
pub use posts::*;
pub use reductions::*;
pub use state::*;

use std::ffi::c_int;

use crate::failure::Failure;

/// 0, or the code of a failure.
fn done(result: Result<(), Failure>) -> c_int {
    number(result.map(|()| TSUMUJI_OK))
}

/// A number of 0 or more, or the code of a failure.
pub(crate) fn number(result: Result<c_int, Failure>) -> c_int {
    result.unwrap_or_else(|failure| failure.report())
}

/// A count as a C int, at most its largest value.
pub(crate) fn count(done: impl TryInto<c_int>) -> c_int {
    done.try_into().unwrap_or(c_int::MAX)
}

/// A size, or the code of a failure.
fn size(result: Result<usize, Failure>) -> isize {
    match result {
        Ok(size) => isize::try_from(size).unwrap_or(isize::MAX),
        Err(failure) => failure.report() as isize,
    }
}

/// 1 for yes, 0 for no, or the code of a failure.
fn answer(result: Result<bool, Failure>) -> c_int {
    number(result.map(c_int::from))
}
