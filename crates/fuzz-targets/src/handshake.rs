//! Any handshake frames, with a proof of the key or without, from any address and at any time: a node that nobody completes a
//! handshake with has no session, delivers nothing, counts every frame, and soon forgets all.
//!
//! The input is a list of steps: what, from where, how many bytes follow as the frame.

use std::time::Duration;

use crate::mem::{Net, assert_all_counted, key, keys, receive, settle};
use tsumuji_link::LinkAddr;
use tsumuji_seal::{SealMode, fuzzing};

const NODES: u16 = 4;
/// Beside the body: header and proof.
const FRAME_BYTES_LEAST: usize = 16 + 32;

/// The target.
pub fn handshake(input: &[u8]) {
    let net = Net::new(usize::from(NODES));
    let keys = keys([&key()]);
    let mut node = [net.node(0, &keys, SealMode::Encrypt)];
    let mut rest = input;
    while let [what, from, bytes, more @ ..] = rest {
        let (bytes, after) = more.split_at(usize::from(*bytes).min(more.len()));
        rest = after;
        let mut frame = bytes.to_vec();
        if what & 1 != 0 && frame.len() >= FRAME_BYTES_LEAST {
            let body_bytes = (frame.len() - FRAME_BYTES_LEAST) as u16;
            frame[0] = 0x18;
            frame[1] &= 1;
            frame[2..4].copy_from_slice(&body_bytes.to_le_bytes());
            frame[4] &= 3;
            frame[5..8].fill(0);
            fuzzing::prove(&keys, &mut frame);
        }
        if what & 2 != 0 {
            // An answer to the last handshake frame that the node sent.
            if let Some(last) = net.tape().last() {
                let common = last.bytes.len().min(frame.len());
                let keep = 16..common.max(16);
                if common > 16 {
                    frame[keep.clone()].copy_from_slice(&last.bytes[keep]);
                    fuzzing::prove(&keys, &mut frame);
                }
            }
        }
        if what & 4 != 0 {
            let _ = node[0].connect(LinkAddr::Local(1 + u16::from(*from) % (NODES - 1)));
        }
        net.inject(1 + u16::from(*from) % (NODES - 1), 0, &frame);
        assert_eq!(receive(&mut node[0]), []);
        assert_all_counted(&node[0]);
        net.pass(Duration::from_millis(u64::from(what >> 3) * 40));
    }
    assert_eq!(node[0].sessions(), 0);
    settle(&net, &mut node);
}
