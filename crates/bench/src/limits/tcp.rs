//! TCP as a program would do it by hand: one connection, no delay, both sides spinning.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::place::Place;
use super::{pin_to, relax};
use crate::stats::{HalfRtt, RoundTrips};

/// An answer that is this late never comes.
const LOST_AFTER: Duration = Duration::from_secs(5);

fn connection(places: &[Place; 2]) -> io::Result<(TcpStream, TcpStream)> {
    let ip = places[1].ip;
    let listener = places[1].enter(move || TcpListener::bind((ip, 0)))?;
    let addr = listener.local_addr()?;
    let asker = places[0].enter(move || TcpStream::connect(addr))?;
    let (echo, _) = listener.accept()?;
    for stream in [&asker, &echo] {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
    }
    Ok((asker, echo))
}

/// Moves all of `bytes` one way, spinning. `Ok(false)`: `stop` was set meanwhile, or the other side is gone.
fn spin(
    stop: &AtomicBool,
    cpus: Option<[usize; 2]>,
    total: usize,
    mut step: impl FnMut(usize) -> io::Result<usize>,
) -> io::Result<bool> {
    let mut done = 0;
    while done < total {
        match step(done) {
            Ok(0) => return Ok(false),
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                if stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
                relax(cpus);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

/// Half-round-trip of `size` bytes (1 at least) between two places.
pub fn pingpong_between(
    places: &[Place; 2],
    cpus: Option<[usize; 2]>,
    size: usize,
    iterations: u64,
) -> io::Result<HalfRtt> {
    let size = size.max(1);
    let (mut asker, mut echo) = connection(places)?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin_to(cpus, 1);
            let mut message = vec![0; size];
            // A failure shows as an answer that does not come.
            while let Ok(true) = spin(&stop, cpus, size, |at| echo.read(&mut message[at..])) {
                let Ok(true) = spin(&stop, cpus, size, |at| echo.write(&message[at..])) else {
                    break;
                };
            }
        });
        let asking = scope.spawn(|| {
            pin_to(cpus, 0);
            let mut ask = || -> io::Result<HalfRtt> {
                let mut message = vec![1; size];
                let mut trips = RoundTrips::default();
                let began = Instant::now();
                let mut before = began;
                for turn in 0..iterations {
                    let whole = spin(&stop, cpus, size, |at| asker.write(&message[at..]))?
                        && spin(&stop, cpus, size, |at| {
                            if at == 0 && before.elapsed() > LOST_AFTER {
                                return Ok(0);
                            }
                            asker.read(&mut message[at..])
                        })?;
                    if !whole {
                        return Err(ErrorKind::TimedOut.into());
                    }
                    let now = Instant::now();
                    // The first trip contains the start of the other thread.
                    if turn > 0 || iterations == 1 {
                        trips.record((now - before).as_nanos() as u64);
                    }
                    before = now;
                }
                Ok(trips.half())
            };
            let result = ask();
            stop.store(true, Ordering::Relaxed);
            result
        });
        asking.join().expect("the asking thread does not panic")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers come back, also of sizes that a socket takes in parts.
    #[test]
    fn echoes() {
        for size in [0, 64, 1 << 20] {
            let half = pingpong_between(&Place::LOOPBACK, None, size, 10).unwrap();
            assert!(half.min > 0.0);
        }
    }
}
