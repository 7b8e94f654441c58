//! Kinds of frames, by the place of the outer VLAN tag. Each kind has its own sections.

use super::asm::{Asm, Condition, FP, Label, Operand, R1, R2, R3, R4, R6, R7, R9};
use super::load::{self, At};
use super::{KIND, TAG, TCI, Target, skb};
use crate::frame::{TAG_AT, TAG_BYTES, TAG_PROTOCOLS, View};
use crate::insn::{AND, RSH};
use crate::program::Program;

/// The place of a frame's outer tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// There is no tag, or it is in the bytes and no program asks for it beside them.
    Plain,
    /// Beside the bytes.
    Beside,
    /// In the bytes, but a program asks for it beside them.
    InBytes,
}

impl Kind {
    /// Returns the kinds that must be distinguished.
    pub(super) fn all(target: Target, somebody_asks: bool) -> Vec<Kind> {
        let mut kinds = vec![Kind::Plain];
        if target.tells_tag() {
            kinds.push(Kind::Beside);
        }
        if somebody_asks {
            kinds.push(Kind::InBytes);
        }
        kinds
    }

    /// Returns the view that a program has of frames of this kind.
    pub(super) fn view(self, program: &Program) -> View {
        match (self, program.asks_for_tag()) {
            (Kind::Plain, _) | (Kind::InBytes, false) => View::AsIs,
            (Kind::Beside, false) => View::Insert,
            (Kind::Beside, true) => View::Beside,
            (Kind::InBytes, true) => View::Remove,
        }
    }
}

/// Determines the frame's kind. Stores its number among `kinds`, and the tag beside the bytes.
pub(super) fn find(asm: &mut Asm, target: Target, kinds: &[Kind]) {
    let number_of = |kind| kinds.iter().position(|k| *k == kind);
    let (known, in_bytes) = (asm.label(), asm.label());
    asm.store_imm(4, FP, KIND, 0);
    if let Some(number) = number_of(Kind::Beside) {
        match target {
            Target::XdpTag => tag_of_caller(asm, number, in_bytes),
            _ => tag_of_skb(asm, number, in_bytes),
        }
        asm.jump(known);
    }
    asm.place(in_bytes);
    if let Some(number) = number_of(Kind::InBytes) {
        // A frame that ends before the tag ends has none.
        let at = At::Constant(TAG_AT as u32);
        load::bytes(asm, target, 0, at, TAG_BYTES as u8, R7, known);
        asm.big_endian(R7, TAG_BYTES as u8);
        asm.mov(R1, Operand::Reg(R7));
        asm.alu32(RSH, R1, Operand::Imm(16));
        asm.alu32(AND, R7, Operand::Imm(0xffff));
        asm.store(4, FP, TCI, R7);
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

/// Stores the tag that the caller has passed in r2, if there is one; else jumps to `none`.
fn tag_of_caller(asm: &mut Asm, number: usize, none: Label) {
    asm.jump_if32(Condition::Equal, R2, Operand::Imm(0), none);
    asm.store_imm(4, FP, KIND, number as i32);
    asm.store(4, FP, TAG, R2);
    asm.load(2, R1, FP, TAG + 2);
    asm.big_endian(R1, 2);
    asm.store(4, FP, TCI, R1);
}

fn tag_of_skb(asm: &mut Asm, number: usize, none: Label) {
    let present = asm.label();
    asm.load(4, R1, R6, skb::VLAN_PRESENT);
    asm.jump_if(Condition::Equal, R1, Operand::Imm(0), none);
    asm.store_imm(4, FP, KIND, number as i32);
    asm.load(4, R1, R6, skb::VLAN_TCI);
    asm.store(4, FP, TCI, R1);
    asm.big_endian(R1, 2);
    asm.store(2, FP, TAG + 2, R1);
    asm.load(4, R1, R6, skb::VLAN_PROTO);
    asm.jump_if(Condition::NotEqual, R1, Operand::Imm(0), present);
    // A missing protocol means 802.1Q, as for other users of the kernel's tag.
    asm.mov(R1, Operand::Imm(i32::from(TAG_PROTOCOLS[0].to_be())));
    asm.place(present);
    asm.store(2, FP, TAG, R1);
}

/// Jumps to `other` unless the frame is of this kind and its first `in_place` bytes can be read in
/// place. Without `kind`, the kind is not tested.
pub(super) fn guard(
    asm: &mut Asm,
    target: Target,
    kind: Option<usize>,
    in_place: u32,
    other: Label,
) {
    if let Some(number) = kind {
        asm.load(4, R1, FP, KIND);
        asm.jump_if(Condition::NotEqual, R1, Operand::Imm(number as i32), other);
    }
    if in_place == 0 {
        return;
    }
    match target.data() {
        Some((data, end)) => {
            asm.load(4, R9, R6, data);
            asm.load(4, R3, R6, end);
            asm.mov(R2, Operand::Reg(R9));
            asm.add(R2, Operand::Imm(in_place as i32));
            asm.jump_if(Condition::Greater, R2, Operand::Reg(R3), other);
        }
        None => asm.jump_if(Condition::Less, R4, Operand::Imm(in_place as i32), other),
    }
}
