//! Fixed points by several members over real links, each with its own endpoint in its own thread of this process, beside plain oracles.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use tsumuji_collective::Collectives;
use tsumuji_node::{Endpoint, NodeId, Options};
use tsumuji_solve::fixed_point::{
    Choice, Combine, Config, Edge, Edges, Error, FixedPoint, Outcome, PageRank, Reason,
    ShortestPaths, UNREACHED, ValueIteration, alone, solve, solve_with,
};

mod clusters;

use clusters::Over;

const WAIT: Duration = Duration::from_secs(30);

fn cluster(over: Over, nodes: u16, loss: f64) -> Vec<Endpoint> {
    clusters::cluster(over, nodes, loss, &Options::default())
}

/// Runs all members, each with the instance that `problem` makes for it.
fn team<P: FixedPoint>(
    nodes: Vec<Endpoint>,
    problem: impl Fn(usize) -> P + Sync,
    config: impl Fn(usize) -> Config<'static> + Sync,
) -> Vec<Result<Outcome, Error>> {
    let (problem, config) = (&problem, &config);
    thread::scope(|scope| {
        let work = |(me, mut endpoint): (usize, Endpoint)| {
            scope.spawn(move || {
                let outcome = solve(&mut endpoint, &mut problem(me), &config(me));
                let _ = endpoint.close(WAIT); // others may be dead
                outcome
            })
        };
        let threads: Vec<_> = nodes.into_iter().enumerate().map(work).collect();
        let results = threads.into_iter().map(|thread| thread.join().unwrap());
        results.collect()
    })
}

/// Over all links, numbers of members and rates of loss: converged, the same on all, and right by `check`.
fn everywhere<P: FixedPoint + Clone + Sync>(
    problem: &P,
    tolerance: f64,
    check: impl Fn(&[f64], &str),
) {
    let config = |_| Config {
        tolerance,
        ..Config::default()
    };
    let outcome = alone(&mut problem.clone(), &config(0)).unwrap();
    assert!(outcome.converged(), "{outcome}");
    check(&outcome.x, "alone");
    for over in [Over::Shm, Over::Udp] {
        for (members, loss) in [(1, 0.0), (2, 0.2), (3, 0.0), (4, 0.2), (4, 0.0)] {
            let what = format!("{members} members over {over:?}, loss {loss}");
            let nodes = cluster(over, members, loss);
            let results = team(nodes, |_| problem.clone(), config);
            let outcomes: Vec<Outcome> = results.into_iter().map(Result::unwrap).collect();
            let n = problem.len();
            let mut end = 0;
            for (me, outcome) in outcomes.iter().enumerate() {
                assert!(outcome.converged(), "{what}: {outcome}");
                assert_eq!(outcome.x, outcomes[0].x, "{what}");
                let bits = |outcome: &Outcome| outcome.certificate.to_bits();
                assert_eq!(bits(outcome), bits(&outcomes[0]), "{what}");
                assert_eq!(outcome.laps, outcomes[0].laps, "{what}");
                assert_eq!((outcome.member, outcome.range.start), (me, end), "{what}");
                end = outcome.range.end;
            }
            assert_eq!(end, n, "{what}");
            // The certificate is that of this x.
            let parts = outcomes.iter().map(|it| it.range.clone());
            let parts = parts.map(|range| problem.certificate(range, &outcomes[0].x));
            let certificate = problem.combine().of(parts);
            assert_eq!(certificate, outcomes[0].certificate, "{what}");
            assert!(certificate <= tolerance, "{what}");
            check(&outcomes[0].x, &what);
        }
    }
}

/// A graph with a ring, random edges, and some nodes that nothing leaves or reaches.
fn graph(nodes: u32, seed: u64) -> Edges {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut list = Vec::new();
    let reached = nodes - 20;
    for from in 0..reached {
        let to = (from + 1) % reached;
        list.push((from, to));
        for _ in 0..random.usize(0..5) {
            list.push((from, random.u32(0..reached)));
        }
    }
    for leaf in reached..nodes - 10 {
        list.push((random.u32(0..reached), leaf));
    }
    for apart in nodes - 10..nodes {
        list.push((apart, random.u32(0..reached)));
    }
    let edge = |(from, to)| Edge {
        from,
        to,
        weight: f64::from(random.u32(1..100)),
    };
    Edges {
        nodes: nodes as usize,
        list: list.into_iter().map(edge).collect(),
    }
}

/// Power iteration gives the same ranks, within the bound that was promised.
#[test]
fn pagerank_by_power_iteration() {
    const D: f64 = 0.85;
    let edges = graph(700, 1);
    let n = edges.nodes;
    let mut all = vec![0.0; n];
    (edges.list.iter()).for_each(|edge| all[edge.from as usize] += edge.weight);
    let mut ranks = vec![1.0 / n as f64; n];
    for _ in 0..300 {
        let lost: f64 = (0..n)
            .filter(|node| all[*node] == 0.0)
            .map(|node| ranks[node])
            .sum();
        let mut next = vec![(D * lost + 1.0 - D) / n as f64; n];
        for edge in &edges.list {
            let from = edge.from as usize;
            next[edge.to as usize] += D * ranks[from] * edge.weight / all[from];
        }
        ranks = next;
    }
    everywhere(&PageRank::new(&edges, D), 1e-10, |x, what| {
        let error: f64 = x.iter().zip(&ranks).map(|(a, b)| (a - b).abs()).sum();
        assert!(error <= 1.1e-10, "{what}: {error}");
        assert!((x.iter().sum::<f64>() - 1.0).abs() < 1e-9, "{what}");
    });
}

/// Dijkstra gives the same distances, to the bit, since weights are whole numbers.
#[test]
fn shortest_paths_by_dijkstra() {
    let edges = graph(900, 2);
    let mut distances = vec![u64::MAX; edges.nodes];
    let mut queue = std::collections::BinaryHeap::from([std::cmp::Reverse((0_u64, 0_u32))]);
    let mut leaving = vec![Vec::new(); edges.nodes];
    (edges.list.iter()).for_each(|edge| leaving[edge.from as usize].push(edge));
    while let Some(std::cmp::Reverse((distance, node))) = queue.pop() {
        if distance >= distances[node as usize] {
            continue;
        }
        distances[node as usize] = distance;
        for edge in &leaving[node as usize] {
            queue.push(std::cmp::Reverse((distance + edge.weight as u64, edge.to)));
        }
    }
    assert!(distances.contains(&u64::MAX));
    everywhere(&ShortestPaths::new(&edges, 0), 0.0, |x, what| {
        for (x, distance) in x.iter().zip(&distances) {
            let expected = match *distance {
                u64::MAX => UNREACHED,
                distance => distance as f64,
            };
            assert_eq!(*x, expected, "{what}");
        }
    });
}

const SIDE: usize = 9;

/// A grid: each step costs 0.04 and may go astray; one corner is worth 1, a cell beside it −1.
fn grid_world() -> ValueIteration {
    let to = |row: usize, column: usize, way: usize| {
        let (row, column) = match way % 4 {
            0 => (row.saturating_sub(1), column),
            1 => (row, (column + 1).min(SIDE - 1)),
            2 => ((row + 1).min(SIDE - 1), column),
            _ => (row, column.saturating_sub(1)),
        };
        (row * SIDE + column) as u32
    };
    let choices = |state: usize| {
        let (row, column) = (state / SIDE, state % SIDE);
        let reward = match (row, column) {
            (0, 8) => 1.0,
            (1, 8) => -1.0,
            _ => -0.04,
        };
        let choice = |way: usize| Choice {
            reward,
            next: vec![
                (to(row, column, way), 0.8),
                (to(row, column, way + 1), 0.1),
                (to(row, column, way + 3), 0.1),
            ],
        };
        (0..4).map(choice).collect()
    };
    ValueIteration::new((0..SIDE * SIDE).map(choices).collect(), 0.95)
}

/// Policy iteration with each policy evaluated exactly, by elimination, gives the same values.
#[test]
fn value_iteration_by_policy_evaluation() {
    const N: usize = SIDE * SIDE;
    let world = grid_world();
    let evaluate = |policy: &[usize]| {
        let mut rows: Vec<Vec<f64>> = Vec::new();
        for (state, choice) in policy.iter().enumerate() {
            let choice = &world.states()[state][*choice];
            let mut row = vec![0.0; N + 1];
            row[state] = 1.0;
            row[N] = choice.reward;
            for (next, p) in &choice.next {
                row[*next as usize] -= 0.95 * p;
            }
            rows.push(row);
        }
        // Gauss-Jordan; the matrix is diagonally dominant.
        for pivot in 0..N {
            let scale = rows[pivot][pivot];
            rows[pivot].iter_mut().for_each(|value| *value /= scale);
            let from = rows[pivot].clone();
            for (index, row) in rows.iter_mut().enumerate() {
                let factor = row[pivot];
                if index != pivot {
                    row.iter_mut()
                        .zip(&from)
                        .for_each(|(a, b)| *a -= factor * b);
                }
            }
        }
        rows.into_iter().map(|row| row[N]).collect::<Vec<f64>>()
    };
    let mut policy = vec![0; N];
    let mut exact = evaluate(&policy);
    loop {
        let better = (0..N).map(|state| world.best(state, &exact).unwrap());
        let better: Vec<usize> = better.collect();
        let values = evaluate(&better);
        let gain = values.iter().zip(&exact).map(|(a, b)| (a - b).abs());
        let gain = gain.fold(0.0, f64::max);
        (policy, exact) = (better, values);
        if gain < 1e-13 {
            break;
        }
    }
    assert_eq!(policy.len(), N);
    everywhere(&world, 1e-8, |x, what| {
        for (x, exact) in x.iter().zip(&exact) {
            assert!((x - exact).abs() <= 1.01e-8, "{what}: {x}, not {exact}");
        }
    });
}

/// Halves the distance to 1, and certifies by a function of its own.
#[derive(Clone)]
struct Halving<C> {
    certify: C,
    combine: Combine,
}

impl<C: Fn(&Range<usize>, &[f64]) -> f64> FixedPoint for Halving<C> {
    fn len(&self) -> usize {
        300
    }
    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        x[range].fill(0.0);
    }
    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        let first = x[0];
        for x in &mut x[range] {
            *x = (*x + first.max(1.0)) / 2.0;
        }
    }
    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        (self.certify)(&range, x)
    }
    fn combine(&self) -> Combine {
        self.combine
    }
}

/// A certificate that is too large, infinite, negative or NaN on a single member's range is never accepted, and the run ends nonetheless.
#[test]
fn a_wrong_certificate_is_never_accepted() {
    for combine in [Combine::Max, Combine::Sum] {
        for part in [1.0, f64::INFINITY, f64::NAN, -1.0] {
            let bad = move |range: &Range<usize>, _: &[f64]| {
                if range.contains(&299) { part } else { 0.0 }
            };
            let problem = Halving {
                certify: bad,
                combine,
            };
            for members in 1..=3 {
                let nodes = cluster(Over::Shm, members, 0.0);
                for outcome in team(nodes, |_| problem.clone(), |_| Config::default()) {
                    let outcome = outcome.unwrap();
                    assert_eq!(outcome.reason, Reason::Stalled, "{part}: {outcome}");
                    assert!(outcome.certificate >= 1.0, "{part}: {outcome}");
                }
            }
        }
    }
}

/// Every member does the laps it is allowed, and one member stops all.
#[test]
fn limits_and_stops_end_a_run() {
    let far = |_: &Range<usize>, _: &[f64]| 5.0;
    let problem = Halving {
        certify: far,
        combine: Combine::Max,
    };
    static STOP: AtomicBool = AtomicBool::new(false);
    let few = |_| Config {
        max_laps: 7,
        ..Config::default()
    };
    for outcome in team(cluster(Over::Udp, 3, 0.2), |_| problem.clone(), few) {
        let outcome = outcome.unwrap();
        assert_eq!(outcome.reason, Reason::Laps, "{outcome}");
        assert!(outcome.laps.iter().all(|laps| *laps >= 7), "{outcome}");
    }
    // One of them stops all.
    let stops = |me| Config {
        stop: if me == 2 {
            &|| STOP.load(Ordering::Relaxed)
        } else {
            &|| false
        },
        ..Config::default()
    };
    STOP.store(true, Ordering::Relaxed);
    for outcome in team(cluster(Over::Shm, 3, 0.0), |_| problem.clone(), stops) {
        assert_eq!(outcome.unwrap().reason, Reason::Stopped);
    }
}

/// Ranges follow weights; members without elements take part.
#[test]
fn ranges_follow_weights() {
    let near = |range: &Range<usize>, x: &[f64]| {
        let far = x[range.clone()].iter().map(|x| (x - 1.0).abs());
        far.fold(0.0, f64::max)
    };
    let problem = Halving {
        certify: near,
        combine: Combine::Max,
    };
    let config = |me| Config {
        weight: [1.0, 4.0, 1.0][me],
        ..Config::default()
    };
    let outcomes = team(cluster(Over::Shm, 3, 0.0), |_| problem.clone(), config);
    let ranges = outcomes.iter().map(|it| it.as_ref().unwrap().range.clone());
    assert_eq!(ranges.collect::<Vec<_>>(), [0..50, 50..250, 250..300]);
    let two = Edges::parse("two", &b"0 1 3"[..]).unwrap();
    let paths = |_| ShortestPaths::new(&two, 0);
    let exact = |_| Config {
        tolerance: 0.0,
        ..Config::default()
    };
    for outcome in team(cluster(Over::Udp, 4, 0.2), paths, exact) {
        let outcome = outcome.unwrap();
        assert!(outcome.converged() && outcome.x == [0.0, 3.0], "{outcome}");
    }
}

/// NaN, and problems that differ, are errors that name the member, on all members.
#[test]
fn faults_are_named_everywhere() {
    struct Bad {
        me: usize,
    }
    impl FixedPoint for Bad {
        fn len(&self) -> usize {
            90
        }
        fn start(&self, range: Range<usize>, x: &mut [f64]) {
            x[range].fill(0.0);
        }
        fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
            let value = if self.me == 1 { f64::NAN } else { 0.5 };
            x[range].fill(value);
        }
        fn certificate(&self, _: Range<usize>, _: &[f64]) -> f64 {
            1.0
        }
    }
    let nodes = cluster(Over::Shm, 3, 0.0);
    for result in team(nodes, |me| Bad { me }, |_| Config::default()) {
        let error = result.unwrap_err();
        assert!(
            matches!(
                error,
                Error::NotANumber {
                    member: NodeId(1),
                    index: 30
                }
            ),
            "{error}"
        );
    }
    let other = |me| Config {
        tolerance: if me == 2 { 1.0 } else { 2.0 },
        ..Config::default()
    };
    for result in team(cluster(Over::Shm, 3, 0.0), |me| Bad { me }, other) {
        let error = result.unwrap_err();
        let expected = "node 2 has another tolerance than node 0";
        assert!(error.to_string().starts_with(expected), "{error}");
    }
}

/// The survivors name a member that dies in the middle.
#[test]
fn a_dead_member_is_named() {
    for over in [Over::Shm, Over::Udp] {
        let slow = |_: &Range<usize>, _: &[f64]| 5.0;
        let problem = Halving {
            certify: slow,
            combine: Combine::Max,
        };
        // Of UDP only silence tells.
        let options = Options {
            dead_after: Duration::from_secs(4),
            ..Options::default()
        };
        let mut nodes = clusters::cluster(over, 3, 0.0, &options);
        thread::scope(|scope| {
            let victim = nodes.remove(1);
            let survivors: Vec<_> = nodes
                .into_iter()
                .map(|mut endpoint| {
                    let mut problem = problem.clone();
                    scope.spawn(move || {
                        let config = Config {
                            max_laps: u64::MAX,
                            parts: 1,
                            ..Config::default()
                        };
                        // Never still, never done.
                        let mut problem = Wandering(&mut problem);
                        solve(&mut endpoint, &mut problem, &config).map(|_| ())
                    })
                })
                .collect();
            let died = scope.spawn(move || {
                let mut endpoint = victim;
                let began = std::time::Instant::now();
                let stop = || {
                    if began.elapsed() > Duration::from_millis(200) {
                        panic!("the process of this member is killed");
                    }
                    false
                };
                let config = Config {
                    max_laps: u64::MAX,
                    stop: &stop,
                    ..Config::default()
                };
                let mut problem = problem.clone();
                let mut problem = Wandering(&mut problem);
                let killed = std::panic::AssertUnwindSafe(|| {
                    let _ = solve(&mut endpoint, &mut problem, &config);
                });
                std::panic::catch_unwind(killed).unwrap_err();
                endpoint.vanish();
            });
            died.join().unwrap();
            for survivor in survivors {
                let error = survivor.join().unwrap().unwrap_err();
                assert!(
                    matches!(error, Error::MemberDied { member: NodeId(1) }),
                    "{over:?}: {error}"
                );
            }
        });
    }
}

/// Its x never stays.
struct Wandering<'a, P>(&'a mut P);

impl<P: FixedPoint> FixedPoint for Wandering<'_, P> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn start(&self, range: Range<usize>, x: &mut [f64]) {
        self.0.start(range, x);
    }
    fn update(&mut self, range: Range<usize>, x: &mut [f64]) {
        x[range].iter_mut().for_each(|x| *x = 1.0 - *x);
    }
    fn certificate(&self, range: Range<usize>, x: &[f64]) -> f64 {
        self.0.certificate(range, x)
    }
}

/// One endpoint solves several problems, one after the other; `solve` says how.
#[test]
fn several_problems_in_a_row() {
    let edges = graph(200, 3);
    thread::scope(|scope| {
        for mut endpoint in cluster(Over::Udp, 3, 0.2) {
            let edges = &edges;
            scope.spawn(move || {
                let mut collectives = Collectives::new(&mut endpoint).unwrap();
                let config = Config::default();
                for source in 0..5 {
                    let mut paths = ShortestPaths::new(edges, source);
                    let outcome =
                        solve_with(&mut endpoint, &mut collectives, &mut paths, &config).unwrap();
                    assert!(outcome.converged() && outcome.x[source] == 0.0);
                }
                let again = solve(&mut endpoint, &mut ShortestPaths::new(edges, 0), &config);
                assert!(matches!(again, Err(Error::CollectivesExist)));
                endpoint.close(WAIT).unwrap();
            });
        }
    });
}
