//! Any text as the statement of another rank, the answer of a launcher's service, and the kernel's table of routes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tsumuji_node::bootstrap::fuzzing::is_understood;

fuzz_target!(|text: &str| {
    is_understood(text);
});
