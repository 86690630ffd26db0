//! Collective operations over groups of nodes, each in a blocking and a non-blocking form.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_collective::{CollectiveError, Number, Op};

use super::{answer, done, number};
use crate::failure::Failure;
use crate::ffi::{self, Input, Output};
use crate::handle::{Tsumuji, on};
use crate::node::Node;
use crate::together::{Call, Pending, Together};

/// The group of all nodes; ranks are node numbers.
pub const TSUMUJI_WORLD: c_int = 0;

/// Elements of reductions.
pub const TSUMUJI_INT8: c_int = 1;
/// uint8_t.
pub const TSUMUJI_UINT8: c_int = 2;
/// int16_t.
pub const TSUMUJI_INT16: c_int = 3;
/// uint16_t.
pub const TSUMUJI_UINT16: c_int = 4;
/// int32_t.
pub const TSUMUJI_INT32: c_int = 5;
/// uint32_t.
pub const TSUMUJI_UINT32: c_int = 6;
/// int64_t.
pub const TSUMUJI_INT64: c_int = 7;
/// uint64_t.
pub const TSUMUJI_UINT64: c_int = 8;
/// float.
pub const TSUMUJI_FLOAT: c_int = 9;
/// double.
pub const TSUMUJI_DOUBLE: c_int = 10;

/// How two elements become one. Integers wrap around; of NaN and a number, minimum and maximum take the number.
pub const TSUMUJI_SUM: c_int = 1;
/// The product.
pub const TSUMUJI_PRODUCT: c_int = 2;
/// The smaller one.
pub const TSUMUJI_MINIMUM: c_int = 3;
/// The larger one.
pub const TSUMUJI_MAXIMUM: c_int = 4;

type Begun = Result<Result<Pending, CollectiveError>, Failure>;

/// Makes a group of `count` nodes, whose ranks are their places in `nodes`; returns its number. Each of them makes the same call, others none.
/// Several groups of the same nodes are told apart by `tag`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_group(
    handle: *mut Tsumuji,
    nodes: *const c_int,
    count: usize,
    tag: u32,
) -> c_int {
    // SAFETY: the header asks for what `on` needs, and for `count` numbers at `nodes`.
    number(unsafe {
        on(handle, |node| {
            if nodes.is_null() || count > node.endpoint.members().len() {
                return Err(Failure::invalid(
                    "the nodes are NULL, or more than the cluster has",
                ));
            }
            let nodes = std::slice::from_raw_parts(nodes, count);
            Together::make_group(node, nodes, tag)
        })
    })
}

/// Ends the use of a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_group_close(handle: *mut Tsumuji, group: c_int) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe { on(handle, |node| Together::close_group(node, group)) })
}

/// This node's rank in a group.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_group_rank(handle: *mut Tsumuji, group: c_int) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    number(unsafe { on(handle, |node| Ok(Together::place(node, group)?.0 as c_int)) }) // a number of nodes
}

/// How many members a group has.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_group_size(handle: *mut Tsumuji, group: c_int) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    number(unsafe { on(handle, |node| Ok(Together::place(node, group)?.1 as c_int)) }) // a number of nodes
}

/// Ends when every member has called it.
///
/// This and all operations below: all members of a group make the same calls in the same order. Where request is NULL the call waits for the
/// operation's end. Otherwise it returns at once and writes to *request by what tsumuji_test and tsumuji_wait know the operation; the
/// buffers must then stay, and be left alone, until tsumuji_wait has returned or the handle is closed.
/// TSUMUJI_EPEER: a member died, and the group cannot be used any more. TSUMUJI_EMISMATCH: a member called something else.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_barrier(
    handle: *mut Tsumuji,
    group: c_int,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate` needs.
    unsafe {
        operate(handle, group, request, |call| {
            let begun = call.collectives.start_barrier(call.endpoint, call.group);
            Ok(begun.map(Pending::Barrier))
        })
    }
}

/// What `data` holds on the root it then holds on all; of one length on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_broadcast(
    handle: *mut Tsumuji,
    group: c_int,
    root: c_int,
    data: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let (root, data) = (rank(root)?, Output::new(data, bytes)?);
            Ok(call
                .collectives
                .start_broadcast(call.endpoint, call.group, root, data)
                .map(Pending::Filled))
        })
    }
}

/// Each member gets its part of the root's `send`, `bytes` long, in `receive`. counts: how long each member's part is; NULL: all `bytes`.
/// send and counts are looked at on the root only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_scatter(
    handle: *mut Tsumuji,
    group: c_int,
    root: c_int,
    send: *const c_void,
    counts: *const usize,
    receive: *mut c_void,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate`, `lengths`, `Input` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let (root, receive) = (rank(root)?, Output::new(receive, bytes)?);
            let (lengths, send) = if root == call.rank {
                let (lengths, total) = ffi::lengths(counts, call.size, bytes)?;
                (lengths, Input::new(send, total)?)
            } else {
                (Vec::new(), Input::nothing())
            };
            receive.check_apart(&send)?;
            Ok(call
                .collectives
                .start_scatter_v(call.endpoint, call.group, root, send, &lengths, receive)
                .map(Pending::Filled))
        })
    }
}

/// The root gets each member's `send`, `bytes` long, one behind the other in order of ranks. counts: how long each is; NULL: all `bytes`.
/// receive and counts are looked at on the root only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_gather(
    handle: *mut Tsumuji,
    group: c_int,
    root: c_int,
    send: *const c_void,
    bytes: usize,
    receive: *mut c_void,
    counts: *const usize,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate`, `lengths`, `Input` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let (root, send) = (rank(root)?, Input::new(send, bytes)?);
            let (lengths, receive) = if root == call.rank {
                let (lengths, total) = ffi::lengths(counts, call.size, bytes)?;
                (lengths, Output::new(receive, total)?)
            } else {
                (Vec::new(), Output::nothing())
            };
            receive.check_apart(&send)?;
            Ok(call
                .collectives
                .start_gather_v(call.endpoint, call.group, root, send, receive, &lengths)
                .map(Pending::Filled))
        })
    }
}

/// Like tsumuji_gather, and everybody gets everything. counts is looked at on all, and the same on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_gather(
    handle: *mut Tsumuji,
    group: c_int,
    send: *const c_void,
    bytes: usize,
    receive: *mut c_void,
    counts: *const usize,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate`, `lengths`, `Input` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let (lengths, total) = ffi::lengths(counts, call.size, bytes)?;
            let (send, receive) = (Input::new(send, bytes)?, Output::new(receive, total)?);
            receive.check_apart(&send)?;
            Ok(call
                .collectives
                .start_all_gather_v(call.endpoint, call.group, send, receive, &lengths)
                .map(Pending::Filled))
        })
    }
}

/// Part i of this node's `send` goes to rank i, and part i of `receive` comes from there. Counts are lengths in bytes by rank; NULL: all `bytes`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_to_all(
    handle: *mut Tsumuji,
    group: c_int,
    send: *const c_void,
    send_counts: *const usize,
    receive: *mut c_void,
    receive_counts: *const usize,
    bytes: usize,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate`, `lengths`, `Input` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let (goes, out) = ffi::lengths(send_counts, call.size, bytes)?;
            let (comes, total) = ffi::lengths(receive_counts, call.size, bytes)?;
            let (send, receive) = (Input::new(send, out)?, Output::new(receive, total)?);
            receive.check_apart(&send)?;
            Ok(call
                .collectives
                .start_all_to_all_v(call.endpoint, call.group, send, &goes, receive, &comes)
                .map(Pending::Filled))
        })
    }
}

/// The root gets in `receive` what the elements of all members' `send` come to: `count` of a type (TSUMUJI_DOUBLE ...), by an operation
/// (TSUMUJI_SUM ...). receive is looked at on the root only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_reduce(
    handle: *mut Tsumuji,
    group: c_int,
    root: c_int,
    send: *const c_void,
    receive: *mut c_void,
    count: usize,
    type_: c_int,
    operation: c_int,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate`, `Input` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let bytes = bytes_of(type_, count)?;
            let (root, send) = (rank(root)?, Input::new(send, bytes)?);
            let receive = if root == call.rank {
                Output::new(receive, bytes)?
            } else {
                Output::nothing()
            };
            receive.check_apart(&send)?;
            with_type(
                type_,
                Reduce {
                    call,
                    operation,
                    send: Some((root, send)),
                    data: receive,
                },
            )
        })
    }
}

/// `data` becomes on all members what the elements of all come to.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_reduce(
    handle: *mut Tsumuji,
    group: c_int,
    data: *mut c_void,
    count: usize,
    type_: c_int,
    operation: c_int,
    request: *mut u64,
) -> c_int {
    // SAFETY: the header asks for what `operate` and `Output` need.
    unsafe {
        operate(handle, group, request, |call| {
            let data = Output::new(data, bytes_of(type_, count)?)?;
            with_type(
                type_,
                Reduce {
                    call,
                    operation,
                    send: None,
                    data,
                },
            )
        })
    }
}

/// 1: the operation is over, well or not, and tsumuji_wait returns at once; 0: not yet. Carries on everything under way.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_test(handle: *mut Tsumuji, request: u64) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    answer(unsafe { on(handle, |node| Together::test(node, request)) })
}

/// Waits until the operation is over, and says how it ended. Each request is waited for once.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_wait(handle: *mut Tsumuji, request: u64) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe { on(handle, |node| Together::wait(node, request)) })
}

/// Begins an operation, and waits for it unless the program wants its request.
///
/// # Safety
/// `handle` is NULL or live; `request` is NULL or can be written.
unsafe fn operate(
    handle: *mut Tsumuji,
    group: c_int,
    request: *mut u64,
    begin: impl FnOnce(Call<'_>) -> Begun,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe {
        on(handle, |node: &mut Node| {
            let begun = Together::start(node, group, begin)?;
            if request.is_null() {
                return Together::wait(node, begun);
            }
            ffi::put(request, "the place for the request", begun)
        })
    })
}

fn rank(rank: c_int) -> Result<usize, Failure> {
    usize::try_from(rank).map_err(|_| Failure::invalid(format!("there is no rank {rank}")))
}

/// Something that is done for a type of elements.
trait ForType {
    type Output;
    fn run<T: Number>(self) -> Self::Output;
}

fn with_type<F, O>(type_: c_int, what: F) -> Result<O, Failure>
where
    F: ForType<Output = Result<O, Failure>>,
{
    match type_ {
        TSUMUJI_INT8 => what.run::<i8>(),
        TSUMUJI_UINT8 => what.run::<u8>(),
        TSUMUJI_INT16 => what.run::<i16>(),
        TSUMUJI_UINT16 => what.run::<u16>(),
        TSUMUJI_INT32 => what.run::<i32>(),
        TSUMUJI_UINT32 => what.run::<u32>(),
        TSUMUJI_INT64 => what.run::<i64>(),
        TSUMUJI_UINT64 => what.run::<u64>(),
        TSUMUJI_FLOAT => what.run::<f32>(),
        TSUMUJI_DOUBLE => what.run::<f64>(),
        _ => Err(Failure::invalid(format!(
            "there is no type {type_}; see TSUMUJI_DOUBLE and its like"
        ))),
    }
}

struct BytesOf(usize);

impl ForType for BytesOf {
    type Output = Result<usize, Failure>;

    fn run<T: Number>(self) -> Self::Output {
        self.0
            .checked_mul(size_of::<T>())
            .ok_or_else(|| Failure::invalid("the elements are larger than memory"))
    }
}

fn bytes_of(type_: c_int, count: usize) -> Result<usize, Failure> {
    with_type(type_, BytesOf(count))
}

struct Reduce<'a> {
    call: Call<'a>,
    operation: c_int,
    /// To a root; `None`: in place, on all.
    send: Option<(usize, Input)>,
    data: Output,
}

impl ForType for Reduce<'_> {
    type Output = Begun;

    fn run<T: Number>(self) -> Begun {
        let op = match self.operation {
            TSUMUJI_SUM => Op::<T>::sum(),
            TSUMUJI_PRODUCT => Op::product(),
            TSUMUJI_MINIMUM => Op::minimum(),
            TSUMUJI_MAXIMUM => Op::maximum(),
            other => {
                return Err(Failure::invalid(format!(
                    "there is no operation {other}; see TSUMUJI_SUM and its like"
                )));
            }
        };
        let Call {
            collectives,
            endpoint,
            group,
            ..
        } = self.call;
        let begun = match self.send {
            Some((root, send)) => {
                collectives.start_reduce(endpoint, group, root, send, self.data, &op)
            }
            None => collectives.start_all_reduce(endpoint, group, self.data, &op),
        };
        Ok(begun.map(Pending::Filled))
    }
}
