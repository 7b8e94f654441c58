use super::*;

const JEQ_K: u16 = JMP | JEQ;

fn graph(insns: &[Insn]) -> FlowGraph {
    FlowGraph::of(insns, false)
}

fn steps(graph: &FlowGraph) -> Vec<usize> {
    graph.steps.iter().map(|step| step.at).collect()
}

#[test]
fn jumps_are_followed_to_where_they_end() {
    let insns = [
        Insn::new(LD_B_ABS, 0),
        Insn::jump(JEQ_K, 1, 0, 1),
        Insn::new(JA, 1),
        Insn::new(LD_B_ABS, u32::MAX), // no frame is that long
        Insn::new(JA, 1),
        Insn::new(RET_K, 0),
        Insn::new(RET_K, 7),
    ];
    let graph = graph(&insns);
    assert_eq!(graph.entry, To::Insn(0));
    assert_eq!(steps(&graph), [0, 1]);
    assert_eq!(graph.steps[1].then, Then::If(To::Take, To::Reject));
    // If the values of verdicts matter, a `ret` that takes frames is a step of its own.
    let graph = FlowGraph::of(&insns, true);
    assert_eq!(steps(&graph), [0, 1, 6]);
    assert_eq!(graph.steps[1].then, Then::If(To::Insn(6), To::Reject));
    assert_eq!(graph.steps[2].then, Then::End);
}

#[test]
fn conditions_that_change_nothing_are_left_out() {
    let insns =
        [Insn::jump(JEQ_K, 1, 0, 1), Insn::new(RET_K, 7), Insn::new(JA, 0), Insn::new(RET_K, 8)];
    assert_eq!(graph(&insns).entry, To::Take);
    assert_eq!(steps(&FlowGraph::of(&insns, true)), [0, 1, 3]);
}

#[test]
fn what_is_read_before_it_is_written_begins_as_zero() {
    let written = [Insn::new(LD_IMM, 1), Insn::new(ST, 2), Insn::new(LDX_MEM, 2)];
    let ret = [Insn::new(RET_A, 0)];
    assert_eq!(graph(&[&written[..], &ret].concat()).begins_as_zero, 0);
    assert_eq!(graph(&ret).begins_as_zero, A);
    assert_eq!(graph(&[Insn::new(TXA, 0), ret[0]]).begins_as_zero, X_REG);
    // M[3] is written on one path and not on the other.
    let one_way = [
        Insn::new(LD_IMM, 1),
        Insn::jump(JEQ_K, 1, 0, 1),
        Insn::new(ST, 3),
        Insn::new(LD_MEM, 3),
        ret[0],
    ];
    assert_eq!(graph(&one_way).begins_as_zero, 1 << 3);
    let indirect = [Insn::new(LD_H_IND, 14), Insn::new(ALU | ADD | X, 0), ret[0]];
    assert_eq!(graph(&indirect).begins_as_zero, X_REG);
}
