//! The kernel's half of impairment: a program that loses, repeats or changes frames as they leave a switch port.
//!
//! Assembled here for one set of probabilities, put into an ELF object for `tc` to load. Called by `impair` only.
//!
//! It runs where the switch sends a frame to a host: all frames to that host pass there, whatever the sender's socket is and
//! however the receiver takes them (AF_PACKET, AF_XDP in both modes, the kernel's own UDP and TCP). The sender never learns of a
//! loss, because its frame has long left it. A broadcast frame is lost for each receiver by itself.
//!
//! A copy that the program sent out of the port would be a redirected frame to the kernel, and generic XDP takes none of those
//! (`skb_is_redirected` in `netif_receive_generic_xdp`). So a copy comes into the switch once more, by a port of its own, and is forwarded like
//! any frame; one of a broadcast is addressed to the host alone, or it would reach all.

use object::write::{Object, Symbol, SymbolSection};
use object::{
    Architecture, BinaryFormat, Endianness, SectionKind, SymbolFlags, SymbolKind, SymbolScope,
};

use crate::impair::Impairment;
use crate::spec::Mac;

/// The section that `tc` looks for.
pub(crate) const SECTION: &str = "tc";
/// All it calls may be called under any licence.
const LICENSE: &[u8] = b"MIT OR Apache-2.0\0";

/// A copy bears this, so that it is not impaired again. The kernel clears marks between namespaces: no sender can set it.
const COPY_MARK: i32 = 0x7473_756d;
/// The Ethernet header stays whole: a frame for somebody else would be another fault than a changed one.
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

// Registers: 0 results, 1 to 5 arguments, 6 to 9 kept across calls, 10 the end of the stack.
const CONTEXT: u8 = 6;
const OFFSET: u8 = 7;
const STACK: u8 = 10;
/// The byte that is changed, or looked at, lies here on the stack,
const BYTE: i16 = -8;
/// the address that a copy of a broadcast gets here,
const NEW_ADDRESS: i16 = -16;
/// and the one that it had here.
const OLD_ADDRESS: i16 = -24;
const ADDRESS_BYTES: i32 = 6;
/// Of `CLONE_REDIRECT`: into that interface, not out of it.
const INWARDS: i32 = 1;

/// Where copies come into the switch, and the address of the host that they are for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Copies {
    pub(crate) ifindex: u32,
    pub(crate) host: Mac,
}

/// One instruction, as the kernel takes it.
type Instruction = [u8; 8];

const fn instruction(opcode: u8, to: u8, from: u8, offset: i16, value: i32) -> Instruction {
    let [o0, o1] = offset.to_ne_bytes();
    let [v0, v1, v2, v3] = value.to_ne_bytes();
    let registers = if cfg!(target_endian = "little") {
        from << 4 | to
    } else {
        to << 4 | from
    };
    [opcode, registers, o0, o1, v0, v1, v2, v3]
}

const fn set(to: u8, value: i32) -> Instruction {
    instruction(0xb7, to, 0, 0, value)
}

const fn copy(to: u8, from: u8) -> Instruction {
    instruction(0xbf, to, from, 0, 0)
}

const fn add(to: u8, value: i32) -> Instruction {
    instruction(0x07, to, 0, 0, value)
}

const fn load_u32(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x61, to, from, offset, 0)
}

const fn store_u32(to: u8, offset: i16, from: u8) -> Instruction {
    instruction(0x63, to, from, offset, 0)
}

const fn load_u8(to: u8, from: u8, offset: i16) -> Instruction {
    instruction(0x71, to, from, offset, 0)
}

const fn store_u8(to: u8, offset: i16, from: u8) -> Instruction {
    instruction(0x73, to, from, offset, 0)
}

const fn store_u16(to: u8, offset: i16, from: u8) -> Instruction {
    instruction(0x6b, to, from, offset, 0)
}

/// Between `bytes` of the frame, from the one that register 2 says on, and the stack.
fn frame_bytes(helper: i32, stack: i16, bytes: i32) -> Vec<Instruction> {
    let mut whole = vec![
        copy(1, CONTEXT),
        copy(3, STACK),
        add(3, i32::from(stack)),
        set(4, bytes),
    ];
    if helper == STORE_BYTES {
        whole.push(set(5, 0));
    }
    whole.push(call(helper));
    whole
}

const fn call(helper: i32) -> Instruction {
    instruction(0x85, 0, 0, 0, helper)
}

const EXIT: Instruction = instruction(0x95, 0, 0, 0, 0);

/// Jumps ahead over `body` if the unsigned 32-bit register is greater than `limit`.
fn unless_greater(register: u8, limit: u32, body: Vec<Instruction>) -> Vec<Instruction> {
    jump_over(0x26, register, limit.cast_signed(), body)
}

fn jump_over(opcode: u8, register: u8, value: i32, body: Vec<Instruction>) -> Vec<Instruction> {
    // Bodies have a few dozen instructions; the whole program is far below what an offset can span.
    let distance = i16::try_from(body.len()).unwrap_or(i16::MAX);
    let mut whole = vec![instruction(opcode, register, 0, distance, value)];
    whole.extend(body);
    whole
}

/// `body` with this probability: nothing for 0, always for 1.
fn with_probability(probability: f64, body: Vec<Instruction>) -> Vec<Instruction> {
    // A 32-bit random number is below `share` in that share of all cases.
    let share = (probability.clamp(0.0, 1.0) * 2f64.powi(32)).round() as u64;
    let Some(last) = share.checked_sub(1) else {
        return Vec::new();
    };
    let mut whole = vec![call(GET_RANDOM)];
    whole.extend(unless_greater(
        0,
        u32::try_from(last).unwrap_or(u32::MAX),
        body,
    ));
    whole
}

/// Sends a copy into the switch once more.
fn repeat(copies: Copies) -> Vec<Instruction> {
    let [a, b, c, d, e, f] = copies.host.0;
    let mut address = vec![
        set(1, i32::from_ne_bytes([a, b, c, d])),
        store_u32(STACK, NEW_ADDRESS, 1),
        set(1, i32::from(u16::from_ne_bytes([e, f]))),
        store_u16(STACK, NEW_ADDRESS + 4, 1),
        set(2, 0),
    ];
    address.extend(frame_bytes(LOAD_BYTES, OLD_ADDRESS, ADDRESS_BYTES));
    address.push(set(2, 0));
    address.extend(frame_bytes(STORE_BYTES, NEW_ADDRESS, ADDRESS_BYTES));
    let mut address_again = vec![set(2, 0)];
    address_again.extend(frame_bytes(STORE_BYTES, OLD_ADDRESS, ADDRESS_BYTES));

    let mut whole = vec![set(2, 0)];
    whole.extend(frame_bytes(LOAD_BYTES, BYTE, 1));
    whole.extend([
        load_u8(OFFSET, STACK, BYTE),
        instruction(0x57, OFFSET, 0, 0, 1), // r7 &= 1: set in the addresses of groups
    ]);
    whole.extend(jump_over(0x15, OFFSET, 0, address));
    whole.extend([
        set(1, COPY_MARK),
        store_u32(CONTEXT, SKB_MARK, 1),
        copy(1, CONTEXT),
        set(2, copies.ifindex.cast_signed()),
        set(3, INWARDS),
        call(CLONE_REDIRECT),
        set(1, 0),
        store_u32(CONTEXT, SKB_MARK, 1),
    ]);
    whole.extend(jump_over(0x15, OFFSET, 0, address_again));
    whole
}

fn program(impairment: &Impairment, copies: Copies) -> Vec<Instruction> {
    let lose = vec![set(0, DROP), EXIT];
    let mut impair = with_probability(impairment.loss, lose);
    impair.extend(with_probability(impairment.duplicate, repeat(copies)));
    impair.extend(with_probability(impairment.corrupt, change_a_bit()));

    let mut whole = vec![copy(CONTEXT, 1), load_u32(0, CONTEXT, SKB_MARK)];
    // Equal to the mark of a copy: jump over all.
    whole.extend(jump_over(0x15, 0, COPY_MARK, impair));
    whole.extend([set(0, PASS), EXIT]);
    whole
}

/// Flips one bit of one byte behind the Ethernet header, both at random.
fn change_a_bit() -> Vec<Instruction> {
    let mut flip = vec![
        call(GET_RANDOM),
        instruction(0x54, 0, 0, 0, 7), // w0 &= 7
        set(1, 1),
        instruction(0x6c, 1, 0, 0, 0), // w1 <<= w0
        load_u8(2, STACK, BYTE),
        instruction(0xaf, 2, 1, 0, 0), // r2 ^= r1
        store_u8(STACK, BYTE, 2),
        copy(2, OFFSET),
    ];
    flip.extend(frame_bytes(STORE_BYTES, BYTE, 1));
    let mut choose = vec![
        copy(8, OFFSET),
        instruction(0x14, 8, 0, 0, ETHERNET_HEADER_BYTES), // w8 -= header
        call(GET_RANDOM),
        instruction(0x9c, 0, 8, 0, 0), // w0 %= w8
        copy(OFFSET, 0),
        add(OFFSET, ETHERNET_HEADER_BYTES),
        copy(2, OFFSET),
    ];
    choose.extend(frame_bytes(LOAD_BYTES, BYTE, 1));
    // Not 0: the byte could not be read.
    choose.extend(jump_over(0x55, 0, 0, flip));
    let mut whole = vec![load_u32(OFFSET, CONTEXT, SKB_LEN)];
    // At most a header: nothing to change.
    whole.extend(jump_over(0xb6, OFFSET, ETHERNET_HEADER_BYTES, choose));
    whole
}

/// The program as an object file.
pub(crate) fn object_file(
    impairment: &Impairment,
    copies: Copies,
) -> Result<Vec<u8>, object::write::Error> {
    let code: Vec<u8> = program(impairment, copies).concat();
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

    fn of(loss: f64, duplicate: f64, corrupt: f64) -> Vec<Instruction> {
        let copies = Copies {
            ifindex: 7,
            host: Mac([2, 0, 0, 0, 0, 1]),
        };
        let impairment = Impairment {
            loss,
            duplicate,
            corrupt,
        };
        program(&impairment, copies)
    }

    /// What is not asked for is not in the program at all.
    #[test]
    fn program_has_only_what_is_asked_for() {
        let calls = |program: &[Instruction], helper| {
            program.iter().filter(|one| **one == call(helper)).count()
        };
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

    /// Certainty and the smallest share are compared with the right numbers.
    #[test]
    fn shares_become_limits() {
        let limit = |probability| {
            let code = with_probability(probability, vec![EXIT]);
            u32::from_ne_bytes(code[1][4..8].try_into().unwrap())
        };
        assert_eq!(limit(1.0), u32::MAX);
        assert_eq!(limit(0.5), 0x7fff_ffff);
        assert_eq!(limit(2f64.powi(-32)), 0);
        assert!(with_probability(0.0, vec![EXIT]).is_empty());
    }

    /// Every jump lands inside the program, and every way through it ends with an exit.
    #[test]
    fn jumps_stay_inside() {
        let program = of(0.1, 0.1, 0.1);
        for (place, one) in program.iter().enumerate() {
            let is_jump = matches!(one[0], 0x15 | 0x26 | 0x55 | 0xb6);
            let distance = i16::from_ne_bytes([one[2], one[3]]);
            if is_jump {
                assert!(distance > 0 && place + 1 + (distance as usize) < program.len());
            }
        }
        assert_eq!(program.last(), Some(&EXIT));
    }
}
