//! Compiles eBPF to x86-64: only the instructions that the converter makes for user space.
//!
//! One instruction becomes one or two, and some sequences become one. The code has no stack frame:
//! it calls no function, so caller-saved registers are enough, and its stack is the red zone of the
//! System V ABI, the 128 bytes below rsp.
//!
//! Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2; System V ABI, AMD64
//! supplement, 3.2.2.

mod assembler;
mod combined;

use crate::ebpf::EbpfInsn;
use assembler::{Assembler, RAX, RCX, RDX, RSP};

/// x86 register numbers by eBPF register. Shifts and divisions use r0 to r2. r3 is not used in user
/// space.
const REGISTERS: [Option<u8>; 11] = [
    Some(RAX),
    Some(RCX),
    Some(RDX),
    None,
    Some(6),        // rsi: the second argument
    Some(11),       // r11
    Some(WIRE_LEN), // r8: the third argument, which comes in rdx
    Some(9),        // r9
    Some(10),       // r10
    Some(7),        // rdi: the first argument
    Some(RSP),
];
/// eBPF's r6, which few programs read.
const WIRE_LEN: u8 = 8;

/// eBPF opcodes: `dst = src`, `dst += src` and `dst += constant` with 64 bits; exit; jump.
const MOV: u8 = 0xbf;
const ADD: u8 = 0x0f;
const ADD_IMM: u8 = 0x07;
const EXIT: u8 = 0x95;
const JUMP: u8 = 0x05;
/// eBPF opcodes: `dst = constant` with 32 bits; call.
const MOV32_IMM: u8 = 0xb4;
const CALL: u8 = 0x85;

/// Size of the red zone.
const STACK_BYTES: i16 = 128;

/// Returns machine code for `Code`; `None` if there is an instruction that the converter does not
/// make.
pub(super) fn compile(insns: &[EbpfInsn]) -> Option<Vec<u8>> {
    let parts: Vec<Insn> = insns.iter().map(|&insn| Insn::of(insn)).collect::<Option<_>>()?;
    let targets = targets(&parts)?;
    let mut asm = Assembler { code: Vec::with_capacity(8 * insns.len()) };
    let (mut places, mut jumps) = (vec![0; insns.len()], Vec::new());
    if parts.iter().any(|insn| insn.src == WIRE_LEN || insn.dst == WIRE_LEN) {
        asm.alu(false, 0x89, RDX, WIRE_LEN);
    }
    let mut at = 0;
    while let Some(insn) = parts.get(at) {
        places[at] = asm.code.len();
        let together = 1 + targets[at + 1..].iter().take(2).take_while(|target| !**target).count();
        if let Some(count) = asm.several(&parts[at..at + together]) {
            at += count;
            continue;
        }
        // A condition that skips a jump becomes a jump with the opposite condition, if no other
        // jump goes to the skipped one.
        let (jump, turned) = match parts.get(at + 1) {
            Some(next) if together > 1 && insn.goes_around(next) => (next, true),
            _ => (insn, false),
        };
        let behind = at + 1 + usize::from(turned);
        if jump.off == 2 && asm.answers(insn, turned, &parts[behind..]) {
            at = behind;
            continue;
        }
        if turned {
            asm.condition(insn, true)?;
        }
        if turned || asm.insn(insn)? {
            let to = behind.checked_add_signed(jump.off.into())?;
            jumps.push((asm.code.len(), to));
        }
        at = behind;
    }
    for (behind, to) in jumps {
        let distance = i32::try_from(*places.get(to)? as i64 - behind as i64).ok()?;
        asm.code[behind - 4..behind].copy_from_slice(&distance.to_le_bytes());
    }
    Some(asm.code)
}

/// Returns, for each instruction, whether a jump goes to it. `None` if a jump leaves the code.
fn targets(insns: &[Insn]) -> Option<Vec<bool>> {
    let mut targets = vec![false; insns.len()];
    for (at, insn) in insns.iter().enumerate().filter(|(_, insn)| insn.is_jump()) {
        *targets.get_mut(at.checked_add_signed(1 + isize::from(insn.off))?)? = true;
    }
    Some(targets)
}

/// An instruction in its parts, with x86 register numbers.
struct Insn {
    code: u8,
    dst: u8,
    src: u8,
    off: i16,
    imm: i32,
}

impl Insn {
    fn of(insn: EbpfInsn) -> Option<Insn> {
        let register = |number: u64| *REGISTERS.get(number as usize & 0xf)?;
        Some(Insn {
            code: insn as u8,
            dst: register(insn >> 8)?,
            src: register(insn >> 12)?,
            off: (insn >> 16) as i16,
            imm: (insn >> 32) as i32,
        })
    }
}

impl Insn {
    /// Returns whether `next` adds a constant to the register that this instruction has set.
    fn adds(&self, next: &Insn) -> bool {
        next.code == ADD_IMM && next.dst == self.dst
    }

    fn is_load(&self) -> bool {
        matches!(self.code, 0x61 | 0x69 | 0x71)
    }

    /// Returns whether this is a condition that skips `next`, which is a jump.
    fn goes_around(&self, next: &Insn) -> bool {
        self.is_jump() && self.code != JUMP && self.off == 1 && next.code == JUMP
    }

    fn is_jump(&self) -> bool {
        matches!(self.code & 7, 5 | 6) && !matches!(self.code, EXIT | CALL)
    }
}

impl Assembler {
    /// Compiles one instruction. Returns true for a jump, whose last four bytes must still be filled in.
    fn insn(&mut self, insn: &Insn) -> Option<bool> {
        match insn.code & 7 {
            1 => self.load(insn)?,
            2 | 3 => self.store(insn)?,
            4 => self.alu32(insn)?,
            7 => self.alu64(insn)?,
            5 if insn.code == EXIT => self.code.push(0xc3),
            5 if insn.code == JUMP => {
                self.code.extend([0xe9, 0, 0, 0, 0]);
                return Some(true);
            }
            5 | 6 => {
                self.condition(insn, false)?;
                return Some(true);
            }
            _ => return None,
        }
        Some(false)
    }

    fn load(&mut self, insn: &Insn) -> Option<()> {
        stack(insn.src, insn.off, insn.code)?;
        self.rex(false, insn.dst, insn.src, false);
        insn.is_load().then(|| self.load_opcode(insn.code))?;
        self.memory(insn.dst, insn.src, insn.off.into());
        Some(())
    }

    fn load_opcode(&mut self, code: u8) {
        match code {
            0x61 => self.code.push(0x8b),
            0x69 => self.code.extend([0x0f, 0xb7]),
            _ => self.code.extend([0x0f, 0xb6]),
        }
    }

    /// Compiles a store. Only stores to the stack are accepted.
    fn store(&mut self, insn: &Insn) -> Option<()> {
        stack(insn.dst, insn.off, insn.code).filter(|_| insn.dst == RSP)?;
        match insn.code {
            0x62 => {
                self.code.push(0xc7);
                self.memory(0, RSP, insn.off.into());
                self.code.extend(insn.imm.to_le_bytes());
                return Some(());
            }
            0x63 => {
                self.rex(false, insn.src, RSP, false);
                self.code.push(0x89);
            }
            // Without the prefix, some register numbers mean other registers here.
            0x73 => {
                self.rex(false, insn.src, RSP, true);
                self.code.push(0x88);
            }
            _ => return None,
        }
        self.memory(insn.src, RSP, insn.off.into());
        Some(())
    }

    fn alu32(&mut self, insn: &Insn) -> Option<()> {
        let &Insn { code, dst, src, imm, .. } = insn;
        let by_register = code & 8 != 0;
        match code {
            0xb4 => self.mov32_imm(dst, imm),
            0x24 => {
                self.alu(false, 0x69, dst, dst);
                self.code.extend(imm.to_le_bytes());
            }
            0x2c => {
                self.rex(false, dst, src, false);
                self.code.extend([0x0f, 0xaf, 0xc0 | (dst & 7) << 3 | src & 7]);
            }
            0x34 | 0x3c | 0x94 | 0x9c => self.divide(insn)?,
            0x64 | 0x74 => {
                self.alu(false, 0xc1, if code == 0x64 { 4 } else { 5 }, dst);
                self.code.push(imm as u8 & 31);
            }
            0x6c | 0x7c => {
                self.mov(src, RCX);
                self.alu(false, 0xd3, if code == 0x6c { 4 } else { 5 }, dst);
            }
            0x84 => self.alu(false, 0xf7, 3, dst),
            0xdc => self.big_endian(dst, imm)?,
            _ => {
                let op = match code & 0xf0 {
                    0x00 => 0,
                    0x40 => 1,
                    0x50 => 4,
                    0x10 => 5,
                    0xa0 => 6,
                    _ => return None,
                };
                if by_register {
                    self.alu(false, op << 3 | 1, src, dst);
                } else {
                    self.alu_imm(false, op, dst, imm);
                }
            }
        }
        Some(())
    }

    /// Compiles a division: eax and edx receive quotient and remainder. The divisor is not 0: the converter tests it,
    /// or it is a constant.
    fn divide(&mut self, insn: &Insn) -> Option<()> {
        let is_constant = insn.code & 8 == 0;
        if insn.dst <= RDX || !is_constant && insn.src <= RDX || is_constant && insn.imm == 0 {
            return None;
        }
        let divisor = if is_constant { RCX } else { insn.src };
        if is_constant {
            self.mov32_imm(RCX, insn.imm);
        }
        self.mov(insn.dst, RAX);
        self.mov32_imm(RDX, 0);
        self.alu(false, 0xf7, 6, divisor);
        self.alu(false, 0x89, if insn.code & 0xf0 == 0x30 { RAX } else { RDX }, insn.dst);
        Some(())
    }

    fn big_endian(&mut self, register: u8, bits: i32) -> Option<()> {
        self.rex(false, 0, register, false);
        self.code.extend([0x0f, 0xc8 | register & 7]);
        match bits {
            16 => {
                self.alu(false, 0xc1, 5, register);
                self.code.push(16);
            }
            32 => {}
            _ => return None,
        }
        Some(())
    }

    fn alu64(&mut self, insn: &Insn) -> Option<()> {
        match insn.code {
            MOV => self.mov(insn.src, insn.dst),
            0xb7 if insn.imm >= 0 => self.mov32_imm(insn.dst, insn.imm),
            0xb7 => {
                self.alu(true, 0xc7, 0, insn.dst);
                self.code.extend(insn.imm.to_le_bytes());
            }
            ADD_IMM => self.alu_imm(true, 0, insn.dst, insn.imm),
            ADD => self.alu(true, 0x01, insn.src, insn.dst),
            _ => return None,
        }
        Some(())
    }

    /// Jumps if the condition is true, or, with `turned`, if it is false.
    fn condition(&mut self, insn: &Insn, turned: bool) -> Option<()> {
        let condition = self.compare(insn, turned)?;
        self.code.extend([0x0f, 0x80 | condition, 0, 0, 0, 0]);
        Some(())
    }

    /// Emits the comparison. Returns the processor's number of the condition, whose lowest bit inverts it.
    fn compare(&mut self, insn: &Insn, turned: bool) -> Option<u8> {
        let wide = insn.code & 7 == 5;
        let by_register = insn.code & 8 != 0;
        let condition = match insn.code & 0xf0 {
            0x10 => 0x4,
            0x20 => 0x7,
            0x30 => 0x3,
            0x40 | 0x50 => 0x5,
            0xa0 => 0x2,
            0xb0 => 0x6,
            _ => return None,
        };
        match (insn.code & 0xf0 == 0x40, by_register) {
            (true, true) => self.alu(wide, 0x85, insn.src, insn.dst),
            (true, false) => {
                self.alu(wide, 0xf7, 0, insn.dst);
                self.code.extend(insn.imm.to_le_bytes());
            }
            (false, true) => self.alu(wide, 0x39, insn.src, insn.dst),
            (false, false) => self.alu_imm(wide, 7, insn.dst, insn.imm),
        }
        Some(condition ^ u8::from(turned))
    }
}

/// Checks that an operand on the stack is in the red zone.
fn stack(base: u8, off: i16, code: u8) -> Option<()> {
    // The width is in bits 3 and 4.
    let bytes = [4, 2, 1, 8][usize::from(code >> 3 & 3)];
    (base != RSP || (-STACK_BYTES..=-bytes).contains(&off)).then_some(())
}

#[cfg(test)]
#[path = "x86_tests.rs"]
mod tests;
