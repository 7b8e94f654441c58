//! The whole program, for frames of one kind.

use super::asm::{Asm, Condition, FP, Label, Operand, R0, R1, R6, R7, R8, Reg};
use super::load::{self, Context};
use super::{TCI, Target, helper, is_shift, memory, skb};
use crate::flow::{Flow, always_rejects};
use crate::frame::{Place, View};
use crate::insn::*;
use crate::program::Program;

/// Bytes that may be asked to be in place: the headers that most programs look at. Frames are at least 60
/// bytes long, without the FCS.
const IN_PLACE_MAX: u32 = 64;

/// How many of the frame's first bytes the program's loads at constant offsets reach.
pub(super) fn bytes_in_place(program: &Program, flow: &Flow, target: Target, view: View) -> u32 {
    if target == Target::Socket {
        return 0;
    }
    let ends = (0..program.insns().len()).filter(|&at| flow.reached[at]).filter_map(|at| {
        let insn = program.insns()[at];
        let load = insn.load().filter(|load| !load.indirect && !always_rejects(insn))?;
        match view.place(insn.k + u32::from(load.size) - 1) {
            Place::Bytes(last) if last < IN_PLACE_MAX => Some(last + 1),
            _ => None,
        }
    });
    ends.max().unwrap_or(0)
}

/// A section in the making.
pub(super) struct Section<'a> {
    asm: &'a mut Asm,
    program: &'a Program,
    flow: &'a Flow,
    cx: Context,
    /// By instruction that is jumped to.
    labels: Vec<Option<Label>>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        asm: &'a mut Asm,
        program: &'a Program,
        flow: &'a Flow,
        target: Target,
        view: View,
        in_place: u32,
    ) -> Section<'a> {
        let labels = flow.target.iter().map(|&target| target.then(|| asm.label())).collect();
        let cx = Context { target, view, in_place, reject: asm.label() };
        Section { asm, program, flow, cx, labels }
    }

    pub(super) fn emit(mut self) {
        for (at, &insn) in self.program.insns().iter().enumerate() {
            if !self.flow.reached[at] {
                continue;
            }
            if let Some(label) = self.labels[at] {
                self.asm.place(label);
            }
            self.insn(at, insn);
        }
        if self.asm.is_used(self.cx.reject) {
            self.asm.place(self.cx.reject);
            self.verdict(Operand::Imm(0));
        }
    }

    fn insn(&mut self, at: usize, insn: Insn) {
        match insn.code {
            _ if always_rejects(insn) => self.verdict(Operand::Imm(0)),
            RET_K => self.verdict(Operand::Imm(insn.k as i32)),
            RET_A => self.verdict(Operand::Reg(R7)),
            LD_IMM => self.asm.mov32(R7, insn.k),
            LDX_IMM => self.asm.mov32(R8, insn.k),
            LD_MEM => self.asm.load(4, R7, FP, memory(insn.k as usize)),
            LDX_MEM => self.asm.load(4, R8, FP, memory(insn.k as usize)),
            ST => self.asm.store(4, FP, memory(insn.k as usize), R7),
            STX => self.asm.store(4, FP, memory(insn.k as usize), R8),
            LD_LEN => self.length(R7),
            LDX_LEN => self.length(R8),
            TAX => self.asm.mov(R8, Operand::Reg(R7)),
            TXA => self.asm.mov(R7, Operand::Reg(R8)),
            JA => self.go(at, insn.k),
            _ if insn.is_extension() => self.extension(insn.k),
            _ if insn.load().is_some() => self.load(insn),
            _ if insn.is_conditional_jump() => self.branch(at, insn),
            _ => self.compute(insn),
        }
    }

    fn verdict(&mut self, verdict: Operand) {
        match verdict {
            Operand::Imm(k) => self.asm.mov32(R0, k as u32),
            Operand::Reg(_) => self.asm.mov(R0, verdict),
        }
        self.asm.exit();
    }

    /// Goes on `skip` instructions later.
    fn go(&mut self, at: usize, skip: u32) {
        if skip > 0 {
            let label = self.labels[at + 1 + skip as usize].expect("Flow knows each target");
            self.asm.jump(label);
        }
    }

    fn branch(&mut self, at: usize, insn: Insn) {
        if insn.jt == insn.jf {
            return self.go(at, u32::from(insn.jt));
        }
        let (condition, inverse) = match insn.code & 0xf0 {
            JEQ => (Condition::Equal, Some(Condition::NotEqual)),
            JGT => (Condition::Greater, Some(Condition::LessOrEqual)),
            JGE => (Condition::GreaterOrEqual, Some(Condition::Less)),
            _ => (Condition::AnyBit, None),
        };
        let operand = operand(insn);
        let label = |skip: u8| self.labels[at + 1 + usize::from(skip)].expect("as in `go`");
        match inverse {
            Some(inverse) if insn.jt == 0 => {
                self.asm.jump_if32(inverse, R7, operand, label(insn.jf));
            }
            _ => {
                self.asm.jump_if32(condition, R7, operand, label(insn.jt));
                self.go(at, u32::from(insn.jf));
            }
        }
    }

    fn load(&mut self, insn: Insn) {
        let load = insn.load().expect("asked before");
        let dst = if load.header_length { R8 } else { R7 };
        if load.indirect {
            load::seen_at(self.asm, self.cx, R8, insn.k, load.size, dst);
        } else {
            load::seen(self.asm, self.cx, insn.k, load.size, dst);
        }
        if load.header_length {
            self.asm.alu32(AND, R8, Operand::Imm(0xf));
            self.asm.alu32(LSH, R8, Operand::Imm(2));
        }
    }

    /// The length on the wire, tag and all if the program sees it.
    fn length(&mut self, dst: Reg) {
        match self.cx.target {
            Target::User => self.asm.load(8, dst, R6, 16),
            Target::Tc | Target::Socket => self.asm.load(4, dst, R6, skb::LEN),
            Target::Xdp => {
                self.asm.mov(R1, Operand::Reg(R6));
                self.asm.call(helper::XDP_GET_BUFF_LEN);
                self.asm.mov(dst, Operand::Reg(R0));
            }
        }
        // Also without a tag to count: it makes 32 bits of the helper's 64.
        self.asm.alu32(ADD, dst, Operand::Imm(self.cx.view.longer()));
    }

    fn extension(&mut self, which: u32) {
        match (self.cx.view.tells_of_tag(), which) {
            (false, _) => self.asm.mov32(R7, 0),
            (true, VLAN_TAG) => self.asm.load(4, R7, FP, TCI),
            (true, _) => self.asm.mov32(R7, 1),
        }
    }

    fn compute(&mut self, insn: Insn) {
        let op = insn.code & 0xf0;
        let by_x = insn.code & X != 0;
        if op == NEG {
            return self.asm.alu32(NEG, R7, Operand::Imm(0));
        }
        if (op == DIV || op == MOD) && by_x {
            self.asm.jump_if32(Condition::Equal, R8, Operand::Imm(0), self.cx.reject);
        }
        if is_shift(op) && by_x {
            let (zero, done) = (self.asm.label(), self.asm.label());
            self.asm.jump_if32(Condition::Greater, R8, Operand::Imm(31), zero);
            self.asm.alu32(op, R7, Operand::Reg(R8));
            self.asm.jump(done);
            self.asm.place(zero);
            self.asm.mov32(R7, 0);
            self.asm.place(done);
            return;
        }
        self.asm.alu32(op, R7, operand(insn));
    }
}

/// X, or `k`.
fn operand(insn: Insn) -> Operand {
    if insn.code & X != 0 { Operand::Reg(R8) } else { Operand::Imm(insn.k as i32) }
}
