//! Determines how far into a frame a program can read: the first bytes that it needs to give the same verdict as on the
//! whole frame.
//!
//! For every instruction, upper bounds of A, X and each word of scratch memory are computed. All
//! paths go forward, so one pass sees them all. Most indexes are the length of an IPv4 header,
//! which is at most 60.

use crate::frame::{TAG_AT, TAG_BYTES};
use crate::insn::*;
use crate::verify::skips;

/// Upper bounds of the registers.
#[derive(Clone, Copy)]
struct Bounds {
    a: u32,
    x: u32,
    memory: [u32; MEMORY_WORDS],
}

impl Bounds {
    /// The beginning of a program: everything is 0.
    const START: Bounds = Bounds { a: 0, x: 0, memory: [0; MEMORY_WORDS] };

    /// Returns the bounds if either of two paths was taken.
    fn or(mut self, other: &Bounds) -> Bounds {
        self.a = self.a.max(other.a);
        self.x = self.x.max(other.x);
        for (word, other) in self.memory.iter_mut().zip(&other.memory) {
            *word = (*word).max(*other);
        }
        self
    }

    /// Returns the bounds after the instruction.
    fn after(mut self, insn: Insn) -> Bounds {
        match insn.code {
            LD_IMM => self.a = insn.k,
            LDX_IMM => self.x = insn.k,
            LD_MEM => self.a = self.memory[insn.k as usize],
            LDX_MEM => self.x = self.memory[insn.k as usize],
            ST => self.memory[insn.k as usize] = self.a,
            STX => self.memory[insn.k as usize] = self.x,
            TAX => self.x = self.a,
            TXA => self.a = self.x,
            LDX_LEN => self.x = u32::MAX,
            LDX_MSH => self.x = 4 * 0xf,
            LD_B_ABS | LD_B_IND if !insn.is_extension() => self.a = u32::from(u8::MAX),
            LD_H_ABS | LD_H_IND if !insn.is_extension() => self.a = u32::from(u16::MAX),
            RET_K | RET_A => {}
            _ if insn.code & 7 == JMP => {}
            _ if insn.code & 7 == ALU => self.a = self.computed(insn),
            // A becomes a whole word, the length, or data beside the bytes.
            _ => self.a = u32::MAX,
        }
        self
    }

    /// Returns the upper bound of A after an operation.
    fn computed(&self, insn: Insn) -> u32 {
        let by_x = insn.code & X != 0;
        let (a, by) = (self.a, if by_x { self.x } else { insn.k });
        match insn.code & 0xf0 {
            // If the result may wrap around, the bound is the largest number.
            ADD => a.saturating_add(by),
            MUL => a.saturating_mul(by),
            AND => a.min(by),
            OR | XOR => all_bits_below(a | by),
            DIV if !by_x => a / by,
            RSH if !by_x => a >> by,
            // X may be so small that A keeps its value, so the bound of A stays.
            DIV | RSH => a,
            MOD => a.min(by.saturating_sub(1)),
            LSH if by < 32 => u32::try_from(u64::from(a) << by).unwrap_or(u32::MAX),
            _ => u32::MAX,
        }
    }
}

/// Returns the largest number that has no higher bit than `number`.
fn all_bits_below(number: u32) -> u32 {
    u32::MAX.checked_shr(number.leading_zeros()).unwrap_or(0)
}

/// Returns, for each instruction of a verified program, the bounds before it; `None` if it is unreachable.
fn bounds(insns: &[Insn]) -> Vec<Option<Bounds>> {
    let mut ways = vec![None; insns.len()];
    ways[0] = Some(Bounds::START);
    for (at, &insn) in insns.iter().enumerate() {
        let Some(bounds) = ways[at].map(|bounds: Bounds| bounds.after(insn)) else { continue };
        for skip in skips(insn).into_iter().flatten() {
            let way = &mut ways[at + 1 + skip as usize];
            *way = Some(way.map_or(bounds, |other| bounds.or(&other)));
        }
    }
    ways
}

/// Returns, for each instruction of a verified program, the upper bound of X before it; 0 if it is unreachable.
pub(crate) fn most_of_x(insns: &[Insn]) -> Vec<u32> {
    bounds(insns).into_iter().map(|bounds| bounds.map_or(0, |bounds| bounds.x)).collect()
}

/// Returns the number of a frame's first bytes, tag included, on which the verdict of a verified program depends;
/// `u32::MAX` if it cannot be determined.
pub(crate) fn reach(insns: &[Insn], asks_for_tag: bool) -> u32 {
    let mut reach = 0;
    for (&insn, bounds) in insns.iter().zip(bounds(insns)) {
        if let (Some(load), Some(bounds)) = (insn.load(), bounds) {
            let index = if load.indirect { bounds.x } else { 0 };
            reach = reach.max(insn.k.saturating_add(index).saturating_add(u32::from(load.size)));
        }
    }
    match asks_for_tag {
        true => reach.max(TAG_AT as u32).saturating_add(TAG_BYTES as u32),
        false => reach,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Program;

    #[track_caller]
    fn reaches(bytes: u32, insns: &[Insn]) {
        let program = Program::new([insns, &[Insn::new(RET_A, 0)]].concat()).unwrap();
        assert_eq!(program.reach(), bytes, "{program:?}");
    }

    #[test]
    fn headers_are_looked_at_and_no_more() {
        // tcp port 80, as libpcap compiles it: it reads the ports after the longest IPv4 header.
        let text = "20,40 0 0 12,21 0 6 34525,48 0 0 20,21 0 15 6,40 0 0 54,21 12 0 80,40 0 0 56,21 10 11 80,\
                    21 0 10 2048,48 0 0 23,21 0 8 6,40 0 0 20,69 6 0 8191,177 0 0 14,72 0 0 14,21 2 0 80,\
                    72 0 0 16,21 0 1 80,6 0 0 262144,6 0 0 0";
        assert_eq!(Program::parse(text).unwrap().reach(), 60 + 16 + 2);
        reaches(0, &[]);
        reaches(14, &[Insn::new(LD_H_ABS, 12)]);
        reaches(0, &[Insn::new(LD_LEN, 0)]);
    }

    #[test]
    fn what_is_computed_is_bounded() {
        let indexed =
            |insns: &[Insn]| [insns, &[Insn::new(TAX, 0), Insn::new(LD_B_IND, 2)]].concat();
        let byte = Insn::new(LD_B_ABS, 0);
        let by = |op, k| Insn::new(ALU | op, k);
        for (ops, most) in [
            (&[by(AND, 0xf)][..], 0xf),
            (&[by(RSH, 4), by(LSH, 2)], 60),
            (&[by(MOD, 10), by(MUL, 4), by(ADD, 1)], 37),
            (&[by(DIV, 100)], 2),
            (&[by(AND, 4), by(OR, 3)], 7),
            (&[by(AND, 4), by(XOR, 8)], 15),
        ] {
            reaches(most + 2 + 1, &indexed(&[&[byte], ops].concat()));
        }
        for op in [by(SUB, 1), by(NEG, 0), by(ADD, u32::MAX), Insn::new(LD_LEN, 0)] {
            reaches(u32::MAX, &indexed(&[byte, op]));
        }
        reaches(u32::MAX, &indexed(&[Insn::new(LD_W_ABS, 0)]));
    }

    #[test]
    fn ways_that_meet_have_the_larger_bound() {
        let insns = [
            Insn::new(LD_B_ABS, 0),
            Insn::new(LDX_IMM, 100),
            Insn::jump(JMP | JEQ, 1, 1, 0),
            Insn::new(LDX_IMM, 7),
            Insn::new(STX, 3),
            Insn::new(LD_MEM, 3),
            Insn::new(TAX, 0),
            Insn::new(LD_B_IND, 0),
        ];
        reaches(101, &insns);
    }

    #[test]
    fn who_asks_for_the_tag_needs_its_place_to_be_there() {
        let tag = Insn::new(LD_B_ABS, VLAN_TAG_PRESENT);
        reaches(16, &[tag]);
        reaches(18, &[tag, Insn::new(LD_H_ABS, 12)]);
    }
}
