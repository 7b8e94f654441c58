//! The control-flow graph of a verified program: the successors of each instruction, and the values
//! on which it relies.

use crate::insn::*;
use crate::order;
pub(crate) use crate::step::{A, OFFSET_MAX, Step, Then, To, X_REG, uses};
use crate::verify::skips;

/// Facts about a program that are known before it runs. Jumps to jumps are followed, and conditions
/// without effect are left out, so not every instruction is a step. Unreachable code never is,
/// because the kernel refuses it.
#[derive(Debug)]
pub(crate) struct FlowGraph {
    /// Its first step.
    pub entry: To,
    /// In the program's order, so all paths go forward.
    pub steps: Vec<Step>,
    /// Registers and words that some path reads before it writes them, and finds 0. Words of
    /// scratch memory are the bits of their numbers; the others are [`A`] and [`X_REG`].
    pub begins_as_zero: u32,
}

impl FlowGraph {
    /// Builds the graph of a program. With `verdicts`, the value of a `ret` matters, so it is a step. Without, it only
    /// matters whether the value is 0.
    pub(crate) fn of(insns: &[Insn], verdicts: bool) -> FlowGraph {
        let leads_to = follow(insns, verdicts);
        // For each reachable instruction, the registers and words that every path to it has
        // written.
        let mut written = vec![None; insns.len()];
        let mut graph = FlowGraph { entry: leads_to[0], steps: Vec::new(), begins_as_zero: 0 };
        if let To::Insn(first) = graph.entry {
            written[first] = Some(0);
        }
        // All jumps go forward, so one pass sees every path.
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
                // `ret A`: the rejecting case is part of the instruction's translation.
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

    /// Returns whether a path leads to [`To::Take`].
    pub(crate) fn takes(&self) -> bool {
        self.entry == To::Take
            || self.steps.iter().any(|step| step.then.ways().any(|to| to == To::Take))
    }
}

/// Returns, for each instruction, the place to which a jump to this instruction finally leads.
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

/// Returns whether the instruction is a load at an offset that no frame has.
pub(crate) fn always_rejects(insn: Insn) -> bool {
    insn.load().is_some() && insn.k > OFFSET_MAX
}

#[cfg(test)]
#[path = "flow_graph_tests.rs"]
mod tests;
