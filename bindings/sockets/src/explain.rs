//! What became of each connection, for `tsumuji run --explain`, and whether anything is to be done at all.
//!
//! Lines go to a copy of the standard error that the process began with, each by one system call. Counters are kept always and printed at the end of
//! the process if explanations are wanted.

use std::fmt::Write;
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64, Ordering};

use crate::address::Address;
use crate::ring::{self, SERVER};
use crate::sys;
use crate::table::{self, Socket, Use};

/// What is counted.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Count {
    Offered,
    Claimed,
    Carried,
    NoMailbox,
    Brief,
    NoPort,
    Retracted,
    PlainAccepted,
    Refused,
    Mismatched,
    Datagram,
    Demoted,
    Bell,
    Wake,
    Sleep,
}

const NAMES: [&str; 15] = [
    "offered",
    "claimed",
    "carried",
    "connected_without_mailbox",
    "left_to_tcp_as_short",
    "without_port",
    "offers_retracted",
    "accepted_without_hello",
    "refused_hellos",
    "mismatched_hellos",
    "datagram_sockets",
    "demoted",
    "bells",
    "wakes",
    "sleeps",
];

static COUNTS: [AtomicU64; NAMES.len()] = [const { AtomicU64::new(0) }; NAMES.len()];
static SENT: AtomicU64 = AtomicU64::new(0);
static RECEIVED: AtomicU64 = AtomicU64::new(0);
/// Where lines go; -1: nowhere.
static FD: AtomicI32 = AtomicI32::new(-1);
static IS_JSON: AtomicU32 = AtomicU32::new(0);
static IS_OFF: AtomicU32 = AtomicU32::new(0);

pub(crate) fn count(what: Count) {
    COUNTS[what as usize].fetch_add(1, Ordering::Relaxed);
}

/// Puts what a stream has counted by itself to the process's counters.
pub(crate) fn gather(socket: &Socket) {
    let counted = [
        (&socket.bells, Count::Bell),
        (&socket.wakes, Count::Wake),
        (&socket.sleeps, Count::Sleep),
    ];
    for (own, what) in counted {
        let times = own.swap(0, Ordering::Relaxed);
        COUNTS[what as usize].fetch_add(times.into(), Ordering::Relaxed);
    }
}

/// No more lines: the process confines itself.
pub(crate) fn fall_silent() {
    FD.store(-1, Ordering::Relaxed);
}

/// Nothing shall be carried any more.
pub(crate) fn turn_off() {
    IS_OFF.store(1, Ordering::Relaxed);
}

pub(crate) fn is_off() -> bool {
    crate::start::ensure();
    IS_OFF.load(Ordering::Relaxed) != 0
}

pub(crate) fn own_moved(from: i32, to: i32) {
    let _ = FD.compare_exchange(from, to, Ordering::AcqRel, Ordering::Relaxed);
}

/// Lines are wanted.
pub(crate) fn begin(is_json: bool) {
    let fd = sys::fcntl(2, libc::F_DUPFD_CLOEXEC, 3);
    if let Ok(fd) = fd {
        IS_JSON.store(u32::from(is_json), Ordering::Relaxed);
        FD.store(table::keep_own(fd as i32), Ordering::Relaxed);
    }
}

fn is_wanted() -> bool {
    FD.load(Ordering::Relaxed) >= 0
}

/// One line: what happened to which connection, and why.
fn say(event: &str, what: &str, path: &str, why: &str) {
    let mut line = String::new();
    let pid = sys::getpid();
    let _ = if IS_JSON.load(Ordering::Relaxed) != 0 {
        writeln!(
            line,
            r#"{{"pid":{pid},"event":"{event}","address":"{what}","path":"{path}","why":"{why}"}}"#
        )
    } else {
        let colon = if why.is_empty() { "" } else { ": " };
        writeln!(line, "tsumuji[{pid}]: {event} {what}: {path}{colon}{why}")
    };
    sys::write_line(FD.load(Ordering::Relaxed), &line);
}

pub(crate) fn listens(address: &Address, why: &str) {
    if is_wanted() {
        let path = if why.is_empty() {
            "carries connections over shm"
        } else {
            "tcp"
        };
        say("listens at", &address.text(), path, why);
    }
}

pub(crate) fn plain_connect(target: &Address, what: Count, why: &str, result: i32) {
    count(what);
    if is_wanted() && (result == 0 || crate::handshake::is_in_progress(crate::sys::errno())) {
        say("connects to", &target.text(), "tcp", why);
    }
}

pub(crate) fn plain_accept(client: &Address) {
    count(Count::PlainAccepted);
    if is_wanted() {
        let why = "the client left no hello";
        say("accepts", &client.text(), "tcp", why);
    }
}

/// What carries a stream, or would.
fn path(using: &Use) -> &'static str {
    match using.gateway() {
        Some(_) => "gateway",
        None => "shm",
    }
}

pub(crate) fn offered(using: &Use, target: &Address) {
    count(Count::Offered);
    if is_wanted() {
        let path = ["offered over ", path(using)].concat();
        say("connects to", &target.text(), &path, "");
    }
}

pub(crate) fn claimed(using: &Use, client: &Address) {
    count(Count::Claimed);
    if is_wanted() {
        let path = ["claimed over ", path(using)].concat();
        say("accepts", &client.text(), &path, "");
    }
}

pub(crate) fn carried(using: &Use) {
    count(Count::Carried);
    if is_wanted() {
        say(
            "carries",
            &name(using, using.any_fd()),
            path(using),
            "both ends have agreed",
        );
    }
}

pub(crate) fn demoted(using: &Use, why: &str) {
    if is_wanted() {
        say("gives up", &name(using, using.any_fd()), "tcp", why);
    }
}

/// A stream is closed: its bytes count.
pub(crate) fn closed(using: &Use, fd: Option<i32>) {
    let sent = using.sent.swap(0, Ordering::Relaxed);
    let received = using.received.swap(0, Ordering::Relaxed);
    SENT.fetch_add(sent, Ordering::Relaxed);
    RECEIVED.fetch_add(received, Ordering::Relaxed);
    if is_wanted() {
        let is_carried = using.is_carried.load(Ordering::Relaxed) != 0;
        let path = if is_carried { path(using) } else { "tcp" };
        let why = if is_carried {
            format!("{sent} bytes sent, {received} received by rings")
        } else if using.slot().state.load(Ordering::Acquire) & ring::CLAIMED != 0 {
            "another process goes on with it".to_owned()
        } else {
            "nobody has claimed it".to_owned()
        };
        say("closes", &name(using, fd), path, &why);
    }
}

fn name(using: &Use, fd: Option<i32>) -> String {
    let address = fd
        .and_then(|fd| crate::address::peer(fd).ok())
        .unwrap_or_default();
    let from = if using.side() == SERVER { "from" } else { "to" };
    format!("the connection {from} {}", address.text())
}

/// At the end of the process.
pub(crate) fn end() {
    let is_idle = COUNTS
        .iter()
        .all(|count| count.load(Ordering::Relaxed) == 0);
    if !is_wanted() || is_idle {
        return;
    }
    table::for_each_stream(|socket| {
        let using = table::using(socket);
        closed(&using, using.any_fd());
        gather(socket);
    });
    let mut line = String::new();
    let pid = sys::getpid();
    let is_json = IS_JSON.load(Ordering::Relaxed) != 0;
    let counted = NAMES.iter().zip(&COUNTS);
    let values = counted.map(|(name, count)| (*name, count.load(Ordering::Relaxed)));
    let bytes = [
        ("sent_bytes", SENT.load(Ordering::Relaxed)),
        ("received_bytes", RECEIVED.load(Ordering::Relaxed)),
    ];
    let _ = if is_json {
        write!(line, r#"{{"pid":{pid},"event":"counters""#)
    } else {
        write!(line, "tsumuji[{pid}]: counters:")
    };
    for (name, value) in values.chain(bytes) {
        if is_json {
            let _ = write!(line, r#","{name}":{value}"#);
        } else if value != 0 {
            let _ = write!(line, " {name}={value}");
        }
    }
    line.push_str(if is_json { "}\n" } else { "\n" });
    sys::write_line(FD.load(Ordering::Relaxed), &line);
}
