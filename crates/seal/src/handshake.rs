//! Handshake frames and the Noise handshake they carry.
//!
//! Four steps: *ask*, *challenge*, *first*, *second*. The last two are the messages of `NNpsk0`; through the first two the answering node does no
//! more than hash until it knows that the asking node receives at its address now. Called by `peers`, which keeps the state.
//!
//! Invariant: only frames written by a holder of the cluster key pass `HandshakeFrame::proves`; so a sender without a key can make us do no more than
//! hash about a hundred bytes a frame.

use aws_lc_rs::hmac;
use snow::HandshakeState;
use zeroize::Zeroizing;

use crate::envelope::HANDSHAKE;
use crate::key::{DerivedKey, KEY_BYTES, KeyPrint};

pub(crate) const HEADER_BYTES: usize = 16;
const NONCE_BYTES: usize = 8;
pub(crate) const COOKIE_BYTES: usize = 32;
pub(crate) const PROOF_BYTES: usize = 32;
/// Bytes of an ephemeral public key, the sender's key id and a tag.
const NOISE_BYTES: usize = 32 + 4 + 16;
/// The largest handshake frame, *first*.
pub(crate) const FRAME_BYTES_MAX: usize =
    HEADER_BYTES + NONCE_BYTES + COOKIE_BYTES + NOISE_BYTES + PROOF_BYTES;

const PATTERN: &str = "Noise_NNpsk0_25519_ChaChaPoly_BLAKE2s";

/// Flag: frames are readable; without it they are encrypted.
const FLAG_READABLE: u8 = 1;

mod step {
    pub(super) const ASK: u8 = 0;
    pub(super) const CHALLENGE: u8 = 1;
    pub(super) const FIRST: u8 = 2;
    pub(super) const SECOND: u8 = 3;
}

pub(crate) type Cookie = [u8; COOKIE_BYTES];
pub(crate) type NoiseMessage = [u8; NOISE_BYTES];

/// Step and content of a handshake frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Asks for a session. As long as its answer, so that it cannot be used for amplification.
    Ask { nonce: u64 },
    /// Asks the sender to prove that it receives at its address.
    Challenge { nonce: u64, cookie: Cookie },
    /// Returns the cookie as proof; carries the first message of the Noise handshake.
    First {
        nonce: u64,
        cookie: Cookie,
        noise: NoiseMessage,
    },
    /// Carries the second message.
    Second { nonce: u64, noise: NoiseMessage },
}

/// A well-formed frame; its proof is not checked yet.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HandshakeFrame<'a> {
    pub(crate) readable: bool,
    pub(crate) print: KeyPrint,
    pub(crate) step: Step,
    proven: &'a [u8],
    proof: &'a [u8],
}

/// Takes the first `N` bytes off.
fn take<const N: usize>(bytes: &mut &[u8]) -> Option<[u8; N]> {
    let (head, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(*head)
}

impl<'a> HandshakeFrame<'a> {
    /// Parses any bytes that begin as a handshake frame. Bytes behind the proof are padding of the link.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let (header, _) = bytes.split_first_chunk::<HEADER_BYTES>()?;
        let [kind, flags, low, high, number, 0, 0, 0, print @ ..] = *header else {
            return None;
        };
        let end = HEADER_BYTES + usize::from(u16::from_le_bytes([low, high]));
        let proven = bytes.get(..end)?;
        let proof = bytes.get(end..end + PROOF_BYTES)?;
        if kind != HANDSHAKE || flags & !FLAG_READABLE != 0 {
            return None;
        }
        let mut body = &proven[HEADER_BYTES..];
        let nonce = u64::from_le_bytes(take(&mut body)?);
        let step = match number {
            step::ASK => {
                take::<COOKIE_BYTES>(&mut body)?;
                Step::Ask { nonce }
            }
            step::CHALLENGE => Step::Challenge {
                nonce,
                cookie: take(&mut body)?,
            },
            step::FIRST => Step::First {
                nonce,
                cookie: take(&mut body)?,
                noise: take(&mut body)?,
            },
            step::SECOND => Step::Second {
                nonce,
                noise: take(&mut body)?,
            },
            _ => return None,
        };
        body.is_empty().then_some(Self {
            readable: flags & FLAG_READABLE != 0,
            print: KeyPrint(print),
            step,
            proven,
            proof,
        })
    }

    /// Whether a holder of this key wrote it.
    pub(crate) fn proves(&self, key: &DerivedKey) -> bool {
        self.print == key.print && hmac::verify(&key.proof, self.proven, self.proof).is_ok()
    }
}

impl Step {
    /// The frame, with its proof.
    pub(crate) fn frame(&self, readable: bool, key: &DerivedKey) -> Vec<u8> {
        let mut frame = Vec::with_capacity(FRAME_BYTES_MAX);
        frame.extend([0; HEADER_BYTES]);
        let (number, nonce) = match self {
            Self::Ask { nonce } => (step::ASK, nonce),
            Self::Challenge { nonce, .. } => (step::CHALLENGE, nonce),
            Self::First { nonce, .. } => (step::FIRST, nonce),
            Self::Second { nonce, .. } => (step::SECOND, nonce),
        };
        frame.extend(nonce.to_le_bytes());
        match self {
            Self::Ask { .. } => frame.extend([0; COOKIE_BYTES]),
            Self::Challenge { cookie, .. } => frame.extend(cookie),
            Self::First { cookie, noise, .. } => {
                frame.extend(cookie);
                frame.extend(noise);
            }
            Self::Second { noise, .. } => frame.extend(noise),
        }
        let body_bytes = (frame.len() - HEADER_BYTES) as u16;
        frame[0] = HANDSHAKE;
        frame[1] = if readable { FLAG_READABLE } else { 0 };
        frame[2..4].copy_from_slice(&body_bytes.to_le_bytes());
        frame[4] = number;
        frame[8..HEADER_BYTES].copy_from_slice(&key.print.0);
        let proof = hmac::sign(&key.proof, &frame);
        frame.extend(proof.as_ref());
        frame
    }
}

/// Result of a handshake on each side: keys by direction.
pub(crate) struct Agreed {
    /// Key id of the session at the peer.
    pub(crate) peer_id: u32,
    pub(crate) seal: Zeroizing<[u8; KEY_BYTES]>,
    pub(crate) open: Zeroizing<[u8; KEY_BYTES]>,
}

/// Data that both sides must agree on: version, mode, and the first two steps.
fn prologue(readable: bool, nonce: u64, cookie: &Cookie) -> Vec<u8> {
    let mode: &[u8] = if readable { b"auth" } else { b"encrypt" };
    let exchange = [&nonce.to_le_bytes()[..], &cookie[..]].concat();
    [&b"tsumuji seal 1 "[..], mode, &exchange].concat()
}

fn noise<'a>(key: &'a DerivedKey, prologue: &'a [u8]) -> Result<snow::Builder<'a>, snow::Error> {
    snow::Builder::new(PATTERN.parse()?)
        .psk(0, &key.psk)?
        .prologue(prologue)
}

fn agreed(mut state: HandshakeState, peer_id: [u8; 4], initiator: bool) -> Agreed {
    let (to_responder, to_initiator) = state.dangerously_get_raw_split();
    let (to_responder, to_initiator) = (Zeroizing::new(to_responder), Zeroizing::new(to_initiator));
    let (seal, open) = if initiator {
        (to_responder, to_initiator)
    } else {
        (to_initiator, to_responder)
    };
    Agreed {
        peer_id: u32::from_le_bytes(peer_id),
        seal,
        open,
    }
}

/// Begins: makes the first Noise message, which tells the peer our key id. Costs one multiplication on the curve.
pub(crate) fn begin(
    key: &DerivedKey,
    readable: bool,
    nonce: u64,
    cookie: &Cookie,
    our_id: u32,
) -> Result<(Box<HandshakeState>, NoiseMessage), snow::Error> {
    let prologue = prologue(readable, nonce, cookie);
    let mut state = noise(key, &prologue)?.build_initiator()?;
    let mut message = [0; NOISE_BYTES];
    state.write_message(&our_id.to_le_bytes(), &mut message)?;
    Ok((Box::new(state), message))
}

/// Answers the first message with the second. Costs two multiplications, if the first was genuine.
pub(crate) fn answer(
    key: &DerivedKey,
    readable: bool,
    nonce: u64,
    cookie: &Cookie,
    first: &NoiseMessage,
    our_id: u32,
) -> Result<(Agreed, NoiseMessage), snow::Error> {
    let prologue = prologue(readable, nonce, cookie);
    let mut state = noise(key, &prologue)?.build_responder()?;
    let mut peer_id = [0; 4];
    state.read_message(first, &mut peer_id)?;
    let mut message = [0; NOISE_BYTES];
    state.write_message(&our_id.to_le_bytes(), &mut message)?;
    Ok((agreed(state, peer_id, false), message))
}

/// Reads the second message. Costs one multiplication.
pub(crate) fn finish(
    mut state: Box<HandshakeState>,
    second: &NoiseMessage,
) -> Result<Agreed, snow::Error> {
    let mut peer_id = [0; 4];
    state.read_message(second, &mut peer_id)?;
    Ok(agreed(*state, peer_id, true))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::{ClusterKey, Keys};

    fn key() -> DerivedKey {
        let key = ClusterKey::generate().expect("random");
        Keys::new([key]).expect("one").derive().remove(0)
    }

    const COOKIE: Cookie = [3; COOKIE_BYTES];

    fn steps() -> [Step; 4] {
        let (nonce, noise) = (77, [5; NOISE_BYTES]);
        [
            Step::Ask { nonce },
            Step::Challenge {
                nonce,
                cookie: COOKIE,
            },
            Step::First {
                nonce,
                cookie: COOKIE,
                noise,
            },
            Step::Second { nonce, noise },
        ]
    }

    /// Frames are read as they were written, padded or not, and are proven by their key only; answers are never longer than their questions.
    #[test]
    fn frames_read_back() {
        let (key, other) = (key(), key());
        let mut lengths = Vec::new();
        for step in steps() {
            for readable in [false, true] {
                let mut bytes = step.frame(readable, &key);
                assert!(bytes.len() <= FRAME_BYTES_MAX);
                lengths.push(bytes.len());
                bytes.extend([0; 9]);
                let frame = HandshakeFrame::parse(&bytes).expect("legal");
                assert_eq!((frame.step, frame.readable), (step, readable));
                assert!(frame.proves(&key) && !frame.proves(&other));
            }
        }
        assert!(lengths[0] >= lengths[2] && lengths[4] >= lengths[6]);
    }

    /// A frame cut anywhere is not parsed; with any bit changed it is not parsed or not proven.
    #[test]
    fn damaged_frames_prove_nothing() {
        let key = key();
        for step in steps() {
            let bytes = step.frame(false, &key);
            for length in 0..bytes.len() {
                assert!(HandshakeFrame::parse(&bytes[..length]).is_none());
            }
            for bit in 0..bytes.len() * 8 {
                let mut changed = bytes.clone();
                changed[bit / 8] ^= 1 << (bit % 8);
                let proven =
                    HandshakeFrame::parse(&changed).is_some_and(|frame| frame.proves(&key));
                assert!(!proven, "bit {bit} of {step:?}");
            }
        }
    }

    /// Both sides get the same keys, crossed, and each other's id.
    #[test]
    fn both_sides_agree() {
        let key = key();
        let (state, first) = begin(&key, false, 1, &COOKIE, 10).expect("begin");
        let (responder, second) = answer(&key, false, 1, &COOKIE, &first, 20).expect("answer");
        let initiator = finish(state, &second).expect("finish");
        assert_eq!((initiator.peer_id, responder.peer_id), (20, 10));
        assert_eq!(*initiator.seal, *responder.open);
        assert_eq!(*initiator.open, *responder.seal);
        assert_ne!(*initiator.seal, *initiator.open);
    }

    /// With another key, mode, nonce or cookie, or a damaged message, the sides do not agree.
    #[test]
    fn differences_prevent_agreement() {
        let (key, other) = (key(), key());
        let (_, first) = begin(&key, false, 1, &COOKIE, 10).expect("begin");
        let mut damaged = first;
        damaged[40] ^= 1;
        assert!(answer(&other, false, 1, &COOKIE, &first, 20).is_err());
        assert!(answer(&key, true, 1, &COOKIE, &first, 20).is_err());
        assert!(answer(&key, false, 2, &COOKIE, &first, 20).is_err());
        assert!(answer(&key, false, 1, &[4; COOKIE_BYTES], &first, 20).is_err());
        assert!(answer(&key, false, 1, &COOKIE, &damaged, 20).is_err());
        let (state, first) = begin(&key, false, 1, &COOKIE, 10).expect("begin");
        let (_, mut second) = answer(&key, false, 1, &COOKIE, &first, 20).expect("answer");
        second[33] ^= 1;
        assert!(finish(state, &second).is_err());
    }
}
