//! Where nothing can be written: one line says so, the exit code is 1 or 2, and nothing is left half-written.

mod common;

use std::process::Command;

use common::text;

/// A key that cannot be written leaves no file in its place, so that the next try is not refused for it.
#[test]
fn key_leaves_no_empty_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cluster.key");
    let program = env!("CARGO_BIN_EXE_tsumuji");
    // Files may have no bytes; the signal that says so is ignored, and writing fails as on a full disk.
    let limited = "trap '' XFSZ; ulimit -f 0; exec \"$0\" key \"$1\"";
    let output = Command::new("sh")
        .args(["-c", limited, program])
        .arg(&path)
        .output()
        .unwrap();
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.starts_with("tsumuji: cannot write a key to ") && said.lines().count() == 1,
        "{said}"
    );
    assert!(!path.exists());
}
