//! Collective operations over groups of nodes, each in a blocking and a non-blocking form.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};

use tsumuji_collective::{CollectiveError, Request};

use super::{answer, done, number};
use crate::collective_state::{Call, CollectiveState, Pending};
use crate::failure::Failure;
use crate::ffi::{self, Input, Output};
use crate::handle::{Handle, on};
use crate::node::Node;

/// The group of all nodes that there were when the handle was opened; ranks are node numbers. It never grows: nodes that tsumuji_update_members tells of
/// belong to groups that are made with them.
pub const TSUMUJI_WORLD: c_int = 0;

pub(super) type Begun = Result<Result<Pending, CollectiveError>, Failure>;

/// Makes a group of `count` nodes, whose ranks are their places in `nodes`; returns its number. All of them make the same call, other nodes none.
/// Groups of the same nodes are told apart by `tag`. A tag is used once for the same nodes in the same order, also after tsumuji_group_close
/// (TSUMUJI_EINVAL); tag 0 with all nodes in order is TSUMUJI_WORLD. A handle makes at most 65,536 groups in its life, that one included.
/// TSUMUJI_EUNKNOWN: there is no such node.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_group(
    handle: Handle,
    nodes: *const c_int,
    count: usize,
    tag: u32,
) -> c_int {
    // SAFETY: the header asks for `count` numbers at `nodes`.
    number(unsafe {
        on(handle, |node| {
            if nodes.is_null() || count > node.endpoint.members().len() {
                return Err(Failure::invalid(
                    "the nodes are NULL, or more than the cluster has",
                ));
            }
            let nodes = ffi::copied(nodes, count, "the nodes")?;
            CollectiveState::make_group(node, &nodes, tag)
        })
    })
}

/// Ends the use of a group. Members that call on it nevertheless get TSUMUJI_EMISMATCH, once this node makes a call.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_group_close(handle: Handle, group: c_int) -> c_int {
    done(on(handle, |node| CollectiveState::close_group(node, group)))
}

/// This node's rank in a group.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_group_rank(handle: Handle, group: c_int) -> c_int {
    number(on(handle, |node| {
        Ok(CollectiveState::place(node, group)?.0 as c_int)
    })) // a number of nodes
}

/// Number of members of a group.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_group_size(handle: Handle, group: c_int) -> c_int {
    number(on(handle, |node| {
        Ok(CollectiveState::place(node, group)?.1 as c_int)
    })) // a number of nodes
}

/// Ends when every member has called it.
///
/// For this and all operations below: all members of a group make the same calls in the same order. If request is NULL, the call waits for the
/// operation's end. Otherwise it returns at once and writes to *request a number for tsumuji_test and tsumuji_wait; the buffers must then stay valid
/// and unused until tsumuji_wait has returned or the handle is closed. TSUMUJI_EPEER: a member died, and the group cannot be used any more; or this node
/// was restarted, and the group is one of its last incarnation. TSUMUJI_EMISMATCH: a member called something else: another operation, length or root, or a
/// reduction by another operation, type, size of elements or `ordered`; or it has closed the group. TSUMUJI_EINVAL: the memory to receive into overlaps
/// the memory to send.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_barrier(handle: Handle, group: c_int, request: *mut u64) -> c_int {
    // SAFETY: the header asks for what `operate` needs.
    unsafe {
        operate(handle, group, request, |call| {
            let begun = call.collectives.start_barrier(call.endpoint, call.group);
            Ok(begun.map(Pending::Barrier))
        })
    }
}

/// Copies the root's `data` to all members; `bytes` is the same on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_broadcast(
    handle: Handle,
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
            filled(
                call.collectives
                    .start_broadcast(call.endpoint, call.group, root, data),
            )
        })
    }
}

/// Each member receives its part of the root's `send`: `bytes` bytes, into `receive`. counts: lengths of the members' parts; NULL: `bytes` each. send
/// and counts are used on the root only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_scatter(
    handle: Handle,
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
            filled(call.collectives.start_scatter_v(
                call.endpoint,
                call.group,
                root,
                send,
                &lengths,
                receive,
            ))
        })
    }
}

/// The root receives each member's `send` of `bytes` bytes, one behind the other in order of ranks. counts: their lengths; NULL: `bytes` each.
/// receive and counts are used on the root only.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_gather(
    handle: Handle,
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
            filled(call.collectives.start_gather_v(
                call.endpoint,
                call.group,
                root,
                send,
                receive,
                &lengths,
            ))
        })
    }
}

/// As tsumuji_gather, but all members receive everything. counts is used on all, and the same on all.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_gather(
    handle: Handle,
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
            filled(call.collectives.start_all_gather_v(
                call.endpoint,
                call.group,
                send,
                receive,
                &lengths,
            ))
        })
    }
}

/// Part i of this node's `send` goes to rank i, and part i of `receive` comes from rank i. Counts are lengths in bytes by rank; NULL: `bytes` each. If
/// both counts are NULL on one member, they are on all: parts of one length may be combined by hosts.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_all_to_all(
    handle: Handle,
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
            let (collectives, endpoint) = (call.collectives, call.endpoint);
            filled(if send_counts.is_null() && receive_counts.is_null() {
                collectives.start_all_to_all(endpoint, call.group, send, receive)
            } else {
                collectives.start_all_to_all_v(endpoint, call.group, send, &goes, receive, &comes)
            })
        })
    }
}

/// 1: the operation is over, well or not, and tsumuji_wait returns at once; 0: not yet. Advances all operations.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_test(handle: Handle, request: u64) -> c_int {
    answer(on(handle, |node| CollectiveState::test(node, request)))
}

/// Waits until the operation is over, and returns its result. Each request is waited for once.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_wait(handle: Handle, request: u64) -> c_int {
    done(on(handle, |node| CollectiveState::wait(node, request)))
}

/// Has long transfers between processes of one host go through the link from now on, instead of being read in the sender's memory.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_forbid_direct_reads(handle: Handle) -> c_int {
    done(on(handle, CollectiveState::forbid_direct_reads))
}

/// Counters of collective operations since the handle was opened.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiCollectiveCounters {
    /// Operations begun.
    pub operations: u64,
    /// Messages of invalid form, or of an unknown group.
    pub malformed: u64,
    /// Messages for operations that were over.
    pub late: u64,
    /// Messages that arrived before their operation was called here, and were kept.
    pub early: u64,
    /// Messages dropped because their sender exceeded its credit.
    pub overrun: u64,
    /// Frames broadcast by the link, without repairs.
    pub native_frames: u64,
    /// Frames broadcast again.
    pub native_repairs: u64,
    /// Pieces sent again reliably to one member.
    pub native_resent: u64,
    /// Transfers read in the sender's memory.
    pub direct_reads: u64,
}

const _: () = assert!(size_of::<TsumujiCollectiveCounters>() == 9 * 8); // no padding: see `ffi::put_struct`

/// Counters of collective operations; size: sizeof(tsumuji_collective_counters).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_collective_counters(
    handle: Handle,
    counters: *mut TsumujiCollectiveCounters,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    done(unsafe {
        on(handle, |node| {
            let counted = CollectiveState::counters(node)?;
            let shown = TsumujiCollectiveCounters {
                operations: counted.operations,
                malformed: counted.malformed,
                late: counted.late,
                early: counted.early,
                overrun: counted.overrun,
                native_frames: counted.native_frames,
                native_repairs: counted.native_repairs,
                native_resent: counted.native_resent,
                direct_reads: counted.direct_reads,
            };
            ffi::put_struct(counters, size, &shown)
        })
    })
}

/// Begins an operation, and waits for it unless the program asks for a request.
///
/// # Safety
/// `handle` is NULL or live; `request` is NULL or can be written.
pub(super) unsafe fn operate(
    handle: Handle,
    group: c_int,
    request: *mut u64,
    begin: impl FnOnce(Call<'_>) -> Begun,
) -> c_int {
    // SAFETY: as the caller promises.
    done(unsafe {
        on(handle, |node: &mut Node| {
            let begun = CollectiveState::start(node, group, begin)?;
            if request.is_null() {
                return CollectiveState::wait(node, begun);
            }
            ffi::put(request, "the place for the request", begun)
        })
    })
}

pub(super) fn filled(begun: Result<Request<Output>, CollectiveError>) -> Begun {
    Ok(begun.map(Pending::Filled))
}

pub(super) fn rank(rank: c_int) -> Result<usize, Failure> {
    usize::try_from(rank).map_err(|_| Failure::invalid(format!("there is no rank {rank}")))
}
