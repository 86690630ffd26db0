//! A test network: judge and workers in one thread, under a seeded network. Datagrams are lost, repeated and reordered, reliable messages delayed (in
//! order within one sequence), workers unequally fast. Virtual time, in nanoseconds. A failing test prints its seed.

use super::feed::Feed;
use super::field::Outlet;
use super::judge::{Ended, Judge, JudgeFault, Origin, Stage};
use super::message::{LapReport, Order, Standing, WorkerStats};
use super::step::{Step, To, Way, WorkerFault};
use super::succession::Survey;
use super::worker::Worker;
use super::{Mode, SolveConfig};
use crate::local::{Limits, Sweeper};
use crate::system::{Source, System, partition};
use std::collections::BTreeMap;
use std::convert::Infallible;
use tsumuji_board::Carrier;
use tsumuji_wire::{Datagram, NodeId};

/// Bytes of values in one datagram: several per block even in small systems.
const CAPACITY_BYTES: usize = 64;
/// Steps after which a run that should have ended has not.
const STEP_LIMIT: u64 = 3_000_000;

/// Conditions of the network.
#[derive(Debug, Clone, Copy)]
pub(super) struct Weather {
    pub(super) seed: u64,
    pub(super) loss_percent: u64,
    pub(super) repeat_percent: u64,
    pub(super) delay_ns: u64,
    /// Longest additional delay of reliable messages.
    pub(super) reliable_delay_ns: u64,
    /// Duration of a step of work, for all workers alike; `None`: each has its own, up to tenfold different.
    pub(super) step_ns: Option<u64>,
    /// From this moment on all datagrams of the board are lost.
    pub(super) silent_after_ns: u64,
    /// Workers that die, and when; the judge and the others notice a little later.
    pub(super) deaths: [(u64, usize); 3],
    /// Workers that are taken for lost although they live, and when.
    pub(super) mistakes: [(u64, usize); 1],
    /// When the rows are shared anew, by random speeds.
    pub(super) reshares: [u64; 2],
    /// When further workers join.
    pub(super) joins: [u64; 2],
    /// When the judge dies; another takes its place a little later.
    pub(super) successions: [u64; 2],
}

/// Nothing of the kind happens.
pub(super) const NEVER: (u64, usize) = (u64::MAX, 0);

impl Weather {
    pub(super) fn calm(seed: u64) -> Self {
        Self {
            seed,
            loss_percent: 0,
            repeat_percent: 0,
            delay_ns: 2_000,
            reliable_delay_ns: 5_000,
            step_ns: None,
            silent_after_ns: u64::MAX,
            deaths: [NEVER; 3],
            mistakes: [NEVER; 1],
            reshares: [u64::MAX; 2],
            joins: [u64::MAX; 2],
            successions: [u64::MAX; 2],
        }
    }

    pub(super) fn rough(seed: u64) -> Self {
        Self {
            loss_percent: 30,
            repeat_percent: 20,
            delay_ns: 300_000,
            reliable_delay_ns: 2_000_000,
            ..Self::calm(seed)
        }
    }
}

#[derive(Debug)]
pub(super) struct Verdict {
    pub(super) ended: Ended,
    pub(super) shares_lost: u64,
}

impl std::ops::Deref for Verdict {
    type Target = Ended;

    fn deref(&self) -> &Ended {
        &self.ended
    }
}

#[derive(Debug)]
enum Event {
    Datagram {
        to: usize,
        from: usize,
        channel_id: u16,
        epoch: u32,
        lap: u32,
        key: u32,
        payload: Vec<u8>,
    },
    Report {
        from: usize,
        report: LapReport,
    },
    Order {
        to: usize,
        bytes: Vec<u8>,
    },
    Answer {
        from: usize,
        bytes: Vec<u8>,
    },
    Piece {
        to: usize,
        from: usize,
        bytes: Vec<u8>,
    },
    /// A worker's process ends.
    Death {
        worker: usize,
    },
    /// The judge (`None`) or a worker notices that another one is gone.
    Noticed {
        by: Option<usize>,
        worker: usize,
    },
    Join,
    Reshare,
    /// The judge's process ends.
    JudgeDeath,
    /// Another judge begins.
    Succession,
}

/// Messages under way, by time of arrival.
struct Network {
    weather: Weather,
    random: fastrand::Rng,
    now: u64,
    number: u64,
    under_way: BTreeMap<(u64, u64), Event>,
    /// Last arrival of each ordered sequence: (from, to, way); the judge is usize::MAX.
    last: BTreeMap<(usize, usize, Way), u64>,
    shares_lost: u64,
}

impl Network {
    fn put(&mut self, at: u64, event: Event) {
        self.number += 1;
        self.under_way.insert((at, self.number), event);
    }

    fn reliable(&mut self, way: (usize, usize, Way), event: Event) {
        let at = self.now + 500 + self.random.u64(..=self.weather.reliable_delay_ns);
        let last = self.last.entry(way).or_default();
        let at = at.max(*last);
        *last = at;
        self.put(at, event);
    }

    /// Arrival times of the copies of a datagram.
    fn lossy(&mut self) -> Vec<u64> {
        let Weather {
            loss_percent,
            repeat_percent,
            delay_ns,
            ..
        } = self.weather;
        let lost = self.random.u64(..100) < loss_percent;
        let copies = if lost {
            0
        } else {
            1 + u64::from(self.random.u64(..100) < repeat_percent)
        };
        (0..copies)
            .map(|_| self.now + 200 + self.random.u64(..=delay_ns))
            .collect()
    }
}

/// The outlet of a worker.
struct WorkerOutlet<'a> {
    network: &'a mut Network,
    me: usize,
    clock: u64,
}

impl Carrier for WorkerOutlet<'_> {
    type Error = Infallible;

    fn update(&mut self, readers: &[NodeId], datagram: Datagram<'_>) -> Result<usize, Infallible> {
        let from = self.me;
        for to in readers.iter().map(|reader| usize::from(reader.0) - 1) {
            let arrivals = self.network.lossy();
            if arrivals.is_empty() || self.network.now >= self.network.weather.silent_after_ns {
                self.network.shares_lost += 1;
                continue;
            }
            for at in arrivals {
                self.network.put(
                    at,
                    Event::Datagram {
                        to,
                        from,
                        channel_id: datagram.channel_id,
                        epoch: datagram.epoch,
                        lap: datagram.lap,
                        key: datagram.key,
                        payload: datagram.payload.to_vec(),
                    },
                );
            }
        }
        Ok(0)
    }
}

impl Outlet for WorkerOutlet<'_> {
    fn report(&mut self, report: &LapReport) -> Result<(), Infallible> {
        let payload = report.payload();
        let report =
            LapReport::parse(report.epoch, report.number, &payload).expect("a report of our own");
        for at in self.network.lossy() {
            self.network.put(
                at,
                Event::Report {
                    from: self.me,
                    report,
                },
            );
        }
        Ok(())
    }

    fn now_ns(&mut self) -> u64 {
        self.clock += 50;
        self.clock
    }
}

/// Of the judge with this number. They count on across 2³², as clocks do.
fn origin(judge: u32) -> Origin {
    Origin {
        system: 1,
        first: (judge * 1_000_000).wrapping_sub(500_000),
        first_elements: None,
    }
}

/// Runs the system to the end.
pub(super) fn run(
    system: &System,
    workers: usize,
    config: &SolveConfig,
    weather: Weather,
) -> Result<Verdict, JudgeFault> {
    let source = Source::System(system.clone());
    let ranges = partition(&system.matrix, workers).unwrap();
    let limits = Limits::new(config.tol, config.max_laps).unwrap();
    let mut judge = Judge::new(limits, config, (ranges, origin(0)), None);
    let mut team: Vec<Option<Worker>> = (0..workers)
        .map(|me| Some(Worker::new(me, CAPACITY_BYTES)))
        .collect();
    let mut network = Network {
        weather,
        random: fastrand::Rng::with_seed(weather.seed),
        now: 0,
        number: 0,
        under_way: BTreeMap::new(),
        last: BTreeMap::new(),
        shares_lost: 0,
    };
    const JUDGE: usize = usize::MAX;
    let order = |network: &mut Network, to: usize, way: Way, bytes: Vec<u8>| {
        network.reliable((JUDGE, to, way), Event::Order { to, bytes });
    };
    let send_orders = |judge: &mut Judge, network: &mut Network| {
        while let Some((to, next)) = judge.out().pop_front() {
            let Order::Setup(mut setup) = next else {
                order(network, to, Way::Control, next.encode());
                continue;
            };
            let x = judge.known_x();
            let mut feed = Feed::new(&source, &mut setup, x, 100);
            order(network, to, Way::Bulk, Order::Setup(setup).encode());
            while let Some((next, _)) = feed.next() {
                order(network, to, Way::Bulk, next);
            }
        }
    };
    send_orders(&mut judge, &mut network);
    for (at, worker) in weather.deaths {
        network.put(at, Event::Death { worker });
    }
    for (at, worker) in weather.mistakes {
        network.put(at, Event::Noticed { by: None, worker });
    }
    for at in weather.reshares {
        network.put(at, Event::Reshare);
    }
    for at in weather.joins {
        network.put(at, Event::Join);
    }
    for at in weather.successions {
        network.put(at, Event::JudgeDeath);
    }
    // Of a new judge, until all workers have told what they hold.
    let mut survey: Option<Survey> = None;
    let (mut is_judged, mut judges) = (true, 1);
    // Unequal: each worker steps at its own pace.
    let mut pace: Vec<u64> = (0..workers)
        .map(|_| {
            weather
                .step_ns
                .unwrap_or_else(|| 300 + network.random.u64(..3_000))
        })
        .collect();
    let mut step_at = vec![0u64; workers];
    for _ in 0..STEP_LIMIT {
        let next_step = step_at.iter().copied().min().expect("there are workers");
        let next_event = network
            .under_way
            .first_key_value()
            .map_or(u64::MAX, |(key, _)| key.0);
        if next_event <= next_step {
            let (key, event) = network.under_way.pop_first().expect("just checked");
            network.now = key.0;
            match event {
                Event::Datagram {
                    to,
                    from,
                    channel_id,
                    epoch,
                    lap,
                    key: start,
                    payload,
                } => {
                    if let Some(worker) = &mut team[to] {
                        worker.datagram(&Datagram {
                            source: NodeId(from as u16 + 1),
                            incarnation: 7,
                            channel_id,
                            epoch,
                            lap,
                            key: start,
                            payload: &payload,
                        });
                    }
                }
                Event::Report { from, report } if is_judged => judge.report(from, report),
                Event::Report { .. } => {}
                Event::Order { to, bytes } => {
                    let taken = team[to].as_mut().map(|worker| worker.order(&bytes));
                    match taken {
                        Some(Err(WorkerFault::Aborted { .. })) => {
                            team[to] = None;
                            step_at[to] = u64::MAX;
                        }
                        taken => taken.unwrap_or(Ok(())).expect("a good order"),
                    }
                }
                Event::Answer { from, bytes } => match &mut survey {
                    Some(survey) => survey.answer(from, &bytes),
                    None if is_judged => judge.answer(from, &bytes)?,
                    None => {}
                },
                // One that died before may have been replaced by now.
                Event::JudgeDeath if is_judged && survey.is_none() => {
                    is_judged = false;
                    judge.out().clear();
                    network.under_way.retain(|_, event| match event {
                        Event::Order { .. } | Event::Answer { .. } | Event::Report { .. } => false,
                        Event::Noticed { by, .. } => by.is_some(),
                        _ => true,
                    });
                    let at = network.now + network.random.u64(..5_000_000);
                    network.put(at, Event::Succession);
                }
                Event::JudgeDeath => {}
                Event::Succession => {
                    let mut begun = Survey::new(team.len());
                    for (worker, there) in team.iter().enumerate() {
                        match there {
                            Some(_) => {
                                order(&mut network, worker, Way::Control, Order::AskState.encode())
                            }
                            None => begun.lost(worker),
                        }
                    }
                    survey = Some(begun);
                }
                Event::Piece { to, from, bytes } => {
                    if let Some(worker) = &mut team[to] {
                        worker.note(from, &bytes).expect("a good note");
                    }
                }
                Event::Death { worker } if worker < team.len() => {
                    team[worker] = None;
                    step_at[worker] = u64::MAX;
                    for by in (0..team.len()).map(Some).chain([None]) {
                        let at = network.now + network.random.u64(..3_000_000);
                        network.put(at, Event::Noticed { by, worker });
                    }
                }
                Event::Noticed {
                    by: Some(by),
                    worker,
                } => {
                    if let Some(by) = &mut team[by] {
                        by.peer_lost(worker);
                    }
                }
                Event::Noticed { by: None, worker } if !is_judged => {
                    if let (Some(survey), None) = (&mut survey, &team[worker]) {
                        survey.lost(worker);
                    }
                }
                Event::Noticed { by: None, worker } => {
                    if judge.takes_part(worker) {
                        judge.lost(worker, "it died")?;
                        let abort = Order::Abort {
                            why: "taken for lost".into(),
                        };
                        order(&mut network, worker, Way::Control, abort.encode());
                    }
                }
                Event::Join if !is_judged => {
                    let at = network.now + 1_000_000;
                    network.put(at, Event::Join);
                }
                Event::Reshare if !is_judged => {}
                Event::Join => {
                    judge.joined(team.len());
                    team.push(Some(Worker::new(team.len(), CAPACITY_BYTES)));
                    pace.push(1_000);
                    step_at.push(network.now);
                }
                Event::Reshare => {
                    let speeds = (0..team.len()).map(|_| 0.1 + network.random.f64());
                    let speeds: Vec<f64> = speeds.collect();
                    judge.reshare(&speeds);
                }
                Event::Death { .. } => {}
            }
        } else {
            network.now = next_step;
            let me = step_at
                .iter()
                .position(|step_at| *step_at == next_step)
                .expect("the least of them");
            step_at[me] += pace[me] + network.random.u64(..=pace[me] / 4);
            let clock = network.now;
            let mut outlet = WorkerOutlet {
                network: &mut network,
                me,
                clock,
            };
            let worker = team[me].as_mut().expect("it takes steps");
            let Ok(step) = worker.step(&mut outlet);
            match step {
                Step::Again(_) => {}
                Step::Rest => step_at[me] += 20_000,
                Step::Wait | Step::Leave => step_at[me] += 2_000,
                Step::Lap => worker.exchange_blocks().expect("good blocks"),
                Step::Build(rows, relaxation) => {
                    let block = rows.make().expect("all rows");
                    let built = worker.built(Sweeper::new(block, relaxation).unwrap());
                    built.expect("good lists");
                }
                Step::Verify => {
                    let exact = worker.exact_residual(&mut || ());
                    worker.verified(exact);
                }
                Step::Count => worker.finish(WorkerStats::default()),
                Step::Iterate => unreachable!("Krylov methods are tested between endpoints"),
            }
        }
        for (from, worker) in team.iter_mut().enumerate() {
            let Some(worker) = worker else { continue };
            while let Some(out) = worker.out().pop_front() {
                match out.to {
                    To::Judge => network.reliable(
                        (from, JUDGE, out.way),
                        Event::Answer {
                            from,
                            bytes: out.bytes,
                        },
                    ),
                    To::Worker(to) => network.reliable(
                        (from, to, out.way),
                        Event::Piece {
                            to,
                            from,
                            bytes: out.bytes,
                        },
                    ),
                }
            }
        }
        if survey.as_ref().is_some_and(Survey::is_whole) {
            let told = survey.take().expect("just checked").into_standings();
            let has_rows = |told: &Standing| !told.rows.is_empty();
            judge = match told.iter().flatten().any(has_rows) {
                true => {
                    Judge::succeeding(limits, config, (system.n(), origin(judges)), &told, None)
                }
                // The first division had not arrived anywhere.
                false => {
                    let ranges = partition(&system.matrix, told.len()).unwrap();
                    Judge::new(limits, config, (ranges, origin(judges)), None)
                }
            };
            (is_judged, judges) = (true, judges + 1);
            for (worker, told) in told.iter().enumerate() {
                if told.is_none() {
                    judge.lost(worker, "it died before")?;
                }
            }
        }
        if is_judged {
            send_orders(&mut judge, &mut network);
        }
        if is_judged && judge.stage() == Stage::Done {
            let ended = judge.into_ended().expect("done");
            return Ok(Verdict {
                ended,
                shares_lost: network.shares_lost,
            });
        }
    }
    panic!(
        "no end after {STEP_LIMIT} steps at {:?} with {weather:?}",
        judge.stage()
    );
}

pub(super) fn config(mode: Mode) -> SolveConfig {
    SolveConfig {
        mode,
        inner: crate::local::Inner::Sweep,
        elements: tsumuji_board::Elements::Fixed(4),
        max_laps: 3_000,
        ..SolveConfig::default()
    }
}
