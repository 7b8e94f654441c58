//! Assembles eBPF instructions, with labels that are placed later.
//!
//! Source: the kernel's Documentation/bpf/standardization/instruction-set.rst.

/// An eBPF instruction as the kernel takes it (`struct bpf_insn`), in 8 bytes of the host's order.
pub type EbpfInsn = u64;

/// A register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reg(u8);

pub(super) const R0: Reg = Reg(0);
pub(super) const R1: Reg = Reg(1);
pub(super) const R2: Reg = Reg(2);
pub(super) const R3: Reg = Reg(3);
pub(super) const R4: Reg = Reg(4);
pub(super) const R5: Reg = Reg(5);
pub(super) const R6: Reg = Reg(6);
pub(super) const R7: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
/// The frame pointer, which is the upper end of the stack.
pub(super) const FP: Reg = Reg(10);

/// The second operand of an operation.
#[derive(Clone, Copy, Debug)]
pub(super) enum Operand {
    Reg(Reg),
    Imm(i32),
}

use Operand::{Imm, Reg as Register};

/// Conditions of 64-bit and 32-bit jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Condition {
    Equal = 0x10,
    Greater = 0x20,
    GreaterOrEqual = 0x30,
    AnyBit = 0x40,
    NotEqual = 0x50,
    Less = 0xa0,
    LessOrEqual = 0xb0,
}

/// A place in the code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Label(usize);

/// The longest jump, in instructions.
pub(super) const JUMP_MAX: usize = i16::MAX as usize;

/// A jump between these instructions is longer than [`JUMP_MAX`].
#[derive(Debug)]
pub(super) struct TooFar {
    pub from: usize,
    pub to: usize,
}

/// Code under construction.
#[derive(Default)]
pub(super) struct Asm {
    insns: Vec<EbpfInsn>,
    labels: Vec<State>,
    /// Jumps, and the labels they go to.
    jumps: Vec<(usize, Label)>,
}

/// State of a label.
#[derive(Default)]
struct State {
    place: Option<usize>,
    is_used: bool,
}

const MOV: u8 = 0xb0;
const ALU32: u8 = 0x04;
const ALU64: u8 = 0x07;
const JMP: u8 = 0x05;
const JMP32: u8 = 0x06;
const FROM_REG: u8 = 0x08;
const CALL: u8 = 0x85;
const EXIT: u8 = 0x95;
const BIG_ENDIAN: u8 = 0xdc;

impl Asm {
    fn emit(&mut self, code: u8, dst: Reg, src: Reg, off: i16, imm: i32) {
        self.insns.push(
            u64::from(code)
                | u64::from(src.0 << 4 | dst.0) << 8
                | u64::from(off as u16) << 16
                | u64::from(imm as u32) << 32,
        );
    }

    fn emit_operand(&mut self, code: u8, dst: Reg, operand: Operand, off: i16) {
        match operand {
            Register(src) => self.emit(code | FROM_REG, dst, src, off, 0),
            Imm(imm) => self.emit(code, dst, R0, off, imm),
        }
    }

    /// `dst = operand`; immediates are sign-extended to 64 bits.
    pub(super) fn mov(&mut self, dst: Reg, operand: Operand) {
        self.emit_operand(ALU64 | MOV, dst, operand, 0);
    }

    /// `dst = imm`, the upper half zero.
    pub(super) fn mov32(&mut self, dst: Reg, imm: u32) {
        self.emit_operand(ALU32 | MOV, dst, Imm(imm as i32), 0);
    }

    /// `dst += operand`, 64 bits.
    pub(super) fn add(&mut self, dst: Reg, operand: Operand) {
        self.emit_operand(ALU64, dst, operand, 0);
    }

    /// `dst = dst op operand`, 32 bits, the upper half zero after it. `op` as in classic BPF.
    pub(super) fn alu32(&mut self, op: u16, dst: Reg, operand: Operand) {
        self.emit_operand(ALU32 | op as u8, dst, operand, 0);
    }

    /// `dst = big-endian dst`, of `size` bytes.
    pub(super) fn big_endian(&mut self, dst: Reg, size: u8) {
        if size > 1 {
            self.emit(BIG_ENDIAN, dst, R0, 0, i32::from(size) * 8);
        }
    }

    /// `dst = *(size bytes)(src + off)`, zero-extended.
    pub(super) fn load(&mut self, size: u8, dst: Reg, src: Reg, off: i16) {
        self.emit(0x61 | width(size), dst, src, off, 0);
    }

    /// `*(size bytes)(dst + off) = src`.
    pub(super) fn store(&mut self, size: u8, dst: Reg, off: i16, src: Reg) {
        self.emit(0x63 | width(size), dst, src, off, 0);
    }

    /// `*(size bytes)(dst + off) = imm`.
    pub(super) fn store_imm(&mut self, size: u8, dst: Reg, off: i16, imm: i32) {
        self.emit(0x62 | width(size), dst, R0, off, imm);
    }

    pub(super) fn call(&mut self, helper: i32) {
        self.emit(CALL, R0, R0, 0, helper);
    }

    pub(super) fn exit(&mut self) {
        self.emit(EXIT, R0, R0, 0, 0);
    }

    /// Returns the number of instructions.
    pub(super) fn len(&self) -> usize {
        self.insns.len()
    }

    pub(super) fn label(&mut self) -> Label {
        self.labels.push(State::default());
        Label(self.labels.len() - 1)
    }

    /// Places the label here.
    pub(super) fn place(&mut self, label: Label) {
        let was = self.labels[label.0].place.replace(self.insns.len());
        assert!(was.is_none(), "a label has one place");
    }

    /// Returns whether a jump goes to the label.
    pub(super) fn is_used(&self, label: Label) -> bool {
        self.labels[label.0].is_used
    }

    fn jumps_to(&mut self, to: Label) {
        self.labels[to.0].is_used = true;
        self.jumps.push((self.insns.len(), to));
    }

    pub(super) fn jump(&mut self, to: Label) {
        self.jumps_to(to);
        self.emit(JMP, R0, R0, 0, 0);
    }

    /// Jumps if `left condition operand`, 64 bits unsigned.
    pub(super) fn jump_if(&mut self, condition: Condition, left: Reg, operand: Operand, to: Label) {
        self.jumps_to(to);
        self.emit_operand(JMP | condition as u8, left, operand, 0);
    }

    /// Jumps if `left condition operand`, for the lower halves (32 bits unsigned).
    pub(super) fn jump_if32(
        &mut self,
        condition: Condition,
        left: Reg,
        operand: Operand,
        to: Label,
    ) {
        self.jumps_to(to);
        self.emit_operand(JMP32 | condition as u8, left, operand, 0);
    }

    /// Returns the code, with the distances of all jumps.
    pub(super) fn finish(mut self) -> Result<Vec<EbpfInsn>, TooFar> {
        for (from, label) in self.jumps {
            let to = self.labels[label.0].place.expect("every label that is jumped to is placed");
            let distance = to.checked_sub(from + 1).expect("jumps go forward");
            if distance > JUMP_MAX {
                return Err(TooFar { from, to });
            }
            self.insns[from] |= (distance as u64) << 16;
        }
        Ok(self.insns)
    }
}

/// A jump over several programs, which may be longer than one jump can be: it uses intermediate jumps.
pub(super) struct Hops {
    /// Target of the last intermediate jump.
    to: Label,
    /// Number of instructions at the place of that jump.
    since: usize,
}

/// Distance between intermediate jumps, in instructions. It leaves three quarters of a jump for the
/// program that follows.
const HOP: usize = JUMP_MAX / 4;

impl Hops {
    /// Begins at this place of the code, where a jump to `to` was just emitted.
    pub(super) fn to(to: Label, asm: &Asm) -> Hops {
        Hops { to, since: asm.len() }
    }

    /// Inserts an intermediate jump between two programs, if one is due. The programs jump over it.
    pub(super) fn hop(&mut self, asm: &mut Asm) {
        if asm.len() - self.since < HOP {
            return;
        }
        let (around, next) = (asm.label(), asm.label());
        asm.jump(around);
        asm.place(self.to);
        asm.jump(next);
        asm.place(around);
        *self = Hops { to: next, since: asm.len() };
    }

    /// Returns the label to place where the jump ends.
    pub(super) fn end(self) -> Label {
        self.to
    }
}

/// Returns the size field of loads and stores.
fn width(size: u8) -> u8 {
    match size {
        1 => 0x10,
        2 => 0x08,
        4 => 0x00,
        8 => 0x18,
        _ => unreachable!("loads and stores are of 1, 2, 4 or 8 bytes"),
    }
}
