//! Two nodes with a session, and an attacker who changes, cuts, repeats, reflects and invents frames between true ones: each true
//! frame is delivered once at most, to whom it was sent; nothing else is; every frame is counted.
//!
//! The input's first byte says the mode, then follow steps of two bytes and what they take.

use std::collections::HashSet;
use std::time::Duration;

use crate::mem::{Net, assert_all_counted, key, keys, meet, receive, send, send_to};
use tsumuji_link::LinkAddr;
use tsumuji_seal::SealMode;

/// Steps of one input.
const STEPS_MAX: usize = 200;

/// The target.
pub fn sealed(input: &[u8]) {
    let [mode, rest @ ..] = input else {
        return;
    };
    let mode = [SealMode::Auth, SealMode::Encrypt][usize::from(mode & 1)];
    let net = Net::new(3);
    let (one, other) = (key(), key());
    let mut nodes: Vec<_> = (0..2).map(|me| net.node(me, &keys([&one]), mode)).collect();
    meet(&net, &mut nodes);
    let (mut rest, mut number) = (rest, 0_u32);
    // What may still be delivered: to whom, which.
    let mut awaited = HashSet::new();
    for _ in 0..STEPS_MAX {
        let [step, argument, more @ ..] = rest else {
            break;
        };
        rest = more;
        let tape = net.tape();
        let picked = &tape[usize::from(*argument) * tape.len() / 256];
        let to = picked.to.unwrap_or(1 - picked.from % 2);
        number += 1;
        match step % 8 {
            0 => {
                let from = usize::from(*argument) % 2;
                send_to(&mut nodes[from], 1 - from as u16, &number.to_le_bytes());
                awaited.insert((1 - from, number));
            }
            1 => {
                let from = usize::from(*argument) % 2;
                send(&mut nodes[from], LinkAddr::Broadcast, &number.to_le_bytes());
                awaited.insert((1 - from, number));
            }
            2 => net.inject(picked.from, to, &picked.bytes),
            3 => {
                // The next bytes of the input over the frame's first, or its last.
                let mut bytes = picked.bytes.clone();
                let patch = rest.len().min(usize::from(step >> 4)).min(bytes.len());
                let at = if step & 8 == 0 {
                    0
                } else {
                    bytes.len() - patch
                };
                bytes[at..at + patch].copy_from_slice(&rest[..patch]);
                rest = &rest[patch..];
                net.inject(picked.from, to, &bytes);
            }
            4 => {
                let cut = usize::from(step >> 3) * picked.bytes.len() / 32;
                net.inject(picked.from, to, &picked.bytes[..cut]);
            }
            5 => {
                let bytes = rest.len().min(usize::from(*argument));
                net.inject(1, 0, &rest[..bytes]);
                rest = &rest[bytes..];
            }
            6 => net.inject(u16::from(step >> 3) % 3, picked.from, &picked.bytes),
            _ => {
                net.pass(Duration::from_millis(u64::from(*argument) * 20));
                let accepted = match step >> 6 {
                    0 => keys([&one]),
                    1 => keys([&one, &other]),
                    _ => keys([&other, &one]),
                };
                let at = usize::from(step >> 3) % 2;
                nodes[at].reload(&accepted).expect("reload");
            }
        }
        for (me, node) in nodes.iter_mut().enumerate() {
            for (from, frame) in receive(node) {
                let number = u32::from_le_bytes(frame[..].try_into().expect("four bytes"));
                assert!(
                    awaited.remove(&(me, number)),
                    "{number} was not sent, or came twice"
                );
                assert_eq!(usize::from(from), 1 - me);
            }
            assert_all_counted(node);
        }
    }
}
