//! Converts a program to classic BPF, as the kernel runs it on packet sockets (`SO_ATTACH_FILTER`):
//! a filter in the kernel for processes that may open a packet socket but not load eBPF.
//!
//! # Differences
//! - The outer VLAN tag may be beside the bytes. So there are two *sections*: the program unchanged,
//!   for frames without such a tag, and the program with its loads moved, for frames with one. A
//!   program that reads neither the length nor bytes after the addresses has only the first.
//! - In the kernel, offsets from 2^31 on are extensions or relative to other headers, and the sum of
//!   X and an offset wraps around. Here such loads reject, so X is compared first, unless it is known
//!   to be small enough.
//! - A shift by X of 32 bits or more gives 0 here. In the kernel its result is undefined.
//! - The kernel refuses to load words of scratch memory that some path has not written. Here they
//!   are 0.
//! - The verdict is the number of bytes of the frame that are delivered.
//!
//! The translation of an instruction may need an additional word of scratch memory: one that the
//! program does not use.
//!
//! Source: `bpf_check_classic` and `bpf_convert_filter`, net/core/filter.c.

mod asm;
mod load;
mod section;

use crate::flow_graph::{FlowGraph, To};
use crate::insn::*;
use crate::program::Program;
use crate::reach::most_of_x;
use crate::verify::INSNS_MAX;
use asm::Asm;
use section::Section;

/// The reason why there is no classic program for a socket. In each case the filter can run in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassicError {
    /// The program reads the tag beside the bytes, and expects it there even if it is in the bytes.
    #[error(
        "the filter asks for the VLAN tag beside the frame; a socket's classic filter finds tags among the bytes only"
    )]
    AsksForTag,
    /// The converted program needs one more word of scratch memory than there are.
    #[error(
        "the filter uses all {MEMORY_WORDS} words of scratch memory, and a socket's classic filter needs one for itself"
    )]
    NoWord,
    /// The converted program has more instructions than the kernel accepts.
    #[error(
        "the filter is too long for a socket's classic filter: {insns} instructions, at most {INSNS_MAX}"
    )]
    TooLong {
        /// Number of classic instructions, for frames with a tag beside them and for those without.
        insns: usize,
    },
}

/// Converts a program. The result returns `taken`, the most bytes that the socket delivers, for
/// frames that the program takes, and 0 for others. It relies on A and X being 0 at its beginning.
///
/// # Errors
/// [`ClassicError`] if it cannot be converted with the same meaning. A converted program may still
/// be too large for the socket's memory (`net.core.optmem_max`); then the kernel refuses to attach
/// it.
///
/// # Panics
/// If `taken` is 0.
pub fn convert(program: &Program, taken: u32) -> Result<Vec<Insn>, ClassicError> {
    assert!(taken > 0, "0 rejects");
    if program.asks_for_tag() {
        return Err(ClassicError::AsksForTag);
    }
    let graph = FlowGraph::of(program.insns(), false);
    match graph.entry {
        To::Take => return Ok(vec![Insn::new(RET_K, taken)]),
        To::Reject => return Ok(vec![Insn::new(RET_K, 0)]),
        To::Insn(_) => {}
    }
    let code = Code { program, graph, most_of_x: most_of_x(program.insns()), taken };
    let mut asm = Asm::default();
    code.zeroes().for_each(|word| asm.emit(ST, word));
    let mut section = Section::new(&code, asm);
    if code.sees_tags() {
        section.branch_by_tag();
    } else {
        section.emit();
    }
    let insns = section.finish()?;
    if insns.len() > INSNS_MAX {
        return Err(ClassicError::TooLong { insns: insns.len() });
    }
    Ok(insns)
}

/// A program, and known facts about it.
struct Code<'a> {
    program: &'a Program,
    graph: FlowGraph,
    /// For each instruction, an upper bound of X before it.
    most_of_x: Vec<u32>,
    taken: u32,
}

impl Code<'_> {
    /// Returns the program's reachable instructions, with their numbers.
    fn insns(&self) -> impl Iterator<Item = (usize, Insn)> {
        self.graph.steps.iter().map(|step| (step.at, self.program.insns()[step.at]))
    }

    /// Returns the words of scratch memory that must be written first: all that are loaded. The kernel requires a write
    /// on every path, and also assumes paths that cannot be taken.
    fn zeroes(&self) -> impl Iterator<Item = u32> {
        let is_loaded = |word: u32| {
            self.insns().any(|(_, insn)| matches!(insn.code, LD_MEM | LDX_MEM) && insn.k == word)
        };
        (0..MEMORY_WORDS as u32).filter(move |word| is_loaded(*word))
    }

    /// Returns a word of scratch memory that the program does not use.
    fn spare_word(&self) -> Option<u32> {
        let is_used = |word: u32| {
            let uses = |insn: Insn| matches!(insn.code, LD_MEM | LDX_MEM | ST | STX);
            self.insns().any(|(_, insn)| uses(insn) && insn.k == word)
        };
        (0..MEMORY_WORDS as u32).find(|word| !is_used(*word))
    }

    /// Returns whether a tag beside the bytes makes a difference.
    fn sees_tags(&self) -> bool {
        self.insns().any(|(at, insn)| match insn.load() {
            Some(found) => load::reaches_tag(found, insn.k, self.most_of_x[at]),
            None => matches!(insn.code, LD_LEN | LDX_LEN),
        })
    }
}

#[cfg(test)]
#[path = "classic_tests.rs"]
mod tests;
