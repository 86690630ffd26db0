//! Any text as a profile of `tsumuji tune`: thresholds within their bounds and a table of rules that chooses for any call, or an error of one line.

use std::path::Path;

use tsumuji_collective::Table;
use tsumuji_node::Profile;

/// The target.
pub fn profile(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match Profile::parse(text, Path::new("tune.toml")) {
        Ok(profile) => {
            let links = profile.link.keys().map(String::as_str);
            for link in links.chain(["shm", "udp", "shm+udp", ""]) {
                let tuning = profile.tuning(link);
                assert!((4..=64).contains(&tuning.poll_frames), "{tuning:?}");
                assert!((1024..=65_535).contains(&tuning.frame_bytes), "{tuning:?}");
                assert!((1..=8192).contains(&tuning.elements), "{tuning:?}");
            }
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error:?}"),
    }
    match Table::parse(text, "tune.toml") {
        Ok(table) => {
            let again = Table::parse(&table.to_toml(), "tune.toml").expect("its own text");
            assert_eq!(again.rules, table.rules);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "{error:?}"),
    }
}
