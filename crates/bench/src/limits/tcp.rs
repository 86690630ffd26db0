//! TCP used directly: one connection a pair, TCP_NODELAY, all nodes spinning (yielding where nodes outnumber cores).

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::place::Place;
use super::timing::{Clock, Timing, warm_up};
use super::{Checks, core_of, pin_to, relax};
use crate::machine;
use crate::ops::Sample;

/// Calls of each sender before anything is measured, as of other gathers; a burst has as many messages as other bursts, if that is more.
const WARM_UP: u64 = 3;
/// Small messages are joined up to so many bytes where calls are batched, and so many are read at once.
const CALL_BYTES: usize = 64 << 10;
/// A later answer counts as lost; under heavy loss TCP waits for seconds.
const LOST_AFTER: Duration = Duration::from_secs(20);

/// Both ends of a connection: of the client, and of the server, which listens for it only.
pub(crate) fn connection(client: &Place, server: &Place) -> io::Result<(TcpStream, TcpStream)> {
    let ip = server.ip;
    let listener = server.enter(move || TcpListener::bind((ip, 0)))?;
    let addr = listener.local_addr()?;
    let client = client.enter(move || TcpStream::connect(addr))?;
    Ok((client, listener.accept()?.0))
}

/// Connections from each of `others` to `root`.
fn connections(root: &Place, others: &[Place]) -> io::Result<(Vec<TcpStream>, Vec<TcpStream>)> {
    let pairs = others.iter().map(|other| connection(other, root));
    let (theirs, ours): (Vec<_>, Vec<_>) =
        pairs.collect::<io::Result<Vec<_>>>()?.into_iter().unzip();
    for stream in ours.iter().chain(&theirs) {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((theirs, ours))
}

/// Moves so many bytes by calls that move a part, or none yet: then `goes_on` decides. `Ok(false)`: it does not, or the other side is gone.
pub(crate) fn whole(
    total: usize,
    mut goes_on: impl FnMut() -> bool,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let mut done = 0;
    while done < total {
        match step(done) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(error) if is_pause(&error) => {
                if !goes_on() {
                    return Ok(false);
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Whether a call moved nothing only for now.
pub(crate) fn is_pause(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// [`whole`], spinning until `stop` is found set.
pub(crate) fn spin(
    stop: &AtomicBool,
    cpus: Option<[usize; 2]>,
    total: usize,
    step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let mut checks = Checks::default();
    let goes_on = || {
        relax(cpus);
        !(checks.is_due() && stop.load(Ordering::Relaxed))
    };
    whole(total, goes_on, step)
}

/// Half-round-trip of `size` bytes (1 at least) between two places.
pub(crate) fn pingpong_between(
    places: &[Place; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> io::Result<Sample> {
    pingpong_for(places, cpus, size, iterations, None)
}

/// Round trips of `size` bytes (1 at least) between two places, at most `iterations` and none that begins after `limit`.
pub(crate) fn pingpong_for(
    places: &[Place; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
    limit: Option<Duration>,
) -> io::Result<Sample> {
    let size = size.max(1);
    let (mut askers, mut echoes) = connections(&places[1], &places[..1])?;
    let (asker, echo) = (&mut askers[0], &mut echoes[0]);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut message = vec![0; size];
            // A failure shows as a missing answer.
            while let Ok(true) = spin(&stop, cpus, size, |at| echo.read(&mut message[at..])) {
                let Ok(true) = spin(&stop, cpus, size, |at| echo.write(&message[at..])) else {
                    break;
                };
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let mut ask = || -> io::Result<Sample> {
                let (mut message, mut checks) = (vec![1; size], Checks::default());
                let mut timing = Timing::new(iterations, limit);
                while timing.begins() {
                    let began = timing.began();
                    let whole = spin(&stop, cpus, size, |at| asker.write(&message[at..]))?
                        && spin(&stop, cpus, size, |at| {
                            if at == 0 && checks.is_due() && began.elapsed() > LOST_AFTER {
                                return Ok(0);
                            }
                            asker.read(&mut message[at..])
                        })?;
                    if !whole {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    timing.ends();
                }
                Ok(timing.sample())
            };
            let result = ask();
            stop.store(true, Ordering::Relaxed);
            result
        });
        asking.join().expect("the asking thread does not panic")
    })
}

/// Sends `messages` of `size` bytes (1 at least) from each of the other places to the first, each written by one call and read to its own length, as
/// programs with messages do it. With two places it is a burst.
pub(crate) fn gather_between(places: &[Place], size: usize, messages: u64) -> io::Result<Sample> {
    gather(places, size, messages, 1)
}

/// The same with batched calls: messages are joined up to 64 KiB before they are written, and reads take as many bytes. Longer ones as without.
pub(crate) fn gather_batched(places: &[Place], size: usize, messages: u64) -> io::Result<Sample> {
    gather(places, size, messages, joined(size))
}

/// Messages that one call writes, where calls are batched.
fn joined(size: usize) -> u64 {
    (CALL_BYTES / size.max(1)).max(1) as u64
}

fn gather(places: &[Place], size: usize, messages: u64, joined: u64) -> io::Result<Sample> {
    let Some((root, others)) = places.split_first() else {
        return Err(ErrorKind::InvalidInput.into());
    };
    let size = size.max(1);
    let (mut senders, mut receivers) = connections(root, others)?;
    let before = match others.len() {
        1 => warm_up(messages).max(WARM_UP * joined),
        _ => WARM_UP * joined,
    };
    let spinning = machine::two_cpus().filter(|_| places.len() <= machine::cpus().len());
    let (stop, warm) = (AtomicBool::new(false), Barrier::new(places.len()));
    std::thread::scope(|scope| {
        for (index, stream) in senders.iter_mut().enumerate() {
            let (stop, warm) = (&stop, &warm);
            scope.spawn(move || {
                core_of(index + 1, places.len());
                let (message, mut output): (Vec<u8>, Vec<u8>) = (vec![1; size], Vec::new());
                // A failure shows as missing messages.
                let mut send = |messages: u64| {
                    (0..messages).step_by(joined as usize).all(|sent| {
                        let bytes = if joined == 1 {
                            &message
                        } else {
                            output.clear();
                            for _ in sent..messages.min(sent + joined) {
                                output.extend_from_slice(&message);
                            }
                            &output
                        };
                        let write = |at: usize| stream.write(&bytes[at..]);
                        matches!(spin(stop, spinning, bytes.len(), write), Ok(true))
                    })
                };
                send(before);
                warm.wait();
                send(messages);
            });
        }
        let receivers = &mut receivers;
        let receiving = scope.spawn(|| {
            core_of(0, places.len());
            let bytes = if joined == 1 { size } else { CALL_BYTES + size };
            let mut buffers = vec![vec![1; bytes]; others.len()];
            let mut receive = |messages| receive(receivers, &mut buffers, size, spinning, messages);
            let ready = receive(before);
            if ready.is_err() {
                stop.store(true, Ordering::Relaxed); // senders may wait for room
            }
            warm.wait();
            let clock = Clock::start();
            let result = ready.and_then(|()| receive(messages));
            stop.store(true, Ordering::Relaxed);
            result.map(|()| clock.stop())
        });
        receiving
            .join()
            .expect("the receiving thread does not panic")
    })
}

/// Reads so many messages of each stream into its buffer, from whichever has data. A buffer as long as one message takes them singly; a longer one takes
/// what there is, and keeps the beginning of one that is not whole.
fn receive(
    streams: &mut [TcpStream],
    buffers: &mut [Vec<u8>],
    size: usize,
    spinning: Option<[usize; 2]>,
    messages: u64,
) -> io::Result<()> {
    let total = size as u64 * messages;
    let mut buffers: Vec<(&mut Vec<u8>, usize, u64)> =
        buffers.iter_mut().map(|buffer| (buffer, 0, 0)).collect();
    let mut missing = streams.len();
    let (mut checks, mut last, mut came) = (Checks::default(), Instant::now(), false);
    while missing > 0 {
        let mut moved = false;
        for (stream, (buffer, at, received)) in streams.iter_mut().zip(&mut buffers) {
            if *received == total {
                continue;
            }
            match stream.read(&mut buffer[*at..]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(count) => {
                    let (there, whole) = (*at + count, (*at + count) / size * size);
                    std::hint::black_box(&buffer[..whole]);
                    if whole > 0 {
                        buffer.copy_within(whole..there, 0);
                    }
                    *at = there - whole;
                    *received += count as u64;
                    missing -= usize::from(*received == total);
                    moved = true;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if moved {
            came = true;
            continue;
        }
        if checks.is_due() {
            if std::mem::take(&mut came) {
                last = Instant::now();
            } else if last.elapsed() > LOST_AFTER {
                return Err(ErrorKind::TimedOut.into());
            }
        }
        relax(spinning);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers arrive, also of sizes that a socket takes in parts.
    #[test]
    fn echoes() {
        for size in [0, 64, 1 << 20] {
            let sample = pingpong_between(&Place::LOOPBACK, None, size, 10).unwrap();
            assert!(sample.half_rtt_us.unwrap().min > 0.0 && sample.iterations.is_none());
        }
    }

    /// Every message of every sender arrives, also of sizes that a socket takes in parts.
    #[test]
    fn gathers() {
        let [here, _] = Place::LOOPBACK;
        for (nodes, size) in [(2, 0), (2, 1 << 20), (5, 1000)] {
            let places = vec![here.clone(); nodes];
            assert!(gather_between(&places, size, 20).unwrap().seconds > 0.0);
        }
    }

    /// With batched calls every message arrives, too: those that share calls, those that are cut by them, and those too long to share.
    #[test]
    fn batched_calls_deliver_all() {
        assert_eq!(
            [0, 1, 1000, 40_000, 1 << 20].map(joined),
            [65536, 65536, 65, 1, 1]
        );
        let [here, _] = Place::LOOPBACK;
        for (nodes, size) in [(2, 0), (2, 1000), (3, 30_000), (2, 1 << 20)] {
            let places = vec![here.clone(); nodes];
            let sample = gather_batched(&places, size, 100).unwrap();
            assert!(sample.seconds > 0.0, "{nodes} {size}");
        }
    }

    /// Round trips end after their time, not only after their number.
    #[test]
    fn round_trips_end_in_time() {
        let none = Some(Duration::ZERO);
        let sample = pingpong_for(&Place::LOOPBACK, None, 8, u64::MAX, none).unwrap();
        assert_eq!(sample.iterations, Some(1));
    }
}
