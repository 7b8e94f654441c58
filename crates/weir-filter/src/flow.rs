//! Which instructions can be reached, and what they use.

use crate::insn::*;
use crate::verify::skips;

/// No frame is as long as this. A load from here on rejects.
pub(crate) const OFFSET_MAX: u32 = i32::MAX as u32 - 8;

/// What is known of a verified program before it runs.
pub(crate) struct Flow {
    /// By instruction: some way leads there. The kernel refuses code that none does.
    pub reached: Vec<bool>,
    /// By instruction: some jump leads there, so it needs a label.
    pub target: Vec<bool>,
    /// Words of scratch memory that are read: they begin as 0.
    pub memory_read: [bool; MEMORY_WORDS],
}

impl Flow {
    pub(crate) fn of(insns: &[Insn]) -> Flow {
        let mut flow = Flow {
            reached: vec![false; insns.len()],
            target: vec![false; insns.len()],
            memory_read: [false; MEMORY_WORDS],
        };
        flow.reached[0] = true;
        // All jumps are forward, so one pass sees every way.
        for (at, &insn) in insns.iter().enumerate() {
            if !flow.reached[at] || always_rejects(insn) {
                continue;
            }
            if matches!(insn.code, LD_MEM | LDX_MEM) {
                flow.memory_read[insn.k as usize] = true;
            }
            for skip in skips(insn).into_iter().flatten() {
                let to = at + 1 + skip as usize;
                flow.reached[to] = true;
                flow.target[to] |= insn.code & 7 == JMP;
            }
        }
        flow
    }
}

/// A load that no frame is long enough for.
pub(crate) fn always_rejects(insn: Insn) -> bool {
    insn.load().is_some() && insn.k > OFFSET_MAX
}
