//! Classic programs as eBPF: one, for its verdict, or a set of them, for a mask of those that take the frame.
//!
//! # Shape
//! The code is a prologue and some *sections*, each all programs one after the other for frames of one kind,
//! so that a frame meets no question twice. Kinds differ in where the VLAN tag is ([`crate::frame`]), and in
//! whether the frame's first bytes can be read in place: then loads among them need no check of their own.
//!
//! ```text
//! prologue      registers; which kind of frame is it?
//! section 0     frames without a tag beside them, first bytes in place
//! section 1     the same, first bytes not in place: each load is checked, and falls back on the helper
//! section 2, 3  frames with a tag beside them: the same programs, offsets behind the addresses moved
//! ```
//!
//! | register | what |
//! |---|---|
//! | r6 | the context; in user space, the frame's length on the wire |
//! | r7, r8 | A and X, upper halves zero |
//! | r9 | the frame's first byte, where that is known to be in place, and in user space |
//! | r4 | user space: bytes there are |
//! | r5 | user space: the mask, in sets of several programs |
//! | r0 to r3 | between two instructions: nothing |
//!
//! Stack, from its upper end: 64 bytes of scratch memory, 8 for a load, 4 of the tag as on the wire, 4 of its
//! TCI, 4 for the kind, 4 for the mask. A set of one keeps no mask: each of its ends knows its answer.
//!
//! # How to run it
//! The kernel's programs take their context in r1 and give the answer in r0, as 32 bits. Each stands alone:
//! no maps, no subprograms, no BTF, GPL not needed. They are made to come in the place of a function of the
//! capture program: see `docs/decisions/0012-filters-in-the-program.md`.

mod asm;
mod kind;
mod load;
mod section;

use std::ops::Range;

use crate::flow_graph::FlowGraph;
use crate::insn::{LSH, RSH};
use crate::program::Program;
pub use crate::set::SET_MAX;
use crate::set::{Distinct, Member};
pub use asm::EbpfInsn;
use asm::{Asm, FP, Operand, R0, R1, R2, R5, R6, Reg, TooFar};
use kind::Kind;
use section::Section;

/// Where the code is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `BPF_PROG_TYPE_XDP`, with or without frags. It sees the frame's bytes; a tag that the driver took
    /// off is not among them.
    Xdp,
    /// The same, and the caller has asked the driver: r2 is the tag as it stands on the wire, protocol first, or 0. It
    /// is put back.
    XdpTag,
    /// `BPF_PROG_TYPE_SCHED_CLS`. Tags beside the bytes are put back.
    Tc,
    /// `BPF_PROG_TYPE_SOCKET_FILTER`, on a packet socket of type `SOCK_RAW`. Tags are put back.
    Socket,
    /// User space: [`crate::user`] makes machine code of it. It begins with the frame in r4, r6 and r9.
    User,
}

pub use crate::limits::EBPF_INSNS_MAX;

/// Why there is no code. The way out is the same: the filter named, or the last ones of the set, run in user
/// space, and the others are converted without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// eBPF jumps over 32767 instructions at most.
    #[error(
        "filter {number} of the set is too long for eBPF: its {insns} instructions need jumps over more than 32767"
    )]
    TooLong {
        /// Which filter, from 0.
        number: usize,
        /// Its classic instructions.
        insns: usize,
    },
    /// All together are more than [`EBPF_INSNS_MAX`].
    #[error(
        "the set's filters are too long for one eBPF program: {insns} instructions, at most {EBPF_INSNS_MAX}"
    )]
    SetTooLong {
        /// eBPF instructions.
        insns: usize,
    },
}

/// Offsets in the stack, from r10.
const MEMORY: i16 = -64;
const BUFFER: i16 = -72;
const TAG: i16 = -76;
const TCI: i16 = -80;
const KIND: i16 = -84;
const MASK: i16 = -88;
/// The mask in user space, where no helper is called that would spoil it.
const USER_MASK: Reg = R5;

/// `struct __sk_buff`, linux/bpf.h.
mod skb {
    pub const LEN: i16 = 0;
    pub const VLAN_PRESENT: i16 = 20;
    pub const VLAN_TCI: i16 = 24;
    pub const VLAN_PROTO: i16 = 28;
    pub const DATA: i16 = 76;
    pub const DATA_END: i16 = 80;
}

/// `struct xdp_md`, linux/bpf.h.
mod xdp_md {
    pub const DATA: i16 = 0;
    pub const DATA_END: i16 = 4;
    pub const RX_QUEUE_INDEX: i16 = 16;
}

/// Numbers of helpers, linux/bpf.h.
mod helper {
    pub const SKB_LOAD_BYTES: i32 = 26;
    pub const XDP_GET_BUFF_LEN: i32 = 188;
    pub const XDP_LOAD_BYTES: i32 = 189;
}

impl Target {
    /// Where the context has the ends of the bytes that can be read in place.
    fn data(self) -> Option<(i16, i16)> {
        match self {
            Target::Xdp | Target::XdpTag => Some((xdp_md::DATA, xdp_md::DATA_END)),
            Target::Tc => Some((skb::DATA, skb::DATA_END)),
            Target::Socket | Target::User => None,
        }
    }

    /// Whether a frame's tag may be beside its bytes.
    fn tells_tag(self) -> bool {
        matches!(self, Target::XdpTag | Target::Tc | Target::Socket)
    }
}

/// How a program gives its answer.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The verdict is the answer.
    Verdict,
    /// The answer depends on this program only.
    Exit { taken: u32, rejected: u32 },
    /// It adds to the mask, and the next program follows.
    Next { bits: u32 },
}

/// Converts one program: r0 is its verdict, not 0 if it takes the frame.
///
/// # Errors
/// [`ConvertError::TooLong`], with some thousands of instructions: the filter runs in user space then.
pub fn convert(program: &Program, target: Target) -> Result<Vec<EbpfInsn>, ConvertError> {
    let graph = FlowGraph::of(program.insns(), true);
    let member = Member { program, graph, bits: 0, number: 0 };
    emit(&[(member, Ending::Verdict)], target, None)
}

/// Converts a set of filters: bit `i` of r0 says that filter `i` takes the frame. `None` takes every frame.
/// Each of them sees the frame as it would alone; equal ones are run once.
///
/// # Errors
/// What is too long, and so has to leave the set. A set that can be converted may still be too much
/// for the kernel's verifier, which says so when it is loaded; the way out is the same.
///
/// # Panics
/// With more than [`SET_MAX`] filters.
pub fn convert_set(
    set: &[Option<&Program>],
    target: Target,
) -> Result<Vec<EbpfInsn>, ConvertError> {
    let Distinct { always, members } = Distinct::of(set);
    let is_alone = members.len() == 1;
    let ending = |bits| match is_alone {
        true => Ending::Exit { taken: always | bits, rejected: always },
        false => Ending::Next { bits },
    };
    let members: Vec<_> = members
        .into_iter()
        .map(|member| {
            let ending = ending(member.bits);
            (member, ending)
        })
        .collect();
    emit(&members, target, (!is_alone).then_some(always))
}

/// The code as a program that stands alone, for the verifier to look at: a caller's argument is anything there.
#[must_use]
pub fn alone(code: &[EbpfInsn], target: Target) -> Vec<EbpfInsn> {
    let mut asm = Asm::default();
    if target == Target::XdpTag {
        asm.load(4, R2, R1, xdp_md::RX_QUEUE_INDEX);
    }
    let mut whole = asm.finish().expect("it jumps nowhere");
    whole.extend(code);
    whole
}

/// The code of these programs, each with its ending. With `mask`, that is the initial value of the
/// mask.
fn emit(
    members: &[(Member<'_>, Ending)],
    target: Target,
    mask: Option<u32>,
) -> Result<Vec<EbpfInsn>, ConvertError> {
    let mut asm = Asm::default();
    if let (Some(mask), []) = (mask, members) {
        asm.mov32(R0, mask);
        asm.exit();
        return Ok(asm.finish().expect("it jumps nowhere"));
    }
    prologue(&mut asm, target, mask);
    let kinds = Kind::all(target, members.iter().any(|(member, _)| member.program.asks_for_tag()));
    if kinds.len() > 1 {
        kind::find(&mut asm, target, &kinds);
    }
    // Each section's first question is whether it is for this frame; if not, on to the next section.
    let mut pieces = Vec::new();
    let mut next = None;
    for (number, &kind) in kinds.iter().enumerate() {
        let known = members.iter().map(|(Member { program, graph, .. }, _)| {
            section::bytes_in_place(program, graph, target, kind.view(program))
        });
        let known = known.max().unwrap_or(0);
        let checked = if known > 0 { &[known, 0][..] } else { &[0][..] };
        for &in_place in checked {
            if let Some(label) = next.take() {
                asm.place(label);
            }
            let mut hops = None;
            if number + 1 < kinds.len() || in_place > 0 {
                let other = asm.label();
                let number = (kinds.len() > 1).then_some(number);
                kind::guard(&mut asm, target, number, in_place, other);
                hops = Some(asm::Hops::to(other, &asm));
            }
            for (member, ending) in members {
                if let Some(hops) = &mut hops {
                    hops.hop(&mut asm);
                }
                let begin = asm.len();
                let frames = (target, kind.view(member.program), in_place);
                Section::new(&mut asm, member.program, &member.graph, frames, *ending).emit();
                pieces.push((begin..asm.len(), member));
            }
            if mask.is_some() {
                match target {
                    Target::User => asm.mov(R0, Operand::Reg(USER_MASK)),
                    _ => asm.load(4, R0, FP, MASK),
                }
                asm.exit();
            }
            next = hops.map(asm::Hops::end);
        }
    }
    let insns = asm.len();
    if insns > EBPF_INSNS_MAX {
        return Err(ConvertError::SetTooLong { insns });
    }
    asm.finish().map_err(|too_far| too_long(&too_far, &pieces))
}

/// Names the filter that is to blame: the longest that the jump passes through.
fn too_long(&TooFar { from, to }: &TooFar, pieces: &[(Range<usize>, &Member<'_>)]) -> ConvertError {
    let passed = pieces.iter().filter(|(piece, _)| piece.start < to && from < piece.end);
    let longest = passed.max_by_key(|(piece, _)| piece.len());
    let (_, member) = longest.expect("jumps between programs are made short");
    ConvertError::TooLong { number: member.number, insns: member.program.insns().len() }
}

fn prologue(asm: &mut Asm, target: Target, mask: Option<u32>) {
    if target != Target::User {
        asm.mov(R6, Operand::Reg(R1));
    }
    match (mask, target) {
        (Some(mask), Target::User) => asm.mov32(USER_MASK, mask),
        (Some(mask), _) => asm.store_imm(4, FP, MASK, mask as i32),
        (None, _) => {}
    }
}

/// Where word `index` of scratch memory is.
fn memory(index: usize) -> i16 {
    MEMORY + 4 * index as i16
}

/// Shifts of classic BPF by 32 or more give 0; those of eBPF take the lower five bits.
fn is_shift(op: u16) -> bool {
    op == LSH || op == RSH
}

#[cfg(test)]
#[path = "ebpf_tests.rs"]
mod tests;
