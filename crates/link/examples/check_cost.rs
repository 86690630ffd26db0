//! What the checksum around a frame costs: nanoseconds to write it and to check it, medians, by the frame's size.
//!
//! `cargo run --release -p tsumuji-link --example check_cost`

use std::hint::black_box;
use std::time::Instant;

use tsumuji_link::checked::{CHECK_BYTES, close, open};

const SIZES: [usize; 5] = [64, 256, 1500, 9000, 65_000];
/// Of each batch; the median batch is told.
const CALLS: u32 = 2_000;
const BATCHES: usize = 101;

fn median_ns(mut call: impl FnMut()) -> f64 {
    let mut batches: Vec<f64> = (0..BATCHES)
        .map(|_| {
            let begun = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            begun.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .collect();
    batches.sort_by(f64::total_cmp);
    batches[BATCHES / 2]
}

fn main() {
    println!(
        "{:>8} {:>10} {:>10} {:>8}",
        "bytes", "write ns", "check ns", "GB/s"
    );
    for bytes in SIZES {
        let mut slot: Vec<u8> = (0..bytes + CHECK_BYTES).map(|at| at as u8).collect();
        let write = median_ns(|| {
            black_box(close(black_box(&mut slot), bytes));
        });
        let check = median_ns(|| {
            let _ = black_box(open(black_box(&slot)));
        });
        assert!(open(&slot).is_ok(), "what was written is sound");
        let rate = bytes as f64 / check;
        println!("{bytes:>8} {write:>10.1} {check:>10.1} {rate:>8.1}");
    }
}
