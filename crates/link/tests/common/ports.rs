//! Ports for processes that a test starts.

use std::fs::read_to_string;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

/// Below those that the kernel hands out by itself (32768 and up), so that no other socket takes them meanwhile.
const PORTS: Range<u32> = 10_000..30_000;

/// So many ports in a row without a socket, given once in this process.
///
/// They are looked up, not tried: of a socket that was bound here a child that another thread
/// starts at that moment has a copy, until it runs its program.
pub(crate) fn free_ports(count: u16) -> Range<u16> {
    static GIVEN: AtomicU32 = AtomicU32::new(0);
    let tables = ["tcp", "tcp6", "udp", "udp6"];
    let tables = tables.map(|name| read_to_string(format!("/proc/net/{name}")).unwrap_or_default());
    // As in "0100007F:2710 00000000:0000".
    let is_free = |port: u16| {
        let local = format!(":{port:04X} ");
        !tables.iter().any(|table| table.contains(&local))
    };
    let places = PORTS.end - PORTS.start - u32::from(count);
    let mut rows = (0..places).map(|_| {
        let given = GIVEN.fetch_add(count.into(), Ordering::Relaxed);
        // Test programs that run side by side have ids one after the other.
        let first = PORTS.start + (std::process::id() * 97 + given) % places;
        let first = u16::try_from(first).expect("a port");
        first..first + count
    });
    let free = rows.find(|row| row.clone().all(is_free));
    free.expect("a row of free ports")
}
