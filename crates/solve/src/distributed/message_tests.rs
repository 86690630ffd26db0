use super::*;

fn orders() -> Vec<Order> {
    let setup = Setup {
        config: SolveConfig {
            elements: Elements::Fixed(12),
            inner: Inner::Lu,
            ..SolveConfig::default()
        },
        bounds: vec![0, 3, 9],
        rows: RowSource::Stream { bytes: 77 },
    };
    let watch = Watch::new(1e-20, 50, f64::INFINITY, 1000);
    vec![
        Order::Setup(Box::new(Setup {
            rows: RowSource::Generate {
                what: "dense:9".into(),
            },
            ..setup.clone()
        })),
        Order::Setup(Box::new(setup)),
        Order::Rows(vec![1, 2, 3]),
        Order::Begin {
            epoch: 4,
            rhs_sq: 2.5,
            watch,
            factors: vec![0.5, -1.0],
        },
        Order::Pause { epoch: 4 },
        Order::Verify {
            epoch: 4,
            magnitude: true,
        },
        Order::Finish,
        Order::Leave,
        Order::Abort {
            why: "worker 2 died".into(),
        },
    ]
}

fn answers() -> Vec<Answer> {
    vec![
        Answer::Ready {
            rhs_sq: 3.0,
            notes: vec!["a".into(), "bc".into()],
        },
        Answer::Failed { why: "no".into() },
        Answer::PeerLost { worker: 3 },
        Answer::Frozen(Frozen {
            epoch: 2,
            held: vec![5, 6],
            laps: 9,
            cause: Some(Cause::Stall),
        }),
        Answer::Residual {
            epoch: 2,
            residual_sq: 1e-9,
            magnitude_sq: 4.0,
            dots: vec![1.0, 2.0],
        },
        Answer::Solution {
            start: 8,
            values: vec![1.0, -2.0],
        },
        Answer::Final(WorkerStats {
            laps: 1,
            elements: 7,
            ..WorkerStats::default()
        }),
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
        start: 4,
        values: vec![5.0],
    };
    assert_eq!(Piece::parse(&piece.encode()), Some(piece.clone()));
    let report = LapReport {
        epoch: 1,
        number: 2,
        laps: 3.25,
        estimate: piece.estimate,
    };
    assert_eq!(LapReport::parse(1, 2, &report.payload()), Some(report));
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
                Piece::parse(&message[..cut]),
            );
            for value in [0, 1, 0x7f, 0xff] {
                let mut changed = message.clone();
                changed[cut] = value;
                let _ = (
                    Order::parse(&changed),
                    Answer::parse(&changed),
                    Piece::parse(&changed),
                );
            }
        }
    }
    let pause = Order::Pause { epoch: 4 }.encode();
    assert_eq!(Order::parse(&pause[..4]), None);
    assert_eq!(Order::parse(&[pause.as_slice(), &[0]].concat()), None);
    assert_eq!(LapReport::parse(0, 0, &[0xff; 24]), None, "NaN laps");
}
