//! Flow control for programs: windows, policies, and the pace of sending.
#![allow(unsafe_code, reason = "exports symbols to C, and calls back into it")]

use std::ffi::{c_int, c_void};

use tsumuji_node::{FlowPolicy, Pace, Room, Sender};

use super::done;
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, on};

/// The window granted to peers at present, and the memory for arrived messages.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiWindow {
    /// Frames that may be granted to all peers together.
    pub frames: u64,
    /// Upper limit of `frames`: the capacity of the link's receive side.
    pub frames_limit: u64,
    /// Frames of these that are granted and not used yet.
    pub granted_frames: u64,
    /// Budget for messages that arrived and were not consumed.
    pub budget_bytes: u64,
    /// Bytes of it that are used.
    pub budget_used_bytes: u64,
}

/// A peer that may want to send, as a policy sees it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiSender {
    /// Number of the peer.
    pub peer: u64,
    /// 1: it has more to send.
    pub active: u64,
    /// 1: it also serves other peers, and cannot use its whole grant.
    pub busy: u64,
    /// Priority of its last frame: 0 is the most urgent.
    pub priority: u64,
    /// Bytes still to come of its messages that have begun to arrive.
    pub remaining_bytes: u64,
    /// Memory that its messages use here.
    pub memory_bytes: u64,
    /// Number of frames it has sent.
    pub served_frames: u64,
    /// Frames granted and not used yet.
    pub outstanding_frames: u64,
    /// Frames that the usual rules would grant ahead, or under `suci` permit to be sent again.
    pub usual_frames: u64,
    /// Frames that may be granted to all peers together, less if the path holds fewer.
    pub pool_frames: u64,
    /// Number of peers that have more to send; under `suci`, that wait for permission to send again.
    pub active_peers: u64,
    /// 1, under `suci` only: the peer asks to send lost frames again, and the answer is how many of them it may. Otherwise the answer is how far
    /// ahead it may send.
    pub repairs: u64,
    /// Frames that may be granted to all peers together: the capacity of the link's receive side, or as set by tsumuji_set_window.
    pub window_frames: u64,
    /// Frames granted to all peers together and not used yet; under `suci`, permitted to be sent again and not arrived yet.
    pub claimed_frames: u64,
    /// Free bytes of the budget for arrived messages.
    pub free_bytes: u64,
    /// Number of other nodes, active or not.
    pub peers: u64,
    /// Time of the last frame with data, in nanoseconds since the handle was opened.
    pub now_ns: u64,
}

// No padding: see `ffi::put_struct`.
const _: () = assert!(size_of::<TsumujiWindow>() == 5 * 8);
const _: () = assert!(size_of::<TsumujiSender>() == 17 * 8);

/// Returns how many frames may be granted ahead to this peer; under `suci`, see `repairs`. Called for each data frame, by the thread that uses the
/// handle or, while that one makes no call, by the library's own thread (option progress), never by two at a time. It must be quick, share data with
/// the program only by atomics or a lock, and must not use the handle, leave by longjmp, or throw. `sender` is valid until it returns.
pub type TsumujiPolicy =
    Option<unsafe extern "C" fn(context: *mut c_void, sender: *const TsumujiSender) -> u64>;

/// Ranks peers if memory is scarce: the active peer with the lowest result begins the next message, or under `suci` is the first to be told that
/// there is room. The rules of tsumuji_policy apply.
pub type TsumujiRank =
    Option<unsafe extern "C" fn(context: *mut c_void, sender: *const TsumujiSender) -> u64>;

/// State of the window; size: sizeof(tsumuji_window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_window(
    handle: Handle,
    window: *mut TsumujiWindow,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    done(unsafe {
        on(handle, |node| {
            let found = node.endpoint.window();
            let shown = TsumujiWindow {
                frames: found.frames as u64,
                frames_limit: found.frames_limit as u64,
                granted_frames: found.granted_frames as u64,
                budget_bytes: found.budget_bytes as u64,
                budget_used_bytes: found.budget_used_bytes as u64,
            };
            ffi::put_struct(window, size, &shown)
        })
    })
}

/// Sets the number of frames granted to all peers together, at least 1; more than frames_limit is cut to that.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_set_window(handle: Handle, frames: usize) -> c_int {
    done(on(handle, |node| {
        node.endpoint.set_window(some(frames)?);
        Ok(())
    }))
}

/// Sets the most frames that are granted ahead to this peer; 0: no limit of its own.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_set_peer_window(handle: Handle, peer: c_int, frames: usize) -> c_int {
    done(on(handle, |node| {
        let peer = node.peer(peer)?;
        let limit = (frames > 0).then_some(frames);
        Ok(node.endpoint.set_peer_window(peer, limit)?)
    }))
}

/// Sets the budget in bytes for messages that arrived and were not consumed; peers wait when it is used.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_set_budget(handle: Handle, bytes: usize) -> c_int {
    done(on(handle, |node| {
        node.endpoint.set_budget(some(bytes)?);
        Ok(())
    }))
}

/// Sets the policy that decides how much peers may send to this node; NULL: the usual rules. With any policy the receiver is not overrun, and no peer
/// stops for ever. Under the congestion control `suci` it is called for each window that is announced, and for each peer that asks to send again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_policy(
    handle: Handle,
    policy: TsumujiPolicy,
    context: *mut c_void,
) -> c_int {
    done(on(handle, |node| {
        node.policy.window = policy.map(|call| Callback { call, context });
        node.endpoint.set_policy(node.policy.boxed());
        Ok(())
    }))
}

/// Sets the rank that decides, if memory is scarce, which peer begins the next message; NULL: the one whose messages use the least memory. Works with
/// or without tsumuji_set_policy. A message for which other messages of its sender wait always goes first.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_memory_rank(
    handle: Handle,
    rank: TsumujiRank,
    context: *mut c_void,
) -> c_int {
    done(on(handle, |node| {
        node.policy.rank = rank.map(|call| Callback { call, context });
        node.endpoint.set_policy(node.policy.boxed());
        Ok(())
    }))
}

/// Asks the policy again for every peer, after its decision has changed between two frames.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_regrant(handle: Handle) -> c_int {
    done(on(handle, |node| {
        node.endpoint.regrant();
        Ok(())
    }))
}

/// Pace: as fast as credit and link allow.
pub const TSUMUJI_PACE_FREE: i64 = 0;
/// Pace: as fast as the receiver has answered lately, evenly, so that few messages wait there: the paper's "slow write".
pub const TSUMUJI_PACE_DRAIN: i64 = -1;

/// Sets the pace of messages to this peer: TSUMUJI_PACE_FREE, TSUMUJI_PACE_DRAIN, or bytes a second.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_set_pace(handle: Handle, peer: c_int, pace: i64) -> c_int {
    done(on(handle, |node| {
        let (peer, pace) = (node.peer(peer)?, read_pace(pace)?);
        Ok(node.endpoint.set_pace(peer, pace)?)
    }))
}

pub(crate) fn read_pace(pace: i64) -> Result<Pace, Failure> {
    match (pace, u64::try_from(pace)) {
        (TSUMUJI_PACE_FREE, _) => Ok(Pace::Free),
        (TSUMUJI_PACE_DRAIN, _) => Ok(Pace::Drain),
        (_, Ok(rate)) => Ok(Pace::BytesPerSecond(rate)),
        _ => Err(Failure::invalid(
            "accepted are TSUMUJI_PACE_FREE, TSUMUJI_PACE_DRAIN, or bytes a second",
        )),
    }
}

fn some(number: usize) -> Result<usize, Failure> {
    if number == 0 {
        return Err(Failure::invalid("at least 1 is needed"));
    }
    Ok(number)
}

/// A function of the program, and its context.
#[derive(Debug, Clone, Copy)]
struct Callback {
    call: unsafe extern "C" fn(context: *mut c_void, sender: *const TsumujiSender) -> u64,
    context: *mut c_void,
}

impl Callback {
    fn ask(&self, room: &Room, sender: &Sender) -> u64 {
        let shown = TsumujiSender {
            peer: sender.peer.0.into(),
            active: sender.active.into(),
            busy: sender.busy.into(),
            priority: sender.priority.into(),
            remaining_bytes: sender.remaining_bytes,
            memory_bytes: sender.memory_bytes as u64,
            served_frames: sender.served_frames,
            outstanding_frames: sender.outstanding_frames,
            usual_frames: sender.usual_frames,
            pool_frames: room.pool_frames,
            active_peers: room.active_peers as u64,
            repairs: sender.repairs.into(),
            window_frames: room.window_frames,
            claimed_frames: room.claimed_frames,
            free_bytes: room.free_bytes as u64,
            peers: room.peers as u64,
            now_ns: room.now.as_nanos(),
        };
        // SAFETY: the program gave this function for such calls; its arguments live until it returns.
        unsafe { (self.call)(self.context, &shown) }
    }
}

/// Decisions of the program; the usual rules make the others.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Policy {
    window: Option<Callback>,
    rank: Option<Callback>,
}

impl Policy {
    /// The policy for the endpoint; `None`: the program decides nothing.
    fn boxed(self) -> Option<Box<dyn FlowPolicy>> {
        if self.window.is_none() && self.rank.is_none() {
            return None;
        }
        Some(Box::new(self))
    }
}

// SAFETY: it is called by one thread at a time: the one that uses the handle, or the progress assistant. The header says so, and asks for functions
// and a context that permit it.
unsafe impl Send for Policy {}

impl FlowPolicy for Policy {
    fn window_frames(&mut self, room: &Room, sender: &Sender) -> u64 {
        self.window
            .map_or(sender.usual_frames, |window| window.ask(room, sender))
    }

    fn memory_rank(&mut self, room: &Room, sender: &Sender) -> u64 {
        self.rank
            .map_or(sender.memory_bytes as u64, |rank| rank.ask(room, sender))
    }
}
