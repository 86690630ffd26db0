//! What sealing costs: `cargo run --release -p tsumuji-seal --example seal_cost` (about 7 s).
//!
//! Prints nanoseconds per frame of each AEAD that could have been taken, and what handshakes cost, an unwelcome one among them. Each
//! figure is the median of `ROUNDS` rounds in which all candidates take turns. The whole wrapper: `tsumuji bench figures --part sealing`.

use std::hint::black_box;
use std::time::{Duration, Instant};

use tsumuji_link::shm::{Shm, ShmConfig, ShmJob};
use tsumuji_link::{Frame, Link, LinkAddr, each};
use tsumuji_seal::{ClusterKey, Keys, SealMode, Sealed};

const ROUNDS: usize = 9;
/// Time of one figure in one round.
const SPAN: Duration = Duration::from_millis(25);
const HEADER: [u8; 16] = [1; 16];

/// Something to be timed: does its work so many times.
type Candidate = (&'static str, Box<dyn FnMut(u64)>);

/// Nanoseconds for one, by candidate; medians.
fn measure(candidates: &mut [Candidate]) -> Vec<f64> {
    let mut times = vec![Vec::new(); candidates.len()];
    for _ in 0..ROUNDS {
        for ((_, run), times) in candidates.iter_mut().zip(&mut times) {
            let (mut done, begun) = (0, Instant::now());
            while begun.elapsed() < SPAN {
                run(256);
                done += 256;
            }
            times.push(begun.elapsed().as_nanos() as f64 / done as f64);
        }
    }
    let median = |times: &mut Vec<f64>| {
        times.sort_by(f64::total_cmp);
        times[times.len() / 2]
    };
    times.iter_mut().map(median).collect()
}

fn nonce(count: u64) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[4..].copy_from_slice(&count.to_le_bytes());
    nonce
}

/// Sealing by a library with ring's interface.
macro_rules! like_ring {
    ($library:ident, $algorithm:ident, $bytes:expr, $readable:expr) => {{
        use $library::aead::{Aad, LessSafeKey, Nonce, UnboundKey, $algorithm};
        let key = LessSafeKey::new(UnboundKey::new(&$algorithm, &[7; 32]).expect("a key"));
        let (mut frame, mut count) = (vec![1; HEADER.len() + $bytes], 0);
        Box::new(move |times| {
            for _ in 0..times {
                count += 1;
                let nonce = Nonce::assume_unique_for_key(nonce(count));
                let tag = if $readable {
                    key.seal_in_place_separate_tag(nonce, Aad::from(&frame), &mut [])
                } else {
                    let (header, inner) = frame.split_at_mut(HEADER.len());
                    key.seal_in_place_separate_tag(nonce, Aad::from(&*header), inner)
                };
                black_box(tag.expect("sealed").as_ref()[0]);
            }
        })
    }};
}

macro_rules! rust_crypto {
    ($cipher:ty, $bytes:expr) => {{
        use aes_gcm::aead::{AeadInPlace, KeyInit};
        let cipher = <$cipher>::new(&[7; 32].into());
        let (mut frame, mut count) = (vec![1; $bytes], 0);
        Box::new(move |times| {
            for _ in 0..times {
                count += 1;
                let nonce = nonce(count).into();
                let tag = cipher.encrypt_in_place_detached(&nonce, &HEADER, &mut frame);
                black_box(tag.expect("sealed")[0]);
            }
        })
    }};
}

fn aeads(bytes: usize) -> Vec<Candidate> {
    vec![
        (
            "aws-lc-rs AES-256-GCM",
            like_ring!(aws_lc_rs, AES_256_GCM, bytes, false),
        ),
        (
            "  the same, tag only",
            like_ring!(aws_lc_rs, AES_256_GCM, bytes, true),
        ),
        (
            "ring AES-256-GCM",
            like_ring!(ring, AES_256_GCM, bytes, false),
        ),
        (
            "  the same, tag only",
            like_ring!(ring, AES_256_GCM, bytes, true),
        ),
        (
            "aws-lc-rs ChaCha20-Poly1305",
            like_ring!(aws_lc_rs, CHACHA20_POLY1305, bytes, false),
        ),
        (
            "ring ChaCha20-Poly1305",
            like_ring!(ring, CHACHA20_POLY1305, bytes, false),
        ),
        ("aes-gcm", rust_crypto!(aes_gcm::Aes256Gcm, bytes)),
        (
            "chacha20poly1305",
            rust_crypto!(chacha20poly1305::ChaCha20Poly1305, bytes),
        ),
    ]
}

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

fn noise() -> snow::Builder<'static> {
    snow::Builder::new(PATTERN.parse().expect("a pattern"))
        .psk(0, &[7; 32])
        .and_then(|builder| builder.prologue(b"prologue"))
        .expect("a psk")
}

fn handshakes() -> Vec<Candidate> {
    let key = ClusterKey::generate().expect("random");
    // The key's public name, as in the frames of its cluster.
    let name = u64::from_str_radix(&key.print().to_string(), 16).expect("hex");
    let keys = Keys::new([key]).expect("one");
    let job = ShmJob::create(2, ShmConfig::for_nodes(2)).expect("memory for two");
    let [mut sender, end] = [0, 1].map(|node| Shm::attach(&job, node).expect("the job is new"));
    let mut node = Sealed::new(end, &keys, SealMode::Encrypt).expect("seal");
    let refuse = move |times| {
        for _ in 0..times {
            // As long as a first message, with the proof wrong.
            let mut frame = [0; 140];
            (frame[0], frame[2], frame[4]) = (0x18, 92, 2);
            frame[8..16].copy_from_slice(&name.to_be_bytes());
            (sender.send_one(LinkAddr::Local(1), Frame::whole(&frame))).expect("send");
            sender.flush().expect("flush");
            node.receive(1, &mut each(|_, _| {})).expect("recv");
        }
    };
    let bogus_first = |times| {
        for _ in 0..times {
            let mut responder = noise().build_responder().expect("a responder");
            assert!(responder.read_message(&[9; 52], &mut [0; 64]).is_err());
        }
    };
    let first_and_answer = |times| {
        for _ in 0..times {
            let (mut message, mut payload) = ([0; 64], [0; 64]);
            let mut initiator = noise().build_initiator().expect("an initiator");
            let mut responder = noise().build_responder().expect("a responder");
            let bytes = initiator
                .write_message(&[1; 4], &mut message)
                .expect("first");
            responder
                .read_message(&message[..bytes], &mut payload)
                .expect("read");
            let bytes = responder
                .write_message(&[1; 4], &mut message)
                .expect("second");
            initiator
                .read_message(&message[..bytes], &mut payload)
                .expect("read");
        }
    };
    vec![
        ("refuse a handshake frame without proof", Box::new(refuse)),
        (
            "snow alone: refuse a bogus first message",
            Box::new(bogus_first),
        ),
        (
            "snow alone: a whole handshake, both sides",
            Box::new(first_and_answer),
        ),
    ]
}

fn print(title: &str, mut candidates: Vec<Candidate>) {
    println!("{title}");
    let times = measure(&mut candidates);
    for ((name, _), nanos) in candidates.iter().zip(times) {
        println!("  {name:<44} {nanos:>9.0} ns");
    }
}

fn main() {
    for bytes in [64, 1500, 9000] {
        print(&format!("AEADs, sealing {bytes} bytes"), aeads(bytes));
    }
    print("handshakes", handshakes());
}
