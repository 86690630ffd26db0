//! Any bytes as what gateways, and programs that connect to them, tell each other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| tsumuji_gateway::parse_any(input));
