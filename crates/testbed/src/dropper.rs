//! The kernel's part of impairment: a BPF program that loses, repeats or changes frames as they leave a switch port.
//!
//! Written for the assembler of `tsumuji-bpf`, for one set of probabilities, and put into an ELF object for `tc` to load. Called by `impair` only.
//!
//! It runs where the switch sends a frame to a host: all frames to that host pass there, for any kind of sender and receiver (AF_PACKET, AF_XDP in
//! both modes, the kernel's own UDP and TCP). The sender never learns of a loss, because its frame has long left it. A broadcast frame is lost for
//! each receiver separately.
//!
//! If the program sent a copy out of the port, the kernel would count it as a redirected frame, and generic XDP takes none of those
//! (`skb_is_redirected` in `netif_receive_generic_xdp`). So a copy enters the switch again, by a port of its own, and is forwarded like any frame; a
//! copy of a broadcast is addressed to the one host, or it would reach all.

use object::write::{Object, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

use tsumuji_bpf::Size::{U8, U16, U32};
use tsumuji_bpf::{Assembler, If, Label, Op, Reg};

use crate::impair::Impairment;
use crate::spec::Mac;

/// The section that `tc` loads.
pub(crate) const SECTION: &str = "tc";
/// The program calls only helpers that are allowed under any licence.
const LICENSE: &[u8] = b"MIT OR Apache-2.0\0";

/// Mark of a copy, so that it is not impaired again. The kernel clears marks between namespaces: no sender can set it.
const COPY_MARK: u32 = 0x7473_756d;
/// The Ethernet header is not changed: a frame with another address would be another fault than a corrupted one.
const ETHERNET_HEADER_BYTES: i32 = 14;

// Fields of `struct __sk_buff`, by offset.
const SKB_LEN: i16 = 0;
const SKB_MARK: i16 = 8;

// Helper functions, by number (`linux/bpf.h`).
const GET_RANDOM: i32 = 7;
const STORE_BYTES: i32 = 9;
const CLONE_REDIRECT: i32 = 13;
const LOAD_BYTES: i32 = 26;

// Verdicts (`linux/pkt_cls.h`).
const PASS: i32 = 0;
const DROP: i32 = 2;

/// Result of helpers and of the program.
const RESULT: Reg = Reg(0);
/// Arguments of helpers.
const A1: Reg = Reg(1);
const A2: Reg = Reg(2);
const A3: Reg = Reg(3);
const A4: Reg = Reg(4);
const A5: Reg = Reg(5);
/// The frame, for helpers.
const CONTEXT: Reg = Reg(6);
/// Offset in the frame of the byte that is changed or read.
const OFFSET: Reg = Reg(7);
const STACK: Reg = Reg(10);
/// Place of that byte on the stack,
const BYTE: i16 = -8;
/// of the address that a copy of a broadcast gets,
const NEW_ADDRESS: i16 = -16;
/// and of its former address.
const OLD_ADDRESS: i16 = -24;
const ADDRESS_BYTES: i32 = 6;
/// Flag of `CLONE_REDIRECT`: into that interface, not out of it.
const INWARDS: i32 = 1;

/// The port by which copies enter the switch, and the address of the host that they are for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies {
    pub(crate) ifindex: u32,
    pub(crate) host: Mac,
}

fn program(impairment: &Impairment, copies: Copies) -> Vec<u64> {
    let mut p = Assembler::default();
    let [kept, repeated, done] = [(); 3].map(|()| p.label());
    p.copy(CONTEXT, A1);
    p.load(U32, RESULT, CONTEXT, SKB_MARK);
    p.jump_if(RESULT, If::Equal, COPY_MARK, done);
    if unless_by_chance(&mut p, impairment.loss, kept) {
        p.set(RESULT, DROP);
        p.exit();
    }
    p.place(kept);
    if unless_by_chance(&mut p, impairment.duplicate, repeated) {
        repeat(&mut p, copies);
    }
    p.place(repeated);
    if unless_by_chance(&mut p, impairment.corrupt, done) {
        change_a_bit(&mut p, done);
    }
    p.place(done);
    p.set(RESULT, PASS);
    p.exit();
    p.finish()
}

/// Jumps to `otherwise`, except with this probability. `false`: it is 0, and the following code is not needed.
fn unless_by_chance(p: &mut Assembler, probability: f64, otherwise: Label) -> bool {
    // A 32-bit random number is below `share` with that probability.
    let share = (probability.clamp(0.0, 1.0) * 2f64.powi(32)).round() as u64;
    let Some(last) = share.checked_sub(1) else {
        return false;
    };
    p.call(GET_RANDOM);
    let last = u32::try_from(last).unwrap_or(u32::MAX);
    p.jump_if(RESULT, If::Above, last, otherwise);
    true
}

/// Copies `bytes` of the frame, from the offset in `A2` on, from or to the stack.
fn frame_bytes(p: &mut Assembler, helper: i32, stack: i16, bytes: i32) {
    p.copy(A1, CONTEXT);
    p.copy(A3, STACK);
    p.op_number(Op::Add, A3, i32::from(stack));
    p.set(A4, bytes);
    p.set(A5, 0); // flags of `STORE_BYTES`
    p.call(helper);
}

/// Sends a copy into the switch again.
fn repeat(p: &mut Assembler, copies: Copies) {
    let [single, whole] = [(); 2].map(|()| p.label());
    p.set(A2, 0);
    frame_bytes(p, LOAD_BYTES, BYTE, 1);
    p.load(U8, OFFSET, STACK, BYTE);
    p.op_number(Op::And, OFFSET, 1); // set in group addresses
    p.jump_if(OFFSET, If::Equal, 0, single);

    let [a, b, c, d, e, f] = copies.host.0;
    p.set(A1, i32::from_ne_bytes([a, b, c, d]));
    p.store(U32, STACK, NEW_ADDRESS, A1);
    p.set(A1, i32::from(u16::from_ne_bytes([e, f])));
    p.store(U16, STACK, NEW_ADDRESS + 4, A1);
    p.set(A2, 0);
    frame_bytes(p, LOAD_BYTES, OLD_ADDRESS, ADDRESS_BYTES);
    p.set(A2, 0);
    frame_bytes(p, STORE_BYTES, NEW_ADDRESS, ADDRESS_BYTES);

    p.place(single);
    p.set(A1, COPY_MARK.cast_signed());
    p.store(U32, CONTEXT, SKB_MARK, A1);
    p.copy(A1, CONTEXT);
    p.set(A2, copies.ifindex.cast_signed());
    p.set(A3, INWARDS);
    p.call(CLONE_REDIRECT);
    p.set(A1, 0);
    p.store(U32, CONTEXT, SKB_MARK, A1);
    p.jump_if(OFFSET, If::Equal, 0, whole);
    p.set(A2, 0);
    frame_bytes(p, STORE_BYTES, OLD_ADDRESS, ADDRESS_BYTES);
    p.place(whole);
}

/// Flips one bit of one byte behind the Ethernet header, both at random; jumps to `done` where there is no such byte.
fn change_a_bit(p: &mut Assembler, done: Label) {
    p.load(U32, OFFSET, CONTEXT, SKB_LEN);
    p.jump_if(
        OFFSET,
        If::AtMost,
        ETHERNET_HEADER_BYTES.cast_unsigned(),
        done,
    );
    p.op_number(Op::Sub, OFFSET, ETHERNET_HEADER_BYTES);
    p.call(GET_RANDOM);
    p.op(Op::Rem, RESULT, OFFSET);
    p.copy(OFFSET, RESULT);
    p.op_number(Op::Add, OFFSET, ETHERNET_HEADER_BYTES);
    p.copy(A2, OFFSET);
    frame_bytes(p, LOAD_BYTES, BYTE, 1);
    // Not 0: the byte could not be read.
    p.jump_if(RESULT, If::Other, 0, done);

    p.call(GET_RANDOM);
    p.op_number(Op::And, RESULT, 7);
    p.set(A1, 1);
    p.op(Op::ShiftLeft, A1, RESULT);
    p.load(U8, A2, STACK, BYTE);
    p.op(Op::Xor, A2, A1);
    p.store(U8, STACK, BYTE, A2);
    p.copy(A2, OFFSET);
    frame_bytes(p, STORE_BYTES, BYTE, 1);
}

/// The program as an object file.
pub(crate) fn object_file(
    impairment: &Impairment,
    copies: Copies,
) -> Result<Vec<u8>, object::write::Error> {
    let code = program(impairment, copies);
    let code: Vec<u8> = code.into_iter().flat_map(u64::to_ne_bytes).collect();
    let mut file = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::default());
    let text = file.add_section(Vec::new(), SECTION.into(), SectionKind::Text);
    file.append_section_data(text, &code, 8);
    let license = file.add_section(Vec::new(), b"license".to_vec(), SectionKind::Data);
    file.append_section_data(license, LICENSE, 1);
    file.add_symbol(Symbol {
        name: b"impair".to_vec(),
        value: 0,
        size: code.len() as u64,
        kind: SymbolKind::Text,
        scope: SymbolScope::Dynamic,
        weak: false,
        section: SymbolSection::Section(text),
        flags: SymbolFlags::None,
    });
    file.write()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(loss: f64, duplicate: f64, corrupt: f64) -> Vec<[u8; 8]> {
        let copies = Copies {
            ifindex: 7,
            host: Mac([2, 0, 0, 0, 0, 1]),
        };
        let impairment = Impairment {
            loss,
            duplicate,
            corrupt,
        };
        let code = program(&impairment, copies);
        code.into_iter().map(u64::to_ne_bytes).collect()
    }

    fn number(instruction: &[u8; 8]) -> i32 {
        i32::from_ne_bytes(instruction[4..].try_into().unwrap())
    }

    fn is_call(instruction: &[u8; 8], helper: i32) -> bool {
        instruction[0] == 0x85 && number(instruction) == helper
    }

    /// The program has no code for impairments with probability 0.
    #[test]
    fn program_has_only_what_is_asked_for() {
        let calls =
            |program: &[[u8; 8]], helper| program.iter().filter(|one| is_call(one, helper)).count();
        let nothing = of(0.0, 0.0, 0.0);
        assert_eq!(calls(&nothing, GET_RANDOM), 0);
        let loss = of(0.5, 0.0, 0.0);
        assert_eq!(
            (calls(&loss, GET_RANDOM), calls(&loss, CLONE_REDIRECT)),
            (1, 0)
        );
        let all = of(0.5, 0.1, 0.1);
        assert_eq!(
            (calls(&all, CLONE_REDIRECT), calls(&all, STORE_BYTES)),
            (1, 3)
        );
    }

    /// Probability 1 and the smallest probability are compared with the right numbers.
    #[test]
    fn shares_become_limits() {
        let limit = |probability| {
            let code = of(probability, 0.0, 0.0);
            let random = code.iter().position(|one| is_call(one, GET_RANDOM));
            random.map(|at| number(&code[at + 1]).cast_unsigned())
        };
        assert_eq!(limit(1.0), Some(u32::MAX));
        assert_eq!(limit(0.5), Some(0x7fff_ffff));
        assert_eq!(limit(2f64.powi(-32)), Some(0));
        assert_eq!(limit(0.0), None);
    }

    /// Every jump goes forward to an instruction of the program, which ends with an exit.
    #[test]
    fn jumps_stay_inside() {
        let program = of(0.1, 0.1, 0.1);
        let is_jump = |one: &[u8; 8]| matches!(one[0], 0x16 | 0x26 | 0x56 | 0xb6);
        assert_eq!(program.iter().filter(|one| is_jump(one)).count(), 8);
        for (place, one) in program.iter().enumerate() {
            let distance = i16::from_ne_bytes([one[2], one[3]]);
            if is_jump(one) {
                assert!(distance > 0 && place + 1 + (distance as usize) < program.len());
            }
        }
        assert_eq!(program.last().map(|one| one[0]), Some(0x95));
    }
}
