//! Any bytes as a key file: keys with names of their own, or an error of one line that shows nothing of a key.

use std::path::Path;

use tsumuji_seal::Keys;

/// The target.
pub fn keys(bytes: &[u8]) {
    let Err(error) = Keys::parse(bytes, Path::new("lab.key")) else {
        return;
    };
    let told = error.to_string();
    assert!(!told.contains('\n'));
    for word in String::from_utf8_lossy(bytes).split_whitespace() {
        assert!(word.len() < 20 || !told.contains(word), "{told}");
    }
}
