//! Members whose endpoints were opened in ways that do not fit each other.

use std::time::Duration;

use crate::common::{self, Over, on_all};
use tsumuji_collective::{CollectiveError, Collectives, Op, Table};
use tsumuji_node::{Congestion, Endpoint, Membership, NodeId, Options};

/// An endpoint that takes no message as long as two pieces refuses operations before anything is sent.
#[test]
fn short_messages_are_too_short() {
    let options = Options {
        message_limit_bytes: 4 << 10,
        ..Options::default()
    };
    on_all(Over::Udp, 2, &options, &Table::default(), |member| {
        let world = member.collectives.world();
        let refused = member.collectives.barrier(&mut member.endpoint, world);
        assert!(
            matches!(
                refused,
                Err(CollectiveError::MessageLimit { limit: 4096, .. })
            ),
            "{refused:?}"
        );
    });
}

/// Members with another congestion control are never met, and those that wait for them are told so; the same of one that takes shorter messages.
#[test]
fn members_that_differ_are_told() {
    let differs = |options: [Options; 2], is_told: fn(&CollectiveError) -> bool| {
        let links = [common::udp(), common::udp()];
        let addrs = [common::inet(&links[0]), common::inet(&links[1])];
        std::thread::scope(|scope| {
            for ((id, link), options) in (0..).map(NodeId).zip(links).zip(options) {
                let membership = Membership::inet(id, &addrs);
                scope.spawn(move || {
                    let mut endpoint = Endpoint::new(link, membership, options).expect("endpoint");
                    let mut collectives = Collectives::with_table(&mut endpoint, Table::default());
                    let world = collectives.world();
                    let mut numbers = vec![1.0; 1 << 17];
                    let sum =
                        collectives.all_reduce(&mut endpoint, world, &mut numbers, &Op::sum());
                    let error = sum.expect_err("they do not fit");
                    assert!(is_told(&error), "{error}");
                    let _ = endpoint.close(Duration::from_millis(200));
                });
            }
        });
    };
    let other = Options {
        congestion: Congestion::SUCI,
        ..Options::default()
    };
    differs([Options::default(), other], |error| {
        matches!(error, CollectiveError::OtherControl { .. })
    });
    let short = Options {
        message_limit_bytes: 16 << 10,
        ..Options::default()
    };
    differs([Options::default(), short], |error| {
        matches!(error, CollectiveError::Mismatch { .. })
    });
}
