//! A classic program as eBPF.
//!
//! # Shape
//! The code is a prologue and some *sections*, each the whole program for frames of one kind, so that a
//! frame meets no question twice. Kinds differ in where the VLAN tag is ([`crate::frame`]), and in whether
//! the frame's first bytes can be read in place: then loads among them need no check of their own.
//!
//! ```text
//! prologue      registers, scratch memory; which kind of frame is it?
//! section 0     frames without a tag beside them, first bytes in place
//! section 1     the same, first bytes not in place: each load is checked, and falls back on the helper
//! section 2, 3  frames with a tag beside them: the same program, offsets behind the addresses moved
//! ```
//!
//! | register | what |
//! |---|---|
//! | r6 | the context |
//! | r7, r8 | A and X, upper halves zero |
//! | r9 | the frame's first byte |
//! | r4 | user space: bytes there are |
//! | r0 to r3 | between two instructions: nothing |
//!
//! Stack, from its upper end: 64 bytes of scratch memory, 8 for a load, 4 of the tag as on the wire, 4 of its
//! TCI, 4 for the kind.
//!
//! # How to run it
//! The kernel's programs take their context in r1 and give the verdict in r0, as 32 bits. Each stands alone:
//! no maps, no subprograms, no BTF, GPL not needed. They are made to be tail-called from a subprogram of the
//! capture program, where the verdict comes back as the subprogram's result: see
//! `docs/decisions/0009-filter-homes.md`.

mod asm;
mod load;
mod section;

use crate::flow::Flow;
use crate::frame::{TAG_AT, TAG_PROTOCOLS, View};
use crate::insn::{LSH, MEMORY_WORDS, RSH};
use crate::program::Program;
pub use asm::EbpfInsn;
use asm::{Asm, Condition, FP, Label, Operand, R1, R2, R3, R4, R6, R7, R8, R9};
use section::Section;

/// Where the code is to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// `BPF_PROG_TYPE_XDP`, with or without frags. It sees the frame's bytes; a tag that the driver took
    /// off is not among them.
    Xdp,
    /// `BPF_PROG_TYPE_SCHED_CLS`. Tags beside the bytes are put back.
    Tc,
    /// `BPF_PROG_TYPE_SOCKET_FILTER`, on a packet socket of type `SOCK_RAW`. Tags are put back.
    Socket,
    /// User space; r1 points to a [`UserContext`].
    User,
}

/// What r1 points to in user space.
#[repr(C)]
#[derive(Debug)]
pub struct UserContext {
    /// The frame's bytes.
    pub bytes: *const u8,
    /// How many there are.
    pub caplen: u64,
    /// How many there were on the wire: at most `u32::MAX`.
    pub wire_len: u64,
}

/// Why a program cannot be converted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConvertError {
    /// eBPF jumps over 32767 instructions at most.
    #[error("the filter is too long for eBPF: {insns} instructions need jumps of more than 32767")]
    TooLong {
        /// Classic instructions.
        insns: usize,
    },
}

/// Offsets in the stack, from r10.
const MEMORY: i16 = -64;
const BUFFER: i16 = -72;
const TAG: i16 = -76;
const TCI: i16 = -80;
const KIND: i16 = -84;

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
            Target::Xdp => Some((xdp_md::DATA, xdp_md::DATA_END)),
            Target::Tc => Some((skb::DATA, skb::DATA_END)),
            Target::Socket | Target::User => None,
        }
    }

    fn has_skb(self) -> bool {
        matches!(self, Target::Tc | Target::Socket)
    }

    /// The ways in which frames come, for this program.
    fn views(self, program: &Program) -> Vec<View> {
        match (self.has_skb(), program.asks_for_tag()) {
            (false, false) => vec![View::AsIs],
            (true, false) => vec![View::AsIs, View::Insert],
            (false, true) => vec![View::AsIs, View::Remove],
            (true, true) => vec![View::AsIs, View::Remove, View::Beside],
        }
    }
}

/// Converts.
///
/// # Errors
/// [`ConvertError::TooLong`], with some thousands of instructions: the next home takes the filter.
pub fn convert(program: &Program, target: Target) -> Result<Vec<EbpfInsn>, ConvertError> {
    let flow = Flow::of(program.insns());
    let views = target.views(program);
    let mut asm = Asm::default();
    prologue(&mut asm, target, &flow);
    if views.len() > 1 {
        kind(&mut asm, target, &views);
    }
    // Each section's first question is whether it is for this frame; if not, on to the next section. A
    // chain, because one jump over several long sections could be too far.
    let mut next = None;
    for (number, &view) in views.iter().enumerate() {
        let known = section::bytes_in_place(program, &flow, target, view);
        let checked = if known > 0 { &[known, 0][..] } else { &[0][..] };
        for &in_place in checked {
            if let Some(label) = next.take() {
                asm.place(label);
            }
            let last = number + 1 == views.len() && in_place == 0;
            let other = asm.label();
            if !last {
                guard(&mut asm, target, views.len(), number, in_place, other);
                next = Some(other);
            }
            Section::new(&mut asm, program, &flow, target, view, in_place).emit();
        }
    }
    asm.finish().map_err(|_| ConvertError::TooLong { insns: program.insns().len() })
}

fn prologue(asm: &mut Asm, target: Target, flow: &Flow) {
    asm.mov(R6, Operand::Reg(R1));
    asm.mov(R7, Operand::Imm(0));
    asm.mov(R8, Operand::Imm(0));
    for word in 0..MEMORY_WORDS {
        if flow.memory_read[word] {
            asm.store_imm(4, FP, memory(word), 0);
        }
    }
    if let Some((data, _)) = target.data() {
        asm.load(4, R9, R6, data);
    } else if target == Target::User {
        asm.load(8, R9, R6, 0);
        asm.load(8, R4, R6, 8);
    }
}

/// Where word `index` of scratch memory is.
fn memory(index: usize) -> i16 {
    MEMORY + 4 * index as i16
}

/// Finds which of the views is right for the frame, writes its number down, and the tag beside it.
fn kind(asm: &mut Asm, target: Target, views: &[View]) {
    let number_of = |view| views.iter().position(|v| *v == view);
    let (known, in_bytes) = (asm.label(), asm.label());
    asm.store_imm(4, FP, KIND, 0);
    if let Some(number) = number_of(View::Insert).or(number_of(View::Beside)) {
        let present = asm.label();
        asm.load(4, R1, R6, skb::VLAN_PRESENT);
        asm.jump_if(Condition::Equal, R1, Operand::Imm(0), in_bytes);
        asm.store_imm(4, FP, KIND, number as i32);
        asm.load(4, R1, R6, skb::VLAN_TCI);
        asm.store(4, FP, TCI, R1);
        asm.big_endian(R1, 2);
        asm.store(2, FP, TAG + 2, R1);
        asm.load(4, R1, R6, skb::VLAN_PROTO);
        asm.jump_if(Condition::NotEqual, R1, Operand::Imm(0), present);
        // A missing protocol means 802.1Q, as for the rest of the kernel's users.
        asm.mov(R1, Operand::Imm(i32::from(TAG_PROTOCOLS[0].to_be())));
        asm.place(present);
        asm.store(2, FP, TAG, R1);
        asm.jump(known);
    }
    asm.place(in_bytes);
    if let Some(number) = number_of(View::Remove) {
        // A frame that ends before the tag does has none.
        load::bytes(asm, target, 0, load::At::Constant(TAG_AT as u32), 4, R7, known);
        asm.mov(R1, Operand::Reg(R7));
        asm.alu32(RSH, R1, Operand::Imm(16));
        asm.alu32(crate::insn::AND, R7, Operand::Imm(0xffff));
        asm.store(4, FP, TCI, R7);
        asm.mov(R7, Operand::Imm(0));
        let tagged = asm.label();
        for protocol in TAG_PROTOCOLS {
            asm.jump_if(Condition::Equal, R1, Operand::Imm(i32::from(protocol)), tagged);
        }
        asm.jump(known);
        asm.place(tagged);
        asm.store_imm(4, FP, KIND, number as i32);
    }
    asm.place(known);
}

/// Goes to `other` unless the frame is of this section's kind.
fn guard(asm: &mut Asm, target: Target, views: usize, number: usize, in_place: u32, other: Label) {
    if views > 1 {
        asm.load(4, R1, FP, KIND);
        asm.jump_if(Condition::NotEqual, R1, Operand::Imm(number as i32), other);
    }
    if in_place == 0 {
        return;
    }
    match target.data() {
        Some((_, end)) => {
            asm.load(4, R3, R6, end);
            asm.mov(R2, Operand::Reg(R9));
            asm.add(R2, Operand::Imm(in_place as i32));
            asm.jump_if(Condition::Greater, R2, Operand::Reg(R3), other);
        }
        None => asm.jump_if(Condition::Less, R4, Operand::Imm(in_place as i32), other),
    }
}

/// Shifts of classic BPF by 32 or more give 0; those of eBPF take the lower five bits.
fn is_shift(op: u16) -> bool {
    op == LSH || op == RSH
}
