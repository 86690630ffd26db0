//! Endpoints under the congestion control `suci` over real links, and those that differ in it.

use std::thread;
use std::time::{Duration, Instant};

use crate::common::{ALL, LONG, Over, inet, pair, pattern, udp};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Channel, Congestion, CongestionKind, Endpoint, MeetError, Membership, NodeId, Options,
    SealMode, SendError,
};

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

fn under(congestion: Congestion) -> Options {
    Options {
        congestion,
        ..Options::default()
    }
}

/// Messages of all sizes go both ways at once over every link, with and without losses, whole and in order.
#[test]
fn suci_carries_all_sizes_in_order() {
    let sizes = [0, 1, 1400, 9000, 70_000, 1 << 20, 3, 65_535, 300_000];
    for over in ALL.into_iter().chain([Over::SealedUdp(SealMode::Encrypt)]) {
        let (mut a, mut b) = pair(over, &under(Congestion::SUCI));
        let peer = thread::spawn(move || {
            for (index, size) in (0..).zip(sizes) {
                let message = b.recv(LONG).expect("recv").expect("a message");
                assert!(
                    message.body == pattern(size, index),
                    "message {index} over {over:?} differs"
                );
                b.send(A, CHANNEL, &message.body).expect("send");
            }
            let _ = b.close(LONG);
        });
        for (index, size) in (0..).zip(sizes) {
            a.send(B, CHANNEL, &pattern(size, index)).expect("send");
        }
        for (index, size) in (0..).zip(sizes) {
            let message = a.recv(LONG).expect("recv").expect("an echo");
            assert!(
                message.body == pattern(size, index),
                "echo {index} over {over:?} differs"
            );
        }
        assert!(a.flush(LONG).expect("flush"));
        let counters = a.counters().engine;
        let lossy = matches!(over, Over::LossyUdp(_) | Over::LossyShm(_));
        // Which side has lost frames is chance.
        let permitted = counters.asks + counters.grants;
        assert!(permitted > 0 || !lossy, "{over:?}: {counters:?}");
        let _ = a.close(LONG); // before joining: the peer's last acknowledgements need our turns
        peer.join().expect("peer");
    }
}

/// Two endpoints that were opened with different congestion controls do not wait for each other in silence: both are told why.
#[test]
fn different_controls_are_refused_by_name() {
    let links = [udp(), udp()];
    let addrs: Vec<_> = links.iter().map(inet).collect();
    let mut endpoints: Vec<Endpoint> = Vec::new();
    for ((link, id), congestion) in links.into_iter().zip(0..).zip(Congestion::ALL) {
        let link = AnyLink::open(Base::Udp(link), None, None).expect("link");
        let membership = Membership::inet(NodeId(id), &addrs);
        endpoints.push(Endpoint::new(link, membership, under(congestion)).expect("endpoint"));
    }
    let [a, b] = &mut endpoints[..] else {
        unreachable!("two");
    };
    while b.other_congestion(A).is_none() {
        a.progress().expect("turn");
        b.progress().expect("turn");
    }
    assert_eq!(a.wait_up(LONG).expect("wait"), [B], "and returns at once");
    assert_eq!(a.other_congestion(B), Some(CongestionKind::Suci));
    assert_eq!(b.other_congestion(A), Some(CongestionKind::Credit));
    let began = Instant::now();
    let never = a.meet(LONG, |_| -> Result<(), MeetError> {
        unreachable!("nothing is waited for")
    });
    assert!(matches!(never, Err(MeetError::Differs { .. })), "{never:?}");
    assert!(began.elapsed() < Duration::from_secs(2), "told at once");
    let refused = a.wait_writable(B, 0, 100 << 20, LONG);
    assert!(matches!(
        refused,
        Err(SendError::OtherCongestion {
            peer: B,
            theirs: CongestionKind::Suci
        })
    ));
    let told = refused.expect_err("refused").to_string();
    assert!(
        told.contains("`suci`") && told.contains("--congestion"),
        "{told}"
    );
}
