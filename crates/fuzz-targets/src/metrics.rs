//! Any text as the metrics that another process shows: every sample has a name, and as many as there are lines at most.

use tsumuji_node::metrics::parse;

/// The target.
pub fn metrics(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let samples = parse(&text);
    assert!(samples.len() <= text.lines().count());
    for sample in &samples {
        assert!(!sample.name.contains(['{', ' ']));
        let _ = sample.label("node");
    }
}
