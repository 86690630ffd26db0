//! The XDP program: takes our frames off the interface and leaves all others to the kernel.
//!
//! Written for the assembler of `tsumuji-bpf`, so that neither a compiler nor an object file is needed. `sys` loads it, the kernel's verifier checks
//! it.
//!
//! ```text
//! a frame shorter than an Ethernet header         -> kernel
//! an EtherType that is not ours                   -> kernel
//! a destination neither ours nor broadcast        -> kernel
//! otherwise                                       -> the socket of the queue it came in by, or the kernel if it has none
//! ```

use tsumuji_bpf::Size::{U16, U32};
use tsumuji_bpf::{Assembler, If, Op, Reg};

use crate::ether::{MacAddr, Stations};

/// `XDP_PASS`: on to the kernel's own stack.
pub(super) const PASS: u32 = 2;
/// `XDP_REDIRECT`: to a socket.
#[cfg(test)]
pub(super) const REDIRECT: u32 = 4;

/// An Ethernet header.
const HEADER_BYTES: i32 = 14;
/// Offsets in it.
const DESTINATION_AT: i16 = 0;
const ETHERTYPE_AT: i16 = 12;
/// Offsets in `struct xdp_md`, the program's argument.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;
/// `bpf_redirect_map(map, key, result without an entry)`.
const REDIRECT_MAP: i32 = 51;

/// The program for an interface with these stations; `xskmap` is the descriptor of the map from queue to socket.
pub(super) fn assemble(stations: Stations, ethertype: u16, xskmap: i32) -> Vec<u64> {
    // As a load of the machine reads two bytes in network order.
    let ethertype = u32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    // All stations of an interface differ in the first byte of their addresses.
    let [_, _, c, d, e, f] = stations.base.0;
    let rear = u32::from_ne_bytes([c, d, e, f]);
    // R0: the result; R1: the context at the start, then the first argument.
    let [r0, r1, r2, r3, r4, r5] = [0, 1, 2, 3, 4, 5].map(Reg);
    let mut p = Assembler::default();
    let [broadcast, ours, kernel] = [(); 3].map(|()| p.label());

    // R2: the frame, R3: its end. The verifier needs this comparison before any load from the frame.
    p.load(U32, r2, r1, CONTEXT_DATA);
    p.load(U32, r3, r1, CONTEXT_DATA_END);
    p.copy(r4, r2);
    p.op_number(Op::Add, r4, HEADER_BYTES);
    p.jump_if_above(r4, r3, kernel);

    p.load(U16, r5, r2, ETHERTYPE_AT);
    p.jump_if(r5, If::Other, ethertype, kernel);

    p.load(U16, r4, r2, DESTINATION_AT);
    p.load(U32, r5, r2, DESTINATION_AT + 2);
    p.jump_if(r5, If::Other, rear, broadcast);
    for MacAddr([a, b, ..]) in stations.addresses() {
        p.jump_if(r4, If::Equal, u16::from_ne_bytes([a, b]).into(), ours);
    }

    p.place(broadcast);
    p.jump_if(r4, If::Other, 0xffff, kernel);
    p.jump_if(r5, If::Other, 0xffff_ffff, kernel);

    p.place(ours);
    p.load(U32, r2, r1, CONTEXT_QUEUE);
    p.set_map(r1, xskmap);
    p.set(r3, PASS.cast_signed());
    p.call(REDIRECT_MAP);
    p.exit();

    p.place(kernel);
    p.set(r0, PASS.cast_signed());
    p.exit();
    p.finish()
}

/// The last meaningful line of the verifier's log.
pub(super) fn last_useful_line(log: &str) -> &str {
    log.lines()
        .map(str::trim)
        .rfind(|line| {
            !line.is_empty()
                && !line.starts_with("processed ")
                && !line.starts_with("verification time")
        })
        .unwrap_or("the verifier said nothing")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [0x02, 0x11, 0x22, 0x33, 0x44, 0x55];
    const ETHERTYPE: u16 = 0x88B5;
    const MAP: i32 = 77;

    /// Runs the program on a frame; a load outside the frame or an unknown instruction panics.
    fn run(code: &[u64], frame: &[u8], queue: u64) -> u64 {
        const DATA: u64 = 0x1_0000;
        const CONTEXT: u64 = 0x9_0000;
        let data_end = DATA + frame.len() as u64;
        let mut regs = [0u64; 11];
        regs[1] = CONTEXT;
        let load = |at: u64, bytes: usize| -> u64 {
            match at {
                CONTEXT if bytes == 4 => DATA,
                at if at == CONTEXT + 4 && bytes == 4 => data_end,
                at if at == CONTEXT + 16 && bytes == 4 => queue,
                _ => {
                    let from = (at - DATA) as usize;
                    let mut word = [0; 8];
                    word[..bytes].copy_from_slice(&frame[from..from + bytes]);
                    u64::from_ne_bytes(word)
                }
            }
        };
        let mut at = 0;
        for _ in 0..100 {
            let word = code[at].to_ne_bytes();
            let (dst, src) = ((word[1] & 15) as usize, (word[1] >> 4) as usize);
            let offset = i16::from_ne_bytes([word[2], word[3]]);
            let value = i32::from_ne_bytes([word[4], word[5], word[6], word[7]]);
            let target = (at as isize + 1 + offset as isize) as usize;
            at += 1;
            match word[0] {
                0x61 => regs[dst] = load(regs[src].wrapping_add_signed(offset.into()), 4),
                0x69 => regs[dst] = load(regs[src].wrapping_add_signed(offset.into()), 2),
                0xbf => regs[dst] = regs[src],
                0xb7 => regs[dst] = value as u64,
                0x07 => regs[dst] = regs[dst].wrapping_add_signed(value.into()),
                0x18 => {
                    assert_eq!((src, code[at]), (1, 0), "a map's descriptor");
                    regs[dst] = value as u64;
                    at += 1;
                }
                0x2d if regs[dst] > regs[src] => at = target,
                0x16 if regs[dst] as u32 == value as u32 => at = target,
                0x56 if regs[dst] as u32 != value as u32 => at = target,
                0x2d | 0x16 | 0x56 => {}
                0x85 => {
                    assert_eq!(value, REDIRECT_MAP);
                    assert_eq!((regs[1], regs[2]), (MAP as u64, queue));
                    assert_eq!(regs[3], u64::from(PASS), "without a socket: the kernel");
                    regs[0] = u64::from(REDIRECT);
                }
                0x95 => return regs[0],
                other => panic!("unknown instruction {other:#x}"),
            }
        }
        panic!("the program does not end");
    }

    /// The result that the program should return.
    fn expected(frame: &[u8], slots: u8) -> u64 {
        let is_station = |mac: &[u8]| {
            let addresses = (0..slots).filter_map(|slot| MacAddr(MAC).of_slot(slot));
            mac == [0xff; 6] || addresses.into_iter().any(|station| station.0 == mac)
        };
        let ours = frame.len() >= 14
            && frame[12..14] == ETHERTYPE.to_be_bytes()
            && is_station(&frame[..6]);
        u64::from(if ours { REDIRECT } else { PASS })
    }

    /// Frames of every length, right and nearly right, are classified as the head of this module describes.
    #[test]
    fn sorts_frames() {
        for slots in [1, 3, MacAddr::SLOTS] {
            sorts_frames_of(slots);
        }
    }

    fn sorts_frames_of(slots: u8) {
        let base = MacAddr(MAC);
        let code = assemble(Stations { base, slots }, ETHERTYPE, MAP);
        let last = base.of_slot(slots - 1).expect("a slot").0;
        let mut frames = Vec::new();
        for length in 0..80 {
            for destination in [MAC, last, [0xff; 6], [0; 6], [0x33, 0x33, 0, 0, 0, 1]] {
                let mut frame = vec![0u8; length.max(14)];
                frame[..6].copy_from_slice(&destination);
                frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 9]);
                frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
                frames.push(frame[..length].to_vec());
                // One bit wrong in each place of the header.
                for bit in 0..14 * 8 {
                    let mut wrong = frame.clone();
                    wrong[bit / 8] ^= 1 << (bit % 8);
                    frames.push(wrong[..length].to_vec());
                }
            }
        }
        let mut taken = 0;
        for (queue, frame) in frames.iter().enumerate() {
            assert_eq!(
                run(&code, frame, queue as u64 % 5),
                expected(frame, slots),
                "{slots}: {frame:x?}"
            );
            taken += usize::from(expected(frame, slots) == u64::from(REDIRECT));
        }
        assert!(taken > 100, "the test tries frames of both kinds");
    }

    /// The line with the error is picked out of a log.
    #[test]
    fn log_is_shortened() {
        let log = "0: R1=ctx()\n1: (61) r2 = *(u32 *)(r1 +0)\ninvalid access to packet\nprocessed 2 insns (limit 1000000)\n\n";
        assert_eq!(last_useful_line(log), "invalid access to packet");
        assert_eq!(last_useful_line("\n"), "the verifier said nothing");
    }
}
