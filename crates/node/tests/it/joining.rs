//! Members that join a running cluster, leave, die, and come back at other addresses.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use crate::common::{LONG, TestKey, inet, udp, udp_again};
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Channel, Endpoint, ImpairConfig, JoinRequest, LinkAddr, Member, Membership, NodeId,
    OpenError, Options, ProgressBy, SealMode, Security, SendError,
};

const CHANNEL: Channel = Channel::ordered(0);

/// What a process of the cluster needs to open its link.
struct Cluster {
    security: Security,
    loss: f64,
    addr_of_first: SocketAddr,
    seed: u64,
}

fn options(node: u16) -> Options {
    Options {
        admits: node == 0,
        keep_alive: Duration::from_millis(100),
        dead_after: Duration::from_secs(2),
        ..Options::default()
    }
}

impl Cluster {
    /// A cluster of so many nodes over UDP, in which node 0 admits.
    fn begin(nodes: u16, loss: f64, security: Security) -> (Self, Vec<Endpoint>) {
        let links: Vec<_> = (0..nodes).map(|_| udp()).collect();
        let addrs: Vec<SocketAddr> = links.iter().map(inet).collect();
        let mut cluster = Self {
            security,
            loss,
            addr_of_first: addrs[0],
            seed: 5,
        };
        let endpoints = (0..nodes).zip(links).map(|(id, link)| {
            let link = cluster.wrap(Base::Udp(link));
            let membership = Membership::inet(NodeId(id), &addrs);
            Endpoint::new(link, membership, options(id)).expect("endpoint")
        });
        let endpoints = endpoints.collect();
        (cluster, endpoints)
    }

    fn wrap(&mut self, base: Base) -> AnyLink {
        self.seed += 1;
        let impair = (self.loss > 0.0).then(|| ImpairConfig {
            loss: self.loss,
            seed: self.seed,
            ..ImpairConfig::default()
        });
        self.security.open(base, impair, None).expect("key")
    }

    fn try_join(
        &mut self,
        name: &str,
        id: Option<u16>,
        timeout: Duration,
    ) -> Result<Endpoint, OpenError> {
        let request = JoinRequest {
            to: LinkAddr::Inet(self.addr_of_first),
            name: name.to_owned(),
            id: id.map(NodeId),
        };
        let link = self.wrap(Base::Udp(udp()));
        Endpoint::join(link, request, options(1), timeout)
    }

    fn join(&mut self, name: &str, id: Option<u16>) -> Endpoint {
        self.try_join(name, id, LONG).expect("admitted")
    }
}

/// All know all and are up.
fn all_meet(endpoints: &mut [Endpoint], nodes: usize) {
    let start = Instant::now();
    for endpoint in endpoints.iter_mut() {
        let me = endpoint.me();
        loop {
            endpoint.update_members();
            let known = endpoint.members().len() == nodes;
            if known
                && endpoint
                    .wait_up(Duration::from_millis(50))
                    .is_ok_and(|missing| missing.is_empty())
            {
                break;
            }
            assert!(
                start.elapsed() < LONG,
                "{me} knows {} of {nodes}",
                endpoint.members().len()
            );
        }
    }
}

/// Each sends to each; all that is sent arrives.
fn all_talk(endpoints: &mut [Endpoint]) {
    let ids: Vec<NodeId> = endpoints.iter().map(Endpoint::me).collect();
    for endpoint in endpoints.iter_mut() {
        let me = endpoint.me();
        for to in ids.iter().filter(|to| **to != me) {
            let text = format!("{me} to {to}");
            let mut send = || endpoint.send(*to, CHANNEL, text.as_bytes());
            match send() {
                // Of an earlier talk, to one that was killed.
                Err(SendError::MessagesLost { .. }) => send().expect("sent"),
                sent => sent.expect("sent"),
            }
        }
    }
    for endpoint in endpoints.iter_mut() {
        let me = endpoint.me();
        for _ in 1..ids.len() {
            let message = endpoint.recv(LONG).expect("link").expect("a message");
            let text = String::from_utf8_lossy(&message.body).into_owned();
            assert_eq!(text, format!("{} to {me}", message.from));
        }
    }
}

/// Processes join one after another, and all exchange messages with all: in the clear, sealed, and with losses.
#[test]
fn all_exchange_messages_with_those_that_join() {
    let key = TestKey::new();
    for (loss, security) in [
        (0.0, Security::Open),
        (0.2, Security::Open),
        (0.1, key.sealed(SealMode::Encrypt)),
    ] {
        let (mut cluster, mut endpoints) = Cluster::begin(2, loss, security);
        all_talk(&mut endpoints);
        for nodes in 3..6 {
            let joined = cluster.join(&format!("late {nodes}"), None);
            assert_eq!(joined.me(), NodeId(nodes - 1));
            assert_eq!(joined.members().len(), usize::from(nodes));
            endpoints.push(joined);
            all_meet(&mut endpoints, nodes.into());
            all_talk(&mut endpoints);
        }
        for endpoint in &endpoints {
            assert_eq!(endpoint.name_of(NodeId(4)), "late 5");
            assert_eq!(endpoint.members(), endpoints[0].members());
        }
    }
}

/// A member that died comes back elsewhere under its id, be it one of the first or one that joined; and node 0 learns from the others whom it had
/// admitted before it was killed.
#[test]
fn members_come_back_elsewhere() {
    let (mut cluster, mut endpoints) = Cluster::begin(3, 0.0, Security::Open);
    endpoints.push(cluster.join("late", None));
    all_meet(&mut endpoints, 4);
    for id in [2, 3] {
        let refused = cluster.try_join("twice", Some(id), Duration::from_millis(500));
        let text = refused.expect_err("it is alive").to_string();
        assert!(text.contains("not dead"), "{text}");
        endpoints.remove(usize::from(id)).vanish();
        endpoints.insert(id.into(), cluster.join("back", Some(id)));
        assert_eq!(endpoints[usize::from(id)].me(), NodeId(id));
        all_meet(&mut endpoints, 4);
        all_talk(&mut endpoints);
    }
    // Node 0 at its own address again, as it was started first.
    let first: Vec<SocketAddr> = (endpoints[0].members().iter().take(3))
        .map(|member| match member.addr {
            LinkAddr::Inet(addr) => addr,
            other => panic!("{other}"),
        })
        .collect();
    endpoints.remove(0).vanish();
    let link = cluster.wrap(Base::Udp(udp_again(first[0])));
    let stale = Membership::inet(NodeId(0), &first);
    endpoints.insert(0, Endpoint::new(link, stale, options(0)).expect("endpoint"));
    all_meet(&mut endpoints, 4);
    endpoints.push(cluster.join("later", None));
    assert_eq!(endpoints[4].me(), NodeId(4), "no id is given twice");
    all_meet(&mut endpoints, 5);
    all_talk(&mut endpoints);
}

/// Node 0 that was started again admits nobody before a first member that is slow has told whom it had admitted.
#[test]
fn no_id_is_given_twice() {
    let links = [udp(), udp()];
    let addrs = links.each_ref().map(inet);
    let mut cluster = Cluster {
        security: Security::Open,
        loss: 0.0,
        addr_of_first: addrs[0],
        seed: 5,
    };
    let open = |cluster: &mut Cluster, id: u16, link| {
        let patient = Options {
            dead_after: LONG,
            progress: [ProgressBy::Assistant, ProgressBy::Program][usize::from(id)],
            ..options(id)
        };
        let membership = Membership::inet(NodeId(id), &addrs);
        Endpoint::new(cluster.wrap(Base::Udp(link)), membership, patient).expect("endpoint")
    };
    // The slow one takes part only while it is called, here after a time.
    let join_beside = |cluster: &mut Cluster, slow: &mut Endpoint, pause: Duration| {
        std::thread::scope(|scope| {
            let joining = scope.spawn(|| cluster.join("late", None));
            std::thread::sleep(pause);
            while !joining.is_finished() {
                slow.recv(Duration::from_millis(10)).expect("link");
            }
            joining.join().expect("joined")
        })
    };
    let [first, second] = links;
    let (node_0, mut slow) = (open(&mut cluster, 0, first), open(&mut cluster, 1, second));
    let late = join_beside(&mut cluster, &mut slow, Duration::ZERO);
    assert_eq!(late.me(), NodeId(2));
    let begun = Instant::now();
    while slow.members().len() < 3 {
        slow.recv(Duration::from_millis(10)).expect("link");
        slow.update_members();
        assert!(begun.elapsed() < LONG, "node 1 is not told of node 2");
    }
    node_0.vanish();
    let _node_0 = open(&mut cluster, 0, udp_again(addrs[0]));
    // Longer than node 0 waits once it has met all.
    let later = join_beside(&mut cluster, &mut slow, Duration::from_millis(1_500));
    assert_eq!(later.me(), NodeId(3));
}

/// The id of one that joined and died is given again, so that a cluster whose members come and go does not grow.
#[test]
fn ids_are_given_again() {
    let (mut cluster, mut endpoints) = Cluster::begin(2, 0.0, Security::Open);
    for round in 0..3 {
        let joined = cluster.join(&format!("round {round}"), None);
        assert_eq!(joined.me(), NodeId(2), "in round {round}");
        endpoints.push(joined);
        all_meet(&mut endpoints, 3);
        all_talk(&mut endpoints);
        let last = endpoints.pop().expect("three");
        if round == 1 {
            last.vanish();
        } else {
            last.close(LONG).expect("closed");
        }
        let start = Instant::now();
        while !endpoints.iter().all(|endpoint| endpoint.is_dead(NodeId(2))) {
            for endpoint in &mut endpoints {
                endpoint.recv(Duration::from_millis(10)).expect("link");
            }
            assert!(start.elapsed() < LONG);
        }
        std::thread::sleep(options(0).dead_after);
    }
}

/// A process that may not join is told why: at once where no time changes that.
#[test]
fn refusals_say_why() {
    let (mut cluster, mut endpoints) = Cluster::begin(2, 0.0, Security::Open);
    all_meet(&mut endpoints, 2);
    let refused = |cluster: &mut Cluster, id: Option<u16>| {
        let begun = Instant::now();
        let refused = cluster.try_join("nobody", id, LONG);
        assert!(begun.elapsed() < LONG / 2, "it asks in vain");
        refused.expect_err("refused").to_string()
    };
    let text = refused(&mut cluster, Some(7));
    assert!(
        text.contains("no other process was node 7; there are 2"),
        "{text}"
    );
    let first = cluster.addr_of_first;
    let LinkAddr::Inet(second) = endpoints[0].members()[1].addr else {
        panic!("an address")
    };
    cluster.addr_of_first = second;
    let text = refused(&mut cluster, None);
    assert!(text.contains("it is node 1: node 0 admits"), "{text}");
    cluster.addr_of_first = first;
    let known = endpoints[0].members().to_vec();
    drop(endpoints.remove(0));
    let addrs: Vec<SocketAddr> = [first, second].into();
    let closed = Endpoint::new(
        cluster.wrap(Base::Udp(udp_again(first))),
        Membership::inet(NodeId(0), &addrs),
        options(1),
    );
    let _closed = closed.expect("endpoint");
    let text = refused(&mut cluster, None);
    assert!(text.contains("it admits nobody"), "{text}");
    assert_eq!(endpoints[0].members(), known, "nobody joined");
}

/// A process that waits to be admitted tells for whom and why, long before it gives up.
#[test]
fn waits_are_told() {
    let key = TestKey::new();
    let cases = [
        (Security::Open, "or has a key, and this process has none"),
        (key.sealed(SealMode::Encrypt), "or has another key"),
    ];
    // Each says nothing for seconds: side by side.
    std::thread::scope(|scope| {
        for (security, hint) in cases {
            scope.spawn(move || {
                let mute = udp();
                let (mut cluster, _) = Cluster::begin(1, 0.0, security);
                let to = LinkAddr::Inet(inet(&mute));
                let request = JoinRequest {
                    to,
                    name: String::new(),
                    id: None,
                };
                let link = cluster.wrap(Base::Udp(udp()));
                let mut told = Vec::new();
                let mut tell = |text: &str| told.push(text.to_owned());
                let timeout = Duration::from_secs(6);
                let joined = Endpoint::join_telling(link, request, options(1), timeout, &mut tell);
                let error = joined.expect_err("nobody answers").to_string();
                let wanted = format!("node 0 at {to} (it does not answer: ");
                let [text] = &told[..] else {
                    panic!("{told:?}")
                };
                assert!(text.starts_with(&wanted) && text.contains(hint), "{text}");
                assert!(error.contains("it does not answer") && error.contains(hint));
            });
        }
    });
}

/// A program that finds its members by itself adds them; the others learn of it.
#[test]
fn members_are_added_by_hand() {
    let (mut cluster, mut endpoints) = Cluster::begin(3, 0.0, Security::Open);
    all_meet(&mut endpoints, 3);
    let base = udp();
    let new = Member {
        id: NodeId(3),
        name: "by hand".to_owned(),
        addr: LinkAddr::Inet(inet(&base)),
    };
    for id in [0, 4] {
        let wrong = Member {
            id: NodeId(id),
            ..new.clone()
        };
        let refused = endpoints[0].add_member(wrong);
        assert!(
            matches!(refused, Err(SendError::UnknownPeer { .. })),
            "{id}"
        );
    }
    endpoints[0].add_member(new).expect("added");
    let membership = Membership::of(NodeId(3), endpoints[0].members().to_vec());
    let link = cluster.wrap(Base::Udp(base));
    endpoints.push(Endpoint::new(link, membership, options(3)).expect("endpoint"));
    all_meet(&mut endpoints, 4);
    all_talk(&mut endpoints);
}

/// Processes of one host join over shared memory, more than it was made for.
#[test]
fn shared_memory_has_room_for_more() {
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("job");
    let attach = |index| {
        let base = Base::Shm(Shm::attach(&job, index).expect("attach"));
        AnyLink::open(base, None, None).expect("link")
    };
    let first = |id| {
        let membership = Membership::local(NodeId(id), 2);
        Endpoint::new(attach(id), membership, options(id)).expect("endpoint")
    };
    let mut endpoints = vec![first(0), first(1)];
    for nodes in 3..6 {
        let request = JoinRequest {
            to: LinkAddr::Local(0),
            name: String::new(),
            id: None,
        };
        let joined = Endpoint::join(attach(nodes - 1), request, options(1), LONG);
        endpoints.push(joined.expect("admitted"));
        all_meet(&mut endpoints, nodes.into());
        all_talk(&mut endpoints);
    }
    endpoints.remove(1).vanish();
    let request = JoinRequest {
        to: LinkAddr::Local(0),
        name: String::new(),
        id: Some(NodeId(1)),
    };
    let back = Endpoint::join(attach(1), request, options(1), LONG).expect("admitted");
    endpoints.insert(1, back);
    // It has the address of the one before it, so only the end of that session tells them apart.
    let start = Instant::now();
    for endpoint in endpoints.iter_mut().filter(|it| it.me() != NodeId(1)) {
        while endpoint.ended_sessions(NodeId(1)) == 0 {
            endpoint.recv(Duration::from_millis(10)).expect("link");
            assert!(start.elapsed() < LONG, "{} has not noticed", endpoint.me());
        }
    }
    all_meet(&mut endpoints, 5);
    all_talk(&mut endpoints);
}
