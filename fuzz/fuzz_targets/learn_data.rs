#![no_main]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| tsumuji_fuzz_targets::learn_data(bytes));
