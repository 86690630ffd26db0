//! Collectives of members that were there when one more joined.

use std::net::SocketAddr;
use std::sync::{Condvar, Mutex};

use crate::common::LONG;
use tsumuji_collective::{CollectiveError, Collectives, Group, Op};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Endpoint, JoinRequest, Link, LinkAddr, LinkSpec, Membership, NodeId, Options,
};

/// The number of members of a group, and the sum of their ids.
fn sum_in(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    group: Group,
) -> Result<[f64; 2], CollectiveError> {
    let mut data = [1.0, f64::from(endpoint.me().0)];
    collectives.all_reduce(endpoint, group, &mut data, &Op::sum())?;
    Ok(data)
}

fn sum_of(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
) -> Result<[f64; 2], CollectiveError> {
    let world = collectives.world();
    sum_in(endpoint, collectives, world)
}

/// A barrier for three that fails where one does not come.
#[derive(Default)]
struct Step {
    came: Mutex<usize>,
    changed: Condvar,
}

impl Step {
    fn wait(&self) {
        let mut came = self.came.lock().expect("nobody panicked");
        *came += 1;
        self.changed.notify_all();
        let goal = came.next_multiple_of(3);
        let waited = self
            .changed
            .wait_timeout_while(came, LONG, |came| *came < goal);
        assert!(
            !waited.expect("nobody panicked").1.timed_out(),
            "one failed"
        );
    }
}

/// Groups made before go on while a guest calls; a new one, by all, includes it; and its death is told, not felt.
#[test]
fn guests_take_part_in_new_groups() {
    let base = || Base::open(&LinkSpec::Udp(None)).expect("a socket");
    let bases = [base(), base()];
    let addrs: Vec<SocketAddr> = (bases.iter())
        .map(|base| match base.local_addr() {
            LinkAddr::Inet(addr) => addr,
            other => panic!("{other}"),
        })
        .collect();
    let options = Options {
        admits: true,
        ..Options::default()
    };
    // All three pass it after each step.
    let step = Step::default();
    std::thread::scope(|scope| {
        for (id, base) in (0..).zip(bases) {
            let (step, addrs, options) = (&step, &addrs, options.clone());
            scope.spawn(move || {
                let link = AnyLink::open(base, None, None).expect("link");
                let membership = Membership::inet(NodeId(id), addrs);
                let mut endpoint = Endpoint::new(link, membership, options).expect("endpoint");
                let mut before = Collectives::new(&mut endpoint).expect("no table");
                assert_eq!(sum_of(&mut endpoint, &mut before).expect("two"), [2.0, 1.0]);
                step.wait(); // the guest joins, and makes its collectives
                step.wait();
                assert_eq!(sum_of(&mut endpoint, &mut before).expect("two"), [2.0, 1.0]);
                endpoint.update_members();
                assert_eq!(endpoint.members().len(), 3);
                assert_eq!(sum_of(&mut endpoint, &mut before).expect("two"), [2.0, 1.0]);
                let all = [0, 1, 2].map(NodeId);
                let all = before.group(&endpoint, &all, 0).expect("members");
                let mut sum = || sum_in(&mut endpoint, &mut before, all);
                assert_eq!(sum().expect("three"), [3.0, 3.0]);
                step.wait(); // the guest leaves
                assert!(sum().is_err(), "of one that left");
            });
        }
        step.wait();
        let link = AnyLink::open(base(), None, None).expect("link");
        let request = JoinRequest {
            to: LinkAddr::Inet(addrs[0]),
            name: "guest".to_owned(),
            id: None,
        };
        let mut endpoint =
            Endpoint::join(link, request, Options::default(), LONG).expect("admitted");
        assert_eq!(endpoint.wait_up(LONG).expect("alive"), []);
        let mut all = Collectives::new(&mut endpoint).expect("no table");
        endpoint.flush(LONG).expect("sent");
        step.wait();
        assert_eq!(sum_of(&mut endpoint, &mut all).expect("three"), [3.0, 3.0]);
        drop((all, endpoint));
        step.wait();
    });
}
