//! Video and bulk over sockets of the kernel.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use super::{BULK_STREAMS, Schedule};
use crate::limits::place::Place;
use crate::limits::tcp::{self, is_pause};
use crate::limits::udp;

/// Bytes of bulk written by one call.
const BLOCK_BYTES: usize = 64 << 10;
/// Payload of a datagram: with its headers it fits Ethernet's frame.
const PART_BYTES: usize = 1_400;
/// Bytes before the video in a datagram: frame and part, 4 each.
const HEAD_BYTES: usize = 8;
/// A call that waits longer checks whether all is over.
const CHECK_EVERY: Duration = Duration::from_millis(20);

/// Runs to the end. `by_datagrams`: the video goes by UDP.
pub(super) fn run(
    [sender, receiver]: [&Place; 2],
    by_datagrams: bool,
    schedule: &Schedule,
) -> io::Result<()> {
    let bulk: Vec<_> = (0..BULK_STREAMS)
        .map(|_| connection(sender, receiver))
        .collect::<io::Result<_>>()?;
    thread::scope(|scope| {
        let bulk: Vec<_> = bulk
            .into_iter()
            .flat_map(|(near, far)| {
                [
                    scope.spawn(move || send_bulk(near, schedule)),
                    scope.spawn(move || receive_bulk(far, schedule)),
                ]
            })
            .collect();
        let video = if by_datagrams {
            datagrams(sender, receiver, schedule)
        } else {
            stream(sender, receiver, schedule)
        };
        let joined = bulk
            .into_iter()
            .map(|thread| thread.join().expect("no panic"));
        joined.chain([video]).collect()
    })
}

/// Both ends of a connection; calls on them return after `CHECK_EVERY` at the latest.
fn connection(sender: &Place, receiver: &Place) -> io::Result<(TcpStream, TcpStream)> {
    let (near, far) = tcp::connection(sender, receiver)?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(CHECK_EVERY))?;
        stream.set_write_timeout(Some(CHECK_EVERY))?;
    }
    Ok((near, far))
}

/// Moves all of `bytes` by calls that may return early. `false`: it was not done by `last`, or the other side has gone.
fn whole(
    bytes: usize,
    last: Instant,
    step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let moved = tcp::whole(bytes, || Instant::now() < last, step);
    moved.or_else(|error| match error.kind() {
        ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => Ok(false),
        _ => Err(error),
    })
}

fn send_bulk(mut to: TcpStream, schedule: &Schedule) -> io::Result<()> {
    let block = vec![1; BLOCK_BYTES];
    while Instant::now() < schedule.end()
        && whole(block.len(), schedule.end(), |at| to.write(&block[at..]))?
    {}
    Ok(())
}

fn receive_bulk(mut from: TcpStream, schedule: &Schedule) -> io::Result<()> {
    let mut block = vec![0; BLOCK_BYTES];
    while Instant::now() < schedule.end() {
        match from.read(&mut block) {
            Ok(0) => break,
            Ok(bytes) => schedule.bulk_came(bytes),
            Err(error) if is_pause(&error) => {}
            Err(error) if error.kind() == ErrorKind::ConnectionReset => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// The video over a connection of its own: frames follow each other, however late they are.
fn stream(sender: &Place, receiver: &Place, schedule: &Schedule) -> io::Result<()> {
    let (mut near, mut far) = connection(sender, receiver)?;
    let plan = schedule.plan;
    thread::scope(|scope| {
        let receiving = scope.spawn(move || -> io::Result<()> {
            let mut frame = vec![0; plan.frame_bytes];
            for number in 0..plan.frames {
                let is_whole = whole(frame.len(), schedule.last(), |at| {
                    far.read(&mut frame[at..])
                })?;
                if !is_whole || schedule.frame_came(number) {
                    break;
                }
            }
            Ok(())
        });
        let frame = vec![1; plan.frame_bytes];
        for number in 0..plan.frames {
            schedule.sleep_until(schedule.capture(number));
            if !whole(frame.len(), schedule.last(), |at| near.write(&frame[at..]))? {
                break;
            }
        }
        receiving.join().expect("no panic")
    })
}

/// The video by datagrams, each frame spread evenly over its time, as nothing else keeps them from being lost in a queue.
fn datagrams(sender: &Place, receiver: &Place, schedule: &Schedule) -> io::Result<()> {
    let (near, far) = (udp::open(sender)?, udp::open(receiver)?);
    near.connect(far.local_addr()?)?;
    near.set_nonblocking(false)?;
    far.set_nonblocking(false)?;
    far.set_read_timeout(Some(CHECK_EVERY))?;
    let plan = schedule.plan;
    let parts = plan.frame_bytes.div_ceil(PART_BYTES) as u32;
    thread::scope(|scope| {
        let receiving = scope.spawn(move || receive_datagrams(&far, parts, schedule));
        let mut datagram = [1; HEAD_BYTES + PART_BYTES];
        for number in 0..plan.frames {
            for part in 0..parts {
                let after = plan.period() * part / parts;
                schedule.sleep_until(schedule.capture(number) + after);
                let left = plan.frame_bytes - part as usize * PART_BYTES;
                datagram[..4].copy_from_slice(&number.to_le_bytes());
                datagram[4..8].copy_from_slice(&part.to_le_bytes());
                match near.send(&datagram[..HEAD_BYTES + left.min(PART_BYTES)]) {
                    Ok(_) => {}
                    // The own queue is full: it is lost here.
                    Err(error) if error.raw_os_error() == Some(ENOBUFS) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        receiving.join().expect("no panic")
    })
}

const ENOBUFS: i32 = rustix::io::Errno::NOBUFS.raw_os_error();

fn receive_datagrams(from: &UdpSocket, parts: u32, schedule: &Schedule) -> io::Result<()> {
    let mut missing = vec![parts; schedule.plan.frames as usize];
    let mut datagram = [0; HEAD_BYTES + PART_BYTES];
    while Instant::now() < schedule.last() {
        match from.recv(&mut datagram) {
            Ok(_) => {
                let [a, b, c, d, ..] = datagram;
                let number = u32::from_le_bytes([a, b, c, d]);
                let Some(missing) = missing.get_mut(number as usize) else {
                    continue;
                };
                *missing = missing.saturating_sub(1);
                if *missing == 0 && schedule.frame_came(number) {
                    break;
                }
            }
            Err(error) if is_pause(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
