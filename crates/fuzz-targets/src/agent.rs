//! Any bytes over the standard input of an agent, or from one: however they are cut, the same is understood.

use tsumuji_node::bootstrap::fuzzing::stream;

/// The target.
pub fn agent(bytes: &[u8]) {
    let Some((piece, bytes)) = bytes.split_first() else {
        return;
    };
    for from_agent in [false, true] {
        let whole = stream(bytes, 64 << 10, from_agent);
        assert_eq!(stream(bytes, usize::from(*piece), from_agent), whole);
    }
}
