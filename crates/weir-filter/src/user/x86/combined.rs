//! Compiles several eBPF instructions to one or two of x86-64.

use super::assembler::{Assembler, RAX, RCX, RSP};
use super::{ADD, EXIT, Insn, JUMP, MOV, MOV32_IMM};

impl Assembler {
    /// Compiles the next instructions together, if possible, and returns their number. No jump goes to any of them
    /// except the first.
    pub(super) fn several(&mut self, insns: &[Insn]) -> Option<usize> {
        match *insns {
            // dst = src + constants
            [ref first, ref add, ref rest @ ..] if first.code == MOV && first.adds(add) => {
                let more = rest.first().filter(|more| first.adds(more));
                let sum = more.map_or(Some(add.imm), |more| add.imm.checked_add(more.imm))?;
                self.lea(first.dst, first.src, sum);
                Some(if more.is_some() { 3 } else { 2 })
            }
            // A load relative to the frame's first byte. The converter uses the sum for nothing
            // else.
            [ref add, ref load, ..]
                if add.code == ADD
                    && (add.dst, load.src) == (RCX, RCX)
                    && add.src != RSP
                    && load.is_load() =>
            {
                self.load_at_sum(load, add.src);
                Some(2)
            }
            _ => None,
        }
    }

    /// Compiles a condition (with `turned`, its opposite) that only selects one of the two answers
    /// in `behind`. It becomes a conditional move, because the processor could mispredict a jump.
    /// The answers also stay in the code, for jumps from elsewhere.
    pub(super) fn answers(&mut self, insn: &Insn, turned: bool, behind: &[Insn]) -> bool {
        let [one, end, other, end2, ..] = behind else { return false };
        let is_answer = |insn: &Insn| insn.code == MOV32_IMM && insn.dst == RAX;
        let is_choice = insn.is_jump() && insn.code != JUMP;
        let ends = [end.code, end2.code] == [EXIT; 2];
        // The answers are computed in eBPF's r0 and r1. A comparison with a constant has no second
        // register.
        let is_taken = |register: u8| [RAX, RCX].contains(&register);
        let spoils = is_taken(insn.dst) || insn.code & 8 != 0 && is_taken(insn.src);
        if !is_choice || !is_answer(one) || !is_answer(other) || !ends || spoils {
            return false;
        }
        // The registers are set before the comparison, because setting a register to zero may change the flags.
        self.mov32_imm(RAX, one.imm);
        self.mov32_imm(RCX, other.imm);
        let Some(condition) = self.compare(insn, turned) else { return false };
        self.code.extend([0x0f, 0x40 | condition, 0xc1, 0xc3]);
        true
    }

    /// `load.dst` = the value at rcx + `index` + `load.off`.
    fn load_at_sum(&mut self, load: &Insn, index: u8) {
        let rex = 0x40 | (load.dst >> 3) << 2 | (index >> 3) << 1;
        if rex != 0x40 {
            self.code.push(rex);
        }
        self.load_opcode(load.code);
        // A SIB byte follows, which names two registers; its scale is 1.
        let short = i8::try_from(load.off).ok();
        let form = if short.is_some() { 0x44 } else { 0x84 };
        self.code.extend([form | (load.dst & 7) << 3, (index & 7) << 3 | RCX]);
        match short {
            Some(off) => self.code.push(off as u8),
            None => self.code.extend(i32::from(load.off).to_le_bytes()),
        }
    }
}
