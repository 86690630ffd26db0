//! Queries: members, traffic with peers, and counters.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_char, c_int};

use super::{answer, done, number};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, on};
use crate::node::{Node, Text};

/// State of the traffic with one peer.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiFlow {
    /// Smoothed round-trip time, in nanoseconds.
    pub rtt_ns: u64,
    /// Its mean deviation, in nanoseconds.
    pub rttvar_ns: u64,
    /// Frames sent and neither acknowledged nor lost.
    pub in_flight_frames: u64,
    /// Bytes that the peer's program still has room for.
    pub window_bytes: u64,
    /// Messages sent and not yet acknowledged.
    pub queued_messages: u64,
    /// Their bytes.
    pub queued_bytes: u64,
    /// Number of frames sent again.
    pub retransmitted_frames: u64,
    /// Frames that may still be sent before the peer must grant more.
    pub credit_frames: u64,
    /// Number of datagrams that a newer one replaced before they began to leave.
    pub superseded_datagrams: u64,
    /// Number of datagrams dropped because their deadline had passed.
    pub late_datagrams: u64,
    /// Number of datagrams of several frames of which one was lost.
    pub lost_datagrams: u64,
    /// The other direction: frames that the peer may still send to us.
    pub granted_frames: u64,
    /// Frames granted ahead to it at present: its share of our window.
    pub incoming_window_frames: u64,
    /// Memory that its messages use here.
    pub incoming_bytes: u64,
    /// 1: its last frame said that more wait to be sent to us.
    pub incoming_backlog: u64,
    /// 1: hello was exchanged with the peer's present incarnation.
    pub up: u64,
}

/// Counters since the endpoint was opened.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiCounters {
    /// Frames written, of every kind.
    pub sent_frames: u64,
    /// Their bytes.
    pub sent_bytes: u64,
    /// Frames received, of every kind, dropped ones included.
    pub received_frames: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Fragments sent again.
    pub retransmitted_frames: u64,
    /// Fragments thought lost whose acknowledgement came after all.
    pub spurious_losses: u64,
    /// Number of probes of silent peers.
    pub probes: u64,
    /// Messages delivered.
    pub delivered_messages: u64,
    /// Frames dropped because they were damaged, not understood, not for us, or not new.
    pub dropped_frames: u64,
    /// Frames dropped because they did not come from the address of their source.
    pub spoofed_source_frames: u64,
    /// Datagrams dropped because there was no receiver and no room.
    pub dropped_datagrams: u64,
    /// Times that the link had no free slot for a frame.
    pub link_refusals: u64,
    /// Frames that the medium or the kernel reported dropped.
    pub link_dropped_frames: u64,
    /// Broadcast frames overwritten before they were read.
    pub link_overrun_frames: u64,
    /// Frames dropped on purpose (TSUMUJI_LOSS).
    pub impaired_frames: u64,
}

// No padding: see `ffi::put_struct`.
const _: () = assert!(size_of::<TsumujiFlow>() == 16 * 8);
const _: () = assert!(size_of::<TsumujiCounters>() == 15 * 8);
const _: () = assert!(size_of::<TsumujiRemoteFlow>() == 17 * 8);

/// Number of this node.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_me(handle: Handle) -> c_int {
    number(on(handle, |node| Ok(node.endpoint.me().0.into())))
}

/// Number of nodes, this one included, as of the last tsumuji_update_members: nodes are 0 to this - 1.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_nodes(handle: Handle) -> c_int {
    number(on(handle, |node| {
        Ok(super::count(node.endpoint.members().len()))
    }))
}

/// Takes over what this node has learned of its members: tsumuji_nodes, tsumuji_name and tsumuji_address show those that joined, and new addresses,
/// from now on. Returns 1 if anything changed, else 0. Messages to and from new members pass before this call, too.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_update_members(handle: Handle) -> c_int {
    number(on(handle, |node| Ok(node.update_members().into())))
}

/// Name of a node ("node 2", a host's name); NULL if there is no such node. Valid until the handle is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_name(handle: Handle, which: c_int) -> *const c_char {
    told(handle, |node| Ok(Text::Name(node.member(which)?)))
}

/// Address of a node ("10.0.0.2:7000", an Ethernet address, an index in shared memory); NULL if there is no such node. Valid until the handle is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_address(handle: Handle, which: c_int) -> *const c_char {
    told(handle, |node| Ok(Text::Address(node.member(which)?)))
}

/// TCP address of this node's metrics; NULL if the option "metrics" did not ask for one. Valid until the handle is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_metrics_address(handle: Handle) -> *const c_char {
    told(handle, |_| Ok(Text::Metrics))
}

fn told(handle: Handle, what: impl FnOnce(&Node) -> Result<Text, Failure>) -> *const c_char {
    let text = on(handle, |node| {
        let what = what(node)?;
        let text = node.text(what).map(std::ffi::CStr::as_ptr);
        text.ok_or_else(|| Failure::invalid("there is none"))
    });
    text.unwrap_or_else(|failure| {
        failure.report();
        std::ptr::null()
    })
}

/// Name of the link, without parameters: "shm", "udp", "packet", "xdp", "dpdk", "relay"; with "shm+" before it where nodes share hosts ("shm+udp"). Valid until the handle is closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_link_name(handle: Handle) -> *const c_char {
    told(handle, |_| Ok(Text::Link))
}

/// 1: hello was exchanged with the peer's present incarnation.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_is_up(handle: Handle, peer: c_int) -> c_int {
    answer(on(handle, |node| {
        let peer = node.peer(peer)?;
        Ok(node.endpoint.is_up(peer))
    }))
}

/// 1: the peer is dead: nothing was heard from it for too long, or it left, and it has not come back.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_is_dead(handle: Handle, peer: c_int) -> c_int {
    answer(on(handle, |node| {
        let peer = node.peer(peer)?;
        Ok(node.endpoint.is_dead(peer))
    }))
}

/// 1: the peer is not met because it uses the other congestion control; 0: not as far as is known.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_congestion_differs(handle: Handle, peer: c_int) -> c_int {
    answer(on(handle, |node| {
        let peer = node.peer(peer)?;
        Ok(node.endpoint.other_congestion(peer).is_some())
    }))
}

/// Waits until hello was exchanged with all peers; returns the number of those still missing after timeout_us. TSUMUJI_EPEER: a peer has died or
/// left, and is not waited for; see tsumuji_reconnect.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_wait_up(handle: Handle, timeout_us: i64) -> c_int {
    number(on(handle, |node| {
        let missing = node.endpoint.wait_up(ffi::timeout(timeout_us))?;
        Ok(super::count(missing.len()))
    }))
}

/// Returns how many members are not met now, and writes who they are and what is known of the causes into text, for people: at most size bytes with
/// the final 0, "" if all are met. Asks the kernel about them, which takes up to a tenth of a second for each of the first eight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_absence(handle: Handle, text: *mut c_char, size: usize) -> c_int {
    // SAFETY: the header asks for what `put_text` needs.
    number(unsafe {
        on(handle, |node| {
            let absence = node.endpoint.absence();
            let missing = absence.as_ref().map_or(0, |absence| absence.members.len());
            let told = absence.map_or_else(String::new, |absence| absence.to_string());
            ffi::put_text(text, size, "text", &told)?;
            Ok(super::count(missing))
        })
    })
}

/// Tries a dead peer again: its process may have been restarted.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_reconnect(handle: Handle, peer: c_int) -> c_int {
    done(on(handle, |node| {
        let peer = node.peer(peer)?;
        Ok(node.endpoint.reconnect(peer)?)
    }))
}

/// State of the traffic with a peer; size: sizeof(tsumuji_flow).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_flow(
    handle: Handle,
    peer: c_int,
    flow: *mut TsumujiFlow,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    done(unsafe {
        on(handle, |node| {
            let id = node.peer(peer)?;
            let state = node
                .endpoint
                .flow(id)
                .ok_or_else(|| Failure::unknown(peer))?;
            let up = node.endpoint.is_up(id);
            ffi::put_struct(flow, size, &TsumujiFlow::new(&state, up))
        })
    })
}

/// What node `which` reports of its traffic with `about`, in both directions; the library there answers without its program; with the option
/// progress=program only when the program calls it. 1: answered;
/// 0: not within timeout_us microseconds. size: sizeof(tsumuji_flow).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_remote_flow(
    handle: Handle,
    which: c_int,
    about: c_int,
    flow: *mut TsumujiFlow,
    size: usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    answer(unsafe {
        on(handle, |node| {
            let (which, about) = (node.member(which)?, node.member(about)?);
            let timeout = ffi::timeout(timeout_us);
            let Some(found) = node.endpoint.remote_flow(which, about, timeout)? else {
                return Ok(false);
            };
            ffi::put_struct(flow, size, &TsumujiFlow::new(&found.flow, found.up))?;
            Ok(true)
        })
    })
}

/// Asks a node for its flows without waiting: the answer goes to tsumuji_handler's flows, or is lost. It holds flows of peers from `first` on: at
/// most `most`, and at most 32.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_request_flows(
    handle: Handle,
    which: c_int,
    first: c_int,
    most: c_int,
) -> c_int {
    done(on(handle, |node| {
        let (which, first) = (node.peer(which)?, node.member(first)?);
        let most = u16::try_from(most)
            .ok()
            .filter(|most| *most > 0)
            .ok_or_else(|| Failure::invalid("accepted numbers of flows are 1 to 65535"))?;
        Ok(node.endpoint.request_flows(which, first, most)?)
    }))
}

/// State of another node's traffic with one of its peers.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct TsumujiRemoteFlow {
    /// Number of the peer.
    pub peer: u64,
    /// The traffic as that node sees it.
    pub flow: TsumujiFlow,
}

/// As tsumuji_get_remote_flow, for all peers of the node in order of their numbers: the first `room` are written to `flows`. Returns how many there
/// are. TSUMUJI_ETIMEDOUT: not all answers arrived. size: sizeof(tsumuji_remote_flow).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_remote_flows(
    handle: Handle,
    which: c_int,
    flows: *mut TsumujiRemoteFlow,
    size: usize,
    room: usize,
    timeout_us: i64,
) -> c_int {
    // SAFETY: the header asks for `room` structures of `size` bytes: each is written below that number.
    number(unsafe {
        on(handle, |node| {
            let which = node.member(which)?;
            let found = node
                .endpoint
                .remote_flows(which, ffi::timeout(timeout_us))?
                .ok_or(Failure::TIMED_OUT)?;
            for (place, flow) in found.iter().take(room).enumerate() {
                let to = flows.byte_add(place * size);
                ffi::put_struct(to, size, &TsumujiRemoteFlow::new(flow))?;
            }
            Ok(super::count(found.len()))
        })
    })
}

impl TsumujiRemoteFlow {
    pub(super) fn new(flow: &tsumuji_node::RemoteFlow) -> Self {
        Self {
            peer: flow.peer.0.into(),
            flow: TsumujiFlow::new(&flow.flow, flow.up),
        }
    }
}

impl TsumujiFlow {
    pub(super) fn new(flow: &tsumuji_node::Flow, up: bool) -> Self {
        Self {
            rtt_ns: flow.rtt.as_nanos(),
            rttvar_ns: flow.rttvar.as_nanos(),
            in_flight_frames: flow.in_flight_frames as u64,
            window_bytes: flow.window_bytes as u64,
            queued_messages: flow.queued_messages as u64,
            queued_bytes: flow.queued_bytes as u64,
            retransmitted_frames: flow.retransmitted_frames,
            credit_frames: flow.credit_frames as u64,
            superseded_datagrams: flow.superseded_datagrams,
            late_datagrams: flow.late_datagrams,
            lost_datagrams: flow.lost_datagrams,
            granted_frames: flow.granted_frames as u64,
            incoming_window_frames: flow.incoming_window_frames as u64,
            incoming_bytes: flow.incoming_bytes as u64,
            incoming_backlog: flow.incoming_backlog.into(),
            up: up.into(),
        }
    }
}

/// Counters since the endpoint was opened; size: sizeof(tsumuji_counters).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tsumuji_get_counters(
    handle: Handle,
    counters: *mut TsumujiCounters,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    done(unsafe {
        on(handle, |node| {
            let counted = node.endpoint.counters();
            let (engine, link) = (counted.engine, counted.link);
            let shown = TsumujiCounters {
                sent_frames: engine.sent_frames,
                sent_bytes: engine.sent_bytes,
                received_frames: engine.received_frames,
                received_bytes: engine.received_bytes,
                retransmitted_frames: engine.retransmitted_frames,
                spurious_losses: engine.spurious_losses,
                probes: engine.probes,
                delivered_messages: engine.delivered_messages,
                dropped_frames: engine.drops.total() + link.damaged_frames + link.unchecked_frames,
                spoofed_source_frames: counted.spoofed_source_frames,
                dropped_datagrams: counted.dropped_datagrams,
                link_refusals: link.refused,
                link_dropped_frames: link.dropped_frames,
                link_overrun_frames: link.overrun_frames,
                impaired_frames: link.impaired_frames,
            };
            ffi::put_struct(counters, size, &shown)
        })
    })
}

/// Publishes the present counters to `tsumuji top` and other readers, as polling does ten times a second. Never waits.
#[unsafe(no_mangle)]
pub extern "C" fn tsumuji_publish_metrics(handle: Handle) -> c_int {
    done(on(handle, |node| {
        node.endpoint.publish_metrics();
        Ok(())
    }))
}
