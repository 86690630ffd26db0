//! Video and bulk between two endpoints over UDP.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use tsumuji_link::udp::{Udp, UdpConfig};
use tsumuji_node::any_link::Base;
use tsumuji_node::{
    AnyLink, Channel, Congestion, Context, Datagram, Delivery, DeliveryClass, Destination,
    Endpoint, Handler, Link, Member, Membership, NodeId, Options, Pace, Priority,
};

use super::Schedule;
use crate::limits::place::Place;

const SENDER: NodeId = NodeId(0);
const RECEIVER: NodeId = NodeId(1);
/// The paper knows one order of all blocks to a receiver.
const ALL: Channel = Channel::ordered(0);
/// Where video is not a message, bulk goes behind everything.
const BULK: Channel = Channel::new(DeliveryClass::Ordered, Priority::BULK, 1);
const VIDEO_ID: u16 = 2;
/// A block of bulk.
const BLOCK_BYTES: usize = 8 << 10;
/// The program writes no more bulk while so many blocks are unacknowledged: a frame of video then waits for 2.6 ms of them at 100 Mbit/s.
const BLOCKS_AHEAD: usize = 4;
/// The loop's wait: shorter than a frame's time on the cable.
const WAIT: Duration = Duration::from_millis(1);
/// A receiver checks so often whether all is over.
const CHECK_EVERY: Duration = Duration::from_millis(20);
const MEET_WITHIN: Duration = Duration::from_secs(10);

/// Whatever went wrong: it is told only.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What the receiver's program does with what comes.
struct Screen<'a> {
    schedule: &'a Schedule,
    is_complete: bool,
}

impl Handler for Screen<'_> {
    fn message(&mut self, _: &mut Context<'_>, delivery: Delivery<'_>) {
        let bytes = delivery.body.bytes();
        if bytes.len() == BLOCK_BYTES {
            return self.schedule.bulk_came(bytes.len());
        }
        if let Some(number) = bytes.first_chunk() {
            self.is_complete |= self.schedule.frame_came(u32::from_le_bytes(*number));
        }
    }

    fn datagram(&mut self, _: &mut Context<'_>, datagram: Datagram<'_>) {
        self.is_complete |= self.schedule.frame_came(datagram.lap);
    }
}

/// Runs to the end. `by_deadline`: the video goes by datagrams.
pub(super) fn run(
    places: [&Place; 2],
    by_deadline: bool,
    schedule: &Schedule,
) -> Result<(), Failure> {
    let congestion = if by_deadline {
        Congestion::Credit
    } else {
        Congestion::SUCI
    };
    let options = Options {
        congestion,
        ..Options::default()
    };
    let [mut near, mut far] = endpoints(places, &options)?;
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let receiving = scope.spawn(|| -> Result<(), Failure> {
            let mut screen = Screen {
                schedule,
                is_complete: false,
            };
            while Instant::now() < schedule.last()
                && !(screen.is_complete && Instant::now() >= schedule.end())
                && !is_over.load(Ordering::Relaxed)
            {
                far.poll_wait(&mut screen, CHECK_EVERY)?;
            }
            let _ = far.close(Duration::ZERO);
            Ok(())
        });
        let sent = (near.wait_up(MEET_WITHIN))
            .map_err(Failure::from)
            .and_then(|missing| match missing.is_empty() {
                true if by_deadline => by_datagrams(&mut near, schedule),
                true => by_loop(&mut near, schedule),
                false => Err("the two endpoints have not met".into()),
            });
        is_over.store(sent.is_err(), Ordering::Relaxed);
        let received = receiving.join().expect("no panic");
        let _ = near.close(Duration::ZERO);
        sent.and(received)
    })
}

/// The loop of Suci's paper: a frame of video is written when it is there, unless one before it still waits; bulk is written while little is
/// unacknowledged; what stays unacknowledged is looked after.
fn by_loop(socket: &mut Endpoint, schedule: &Schedule) -> Result<(), Failure> {
    let plan = schedule.plan;
    let (mut frame, block) = (vec![1; plan.frame_bytes], vec![2; BLOCK_BYTES]);
    let mut next = 0;
    while Instant::now() < schedule.end() {
        let left = schedule
            .capture(next)
            .saturating_duration_since(Instant::now());
        if left.is_zero() {
            // It may wait for the window as long as it can still be shown.
            if socket.wait_window(RECEIVER, ALL.id(), frame.len(), plan.period() / 2)? {
                frame[..4].copy_from_slice(&next.to_le_bytes());
                socket.send(RECEIVER, ALL, &frame)?;
            }
            next += 1;
        } else if socket.queue_length(RECEIVER) < BLOCKS_AHEAD
            && socket.wait_window(RECEIVER, ALL.id(), block.len(), left.min(WAIT))?
        {
            socket.send(RECEIVER, ALL, &block)?;
        } else {
            socket.ready(left.min(WAIT))?;
        }
        if socket.queue_length(RECEIVER) > 0 {
            socket.repair_now(RECEIVER)?;
        }
    }
    Ok(())
}

/// The newest frame of video replaces one that has not left, and is dropped when it cannot be shown any more; bulk takes the rest.
fn by_datagrams(node: &mut Endpoint, schedule: &Schedule) -> Result<(), Failure> {
    let plan = schedule.plan;
    let (frame, block) = (vec![1; plan.frame_bytes], vec![2; BLOCK_BYTES]);
    node.set_pace(RECEIVER, Pace::Drain)?;
    let mut next = 0;
    while Instant::now() < schedule.end() {
        let left = schedule
            .capture(next)
            .saturating_duration_since(Instant::now());
        if left.is_zero() {
            let video = Datagram {
                channel_id: VIDEO_ID,
                lap: next,
                payload: &frame,
                ..Datagram::EMPTY
            };
            node.datagram(Destination::Peer(RECEIVER), video, Some(plan.shown_after()))?;
            next += 1;
        } else if node.wait_writable(RECEIVER, BULK.id(), frame.len() + block.len(), left)? {
            // The queue to a receiver is one for all: bulk leaves room for a frame.
            node.send(RECEIVER, BULK, &block)?;
        }
    }
    Ok(())
}

/// An endpoint in each place.
fn endpoints(places: [&Place; 2], options: &Options) -> Result<[Endpoint; 2], Failure> {
    let open = |place: &Place| {
        let addr = SocketAddr::new(place.ip.into(), 0);
        place.enter(move || Udp::bind(addr, UdpConfig::default()).map_err(Failure::from))
    };
    let (near, far) = (open(places[0])?, open(places[1])?);
    let addrs = [near.local_addr(), far.local_addr()];
    let endpoint = |link, me: NodeId| {
        let members = [SENDER, RECEIVER].map(|id| Member {
            id,
            name: id.to_string(),
            addr: addrs[usize::from(id.0)],
        });
        let link = AnyLink::open(Base::Udp(link), None, None)?;
        let membership = Membership::of(me, members.into());
        Ok::<_, Failure>(Endpoint::new(link, membership, options.clone())?)
    };
    Ok([endpoint(near, SENDER)?, endpoint(far, RECEIVER)?])
}
