//! A model of how the kernel checks and runs classic programs on packet sockets. Converted programs may rely on this
//! behaviour.
//!
//! Source: `bpf_check_classic`, `check_load_and_stores` and `bpf_convert_filter`, net/core/filter.c, Linux 6.18.

use weir_filter::insn::*;
use weir_filter::{Insn, Tag};

/// Offset of an extension (`SKF_AD_VLAN_TPID`), like [`VLAN_TAG`] and [`VLAN_TAG_PRESENT`].
const VLAN_TPID: u32 = EXTENSION + 60;

fn is_extension(k: u32) -> bool {
    matches!(k, VLAN_TAG | VLAN_TAG_PRESENT | VLAN_TPID)
}

/// Whether the kernel accepts the program; opcodes are not checked.
pub fn is_taken(insns: &[Insn]) -> bool {
    let in_bounds = |(at, insn): (usize, &Insn)| {
        let (left, k) = (insns.len() - at - 1, insn.k);
        match insn.code {
            JA => (k as usize) < left,
            LD_W_ABS | LD_H_ABS | LD_B_ABS => k < EXTENSION || is_extension(k),
            ST | STX | LD_MEM | LDX_MEM => k < 16,
            code if code & 7 == JMP => usize::from(insn.jt.max(insn.jf)) < left,
            _ => true,
        }
    };
    let ends = insns.last().is_some_and(|insn| matches!(insn.code, RET_K | RET_A));
    ends && insns.len() <= 4096 && insns.iter().enumerate().all(in_bounds) && writes_first(insns)
}

/// Whether every word of scratch memory is written before it is loaded, on all paths. Like the kernel, this assumes
/// that a path continues after a `ret`.
fn writes_first(insns: &[Insn]) -> bool {
    let (mut written, mut known) = (vec![u16::MAX; insns.len()], 0u16);
    for (at, insn) in insns.iter().enumerate() {
        known &= written[at];
        match insn.code {
            ST | STX => known |= 1 << insn.k,
            LD_MEM | LDX_MEM if known & 1 << insn.k == 0 => return false,
            code if code & 7 == JMP => {
                let ways = match code {
                    JA => [insn.k as usize; 2],
                    _ => [insn.jt, insn.jf].map(usize::from),
                };
                ways.into_iter().for_each(|skip| written[at + 1 + skip] &= known);
                known = u16::MAX;
            }
            _ => {}
        }
    }
    true
}

/// The program's result for a frame: the number of its bytes that are delivered, 0 if it is
/// rejected.
///
/// # Panics
/// If kernels differ in the result: for loads before the frame's first byte, and shifts by 32 or more.
pub fn run(insns: &[Insn], bytes: &[u8], tag: Option<Tag>) -> u32 {
    let (mut a, mut x, mut memory, mut at) = (0u32, 0u32, [None; 16], 0);
    let load = |begin: u32, size: usize| {
        let begin = i32::try_from(begin).expect("a load before the frame") as usize;
        let bytes = bytes.get(begin..begin + size)?;
        Some(bytes.iter().fold(0, |value, byte| value << 8 | u32::from(*byte)))
    };
    loop {
        let insn = insns[at];
        let k = insn.k;
        at += 1;
        let operand = if insn.code & X != 0 { x } else { k };
        let loaded = match insn.code {
            LD_W_ABS | LD_H_ABS | LD_B_ABS if is_extension(k) => Some(match (k, tag) {
                (_, None) => 0,
                (VLAN_TAG, Some(tag)) => tag.tci.into(),
                (VLAN_TPID, Some(tag)) => tag.protocol.into(),
                (_, Some(_)) => 1,
            }),
            LD_W_ABS => load(k, 4),
            LD_H_ABS => load(k, 2),
            LD_B_ABS | LDX_MSH => load(k, 1),
            // The sum wraps around.
            LD_W_IND => load(x.wrapping_add(k), 4),
            LD_H_IND => load(x.wrapping_add(k), 2),
            LD_B_IND => load(x.wrapping_add(k), 1),
            _ => Some(0),
        };
        let Some(loaded) = loaded else { return 0 };
        match insn.code {
            RET_K => return k,
            RET_A => return a,
            LD_W_ABS | LD_H_ABS | LD_B_ABS | LD_W_IND | LD_H_IND | LD_B_IND => a = loaded,
            LDX_MSH => x = 4 * (loaded & 0xf),
            LD_IMM => a = k,
            LDX_IMM => x = k,
            LD_LEN => a = bytes.len() as u32,
            LDX_LEN => x = bytes.len() as u32,
            LD_MEM => a = memory[k as usize].expect("a word that was written"),
            LDX_MEM => x = memory[k as usize].expect("a word that was written"),
            ST => memory[k as usize] = Some(a),
            STX => memory[k as usize] = Some(x),
            TAX => x = a,
            TXA => a = x,
            JA => at += k as usize,
            code if code & 7 == JMP => {
                let holds = match code & 0xf0 {
                    JEQ => a == operand,
                    JGT => a > operand,
                    JGE => a >= operand,
                    _ => a & operand != 0,
                };
                at += usize::from(if holds { insn.jt } else { insn.jf });
            }
            code => {
                let shift = |by: u32| {
                    assert!(by < 32, "a shift by {by}");
                    by
                };
                a = match code & 0xf0 {
                    DIV | MOD if operand == 0 => return 0,
                    ADD => a.wrapping_add(operand),
                    SUB => a.wrapping_sub(operand),
                    MUL => a.wrapping_mul(operand),
                    DIV => a / operand,
                    MOD => a % operand,
                    OR => a | operand,
                    AND => a & operand,
                    XOR => a ^ operand,
                    LSH => a << shift(operand),
                    RSH => a >> shift(operand),
                    _ => a.wrapping_neg(),
                };
            }
        }
    }
}
