//! Any bytes as a key file: keys with names of their own, or an error of one line that shows nothing of a key.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use tsumuji_seal::Keys;

fuzz_target!(|bytes: &[u8]| {
    let Err(error) = Keys::parse(bytes, Path::new("lab.key")) else {
        return;
    };
    let told = error.to_string();
    assert!(!told.contains('\n'));
    for word in String::from_utf8_lossy(bytes).split_whitespace() {
        assert!(word.len() < 20 || !told.contains(word), "{told}");
    }
});
