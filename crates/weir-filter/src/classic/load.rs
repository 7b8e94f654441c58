//! Loads from frames whose outer tag is beside the bytes: before the tag, after it, and from it.

use super::asm::Asm;
use crate::flow_graph::OFFSET_MAX;
use crate::frame::{TAG_AT, TAG_BYTES, TAG_PROTOCOLS};
use crate::insn::*;

/// Offsets of the tag's begin and end, in the frame on the wire.
const BEGIN: u32 = TAG_AT as u32;
const END: u32 = BEGIN + TAG_BYTES as u32;
/// Offset of the tag's second half.
const MIDDLE: u32 = BEGIN + 2;

/// Returns whether a load with X up to `most_of_x` can reach beyond the addresses.
pub(super) fn reaches_tag(load: Load, k: u32, most_of_x: u32) -> bool {
    let index = if load.indirect { most_of_x } else { 0 };
    k.saturating_add(index).saturating_add(u32::from(load.size)) > BEGIN
}

fn absolute(size: u32) -> u16 {
    match size {
        1 => LD_B_ABS,
        2 => LD_H_ABS,
        _ => LD_W_ABS,
    }
}

/// Returns the offset, in the bytes without the tag, of `size` bytes of the frame on the wire; `None` if some of them
/// are in the tag.
pub(super) fn place(offset: u32, size: u32) -> Option<u32> {
    match offset {
        _ if offset + size <= BEGIN => Some(offset),
        END.. => Some(offset - TAG_BYTES as u32),
        _ => None,
    }
}

/// The word of scratch memory that is reserved for the translation of instructions, if there is
/// one.
pub(super) struct Spare {
    pub word: Option<u32>,
    /// Whether a word was needed, but there is none.
    pub is_lacking: bool,
}

impl Spare {
    pub(super) fn word(&mut self) -> u32 {
        self.is_lacking |= self.word.is_none();
        self.word.unwrap_or_default()
    }
}

/// A ← `size` bytes at `offset` of the frame on the wire. X is unchanged.
pub(super) fn at(asm: &mut Asm, offset: u32, size: u32, spare: &mut Spare) {
    if let Some(place) = place(offset, size) {
        return asm.emit(absolute(size), place);
    }
    let parts = Part::of(offset, size);
    if let &[only] = &parts[..] {
        return only.emit(asm);
    }
    let word = spare.word();
    asm.emit(STX, word);
    for (number, part) in parts.iter().enumerate() {
        if number > 0 {
            asm.emit(TAX, 0);
        }
        part.emit(asm);
        if part.behind > 0 {
            asm.emit(ALU | LSH, 8 * part.behind);
        }
        if number > 0 {
            asm.emit(ALU | OR | X, 0);
        }
    }
    asm.emit(LDX_MEM, word);
}

/// A ← `size` bytes at X + `k` of the frame on the wire. `code` is the opcode of the load. X is at
/// most `most_of_x`, and X + `k` at most [`OFFSET_MAX`].
pub(super) fn at_x(
    asm: &mut Asm,
    (code, k, size): (u16, u32, u32),
    most_of_x: u32,
    spare: &mut Spare,
) {
    debug_assert!(k <= OFFSET_MAX);
    if k >= END {
        return asm.emit(code, k - TAG_BYTES as u32);
    }
    if most_of_x.saturating_add(k + size) <= BEGIN {
        return asm.emit(code, k);
    }
    let (behind, before, done) = (asm.label(), asm.label(), asm.label());
    asm.emit(TXA, 0);
    let next = asm.label();
    asm.branch(JMP | JGE, END - k, behind, next);
    asm.place(next);
    let has_before = k + size <= BEGIN;
    if has_before {
        let next = asm.label();
        asm.branch(JMP | JGT, BEGIN - size - k, next, before);
        asm.place(next);
    }
    // The remaining offsets reach into the tag. They are few.
    for offset in k.max(BEGIN + 1 - size)..END {
        let next = asm.label();
        if offset + 1 < END {
            let this = asm.label();
            asm.branch(JMP | JEQ, offset - k, this, next);
            asm.place(this);
        }
        at(asm, offset, size, spare);
        asm.go(done);
        asm.place(next);
    }
    if has_before {
        asm.place(before);
        asm.emit(code, k);
        asm.go(done);
    }
    asm.place(behind);
    // The offset is negative for small `k`: the kernel adds it as a signed number, and X is large enough.
    asm.emit(code, k.wrapping_sub(TAG_BYTES as u32));
    asm.place(done);
}

/// Adjacent bytes of a load.
#[derive(Clone, Copy)]
struct Part {
    from: From,
    /// Number of the load's bytes that follow this part.
    behind: u32,
}

#[derive(Clone, Copy)]
enum From {
    /// This many of the last bytes of the addresses.
    Addresses(u32),
    /// Bytes of a half of the tag: the extension that reads the half, the first byte, and the end.
    Half(u32, u32, u32),
    /// This many bytes after the tag.
    Rest(u32),
}

impl Part {
    fn of(offset: u32, size: u32) -> Vec<Part> {
        let end = offset + size;
        let within = |begin: u32, last: u32| {
            let (begin, last) = (begin.max(offset), last.min(end));
            (begin < last).then_some((begin, last))
        };
        let half = |which, begin: u32| {
            let (from, to) = within(begin, begin + 2)?;
            Some((From::Half(which, from - begin, to - begin), to))
        };
        let parts = [
            within(0, BEGIN).map(|(from, to)| (From::Addresses(to - from), to)),
            half(VLAN_TPID, BEGIN),
            half(VLAN_TAG, MIDDLE),
            within(END, end).map(|(from, to)| (From::Rest(to - from), to)),
        ];
        parts.into_iter().flatten().map(|(from, to)| Part { from, behind: end - to }).collect()
    }

    /// A ← its bytes, as a number.
    fn emit(self, asm: &mut Asm) {
        // Three bytes are loaded as the end of a word: the byte before them exists, the byte after
        // them may not.
        let three = |asm: &mut Asm, begin: u32| {
            asm.emit(LD_W_ABS, begin - 1);
            asm.emit(ALU | AND, 0xff_ffff);
        };
        match self.from {
            From::Addresses(3) => three(asm, BEGIN - 3),
            From::Addresses(size) => asm.emit(absolute(size), BEGIN - size),
            // Without the tag, these bytes begin at its offset.
            From::Rest(3) => three(asm, BEGIN),
            From::Rest(size) => asm.emit(absolute(size), BEGIN),
            From::Half(which, begin, end) => {
                asm.emit(LD_B_ABS, which);
                if which == VLAN_TPID {
                    protocol(asm);
                }
                match (begin, end) {
                    (0, 1) => asm.emit(ALU | RSH, 8),
                    (1, _) => asm.emit(ALU | AND, 0xff),
                    _ => {}
                }
            }
        }
    }
}

/// Replaces a missing protocol by 802.1Q, as other users of the kernel's tag do.
fn protocol(asm: &mut Asm) {
    let (missing, known) = (asm.label(), asm.label());
    asm.branch(JMP | JEQ, 0, missing, known);
    asm.place(missing);
    asm.emit(LD_IMM, u32::from(TAG_PROTOCOLS[0]));
    asm.place(known);
}
