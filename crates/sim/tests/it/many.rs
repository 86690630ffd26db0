//! More nodes than a machine can hold: what `examples/many.rs` prints, held to what is promised of fewer.

#[path = "../../examples/many.rs"]
mod example;

use tsumuji_proto::Congestion;

/// A broadcast fills everybody's cable, and a gather the receiver's, however many there are; no receiver is overrun.
#[test]
fn cables_are_filled_among_many() {
    for nodes in [40, 200] {
        let broadcast = example::broadcast(nodes);
        assert!(
            broadcast.share >= 0.9,
            "broadcast to {nodes}: {broadcast:?}"
        );
        assert_eq!(broadcast.receive_full + broadcast.switch_full, 0);
        let gather = example::gather(nodes, Congestion::Credit);
        assert!(gather.share >= 0.9, "gather from {nodes}: {gather:?}");
        assert_eq!(gather.receive_full, 0, "gather from {nodes}: {gather:?}");
    }
}
