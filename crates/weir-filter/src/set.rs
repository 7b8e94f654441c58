//! Sets of filters: removes repetitions, and filters that need not run.

use crate::flow_graph::{FlowGraph, To};
use crate::program::Program;

pub use crate::limits::SET_MAX;

/// A set without its repetitions.
#[derive(Debug)]
pub(crate) struct Distinct<'a> {
    /// The bits of filters that take every frame.
    pub always: u32,
    /// Programs that must be run.
    pub members: Vec<Member<'a>>,
}

/// A program of a set.
#[derive(Debug)]
pub(crate) struct Member<'a> {
    pub program: &'a Program,
    pub graph: FlowGraph,
    /// Bits of the filters that have this program.
    pub bits: u32,
    /// Number of the first of these filters.
    pub number: usize,
}

impl<'a> Distinct<'a> {
    /// Removes the repetitions from a set. Filter `i` of the set has bit `i`; `None` takes every frame.
    pub(crate) fn of(set: &[Option<&'a Program>]) -> Distinct<'a> {
        assert!(set.len() <= SET_MAX, "a set has {SET_MAX} filters at most, not {}", set.len());
        let mut distinct = Distinct { always: 0, members: Vec::new() };
        for (number, program) in set.iter().enumerate() {
            let bit = 1 << number;
            let Some(program) = program else {
                distinct.always |= bit;
                continue;
            };
            // There are at most 32 members, and most differ in an early instruction.
            if let Some(same) = distinct.members.iter_mut().find(|m| m.program == *program) {
                same.bits |= bit;
                continue;
            }
            let graph = FlowGraph::of(program.insns(), false);
            match graph.entry {
                To::Take => distinct.always |= bit,
                To::Reject => {}
                To::Insn(_) => distinct.members.push(Member { program, graph, bits: bit, number }),
            }
        }
        distinct
    }
}
