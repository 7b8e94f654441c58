//! A program as the kernel's packet sockets run classic BPF (`SO_ATTACH_FILTER`): a filter in the kernel for
//! processes that may open a packet socket and not load eBPF.
//!
//! # What differs
//! - The outer VLAN tag may stand beside the bytes. So there are two *sections*: the program as it is, for frames
//!   without such a tag, and the program with its loads moved, for those with one. A program that looks at nothing
//!   behind the addresses, nor at the length, has only the first.
//! - Offsets from 2^31 on are extensions or relative to other headers in the kernel, and sums of X and an offset come
//!   round. Here they reject, so X is compared first, unless it is known to be small enough.
//! - A shift by 32 bits or more, by X, gives 0 here, and anything in the kernel.
//! - The kernel refuses to load words of scratch memory that some way has not written; here they are 0.
//! - The verdict says how much of the frame is handed over.
//!
//! The translation of one instruction may need a word of scratch memory for itself: one that the program does
//! not use.
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

/// Why there is no classic program for a socket. The way out is the same: the filter runs in user space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClassicError {
    /// Whether the tag is beside the bytes or among them, it has to be found beside them.
    #[error(
        "the filter asks for the VLAN tag beside the frame; a socket's classic filter finds tags among the bytes only"
    )]
    AsksForTag,
    /// One word more is needed.
    #[error(
        "the filter uses all {MEMORY_WORDS} words of scratch memory, and a socket's classic filter needs one for itself"
    )]
    NoWord,
    /// More than the kernel takes.
    #[error(
        "the filter is too long for a socket's classic filter: {insns} instructions, at most {INSNS_MAX}"
    )]
    TooLong {
        /// Classic instructions, for frames with a tag beside them and for those without.
        insns: usize,
    },
}

/// Converts a program. What comes of it returns `taken` for frames that the program takes, which is how many bytes the
/// socket hands over at most, and 0 for the others. It relies on A and X being 0, as they are where a program begins.
///
/// # Errors
/// [`ClassicError`]: it cannot be had with the very same meaning. A program that can be converted may still be too
/// large for the socket's memory (`net.core.optmem_max`), which the kernel says when it is attached.
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
    /// By instruction: the most that X can be before it.
    most_of_x: Vec<u32>,
    taken: u32,
}

impl Code<'_> {
    /// Its instructions that some way leads to, with their numbers.
    fn insns(&self) -> impl Iterator<Item = (usize, Insn)> {
        self.graph.steps.iter().map(|step| (step.at, self.program.insns()[step.at]))
    }

    /// Words of scratch memory to be written first. All that are loaded: the kernel asks for a write on every way, and
    /// sees more ways than there are.
    fn zeroes(&self) -> impl Iterator<Item = u32> {
        let is_loaded = |word: u32| {
            self.insns().any(|(_, insn)| matches!(insn.code, LD_MEM | LDX_MEM) && insn.k == word)
        };
        (0..MEMORY_WORDS as u32).filter(move |word| is_loaded(*word))
    }

    /// A word of scratch memory that it does not use.
    fn spare_word(&self) -> Option<u32> {
        let is_used = |word: u32| {
            let uses = |insn: Insn| matches!(insn.code, LD_MEM | LDX_MEM | ST | STX);
            self.insns().any(|(_, insn)| uses(insn) && insn.k == word)
        };
        (0..MEMORY_WORDS as u32).find(|word| !is_used(*word))
    }

    /// Whether a tag beside the bytes makes a difference.
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
