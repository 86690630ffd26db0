use super::*;
use crate::Collectives;
use crate::call::{Call, Source, Target};
use crate::header::{Called, HEADER_BYTES};
use crate::ledger::{EARLY_CONTROLS, cost};
use crate::plan::{self, Plan};
use crate::table::Table;
use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_node::{Body, Channel, DeliveryClass, Membership, Options, Priority};

/// What members called.
const CALLED: Called = Called::new(1);

/// Member 0 of four, of whom the others do nothing.
fn endpoint() -> Endpoint {
    let job = ShmJob::create(4, ShmConfig::for_nodes(4)).expect("job");
    let link = Shm::attach(&job, 0).expect("attach");
    Endpoint::new(link, Membership::local(NodeId(0), 4), Options::default()).expect("endpoint")
}

fn new_core(endpoint: &mut Endpoint) -> Core {
    Collectives::with_table(endpoint, Table::default()).core
}

/// Has the core take a message of member 2.
fn take(core: &mut Core, current: Option<&mut Operation<'_>>, session: u64, message: &[u8]) {
    let mut dispatcher = Dispatcher {
        core,
        under_way: &mut Vec::new(),
        current,
    };
    dispatcher.take(Delivery {
        from: NodeId(2),
        session,
        channel: Channel::ordered(31),
        body: Body::Frame(message),
    });
}

/// The header of a message for the first operation of the world.
fn header(core: &Core, kind: Kind, tag: u16, offset: usize, total: usize) -> Header {
    Header {
        kind,
        called: CALLED,
        tag,
        sequence: 0,
        key: core.groups[0].members.key,
        offset: offset as u64,
        total: total as u64,
    }
}

fn call(kind: u64, len: usize) -> Call<'static> {
    let (plan, fold, native_root) = match kind {
        0 => (plan::all_reduce_doubling(0, 4, len), true, None),
        1 => (plan::all_reduce_ring(0, 4, len, 8), true, None),
        2 => (Plan::default(), false, Some(0)),
        3 => (Plan::default(), false, Some(2)),
        _ => (plan::broadcast_tree(0, 4, 2, len), false, None),
    };
    Call {
        called: CALLED,
        input: Source::None,
        output: Target::Owned(Box::new(vec![0_u64; len / 8])),
        plan,
        unit: if fold { 8 } else { 1 },
        fold: fold.then(|| crate::Op::<u64>::sum().fold()),
        native_root,
    }
}

/// No message of members causes a panic, and kept messages stay within their bounds.
#[test]
fn any_messages_are_survived() {
    let mut endpoint = endpoint();
    let channel = Channel::new(DeliveryClass::Ordered, Priority::NORMAL, 31);
    let mut random = fastrand::Rng::with_seed(7);
    for round in 0..60 {
        let mut core = new_core(&mut endpoint);
        let key = core.groups[0].members.key;
        core.groups[0].sequence = 1;
        let len = [64, 8 << 10, 40_000][round % 3];
        // As between hosts: kept messages come in pieces.
        core.ledger.eager_bytes = [8 << 10, 64 << 10][round / 3 % 2];
        let kind = random.u64(..5);
        let call = call(kind, len);
        let mut current = Operation::new(call, &core.groups[0].members, 1, 0);
        let mut under_way = Vec::new();
        for step in 0..400 {
            if step == 200 {
                core.groups[0].sessions.fill(1); // all members were restarted
            }
            let payload = vec![0xa5; (random.usize(..9_000) / 8 * 8) >> (4 * random.u64(..3))];
            let header = Header {
                kind: Kind::Eager,
                called: Called::new(u8::from(random.u64(..20) > 0)),
                tag: random.u16(..6),
                sequence: if random.u64(..3) > 0 {
                    0
                } else {
                    random.u32(..1000)
                },
                key: if random.u64(..20) > 0 {
                    key
                } else {
                    random.u64(..3)
                },
                offset: if random.bool() {
                    0
                } else {
                    random.u64(..) >> random.u64(..64)
                },
                total: if random.u64(..9) > 0 {
                    len as u64
                } else {
                    random.u64(..)
                },
            };
            let mut message = header.to_bytes().to_vec();
            message[0] = random.u8(..16);
            message.extend_from_slice(&payload);
            message.truncate(message.len() - random.usize(..2) * HEADER_BYTES / 3);
            let from = NodeId(random.u16(1..=3));
            let mut dispatcher = Dispatcher {
                core: &mut core,
                under_way: &mut under_way,
                current: Some(&mut current),
            };
            let session = u64::from(step >= 200 && random.u64(..5) > 0);
            dispatcher.take(Delivery {
                from,
                session,
                channel,
                body: Body::Frame(&message),
            });
            let datagram = Datagram {
                source: from,
                incarnation: 1,
                channel_id: crate::core::CHANNEL,
                epoch: key as u32,
                lap: 0,
                key: (random.u64(..) >> (32 + random.u64(..32))) as u32,
                payload: &payload,
            };
            dispatcher.take_datagram(session, datagram);
            // Another operation may go on where the one under attack has failed.
            if current.failure.is_some() && random.u64(..4) == 0 {
                current.failure = None;
            }
            core.advance(&mut current, &mut endpoint).expect("advance");
        }
        for peer in &core.ledger.peers {
            for early in [peer.early, peer.last_early] {
                assert!(early.bytes <= core.ledger.eager_window_bytes);
                assert!(early.controls <= EARLY_CONTROLS);
            }
        }
        let kept: usize = core.early.values().map(Vec::len).sum();
        let bound = 2 * 3 * (core.ledger.eager_window_bytes / cost(0) + EARLY_CONTROLS);
        assert!(kept <= bound && core.early_news.len() <= EARLY_NEWS);
    }
}

/// Messages from before a peer's death give its next session no credit and take no room from it, whether they are dropped with their group, consumed
/// late, or kept by an operation that fails. Messages of sessions before the last are not kept.
#[test]
fn a_next_session_owes_nothing_for_the_last() {
    const BYTES: usize = 64;
    const REFUSED: u32 = 2; // is called with another algorithm
    let mut endpoint = endpoint();
    let (peer, rank) = (NodeId(2), 2);
    let mut core = new_core(&mut endpoint);
    let key = core.groups[0].members.key;
    let begin = |core: &Core, sequence| {
        let called = Called::new(1 + u8::from(sequence == REFUSED));
        let call = Call {
            called,
            ..call(0, BYTES)
        };
        Operation::new(call, &core.groups[0].members, 1, sequence)
    };
    // A message of the second round of a doubling: early until the first is done.
    let first = header(&core, Kind::Eager, 3, 0, BYTES);
    let header = |sequence| Header { sequence, ..first };
    let payload = [1; BYTES];
    let account = |core: &Core| {
        let state = &core.ledger.peers[usize::from(peer.0)];
        (state.owed, state.early.bytes)
    };
    let mut running = begin(&core, 0);
    running.handle_or_keep((peer, rank), 0, header(0), &payload, &mut core.ledger);
    for sequence in 1..4 {
        core.keep((peer, 0), header(sequence), &payload);
    }
    assert_eq!(account(&core), (0, 3 * cost(BYTES)), "all is kept");

    core.reap(peer, 1);
    core.keep((peer, 1), header(4), &payload);
    let fresh = (0, cost(BYTES));
    assert_eq!(account(&core), fresh);
    running.drop_early(&mut core.ledger);
    assert_eq!(account(&core), fresh, "dropped with its operation");
    let mut late = begin(&core, 1);
    core.replay(&mut late);
    assert!(late.failure.is_none());
    late.drop_early(&mut core.ledger);
    assert_eq!(account(&core), fresh, "replayed, then dropped");
    let mut refused = begin(&core, REFUSED);
    core.replay(&mut refused);
    assert!(refused.failure.is_some());
    assert_eq!(account(&core), fresh, "replayed, and refused");
    core.purge(key, 3);
    let paid = (cost(BYTES), 0);
    assert_eq!(
        account(&core),
        paid,
        "what its present incarnation sent is paid"
    );

    core.keep((peer, 1), header(5), &payload);
    core.reap(peer, 2);
    assert!(!core.early.is_empty(), "of the last incarnation");
    core.reap(peer, 3);
    assert!(core.early.is_empty(), "of the incarnation before");
}

/// A message counts for the session in which it was sent, even if it arrives before that session is known, or after its end: no other session gets
/// its credit, and no operation of another one its bytes or an answer to it.
#[test]
fn messages_count_for_their_own_session() {
    const BYTES: usize = 64;
    let mut endpoint = endpoint();
    let peer = NodeId(2);
    let mut core = new_core(&mut endpoint);
    core.groups[0].sequence = 1;
    let mut current = Operation::new(call(0, BYTES), &core.groups[0].members, 1, 0);
    let tell = |core: &mut Core, current: &mut Operation<'_>, session, kind, sequence, offset| {
        let eager = kind == Kind::Eager;
        let header = Header {
            sequence,
            ..header(core, kind, 3, offset, BYTES)
        };
        let mut message = header.to_bytes().to_vec();
        message.resize(HEADER_BYTES + if eager { BYTES } else { 0 }, 1);
        take(core, Some(current), session, &message);
    };
    let account = |core: &Core| {
        let state = &core.ledger.peers[usize::from(peer.0)];
        (state.owed, state.early.bytes, state.last_early.bytes)
    };
    core.ledger.outbox.clear();
    tell(&mut core, &mut current, 0, Kind::Eager, 1, 0);
    assert_eq!(account(&core), (0, cost(BYTES), 0));

    // A message of the next session arrives before its start is reported.
    tell(&mut core, &mut current, 1, Kind::Eager, 0, 0);
    assert!(
        current.early.is_empty(),
        "it is of another group's operation"
    );
    assert_eq!(account(&core), (cost(BYTES), 0, cost(BYTES)));
    // It calls on a group of its last incarnation, and is told so.
    let told = core.ledger.outbox.pop_front();
    let told = told.map(|control| (control.to, control.header.kind, control.header.tag));
    assert_eq!(told, Some((peer, Kind::Abort, 1)));
    assert!(core.ledger.outbox.is_empty());
    assert!(core.ledger.take_credit(peer, BYTES));

    // Messages of the last session arrive after that.
    tell(&mut core, &mut current, 0, Kind::Credit, 0, 1 << 20);
    let on_the_way = core.ledger.eager_window_bytes - cost(BYTES);
    assert!(
        !core.ledger.take_credit(peer, on_the_way),
        "it paid for itself only"
    );
    tell(&mut core, &mut current, 0, Kind::Eager, 0, 0);
    assert_eq!(current.early.len(), 1, "it is of this group's operation");
    tell(&mut core, &mut current, 0, Kind::Ask, 0, 0);
    assert!(
        core.ledger.outbox.is_empty(),
        "nobody is there to be answered"
    );
    current.drop_early(&mut core.ledger);
    tell(&mut core, &mut current, 0, Kind::Eager, 1, 0);
    assert_eq!(account(&core), (cost(BYTES), 0, 2 * cost(BYTES)));
    tell(&mut core, &mut current, 1, Kind::Eager, 1, 0);
    assert_eq!(account(&core), (2 * cost(BYTES), 0, 2 * cost(BYTES)));

    // Messages of sessions before the last are not kept any more.
    core.reap(peer, 2);
    tell(&mut core, &mut current, 0, Kind::Eager, 1, 0);
    assert_eq!(account(&core), (0, 0, 0));
    assert!(core.early.is_empty() && core.ledger.counters.overrun == 1);
}

/// Of three transfers in turn the last ones come early, in pieces and mixed: when the second one may begin and ends, the third one goes on from its
/// start.
#[test]
fn early_pieces_are_taken_from_the_first() {
    const PIECE: usize = 8 << 10;
    let mut endpoint = endpoint();
    let mut core = new_core(&mut endpoint);
    core.ledger.eager_bytes = 64 << 10; // as between hosts
    let step = |peer: usize, after| plan::Step {
        action: plan::Action::Store,
        peer,
        tag: 0,
        place: plan::Place::of(
            plan::Buffer::Output,
            2 * PIECE * (peer - 1)..2 * PIECE * peer,
        ),
        after: [after, None],
        follows: None,
    };
    let call = Call {
        plan: Plan {
            steps: vec![step(1, None), step(2, Some(0)), step(3, Some(1))],
            ..Plan::default()
        },
        ..call(4, 6 * PIECE)
    };
    let mut current = Operation::new(call, &core.groups[0].members, 1, 0);
    let came = [(3, 0), (2, 0), (2, PIECE), (3, PIECE), (1, 0), (1, PIECE)];
    for (rank, offset) in came {
        let header = header(&core, Kind::Eager, 0, offset, 2 * PIECE);
        let from = (NodeId(rank as u16), rank);
        let payload = vec![(rank + offset) as u8; PIECE];
        current.handle_or_keep(from, 0, header, &payload, &mut core.ledger);
        core.advance(&mut current, &mut endpoint).expect("advance");
    }
    assert_eq!(current.failure, None);
    assert!(current.is_done());
    let filled = |rank: usize, offset: usize| {
        let start = 2 * PIECE * (rank - 1) + offset;
        let piece = &current.output.bytes()[start..start + PIECE];
        piece.iter().all(|byte| *byte == (rank + offset) as u8)
    };
    assert!(came.iter().all(|&(rank, offset)| filled(rank, offset)));
}

/// Bytes for an operation that is done here are from a member that called something else, and fail the group, as reports do: that member may be done, too,
/// and the one that lacks them waits for ever. Questions may cross what they ask for, and are answered. The next session of a member is told that the
/// group is none of its own.
#[test]
fn bytes_for_what_is_done_are_found_out() {
    let mut endpoint = endpoint();
    for (kind, len) in [
        (Kind::Eager, 8),
        (Kind::Eager, 0),
        (Kind::Piece, 8),
        (Kind::Reached, 0),
        (Kind::Open, 0),
        (Kind::Ask, 0),
        (Kind::Missing, 0),
        (Kind::Unheard, 0),
        (Kind::Over, 0),
    ] {
        for session in [0, 1] {
            let mut core = new_core(&mut endpoint);
            core.groups[0].sequence = 1;
            core.ledger.outbox.clear();
            let header = header(&core, kind, 0, 0, len);
            let mut message = header.to_bytes().to_vec();
            message.resize(HEADER_BYTES + len, 1);
            take(&mut core, None, session, &message);
            let fails = session == 0 && matches!(kind, Kind::Eager | Kind::Piece | Kind::Reached);
            let failed = fails.then_some((0, Failure::Mismatch(NodeId(2))));
            assert_eq!(core.groups[0].failed, failed, "{kind:?}, {session}");
            let told = core.ledger.outbox.iter();
            let told = |of: Kind| told.clone().filter(|it| it.header.kind == of).count();
            let aborts = match session {
                0 if fails => 3,
                1 if kind != Kind::Over => 1,
                _ => 0,
            };
            assert_eq!(told(Kind::Abort), aborts, "{kind:?}, {session}");
            let answers = usize::from(session == 0 && kind.asks());
            assert_eq!(told(Kind::Over), answers, "{kind:?}, {session}");
            assert_eq!(core.ledger.counters.late, 1);
        }
    }
}

/// A member that closed a group fails it for members that call on it, before or after that, but not for messages of operations that are done. A member
/// that abandoned it tells nobody.
#[test]
fn a_closed_group_is_told() {
    let mut endpoint = endpoint();
    for (abandons, closes_first, sequence, fails) in [
        (false, true, 3, true),
        (false, true, 4, true),
        (false, false, 3, true),
        (false, true, 2, false),
        (true, true, 3, false),
        (true, false, 3, false),
    ] {
        let case = format!("{abandons}, {closes_first}, {sequence}");
        let mut collectives = Collectives::with_table(&mut endpoint, Table::default());
        let world = collectives.world();
        collectives.core.groups[0].sequence = 3;
        collectives.core.ledger.outbox.clear();
        let header = Header {
            sequence,
            ..header(&collectives.core, Kind::Open, 0, 0, 8)
        };
        let tell = |collectives: &mut Collectives| {
            take(&mut collectives.core, None, 0, &header.to_bytes());
        };
        if !closes_first {
            tell(&mut collectives);
        }
        let closed = if abandons {
            collectives.abandon_group(world)
        } else {
            collectives.close_group(world)
        };
        closed.expect("open");
        if closes_first {
            tell(&mut collectives);
            tell(&mut collectives);
        }
        let core = &collectives.core;
        let failed = fails.then_some((3, Failure::Mismatch(core.me)));
        assert_eq!(core.groups[0].failed, failed, "{case}");
        let told = core.ledger.outbox.iter();
        let aborts = told.filter(|it| it.header.kind == Kind::Abort).count();
        assert_eq!(aborts, if fails { 3 } else { 0 }, "{case}");
        assert!(core.early.is_empty(), "{case}");
    }
}

/// A member that waits for one whose operation is over has called something else, if none of the transfer that it asks about has come. Otherwise question
/// and answer crossed the transfer.
#[test]
fn answers_find_other_calls() {
    const SHORT: usize = 64;
    const LONG: usize = 1 << 20;
    let mut endpoint = endpoint();
    let mut core = new_core(&mut endpoint);
    let from = (NodeId(2), 2);
    let over = |core: &Core, of: Kind, len: usize| header(core, Kind::Over, 0, of as usize, len);
    // Rank 0 sends to rank 2, or receives of it.
    for (root, kind, len) in [(0, Kind::Ask, LONG), (2, Kind::Open, SHORT)] {
        for has_come in [false, true] {
            let call = Call {
                plan: plan::broadcast_flat(0, 4, root, len),
                ..call(4, len)
            };
            let mut waiting = Operation::new(call, &core.groups[0].members, 1, 0);
            if has_come {
                let (came, bytes) = match kind {
                    Kind::Ask => (Kind::Open, 0),
                    _ => (Kind::Eager, len),
                };
                let (header, payload) = (header(&core, came, 0, 0, len), vec![1; bytes]);
                waiting.handle_or_keep(from, 0, header, &payload, &mut core.ledger);
            }
            let answer = over(&core, kind, len);
            waiting.handle_or_keep(from, 0, answer, &[], &mut core.ledger);
            let failure = (!has_come).then_some(Failure::Mismatch(from.0));
            assert_eq!(waiting.failure, failure, "{kind:?}, {has_come}");
        }
    }
    // A native broadcast: of the root's children, and of the root.
    for (call_of, kind, came) in [
        (2, Kind::Unheard, Kind::Reached),
        (3, Kind::Missing, Kind::Repair),
    ] {
        for has_come in [false, true] {
            let call = call(call_of, SHORT);
            let mut waiting = Operation::new(call, &core.groups[0].members, 1, 0);
            if has_come {
                let payload = vec![1; if came == Kind::Repair { SHORT } else { 0 }];
                let header = header(&core, came, 0, 0, SHORT);
                waiting.handle_or_keep(from, 0, header, &payload, &mut core.ledger);
            }
            let answer = over(&core, kind, SHORT);
            waiting.handle_or_keep(from, 0, answer, &[], &mut core.ledger);
            let failure = (!has_come).then_some(Failure::Mismatch(from.0));
            assert_eq!(waiting.failure, failure, "{kind:?}, {has_come}");
        }
    }
}

/// A root of a native broadcast asks children that are not ready, once; a child answers by its report, and a member that is no child of it finds out.
#[test]
fn unheard_children_are_asked() {
    let mut endpoint = endpoint();
    let mut core = new_core(&mut endpoint);
    core.ledger.outbox.clear();
    let begin = |core: &Core, kind| Operation::new(call(kind, 64), &core.groups[0].members, 1, 0);
    let mut waiting = begin(&core, 2);
    let reached = header(&core, Kind::Reached, 0, 0, 64);
    waiting.handle_or_keep((NodeId(2), 2), 0, reached, &[], &mut core.ledger);
    for _ in 0..3 {
        core.ask(&mut waiting, |_| false);
    }
    let asked: Vec<(NodeId, Kind)> = (core.ledger.outbox.drain(..))
        .map(|control| (control.to, control.header.kind))
        .collect();
    assert_eq!(asked, [1, 3].map(|id| (NodeId(id), Kind::Unheard)));
    for (kind, failure) in [(3, None), (2, Some(Failure::Mismatch(NodeId(2))))] {
        let mut asked = begin(&core, kind);
        let question = header(&core, Kind::Unheard, 0, 0, 64);
        asked.handle_or_keep((NodeId(2), 2), 0, question, &[], &mut core.ledger);
        assert_eq!(asked.failure, failure, "{kind}");
    }
}

/// A long transfer on one side and a short one on the other wait for each other. Each side asks once, when it has waited; the question tells the other
/// side that lengths differ, and is harmless if they do not.
#[test]
fn questions_find_other_lengths() {
    const SHORT: usize = 64;
    const LONG: usize = 1 << 20;
    let mut endpoint = endpoint();
    let from = (NodeId(2), 2);
    let begin = |core: &Core, sends: bool, len: usize| {
        let (action, buffer) = if sends {
            (plan::Action::Send, plan::Buffer::Input)
        } else {
            (plan::Action::Store, plan::Buffer::Output)
        };
        let step = plan::Step {
            action,
            peer: from.1,
            tag: 0,
            place: plan::Place::whole(buffer, len),
            after: [None; 2],
            follows: None,
        };
        let call = Call {
            plan: Plan {
                steps: vec![step],
                ..Plan::default()
            },
            input: Source::Owned(Box::new(vec![0_u64; len / 8])),
            ..call(4, len)
        };
        Operation::new(call, &core.groups[0].members, 1, 0)
    };
    for (sends, len, other, kind) in [
        (true, LONG, SHORT, Kind::Ask),
        (false, SHORT, LONG, Kind::Open),
    ] {
        let mut core = new_core(&mut endpoint);
        core.ledger.outbox.clear();
        let mut waiting = begin(&core, sends, len);
        core.advance(&mut waiting, &mut endpoint).expect("advance");
        core.ask(&mut waiting, |_| false);
        assert!(core.ledger.outbox.is_empty(), "it has just begun");
        core.ask(&mut waiting, |_| false);
        core.ask(&mut waiting, |_| false);
        let asked = core.ledger.outbox.pop_front().map(|control| control.header);
        let question = asked.expect("a question");
        assert!(core.ledger.outbox.is_empty(), "it asks once");
        assert_eq!((question.kind, question.total), (kind, len as u64));
        for (expected, failure) in [(len, None), (other, Some(Failure::Mismatch(from.0)))] {
            let mut asked = begin(&core, !sends, expected);
            asked.handle_or_keep(from, 0, question, &[], &mut core.ledger);
            assert_eq!(asked.failure, failure, "{kind:?}, {expected}");
        }
    }
}

/// Where the kernel does not let a member read another one's memory, several transfers may have been opened before that is known. All of them then come
/// in pieces.
#[test]
fn several_transfers_are_declined_where_memory_cannot_be_read() {
    const LEN: usize = 48 << 10;
    let mut endpoint = endpoint();
    let from = (NodeId(2), 2);
    let mut core = new_core(&mut endpoint);
    core.ledger.outbox.clear();
    core.ledger.direct_bytes = 0;
    let step = |tag: u16| plan::Step {
        action: plan::Action::Store,
        peer: from.1,
        tag,
        place: plan::Place::of(
            plan::Buffer::Output,
            usize::from(tag) * LEN..usize::from(tag + 1) * LEN,
        ),
        after: [None; 2],
        follows: None,
    };
    let call = Call {
        plan: Plan {
            steps: vec![step(0), step(1)],
            ..Plan::default()
        },
        ..call(4, 2 * LEN)
    };
    let mut current = Operation::new(call, &core.groups[0].members, 1, 0);
    core.advance(&mut current, &mut endpoint).expect("advance");
    let told = |core: &mut Core| {
        let told = core.ledger.outbox.drain(..);
        told.map(|control| {
            (
                control.header.kind,
                control.header.tag,
                control.header.offset,
            )
        })
        .collect::<Vec<_>>()
    };
    assert_eq!(told(&mut core), [(Kind::Open, 0, 1), (Kind::Open, 1, 1)]);
    let mut tell = |core: &mut Core, kind, tag, offset: usize, payload: &[u8]| {
        let header = header(core, kind, tag, offset, LEN);
        current.handle_or_keep(from, 0, header, payload, &mut core.ledger);
        core.advance(&mut current, &mut endpoint).expect("advance");
        (current.failure, current.is_done())
    };
    let nobody = [0; 24];
    for tag in [0, 1] {
        let then = tell(&mut core, Kind::Direct, tag, 4096, &nobody);
        assert_eq!(then, (None, false));
        assert_eq!(told(&mut core), [(Kind::Taken, tag, 0)]);
    }
    for tag in [0, 1] {
        for offset in [0, LEN / 2] {
            let then = tell(&mut core, Kind::Piece, tag, offset, &[7; LEN / 2]);
            assert_eq!(then, (None, (tag, offset) == (1, LEN / 2)));
        }
    }
}
