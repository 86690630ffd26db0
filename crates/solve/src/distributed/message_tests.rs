use super::*;
use crate::distributed::Mode;
use crate::local::Inner;
use proptest::prelude::*;
use tsumuji_board::Elements;
use tsumuji_board::Reads;

fn orders() -> Vec<Order> {
    let setup = Setup {
        config: SolveConfig {
            elements: Elements::Fixed(12),
            inner: Inner::Lu,
            mode: Mode::Sync,
            ..SolveConfig::default()
        },
        division: 3,
        epoch: 8,
        ranges: vec![3..9, 0..0, 0..3],
        fresh: vec![4..5, 7..9],
        rows: RowSource::Messages { bytes: vec![77, 5] },
        values: 3,
        anew: false,
        exchanges: true,
        system: 0x1234,
        first_elements: Some(64),
    };
    let watch = Watch::new(1e-20, 50, f64::INFINITY, 1000);
    vec![
        Order::Setup(Box::new(Setup {
            rows: RowSource::Generate {
                what: "dense:9".into(),
                seed: 3,
                solution: Solution::Random,
            },
            ..setup.clone()
        })),
        Order::Setup(Box::new(setup)),
        Order::Rows,
        Order::Values {
            start: 4,
            values: vec![0.5],
        },
        Order::Begin {
            epoch: 4,
            rhs_sq: 2.5,
            watch,
            keeps: true,
            factors: vec![0.5, -1.0],
        },
        Order::Pause { epoch: 4 },
        Order::Verify {
            epoch: 4,
            magnitude: true,
        },
        Order::Finish {
            epoch: 4,
            is_kept: true,
        },
        Order::Leave,
        Order::Abort {
            why: "worker 2 died".into(),
        },
    ]
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Ready {
            division: 2,
            rhs_sq: 3.0,
            notes: vec!["a".into(), "bc".into()],
        },
        Answer::Failed { why: "no".into() },
        Answer::PeerLost { worker: 3 },
        Answer::Frozen(Frozen {
            epoch: 2,
            held: vec![Some(5), None],
            laps: 9,
            cause: Some(Cause::Stall),
        }),
        Answer::Residual {
            epoch: 2,
            residual_sq: 1e-9,
            magnitude_sq: 4.0,
            dots: vec![1.0, 2.0],
        },
        Answer::Snapshot {
            division: 2,
            start: 8,
            values: vec![3.0],
        },
        Answer::Solution {
            epoch: 3,
            start: 8,
            values: vec![1.0, -2.0],
        },
        Answer::Final {
            epoch: 3,
            stats: WorkerStats {
                laps: 1,
                elements: 7,
                ..WorkerStats::default()
            },
        },
    ]
}

/// Every message comes back as it was sent.
#[test]
fn messages_round_trip() {
    for order in orders() {
        assert_eq!(Order::parse(&order.encode()), Some(order));
    }
    for answer in answers() {
        assert_eq!(Answer::parse(&answer.encode()), Some(answer));
    }
    let piece = Piece {
        epoch: 1,
        lap: 2,
        estimate: Estimate {
            measured_sq: 3.0,
            expected_sq: 1.0,
        },
        stops: true,
        start: 4,
        values: vec![5.0],
    };
    let notes = [
        Note::Piece(piece.clone()),
        Note::Reads {
            division: 2,
            packed: true,
            last: false,
            elements: vec![3, 70_000],
        },
    ];
    for note in notes {
        assert_eq!(Note::parse(&note.encode()), Some(note));
    }
    // A list of any length comes whole, in parts that end with a last one.
    for length in [0u32, 1, 65_536, 200_000] {
        let list: Vec<u32> = (0..length).collect();
        let mut found = Vec::new();
        let notes = Note::of_reads(7, &Reads::Packed(list.clone().into()));
        for (part, bytes) in notes.iter().enumerate() {
            let Some(Note::Reads {
                division: 7,
                packed: true,
                last,
                elements,
            }) = Note::parse(bytes)
            else {
                panic!("not a list")
            };
            found.extend(elements);
            assert_eq!(last, part + 1 == notes.len());
        }
        assert_eq!(found, list);
    }
    let report = LapReport {
        epoch: 1,
        number: 2,
        laps: 3.25,
        busy: Some(6.5),
        estimate: piece.estimate,
    };
    assert_eq!(LapReport::parse(1, 2, &report.payload()), Some(report));
    for wrong in [f64::NAN, f64::INFINITY, -1.0] {
        let busy = Some(wrong);
        let report = LapReport { busy, ..report };
        assert_eq!(LapReport::parse(1, 2, &report.payload()), None, "{wrong}");
    }
    let mut used = Watch::new(1e-20, 50, 1e9, 1000);
    let fresh = used;
    assert_eq!(used.trouble(3.0, 1.0), None);
    assert_eq!(codec::from_bytes(&codec::to_bytes(&used, &[])), Some(fresh));
}

/// Rows and parts of x follow their heads unchanged, so that rows can be taken without parsing.
#[test]
fn bulk_is_raw() {
    assert_eq!(Order::Rows.encode(), [Order::ROWS]);
    let values = vec![1.0, -2.0];
    let raw: Vec<u8> = values
        .iter()
        .flat_map(|value: &f64| value.to_le_bytes())
        .collect();
    assert!(
        Answer::Solution {
            epoch: 1,
            start: 8,
            values
        }
        .encode()
        .ends_with(&raw)
    );
}

/// Cut or changed messages never panic, and a cut fixed-size one is never accepted.
#[test]
fn damaged_messages_do_not_panic() {
    let orders = orders().into_iter().map(|order| order.encode());
    for message in orders.chain(answers().into_iter().map(|answer| answer.encode())) {
        for cut in 0..message.len() {
            let _ = (
                Order::parse(&message[..cut]),
                Answer::parse(&message[..cut]),
                Note::parse(&message[..cut]),
            );
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = message.clone();
                changed[cut] = value;
                let _ = (
                    Order::parse(&changed),
                    Answer::parse(&changed),
                    Note::parse(&changed),
                );
            }
        }
    }
    let pause = Order::Pause { epoch: 4 }.encode();
    assert_eq!(Order::parse(&pause[..pause.len() - 1]), None);
    assert_eq!(Order::parse(&[pause.as_slice(), &[0]].concat()), None);
    let left = Answer::PeerLost { worker: 3 }.encode();
    assert_eq!(Answer::parse(&[left.as_slice(), &[0]].concat()), None);
    assert_eq!(LapReport::parse(0, 0, &[0xff; 24]), None, "NaN laps");
}

/// Rows that are not all owned once, frames of no elements, and lengths that the bytes do not have are refused.
#[test]
fn unsound_messages_are_refused() {
    let Order::Setup(good) = orders().remove(0) else {
        panic!("the first is a setup")
    };
    let of = |list: &[(usize, usize)]| list.iter().map(|(a, b)| *a..*b).collect::<Vec<_>>();
    for ranges in [
        &[][..],
        &[(0, 0)],
        &[(1, 2)],
        &[(0, 2), (3, 4)],
        &[(0, 5), (3, 6)],
    ] {
        let setup = Setup {
            ranges: of(ranges),
            ..(*good).clone()
        };
        assert_eq!(Order::parse(&Order::Setup(Box::new(setup)).encode()), None);
    }
    for fresh in [&[(3, 3)][..], &[(5, 6), (4, 5)], &[(4, 6), (5, 7)]] {
        let setup = Setup {
            fresh: of(fresh),
            ..(*good).clone()
        };
        assert_eq!(Order::parse(&Order::Setup(Box::new(setup)).encode()), None);
    }
    let mut setup = good;
    setup.config.elements = Elements::Fixed(0);
    assert_eq!(Order::parse(&Order::Setup(setup).encode()), None);

    let huge = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
    let notes = Answer::Ready {
        division: 1,
        rhs_sq: 3.0,
        notes: Vec::new(),
    };
    let without_count = &notes.encode()[..10];
    assert_eq!(Answer::parse(&[without_count, &huge].concat()), None);
    let why = "x".repeat(2 << 20);
    assert_eq!(Answer::parse(&Answer::Failed { why }.encode()), None);
}

proptest! {
    /// Any bytes are parsed or refused, never a panic; a parsed message is written as it was read.
    #[test]
    fn any_bytes_are_taken(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Some(order) = Order::parse(&bytes) {
            prop_assert!(Order::parse(&order.encode()).is_some());
        }
        if let Some(answer) = Answer::parse(&bytes) {
            prop_assert!(Answer::parse(&answer.encode()).is_some());
        }
        let _ = (Note::parse(&bytes), LapReport::parse(0, 0, &bytes));
    }
}
