//! The XDP program: takes our frames off the interface and leaves all others to the kernel.
//!
//! Assembled here by hand, instruction by instruction, so that neither a compiler nor an object file is needed. `sys` loads it,
//! the kernel's verifier checks it.
//!
//! ```text
//! a frame shorter than an Ethernet header         -> kernel
//! an EtherType that is not ours                   -> kernel
//! a destination neither ours nor broadcast        -> kernel
//! otherwise                                       -> the socket of the queue it came in by, or the kernel if it has none
//! ```

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
/// Offsets in `struct xdp_md`, what the program is given.
const CONTEXT_DATA: i16 = 0;
const CONTEXT_DATA_END: i16 = 4;
const CONTEXT_QUEUE: i16 = 16;
/// `bpf_redirect_map(map, key, answer without an entry)`.
const REDIRECT_MAP: i32 = 51;

/// The machine's registers.
#[derive(Debug, Clone, Copy)]
enum Reg {
    /// The program's answer.
    R0 = 0,
    /// The context at the start; arguments of calls.
    R1 = 1,
    R2 = 2,
    R3 = 3,
    R4 = 4,
    R5 = 5,
}

/// Targets of jumps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Label {
    Broadcast,
    Ours,
    Kernel,
}

/// Instructions and the jumps whose distance is not known yet.
#[derive(Debug, Default)]
struct Assembler {
    code: Vec<u64>,
    jumps: Vec<(usize, Label)>,
    labels: Vec<(Label, usize)>,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, dst: Reg, src: u8, offset: i16, value: i32) {
        let bytes = [opcode, src << 4 | dst as u8];
        let offset = offset.to_ne_bytes();
        let value = value.to_ne_bytes();
        let mut word = [0; 8];
        word[..2].copy_from_slice(&bytes);
        word[2..4].copy_from_slice(&offset);
        word[4..].copy_from_slice(&value);
        self.code.push(u64::from_ne_bytes(word));
    }

    /// `dst = *(u32 *)(src + at)`
    fn load_u32(&mut self, dst: Reg, src: Reg, at: i16) {
        self.emit(0x61, dst, src as u8, at, 0);
    }

    /// `dst = *(u16 *)(src + at)`
    fn load_u16(&mut self, dst: Reg, src: Reg, at: i16) {
        self.emit(0x69, dst, src as u8, at, 0);
    }

    /// `dst = src`
    fn copy(&mut self, dst: Reg, src: Reg) {
        self.emit(0xbf, dst, src as u8, 0, 0);
    }

    /// `dst = value`
    fn set(&mut self, dst: Reg, value: i32) {
        self.emit(0xb7, dst, 0, 0, value);
    }

    /// `dst += value`
    fn add(&mut self, dst: Reg, value: i32) {
        self.emit(0x07, dst, 0, 0, value);
    }

    /// `dst` = the map behind a descriptor of ours; two words long.
    fn set_map(&mut self, dst: Reg, fd: i32) {
        const PSEUDO_MAP_FD: u8 = 1;
        self.emit(0x18, dst, PSEUDO_MAP_FD, 0, fd);
        self.emit(0, Reg::R0, 0, 0, 0);
    }

    /// `if left > right goto target`, as unsigned 64-bit numbers.
    fn jump_if_above(&mut self, left: Reg, right: Reg, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(0x2d, left, right as u8, 0, 0);
    }

    /// `if left == value goto target`, 32 bits.
    fn jump_if_equal(&mut self, left: Reg, value: u32, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(0x16, left, 0, 0, value.cast_signed());
    }

    /// `if left != value goto target`, 32 bits.
    fn jump_if_other(&mut self, left: Reg, value: u32, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(0x56, left, 0, 0, value.cast_signed());
    }

    fn call(&mut self, helper: i32) {
        self.emit(0x85, Reg::R0, 0, 0, helper);
    }

    fn exit(&mut self) {
        self.emit(0x95, Reg::R0, 0, 0, 0);
    }

    fn label(&mut self, label: Label) {
        self.labels.push((label, self.code.len()));
    }

    /// Fills in the distances.
    fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.labels.iter().find(|(name, _)| *name == label);
            let (_, target) = target.expect("each label is placed");
            // Counted from the instruction after the jump.
            let distance = (*target as i16 - at as i16 - 1).to_ne_bytes();
            let mut word = self.code[at].to_ne_bytes();
            word[2..4].copy_from_slice(&distance);
            self.code[at] = u64::from_ne_bytes(word);
        }
        self.code
    }
}

/// The program for an interface with address `mac`; `xskmap` is the descriptor of the map from queue to socket.
pub(super) fn assemble(mac: [u8; 6], ethertype: u16, xskmap: i32) -> Vec<u64> {
    // As the machine's loads see bytes that lie in network order.
    let ethertype = u32::from(u16::from_ne_bytes(ethertype.to_be_bytes()));
    let [a, b, c, d, e, f] = mac;
    let mac_front = u32::from_ne_bytes([a, b, c, d]);
    let mac_rear = u32::from(u16::from_ne_bytes([e, f]));
    let mut p = Assembler::default();

    // R2: the frame, R3: its end. The verifier wants the comparison before any look at the frame.
    p.load_u32(Reg::R2, Reg::R1, CONTEXT_DATA);
    p.load_u32(Reg::R3, Reg::R1, CONTEXT_DATA_END);
    p.copy(Reg::R4, Reg::R2);
    p.add(Reg::R4, HEADER_BYTES);
    p.jump_if_above(Reg::R4, Reg::R3, Label::Kernel);

    p.load_u16(Reg::R5, Reg::R2, ETHERTYPE_AT);
    p.jump_if_other(Reg::R5, ethertype, Label::Kernel);

    p.load_u32(Reg::R4, Reg::R2, DESTINATION_AT);
    p.load_u16(Reg::R5, Reg::R2, DESTINATION_AT + 4);
    p.jump_if_other(Reg::R4, mac_front, Label::Broadcast);
    p.jump_if_equal(Reg::R5, mac_rear, Label::Ours);

    p.label(Label::Broadcast);
    p.jump_if_other(Reg::R4, 0xffff_ffff, Label::Kernel);
    p.jump_if_other(Reg::R5, 0xffff, Label::Kernel);

    p.label(Label::Ours);
    p.load_u32(Reg::R2, Reg::R1, CONTEXT_QUEUE);
    p.set_map(Reg::R1, xskmap);
    p.set(Reg::R3, PASS.cast_signed());
    p.call(REDIRECT_MAP);
    p.exit();

    p.label(Label::Kernel);
    p.set(Reg::R0, PASS.cast_signed());
    p.exit();
    p.finish()
}

/// The last line of the verifier's log that says something.
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

    /// What the program has to answer.
    fn expected(frame: &[u8]) -> u64 {
        let ours = frame.len() >= 14
            && frame[12..14] == ETHERTYPE.to_be_bytes()
            && (frame[..6] == MAC || frame[..6] == [0xff; 6]);
        u64::from(if ours { REDIRECT } else { PASS })
    }

    /// Frames of every length, right and nearly right, are sorted as the plain description says.
    #[test]
    fn sorts_frames() {
        let code = assemble(MAC, ETHERTYPE, MAP);
        let mut frames = Vec::new();
        for length in 0..80 {
            for destination in [MAC, [0xff; 6], [0; 6], [0x33, 0x33, 0, 0, 0, 1]] {
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
                expected(frame),
                "{frame:x?}"
            );
            taken += usize::from(expected(frame) == u64::from(REDIRECT));
        }
        assert!(taken > 100, "the test tries frames of both kinds");
    }

    /// The line that tells what is wrong is picked out of a log.
    #[test]
    fn log_is_shortened() {
        let log = "0: R1=ctx()\n1: (61) r2 = *(u32 *)(r1 +0)\ninvalid access to packet\nprocessed 2 insns (limit 1000000)\n\n";
        assert_eq!(last_useful_line(log), "invalid access to packet");
        assert_eq!(last_useful_line("\n"), "the verifier said nothing");
    }
}
