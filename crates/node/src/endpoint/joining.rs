//! Members that come later: how a process joins a running cluster, and how members learn of it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tsumuji_link::checked::Checked;
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_proto::NodeId;
use tsumuji_wire::{Admission, Join, join};

use super::{Core, Endpoint};
use crate::absence::{Absence, AbsenceCause, Absent, QUIET, TOLD_EVERY};
use crate::any_link::AnyLink;
use crate::channel::Means;
use crate::channel::members::{NAME_BYTES, cut};
use crate::clock::after;
use crate::counters::Counters;
use crate::error::{OpenError, SendError, presentable};
use crate::membership::{Member, Membership};
use crate::options::Options;
use crate::random::random_u64;

/// Pause between two asks.
const ASK_EVERY: Duration = Duration::from_millis(200);
/// Most frames received at once while asking.
const BURST: usize = 64;

/// A process that wants to be a member of a running cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinRequest {
    /// Address of node 0, which admits (`Options::admits`).
    pub to: LinkAddr,
    /// Name for people; what exceeds 128 bytes is cut.
    pub name: String,
    /// The id of a member that died and comes back as this process, perhaps at another address. `None`: a new member.
    pub id: Option<NodeId>,
}

impl Endpoint {
    /// Becomes a member of a running cluster: asks its node 0, and waits until this node knows all members. The others learn of it from node 0, and
    /// hellos begin; see `wait_up`.
    ///
    /// Errors: [`OpenError::NotAdmitted`] says what node 0 answered if it did not admit this process within `timeout`, for example because the member
    /// with that id is not dead yet; and at once, if waiting is of no use. Ids are given in the order of joining; that of a member that joined and has
    /// been dead for `Options::dead_after` is given again.
    pub fn join(
        link: impl Into<AnyLink>,
        request: JoinRequest,
        options: Options,
        timeout: Duration,
    ) -> Result<Self, OpenError> {
        Self::join_telling(link.into(), request, options, timeout, &mut |_| ())
    }

    /// As [`join`](Self::join). `tell` gets what is to be told to the user, after three seconds and then every ten: whom this process waits for, and
    /// what is known of the cause.
    pub fn join_telling(
        link: AnyLink,
        request: JoinRequest,
        options: Options,
        timeout: Duration,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Self, OpenError> {
        let deadline = after(timeout);
        let mut link = Checked::new(link);
        let name = cut(&request.name).to_owned();
        let (admitting, me) = ask(&mut link, &request, &name, deadline, tell)?;
        let member = |id| Member {
            id: NodeId(id),
            name: String::new(),
            addr: LinkAddr::Broadcast, // not known yet
        };
        let mut members: Vec<Member> = (0..=me.0.max(admitting.0)).map(member).collect();
        members[usize::from(admitting.0)].addr = request.to;
        members[usize::from(me.0)] = Member {
            id: me,
            name,
            addr: link.local_addr(),
        };
        let mut endpoint = Self::over(link, Membership::of(me, members), options)?;
        endpoint.learn_members((admitting, request.to), deadline, tell)?;
        endpoint.update_members();
        Ok(endpoint)
    }

    /// Waits until the node that admitted this process, at address `to`, has told who the others are.
    fn learn_members(
        &mut self,
        (admitting, to): (NodeId, LinkAddr),
        deadline: Instant,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), OpenError> {
        let mut tell_at = Instant::now() + QUIET;
        loop {
            if self.core.read().channels.members.is_complete() {
                return Ok(());
            }
            let other = self.other_congestion(admitting);
            let reason = match other {
                Some(theirs) => AbsenceCause::OtherCongestion(theirs).to_string(),
                None => "it did not tell who the other members are".to_owned(),
            };
            let now = Instant::now();
            if other.is_some() || now >= deadline {
                return Err(OpenError::NotAdmitted { to, reason });
            }
            if now >= tell_at {
                tell(&waiting(to, &reason));
                tell_at = now + TOLD_EVERY;
            }
            let left = deadline.min(tell_at).saturating_duration_since(now);
            self.core.write().run_until(left, |_, intake| {
                intake.channels.members.is_complete()
                    || intake.peers.other_congestion(admitting).is_some()
            })?;
        }
    }

    /// Adds a member, whose id must be the number of members so far; or gives the member of that id another address or name, which ends the session
    /// with it. All other members learn it from this node. Error: [`SendError::UnknownPeer`] for this node's own id, one that would leave a gap, and an
    /// address that this node's link cannot send to or that another member has.
    ///
    /// Only one node may give ids: two that give the same one to two processes part the cluster.
    pub fn add_member(&mut self, member: Member) -> Result<(), SendError> {
        self.core.write().add_member(member)?;
        self.update_members();
        Ok(())
    }

    /// Takes over what this node has learned of its members: [`members`](Self::members) and [`name_of`](Self::name_of) show it from now on. Returns
    /// whether anything changed. Frames are exchanged with new members at once, whether this was called or not; a handler is told by `peer_up`.
    pub fn update_members(&mut self) -> bool {
        let core = self.core.read();
        let known = core.channels.members.membership();
        let changed = !Arc::ptr_eq(known, &self.membership);
        let known = Arc::clone(known);
        drop(core);
        self.membership = known;
        changed
    }
}

impl Core {
    fn add_member(&mut self, member: Member) -> Result<(), SendError> {
        let peer = member.id;
        let members = &mut self.channels.members;
        if peer == members.me() || usize::from(peer.0) > members.len() {
            return Err(SendError::UnknownPeer { peer });
        }
        let mut means = Means {
            way: &mut self.drive,
            peers: &mut self.peers,
            outbox: &mut self.channels.tools.outbox,
        };
        let is_set = members.set(member, &mut means);
        self.drive.mark_pending();
        is_set.then_some(()).ok_or(SendError::UnknownPeer { peer })
    }
}

/// What is told of a process that waits for node 0.
fn waiting(to: LinkAddr, reason: &str) -> String {
    format!("node 0 at {to} ({reason})")
}

/// What is known of a node 0 that answers nothing.
fn silence(link: &Checked<AnyLink>, to: LinkAddr) -> String {
    let counters = Counters {
        link: link.counters(),
        seal: link.sealing(),
        ..Counters::default()
    };
    let silent = Absent {
        peer: NodeId(0),
        name: "it does not answer".to_owned(),
        cause: AbsenceCause::NoAnswer,
    };
    let mut absence = Absence::of(vec![silent], &counters);
    absence.ask(|_| Some(to));
    let is_known =
        absence.members[0].cause != AbsenceCause::NoAnswer || !absence.turned_away.is_empty();
    if is_known {
        return absence.to_string();
    }
    let name = &absence.members[0].name;
    match (to, counters.seal) {
        (LinkAddr::Local(_), _) => name.clone(),
        // Frames of another key are dropped there, without a word.
        (_, Some(_)) => format!("{name}: it is not there, or has another key or --seal"),
        (_, None) => format!("{name}: it is not there, or has a key, and this process has none"),
    }
}

/// Asks until it is admitted, or refused for good; returns the id of the node that admits, and the own one.
fn ask(
    link: &mut Checked<AnyLink>,
    request: &JoinRequest,
    name: &str,
    deadline: Instant,
    tell: &mut dyn FnMut(&str),
) -> Result<(NodeId, NodeId), OpenError> {
    let to = request.to;
    let nonce = random_u64().map_err(OpenError::Random)?;
    let join = Join {
        id: request.id,
        nonce,
        name: name.as_bytes(),
    };
    let mut frame = [0; join::JOIN_HEADER_BYTES + NAME_BYTES];
    let bytes = join.write(&mut frame).unwrap_or(0); // it fits
    let mut refused: Option<String> = None;
    let mut ask_at = Instant::now();
    let mut tell_at = ask_at + QUIET;
    loop {
        let now = Instant::now();
        if now >= deadline.min(tell_at) {
            let reason = refused.clone().unwrap_or_else(|| silence(link, to));
            if now >= deadline {
                return Err(OpenError::NotAdmitted { to, reason });
            }
            tell(&waiting(to, &reason));
            tell_at = now + TOLD_EVERY;
        }
        if now >= ask_at {
            link.send_one(to, Frame::whole(&frame[..bytes]))?;
            link.flush()?;
            ask_at = now + ASK_EVERY;
        }
        let (mut admitted, mut is_final) = (None, false);
        let mut take = each(|from, frame: &[u8]| {
            let admission = Admission::parse(frame).filter(|admission| admission.nonce == nonce);
            match admission.filter(|_| from == to) {
                Some(Admission {
                    source,
                    answer: Ok(id),
                    ..
                }) => admitted = Some((source, id)),
                Some(Admission {
                    answer: Err(refusal),
                    ..
                }) => {
                    refused = Some(presentable(&String::from_utf8_lossy(refusal.reason)));
                    is_final = refusal.is_final;
                }
                None => {}
            }
        });
        link.receive(BURST, &mut take)?;
        match (admitted, refused.as_ref().filter(|_| is_final)) {
            (Some((source, id)), _) if source != id => return Ok((source, id)),
            (None, Some(reason)) => {
                let reason = reason.clone();
                return Err(OpenError::NotAdmitted { to, reason });
            }
            _ => link.wait(ask_at.min(deadline).saturating_duration_since(now))?,
        }
    }
}
