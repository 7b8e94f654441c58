//! The reference implementation, which runs a program step by step. It is slow and simple; the
//! other forms of a program are compared with it.

use crate::flow_graph::OFFSET_MAX;
use crate::frame::{ByteLocation, Frame, TAG_AT, TAG_BYTES, TAG_PROTOCOLS, Tag, View};
use crate::insn::*;
use crate::program::Program;

/// Runs `program` on `frame` and returns its verdict: 0 rejects.
///
/// It ends after at most as many steps as the program has instructions, because all jumps go
/// forward.
#[must_use]
pub fn run(program: &Program, frame: &Frame<'_>) -> u32 {
    let seen = Seen::new(program, frame);
    let insns = program.insns();
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [0u32; MEMORY_WORDS], 0);
    loop {
        let insn = insns[at];
        at += 1;
        match insn.code {
            RET_K => return insn.k,
            RET_A => return a,
            LD_IMM => a = insn.k,
            LD_MEM => a = memory[insn.k as usize],
            LD_LEN => a = seen.wire_len,
            LDX_IMM => x = insn.k,
            LDX_MEM => x = memory[insn.k as usize],
            LDX_LEN => x = seen.wire_len,
            ST => memory[insn.k as usize] = a,
            STX => memory[insn.k as usize] = x,
            TAX => x = a,
            TXA => a = x,
            JA => at += insn.k as usize,
            _ if insn.is_extension() => a = seen.extension(insn.k),
            _ if insn.load().is_some() => match seen.load(insn, x) {
                None => return 0,
                Some(header) if insn.code == LDX_MSH => x = 4 * (header & 0xf),
                Some(value) => a = value,
            },
            _ if insn.is_conditional_jump() => {
                let operand = if insn.code & X != 0 { x } else { insn.k };
                at += usize::from(if holds(insn.code, a, operand) { insn.jt } else { insn.jf });
            }
            _ => {
                let operand = if insn.code & X != 0 { x } else { insn.k };
                match compute(insn.code, a, operand) {
                    None => return 0,
                    Some(value) => a = value,
                }
            }
        }
    }
}

pub(crate) fn holds(code: u16, a: u32, operand: u32) -> bool {
    match code & 0xf0 {
        JEQ => a == operand,
        JGT => a > operand,
        JGE => a >= operand,
        _ => a & operand != 0,
    }
}

/// Returns the result of an operation; `None` for a division by zero.
pub(crate) fn compute(code: u16, a: u32, operand: u32) -> Option<u32> {
    Some(match code & 0xf0 {
        ADD => a.wrapping_add(operand),
        SUB => a.wrapping_sub(operand),
        MUL => a.wrapping_mul(operand),
        DIV => a.checked_div(operand)?,
        MOD => a.checked_rem(operand)?,
        OR => a | operand,
        AND => a & operand,
        XOR => a ^ operand,
        LSH => a.checked_shl(operand).unwrap_or(0),
        RSH => a.checked_shr(operand).unwrap_or(0),
        _ => a.wrapping_neg(),
    })
}

/// The frame as the program sees it.
struct Seen<'a> {
    bytes: &'a [u8],
    wire_len: u32,
    tag: Option<Tag>,
    view: View,
}

impl<'a> Seen<'a> {
    fn new(program: &Program, frame: &Frame<'a>) -> Seen<'a> {
        let (view, tag) = if !program.asks_for_tag() {
            (if frame.tag.is_some() { View::Insert } else { View::AsIs }, frame.tag)
        } else if frame.tag.is_some() {
            (View::Beside, frame.tag)
        } else {
            match tag_in(frame.bytes) {
                Some(tag) => (View::Remove, Some(tag)),
                None => (View::AsIs, None),
            }
        };
        let wire_len = frame.wire_len.wrapping_add_signed(view.longer());
        Seen { bytes: frame.bytes, wire_len, tag, view }
    }

    fn extension(&self, which: u32) -> u32 {
        match self.tag {
            Some(tag) if self.view.tells_of_tag() => {
                if which == VLAN_TAG {
                    u32::from(tag.tci)
                } else {
                    1
                }
            }
            _ => 0,
        }
    }

    fn load(&self, insn: Insn, x: u32) -> Option<u32> {
        let load = insn.load()?;
        let from = if load.indirect { insn.k.checked_add(x)? } else { insn.k };
        if from > OFFSET_MAX {
            return None;
        }
        let mut value = 0;
        for offset in from..from + u32::from(load.size) {
            value = value << 8 | u32::from(self.byte(offset)?);
        }
        Some(value)
    }

    fn byte(&self, offset: u32) -> Option<u8> {
        match self.view.locate(offset) {
            ByteLocation::Bytes(at) => self.bytes.get(at as usize).copied(),
            ByteLocation::Tag(at) => {
                let tag = self.tag?;
                let bytes = u32::from(tag.protocol) << 16 | u32::from(tag.tci);
                bytes.to_be_bytes().get(at as usize).copied()
            }
        }
    }
}

/// Returns the outer tag in the bytes, if there is a whole one.
fn tag_in(bytes: &[u8]) -> Option<Tag> {
    let tag = bytes.get(TAG_AT..TAG_AT + TAG_BYTES)?;
    let protocol = u16::from_be_bytes([tag[0], tag[1]]);
    let tci = u16::from_be_bytes([tag[2], tag[3]]);
    TAG_PROTOCOLS.contains(&protocol).then_some(Tag { protocol, tci })
}
