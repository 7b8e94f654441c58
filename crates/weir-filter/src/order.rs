//! Finds the loads that can leave their bytes in network byte order.
//!
//! Most loaded values are only compared with constants, such as an EtherType or a port. Then the
//! constant can be swapped once, when code is made, instead of the bytes of each frame. This is
//! sound if A is only tested for equality and common bits, and if the tests know the byte order: on
//! all paths to a test, A comes from loads of the same size, and none of them swaps its bytes.

use crate::insn::*;
use crate::step::{A, Step, To, uses};

/// Loads whose value some test may see, and the tests that may see it. All of them use the same
/// byte order.
struct Group {
    /// The group to which this group has been joined; its own number if it is not joined.
    into: usize,
    /// Size of the loads; `None` if a number is needed or provided.
    size: Option<u8>,
}

struct Groups(Vec<Group>);

impl Groups {
    fn begin(&mut self, size: Option<u8>) -> usize {
        self.0.push(Group { into: self.0.len(), size });
        self.0.len() - 1
    }

    fn whole(&self, mut group: usize) -> usize {
        while self.0[group].into != group {
            group = self.0[group].into;
        }
        group
    }

    fn size(&self, group: usize) -> Option<u8> {
        self.0[self.whole(group)].size
    }

    fn need_numbers(&mut self, group: usize) {
        let group = self.whole(group);
        self.0[group].size = None;
    }

    fn join(&mut self, one: usize, other: usize) -> usize {
        let (one, other) = (self.whole(one), self.whole(other));
        if self.0[one].size != self.0[other].size {
            self.0[one].size = None;
        }
        self.0[other].into = one;
        one
    }
}

/// Returns, for each step, the size of the value that A holds in network byte order: after the step if it is a load,
/// before it if it is a test. `None` if A is a number there, and for all other steps.
pub(crate) fn of_network(insns: &[Insn], steps: &[Step]) -> Vec<Option<u8>> {
    let mut number = vec![usize::MAX; insns.len()];
    steps.iter().enumerate().for_each(|(n, step)| number[step.at] = n);
    let next = |to| if let To::Insn(at) = to { Some(number[at]) } else { None };
    // Whether the value of A at the beginning of a step is read by it or after it.
    let mut is_live = vec![false; steps.len()];
    for (n, step) in steps.iter().enumerate().rev() {
        let (reads, writes) = uses(insns[step.at]);
        let behind = || step.then.ways().filter_map(next).any(|to| is_live[to]);
        is_live[n] = reads & A != 0 || writes & A == 0 && behind();
    }
    let mut groups = Groups(Vec::new());
    // The group of A at the beginning of each step. A program begins with the number 0.
    let mut before = vec![None; steps.len()];
    if let Some(first) = before.first_mut() {
        *first = Some(groups.begin(None));
    }
    let mut own = vec![None; steps.len()];
    for (n, step) in steps.iter().enumerate() {
        let insn = insns[step.at];
        let (reads, writes) = uses(insn);
        let mut group = before[n];
        if let (true, Some(group)) = (reads & A != 0, group) {
            match is_question(insn, groups.size(group)) {
                true => own[n] = Some(group),
                false => groups.need_numbers(group),
            }
        }
        if writes & A != 0 {
            let size = insn.load().map(|load| load.size).filter(|size| *size > 1);
            let new = groups.begin(size);
            group = Some(new);
            own[n] = size.map(|_| new);
        }
        for to in step.then.ways().filter_map(next).filter(|to| is_live[*to]) {
            before[to] = match (before[to], group) {
                (Some(one), Some(other)) => Some(groups.join(one, other)),
                (one, other) => one.or(other),
            };
        }
    }
    own.into_iter().map(|group| groups.size(group?)).collect()
}

/// Returns whether the instruction is a test that gives the right result on bytes in network byte order.
fn is_question(insn: Insn, size: Option<u8>) -> bool {
    let is_short = size.is_some_and(|size| size >= 4 || insn.k < 1 << (8 * size));
    insn.is_conditional_jump()
        && insn.code & X == 0
        && matches!(insn.code & 0xf0, JEQ | JSET)
        && is_short
}

/// Returns the constant of a test in the byte order of A: `size` bytes in network byte order.
pub(crate) fn turned(k: u32, size: u8) -> u32 {
    k.swap_bytes() >> (32 - 8 * u32::from(size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flow_graph::FlowGraph;

    fn sizes(insns: &[Insn]) -> Vec<Option<u8>> {
        let graph = FlowGraph::of(insns, true);
        assert_eq!(graph.steps.len(), insns.len(), "every instruction is reached");
        graph.steps.iter().map(|step| step.of_network).collect()
    }

    const RET: [Insn; 2] = [Insn::new(RET_K, 1), Insn::new(RET_K, 2)];

    #[test]
    fn what_is_only_compared_stays_as_it_is() {
        let equal = Insn::jump(JMP | JEQ, 0x800, 1, 0);
        let bits = Insn::jump(JMP | JSET, 0x1fff, 0, 1);
        let insns = [&[Insn::new(LD_H_ABS, 12), equal, bits][..], &RET].concat();
        assert_eq!(sizes(&insns), [Some(2), Some(2), Some(2), None, None]);
        let insns = [&[Insn::new(LD_W_IND, 12), equal, bits][..], &RET].concat();
        assert_eq!(sizes(&insns), [Some(4), Some(4), Some(4), None, None]);
        let byte = [&[Insn::new(LD_B_ABS, 12), Insn::jump(JMP | JEQ, 8, 0, 1)][..], &RET].concat();
        assert_eq!(sizes(&byte), [None; 4]);
    }

    #[test]
    fn one_question_about_a_number_makes_numbers_of_all() {
        let equal = Insn::jump(JMP | JEQ, 0x800, 1, 0);
        for other in [
            Insn::jump(JMP | JGT, 5, 0, 1),
            Insn::jump(JMP | JEQ | X, 5, 0, 1),
            Insn::jump(JMP | JEQ, 0x10000, 0, 1), // no two bytes
        ] {
            let insns = [&[Insn::new(LD_H_ABS, 12), equal, other][..], &RET].concat();
            assert_eq!(sizes(&insns), [None; 5], "{other:?}");
        }
        let kept = [Insn::new(LD_H_ABS, 12), Insn::new(TAX, 0), Insn::jump(JMP | JEQ, 7, 0, 1)];
        assert_eq!(sizes(&[&kept[..], &RET].concat()), [None; 5]);
    }

    #[test]
    fn ways_that_meet_bring_the_same_or_numbers() {
        let two_ways = |other: Insn| {
            let question = Insn::jump(JMP | JEQ, 80, 0, 1);
            let first = [Insn::new(LD_H_ABS, 12), Insn::jump(JMP | JEQ, 7, 1, 0)];
            sizes(&[&first[..], &[other, question], &RET].concat())
        };
        let same = two_ways(Insn::new(LD_H_ABS, 14));
        assert_eq!(same, [Some(2), Some(2), Some(2), Some(2), None, None]);
        for other in [Insn::new(LD_W_ABS, 14), Insn::new(LD_LEN, 0), Insn::new(LD_B_ABS, 1)] {
            assert_eq!(two_ways(other), [None; 6], "{other:?}");
        }
    }

    #[test]
    fn a_constant_is_turned_round_in_as_many_bytes() {
        assert_eq!((turned(0x800, 2), turned(0x0102_0304, 4)), (0x8, 0x0403_0201));
    }
}
