//! The simulated part of RELAX's tables and figures: more machines than this one has cores, over links of the paper's rates.
//!
//! Points are runs of `tsumuji_solve::distributed::simulated::machines`: engine, board, judge and workers are those of production, time is virtual. What
//! an entry of A takes is measured here for each point; what a frame takes and how long it is under way are the assumptions of `solve --plan`. Beside
//! the points stand checks: this machine's own conditions simulated, over what was measured.

use std::time::{Duration, Instant};

use anyhow::ensure;
use serde::Serialize;
use serde_json::{Value, json};
use tsumuji_bench::compare::Listener;
use tsumuji_bench::{stop, table};
use tsumuji_board::Elements;
use tsumuji_numbers::memory;
use tsumuji_solve::distributed::simulated::machines::{Machines, RelaxError, entry_ps};
use tsumuji_solve::system::{Generate, Solution};

use super::{BYPASS, FAN_OUT, PAPER_WORKERS, Plan, UDP, every_other};
use crate::interrupt::Interrupted;
use crate::output;
use crate::solve::{header_bytes, link_model};
use crate::sweep::{Cell, Computed, Swept, Variable};
use crate::talk::Talk;

/// Workers where they are varied.
const WORKERS: [u64; 8] = [1, 2, 3, 4, 7, 16, 64, 256];
/// Workers where they are not: the paper's.
pub(super) const MACHINES: [u64; 2] = [PAPER_WORKERS as u64, 7];
/// Most workers that can be asked for.
const WORKERS_MOST: u64 = 1_000;
/// Fewest rows of a worker that was not asked for.
const ROWS_LEAST: u64 = 4;
/// Rates of the cables in Gbit/s: the paper's, and that of common ones.
pub(super) const RATES: [u64; 2] = [10, 1];
/// Time that all points together may take, where workers were not asked for.
const PATIENCE: Duration = Duration::from_secs(30);
const LEFT_OUT: &str = "left out: it would take longer than 30 s";
/// A frame's delay beyond the shortest.
const JITTER_US: u64 = 3;
/// What a machine's engine keeps of another one with which it has talked, and the simulator's judge of the messages to it.
const PEER_BYTES: u128 = 2_300 + 1_400;
/// An element of x: its worker's value and lap, and while blocks are exchanged a value that has not been acknowledged and one that has just come.
const ELEMENT_BYTES: u128 = 8 + 4 + 8 + 8;
/// Frames under way to a machine, at most a full port of the switch, and what each of them takes beside its bytes.
const PORT_BYTES: u128 = 512 << 10;

/// `--simulate`: these workers; none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Simulate(Vec<u64>);

impl Simulate {
    /// Whether nothing is wanted.
    pub(super) fn is_none(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::str::FromStr for Simulate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let numbers = text.split(',').map(|number| {
            let number = number.parse::<u64>().ok();
            number.filter(|workers| (1..=WORKERS_MOST).contains(workers))
        });
        let workers: Option<Vec<u64>> = numbers.collect();
        let is_new = |all: &[u64], place: usize| !all[..place].contains(&all[place]);
        let workers = workers.filter(|all| (0..all.len()).all(|place| is_new(all, place)));
        let accepted =
            || format!("numbers from 1 to {WORKERS_MOST}, each once, separated by commas, or none");
        workers.map(Self).ok_or_else(accepted)
    }
}

/// Under which conditions points are simulated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Conditions {
    link: &'static str,
    /// 0: no limit.
    pub(super) gigabits_per_second: u64,
    /// Where they are not varied.
    pub(super) workers: Option<u64>,
    /// Workers are cores of one machine, which share its memory.
    is_one_machine: bool,
}

/// A simulated line.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Simulated {
    #[serde(flatten)]
    pub(super) swept: Swept,
    #[serde(flatten)]
    pub(super) conditions: Conditions,
    /// Of the points that there are: what an entry of A takes, and a frame of the core that computes.
    entry_picoseconds: Vec<u64>,
    handover_nanoseconds: Vec<u64>,
}

/// One measured mean, and the same simulated.
#[derive(Debug, Clone, PartialEq, Serialize)]
struct Check {
    way: String,
    value: u64,
    simulated_seconds: f64,
    measured_seconds: f64,
    /// Simulated over measured.
    ratio: f64,
    simulated_laps: f64,
    measured_laps: Option<f64>,
}

/// A ratio of simulated over measured time that is agreement: means of measured times vary by that much on shared cores.
const AGREES: std::ops::RangeInclusive<f64> = 0.75..=1.33;

/// All that is simulated of a figure.
pub(super) struct Simulation {
    pub(super) lines: Vec<Simulated>,
    checks: Vec<Check>,
}

/// When to begin no further point.
struct Patience {
    until: Option<Instant>,
}

impl Patience {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

/// The conditions of each line.
fn conditions(plan: &Plan, asked: Option<&Simulate>) -> Vec<Conditions> {
    let udp = plan.ways.iter().find(|way| **way == UDP);
    let bypass = plan.ways.iter().rfind(|way| BYPASS.contains(way));
    let links = udp.into_iter().chain(bypass);
    let links: Vec<&'static str> = links.filter_map(|way| way.link()).collect();
    let workers: Vec<Option<u64>> = match (plan.variable, asked) {
        (_, Some(asked)) if asked.is_none() => return Vec::new(),
        (Variable::Workers, _) => vec![None],
        (_, Some(Simulate(asked))) => asked.iter().copied().map(Some).collect(),
        (_, None) => MACHINES.map(Some).to_vec(),
    };
    // Both rates where workers are varied over one link; everything else over the paper's cables alone.
    let rates = if plan.variable == Variable::Workers && links.len() == 1 {
        RATES.len()
    } else {
        1
    };
    let mut all = Vec::new();
    for gigabits_per_second in RATES.into_iter().take(rates) {
        for workers in workers.iter().copied() {
            all.extend(links.iter().map(|&link| Conditions {
                link,
                gigabits_per_second,
                workers,
                is_one_machine: false,
            }));
        }
    }
    all
}

/// What the lines have points for.
fn values(plan: &Plan, asked: Option<&Simulate>, quick: bool) -> Vec<u64> {
    match (plan.variable, asked) {
        (Variable::Workers, Some(Simulate(asked))) => asked.clone(),
        (Variable::Workers, None) => {
            let fits = |workers: &u64| *workers == 1 || workers * ROWS_LEAST <= plan.rows;
            let all: Vec<u64> = WORKERS.into_iter().filter(fits).collect();
            if quick { every_other(all) } else { all }
        }
        _ => plan.values.clone(),
    }
}

impl Conditions {
    /// The line's name, which marks it.
    fn name(&self) -> String {
        let link = self.link.split(['+', ':']).next().unwrap_or(self.link);
        match self.workers {
            None => format!("simulated {link}, {} Gbit/s", self.gigabits_per_second),
            Some(workers) => format!("simulated {link}, {workers} workers"),
        }
    }

    fn frame_ns(&self) -> u64 {
        (1e9 * link_model(self.link, None).frame).round() as u64
    }

    fn delay_us(&self) -> u64 {
        (1e6 * link_model(self.link, None).latency).round() as u64
    }

    /// The machines of a point.
    fn machines(
        &self,
        plan: &Plan,
        value: u64,
        stop: &(dyn Fn() -> bool + Sync),
    ) -> Result<Machines, RelaxError> {
        let (rows, workers, elements) = plan.at(value);
        let workers = self.workers.unwrap_or(workers as u64);
        if workers > rows {
            let reason = format!("{rows} rows are too few for {workers} workers");
            return Err(reason.into());
        }
        let system = Generate::Dense { n: rows as usize };
        check_memory(&system, workers)?;
        let (workers, elements) = (workers as usize, elements as usize);
        let threads = if self.is_one_machine { workers } else { 1 };
        let delay_us = self.delay_us();
        let value_ps = entry_ps(&system, (workers, threads), elements, stop);
        let machines = Machines {
            system,
            solution: Solution::Random, // as of the measured runs
            workers,
            elements: Elements::Fixed(elements),
            frame_bytes: plan.frame_bytes() as usize,
            frame_ns: self.frame_ns(),
            handover_ns: None,
            delay_us: delay_us..delay_us + JITTER_US,
            rate_mbit: 1_000 * self.gigabits_per_second,
            loss_percent: 0,
            value_ps: value_ps.ok_or(RelaxError::Stopped)?,
            slow: None,
            seed: 1,
        };
        Ok(match self.is_one_machine {
            true => machines,
            false => machines.with_second_cores(),
        })
    }

    /// A point, and the machines that it is of.
    fn point(
        &self,
        plan: &Plan,
        value: u64,
        patience: &Patience,
    ) -> Result<(Computed, Machines), String> {
        if patience.is_over() {
            return Err(LEFT_OUT.to_owned());
        }
        let ends = || stop::is_wanted() || patience.is_over();
        let told = |error: RelaxError| {
            if let RelaxError::Fault(_) = &error {
                let varied = plan.variable.name();
                tell!("tsumuji: {}, {varied} {value}: {error}", self.name());
                output::note_partial();
            }
            reason(&error)
        };
        let machines = self.machines(plan, value, &ends).map_err(told)?;
        let found = machines.relax(&ends).map_err(told)?;
        if !found.summary.reason.is_converged() {
            return Err(found.summary.reason.to_string());
        }
        let seconds = found.iterating_seconds;
        let bytes = found.update_bytes + header_bytes(self.link) * found.updates;
        let laps: u64 = found.summary.laps.iter().sum();
        let computed = Computed {
            seconds,
            laps: laps as f64 / machines.workers as f64,
            wire_bits_per_second: if seconds > 0.0 {
                8.0 * bytes as f64 / seconds
            } else {
                0.0
            },
        };
        Ok((computed, machines))
    }
}

/// Why a point is missing. What the user did not stop was stopped because the time was over.
fn reason(error: &RelaxError) -> String {
    match error {
        RelaxError::Stopped => LEFT_OUT.to_owned(),
        error => error.to_string(),
    }
}

/// Refuses machines that would not fit into the memory available now.
fn check_memory(system: &Generate, workers: u64) -> Result<(), String> {
    let peers = u128::from(workers);
    let each = peers * PEER_BYTES + system.n() as u128 * ELEMENT_BYTES + PORT_BYTES;
    let needed = system.memory_bytes() + peers * each;
    match memory::available_bytes().map(u128::from) {
        Some(available) if needed > available => Err(format!(
            "{workers} machines and {system} need {} of memory, but only {} are available",
            memory::human(needed),
            memory::human(available)
        )),
        _ => Ok(()),
    }
}

/// Simulates the lines of a figure, and what was measured of it.
pub(super) fn run(
    plan: &Plan,
    (asked, quick): (Option<&Simulate>, bool),
    measured: &[Swept],
    talk: &mut Talk,
) -> anyhow::Result<Simulation> {
    let mut simulation = Simulation {
        lines: Vec::new(),
        checks: Vec::new(),
    };
    let conditions = conditions(plan, asked);
    if conditions.is_empty() {
        return Ok(simulation);
    }
    let until = asked.is_none().then(|| Instant::now() + PATIENCE);
    let patience = Patience { until };
    simulation.checks = checks(plan, measured, &patience)?;
    let lines = conditions.into_iter().map(|conditions| Simulated {
        swept: Swept {
            way: conditions.name(),
            cells: Vec::new(),
        },
        conditions,
        entry_picoseconds: Vec::new(),
        handover_nanoseconds: Vec::new(),
    });
    simulation.lines = lines.collect();
    let (varied, mut left_out) = (plan.variable.name(), 0);
    for value in values(plan, asked, quick) {
        for line in &mut simulation.lines {
            let found = line.conditions.point(plan, value, &patience);
            ensure!(!stop::is_wanted(), Interrupted);
            let way = &line.swept.way;
            match &found {
                Ok((found, machines)) => {
                    line.entry_picoseconds.push(machines.value_ps);
                    line.handover_nanoseconds.extend(machines.handover_ns);
                    talk.say(&format!("{way}, {varied} {value}: {:.4} s", found.seconds));
                }
                Err(reason) if reason == LEFT_OUT => left_out += 1,
                Err(reason) => talk.say(&format!("{way}, {varied} {value}: none: {reason}")),
            }
            let found = found.map(|(found, _)| found);
            line.swept.cells.push(Cell::computed(value, found));
        }
    }
    if left_out > 0 {
        talk.say(&format!(
            "simulated points left out after {} s: {left_out}; --simulate names the workers and takes its time",
            PATIENCE.as_secs()
        ));
    }
    Ok(simulation)
}

/// Simulates what was measured: the first, the middle and the last value of each link. Fan-out is not simulated.
fn checks(plan: &Plan, measured: &[Swept], patience: &Patience) -> anyhow::Result<Vec<Check>> {
    let mut checks = Vec::new();
    for (way, swept) in plan.ways.iter().zip(measured) {
        let Some(link) = way.link().filter(|_| *way != FAN_OUT) else {
            continue;
        };
        let conditions = Conditions {
            link,
            gigabits_per_second: 0,
            workers: None,
            is_one_machine: true,
        };
        let last = swept.cells.len().saturating_sub(1);
        let mut places = vec![0, last / 2, last];
        places.dedup();
        for cell in places
            .into_iter()
            .filter_map(|place| swept.cells.get(place))
        {
            let Some(measured_seconds) = cell.mean_seconds() else {
                continue;
            };
            let found = conditions.point(plan, cell.value, patience);
            ensure!(!stop::is_wanted(), Interrupted);
            // What has no result here has none among the lines either, which say why.
            let Ok((found, _)) = found else { continue };
            checks.push(Check {
                way: swept.way.clone(),
                value: cell.value,
                simulated_seconds: found.seconds,
                measured_seconds,
                ratio: found.seconds / measured_seconds,
                simulated_laps: found.laps,
                measured_laps: cell.mean_laps(),
            });
        }
    }
    Ok(checks)
}

impl Simulation {
    /// The lines, as measured ones are had.
    pub(super) fn swept(&self) -> Vec<Swept> {
        self.lines.iter().map(|line| line.swept.clone()).collect()
    }

    /// What is simulated and what is assumed.
    fn what(&self, plan: &Plan) -> String {
        let each = self.lines.iter().map(|line| &line.conditions);
        let mut links: Vec<String> = each
            .map(|on| {
                format!(
                    "{} {} ns a frame and {} us one way",
                    on.link,
                    on.frame_ns(),
                    on.delay_us()
                )
            })
            .collect();
        links.sort();
        links.dedup();
        let range = |of: fn(&Simulated) -> &Vec<u64>| {
            let numbers = self.lines.iter().flat_map(of);
            match (numbers.clone().min(), numbers.max()) {
                (Some(least), Some(most)) => format!("{least} to {most}"),
                _ => "-".to_owned(),
            }
        };
        let entries = range(|line| &line.entry_picoseconds);
        let handovers = range(|line| &line.handover_nanoseconds);
        format!(
            "simulated, not measured: the engine, board, judge and workers of this program in virtual time, each worker a machine of two cores on a switch: one \
             receives and sends (unless that takes more than half as long as to compute), one computes; on that one an entry of A takes {entries} ps and a received frame {handovers} ns, as measured here; assumed: {}; \
             frames of {} bytes, cables of 10 Gbit/s where nothing else is said",
            links.join(", "),
            plan.frame_bytes()
        )
    }

    /// The points that there are.
    fn table(&self, variable: Variable) -> String {
        let varied = variable.name();
        let heads = format!("by | {varied} | seconds | speed-up | laps | Mbit/s");
        let mut rows = table::headed(&heads);
        for Simulated { swept, .. } in &self.lines {
            let first = swept.cells.first().and_then(Cell::mean_seconds);
            for cell in &swept.cells {
                let (Some(seconds), Some(laps)) = (cell.mean_seconds(), cell.mean_laps()) else {
                    continue;
                };
                let speed_up = first.filter(|_| variable == Variable::Workers);
                let number = |number: Option<f64>| table::number(number, 2, "");
                rows.push([
                    swept.way.clone(),
                    cell.value.to_string(),
                    format!("{seconds:.4}"),
                    number(speed_up.map(|first| first / seconds)),
                    format!("{laps:.1}"),
                    number(cell.mean_megabits()),
                ]);
            }
        }
        table::aligned(&rows)
    }

    /// For people; empty if there are no lines.
    pub(super) fn text(&self, plan: &Plan) -> Vec<String> {
        if self.lines.is_empty() {
            return Vec::new();
        }
        let mut texts = vec![
            self.what(plan),
            self.table(plan.variable),
            "checks, simulated with as many workers as measured, which share this machine's memory:".to_owned(),
        ];
        let varied = plan.variable.name();
        let heads = format!("by | {varied} | simulated s | measured s | ratio | laps | measured");
        let mut rows = table::headed(&heads);
        rows.extend(self.checks.iter().map(|check| {
            [
                check.way.clone(),
                check.value.to_string(),
                format!("{:.4}", check.simulated_seconds),
                format!("{:.4}", check.measured_seconds),
                format!("{:.2}", check.ratio),
                format!("{:.1}", check.simulated_laps),
                table::number(check.measured_laps, 1, ""),
            ]
        }));
        if self.checks.is_empty() {
            texts.push("none: nothing was measured between hosts, or no time was left".to_owned());
        } else {
            texts.push(table::aligned(&rows));
            texts.push(self.verdict());
        }
        texts
    }

    /// Whether the simulation can be trusted with what was not measured.
    fn verdict(&self) -> String {
        let agrees = |check: &&Check| AGREES.contains(&check.ratio);
        let (found, all) = (self.checks.iter().filter(agrees).count(), self.checks.len());
        let (least, most) = (AGREES.start(), AGREES.end());
        let rest = if found == all {
            ""
        } else {
            "; where it does not, kernel and judge, which the simulation leaves out, had a part of the cores"
        };
        format!("simulated and measured agree (ratio {least} to {most}) in {found} of {all}{rest}")
    }

    /// For scripts; null if there are no lines.
    pub(super) fn json(&self, plan: &Plan) -> Value {
        if self.lines.is_empty() {
            return Value::Null;
        }
        let ways: Vec<&str> = self
            .lines
            .iter()
            .map(|line| line.swept.way.as_str())
            .collect();
        json!({
            "what": self.what(plan), "ways": ways, "frame_bytes": plan.frame_bytes(), "results": self.lines, "checks": self.checks,
            "agree": self.checks.iter().filter(|check| AGREES.contains(&check.ratio)).count(),
        })
    }
}

#[cfg(test)]
mod tests;
