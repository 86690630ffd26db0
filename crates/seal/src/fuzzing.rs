//! For fuzz targets: the code behind the proof of a handshake frame must withstand any bytes, too.

use aws_lc_rs::hmac;

use crate::handshake::{HEADER_BYTES, PROOF_BYTES};
use crate::key::Keys;

/// Makes a handshake frame of any bytes that are long enough: writes name and proof of the first key into it.
pub fn prove(keys: &Keys, frame: &mut [u8]) {
    let Some(end) = frame.len().checked_sub(PROOF_BYTES) else {
        return;
    };
    if let (Some(key), true) = (keys.derive().first(), end >= HEADER_BYTES) {
        let (proven, proof) = frame.split_at_mut(end);
        proven[8..HEADER_BYTES].copy_from_slice(&key.print.0);
        proof.copy_from_slice(hmac::sign(&key.proof, proven).as_ref());
    }
}
