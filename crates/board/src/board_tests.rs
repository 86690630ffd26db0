use super::*;

const CHANNEL: u16 = 3;
const OTHER: NodeId = NodeId(1);

fn board() -> Board {
    Board::new(CHANNEL, NodeId(0), vec![0..4, 4..10, 10..10]).unwrap()
}

fn bytes(values: &[f64]) -> Vec<u8> {
    values
        .iter()
        .flat_map(|value| value.to_le_bytes())
        .collect()
}

fn datagram(lap: u32, start: u32, payload: &[u8]) -> Datagram<'_> {
    Datagram {
        source: OTHER,
        incarnation: 77,
        channel_id: CHANNEL,
        epoch: 0,
        lap,
        key: start,
        payload,
    }
}

fn contents(board: &Board) -> Vec<f64> {
    (0..board.len()).map(|index| board.get(index)).collect()
}

/// Of an overlapping frame only the elements with an older stamp here are written.
#[test]
fn older_never_replaces_newer() {
    let mut board = board();
    assert_eq!(
        board.apply(&datagram(5, 6, &bytes(&[5.0, 5.0]))),
        Some(6..8)
    );
    assert_eq!(board.apply(&datagram(4, 4, &bytes(&[4.0; 6]))), Some(4..10));
    assert_eq!(contents(&board)[4..], [4.0, 4.0, 5.0, 5.0, 4.0, 4.0]);
    assert_eq!(board.apply(&datagram(5, 6, &bytes(&[9.0, 9.0]))), None);
    assert_eq!(board.apply(&datagram(3, 4, &bytes(&[3.0; 6]))), None);
    assert_eq!(board.drops().not_newer, 2);
    assert_eq!(board.lap(OTHER), Lap::new(5));
    assert_eq!(
        (board.oldest(OTHER), board.staleness(OTHER)),
        (Lap::new(4), Some(1))
    );
}

/// Frames of another epoch are refused both ways, and stamps outlive the change of epoch.
#[test]
fn epochs_keep_apart() {
    let mut board = board();
    let old = bytes(&[1.0]);
    assert!(board.apply(&datagram(8, 4, &old)).is_some());
    assert!(
        board
            .apply(&Datagram {
                epoch: 1,
                ..datagram(9, 4, &old)
            })
            .is_none()
    );
    board.begin_epoch(1);
    assert!(board.apply(&datagram(9, 4, &old)).is_none());
    assert!(
        board
            .apply(&Datagram {
                epoch: 1,
                ..datagram(8, 4, &bytes(&[2.0]))
            })
            .is_none(),
        "stamp of the old epoch holds"
    );
    assert!(
        board
            .apply(&Datagram {
                epoch: 1,
                ..datagram(9, 4, &bytes(&[3.0]))
            })
            .is_some()
    );
    assert_eq!(board.get(4), 3.0);
    let drops = board.drops();
    assert_eq!(
        (drops.future_epoch, drops.past_epoch, drops.not_newer),
        (1, 1, 1)
    );
}

/// A restarted owner begins at lap 1; frames of its former incarnations are refused however late they come.
#[test]
fn former_incarnations_stay_out() {
    let mut board = board();
    assert!(board.apply(&datagram(40, 4, &bytes(&[1.0]))).is_some());
    assert!(
        board
            .apply(&Datagram {
                incarnation: 78,
                ..datagram(41, 4, &bytes(&[2.0]))
            })
            .is_none(),
        "not announced"
    );
    board.forget(OTHER);
    assert_eq!(board.get(4), 1.0, "the last value stays");
    assert!(
        board.apply(&datagram(41, 4, &bytes(&[3.0]))).is_none(),
        "late frame of the former life"
    );
    assert!(
        board
            .apply(&Datagram {
                incarnation: 78,
                ..datagram(1, 4, &bytes(&[4.0]))
            })
            .is_some()
    );
    assert!(board.apply(&datagram(42, 4, &bytes(&[5.0]))).is_none());
    assert_eq!(board.get(4), 4.0);
    assert_eq!(board.drops().other_incarnation, 3);
}

/// Malformed frames are refused whole and counted under their reason.
#[test]
fn hostile_frames_are_counted() {
    let mut board = board();
    let one = bytes(&[1.0]);
    let nan = bytes(&[1.0, f64::NAN]);
    let infinite = bytes(&[f64::NEG_INFINITY]);
    let refused = [
        datagram(1, 3, &one),
        datagram(1, 10, &one),
        datagram(1, u32::MAX, &one),
        Datagram {
            source: NodeId(0),
            ..datagram(1, 0, &one)
        },
        Datagram {
            source: NodeId(2),
            ..datagram(1, 4, &one)
        },
        Datagram {
            source: NodeId(900),
            ..datagram(1, 4, &one)
        },
        datagram(1, 4, &nan),
        datagram(1, 4, &infinite),
        datagram(1, 4, &one[..7]),
        datagram(1, 4, &[]),
        datagram(0, 4, &one),
        Datagram {
            channel_id: 5,
            ..datagram(1, 4, &one)
        },
    ];
    for datagram in &refused {
        assert_eq!(board.apply(datagram), None, "{datagram:?}");
    }
    assert_eq!(contents(&board), [0.0; 10]);
    let drops = *board.drops();
    assert_eq!(
        (
            drops.not_owner,
            drops.not_finite,
            drops.malformed,
            drops.total()
        ),
        (6, 2, 4, 12)
    );
    assert!(board.apply(&datagram(1, 4, &one)).is_some());
}

/// Values by reliable messages replace those of the same lap, but no newer ones.
#[test]
fn install_keeps_newer_values() {
    let mut board = board();
    board.apply(&datagram(6, 4, &bytes(&[6.0])));
    board.apply(&datagram(7, 5, &bytes(&[7.0])));
    board.install(OTHER, 4, &[1.0, 1.0, 1.0], Lap::new(6).unwrap());
    assert_eq!(contents(&board)[4..7], [1.0, 7.0, 1.0]);
}

/// A board is refused if ranges leave a gap, overlap, or do not include this node.
#[test]
fn ownership_must_be_complete() {
    assert!(matches!(
        Board::new(1, NodeId(0), vec![0..2, 3..4]),
        Err(BoardError::Ranges { expected: 2, .. })
    ));
    assert!(matches!(
        Board::new(1, NodeId(0), vec![0..2, 1..4]),
        Err(BoardError::Ranges { .. })
    ));
    assert!(matches!(
        Board::new(1, NodeId(2), vec![0..2, 2..4]),
        Err(BoardError::NotAMember { .. })
    ));
    assert_eq!(Board::new(1, NodeId(0), vec![0..0, 0..3]).unwrap().len(), 3);
    assert!(matches!(
        Board::new(u16::MAX, NodeId(0), vec![0..0, 0..3]),
        Err(BoardError::Channel { .. })
    ));
}

/// A reader on another thread sees whole values while they are being written.
#[test]
fn readers_see_no_torn_values() {
    let mut board = Board::new(1, NodeId(0), vec![0..1, 1..1]).unwrap();
    let reader = board.reader();
    let (a, b) = (1.0, -f64::MAX);
    board.write(0, &[a], Lap::FIRST);
    let watcher = std::thread::spawn(move || {
        (0..50_000).all(|_| {
            let value = reader.get(0);
            value == a || value == b
        })
    });
    let mut lap = Lap::FIRST;
    while !watcher.is_finished() {
        for value in [b, a] {
            lap = lap.next();
            board.write(0, &[value], lap);
        }
    }
    assert!(watcher.join().unwrap());
}
