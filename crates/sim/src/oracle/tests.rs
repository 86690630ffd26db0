use super::*;

const A: NodeId = NodeId(0);
const B: NodeId = NodeId(1);
const CHANNEL: Channel = Channel::ordered(0);

fn up(oracle: &mut Oracle, at: NodeId, peer: NodeId, incarnation: u32) {
    oracle
        .happened(at, &Event::PeerUp { peer, incarnation })
        .unwrap();
}

/// Two nodes of incarnations 10 and 20 that have each other up.
fn acquainted() -> Oracle {
    let mut oracle = Oracle::default();
    oracle.born(A, 10);
    oracle.born(B, 20);
    up(&mut oracle, A, B, 20);
    up(&mut oracle, B, A, 10);
    oracle
}

fn submit(oracle: &mut Oracle, channel: Channel, checksum: u64, id: u64) {
    let message = Expected {
        bytes: 8,
        checksum,
        submitted: Instant::default(),
        keep: false,
    };
    oracle
        .submitted((A, B), channel, message, (SendId(id), true))
        .unwrap();
}

fn deliver(oracle: &mut Oracle, channel: Channel, checksum: u64) -> Result<(), String> {
    oracle.delivered((A, B), channel, 8, checksum).map(|_| ())
}

/// Deliveries in order are right; overtaking, repeated and invented messages are reported as such.
#[test]
fn ordered_channel_is_judged() {
    let mut oracle = acquainted();
    for id in 1..4 {
        submit(&mut oracle, CHANNEL, id * 100, id);
    }
    deliver(&mut oracle, CHANNEL, 100).unwrap();
    assert!(
        deliver(&mut oracle, CHANNEL, 300)
            .unwrap_err()
            .contains("overtakes 1")
    );
    assert!(
        deliver(&mut oracle, CHANNEL, 100)
            .unwrap_err()
            .contains("delivered before")
    );
    assert!(
        deliver(&mut oracle, CHANNEL, 999)
            .unwrap_err()
            .contains("invented")
    );
    assert!(
        deliver(&mut oracle, Channel::ordered(1), 200)
            .unwrap_err()
            .contains("invented"),
        "another channel"
    );
    deliver(&mut oracle, CHANNEL, 200).unwrap();
    deliver(&mut oracle, CHANNEL, 300).unwrap();
    assert_eq!(oracle.waiting(), 0);
}

/// On an unordered channel messages may overtake each other, and may not be repeated.
#[test]
fn unordered_channel_is_judged() {
    let mut oracle = acquainted();
    let channel = Channel::unordered(0);
    submit(&mut oracle, channel, 100, 1);
    submit(&mut oracle, channel, 200, 2);
    deliver(&mut oracle, channel, 200).unwrap();
    assert!(deliver(&mut oracle, channel, 200).is_err());
    deliver(&mut oracle, channel, 100).unwrap();
}

/// A message to one incarnation of a peer must not reach the next.
#[test]
fn former_lives_are_told_apart() {
    let mut oracle = acquainted();
    submit(&mut oracle, CHANNEL, 100, 1);
    oracle.ended(B);
    assert!(
        deliver(&mut oracle, CHANNEL, 100)
            .unwrap_err()
            .contains("dead")
    );
    oracle.born(B, 21);
    assert!(
        deliver(&mut oracle, CHANNEL, 100)
            .unwrap_err()
            .contains("no PeerUp")
    );
    up(&mut oracle, B, A, 10);
    assert!(
        deliver(&mut oracle, CHANNEL, 100)
            .unwrap_err()
            .contains("session 0")
    );
    assert_eq!(oracle.waiting(), 1);
    oracle
        .happened(
            A,
            &Event::PeerDead {
                peer: B,
                failed_messages: 1,
            },
        )
        .unwrap();
    assert_eq!(oracle.waiting(), 0);
    up(&mut oracle, A, B, 21);
    submit(&mut oracle, CHANNEL, 200, 2);
    deliver(&mut oracle, CHANNEL, 200).unwrap();
    assert!(
        oracle
            .happened(
                A,
                &Event::PeerUp {
                    peer: B,
                    incarnation: 5
                }
            )
            .is_err(),
        "a incarnation it never had"
    );
}

/// Events out of turn are violations: up twice, sent twice, sent after death, more failed than submitted.
#[test]
fn events_are_judged() {
    let mut oracle = acquainted();
    assert!(
        oracle
            .happened(
                A,
                &Event::PeerUp {
                    peer: B,
                    incarnation: 20
                }
            )
            .unwrap_err()
            .contains("without PeerDead")
    );
    submit(&mut oracle, CHANNEL, 1, 7);
    submit(&mut oracle, CHANNEL, 2, 8);
    assert_eq!(oracle.unsent(), 2);
    oracle
        .happened(
            A,
            &Event::Sent {
                peer: B,
                id: SendId(7),
            },
        )
        .unwrap();
    assert!(
        oracle
            .happened(
                A,
                &Event::Sent {
                    peer: B,
                    id: SendId(7)
                }
            )
            .is_err()
    );
    assert!(
        oracle
            .happened(
                A,
                &Event::PeerDead {
                    peer: B,
                    failed_messages: 3
                }
            )
            .is_err()
    );
    assert!(
        oracle
            .happened(
                A,
                &Event::Sent {
                    peer: B,
                    id: SendId(8)
                }
            )
            .is_err()
    );
}

/// Messages that were never told to be sent fail with the session, and those that fail are told as lost.
#[test]
fn losses_are_told() {
    let judge = |messages, failed_messages| {
        let mut oracle = acquainted();
        for id in 1..=3 {
            submit(&mut oracle, CHANNEL, 100 + id, id);
        }
        let lost = Event::MessagesLost { peer: B, messages };
        oracle.happened(A, &lost).unwrap();
        let dead = Event::PeerDead {
            peer: B,
            failed_messages,
        };
        oracle.happened(A, &dead)
    };
    assert_eq!(judge(3, 3), Ok(()));
    assert!(judge(1, 3).unwrap_err().contains("1 were told as lost"));
    assert!(judge(0, 0).unwrap_err().contains("3 were never told"));
}

/// Where the next messages of two sessions between the same incarnations are equal, a delivery may be of either: all of the later session, though the
/// earlier one's were lost, or first those of the earlier one. No more may come than both have together, and on an ordered channel nothing after its
/// successor.
#[test]
fn equal_messages_may_be_of_either_session() {
    for channel in [CHANNEL, Channel::unordered(0)] {
        for late in 0..3 {
            let mut oracle = acquainted();
            let empty = 7;
            submit(&mut oracle, channel, empty, 1);
            submit(&mut oracle, channel, empty, 2);
            let failed_messages = 2;
            let dead = Event::PeerDead {
                peer: B,
                failed_messages,
            };
            let lost = Event::MessagesLost {
                peer: B,
                messages: 2,
            };
            oracle.happened(A, &lost).unwrap();
            oracle.happened(A, &dead).unwrap();
            up(&mut oracle, A, B, 20);
            submit(&mut oracle, channel, empty, 3);
            submit(&mut oracle, channel, empty, 4);
            submit(&mut oracle, channel, 100, 5);
            for _ in 0..late + 2 {
                deliver(&mut oracle, channel, empty).unwrap();
            }
            deliver(&mut oracle, channel, 100).unwrap();
            assert_eq!(oracle.waiting(), 0);
            if channel != CHANNEL {
                for _ in late..2 {
                    deliver(&mut oracle, channel, empty).unwrap();
                }
            }
            assert!(deliver(&mut oracle, channel, empty).is_err());
        }
    }
}

/// A node that had a later incarnation of a peer up must not return to an earlier one.
#[test]
fn lives_only_go_forward() {
    let mut oracle = acquainted();
    oracle.ended(B);
    oracle.born(B, 21);
    oracle
        .happened(
            A,
            &Event::PeerDead {
                peer: B,
                failed_messages: 0,
            },
        )
        .unwrap();
    up(&mut oracle, A, B, 21);
    oracle
        .happened(
            A,
            &Event::PeerDead {
                peer: B,
                failed_messages: 0,
            },
        )
        .unwrap();
    assert!(
        oracle
            .happened(
                A,
                &Event::PeerUp {
                    peer: B,
                    incarnation: 20
                }
            )
            .unwrap_err()
            .contains("earlier incarnation")
    );
}

/// A datagram of an incarnation that is not up is a violation.
#[test]
fn shares_are_of_the_present_incarnation() {
    let mut oracle = acquainted();
    oracle.shared(A, B, 10).unwrap();
    assert!(oracle.shared(A, B, 9).is_err());
    oracle
        .happened(
            B,
            &Event::PeerDead {
                peer: A,
                failed_messages: 0,
            },
        )
        .unwrap();
    assert!(oracle.shared(A, B, 10).is_err());
}
