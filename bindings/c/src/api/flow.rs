//! Flow control in the program's hands: windows, a policy of its own, and messages of which only the newest counts.
#![allow(unsafe_code, reason = "exports symbols to C, and calls back into it")]

use std::ffi::{c_int, c_void};

use tsumuji_node::{FlowPolicy, Pace, Room, Sender};

use super::done;
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Tsumuji, on};

/// What peers may send ahead at present, and the memory for what has arrived.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiWindow {
    /// Frames that may be granted to all peers together.
    pub frames: u64,
    /// Most that `frames` can be: what the link's receive side holds.
    pub frames_limit: u64,
    /// Of these, granted and not used yet.
    pub granted_frames: u64,
    /// Memory that messages which arrived and were not consumed may take.
    pub budget_bytes: u64,
    /// Of that, taken.
    pub budget_used_bytes: u64,
}

/// A peer that may want to send, as a policy is shown it.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiSender {
    /// Who.
    pub peer: u64,
    /// 1: it has more to send.
    pub active: u64,
    /// 1: it serves others too, and cannot use all that it is granted.
    pub busy: u64,
    /// Of its last frame: 0 is the most urgent.
    pub priority: u64,
    /// Of its messages that have begun to arrive: what has not.
    pub remaining_bytes: u64,
    /// Memory that its messages take here.
    pub memory_bytes: u64,
    /// Its frames that were used.
    pub served_frames: u64,
    /// Granted and not yet used.
    pub outstanding_frames: u64,
    /// What the usual rules would grant ahead, or under `suci` to be sent again.
    pub usual_frames: u64,
    /// Frames that may be granted to all peers together, less where the path holds less.
    pub pool_frames: u64,
    /// Peers that have more to send; under `suci`, that wait for permission to send again.
    pub active_peers: u64,
    /// 1, under `suci` only: it asks to send again what was lost, and the answer is how much of that it may. Else the answer is how far
    /// ahead it may send.
    pub repairs: u64,
    /// Frames that may be granted to all peers together: what the link's receive side holds, or tsumuji_set_window's.
    pub window_frames: u64,
    /// Granted to all peers together and not used yet; under `suci` permitted to be sent again and not come yet.
    pub claimed_frames: u64,
    /// Bytes that the budget for messages which arrived still holds.
    pub free_bytes: u64,
    /// Other nodes, active or not.
    pub peers: u64,
    /// When the last frame came that brought data, in nanoseconds since the handle was opened.
    pub now_ns: u64,
}

// No padding: see `ffi::put_struct`.
const _: () = assert!(size_of::<TsumujiWindow>() == 5 * 8);
const _: () = assert!(size_of::<TsumujiSender>() == 17 * 8);

/// How many frames this peer may have granted ahead; under `suci`, see `repairs`. Called for each data frame, by the thread that uses the handle or, while
/// that one makes no call, by the library's own (option progress), never by two at a time: it must be quick, share what it reads with the
/// program by atomics or a lock, and must not use the handle, leave by longjmp, or throw. `sender` is valid until it returns.
pub type TsumujiPolicy =
    Option<unsafe extern "C" fn(context: *mut c_void, sender: *const TsumujiSender) -> u64>;

/// Whose turn it is where memory is scarce: the active peer with the lowest answer begins the next message, or under `suci` is the first to
/// be told that there is room. Called as a tsumuji_policy is, and on the same terms.
pub type TsumujiRank =
    Option<unsafe extern "C" fn(context: *mut c_void, sender: *const TsumujiSender) -> u64>;

/// The windows at present; size: sizeof(tsumuji_window).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_window(
    handle: *mut Tsumuji,
    window: *mut TsumujiWindow,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `on` and `put_struct` need.
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

/// From now on so many frames are granted to all peers together, from 1 to frames_limit.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_window(handle: *mut Tsumuji, frames: usize) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            node.endpoint.set_window(some(frames)?);
            Ok(())
        })
    })
}

/// From now on no more than so many frames are granted ahead to this peer; 0: no limit of its own.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_peer_window(
    handle: *mut Tsumuji,
    peer: c_int,
    frames: usize,
) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            let peer = node.peer(peer)?;
            let limit = (frames > 0).then_some(frames);
            Ok(node.endpoint.set_peer_window(peer, limit)?)
        })
    })
}

/// From now on messages that arrived and were not consumed may take so many bytes; peers wait when they do.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_budget(handle: *mut Tsumuji, bytes: usize) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            node.endpoint.set_budget(some(bytes)?);
            Ok(())
        })
    })
}

/// From now on `policy` decides how much peers may send to this node; NULL: the usual rules do. Whatever it says, the receive side is not overrun,
/// and no peer stops for ever. Under the congestion control `suci` it is asked for each window that is stated, and for each peer that asks
/// to send again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_policy(
    handle: *mut Tsumuji,
    policy: TsumujiPolicy,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            node.policy.window = policy.map(|call| Callback { call, context });
            node.endpoint.set_policy(node.policy.boxed());
            Ok(())
        })
    })
}

/// From now on `rank` decides, where memory is scarce, who begins the next message; NULL: whose messages take the least. With or without
/// tsumuji_set_policy. A message that its sender's others wait for goes first whatever it says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_memory_rank(
    handle: *mut Tsumuji,
    rank: TsumujiRank,
    context: *mut c_void,
) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            node.policy.rank = rank.map(|call| Callback { call, context });
            node.endpoint.set_policy(node.policy.boxed());
            Ok(())
        })
    })
}

/// Has the policy asked again for every peer, where its mind has changed between two frames.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_regrant(handle: *mut Tsumuji) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            node.endpoint.regrant();
            Ok(())
        })
    })
}

/// As fast as credit and link allow.
pub const TSUMUJI_PACE_FREE: i64 = 0;
/// As fast as the receiver has lately answered, evenly, so that little waits there: the paper's "slow write".
pub const TSUMUJI_PACE_DRAIN: i64 = -1;

/// From now on messages leave to this peer at this pace: TSUMUJI_PACE_FREE, TSUMUJI_PACE_DRAIN, or so many bytes a second.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_set_pace(handle: *mut Tsumuji, peer: c_int, pace: i64) -> c_int {
    // SAFETY: the header asks for what `on` needs.
    done(unsafe {
        on(handle, |node| {
            let (peer, pace) = (node.peer(peer)?, read_pace(pace)?);
            Ok(node.endpoint.set_pace(peer, pace)?)
        })
    })
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

/// A function of the program's, and what it is given.
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
        // SAFETY: the program gave this function for such calls; what it is shown lives until it returns.
        unsafe { (self.call)(self.context, &shown) }
    }
}

/// What the program decides itself; the usual rules the rest.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Policy {
    window: Option<Callback>,
    rank: Option<Callback>,
}

impl Policy {
    /// As the endpoint takes it; `None`: the program decides nothing.
    fn boxed(self) -> Option<Box<dyn FlowPolicy>> {
        if self.window.is_none() && self.rank.is_none() {
            return None;
        }
        Some(Box::new(self))
    }
}

// SAFETY: it is called by one thread at a time: the one that uses the handle, or the progress assistant. The header says so, and asks for
// functions and a context that bear it.
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
