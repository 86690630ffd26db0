//! The rate at which this machine reads memory: a sum over an array far larger than the caches, with one core and with several.
//!
//! An iteration over a large matrix reads every element once a lap: this is its limit.

use std::sync::Barrier;
use std::time::Instant;

use pulp::{Arch, Simd, WithSimd};

/// Bytes each core reads: larger than any last-level cache share seen so far.
pub(crate) const BYTES_PER_CORE: usize = 512 << 20;

/// One addition per vector of each of `STREAMS` equal parts of an array, read in parallel.
///
/// One stream does not always fill the memory pipeline of a core, and processors differ in how many do, so several numbers are tried.
struct Sum<'a, const STREAMS: usize, const UNROLL: usize>(&'a [f64]);

impl<const STREAMS: usize, const UNROLL: usize> WithSimd for Sum<'_, STREAMS, UNROLL> {
    type Output = f64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f64 {
        let part = self.0.len() / STREAMS;
        let streams: [_; STREAMS] = std::array::from_fn(|stream| {
            let (vectors, rest) = S::as_simd_f64s(&self.0[stream * part..(stream + 1) * part]);
            let (steps, left) = pulp::as_arrays::<UNROLL, _>(vectors);
            (steps, left, rest)
        });
        let count = streams[0].0.len();
        let steps = streams.map(|(steps, ..)| &steps[..count]);
        let mut sums = [[simd.splat_f64s(0.0); UNROLL]; STREAMS];
        #[allow(clippy::needless_range_loop)] // all streams advance together
        for step in 0..count {
            for stream in 0..STREAMS {
                for lane in 0..UNROLL {
                    sums[stream][lane] =
                        simd.add_f64s(sums[stream][lane], steps[stream][step][lane]);
                }
            }
        }
        let mut total = self.0[STREAMS * part..].iter().sum::<f64>();
        for (stream, (_, left, rest)) in streams.into_iter().enumerate() {
            for &vector in sums[stream].iter().chain(left) {
                total += simd.reduce_sum_f64s(vector);
            }
            total += rest.iter().sum::<f64>();
        }
        total
    }
}

/// Numbers of parallel streams that are tried.
const STREAMS: [usize; 3] = [1, 4, 8];

/// Σ values, by the widest vectors the processor has, in `streams` streams (one of `STREAMS`).
fn sum(values: &[f64], streams: usize) -> f64 {
    match streams {
        1 => Arch::new().dispatch(Sum::<1, 8>(values)),
        4 => Arch::new().dispatch(Sum::<4, 2>(values)),
        _ => Arch::new().dispatch(Sum::<8, 1>(values)),
    }
}

/// Arrays that are read repeatedly, one for each core, each first touched by its reader.
#[derive(Debug)]
pub struct Bandwidth {
    arrays: Vec<Vec<f64>>,
}

impl Bandwidth {
    /// Takes `bytes_per_core` for each of `cores` cores.
    pub fn new(cores: usize, bytes_per_core: usize) -> Self {
        let fill = |core| {
            move || {
                pin_to_nth(core);
                vec![1.0; bytes_per_core / size_of::<f64>()]
            }
        };
        let arrays = std::thread::scope(|scope| {
            let fills: Vec<_> = (0..cores).map(|core| scope.spawn(fill(core))).collect();
            fills
                .into_iter()
                .map(|fill| fill.join().expect("filling does not panic"))
                .collect()
        });
        Self { arrays }
    }

    /// Bytes a second that `cores` cores read together, over `laps` laps, with the fastest number of streams. Panics if `new` was given fewer cores.
    pub fn read(&self, cores: usize, laps: usize) -> f64 {
        STREAMS
            .into_iter()
            .map(|streams| self.read_in_streams(cores, laps, streams))
            .fold(0.0, f64::max)
    }

    fn read_in_streams(&self, cores: usize, laps: usize, streams: usize) -> f64 {
        let start_line = Barrier::new(cores);
        let spans: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
            let readers: Vec<_> = self.arrays[..cores]
                .iter()
                .enumerate()
                .map(|(core, array)| {
                    let start_line = &start_line;
                    scope.spawn(move || {
                        pin_to_nth(core);
                        std::hint::black_box(sum(array, streams)); // page tables and clocks warm
                        start_line.wait();
                        let start = Instant::now();
                        for _ in 0..laps {
                            std::hint::black_box(sum(std::hint::black_box(array), streams));
                        }
                        (start, Instant::now())
                    })
                })
                .collect();
            readers
                .into_iter()
                .map(|reader| reader.join().expect("reading does not panic"))
                .collect()
        });
        let start = spans
            .iter()
            .map(|span| span.0)
            .min()
            .expect("at least one core");
        let end = spans
            .iter()
            .map(|span| span.1)
            .max()
            .expect("at least one core");
        let bytes: usize = self.arrays[..cores]
            .iter()
            .map(|array| array.len() * size_of::<f64>())
            .sum();
        (bytes * laps) as f64 / (end - start).as_secs_f64()
    }
}

/// Binds the calling thread to the `core`-th core this process may use.
fn pin_to_nth(core: usize) {
    let cpus = crate::machine::cpus();
    let _ = crate::machine::pin(cpus[core % cpus.len()]); // unpinned figures are worse, not wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum includes all elements at any length.
    #[test]
    fn sums_all_lengths() {
        for n in [0_usize, 1, 7, 8, 63, 64, 65, 1000] {
            let values: Vec<f64> = (0..n).map(|i| i as f64).collect();
            for streams in STREAMS {
                assert_eq!(
                    sum(&values, streams),
                    (n * n.saturating_sub(1) / 2) as f64,
                    "length {n}, {streams} streams"
                );
            }
        }
    }

    /// One and two cores both give a rate.
    #[test]
    fn reads() {
        let bandwidth = Bandwidth::new(2, 1 << 16);
        assert!(bandwidth.read(1, 2) > 0.0);
        assert!(bandwidth.read(2, 2) > 0.0);
    }
}
