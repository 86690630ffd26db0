//! `suci.h`: the paper's calls, over any link.
//!
//! A socket is a handle with the ids of an address database, a destination, and the sender of the last block read. Blocks are messages on ordered
//! channel 0. Comments of exported items become the header's.
//!
//! Where the paper does not say: a block larger than the reader's buffer stays (EMSGSIZE) rather than being cut; `datagram_from` tells the sender;
//! ids of a database are numbered in order (`address_map`); a dead peer fails one call and is then tried again, as the paper has no connections.
#![allow(unsafe_code, reason = "exports symbols to C, and takes its pointers")]

use std::ffi::{c_char, c_int, c_void};
use std::time::{Duration, Instant};

use tsumuji_node::{Flow, NodeId, Options, bootstrap::was_launched, endpoint_from_env};

use crate::address_map::{AddressMap, Wanted};
use crate::api::{count, number, read_pace};
use crate::failure::Failure;
use crate::ffi;
use crate::handle::{Handle, Tsumuji, contained, on};
use crate::node::{Ids, Node, Source};
use crate::objects;

/// Environment variable of a link for all ids, which overrides the database.
const ENV_LINK: &str = "TSUMUJI_LINK";

/// Time that `datagram_close` waits for acknowledgements.
const FLUSH_WAIT: Duration = Duration::from_secs(10);

/// An open socket, which reaches every id of the address database: its handle.
#[repr(transparent)]
#[derive(Debug)]
pub struct DatagramSocket(Tsumuji);

/// Ids and their addresses. All processes must have the same ids.
#[derive(Debug, Default)]
pub struct DatagramAddrdb {
    address_map: AddressMap,
}

/// State of the traffic with an id.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
pub struct DatagramFlow {
    /// Delay: smoothed round-trip time, in nanoseconds.
    pub delay_ns: u64,
    /// Its mean deviation, in nanoseconds.
    pub jitter_ns: u64,
    /// Bytes that the peer's input queue still has room for.
    pub window: u64,
    /// Number of blocks written and not acknowledged yet.
    pub queue_length: u64,
    /// Their bytes.
    pub queue_bytes: u64,
    /// Number of packets sent again.
    pub retransmitted: u64,
}

const _: () = assert!(size_of::<DatagramFlow>() == 6 * 8); // no padding: see `ffi::put_struct`

/// Makes an empty address database. Free it with datagram_addrdb_free.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_addrdb_new() -> *mut DatagramAddrdb {
    objects::give(DatagramAddrdb::default())
}

/// Reads an address database: a line "ID ADDRESS [MAC]" for each id, # begins a comment; suci(3) lists the kinds of addresses.
/// NULL: it cannot be read (errno, tsumuji_last_error).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_addrdb_read(path: *const c_char) -> *mut DatagramAddrdb {
    given(contained(|| {
        // SAFETY: the header asks for what `path` needs.
        let address_map = AddressMap::read(unsafe { ffi::path(path, "the path") }?)?;
        Ok(objects::give(DatagramAddrdb { address_map }))
    }))
}

/// Adds an id (0 to 65535) with its address, written as in a file. 0, or -1 (errno).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_addrdb_add(
    addrdb: *mut DatagramAddrdb,
    id: c_int,
    address: *const c_char,
) -> c_int {
    yes(contained(|| {
        // SAFETY: the header asks for what `text` needs.
        let address = unsafe { ffi::text(address, "the address") }?;
        objects::with(addrdb, "the address database", |addrdb| {
            let added = addrdb.address_map.add(id.into(), address);
            added.map(|()| 0).map_err(Failure::invalid)
        })
    }))
}

/// Frees a database; NULL has no effect. Open sockets do not need it.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_addrdb_free(addrdb: *mut DatagramAddrdb) {
    objects::free(addrdb);
}

/// Opens the socket of id `myid`. myaddr: this process's address, or a link by name ("packet:eth1", "xdp:eth1", "dpdk:DEVICE", "udp"); NULL: as
/// TSUMUJI_LINK or the database says. myport: the port of addresses that state none, or 0.
///
/// In a process of `tsumuji launch` (or with TSUMUJI_CLUSTER) the endpoint comes from the environment: addrdb may then be NULL (ids are the nodes'
/// numbers), myid may be -1 (datagram_id returns it), and address and port are ignored. NULL: it cannot be opened (errno, tsumuji_last_error).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram(
    addrdb: *const DatagramAddrdb,
    myaddr: *const c_char,
    myport: c_int,
    myid: c_int,
) -> *mut DatagramSocket {
    given(contained(|| {
        // SAFETY: the header asks for what `optional_text` needs.
        let myaddr = unsafe { ffi::optional_text(myaddr, "the own address") }?;
        let address_map = (!addrdb.is_null())
            .then(|| {
                objects::with(addrdb, "the address database", |addrdb| {
                    Ok(addrdb.address_map.clone())
                })
            })
            .transpose()?;
        let port = match u16::try_from(myport) {
            Ok(0) => None,
            Ok(port) => Some(port),
            Err(_) => {
                return Err(Failure::invalid(format!(
                    "port {myport}: accepted are 0 to 65535"
                )));
            }
        };
        let node = if was_launched() {
            open_launched(address_map.as_ref(), myid)?
        } else {
            let address_map = address_map.ok_or_else(|| {
                Failure::invalid(
                    "without address database a process must be one of `tsumuji launch`",
                )
            })?;
            open_stated(address_map, myaddr, port, myid)?
        };
        Ok(Tsumuji::give(node).pointer().cast())
    }))
}

fn open_launched(address_map: Option<&AddressMap>, myid: c_int) -> Result<Node, Failure> {
    let mut node = Node::new(endpoint_from_env(Options::default())?);
    if let Some(address_map) = address_map {
        let (ids, nodes) = (address_map.ids(), node.endpoint.members().len());
        if ids.len() != nodes {
            return Err(Failure::invalid(format!(
                "the address database has {} ids, the launch {nodes} nodes",
                ids.len()
            )));
        }
        node.suci.ids = Ids::Listed(ids);
    }
    let launched = node.suci.ids.id(node.endpoint.me());
    if myid >= 0 && myid != launched {
        return Err(Failure::invalid(format!(
            "this process was launched as id {launched}, not {myid}; -1 accepts any"
        )));
    }
    Ok(node)
}

fn open_stated(
    mut address_map: AddressMap,
    myaddr: Option<&str>,
    port: Option<u16>,
    myid: c_int,
) -> Result<Node, Failure> {
    let me = u16::try_from(myid).map_err(|_| {
        Failure::invalid(format!(
            "id {myid}: accepted are 0 to 65535 (-1 under `tsumuji launch` only)"
        ))
    })?;
    let named = myaddr.filter(|addr| Wanted::names_link(addr));
    let from_env = std::env::var(ENV_LINK).ok();
    let wanted = match named.or(from_env.as_deref()) {
        Some(link) => Wanted::read(link).map_err(Failure::invalid)?,
        None => Wanted::Stated,
    };
    if let (Some(address), None) = (myaddr, named) {
        address_map
            .state_own(me, address)
            .map_err(Failure::invalid)?;
    }
    let mut node = Node::new(address_map.open(me, &wanted, port, Options::default())?);
    node.suci.ids = Ids::Listed(address_map.ids());
    Ok(node)
}

/// Waits up to 10 s for acknowledgements, tells the peers that this one leaves, and frees the socket. 0, or -1 (errno ECONNABORTED:
/// it is closed, but blocks were lost or not acknowledged in time; EBADF: it was closed before; EPERM: it belongs to another thread; otherwise it is closed,
/// and the link had failed).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_close(sock: Handle) -> c_int {
    let us = FLUSH_WAIT.as_micros() as i64;
    match crate::api::tsumuji_close(sock, us) {
        0 => 0,
        _ => -1,
    }
}

/// Sets the destination of the following writes. 0, or -1 (errno ENXIO: there is no such other id).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_destination(sock: Handle, id: c_int) -> c_int {
    yes(on(sock, |node| {
        node.suci.destination = Some(peer(node, id)?);
        Ok(0)
    }))
}

/// Writes a block to the destination; waits while the queue to it is full. Returns len, or -1 (errno).
///
/// It leaves at once if window and link permit, else in a later call, or by the library's own thread while the program computes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_write(sock: Handle, buf: *const c_void, len: c_int) -> c_int {
    // SAFETY: the header asks for what `write` needs.
    unsafe { write(sock, buf, len, true) }
}

/// As datagram_write, without waiting: -1 with errno EAGAIN if the queue is full.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_write0(sock: Handle, buf: *const c_void, len: c_int) -> c_int {
    // SAFETY: the header asks for what `write` needs.
    unsafe { write(sock, buf, len, false) }
}

/// # Safety
/// `sock` is NULL or live; `len` bytes can be read at `buf`.
unsafe fn write(sock: Handle, buf: *const c_void, len: c_int, may_wait: bool) -> c_int {
    // SAFETY: as the caller promises.
    yes(unsafe {
        on(sock, |node| {
            let block = ffi::bytes(buf, length(len)?)?;
            node.write(block, may_wait).map(|()| len)
        })
    })
}

/// Reads the next block; waits for one. Returns its size, or -1 (errno EMSGSIZE: it has more than len bytes, and waits for a larger buffer).
/// datagram_from returns its sender.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_read(sock: Handle, buf: *mut c_void, len: c_int) -> c_int {
    // SAFETY: the header asks for what `read` needs.
    unsafe { read(sock, buf, len, ffi::timeout(-1)) }
}

/// As datagram_read, without waiting: -1 with errno EAGAIN if no block is complete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_read0(sock: Handle, buf: *mut c_void, len: c_int) -> c_int {
    // SAFETY: the header asks for what `read` needs.
    unsafe { read(sock, buf, len, Duration::ZERO) }
}

/// # Safety
/// `sock` is NULL or live; `len` bytes can be written at `buf`.
unsafe fn read(sock: Handle, buf: *mut c_void, len: c_int, timeout: Duration) -> c_int {
    // SAFETY: as the caller promises. The block lies in memory of ours, not in C's.
    yes(unsafe {
        on(sock, |node| {
            let room = length(len)?;
            ffi::check_buffer(buf, room)?;
            let message = node.recv_into(Source::default(), room, timeout)?;
            ffi::copy_out(&message.body, buf)?;
            let bytes = message.body.len();
            node.suci.source = Some(message.from);
            node.endpoint.recycle(message);
            Ok(count(bytes)) // at most `len`
        })
    })
}

/// The id that sent the last block read; -1 (errno) if none was read.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_from(sock: Handle) -> c_int {
    yes(on(sock, |node| {
        let source = node.suci.source;
        let source = source.ok_or_else(|| Failure::invalid("no block was read yet"))?;
        Ok(node.suci.ids.id(source))
    }))
}

/// Whether a block is complete: returns its size, after waiting for one at most sec + usec; 0 if there is none then. -1: an error (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_ready(sock: Handle, sec: c_int, usec: c_int) -> c_int {
    yes(on(sock, |node| {
        let (timeout, began) = (span(sec, usec)?, Instant::now());
        let mut size = node.endpoint.ready(timeout)?;
        // Only programs of the plain API send empty messages, and 0 must mean "no block".
        while size == Some(0) {
            if let Some(empty) = node.endpoint.try_recv()? {
                node.endpoint.recycle(empty);
            }
            let left = timeout.saturating_sub(began.elapsed());
            size = node.endpoint.ready(left)?;
        }
        Ok(size.map_or(0, count))
    }))
}

/// Waits at most sec + usec until a block of `size` bytes to `id` can be written without waiting, and until the window that `id` stated last takes it
/// besides the blocks that are not acknowledged. A block larger than that window can be written when all are, as long as the window is not 0.
/// 1: it can; 0: not yet; -1: an error (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_wait(
    sock: Handle,
    sec: c_int,
    usec: c_int,
    size: c_int,
    id: c_int,
) -> c_int {
    yes(on(sock, |node| {
        let (timeout, size, to) = (span(sec, usec)?, length(size)?, peer(node, id)?);
        let writable = node.endpoint.wait_window(to, 0, size, timeout);
        node.again_after_death(to, writable).map(c_int::from)
    }))
}

/// Number of blocks written to `id` and not acknowledged; -1: an error (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_queue_length(sock: Handle, id: c_int) -> c_int {
    yes(on(sock, |node| {
        let to = peer(node, id)?;
        Ok(count(node.endpoint.queue_length(to)))
    }))
}

/// Receives acknowledgements, and retransmits to `id` now what would be retransmitted after the library's time-out: under the congestion control `credit`
/// the oldest packet, which asks for an acknowledgement; under `suci` it asks for permission. Not while an answer may still be on its way, for a round
/// trip. A dead peer is tried again; blocks lost with it are told once (errno ECONNABORTED). Returns how many packets were sent again meanwhile; -1: an error (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_retransmission(sock: Handle, id: c_int) -> c_int {
    yes(on(sock, |node| {
        let to = peer(node, id)?;
        let sent_again = |node: &Node| {
            let flow = node.endpoint.flow(to);
            flow.map_or(0, |flow| flow.retransmitted_frames)
        };
        let before = sent_again(node);
        node.endpoint.repair_now(to)?;
        let state = node.endpoint.wait_writable(to, 0, 0, Duration::ZERO);
        match node.again_after_death(to, state) {
            // Of a peer that is dead and tried again there is nothing more to tell.
            Err(failure) if failure.code != crate::api::TSUMUJI_EPEER => {
                return Err(failure);
            }
            _ => {}
        }
        Ok(count(sent_again(node).saturating_sub(before)))
    }))
}

/// Sets the window: bytes for blocks that arrived and were not read; peers wait when it is used. 0, or -1 (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_set_window(sock: Handle, bytes: usize) -> c_int {
    yes(on(sock, |node| {
        if bytes == 0 {
            return Err(Failure::invalid("a window has at least 1 byte"));
        }
        node.endpoint.set_budget(bytes);
        Ok(0)
    }))
}

/// Slow write by the library: sets the pace of blocks to `id`. -1: as fast as it reads; 0: as fast as its window permits; else bytes a second.
/// Returns 0, or -1 (errno).
#[unsafe(no_mangle)]
pub extern "C" fn datagram_slow_write(sock: Handle, id: c_int, pace: i64) -> c_int {
    yes(on(sock, |node| {
        let (to, pace) = (peer(node, id)?, read_pace(pace)?);
        node.endpoint.set_pace(to, pace)?;
        Ok(0)
    }))
}

/// State of the traffic with `id`; size: sizeof(datagram_flow). 0, or -1 (errno).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_get_flow(
    sock: Handle,
    id: c_int,
    flow: *mut DatagramFlow,
    size: usize,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    yes(unsafe {
        on(sock, |node| {
            let to = peer(node, id)?;
            let state = node.endpoint.flow(to).unwrap_or_default();
            ffi::put_struct(flow, size, &DatagramFlow::new(&state)).map(|()| 0)
        })
    })
}

/// What `id` reports of its traffic with the id `about`: any process may read the flow of others. Waits at most sec + usec. 1: answered; 0: not yet;
/// -1: an error (errno).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_get_remote_flow(
    sock: Handle,
    id: c_int,
    about: c_int,
    flow: *mut DatagramFlow,
    size: usize,
    sec: c_int,
    usec: c_int,
) -> c_int {
    // SAFETY: the header asks for what `put_struct` needs.
    yes(unsafe {
        on(sock, |node| {
            let (asked, about) = (peer(node, id)?, node.suci.ids.node(about)?);
            let timeout = span(sec, usec)?;
            let Some(found) = node.endpoint.remote_flow(asked, about, timeout)? else {
                return Ok(0);
            };
            ffi::put_struct(flow, size, &DatagramFlow::new(&found.flow)).map(|()| 1)
        })
    })
}

impl DatagramFlow {
    fn new(flow: &Flow) -> Self {
        Self {
            delay_ns: flow.rtt.as_nanos(),
            jitter_ns: flow.rttvar.as_nanos(),
            window: flow.window_bytes as u64,
            queue_length: flow.queued_messages as u64,
            queue_bytes: flow.queued_bytes as u64,
            retransmitted: flow.retransmitted_frames,
        }
    }
}

/// The socket's own id.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_id(sock: Handle) -> c_int {
    yes(on(sock, |node| Ok(node.suci.ids.id(node.endpoint.me()))))
}

/// Number of ids, the own one included. The first `room` of them, ascending, are written to ids, which may be NULL if room is 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn datagram_ids(sock: Handle, ids: *mut c_int, room: c_int) -> c_int {
    // SAFETY: the header asks for `room` ints at `ids`: each is written below that number.
    yes(unsafe {
        on(sock, |node| {
            let room = length(room)?;
            if ids.is_null() && room > 0 {
                return Err(Failure::invalid("the place for ids is NULL"));
            }
            let members = node.endpoint.members().len();
            for place in 0..members.min(room) {
                let id = node.suci.ids.id(NodeId(place as u16)); // below the number of members
                ffi::put(ids.add(place), "the place for ids", id)?;
            }
            Ok(count(members))
        })
    })
}

/// The socket as a handle of tsumuji.h, for everything else an endpoint offers; nodes are numbered in order of ids. It belongs to the socket: do not
/// close it.
#[unsafe(no_mangle)]
pub extern "C" fn datagram_handle(sock: Handle) -> *mut Tsumuji {
    sock.pointer()
}

/// The node of another id. A dead one is tried again by the caller, see `Node::again_after_death`.
fn peer(node: &Node, id: c_int) -> Result<NodeId, Failure> {
    let peer = node.suci.ids.node(id)?;
    if peer == node.endpoint.me() || usize::from(peer.0) >= node.endpoint.members().len() {
        return Err(Failure::unknown(id));
    }
    Ok(peer)
}

fn length(len: c_int) -> Result<usize, Failure> {
    usize::try_from(len).map_err(|_| Failure::invalid(format!("a length of {len}")))
}

fn span(sec: c_int, usec: c_int) -> Result<Duration, Failure> {
    match (u64::try_from(sec), u64::try_from(usec)) {
        (Ok(sec), Ok(usec)) => Ok(Duration::from_secs(sec) + Duration::from_micros(usec)),
        _ => Err(Failure::invalid("a time to wait must not be negative")),
    }
}

/// The paper's calls return -1 on every failure.
fn yes(result: Result<c_int, Failure>) -> c_int {
    number(result).max(-1)
}

fn given<T>(result: Result<*mut T, Failure>) -> *mut T {
    result.unwrap_or_else(|failure| {
        failure.report();
        std::ptr::null_mut()
    })
}
