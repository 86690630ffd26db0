//! The board: a vector of doubles that every node holds a copy of, each element written by its owner and read by all without waiting.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_int, c_void};
use std::ops::Range;

use tsumuji_board::Lap;
use tsumuji_node::Endpoint;

use super::messages::read_channel_id;
use super::{TSUMUJI_ALL, TSUMUJI_EBUSY, TSUMUJI_ETHREAD, answer, count, done, number};
use crate::board_state::{OpenBoard, read_lap};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, contained, on};
use crate::objects;

/// A vector of doubles that every node holds a copy of, and updates by broadcast; see tsumuji_board_open. It belongs to the thread that its endpoint
/// belongs to.
#[derive(Debug, Clone, Copy)]
pub struct TsumujiBoard {
    handle: Handle,
    channel_id: u16,
}

// SAFETY: the handle is only used by `on`, which refuses every thread but its owner.
unsafe impl Send for TsumujiBoard {}

/// Numbers of updates that a board refused, by reason.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiBoardDrops {
    /// Every element is held of this lap or a newer one: repetitions, repairs that were not needed, late frames.
    pub not_newer: u64,
    /// With NaN or infinity, which would spread through any iteration.
    pub not_finite: u64,
    /// With elements that the sender does not own: the nodes disagree on the offsets.
    pub not_owner: u64,
    /// Of a process that another has replaced.
    pub other_incarnation: u64,
    /// Without elements, with a part of one, with a lap of 0, or of another epoch than 0: not sent by a board of this library.
    pub malformed: u64,
}

// No padding: see `ffi::put_struct`.
const _: () = assert!(size_of::<TsumujiBoardDrops>() == 5 * 8);

/// Opens a board of zeros on `channel_id`, and writes it to *board; close it with tsumuji_board_close. Node i owns the range of elements from offsets[i]
/// to offsets[i + 1] - 1, and is the only one to write them. offsets has nodes + 1 numbers: the first is 0, none is less than the one before, and the
/// last is the number of elements, below 2^32. nodes is at most tsumuji_nodes. Channel and offsets are the same at all nodes. The channel belongs to the
/// board: updates that arrive wait there for the board's calls, and messages are dropped, so it should not be 0, the default channel's. Updates that
/// arrived before are taken in, too: a second board on a channel must go on with the laps of the first one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_board_open(
    handle: Handle,
    channel_id: c_int,
    offsets: *const usize,
    nodes: c_int,
    board: *mut *mut TsumujiBoard,
) -> c_int {
    // SAFETY: the header asks for what `put` and `copied` need: `nodes` + 1 offsets.
    done(unsafe {
        on(handle, |node| {
            ffi::put(board, "the place for the board", std::ptr::null_mut())?;
            let channel_id = read_channel_id(channel_id)?;
            let members = node.endpoint.members().len();
            let nodes = usize::try_from(nodes).ok().filter(|it| *it <= members);
            let nodes = nodes.ok_or_else(|| {
                Failure::invalid(format!("a board has at most {members} nodes here"))
            })?;
            let offsets = ffi::copied(offsets, nodes + 1, "the offsets")?;
            OpenBoard::open(node, channel_id, &offsets)?;
            let made = objects::give(TsumujiBoard { handle, channel_id });
            ffi::put(board, "the place for the board", made)
        })
    })
}

/// Closes a board and its channel; NULL has no effect. Call it also when the endpoint was closed before.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_close(board: *mut TsumujiBoard) -> c_int {
    done(contained(|| {
        if board.is_null() {
            return Ok(());
        }
        let TsumujiBoard { handle, channel_id } = named(board)?;
        match on(handle, |node| OpenBoard::close(node, channel_id)) {
            Err(failure) if [TSUMUJI_ETHREAD, TSUMUJI_EBUSY].contains(&failure.code) => {
                Err(failure)
            }
            _ => {
                objects::free(board); // closed now, or before with its endpoint
                Ok(())
            }
        }
    }))
}

/// Writes `count` own elements from `first` on, without sending them. Laps count from 1, wrap to 1 behind 2^32 - 1, and must not go back; an update
/// replaces only older laps, so each pass over the elements has a lap of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_board_write(
    board: *const TsumujiBoard,
    first: usize,
    values: *const f64,
    count: usize,
    lap: u32,
) -> c_int {
    done(on_board(board, |board, _| {
        let (range, lap) = (board.own_range(first, count)?, board.own_lap(lap)?);
        // SAFETY: the header asks for what `write` needs.
        unsafe { write(board, range, values, lap) }
    }))
}

/// As tsumuji_board_write, and sends the elements to all nodes of the board, best effort and at once, in frames of as many elements as fit. values may
/// be NULL: the elements as they are, with this lap. To keep copies fresher, publish a lap in pieces. Returns the number of frames that were dropped
/// because the link had no room, counted for each peer. What is lost is made good by the next lap or tsumuji_board_repair. NaN and infinity are written
/// and sent; other nodes refuse the frame that holds them, and count it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_board_publish(
    board: *const TsumujiBoard,
    first: usize,
    values: *const f64,
    count: usize,
    lap: u32,
) -> c_int {
    number(on_board(board, |board, endpoint| {
        let (range, lap) = (board.own_range(first, count)?, board.own_lap(lap)?);
        if !values.is_null() {
            // SAFETY: the header asks for what `write` needs.
            unsafe { write(board, range.clone(), values, lap)? };
        }
        Ok(super::count(board.announce(endpoint, range, lap)?))
    }))
}

/// # Safety
/// `values` is NULL, or as many numbers as `range` has can be read there.
unsafe fn write(
    board: &mut OpenBoard,
    range: Range<usize>,
    values: *const f64,
    lap: Lap,
) -> Result<(), Failure> {
    // The product does not overflow: a board's elements are counted in 32 bits.
    let bytes = range.len() * size_of::<f64>();
    // SAFETY: the caller promises it.
    let values = unsafe { ffi::bytes(values.cast::<c_void>(), bytes) }?;
    board.write(range, values, lap);
    Ok(())
}

/// Sends one frame of own elements again, as they were published, and goes on from there at the next call, round and round: repairs updates that were
/// lost and have no successor yet. Call it every few milliseconds while others wait. Returns as tsumuji_board_publish.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_repair(board: *const TsumujiBoard) -> c_int {
    number(on_board(board, |board, endpoint| {
        Ok(count(board.repair(endpoint)?))
    }))
}

/// Takes in the updates that have arrived, handles timers and sends; if nothing was done, waits until something was, up to timeout_us microseconds (0:
/// never waits; negative: without limit). Messages and datagrams of other channels wait for their receivers. Returns how much was done. Elements of
/// other nodes change only in this call and in tsumuji_board_wait. Between such calls frames wait, of those that begin at the same element the newest, up
/// to 4096 and 8 MiB; what exceeds that is lost.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_poll(board: *const TsumujiBoard, timeout_us: i64) -> c_int {
    number(on_board(board, |board, endpoint| {
        Ok(count(board.poll(endpoint, ffi::timeout(timeout_us))?))
    }))
}

/// Takes in updates until every element of node `owner` (TSUMUJI_ALL: of every other node) is of `lap` or newer. 1: they are; 0: not within timeout_us
/// microseconds (0: as far as has arrived; negative: without limit). To bound staleness by k, wait for the own lap less k. A node that owns nothing
/// is not waited for. TSUMUJI_EPEER: the node is dead, and has not sent them.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_wait(
    board: *const TsumujiBoard,
    owner: c_int,
    lap: u32,
    timeout_us: i64,
) -> c_int {
    answer(on_board(board, |board, endpoint| {
        let lap = read_lap(lap)?;
        let owner = match owner {
            TSUMUJI_ALL => None,
            owner => Some(board.other_owner(owner)?),
        };
        board.wait(endpoint, owner, lap, ffi::timeout(timeout_us))
    }))
}

/// Copies `count` elements from `first` on to `values`. They need not be of one lap.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_board_get(
    board: *const TsumujiBoard,
    first: usize,
    values: *mut f64,
    count: usize,
) -> c_int {
    done(on_board(board, |board, _| {
        let range = board.range(first, count)?;
        // SAFETY: the header asks for room for `count` numbers; the board's memory is not C's.
        unsafe { ffi::copy_doubles_out(board.values(range), values) }
    }))
}

/// Newest lap of node `owner` (this node included) of which any element has arrived; 0: none. Laps of a process that ended count until another at the
/// same node is heard of.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_lap(board: *const TsumujiBoard, owner: c_int) -> i64 {
    long(on_board(board, |board, _| {
        Ok(board.lap(board.owner(owner)?))
    }))
}

/// Staleness of node `owner`: laps by which its oldest element here is behind its newest lap here; 0: all elements are of one lap. TSUMUJI_EAGAIN: an
/// element has never arrived.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_board_staleness(board: *const TsumujiBoard, owner: c_int) -> i64 {
    long(on_board(board, |board, _| {
        let staleness = board.staleness(board.owner(owner)?);
        staleness.ok_or(Failure::NOT_NOW)
    }))
}

/// Numbers of updates that were refused; size: sizeof(tsumuji_board_drops).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_board_get_drops(
    board: *const TsumujiBoard,
    drops: *mut TsumujiBoardDrops,
    size: usize,
) -> c_int {
    done(on_board(board, |board, _| {
        let counted = board.drops();
        let shown = TsumujiBoardDrops {
            not_newer: counted.not_newer,
            not_finite: counted.not_finite,
            not_owner: counted.not_owner,
            other_incarnation: counted.other_incarnation,
            malformed: counted.malformed + counted.past_epoch + counted.future_epoch,
        };
        // SAFETY: the header asks for what `put_struct` needs.
        unsafe { ffi::put_struct(drops, size, &shown) }
    }))
}

fn named(board: *const TsumujiBoard) -> Result<TsumujiBoard, Failure> {
    objects::with(board, "the board", |found| Ok(*found))
}

/// Runs `call` on a board and its endpoint.
fn on_board<T>(
    board: *const TsumujiBoard,
    call: impl FnOnce(&mut OpenBoard, &mut Endpoint) -> Result<T, Failure>,
) -> Result<T, Failure> {
    contained(|| {
        let TsumujiBoard { handle, channel_id } = named(board)?;
        on(handle, |node| {
            let found = node.boards.get_mut(&channel_id);
            let open = found.ok_or_else(|| Failure::invalid("the board was closed"))?;
            call(open, &mut node.endpoint)
        })
    })
}

/// A lap or a number of laps, or the code of a failure.
fn long(result: Result<u32, Failure>) -> i64 {
    result.map_or_else(|failure| failure.report().into(), i64::from)
}
