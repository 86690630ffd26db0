//! Our own operations among several processes: gather, scatter, broadcast, and the other collectives.
//!
//! [`measure`] runs in the parent (node 0, the root) and starts the others, which call `serve`. Every phase begins when all have
//! sent that they are ready and the root has sent go, and ends as in the peers' programs: a gather, of plain messages, when the root has all
//! messages; collective operations behind a barrier.
//!
//! Repetitions follow one another without a pause. Where nodes outnumber cores the endpoint's adaptive policy divides the cores among them; else all
//! spin, each on a core of its own.

use std::ffi::OsStr;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tsumuji_collective::{Collectives, Group, Op as Fold};
use tsumuji_node::bootstrap::Hosts;
use tsumuji_node::{
    Endpoint, LaunchSpec, LinkSpec, NodeId, Options, Pace, Security, endpoint_from_env,
};

use crate::exchange::ExchangeError;
use crate::machine;
use crate::ops::{Job, Op, Sample};
use crate::processes::{self, Arrivals, CHECK_EVERY, CONTROL, DATA, READY, Watch, pin};
use crate::serve::Task;
use crate::stop;

const ROOT: NodeId = NodeId(0);
/// Repetitions before anything is measured.
const WARM_UP: u64 = 3;

/// One measurement, as it is passed to the other processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// The operation.
    pub op: Op,
    /// Bytes of a message, or of each node's block.
    pub size: usize,
    /// Repetitions.
    pub iterations: u64,
    /// Nodes that take part, the root included.
    pub nodes: usize,
    /// Nodes send only as fast as receivers answer.
    pub slow_write: bool,
}

impl Plan {
    /// The plan of a job, as the peers get it.
    pub fn of(job: &Job) -> Self {
        Self {
            op: job.op,
            size: job.size,
            iterations: job.iterations,
            nodes: job.nodes,
            slow_write: false,
        }
    }

    fn spins(&self) -> bool {
        self.nodes <= machine::cpus().len()
    }

    fn cpu_of(&self, node: NodeId) -> Option<usize> {
        let cores = machine::cpus();
        self.spins().then(|| cores[usize::from(node.0)])
    }

    fn options(&self) -> Options {
        let usual = Options::default();
        let room = 2 * self.size;
        Options {
            idle: processes::idle(self.spins()),
            budget_bytes: usual.budget_bytes.max(room * self.nodes),
            send_queue_bytes: usual.send_queue_bytes.max(room),
            pace: if self.slow_write {
                Pace::Drain
            } else {
                Pace::Free
            },
            ..usual
        }
    }
}

/// A node's report to the root.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
struct Report {
    cpu_seconds: f64,
    receive_drops: u64,
    retransmitted_frames: u64,
}

/// One node: its endpoint, its arrivals, and its way of waiting.
struct Member {
    endpoint: Endpoint,
    arrivals: Arrivals,
    plan: Plan,
    /// How many of the arrivals were taken so far.
    ready_taken: u64,
    messages_taken: u64,
    drops_before: u64,
    collectives: Collectives,
    world: Group,
}

/// Memory of an operation, prepared as programs do.
struct Blocks {
    own: Vec<u8>,
    /// One block for each node, for operations that need them.
    all: Vec<u8>,
    /// Operands of an all-reduce: numbers of 8 bytes, of 4 where the size is no multiple of 8.
    doubles: Vec<f64>,
    floats: Vec<f32>,
}

impl Blocks {
    fn of(plan: &Plan, is_root: bool) -> Self {
        let has_all = plan.op == Op::Alltoall || plan.op == Op::Scatter && is_root;
        let adds = plan.op == Op::Allreduce;
        let by_doubles = plan.size.is_multiple_of(size_of::<f64>());
        let numbers = |wanted: bool, bytes: usize| if wanted { plan.size / bytes } else { 0 };
        Self {
            own: vec![
                0x5a;
                plan.size
                    * if plan.op == Op::Alltoall {
                        plan.nodes
                    } else {
                        1
                    }
            ],
            all: vec![0x5a; if has_all { plan.size * plan.nodes } else { 0 }],
            doubles: vec![1.0; numbers(adds && by_doubles, size_of::<f64>())],
            floats: vec![1.0; numbers(adds && !by_doubles, size_of::<f32>())],
        }
    }
}

impl Member {
    fn new(mut endpoint: Endpoint, plan: Plan) -> Result<Self, ExchangeError> {
        let drops_before = kernel_drops(endpoint.link_name());
        let collectives = Collectives::new(&mut endpoint)?;
        let world = collectives.world();
        Ok(Self {
            collectives,
            world,
            endpoint,
            arrivals: Arrivals::default(),
            plan,
            ready_taken: 0,
            messages_taken: 0,
            drops_before,
        })
    }

    fn others(&self) -> impl Iterator<Item = NodeId> + use<> {
        let me = self.endpoint.me();
        (0..self.plan.nodes as u16)
            .map(NodeId)
            .filter(move |&node| node != me)
    }

    fn is_root(&self) -> bool {
        self.endpoint.me() == ROOT
    }

    /// Polls until `done`, checking the other processes from time to time.
    fn poll_until(
        &mut self,
        watch: Watch<'_>,
        done: impl Fn(&Arrivals) -> bool,
    ) -> Result<(), ExchangeError> {
        (self.arrivals).poll_until(&mut self.endpoint, self.plan.spins(), watch, done)
    }

    fn await_messages(&mut self, count: u64, watch: Watch<'_>) -> Result<(), ExchangeError> {
        self.messages_taken += count;
        let awaited = self.messages_taken;
        self.poll_until(watch, |arrivals| arrivals.messages >= awaited)
    }

    /// Waits until all are ready and the root has sent go. Returns its start, taken before go, so that no node works before the clock runs.
    fn line_up(&mut self, watch: Watch<'_>) -> Result<(Instant, Duration), ExchangeError> {
        self.ready_taken += if self.is_root() {
            self.plan.nodes as u64 - 1
        } else {
            self.endpoint.send(ROOT, CONTROL, READY)?;
            1
        };
        let awaited = self.ready_taken;
        self.poll_until(watch, |arrivals| arrivals.ready >= awaited)?;
        let begun = (Instant::now(), machine::process_cpu());
        if self.is_root() {
            self.say_go()?;
        }
        Ok(begun)
    }

    fn say_go(&mut self) -> Result<(), ExchangeError> {
        for node in self.others() {
            self.endpoint.send(node, CONTROL, READY)?;
        }
        Ok(())
    }

    /// Does some repetitions, from go to end.
    fn phase(
        &mut self,
        iterations: u64,
        blocks: &mut Blocks,
        watch: Watch<'_>,
    ) -> Result<(), ExchangeError> {
        let others = self.plan.nodes as u64 - 1;
        match (self.plan.op, self.is_root()) {
            (Op::Gather | Op::Burst | Op::Pingpong, true) => {
                self.await_messages(others * iterations, watch)
            }
            (Op::Gather | Op::Burst | Op::Pingpong, false) => {
                for _ in 0..iterations {
                    stop::check()?;
                    // Waits, polling, while the queue is full.
                    self.endpoint.send(ROOT, DATA, &blocks.own)?;
                }
                // Sending the rest costs processor time, too.
                while !self.endpoint.flush(CHECK_EVERY)? {
                    watch()?;
                }
                Ok(())
            }
            _ => {
                for _ in 0..iterations {
                    stop::check()?;
                    self.once(blocks)?;
                }
                // The barrier ends when all have received all.
                Ok(self.collectives.barrier(&mut self.endpoint, self.world)?)
            }
        }
    }

    /// Does one collective operation.
    fn once(&mut self, blocks: &mut Blocks) -> Result<(), ExchangeError> {
        let (endpoint, world) = (&mut self.endpoint, self.world);
        let root = usize::from(ROOT.0);
        match self.plan.op {
            Op::Bcast => self
                .collectives
                .broadcast(endpoint, world, root, &mut blocks.own),
            Op::Scatter => {
                let (all, own) = (&blocks.all[..], &mut blocks.own[..]);
                self.collectives.scatter(endpoint, world, root, all, own)
            }
            Op::Allreduce if !blocks.floats.is_empty() => {
                let numbers = &mut blocks.floats;
                let result = self
                    .collectives
                    .all_reduce(endpoint, world, numbers, &Fold::sum());
                numbers.fill(1.0); // otherwise the sums would grow without end
                result
            }
            Op::Allreduce => {
                let numbers = &mut blocks.doubles;
                let result = self
                    .collectives
                    .all_reduce(endpoint, world, numbers, &Fold::sum());
                numbers.fill(1.0);
                result
            }
            Op::Alltoall => {
                let (all, own) = (&mut blocks.all[..], &blocks.own[..]);
                self.collectives.all_to_all(endpoint, world, own, all)
            }
            Op::Gather | Op::Burst | Op::Pingpong => Ok(()), // plain messages
        }?;
        Ok(())
    }

    /// Warms up and measures: wall-clock and processor time.
    fn run(&mut self, watch: Watch<'_>) -> Result<(Duration, Duration), ExchangeError> {
        let mut blocks = Blocks::of(&self.plan, self.is_root());
        self.line_up(watch)?;
        self.phase(WARM_UP.min(self.plan.iterations), &mut blocks, watch)?;
        let (start, cpu) = self.line_up(watch)?;
        self.phase(self.plan.iterations, &mut blocks, watch)?;
        Ok((start.elapsed(), machine::process_cpu() - cpu))
    }

    fn report(&self, cpu: Duration) -> Report {
        let counters = self.endpoint.counters();
        let kernel = kernel_drops(self.endpoint.link_name()) - self.drops_before;
        let flows = self.others().filter_map(|node| self.endpoint.flow(node));
        Report {
            cpu_seconds: cpu.as_secs_f64(),
            receive_drops: counters.link.dropped_frames + counters.link.overrun_frames + kernel,
            retransmitted_frames: flows.map(|flow| flow.retransmitted_frames).sum(),
        }
    }
}

/// Datagrams that this host's kernel dropped because a socket's buffer was full; counted over all sockets, so nothing else should run.
fn kernel_drops(link: &str) -> u64 {
    if link != "udp" {
        return 0; // the other links count their own
    }
    let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap_or_default();
    udp_drops(&text)
}

fn udp_drops(snmp: &str) -> u64 {
    let mut lines = snmp.lines().filter(|line| line.starts_with("Udp:"));
    let (Some(names), Some(values)) = (lines.next(), lines.next()) else {
        return 0;
    };
    let mut columns = names.split_whitespace().zip(values.split_whitespace());
    let found = columns.find(|(name, _)| *name == "RcvbufErrors");
    found.and_then(|(_, value)| value.parse().ok()).unwrap_or(0)
}

/// The specification for [`measure`]: starts `program`, which is `tsumuji`. With `hosts`, one node runs in each of them, and this process must be in the
/// host of node 0.
pub fn spec(
    plan: &Plan,
    link: LinkSpec,
    hosts: Option<&Hosts>,
    program: impl AsRef<OsStr>,
) -> LaunchSpec {
    processes::spec(plan.nodes - 1, link, hosts, program, ["node", "root"])
}

/// Measures once. At least two nodes.
pub fn measure(
    plan: &Plan,
    spec: LaunchSpec,
    security: &Security,
) -> Result<Sample, ExchangeError> {
    let mut launcher = processes::start(spec, &Task::Group(*plan), security)?;
    // After the launcher's own thread was started, which must not run on the measured core.
    let _pinned = pin(plan.cpu_of(ROOT))?;
    let endpoint = processes::meet(&mut launcher, plan.options(), security)?;
    let mut member = Member::new(endpoint, *plan)?;
    let mut watch = || processes::watch(&mut launcher);
    let (span, cpu) = member.run(&mut watch)?;
    let others = plan.nodes - 1;
    member.poll_until(&mut watch, |arrivals| arrivals.reports.len() >= others)?;
    let mut sum = member.report(cpu);
    for report in std::mem::take(&mut member.arrivals.reports) {
        let report: Report = serde_json::from_slice(&report)?;
        sum.cpu_seconds += report.cpu_seconds;
        sum.receive_drops += report.receive_drops;
        sum.retransmitted_frames += report.retransmitted_frames;
    }
    member.say_go()?;
    let _ = member.endpoint.close(Duration::from_secs(1));
    Ok(Sample {
        cpu_seconds: sum.cpu_seconds,
        receive_drops: Some(sum.receive_drops),
        retransmitted_frames: Some(sum.retransmitted_frames),
        ..Sample::new(span, cpu)
    })
}

/// The other side of [`measure`].
pub(crate) fn serve(plan: Plan) -> Result<(), ExchangeError> {
    let endpoint = endpoint_from_env(plan.options())?;
    let _pinned = pin(plan.cpu_of(endpoint.me()))?;
    let mut member = Member::new(endpoint, plan)?;
    let (_, cpu) = member.run(&mut || Ok(()))?;
    let report = serde_json::to_vec(&member.report(cpu))?;
    member.endpoint.send(ROOT, CONTROL, &report)?;
    // A node that left before the others are done would look dead to them.
    member.ready_taken += 1;
    let awaited = member.ready_taken;
    member.poll_until(&mut || Ok(()), |arrivals| arrivals.ready >= awaited)?;
    let _ = member.endpoint.close(Duration::from_secs(1));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's count of full socket buffers is found by its name; if it is absent, there is no count.
    #[test]
    fn reads_the_kernels_drops() {
        let text =
            "Tcp: A B\nTcp: 1 2\nUdp: InDatagrams NoPorts RcvbufErrors X\nUdp: 10 20 30 40\n";
        assert_eq!(udp_drops(text), 30);
        for text in ["", "Udp: RcvbufErrors", "Udp: RcvbufErrors\nUdp: x\n"] {
            assert_eq!(udp_drops(text), 0);
        }
    }

    /// A plan is read from an argument as it was written.
    #[test]
    fn plan_as_argument() {
        let plan = Plan {
            op: Op::Alltoall,
            size: 77,
            iterations: 5,
            nodes: 9,
            slow_write: true,
        };
        let read: Plan = serde_json::from_str(&serde_json::to_string(&plan).unwrap()).unwrap();
        assert_eq!(read, plan);
    }
}
