//! The gateway of a host: carries the streams of its unmodified programs to the gateways of other hosts.
//!
//! One process for each user and host. A program whose sockets layer (`bindings/sockets`) finds no listener on its own host asks the gateway, which asks that of
//! the host with the address. If a listener there takes part, both gateways stand for the other program: they read and write rings in shared memory as
//! a program of their own host would, and pass the bytes on by messages, over whatever link the hosts file names. The kernel's connection joins the
//! two programs all the same: it says who is connected, when an end has gone, and carries the data of whoever does not take part.
//!
//! Rooms: `gateway` has the loop, `gateway::offers` finds the ends of streams; `stream` is one connection; `end` is the program's side of it; `message` is what gateways say
//! to each other; `segment` and `mailbox` are memory and UNIX sockets; `tuning` has the numbers.
//!
//! Invariants: whatever comes from a program or another host is bounded before it is used, and can end its own stream only. A message of a stream waits on its
//! own channel with its own budget, so a program that does not read holds up no other. No allocation for each frame but in the reassembly of
//! messages.
//!
//! Left out on purpose: finding gateways by broadcast (the hosts file names them); programs of other users.

mod addresses;
mod end;
mod gateway;
mod mailbox;
mod message;
mod segment;
mod stream;
mod tuning;

pub use gateway::{Counters, Gateway, OpenError};

/// For the fuzz target: any bytes are parsed without a panic.
#[doc(hidden)]
pub fn parse_any(bytes: &[u8]) {
    let _ = message::Control::parse(bytes);
    if let Some((_, _, rest)) = message::split(bytes) {
        let _ = (message::pair(rest), message::number(rest));
    }
    let _ = tsumuji_streams::hello::Hello::parse(bytes);
}
