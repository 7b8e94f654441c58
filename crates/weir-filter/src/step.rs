//! The steps of a verified program: an instruction, its successors, its reads and writes.

use crate::insn::*;

/// More than the length of any frame. A load from this offset on rejects.
pub(crate) const OFFSET_MAX: u32 = i32::MAX as u32 - 8;

/// The place where a program continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// At the instruction of this number.
    Insn(usize),
    /// The frame is taken.
    Take,
    /// The frame is rejected.
    Reject,
}

/// The successor of an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    To(To),
    /// If the condition is true, and if it is false. The two are different.
    If(To, To),
    /// The verdict is given here.
    End,
}

/// A reachable instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Its number in the program.
    pub at: usize,
    pub then: Then,
    /// Size of the value in A if it is in network byte order: after this load, or for this test
    /// ([`order`](crate::order)).
    pub of_network: Option<u8>,
}

/// The accumulator, in [`FlowGraph::begins_as_zero`](crate::flow_graph::FlowGraph).
pub(crate) const A: u32 = 1 << MEMORY_WORDS;
/// The index register, in the same field.
pub(crate) const X_REG: u32 = A << 1;

impl Then {
    pub(crate) fn ways(self) -> impl Iterator<Item = To> {
        let (one, other) = match self {
            Then::To(to) => (Some(to), None),
            Then::If(yes, no) => (Some(yes), Some(no)),
            Then::End => (None, None),
        };
        one.into_iter().chain(other)
    }
}

/// Returns the operands that an instruction reads, and those that it writes, as in `FlowGraph::begins_as_zero`.
pub(crate) fn uses(insn: Insn) -> (u32, u32) {
    let by_x = if insn.code & X != 0 { X_REG } else { 0 };
    match insn.code {
        RET_A => (A, 0),
        ST => (A, 1 << insn.k),
        STX => (X_REG, 1 << insn.k),
        LD_MEM => (1 << insn.k, A),
        LDX_MEM => (1 << insn.k, X_REG),
        TAX => (A, X_REG),
        TXA => (X_REG, A),
        RET_K | JA => (0, 0),
        LD_IMM | LD_LEN => (0, A),
        LDX_IMM | LDX_LEN | LDX_MSH => (0, X_REG),
        _ if insn.is_conditional_jump() => (A | by_x, 0),
        _ if insn.code & 7 == ALU => (A | by_x, A),
        _ if insn.load().is_some_and(|load| load.indirect) => (X_REG, A),
        _ => (0, A),
    }
}
