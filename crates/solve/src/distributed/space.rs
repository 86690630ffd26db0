//! What the workers of a cluster exchange while a Krylov method iterates: sums and elements of vectors, by collectives of those that have rows.
//!
//! Owned by `serve`. While a method iterates on the polling thread, messages that are not the collectives' wait here: an order to stop is heeded in the
//! next iteration, by all workers alike; any other order, and the death of a member, ends the iterating at once ([`Broken`]).
//!
//! Invariant: what waits is given to the worker afterwards, in the order in which it came.

use std::time::{Duration, Instant};

use tsumuji_board::Reads;
use tsumuji_collective::{CollectiveError, Collectives, Group, GroupError, Memory, Op, Request};
use tsumuji_node::{
    Context, Datagram, Delivery, Endpoint, EndpointError, Handler, NodeId, SendError,
};

use super::field::{JUDGE, node};
use super::message::{Answer, Estimate, LapReport, Order};
use super::run::BULK;
use super::serve::HEARTBEAT_NS;
use crate::krylov::{Iterated, Space};

/// Longest wait for the others before messages of the judge are looked at.
const POLL_EVERY: Duration = Duration::from_millis(1);
/// Time between two reports to the judge.
const REPORT_EVERY: Duration = Duration::from_millis(1);
/// A worker that waits for others tells the judge so often that it lives.
const HEARTBEAT_EVERY: Duration = Duration::from_nanos(HEARTBEAT_NS);

/// Why iterating ended before the method did.
#[derive(Debug)]
pub(super) enum Broken {
    /// This member died.
    Lost(NodeId),
    /// An order waits that is not one to stop.
    Ordered,
    /// This node's link failed.
    Endpoint(EndpointError),
    /// There is no such group.
    Group(GroupError),
    /// Members do not make the same calls: they are not the same program.
    Disagreement(CollectiveError),
}

impl From<CollectiveError> for Broken {
    fn from(error: CollectiveError) -> Self {
        match error {
            CollectiveError::MemberDead { member } => Self::Lost(member),
            CollectiveError::Endpoint(error) => Self::Endpoint(error),
            other => Self::Disagreement(other),
        }
    }
}

/// Messages that wait until the method has ended.
#[derive(Debug, Default)]
pub(super) struct Mailbox {
    pub(super) waiting: Vec<(NodeId, Vec<u8>)>,
    pub(super) lost: Vec<NodeId>,
    /// The epoch that is to stop.
    epoch: u32,
    stop: bool,
    ordered: bool,
}

impl Mailbox {
    /// Begins an epoch. `stop`: it was ordered to stop already.
    fn begin(&mut self, epoch: u32, stop: bool) {
        *self = Self {
            epoch,
            stop,
            ..Self::default()
        };
    }

    /// Whether `members` can go on. The death of a worker that had no rows any more concerns nobody.
    fn check(&self, members: &[NodeId]) -> Result<(), Broken> {
        match self.lost.iter().find(|lost| members.contains(lost)) {
            Some(&peer) => Err(Broken::Lost(peer)),
            None if self.ordered => Err(Broken::Ordered),
            None => Ok(()),
        }
    }
}

impl Handler for Mailbox {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let bytes = delivery.body.bytes();
        if delivery.from == JUDGE {
            match Order::parse(bytes) {
                Some(Order::Pause { epoch }) if epoch == self.epoch => {
                    self.stop = true;
                    return;
                }
                _ => self.ordered = true,
            }
        }
        self.waiting.push((delivery.from, bytes.to_vec()));
    }

    fn datagram(&mut self, _: &mut Context<'_>, _: Datagram<'_>) {}

    fn peer_up(&mut self, peer: NodeId) {
        self.lost.retain(|lost| *lost != peer);
    }

    fn peer_dead(&mut self, peer: NodeId, _: usize) {
        self.lost.push(peer);
    }
}

/// The workers that take part, and which elements go between them.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) division: u32,
    pub(super) epoch: u32,
    /// Workers that have rows, as counted by the judge.
    pub(super) team: Vec<usize>,
    /// What each of the team reads of this worker's elements, and this one of theirs: places in x.
    pub(super) goes: Vec<Vec<u32>>,
    pub(super) comes: Vec<Vec<u32>>,
    /// ‖b‖₂.
    pub(super) rhs_norm: f64,
    /// First own row.
    pub(super) start: usize,
    /// Whether the judge is to know x from time to time.
    pub(super) snapshots: Option<Duration>,
    /// Whether to go on without a judge.
    pub(super) outlives: bool,
    /// Whether this worker was told to stop before the epoch could begin.
    pub(super) stops: bool,
    /// Laps of earlier epochs, and the seconds in which this worker computed then.
    pub(super) laps: f64,
    pub(super) busy: f64,
}

/// Elements that `reads` names, of a worker with these rows.
pub(super) fn places(reads: &Reads, rows: std::ops::Range<usize>) -> Vec<u32> {
    match reads {
        Reads::Whole => (rows.start as u32..rows.end as u32).collect(),
        Reads::Packed(list) => list.to_vec(),
    }
}

/// One worker's side.
pub(super) struct Between<'a> {
    endpoint: &'a mut Endpoint,
    collectives: &'a mut Collectives,
    group: Group,
    members: Vec<NodeId>,
    mailbox: &'a mut Mailbox,
    parts: Parts,
    /// Bytes for and from each of the team.
    goes_bytes: Vec<usize>,
    comes_bytes: Vec<usize>,
    sum: Op<f64>,
    reports: u32,
    reported: Instant,
    told: Instant,
    formed: Instant,
    /// Time spent waiting for others since then.
    waited: Duration,
    /// Iterations since then.
    iterations: u64,
}

impl<'a> Between<'a> {
    /// Forms a group of the team. No other group has its epoch.
    pub(super) fn form(
        endpoint: &'a mut Endpoint,
        collectives: &'a mut Collectives,
        mailbox: &'a mut Mailbox,
        parts: Parts,
    ) -> Result<Self, Broken> {
        mailbox.begin(parts.epoch, parts.stops);
        endpoint.update_members();
        let members: Vec<NodeId> = parts.team.iter().map(|worker| node(*worker)).collect();
        // An epoch is greater than any before it, also those of earlier divisions.
        let group = collectives
            .group(endpoint, &members, parts.epoch)
            .map_err(Broken::Group)?;
        let bytes = |lists: &[Vec<u32>]| lists.iter().map(|list| 8 * list.len()).collect();
        let now = Instant::now();
        Ok(Self {
            goes_bytes: bytes(&parts.goes),
            comes_bytes: bytes(&parts.comes),
            endpoint,
            collectives,
            group,
            members,
            mailbox,
            parts,
            sum: Op::sum(),
            reports: 0,
            reported: now,
            told: now,
            formed: now,
            waited: Duration::ZERO,
            iterations: 0,
        })
    }

    /// Iterations of this epoch, and the seconds of all epochs in which this worker did not wait for others.
    pub(super) fn worked(&self) -> (u64, f64) {
        let busy = self.formed.elapsed().saturating_sub(self.waited);
        (self.iterations, self.parts.busy + busy.as_secs_f64())
    }

    /// Ends the use of the group. After a failure operations are under way that nobody will end; the judge tells all members so.
    pub(super) fn part(self) {
        // It was formed by this.
        let _ = self.collectives.abandon_group(self.group);
    }

    fn wait<M: Memory>(&mut self, request: Request<M>) -> Result<M, Broken> {
        let began = Instant::now();
        let mut beat = began;
        while !self
            .collectives
            .test_for(self.endpoint, &request, POLL_EVERY)?
        {
            self.check()?;
            if beat.elapsed() >= HEARTBEAT_EVERY {
                beat = Instant::now();
                self.report(LapReport::HEARTBEAT);
            }
        }
        self.waited += began.elapsed();
        Ok(self.collectives.wait(self.endpoint, request)?)
    }

    /// Looks for orders.
    fn check(&mut self) -> Result<(), Broken> {
        self.endpoint.poll(self.mailbox).map_err(Broken::Endpoint)?;
        if self.endpoint.is_dead(JUDGE) && !self.parts.outlives {
            return Err(Broken::Lost(JUDGE));
        }
        self.mailbox.check(&self.members)
    }

    /// May be lost.
    fn report(&mut self, report: LapReport) {
        let payload = report.payload();
        let _ = tsumuji_board::Carrier::update(self.endpoint, &[JUDGE], report.datagram(&payload));
    }

    /// Tells the judge the own x, as far as there is room.
    fn tell(&mut self, x: &[f64]) {
        for part in Answer::snapshot(self.parts.division, self.parts.start, x) {
            match self.endpoint.try_send(JUDGE, BULK, &part.encode()) {
                Ok(()) => {}
                Err(SendError::WouldBlock { .. }) => return,
                Err(_) => return, // its death is noticed elsewhere
            }
        }
    }
}

impl Space for Between<'_> {
    type Error = Broken;

    fn sum(&mut self, values: &mut [f64]) -> Result<(), Broken> {
        if self.parts.team.len() == 1 {
            return Ok(());
        }
        let request = self.collectives.start_all_reduce(
            self.endpoint,
            self.group,
            values.to_vec(),
            &self.sum,
        )?;
        values.copy_from_slice(&self.wait(request)?);
        Ok(())
    }

    fn exchange(&mut self, vector: &mut [f64]) -> Result<(), Broken> {
        if self.parts.team.len() == 1 {
            return Ok(());
        }
        let own = self.parts.goes.iter().flatten();
        let goes: Vec<f64> = own.map(|&place| vector[place as usize]).collect();
        let comes = vec![0.0_f64; self.parts.comes.iter().map(Vec::len).sum()];
        let request = self.collectives.start_all_to_all_v(
            self.endpoint,
            self.group,
            goes,
            &self.goes_bytes,
            comes,
            &self.comes_bytes,
        )?;
        let comes = self.wait(request)?;
        for (&place, value) in self.parts.comes.iter().flatten().zip(comes) {
            vector[place as usize] = value;
        }
        Ok(())
    }

    fn iterated(&mut self, now: Iterated<'_>) -> Result<bool, Broken> {
        self.check()?;
        let moment = Instant::now();
        self.iterations = now.iterations;
        if moment - self.reported >= REPORT_EVERY {
            self.reported = moment;
            self.reports += 1;
            // Σ over the team is the whole.
            let norm = now.residual * self.parts.rhs_norm;
            let share_sq = norm * norm / self.parts.team.len() as f64;
            self.report(LapReport {
                epoch: self.parts.epoch,
                number: self.reports,
                laps: self.parts.laps + now.iterations as f64,
                busy: Some(self.worked().1),
                estimate: Estimate {
                    measured_sq: share_sq,
                    expected_sq: share_sq,
                },
            });
        }
        let is_time = |every: Duration| moment - self.told >= every;
        if self.parts.snapshots.is_some_and(is_time) && !now.x.is_empty() {
            self.told = moment;
            self.tell(now.x);
        }
        Ok(self.mailbox.stop)
    }
}
