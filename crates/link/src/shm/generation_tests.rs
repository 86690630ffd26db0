//! Nodes that come and go without end, and join beyond those that the job was made for.

use std::os::fd::AsFd;
use std::time::Instant;

use super::segment::layout_within;
use super::tests::{SMALL, attach_again, fill, receive, send, small, taken_bytes};
use super::*;

/// A node that comes back ten thousand times talks each time, and takes no more memory in the end.
#[test]
fn a_node_comes_back_without_end() {
    let job = small(2);
    let mut a = Shm::attach(&job, 0).expect("attach");
    let mut early_bytes = 0;
    for round in 0..10_000_u32 {
        let mut b = attach_again(&job, 1);
        assert!(send(&mut b, LinkAddr::Local(0), &round.to_le_bytes()));
        assert_eq!(receive(&mut a), [round.to_le_bytes()]);
        assert!(send(&mut a, LinkAddr::Local(1), b"welcome"));
        assert_eq!(receive(&mut b), [b"welcome"], "{round}");
        if round == 500 {
            early_bytes = taken_bytes(&job); // the ring towards that node has wrapped
        }
    }
    let taken = taken_bytes(&job);
    assert!(taken <= early_bytes, "{taken}, before {early_bytes} bytes");
}

/// The last generations lie where offsets end. Behind them, and after garbage in their count, attaching is refused, and live processes go on.
#[test]
fn generations_lie_as_far_as_offsets_go() {
    let job = small(2);
    let mut a = Shm::attach(&job, 0).expect("attach");
    let most = a.job.layout.generations;
    assert!(most > 1 << 20, "{most}");
    for left in [1 << 20, 3, 1] {
        a.job.pass_generations_for_test(most - left);
        let mut b = attach_again(&job, 1);
        assert_eq!(b.generation, most - left + 1);
        assert!(send(&mut a, LinkAddr::Local(1), b"far out"));
        assert_eq!(receive(&mut b), [b"far out"]);
        assert!(send(&mut b, LinkAddr::Local(0), b"heard"));
        assert_eq!(receive(&mut a), [b"heard"]);
        assert!(!b.has_dead_generations);
    }
    for count in [most, most + 7, u64::MAX - 1] {
        a.job.pass_generations_for_test(count);
        let error = Shm::attach(&job, 2).expect_err("none is left");
        assert!(
            matches!(error, ShmAttachError::NoGenerationsLeft { .. }),
            "{error}"
        );
    }
    assert_eq!(receive(&mut a), Vec::<Vec<u8>>::new());
}

/// Each link sends each other one a frame, and all arrive.
fn all_talk(links: &mut [Shm]) {
    let addrs: Vec<_> = links.iter().map(Link::local_addr).collect();
    for link in links.iter_mut() {
        receive(link);
    }
    for (link, me) in links.iter_mut().zip(&addrs) {
        for to in addrs.iter().filter(|to| *to != me) {
            assert!(send(link, *to, b"hello"), "{me} to {to}");
        }
    }
    for link in links.iter_mut() {
        assert_eq!(receive(link).len(), addrs.len() - 1);
    }
}

/// Nodes beyond those that the job was made for join and talk with all. A place that one leaves is given again, and its memory let go.
#[test]
fn nodes_join_beyond_those_expected() {
    let job = small(2);
    let attach = |node| Shm::attach(&job, node).expect("attach");
    let mut links = vec![attach(0), attach(1)];
    // Nobody has taken that place yet; there is none behind the last.
    let mut try_to = |node| links[0].send_one(LinkAddr::Local(node), Frame::whole(b"x"));
    assert!(matches!(try_to(2), Ok(false)));
    let unknown = try_to(NODES_MAX as u16);
    assert!(matches!(unknown, Err(LinkError::NoSuchPeer { .. })));
    for node in 2..40 {
        let joined = Shm::attach_free(&job, 2, false).expect("a free place");
        assert_eq!(joined.local_addr(), LinkAddr::Local(node));
        links.push(joined);
    }
    all_talk(&mut links);
    let left = links.remove(5);
    let process = links[0].process_at(LinkAddr::Local(5));
    assert_eq!(process, Some(left.generation));
    drop(left);
    let back = attach_again(&job, 5);
    assert!(back.has_dead_generations);
    links.push(back);
    all_talk(&mut links);
    assert!(links.iter().all(|link| !link.has_dead_generations));
    assert_eq!(links[0].process_at(LinkAddr::Local(40)), Some(0));
    drop(links.remove(7));
    let fresh = Shm::attach_free(&job, 2, true).expect("a place");
    assert_eq!(fresh.local_addr(), LinkAddr::Local(40));
}

/// The last place of all is as good as any; there is none behind it.
#[test]
fn places_end() {
    let job = small(2);
    let last = NODES_MAX as u16 - 1;
    let a = Shm::attach(&job, 0).expect("attach");
    let z = Shm::attach_free(&job, last, false).expect("the last place");
    assert_eq!(z.local_addr(), LinkAddr::Local(last));
    all_talk(&mut [a, z]);
    let _z = attach_again(&job, last);
    let error = Shm::attach_free(&job, last, false).expect_err("none is free");
    assert!(matches!(error, ShmAttachError::Full { nodes: NODES_MAX }));
    let nobody = Shm::attach_free(&job, u16::MAX, false).expect_err("no such place");
    assert!(matches!(nobody, ShmAttachError::Full { .. }));
}

/// Where the size of files is limited, fewer nodes may join first, and only then are there fewer generations; each node that was asked for has one.
#[test]
fn limits_of_file_sizes_are_kept() {
    for (limit, nodes_max) in [(u64::MAX, NODES_MAX), (1 << 40, 2048), (1 << 20, 2)] {
        let layout = layout_within(limit, 2, SMALL).expect("it fits");
        assert_eq!(layout.nodes_max, nodes_max);
        assert!(layout.total_bytes <= limit && layout.generations >= 2);
    }
    let error = layout_within(500_000, 2, SMALL).expect_err("too small");
    assert!(
        matches!(error, ShmCreateError::FileSizeLimit { nodes: 2, .. }),
        "{error}"
    );
}

/// A node's dead generations stay as long as a process lives that joined, perhaps read the directory before, and is not known to that node yet.
#[test]
fn an_unknown_reader_keeps_dead_generations() {
    let job = small(2);
    let mut b = Shm::attach(&job, 1).expect("attach");
    fill(&mut b);
    drop(b);
    let reader = Job::claim_free(job.as_fd(), 2, false).expect("claim");
    let mut b = attach_again(&job, 1);
    b.refresh().expect("refresh");
    assert!(b.has_dead_generations);
    let full = taken_bytes(&job);
    drop(reader);
    let begun = Instant::now();
    while b.has_dead_generations {
        assert!(begun.elapsed() < Duration::from_secs(10));
        b.refresh().expect("refresh");
    }
    assert!(taken_bytes(&job) < full);
}
