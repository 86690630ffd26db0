//! Every parser of outside bytes takes its seeds, and thousands of changed seeds, without a panic.
//!
//! The changes are drawn by a fixed number: a run repeats the last. `make fuzz` looks for inputs guided by coverage; what it finds becomes a seed.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Once;

use fastrand::Rng;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tsumuji_fuzz_targets::{ALL, Target};

/// Changed seeds for each target.
const INPUTS: usize = 10_000;
/// Longest input; longer ones add no new paths.
const INPUT_BYTES: usize = 16 << 10;
/// Address space of this process: a parser that allocates what its input announces ends the test.
const MEMORY_BYTES: u64 = 16 << 30;
/// Numbers at which lengths and counts go wrong.
const EDGES: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 1,
    u64::MAX,
];
/// Words at which texts go wrong.
const WORDS: [&str; 12] = [
    "-1",
    "0",
    "18446744073709551616",
    "1e999",
    "nan",
    "inf",
    "\n",
    "\0",
    "\u{fffd}",
    "=",
    "[",
    "\"",
];

/// Seeds of a target, in the order of their names; the empty input is one.
fn seeds(name: &str) -> Vec<Vec<u8>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../fuzz/seeds")
        .join(name);
    let listing =
        fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut paths: Vec<_> = listing.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(!paths.is_empty(), "{}: no seeds", folder.display());
    let read = paths.iter().map(|path| fs::read(path).unwrap());
    std::iter::once(Vec::new()).chain(read).collect()
}

/// A place in `bytes`, its end included.
fn place(rng: &mut Rng, bytes: &[u8]) -> usize {
    rng.usize(..=bytes.len())
}

fn change(rng: &mut Rng, bytes: &mut Vec<u8>, seeds: &[Vec<u8>]) {
    let at = place(rng, bytes);
    // Short parts are likelier.
    let longest = 1 << rng.u32(0..8);
    let end = (at + rng.usize(0..=longest)).min(bytes.len());
    match rng.u32(0..9) {
        0 if at < bytes.len() => bytes[at] ^= 1 << rng.u32(0..8),
        1 if at < bytes.len() => bytes[at] = rng.u8(..),
        2 => {
            bytes.drain(at..end);
        }
        3 => {
            let part = bytes[at..end].to_vec();
            let to = place(rng, bytes);
            bytes.splice(to..to, part);
        }
        4 => {
            let number = rng.choice(EDGES).expect("there are some").to_le_bytes();
            let width = 1 << rng.u32(0..4);
            let end = (at + width).min(bytes.len());
            let mut part = number[..width].to_vec();
            if rng.bool() {
                part.reverse();
            }
            bytes.splice(at..end, part);
        }
        5 => {
            let word = rng.choice(WORDS).expect("there are some");
            bytes.splice(at..end, word.bytes());
        }
        6 => bytes.truncate(at),
        7 => {
            let other = rng.choice(seeds).expect("there are some");
            let from = place(rng, other);
            bytes.truncate(at);
            bytes.extend_from_slice(&other[from..]);
        }
        _ => {
            let part: Vec<u8> = (at..end).map(|_| rng.u8(..)).collect();
            bytes.splice(at..at, part);
        }
    }
}

/// Calls the target; an input that makes it panic is kept.
fn call(name: &str, target: Target, input: &[u8]) {
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| target(input))) {
        let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
        fs::write(&kept, input).unwrap();
        eprintln!(
            "{name}: the input is kept as {}; it belongs to fuzz/seeds/{name} once it is mended",
            kept.display()
        );
        resume_unwind(panic);
    }
}

fn limit_memory() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let maximum = getrlimit(Resource::As).maximum;
        let current = Some(maximum.map_or(MEMORY_BYTES, |most| most.min(MEMORY_BYTES)));
        setrlimit(Resource::As, Rlimit { current, maximum }).unwrap();
    });
}

fn run(name: &str) {
    limit_memory();
    let (_, target) = *ALL
        .iter()
        .find(|(known, _)| *known == name)
        .expect("a target");
    let seeds = seeds(name);
    for seed in &seeds {
        call(name, target, seed);
    }
    let mut rng = Rng::with_seed(2026);
    for _ in 0..INPUTS {
        let mut input = rng.choice(&seeds).expect("there are some").clone();
        for _ in 0..1 + rng.usize(0..6) {
            change(&mut rng, &mut input, &seeds);
        }
        input.truncate(INPUT_BYTES);
        call(name, target, &input);
    }
}

macro_rules! tests {
    ($($name:ident)*) => {
        $(#[test] fn $name() { run(stringify!($name)); })*

        /// Each target has a test here, a program for libFuzzer, and its entry in that package's manifest.
        #[test]
        fn every_target_has_a_test_and_a_program() {
            let tested = [$(stringify!($name)),*];
            let fuzz = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz");
            let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
            let programs = fs::read_dir(fuzz.join("fuzz_targets")).unwrap().count();
            assert_eq!((tested.len(), programs), (ALL.len(), ALL.len()));
            for (name, _) in ALL {
                assert!(tested.contains(name), "{name}: no test");
                let program = fs::read_to_string(fuzz.join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
                let called = format!("#![no_main]\nlibfuzzer_sys::fuzz_target!(|bytes: &[u8]| tsumuji_fuzz_targets::{name}(bytes));\n");
                assert_eq!(program, called);
                assert!(manifest.contains(&format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n")), "{name}: no entry");
            }
        }
    };
}

tests! {
    agent checked cluster edges engine ethernet ethers foreign frame gossip handshake harwell keys learn_data members metrics model mtx netlist npy parts
    petsc profile rows sealed streams words
}
