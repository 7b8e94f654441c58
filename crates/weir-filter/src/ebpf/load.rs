//! Loads of the frame's bytes: in place where possible, else by the helper.

use super::asm::{Asm, Condition, FP, Label, Operand, R0, R1, R2, R3, R4, R6, R9, Reg};
use super::{BUFFER, TAG, Target, helper};
use crate::flow_graph::OFFSET_MAX;
use crate::frame::{ByteLocation, TAG_AT, TAG_BYTES, View};

/// The kernel's verifier accepts no access to bytes further than 0xffff from the first.
const IN_PLACE_MAX: i32 = 0xff00;

/// An offset in the frame's bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum At {
    Constant(u32),
    /// In r1, which is at most 33 bits wide.
    R1,
}

/// `dst` = the `size` bytes at `at`, in network byte order. Jumps to `reject` if they were not all
/// captured. The first `in_place` bytes are known to be.
pub(super) fn bytes(
    asm: &mut Asm,
    target: Target,
    in_place: u32,
    at: At,
    size: u8,
    dst: Reg,
    reject: Label,
) {
    match at {
        At::Constant(offset) if offset + u32::from(size) <= in_place => {
            asm.load(size, dst, R9, offset as i16);
        }
        _ => match target {
            Target::User => user(asm, at, size, dst, reject),
            Target::Socket => by_helper(asm, target, at, size, BUFFER, reject, Some(dst)),
            Target::Xdp | Target::XdpTag | Target::Tc => {
                kernel(asm, target, in_place > 0, at, size, dst, reject);
            }
        },
    }
}

fn user(asm: &mut Asm, at: At, size: u8, dst: Reg, reject: Label) {
    match at {
        At::Constant(offset) => {
            let end = (offset + u32::from(size)) as i32;
            asm.jump_if(Condition::Less, R4, Operand::Imm(end), reject);
            if let Ok(offset) = i16::try_from(offset) {
                asm.load(size, dst, R9, offset);
                return;
            }
            asm.mov(R1, Operand::Imm(offset as i32));
        }
        At::R1 => {
            asm.add(R1, Operand::Imm(i32::from(size)));
            asm.jump_if(Condition::Greater, R1, Operand::Reg(R4), reject);
            asm.add(R1, Operand::Reg(R9));
            asm.load(size, dst, R1, -i16::from(size));
            return;
        }
    }
    asm.add(R1, Operand::Reg(R9));
    asm.load(size, dst, R1, 0);
}

/// Loads the bytes in place if they are there, else by the helper.
fn kernel(
    asm: &mut Asm,
    target: Target,
    has_first_byte: bool,
    at: At,
    size: u8,
    dst: Reg,
    reject: Label,
) {
    let (slow, done) = (asm.label(), asm.label());
    let (data, data_end) = target.data().expect("XDP and TC read in place");
    // If nothing is known to be in place, r9 is not used: each check would give the verifier a new
    // fact about it, and the verifier would check the next program once for each fact.
    let first_byte = |asm: &mut Asm| match has_first_byte {
        true => asm.mov(R2, Operand::Reg(R9)),
        false => asm.load(4, R2, R6, data),
    };
    match at {
        At::Constant(offset) if offset as i32 > IN_PLACE_MAX => {
            by_helper(asm, target, at, size, BUFFER, reject, Some(dst));
            return;
        }
        At::Constant(offset) => {
            first_byte(asm);
            asm.add(R2, Operand::Imm(offset as i32));
        }
        At::R1 => {
            asm.jump_if(Condition::Greater, R1, Operand::Imm(IN_PLACE_MAX), slow);
            first_byte(asm);
            asm.add(R2, Operand::Reg(R1));
        }
    }
    asm.mov(R3, Operand::Reg(R2));
    asm.add(R3, Operand::Imm(i32::from(size)));
    asm.load(4, R0, R6, data_end);
    asm.jump_if(Condition::Greater, R3, Operand::Reg(R0), slow);
    asm.load(size, dst, R2, 0);
    asm.jump(done);
    asm.place(slow);
    by_helper(asm, target, at, size, BUFFER, reject, Some(dst));
    asm.place(done);
}

/// Makes the kernel copy bytes to the stack, at `to`, and loads them into `dst`.
fn by_helper(
    asm: &mut Asm,
    target: Target,
    at: At,
    size: u8,
    to: i16,
    reject: Label,
    dst: Option<Reg>,
) {
    match at {
        At::Constant(offset) => asm.mov(R2, Operand::Imm(offset as i32)),
        At::R1 => {
            // The helper takes an offset of 32 bits.
            asm.jump_if(Condition::Greater, R1, Operand::Imm(OFFSET_MAX as i32), reject);
            asm.mov(R2, Operand::Reg(R1));
        }
    }
    asm.mov(R1, Operand::Reg(R6));
    asm.mov(R3, Operand::Reg(FP));
    asm.add(R3, Operand::Imm(i32::from(to)));
    asm.mov(R4, Operand::Imm(i32::from(size)));
    asm.call(match target {
        Target::Xdp | Target::XdpTag => helper::XDP_LOAD_BYTES,
        _ => helper::SKB_LOAD_BYTES,
    });
    asm.jump_if(Condition::NotEqual, R0, Operand::Imm(0), reject);
    if let Some(dst) = dst {
        asm.load(size, dst, FP, to);
    }
}

/// Properties of its section that a load needs.
#[derive(Clone, Copy)]
pub(super) struct Context {
    pub target: Target,
    pub view: View,
    pub in_place: u32,
    pub reject: Label,
    /// Whether loaded values are numbers; otherwise they stay in network byte order.
    pub numbers: bool,
}

impl Context {
    /// Converts a loaded value as required.
    fn loaded(self, asm: &mut Asm, dst: Reg, size: u8) {
        if self.numbers {
            asm.big_endian(dst, size);
        }
    }
}

/// `dst` = the program's view of a constant offset.
pub(super) fn seen(asm: &mut Asm, cx: Context, offset: u32, size: u8, dst: Reg) {
    match (cx.view.locate(offset), cx.view.locate(offset + u32::from(size) - 1)) {
        (ByteLocation::Bytes(first), ByteLocation::Bytes(last))
            if last - first == u32::from(size) - 1 =>
        {
            bytes(asm, cx.target, cx.in_place, At::Constant(first), size, dst, cx.reject);
            cx.loaded(asm, dst, size);
        }
        // The verifier requires aligned loads from the stack. The tag is aligned there.
        (ByteLocation::Tag(first), ByteLocation::Tag(_)) if first % u32::from(size) == 0 => {
            asm.load(size, dst, FP, TAG + first as i16);
            cx.loaded(asm, dst, size);
        }
        _ => {
            pieces(asm, cx, offset, size);
            asm.load(size, dst, FP, BUFFER);
            cx.loaded(asm, dst, size);
        }
    }
}

/// Assembles, byte by byte, a load that begins on one side of the tag and ends on the other.
fn pieces(asm: &mut Asm, cx: Context, offset: u32, size: u8) {
    for byte in 0..u32::from(size) {
        let to = BUFFER + byte as i16;
        match (cx.view.locate(offset + byte), cx.target) {
            (ByteLocation::Tag(at), _) => asm.load(1, R0, FP, TAG + at as i16),
            (ByteLocation::Bytes(at), Target::User) => {
                bytes(asm, cx.target, cx.in_place, At::Constant(at), 1, R0, cx.reject);
            }
            (ByteLocation::Bytes(at), target) => {
                by_helper(asm, target, At::Constant(at), 1, to, cx.reject, None);
                continue;
            }
        }
        asm.store(1, FP, to, R0);
    }
}

/// `dst` = the program's view of `base + k`. `k` is at most `OFFSET_MAX`.
pub(super) fn seen_at(asm: &mut Asm, cx: Context, base: Reg, k: u32, size: u8, dst: Reg) {
    const TAG_END: u32 = (TAG_AT + TAG_BYTES) as u32;
    asm.mov(R1, Operand::Reg(base));
    if k > 0 {
        asm.add(R1, Operand::Imm(k as i32));
    }
    // From the offset `behind` on, the place of the bytes differs from the program's view by
    // `moved`.
    let (behind, moved) = match cx.view {
        View::AsIs | View::Beside => (0, 0),
        View::Insert => (TAG_END, -(TAG_BYTES as i32)),
        View::Remove => (TAG_AT as u32, TAG_BYTES as i32),
    };
    if k >= behind {
        if moved != 0 {
            asm.add(R1, Operand::Imm(moved));
        }
        bytes(asm, cx.target, cx.in_place, At::R1, size, dst, cx.reject);
        cx.loaded(asm, dst, size);
        return;
    }
    let (there, near, done) = (asm.label(), asm.label(), asm.label());
    asm.jump_if(Condition::Less, R1, Operand::Imm(behind as i32), near);
    asm.add(R1, Operand::Imm(moved));
    asm.jump(there);
    asm.place(near);
    // Few offsets touch the place of the tag. Each has its own code.
    let first = (TAG_AT as u32 + 1).saturating_sub(u32::from(size)).max(k);
    let cases: Vec<_> = (first..behind).map(|offset| (offset, asm.label())).collect();
    for &(offset, label) in &cases {
        asm.jump_if(Condition::Equal, R1, Operand::Imm(offset as i32), label);
    }
    asm.place(there);
    // A load before the tag is not moved.
    bytes(asm, cx.target, cx.in_place, At::R1, size, dst, cx.reject);
    cx.loaded(asm, dst, size);
    asm.jump(done);
    for (offset, label) in cases {
        asm.place(label);
        seen(asm, cx, offset, size, dst);
        asm.jump(done);
    }
    asm.place(done);
}
