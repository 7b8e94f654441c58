//! Instructions of classic BPF, and their opcodes.
//!
//! Source: McCanne and Jacobson, USENIX 1993; linux/filter.h and linux/bpf_common.h; libpcap's
//! bpf_filter.c.

/// An instruction, laid out as the kernel's `struct sock_filter` and libpcap's `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Insn {
    /// The operation: one of this module's constants.
    pub code: u16,
    /// Instructions to skip if the condition holds.
    pub jt: u8,
    /// Instructions to skip if the condition does not hold.
    pub jf: u8,
    /// The operand: an offset, a constant, an index, a number of instructions.
    pub k: u32,
}

impl Insn {
    /// Creates an instruction that does not branch.
    #[must_use]
    pub const fn new(code: u16, k: u32) -> Insn {
        Insn { code, jt: 0, jf: 0, k }
    }

    /// Creates a conditional jump.
    #[must_use]
    pub const fn jump(code: u16, k: u32, jt: u8, jf: u8) -> Insn {
        Insn { code, jt, jf, k }
    }
}

/// Number of words of scratch memory.
pub const MEMORY_WORDS: usize = 16;

/// A ← 32 bits at `k`.
pub const LD_W_ABS: u16 = 0x20;
/// A ← 16 bits at `k`.
pub const LD_H_ABS: u16 = 0x28;
/// A ← the byte at `k`; or, from [`EXTENSION`] on, data beside the bytes.
pub const LD_B_ABS: u16 = 0x30;
/// A ← 32 bits at X + `k`.
pub const LD_W_IND: u16 = 0x40;
/// A ← 16 bits at X + `k`.
pub const LD_H_IND: u16 = 0x48;
/// A ← the byte at X + `k`.
pub const LD_B_IND: u16 = 0x50;
/// A ← `k`.
pub const LD_IMM: u16 = 0x00;
/// A ← M\[`k`\].
pub const LD_MEM: u16 = 0x60;
/// A ← the frame's length on the wire.
pub const LD_LEN: u16 = 0x80;
/// X ← `k`.
pub const LDX_IMM: u16 = 0x01;
/// X ← M\[`k`\].
pub const LDX_MEM: u16 = 0x61;
/// X ← the frame's length on the wire.
pub const LDX_LEN: u16 = 0x81;
/// X ← 4 * (the low half of the byte at `k`): an IPv4 header's length.
pub const LDX_MSH: u16 = 0xb1;
/// M\[`k`\] ← A.
pub const ST: u16 = 0x02;
/// M\[`k`\] ← X.
pub const STX: u16 = 0x03;

/// The class of A ← A op `k`, A op X. The operation and [`X`] are added.
pub const ALU: u16 = 0x04;
/// Sum, modulo 2^32.
pub const ADD: u16 = 0x00;
/// Difference, modulo 2^32.
pub const SUB: u16 = 0x10;
/// Product, modulo 2^32.
pub const MUL: u16 = 0x20;
/// Quotient. If X is 0, the program ends and rejects.
pub const DIV: u16 = 0x30;
/// Bitwise or.
pub const OR: u16 = 0x40;
/// Bitwise and.
pub const AND: u16 = 0x50;
/// Shift to the left; by 32 or more gives 0.
pub const LSH: u16 = 0x60;
/// Shift to the right; by 32 or more gives 0.
pub const RSH: u16 = 0x70;
/// A ← -A.
pub const NEG: u16 = 0x80;
/// Remainder. If X is 0, the program ends and rejects.
pub const MOD: u16 = 0x90;
/// Bitwise exclusive or.
pub const XOR: u16 = 0xa0;
/// The other operand is X, not `k`.
pub const X: u16 = 0x08;

/// The class of jumps. The condition and [`X`] are added.
pub const JMP: u16 = 0x05;
/// Skips `k` instructions.
pub const JA: u16 = 0x05;
/// A equals the operand.
pub const JEQ: u16 = 0x10;
/// A is greater than the operand.
pub const JGT: u16 = 0x20;
/// A is greater than the operand, or equal.
pub const JGE: u16 = 0x30;
/// A and the operand have a bit in common.
pub const JSET: u16 = 0x40;

/// Ends: the verdict is `k`.
pub const RET_K: u16 = 0x06;
/// Ends: the verdict is A.
pub const RET_A: u16 = 0x16;
/// X ← A.
pub const TAX: u16 = 0x07;
/// A ← X.
pub const TXA: u16 = 0x87;

/// An absolute load at this offset, or at each fourth of the 64 offsets that begin here, reads no bytes of the frame
/// (`SKF_AD_OFF`).
pub const EXTENSION: u32 = -0x1000i32 as u32;
/// Number of extensions (`SKF_AD_MAX` / 4).
pub(crate) const EXTENSIONS: u32 = 16;
/// The tag control information of the VLAN tag beside the bytes, 0 without one (`SKF_AD_VLAN_TAG`).
pub const VLAN_TAG: u32 = EXTENSION + 44;
/// 1 if there is a VLAN tag beside the bytes (`SKF_AD_VLAN_TAG_PRESENT`).
pub const VLAN_TAG_PRESENT: u32 = EXTENSION + 48;
/// The protocol of the VLAN tag beside the bytes (`SKF_AD_VLAN_TPID`). A [`Program`](crate::Program) must not read it;
/// programs converted for sockets do.
pub(crate) const VLAN_TPID: u32 = EXTENSION + 60;

/// The properties of a load of the frame's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Number of bytes: 1, 2 or 4.
    pub size: u8,
    /// Whether the load is at X + `k` rather than at `k`.
    pub indirect: bool,
    /// Whether the load is [`LDX_MSH`], which sets X.
    pub header_length: bool,
}

impl Insn {
    /// Returns the properties of the load, if the instruction is a load of bytes.
    pub(crate) fn load(self) -> Option<Load> {
        let (size, indirect, header_length) = match self.code {
            _ if self.is_extension() => return None,
            LD_W_ABS => (4, false, false),
            LD_H_ABS => (2, false, false),
            LD_B_ABS => (1, false, false),
            LD_W_IND => (4, true, false),
            LD_H_IND => (2, true, false),
            LD_B_IND => (1, true, false),
            LDX_MSH => (1, false, true),
            _ => return None,
        };
        Some(Load { size, indirect, header_length })
    }

    /// Returns whether the instruction reads data beside the bytes.
    pub(crate) fn is_extension(self) -> bool {
        let offset = self.k.wrapping_sub(EXTENSION);
        matches!(self.code, LD_W_ABS | LD_H_ABS | LD_B_ABS)
            && offset < 4 * EXTENSIONS
            && offset.is_multiple_of(4)
    }

    pub(crate) fn is_conditional_jump(self) -> bool {
        self.code & 7 == JMP && self.code != JA
    }
}
