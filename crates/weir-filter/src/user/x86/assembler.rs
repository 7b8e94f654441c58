//! Encodes instructions of x86-64: prefixes, registers, memory and constants.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, chapter 2.

pub(super) const RAX: u8 = 0;
pub(super) const RCX: u8 = 1;
pub(super) const RDX: u8 = 2;
pub(super) const RSP: u8 = 4;

/// The code so far.
pub(super) struct Assembler {
    pub(super) code: Vec<u8>,
}

impl Assembler {
    /// `dst = src + offset`, all 64 bits.
    pub(super) fn lea(&mut self, dst: u8, src: u8, offset: i32) {
        self.rex(true, dst, src, false);
        self.code.push(0x8d);
        self.memory(dst, src, offset);
    }

    /// Emits prefix, opcode, and the byte that names two registers, or a register and the operation of the opcode.
    pub(super) fn alu(&mut self, wide: bool, opcode: u8, reg: u8, rm: u8) {
        self.rex(wide, reg, rm, false);
        self.code.extend([opcode, 0xc0 | (reg & 7) << 3 | rm & 7]);
    }

    pub(super) fn rex(&mut self, wide: bool, reg: u8, rm: u8, always: bool) {
        let rex = 0x40 | u8::from(wide) << 3 | (reg >> 3) << 2 | rm >> 3;
        if rex != 0x40 || always {
            self.code.push(rex);
        }
    }

    /// `register op= imm`; `op` is 0 add, 1 or, 4 and, 5 sub, 6 xor, 7 compare.
    pub(super) fn alu_imm(&mut self, wide: bool, op: u8, register: u8, imm: i32) {
        if let Ok(imm) = i8::try_from(imm) {
            self.alu(wide, 0x83, op, register);
            self.code.push(imm as u8);
        } else {
            self.alu(wide, 0x81, op, register);
            self.code.extend(imm.to_le_bytes());
        }
    }

    pub(super) fn mov(&mut self, from: u8, to: u8) {
        self.alu(true, 0x89, from, to);
    }

    /// `register = imm`, the upper half zero.
    pub(super) fn mov32_imm(&mut self, register: u8, imm: i32) {
        if imm == 0 {
            return self.alu(false, 0x31, register, register);
        }
        self.rex(false, 0, register, false);
        self.code.push(0xb8 | register & 7);
        self.code.extend(imm.to_le_bytes());
    }

    /// Emits the bytes that name `register` and the memory at `base + off`.
    pub(super) fn memory(&mut self, register: u8, base: u8, off: i32) {
        let short = i8::try_from(off).ok();
        let form = if short.is_some() { 0x40 } else { 0x80 };
        self.code.push(form | (register & 7) << 3 | base & 7);
        if base & 7 == RSP {
            self.code.push(0x24);
        }
        match short {
            Some(off) => self.code.push(off as u8),
            None => self.code.extend(off.to_le_bytes()),
        }
    }
}
