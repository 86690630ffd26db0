//! One member's run: epochs of laps without waiting, and pauses in which all members decide alike.
//!
//! Called by programs. The board carries values, datagrams carry reports to node 0, and collectives carry the order to pause and all that a decision needs.
//!
//! Invariants: after `gather` all members hold the same x, to the bit; a decision uses gathered values only, so it is the same everywhere.

use std::time::{Duration, Instant};

use tsumuji_board::{Board, Lap, Private};
use tsumuji_collective::{Collectives, Group, Request};
use tsumuji_node::bootstrap::was_launched;
use tsumuji_node::{
    Channel, ChannelOptions, Context, Datagram, Delivery, Destination, Endpoint, Handler,
    NOW_OR_NEVER, NodeId, Options, endpoint_from_env, report_error,
};

use super::agreement::{Agreement, agree, board, node};
use super::alone::{CERTIFY_EVERY, alone};
use super::config::{Config, Error, Outcome, Reason};
use super::laps::{Laps, NotANumber};
use super::referee::Referee;
use super::report::{Record, Report, State};
use super::{FixedPoint, sound};

/// Channel of values; packed ones use the next. Open during a run.
pub const BOARD_CHANNEL: u16 = Channel::LIBRARY_IDS + 16;
/// Channel of reports to node 0. Open during a run.
pub const REPORT_CHANNEL: u16 = BOARD_CHANNEL + 2;

/// Channel on which a member that leaves because another one died names it. Open during a run.
const LOST_CHANNEL: u16 = BOARD_CHANNEL + 3;
/// All channels; those of datagrams first, and of these the one of reports last.
const CHANNELS: [u16; 4] = [
    BOARD_CHANNEL,
    BOARD_CHANNEL + 1,
    REPORT_CHANNEL,
    LOST_CHANNEL,
];
/// Node 0 orders pauses.
const REFEREE: NodeId = NodeId(0);
/// Time between two reports of a member: an order to pause comes so much later at most, and each costs a frame.
const REPORT_EVERY: Duration = Duration::from_micros(200);
/// Time between two repairs, of one frame for each kind of reader.
const REPAIR_EVERY: Duration = Duration::from_millis(2);
/// Laps without news from others after which a member rests before the next: it would use the same values again.
const QUIET_LAPS: u32 = 4;
/// Longest rest. Something new ends it.
const REST: Duration = Duration::from_millis(1);
/// Longest wait for the acknowledgement of the last messages.
const FLUSH_WAIT: Duration = Duration::from_secs(30);

/// Solves `problem` with all members of the launch that this process belongs to, or [`alone`] if it was started by itself.
pub fn run<P: FixedPoint + ?Sized>(problem: &mut P, config: &Config<'_>) -> Result<Outcome, Error> {
    if !was_launched() {
        return alone(problem, config);
    }
    let mut endpoint = endpoint_from_env(Options::default())?;
    let outcome = solve(&mut endpoint, problem, config).inspect_err(report_error)?;
    endpoint.close(FLUSH_WAIT)?;
    Ok(outcome)
}

/// Solves `problem` with all members of the cluster of `endpoint`: each calls this, with an instance of its own. Not for an endpoint that has
/// [`Collectives`] already, and so only once for each endpoint; there is [`solve_with`].
pub fn solve<P: FixedPoint + ?Sized>(
    endpoint: &mut Endpoint,
    problem: &mut P,
    config: &Config<'_>,
) -> Result<Outcome, Error> {
    if endpoint.members().len() == 1 {
        return alone(problem, config);
    }
    if endpoint.channel(tsumuji_collective::CHANNEL).is_some() {
        return Err(Error::CollectivesExist);
    }
    let mut collectives = Collectives::new(endpoint)?;
    solve_with(endpoint, &mut collectives, problem, config)
}

/// As [`solve`], for a program that has collectives, or solves several problems one after the other.
pub fn solve_with<P: FixedPoint + ?Sized>(
    endpoint: &mut Endpoint,
    collectives: &mut Collectives,
    problem: &mut P,
    config: &Config<'_>,
) -> Result<Outcome, Error> {
    config.check()?;
    if endpoint.members().len() == 1 {
        return alone(problem, config);
    }
    for (opened, channel) in CHANNELS.into_iter().enumerate() {
        if let Err(error) = endpoint.open(channel, ChannelOptions::default()) {
            for channel in &CHANNELS[..opened] {
                endpoint.close_channel(*channel)?;
            }
            return Err(error.into());
        }
    }
    let outcome = Member::join(endpoint, collectives, problem, config).and_then(Member::run);
    let outcome = match outcome {
        Err(Error::MemberDied { member }) => Err(name_lost(endpoint, member)?),
        outcome => outcome,
    };
    for channel in CHANNELS {
        endpoint.close_channel(channel)?;
    }
    outcome
}

/// Names the member that died first: another one that noticed it, and left therefore, has told so before. Tells the others.
fn name_lost(endpoint: &mut Endpoint, noticed: NodeId) -> Result<Error, Error> {
    let mut told = LostMember(None);
    endpoint.poll_on(LOST_CHANNEL, &mut told)?;
    let member = told.0.unwrap_or(noticed);
    for other in (0..endpoint.members().len()).map(node) {
        if other != endpoint.me() && !endpoint.is_dead(other) {
            // One that cannot be told notices the loss by itself.
            let _ = endpoint.try_send(
                other,
                Channel::ordered(LOST_CHANNEL),
                &member.0.to_le_bytes(),
            );
        }
    }
    Ok(Error::MemberDied { member })
}

/// The first lost member that another one names.
struct LostMember(Option<NodeId>);

impl Handler for LostMember {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        if let Ok(member) = delivery.body.bytes().try_into() {
            self.0.get_or_insert(NodeId(u16::from_le_bytes(member)));
        }
    }
}

struct Member<'a, P: ?Sized> {
    endpoint: &'a mut Endpoint,
    collectives: &'a mut Collectives,
    world: Group,
    problem: &'a mut P,
    config: &'a Config<'a>,
    me: usize,
    /// Elements of each member.
    counts: Vec<usize>,
    board: Board<Private>,
    laps: Laps,
    /// Stamp of the values published now.
    lap: Lap,
    /// Only on node 0.
    referee: Option<Referee>,
    state: State,
    /// The element that became NaN.
    nan: usize,
    estimate: f64,
    /// Laps since anything arrived.
    quiet_laps: u32,
    rested: bool,
    reports: u32,
    reported: Instant,
    repaired: Instant,
    /// Sessions of all peers that had ended when the run began.
    ended_sessions: Vec<u64>,
    all_ended_sessions: u64,
    /// x of the last pause.
    paused: Vec<f64>,
    pauses: u64,
}

impl<'a, P: FixedPoint + ?Sized> Member<'a, P> {
    fn join(
        endpoint: &'a mut Endpoint,
        collectives: &'a mut Collectives,
        problem: &'a mut P,
        config: &'a Config<'a>,
    ) -> Result<Self, Error> {
        let world = collectives.world();
        let members = endpoint.members().len();
        let sessions = |endpoint: &Endpoint| -> Vec<u64> {
            let ended = (0..members).map(|member| endpoint.ended_sessions(node(member)));
            ended.collect()
        };
        let (ended_sessions, all_ended_sessions) =
            (sessions(endpoint), endpoint.all_ended_sessions());
        let Agreement { ranges, epoch } = agree(endpoint, (collectives, world), problem, config)?;
        let mut board = board(endpoint, (collectives, world), problem, &ranges)?;
        board.begin_epoch(epoch);
        let me = usize::from(endpoint.me().0);
        let laps = Laps::new(ranges[me].clone(), config.parts);
        let is_referee = endpoint.me() == REFEREE;
        let referee = || {
            Referee::new(
                config.tolerance,
                config.max_laps,
                problem.combine(),
                members,
            )
        };
        let now = Instant::now();
        let mut member = Self {
            referee: is_referee.then(referee),
            endpoint,
            collectives,
            world,
            problem,
            config,
            me,
            counts: ranges.iter().map(ExactSizeIterator::len).collect(),
            board,
            laps,
            lap: Lap::FIRST,
            state: State::default(),
            nan: 0,
            estimate: f64::INFINITY,
            quiet_laps: 0,
            rested: false,
            reports: 0,
            reported: now,
            repaired: now,
            ended_sessions,
            all_ended_sessions,
            paused: Vec::new(),
            pauses: 0,
        };
        let started = (member.laps).start(&*member.problem, member.board.values_mut());
        if member.note(started).is_none() {
            let own = member.board.own();
            member.board.values_mut()[own].fill(0.0); // the others must not compute NaN from it
        }
        member.gather()?;
        Ok(member)
    }

    fn run(mut self) -> Result<Outcome, Error> {
        loop {
            self.epoch()?;
            self.pauses += 1;
            self.gather()?;
            let records = self.records()?;
            let failed = records.iter().position(|record| record.state.failed);
            if let Some(member) = failed {
                return Err(Error::NotANumber {
                    member: node(member),
                    index: records[member].index,
                });
            }
            let parts = records.iter().map(|record| record.part);
            let certificate = self.problem.combine().of(parts);
            if let Some(reason) = self.verdict(certificate, &records) {
                return Ok(Outcome {
                    range: self.board.own(),
                    x: self.board.values().to_vec(),
                    reason,
                    certificate,
                    laps: records.iter().map(|record| record.laps).collect(),
                    pauses: self.pauses,
                    member: self.me,
                });
            }
            self.begin_epoch();
        }
    }

    /// What all members conclude from the same x and the same records.
    fn verdict(&self, certificate: f64, records: &[Record]) -> Option<Reason> {
        let busy = || (records.iter().zip(&self.counts)).filter(|(_, count)| **count > 0);
        let same = |(a, b): (&f64, &f64)| a.to_bits() == b.to_bits();
        let x = self.board.values();
        let is_unchanged = || self.paused.len() == x.len() && self.paused.iter().zip(x).all(same);
        if certificate <= self.config.tolerance {
            Some(Reason::Converged)
        } else if records.iter().any(|record| record.state.stops) {
            Some(Reason::Stopped)
        } else if busy().all(|(record, _)| record.laps >= self.config.max_laps) {
            Some(Reason::Laps)
        } else if busy().all(|(record, _)| record.state.is_still) && is_unchanged() {
            Some(Reason::Stalled)
        } else {
            None
        }
    }

    fn begin_epoch(&mut self) {
        self.paused.clear();
        self.paused.extend_from_slice(self.board.values());
        self.board.begin_epoch(self.board.epoch().wrapping_add(1));
        self.lap = self.lap.next();
        self.laps.begin_epoch();
        self.estimate = f64::INFINITY;
        (self.quiet_laps, self.rested, self.state.is_still) = (0, false, false);
        if let Some(referee) = &mut self.referee {
            referee.begin_epoch();
        }
    }

    /// Laps until node 0 orders a pause.
    fn epoch(&mut self) -> Result<(), Error> {
        // The order is a broadcast of node 0, which the others await from the beginning.
        let order = match self.referee {
            Some(_) => None,
            None => {
                Some(
                    self.collectives
                        .start_broadcast(self.endpoint, self.world, 0, vec![0_u64])?,
                )
            }
        };
        loop {
            self.receive()?;
            self.check_members()?;
            if self.is_to_pause(order.as_ref())? {
                break;
            }
            let has_work = !self.board.own().is_empty() && !self.state.failed;
            if !has_work || self.should_rest() {
                self.rest()?;
            } else {
                self.step()?;
            }
            self.mind()?;
        }
        match order {
            Some(order) => self
                .collectives
                .wait(self.endpoint, order)
                .map(drop)
                .map_err(Error::from),
            None => {
                let order = &mut [0_u64];
                Ok((self.collectives).broadcast(self.endpoint, self.world, 0, order)?)
            }
        }
    }

    fn is_to_pause(&mut self, order: Option<&Request<Vec<u64>>>) -> Result<bool, Error> {
        match (order, &self.referee) {
            (Some(order), _) => Ok(self.collectives.test(self.endpoint, order)?),
            (None, referee) => Ok(referee.as_ref().is_none_or(Referee::pauses)),
        }
    }

    /// Takes what has arrived.
    fn receive(&mut self) -> Result<(), Error> {
        let mut intake = Intake {
            board: &mut self.board,
            referee: self.referee.as_mut(),
            has_news: false,
        };
        for channel in &CHANNELS[..if self.me == 0 { 3 } else { 2 }] {
            self.endpoint.poll_on(*channel, &mut intake)?;
        }
        let has_news = intake.has_news;
        self.heard(has_news);
        Ok(())
    }

    fn heard(&mut self, has_news: bool) {
        if has_news {
            self.quiet_laps = 0;
            self.state.is_still = false;
        }
    }

    /// Fails if a member has died.
    fn check_members(&self) -> Result<(), Error> {
        if self.endpoint.all_ended_sessions() == self.all_ended_sessions {
            return Ok(());
        }
        let died = |member: &usize| {
            let ended = self.endpoint.ended_sessions(node(*member));
            ended != self.ended_sessions[*member]
        };
        match (0..self.counts.len()).find(died) {
            Some(member) => Err(Error::MemberDied {
                member: node(member),
            }),
            None => Ok(()),
        }
    }

    /// Whether to rest before a lap that could change little: once, so that members do not wait for each other.
    fn should_rest(&mut self) -> bool {
        // A member that has done all its laps goes on only for the others.
        let little = self.state.is_still
            || self.quiet_laps >= QUIET_LAPS
            || self.laps.total >= self.config.max_laps;
        self.rested = self.laps.is_at_start() && little && !self.rested;
        self.rested
    }

    fn rest(&mut self) -> Result<(), Error> {
        let mut intake = Intake {
            board: &mut self.board,
            referee: None,
            has_news: false,
        };
        self.endpoint
            .poll_on_wait(BOARD_CHANNEL, &mut intake, REST)?;
        let has_news = intake.has_news;
        self.heard(has_news);
        self.state.stops |= (self.config.stop)();
        Ok(())
    }

    /// Renews a part of the range, and publishes it.
    fn step(&mut self) -> Result<(), Error> {
        let stepped = (self.laps).step(&mut *self.problem, self.board.values_mut());
        let Some(stepped) = self.note(stepped) else {
            return Ok(());
        };
        // What did not change was sent before; if that was lost, repairs follow.
        if stepped.changed {
            self.board
                .announce(self.endpoint, stepped.range, self.lap)?;
        }
        let Some(changed) = stepped.lap else {
            return Ok(());
        };
        self.lap = self.lap.next();
        self.state.stops |= (self.config.stop)();
        // Still: this lap changed nothing though it saw all that has arrived.
        let was_still = self.state.is_still;
        self.state.is_still = !changed && self.quiet_laps > 0;
        self.quiet_laps = self.quiet_laps.saturating_add(1);
        let certifies = self.laps.in_epoch.is_multiple_of(CERTIFY_EVERY) || !changed;
        if certifies && !was_still {
            let (own, x) = (self.board.own(), self.board.values());
            self.estimate = sound(self.problem.certificate(own, x));
        }
        Ok(())
    }

    /// Notes that the problem computed NaN.
    fn note<T>(&mut self, result: Result<T, NotANumber>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(NotANumber(index)) => {
                (self.state.failed, self.nan) = (true, index);
                None
            }
        }
    }

    /// Reports and repairs, each when it is due. Reports are repeated, since they may be lost.
    fn mind(&mut self) -> Result<(), Error> {
        let now = Instant::now();
        if now - self.reported >= REPORT_EVERY {
            self.reported = now;
            self.report()?;
        }
        if now - self.repaired >= REPAIR_EVERY {
            self.repaired = now;
            self.board.repair(self.endpoint)?;
        }
        Ok(())
    }

    fn report(&mut self) -> Result<(), Error> {
        let mut report = Report {
            laps: self.laps.total,
            in_epoch: self.laps.in_epoch,
            estimate: self.estimate,
            state: self.state,
        };
        if self.board.own().is_empty() {
            // Nobody waits for a member that has nothing to do.
            (report.laps, report.in_epoch, report.estimate) = (u64::MAX, u64::MAX, 0.0);
            report.state.is_still = true;
        }
        self.reports = self.reports.wrapping_add(1);
        if let Some(referee) = &mut self.referee {
            referee.report(self.me, self.reports, report);
            return Ok(());
        }
        let datagram = Datagram {
            channel_id: REPORT_CHANNEL,
            epoch: self.board.epoch(),
            lap: self.reports,
            payload: &report.payload(),
            ..Datagram::EMPTY
        };
        self.endpoint
            .datagram(Destination::Peer(REFEREE), datagram, NOW_OR_NEVER)?;
        Ok(())
    }

    /// All members' ranges, reliably: from now on all hold the same x.
    fn gather(&mut self) -> Result<(), Error> {
        let own = self.board.values()[self.board.own()].to_vec();
        let x = self.board.values_mut();
        Ok((self.collectives).all_gather_v(self.endpoint, self.world, &own, x, &self.counts)?)
    }

    /// All members' records: the exact parts of the certificate, and their states.
    fn records(&mut self) -> Result<Vec<Record>, Error> {
        let (own, x) = (self.board.own(), self.board.values());
        let part = match own.is_empty() {
            true => 0.0,
            false => self.problem.certificate(own, x),
        };
        let record = Record {
            part,
            laps: self.laps.total,
            state: self.state,
            index: self.nan,
        };
        let mut all = vec![0; self.counts.len() * Record::WORDS];
        (self.collectives).all_gather(self.endpoint, self.world, &record.words(), &mut all)?;
        let (all, _) = all.as_chunks();
        Ok(all.iter().map(Record::of_words).collect())
    }
}

/// Takes datagrams: values into the board, reports to the referee.
struct Intake<'a> {
    board: &'a mut Board<Private>,
    referee: Option<&'a mut Referee>,
    has_news: bool,
}

impl Handler for Intake<'_> {
    fn message(&mut self, _: &mut Context<'_>, _: Delivery<'_>) {}

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        if datagram.channel_id != REPORT_CHANNEL {
            self.has_news |= self.board.apply(&datagram).is_some();
        } else if let Some(referee) = &mut self.referee
            && datagram.epoch == self.board.epoch()
            && let Some(report) = Report::parse(datagram.payload)
        {
            referee.report(usize::from(datagram.source.0), datagram.lap, report);
        }
    }
}
