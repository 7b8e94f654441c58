//! Converts classic programs to eBPF: one program, which returns its verdict, or a set of programs, which returns a
//! mask of those that take the frame.
//!
//! # Shape
//! The code is a prologue and some *sections*. A section contains all programs one after the other,
//! for frames of one kind, so that no test is repeated for a frame. Kinds differ in the place of
//! the VLAN tag ([`crate::frame`]), and in whether the frame's first bytes can be read in place. If
//! so, loads of these bytes need no check.
//!
//! ```text
//! prologue      registers; the kind of the frame
//! section 0     frames without a tag beside them, first bytes in place
//! section 1     the same, first bytes not in place: each load is checked, and falls back on the helper
//! section 2, 3  frames with a tag beside them: the same programs, offsets after the addresses moved
//! ```
//!
//! | register | contents |
//! |---|---|
//! | r6 | the context; in user space, the frame's length on the wire |
//! | r7, r8 | A and X, upper halves zero |
//! | r9 | the frame's first byte, where that is known to be in place, and in user space |
//! | r4 | user space: number of captured bytes |
//! | r5 | user space: the mask, in sets of several programs |
//! | r0 to r3 | unused between two instructions |
//!
//! Stack, from its upper end: 64 bytes of scratch memory, 8 for a load, 4 of the tag as on the
//! wire, 4 of its TCI, 4 for the kind, 4 for the mask. A set of one program keeps no mask: each of
//! its exits gives the answer.
//!
//! # How to run it
//! The kernel's programs take their context in r1 and give the answer in r0, as 32 bits. Each is
//! self-contained: it needs no maps, no subprograms, no BTF and no GPL license. They replace a
//! function of the capture program: see `docs/decisions/0012-filters-in-the-program.md`.

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

/// The place where the code runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `BPF_PROG_TYPE_XDP`, with or without frags. It sees the frame's bytes. A tag that the driver
    /// has removed is not among them.
    Xdp,
    /// The same, but the caller has asked the driver for the tag: r2 is the tag as on the wire,
    /// protocol first, or 0. The tag is put back.
    XdpTag,
    /// `BPF_PROG_TYPE_SCHED_CLS`. Tags beside the bytes are put back.
    Tc,
    /// `BPF_PROG_TYPE_SOCKET_FILTER`, on a packet socket of type `SOCK_RAW`. Tags are put back.
    Socket,
    /// User space: [`crate::user`] makes machine code of it. At its beginning, r4, r6 and r9
    /// describe the frame.
    User,
}

pub use crate::limits::EBPF_INSNS_MAX;

/// The reason why there is no code. In each case the named filter, or the last ones of the set, can run in user space,
/// and the others are converted without them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// eBPF jumps over 32767 instructions at most.
    #[error(
        "filter {number} of the set is too long for eBPF: its {insns} instructions need jumps over more than 32767"
    )]
    TooLong {
        /// Number of the filter, from 0.
        number: usize,
        /// Number of its classic instructions.
        insns: usize,
    },
    /// The code of all filters together is longer than [`EBPF_INSNS_MAX`].
    #[error(
        "the set's filters are too long for one eBPF program: {insns} instructions, at most {EBPF_INSNS_MAX}"
    )]
    SetTooLong {
        /// Number of eBPF instructions.
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
/// Register of the mask in user space, where no helper is called that would overwrite it.
const USER_MASK: Reg = R5;

/// Offsets in `struct __sk_buff`, linux/bpf.h.
mod skb {
    pub const LEN: i16 = 0;
    pub const VLAN_PRESENT: i16 = 20;
    pub const VLAN_TCI: i16 = 24;
    pub const VLAN_PROTO: i16 = 28;
    pub const DATA: i16 = 76;
    pub const DATA_END: i16 = 80;
}

/// Offsets in `struct xdp_md`, linux/bpf.h.
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
    /// Returns the offsets in the context of the begin and the end of the bytes that can be read in place.
    fn data(self) -> Option<(i16, i16)> {
        match self {
            Target::Xdp | Target::XdpTag => Some((xdp_md::DATA, xdp_md::DATA_END)),
            Target::Tc => Some((skb::DATA, skb::DATA_END)),
            Target::Socket | Target::User => None,
        }
    }

    /// Returns whether a frame's tag may be beside its bytes.
    fn tells_tag(self) -> bool {
        matches!(self, Target::XdpTag | Target::Tc | Target::Socket)
    }
}

/// The way in which a program returns its answer.
#[derive(Clone, Copy, Debug)]
enum Ending {
    /// The verdict is the answer.
    Verdict,
    /// The answer depends on this program only.
    Exit { taken: u32, rejected: u32 },
    /// The program sets its bits in the mask, and the next program follows.
    Next { bits: u32 },
}

/// Converts one program. The code returns the verdict in r0, which is not 0 if the program takes the frame.
///
/// # Errors
/// [`ConvertError::TooLong`], with thousands of instructions. Then the filter runs in user space.
pub fn convert(program: &Program, target: Target) -> Result<Vec<EbpfInsn>, ConvertError> {
    let graph = FlowGraph::of(program.insns(), true);
    let member = Member { program, graph, bits: 0, number: 0 };
    emit(&[(member, Ending::Verdict)], target, None)
}

/// Converts a set of filters: bit `i` of r0 is set if filter `i` takes the frame. `None` takes
/// every frame. Each filter sees the frame as it would alone; equal filters are run once.
///
/// # Errors
/// [`ConvertError`] for filters that are too long, and so must leave the set. The kernel's verifier
/// may still refuse a converted set as too complex when it is loaded; the remedy is the same.
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

/// Returns the code as a program of its own, for a check by the verifier. The caller's argument is an unknown value
/// there.
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

/// Emits the code of these programs, each with its ending. `mask` is the initial value of the mask; `None` for no mask.
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
    // Each section begins with a test whether it is for this frame; if not, it jumps to the next
    // section.
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

/// Names the filter that causes the error: the longest that the jump passes.
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

/// Returns the stack offset of word `index` of scratch memory.
fn memory(index: usize) -> i16 {
    MEMORY + 4 * index as i16
}

/// Returns whether the operation is a shift. A shift by 32 or more gives 0 in classic BPF; eBPF uses only the lower
/// five bits of the count.
fn is_shift(op: u16) -> bool {
    op == LSH || op == RSH
}

#[cfg(test)]
#[path = "ebpf_tests.rs"]
mod tests;
