//! The ways through a verified program: where each instruction leads, and what it relies on.

use crate::insn::*;
use crate::order;
use crate::verify::skips;

/// No frame is as long as this. A load from here on rejects.
pub(crate) const OFFSET_MAX: u32 = i32::MAX as u32 - 8;

/// Where a program goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum To {
    /// At the instruction of this number.
    Insn(usize),
    /// Nowhere: the frame is taken.
    Take,
    /// Nowhere: the frame is rejected.
    Reject,
}

/// What comes behind an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Then {
    To(To),
    /// Where the condition holds, and where not: never the same.
    If(To, To),
    /// The verdict is given here.
    End,
}

/// An instruction that some way leads to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Its number in the program.
    pub at: usize,
    pub then: Then,
    /// The size of what A holds as it came from the frame, not as a number: behind the load that this is, or for the
    /// question that this asks ([`order`]).
    pub of_network: Option<u8>,
}

/// What is known of a program before it runs. Jumps to jumps are followed, and conditions that change
/// nothing left out, so not every instruction is a step; code that no way leads to never is, as the kernel
/// refuses such.
#[derive(Debug)]
pub(crate) struct Flow {
    /// Where it begins.
    pub entry: To,
    /// In the program's order, so all ways go forward.
    pub steps: Vec<Step>,
    /// What some way reads before it writes, and finds 0: scratch memory's words by their bits, [`A`], [`X_REG`].
    pub begins_as_zero: u32,
}

/// The accumulator, in [`Flow::begins_as_zero`].
pub(crate) const A: u32 = 1 << MEMORY_WORDS;
/// The index register there.
pub(crate) const X_REG: u32 = A << 1;

impl Flow {
    /// With `verdicts`, what a `ret` gives matters, so it is a step; without, only whether it is 0.
    pub(crate) fn of(insns: &[Insn], verdicts: bool) -> Flow {
        let leads_to = follow(insns, verdicts);
        // By instruction that is reached: what every way there has written.
        let mut written = vec![None; insns.len()];
        let mut flow = Flow { entry: leads_to[0], steps: Vec::new(), begins_as_zero: 0 };
        if let To::Insn(first) = flow.entry {
            written[first] = Some(0);
        }
        // All jumps go forward, so one pass sees every way.
        for (at, &insn) in insns.iter().enumerate() {
            let Some(mut known) = written[at] else { continue };
            let (reads, writes) = uses(insn);
            flow.begins_as_zero |= reads & !known;
            known |= writes;
            let then = match skips(insn) {
                [Some(yes), Some(no)] => {
                    Then::If(leads_to[at + 1 + yes as usize], leads_to[at + 1 + no as usize])
                }
                [Some(skip), None] => Then::To(leads_to[at + 1 + skip as usize]),
                _ if verdicts => Then::End,
                // By A: a rejecting one goes its own way.
                _ => Then::To(To::Take),
            };
            for to in then.ways() {
                if let To::Insn(to) = to {
                    written[to] = Some(written[to].map_or(known, |others| others & known));
                }
            }
            flow.steps.push(Step { at, then, of_network: None });
        }
        let sizes = order::of_network(insns, &flow.steps);
        flow.steps.iter_mut().zip(sizes).for_each(|(step, size)| step.of_network = size);
        flow
    }

    /// Whether some way leads to [`To::Take`].
    pub(crate) fn takes(&self) -> bool {
        self.entry == To::Take
            || self.steps.iter().any(|step| step.then.ways().any(|to| to == To::Take))
    }
}

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

/// By instruction: where one ends up who is sent there.
fn follow(insns: &[Insn], verdicts: bool) -> Vec<To> {
    let mut leads_to = vec![To::Reject; insns.len()];
    for (at, &insn) in insns.iter().enumerate().rev() {
        leads_to[at] = match insn.code {
            RET_K if insn.k == 0 => To::Reject,
            RET_K if !verdicts => To::Take,
            JA => leads_to[at + 1 + insn.k as usize],
            _ if always_rejects(insn) => To::Reject,
            _ if insn.is_conditional_jump() => {
                let [yes, no] = [insn.jt, insn.jf].map(|skip| leads_to[at + 1 + usize::from(skip)]);
                if yes == no { yes } else { To::Insn(at) }
            }
            _ => To::Insn(at),
        };
    }
    leads_to
}

/// What an instruction reads and what it writes, as in [`Flow::begins_as_zero`].
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

/// A load that no frame is long enough for.
pub(crate) fn always_rejects(insn: Insn) -> bool {
    insn.load().is_some() && insn.k > OFFSET_MAX
}

#[cfg(test)]
#[path = "flow_tests.rs"]
mod tests;
