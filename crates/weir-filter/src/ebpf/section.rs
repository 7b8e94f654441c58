//! Translates a whole program, for frames of one kind.

use super::asm::{Asm, Condition, FP, Label, Operand, R0, R1, R6, R7, R8, Reg};
use super::load::{self, Context};
use super::{Ending, MASK, TCI, Target, USER_MASK, helper, is_shift, memory, skb};
use crate::flow_graph::{A, FlowGraph, Then, To, X_REG};
use crate::frame::{ByteLocation, View};
use crate::insn::*;
use crate::order::turned;
use crate::program::Program;

/// Upper limit of the bytes that a frame must have for the section without checks: the headers that
/// most programs read. Frames have at least this length without the FCS. A larger limit would send
/// all short frames to the section that checks each load.
const IN_PLACE_MAX: u32 = 60;

/// Returns how many of the frame's first bytes the program's loads at constant offsets reach, at most `IN_PLACE_MAX`.
pub(super) fn bytes_in_place(
    program: &Program,
    graph: &FlowGraph,
    target: Target,
    view: View,
) -> u32 {
    if target == Target::Socket {
        return 0;
    }
    let ends = graph.steps.iter().filter_map(|step| {
        let insn = program.insns()[step.at];
        let load = insn.load().filter(|load| !load.indirect)?;
        match view.locate(insn.k + u32::from(load.size) - 1) {
            ByteLocation::Bytes(last) if last < IN_PLACE_MAX => Some(last + 1),
            _ => None,
        }
    });
    ends.max().unwrap_or(0)
}

/// A section under construction.
pub(super) struct Section<'a> {
    asm: &'a mut Asm,
    program: &'a Program,
    graph: &'a FlowGraph,
    cx: Context,
    ending: Ending,
    take: Label,
    /// One label for each instruction.
    labels: Vec<Label>,
}

impl<'a> Section<'a> {
    pub(super) fn new(
        asm: &'a mut Asm,
        program: &'a Program,
        graph: &'a FlowGraph,
        (target, view, in_place): (Target, View, u32),
        ending: Ending,
    ) -> Section<'a> {
        let labels = program.insns().iter().map(|_| asm.label()).collect();
        let take = asm.label();
        let cx = Context { target, view, in_place, reject: asm.label(), numbers: true };
        Section { asm, program, graph, cx, ending, take, labels }
    }

    pub(super) fn emit(mut self) {
        self.zeroes();
        let steps = &self.graph.steps;
        let takes = self.graph.takes();
        let last = if takes { To::Take } else { To::Reject };
        for (n, step) in steps.iter().enumerate() {
            let behind = steps.get(n + 1).map_or(last, |next| To::Insn(next.at));
            self.asm.place(self.labels[step.at]);
            let mut insn = self.program.insns()[step.at];
            self.cx.numbers = step.of_network.is_none();
            self.insn(insn);
            match step.then {
                Then::To(to) => self.go(to, behind),
                Then::If(yes, no) => {
                    insn.k = step.of_network.map_or(insn.k, |size| turned(insn.k, size));
                    self.branch(insn, yes, no, behind);
                }
                Then::End => {}
            }
        }
        if takes {
            self.asm.place(self.take);
            self.taken();
        }
        // The kernel refuses unreachable code.
        let falls = !takes && steps.last().is_none_or(|step| step.then != Then::End);
        let is_rejected = falls || self.asm.is_used(self.cx.reject);
        self.asm.place(self.cx.reject);
        match self.ending {
            Ending::Verdict if is_rejected => self.exit(0),
            Ending::Exit { rejected, .. } if is_rejected => self.exit(rejected),
            _ => {}
        }
    }

    /// Sets A, X and scratch memory to 0, as far as the program reads them first.
    fn zeroes(&mut self) {
        for (bit, register) in [(A, R7), (X_REG, R8)] {
            if self.graph.begins_as_zero & bit != 0 {
                self.asm.mov(register, Operand::Imm(0));
            }
        }
        for word in (0..MEMORY_WORDS).filter(|word| self.graph.begins_as_zero & 1 << word != 0) {
            self.asm.store_imm(4, FP, memory(word), 0);
        }
    }

    fn insn(&mut self, insn: Insn) {
        match insn.code {
            RET_K => self.exit(insn.k),
            RET_A => self.ret_a(),
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
            _ if insn.is_extension() => self.extension(insn.k),
            _ if insn.load().is_some() => self.load(insn),
            _ if insn.is_conditional_jump() => {}
            _ => self.compute(insn),
        }
    }

    fn exit(&mut self, answer: u32) {
        self.asm.mov32(R0, answer);
        self.asm.exit();
    }

    fn ret_a(&mut self) {
        if let Ending::Verdict = self.ending {
            self.asm.mov(R0, Operand::Reg(R7));
            self.asm.exit();
        } else {
            self.asm.jump_if32(Condition::Equal, R7, Operand::Imm(0), self.cx.reject);
        }
    }

    /// Emits the code for a frame that the program takes. The code for a rejected frame follows.
    fn taken(&mut self) {
        match self.ending {
            Ending::Verdict => unreachable!("verdicts are given where they stand"),
            Ending::Exit { taken, .. } => self.exit(taken),
            Ending::Next { bits } if self.cx.target == Target::User => {
                self.asm.alu32(OR, USER_MASK, Operand::Imm(bits as i32));
            }
            Ending::Next { bits } => {
                self.asm.load(4, R0, FP, MASK);
                self.asm.alu32(OR, R0, Operand::Imm(bits as i32));
                self.asm.store(4, FP, MASK, R0);
            }
        }
    }

    fn label(&self, to: To) -> Label {
        match to {
            To::Insn(at) => self.labels[at],
            To::Take => self.take,
            To::Reject => self.cx.reject,
        }
    }

    /// Continues at `to`. `behind` is the next label in the code.
    fn go(&mut self, to: To, behind: To) {
        if to != behind {
            self.asm.jump(self.label(to));
        }
    }

    fn branch(&mut self, insn: Insn, yes: To, no: To, behind: To) {
        let (condition, inverse) = match insn.code & 0xf0 {
            JEQ => (Condition::Equal, Some(Condition::NotEqual)),
            JGT => (Condition::Greater, Some(Condition::LessOrEqual)),
            JGE => (Condition::GreaterOrEqual, Some(Condition::Less)),
            _ => (Condition::AnyBit, None),
        };
        match inverse {
            Some(inverse) if yes == behind => {
                self.asm.jump_if32(inverse, R7, operand(insn), self.label(no));
            }
            _ => {
                self.asm.jump_if32(condition, R7, operand(insn), self.label(yes));
                self.go(no, behind);
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

    /// `dst` = the length on the wire, with the tag if the program sees it.
    fn length(&mut self, dst: Reg) {
        match self.cx.target {
            Target::User => self.asm.mov(dst, Operand::Reg(R6)),
            Target::Tc | Target::Socket => self.asm.load(4, dst, R6, skb::LEN),
            Target::Xdp | Target::XdpTag => {
                self.asm.mov(R1, Operand::Reg(R6));
                self.asm.call(helper::XDP_GET_BUFF_LEN);
                self.asm.mov(dst, Operand::Reg(R0));
            }
        }
        // Also needed without a tag: it truncates the helper's 64 bits to 32.
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

/// Returns the operand of an instruction: X, or `k`.
fn operand(insn: Insn) -> Operand {
    if insn.code & X != 0 { Operand::Reg(R8) } else { Operand::Imm(insn.k as i32) }
}
