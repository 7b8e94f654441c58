//! The control-flow graph of a verified program: the successors of each instruction, and the values
//! on which it relies.

use crate::insn::*;
use crate::order;
pub(crate) use crate::step::{A, OFFSET_MAX, Step, Then, To, X_REG, uses};
use crate::verify::skips;

/// Known facts about a program before it runs. Jumps to jumps are followed, and conditions that change
/// nothing left out, so not every instruction is a step; code that no way leads to never is, as the kernel
/// refuses such.
#[derive(Debug)]
pub(crate) struct FlowGraph {
    /// Where it begins.
    pub entry: To,
    /// In the program's order, so all ways go forward.
    pub steps: Vec<Step>,
    /// Registers and words that some path reads before it writes them, and finds 0: scratch memory's words by
    /// their bits, [`A`], [`X_REG`].
    pub begins_as_zero: u32,
}

impl FlowGraph {
    /// With `verdicts`, the value of a `ret` matters, so it is a step; without, only whether it is
    /// 0.
    pub(crate) fn of(insns: &[Insn], verdicts: bool) -> FlowGraph {
        let leads_to = follow(insns, verdicts);
        // By instruction that is reached: the registers and words that every path there has
        // written.
        let mut written = vec![None; insns.len()];
        let mut graph = FlowGraph { entry: leads_to[0], steps: Vec::new(), begins_as_zero: 0 };
        if let To::Insn(first) = graph.entry {
            written[first] = Some(0);
        }
        // All jumps go forward, so one pass sees every way.
        for (at, &insn) in insns.iter().enumerate() {
            let Some(mut known) = written[at] else { continue };
            let (reads, writes) = uses(insn);
            graph.begins_as_zero |= reads & !known;
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
            graph.steps.push(Step { at, then, of_network: None });
        }
        let sizes = order::of_network(insns, &graph.steps);
        graph.steps.iter_mut().zip(sizes).for_each(|(step, size)| step.of_network = size);
        graph
    }

    /// Whether some way leads to [`To::Take`].
    pub(crate) fn takes(&self) -> bool {
        self.entry == To::Take
            || self.steps.iter().any(|step| step.then.ways().any(|to| to == To::Take))
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

/// A load that no frame is long enough for.
pub(crate) fn always_rejects(insn: Insn) -> bool {
    insn.load().is_some() && insn.k > OFFSET_MAX
}

#[cfg(test)]
#[path = "flow_graph_tests.rs"]
mod tests;
