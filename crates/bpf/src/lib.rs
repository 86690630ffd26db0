//! An assembler for programs of the kernel's BPF machine (RFC 9669): instructions, and jumps to labels.
//!
//! Called for the XDP program of `link` and the impairment of `testbed`, which are written with it, so that neither needs a compiler. Checks nothing:
//! the kernel's verifier does that when a program is loaded.

/// A register. 0 holds results, 1 to 5 arguments, 6 to 9 are preserved across calls, 10 is the end of the stack.
#[derive(Debug, Clone, Copy)]
pub struct Reg(pub u8);

/// Bytes that a load or a store moves. The values here and below are the machine's encoding.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Size {
    U32 = 0x00,
    U16 = 0x08,
    U8 = 0x10,
}

/// Unsigned 64-bit arithmetic.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum Op {
    Add = 0x00,
    Sub = 0x10,
    And = 0x50,
    ShiftLeft = 0x60,
    Rem = 0x90,
    Xor = 0xa0,
    Set = 0xb0,
}

/// Unsigned comparison.
#[derive(Debug, Clone, Copy)]
#[allow(missing_docs)]
pub enum If {
    Equal = 0x10,
    Above = 0x20,
    Other = 0x50,
    AtMost = 0xb0,
}

/// Target of jumps.
#[derive(Debug, Clone, Copy)]
pub struct Label(usize);

/// A program under construction.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<u64>,
    /// Index of each jump, and its label.
    jumps: Vec<(usize, Label)>,
    /// Index of the instruction at each label.
    places: Vec<Option<usize>>,
}

impl Assembler {
    fn emit(&mut self, opcode: u8, to: Reg, from: Reg, offset: i16, number: i32) {
        let registers = if cfg!(target_endian = "little") {
            from.0 << 4 | to.0
        } else {
            to.0 << 4 | from.0
        };
        let [o0, o1] = offset.to_ne_bytes();
        let [n0, n1, n2, n3] = number.to_ne_bytes();
        let word = [opcode, registers, o0, o1, n0, n1, n2, n3];
        self.code.push(u64::from_ne_bytes(word));
    }

    /// `to = *(from + offset)`
    pub fn load(&mut self, size: Size, to: Reg, from: Reg, offset: i16) {
        self.emit(0x61 | size as u8, to, from, offset, 0);
    }

    /// `*(to + offset) = from`
    pub fn store(&mut self, size: Size, to: Reg, offset: i16, from: Reg) {
        self.emit(0x63 | size as u8, to, from, offset, 0);
    }

    /// `to = to op from`
    pub fn op(&mut self, op: Op, to: Reg, from: Reg) {
        self.emit(0x0f | op as u8, to, from, 0, 0);
    }

    /// `to = to op number`; the number is sign-extended.
    pub fn op_number(&mut self, op: Op, to: Reg, number: i32) {
        self.emit(0x07 | op as u8, to, Reg(0), 0, number);
    }

    /// `to = number`
    pub fn set(&mut self, to: Reg, number: i32) {
        self.op_number(Op::Set, to, number);
    }

    /// `to = from`
    pub fn copy(&mut self, to: Reg, from: Reg) {
        self.op(Op::Set, to, from);
    }

    /// `to` = the map of a descriptor of ours; two instruction slots long.
    pub fn set_map(&mut self, to: Reg, fd: i32) {
        const PSEUDO_MAP_FD: Reg = Reg(1);
        self.emit(0x18, to, PSEUDO_MAP_FD, 0, fd);
        self.emit(0, Reg(0), Reg(0), 0, 0);
    }

    /// Jumps to `target` if this holds for the low 32 bits of a register.
    pub fn jump_if(&mut self, left: Reg, test: If, number: u32, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(0x06 | test as u8, left, Reg(0), 0, number.cast_signed());
    }

    /// Jumps to `target` if one register is above another, compared as 64 bits.
    pub fn jump_if_above(&mut self, left: Reg, right: Reg, target: Label) {
        self.jumps.push((self.code.len(), target));
        self.emit(0x0d | If::Above as u8, left, right, 0, 0);
    }

    /// Calls a helper function of the kernel by number (`linux/bpf.h`).
    pub fn call(&mut self, helper: i32) {
        self.emit(0x85, Reg(0), Reg(0), 0, helper);
    }

    /// Ends the program; register 0 is its result.
    pub fn exit(&mut self) {
        self.emit(0x95, Reg(0), Reg(0), 0, 0);
    }

    /// A new label, to be placed later.
    pub fn label(&mut self) -> Label {
        self.places.push(None);
        Label(self.places.len() - 1)
    }

    /// Places `label` at the next instruction.
    pub fn place(&mut self, label: Label) {
        self.places[label.0] = Some(self.code.len());
    }

    /// The finished program. Panics if a jump's label was never placed.
    pub fn finish(mut self) -> Vec<u64> {
        for (at, label) in self.jumps {
            let target = self.places[label.0].expect("each label is placed");
            // Counted from the instruction after the jump; our programs are shorter than the range of an offset.
            let distance = target as i16 - at as i16 - 1;
            let mut word = self.code[at].to_ne_bytes();
            word[2..4].copy_from_slice(&distance.to_ne_bytes());
            self.code[at] = u64::from_ne_bytes(word);
        }
        self.code
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Instructions are encoded as RFC 9669 says.
    #[cfg(target_endian = "little")]
    #[test]
    fn instructions_are_encoded() {
        let mut p = Assembler::default();
        let end = p.label();
        p.load(Size::U16, Reg(5), Reg(2), 12); // r5 = *(u16 *)(r2 + 12)
        p.store(Size::U8, Reg(10), -8, Reg(2)); // *(u8 *)(r10 - 8) = r2
        p.op_number(Op::Add, Reg(3), -8); // r3 += -8
        p.op(Op::Xor, Reg(2), Reg(1)); // r2 ^= r1
        p.jump_if_above(Reg(4), Reg(3), end); // if r4 > r3 goto +3
        p.jump_if(Reg(0), If::AtMost, u32::MAX, end); // if w0 <= -1 goto +2
        p.set_map(Reg(1), 7); // r1 = 7 ll, of a map
        p.place(end);
        p.call(51); // call 51
        p.exit(); // exit
        let words = p.finish();
        let bytes: Vec<[u8; 8]> = words.into_iter().map(u64::to_ne_bytes).collect();
        let expected = [
            [0x69, 0x25, 12, 0, 0, 0, 0, 0],
            [0x73, 0x2a, 0xf8, 0xff, 0, 0, 0, 0],
            [0x07, 0x03, 0, 0, 0xf8, 0xff, 0xff, 0xff],
            [0xaf, 0x12, 0, 0, 0, 0, 0, 0],
            [0x2d, 0x34, 3, 0, 0, 0, 0, 0],
            [0xb6, 0x00, 2, 0, 0xff, 0xff, 0xff, 0xff],
            [0x18, 0x11, 0, 0, 7, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0],
            [0x85, 0, 0, 0, 51, 0, 0, 0],
            [0x95, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(bytes, expected);
    }
}
