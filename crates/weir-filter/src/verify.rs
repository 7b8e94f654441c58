//! Rules that make bytecode a program.
//!
//! Bytecode comes from outside: a client sends it, or a user pastes it. Everything that the
//! interpreter, eBPF and machine code rely on is checked here, once.

use crate::insn::*;

pub use crate::limits::INSNS_MAX;

/// The reason why bytecode is not a valid program. Instructions count from 0, as `tcpdump -d` numbers them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    /// There are no instructions.
    #[error("the filter has no instructions; to take every frame, give no filter")]
    Empty,
    /// There are too many instructions.
    #[error(
        "the filter has {insns} instructions, and at most {INSNS_MAX} are taken; a shorter expression, or several \
         feeds, may do"
    )]
    TooLong {
        /// Number of instructions.
        insns: usize,
    },
    /// The opcode is not one of classic BPF.
    #[error("filter instruction {at}: {code:#06x} is no opcode of classic BPF")]
    Opcode {
        /// Number of the instruction.
        at: usize,
        /// The opcode.
        code: u16,
    },
    /// A jump, or the step to the next instruction, leads out of the program.
    #[error(
        "filter instruction {at}: it goes on at {to}, behind the last instruction ({last}); every way must end in ret"
    )]
    Jump {
        /// Number of the instruction.
        at: usize,
        /// Number of the instruction to which it leads.
        to: u64,
        /// Number of the last instruction.
        last: usize,
    },
    /// The instruction jumps to an earlier one. libpcap makes such a jump for `protochain`.
    #[error(
        "filter instruction {at}: it jumps back, and only programs that go forward are sure to end; in an expression, \
         protochain does that"
    )]
    Backward {
        /// Number of the instruction.
        at: usize,
    },
    /// The instruction uses a word of scratch memory beyond the sixteenth.
    #[error("filter instruction {at}: there is no M[{index}]; scratch memory has words 0 to 15")]
    Memory {
        /// Number of the instruction.
        at: usize,
        /// Index of the word.
        index: u32,
    },
    /// The instruction divides, or takes the remainder, by a constant zero.
    #[error("filter instruction {at}: division by zero")]
    DivisionByZero {
        /// Number of the instruction.
        at: usize,
    },
    /// The instruction shifts by a constant of 32 or more.
    #[error("filter instruction {at}: a shift by {by} bits; A has 32, so 31 is the most")]
    Shift {
        /// Number of the instruction.
        at: usize,
        /// The constant.
        by: u32,
    },
    /// The instruction reads data beside the frame's bytes other than the VLAN tag.
    #[error(
        "filter instruction {at}: it loads {what}, which not every frame comes with; bytes, lengths and \
         VLAN tags can be filtered on, and directions by --direction. Was it compiled for a live \
         interface? Give the expression itself, or compile it with tcpdump -y EN10MB -ddd"
    )]
    Extension {
        /// Number of the instruction.
        at: usize,
        /// The kind of data.
        what: &'static str,
    },
}

/// Checks that `insns` are a valid program.
///
/// # Errors
/// The first fault, with the instruction's number.
pub fn verify(insns: &[Insn]) -> Result<(), VerifyError> {
    if insns.is_empty() {
        return Err(VerifyError::Empty);
    }
    if insns.len() > INSNS_MAX {
        return Err(VerifyError::TooLong { insns: insns.len() });
    }
    let last = insns.len() - 1;
    for (at, &insn) in insns.iter().enumerate() {
        operands(at, insn)?;
        // libpcap's interpreter takes such a distance as negative.
        if insn.code == JA && insn.k > i32::MAX as u32 {
            return Err(VerifyError::Backward { at });
        }
        for skip in skips(insn).into_iter().flatten() {
            let to = at as u64 + 1 + u64::from(skip);
            if to > last as u64 {
                return Err(VerifyError::Jump { at, to, last });
            }
        }
    }
    Ok(())
}

/// Returns how many instructions may be skipped after this one: two numbers for a condition, none at an end, otherwise
/// one.
pub(crate) fn skips(insn: Insn) -> [Option<u32>; 2] {
    match insn.code {
        RET_K | RET_A => [None, None],
        JA => [Some(insn.k), None],
        _ if insn.is_conditional_jump() => [Some(u32::from(insn.jt)), Some(u32::from(insn.jf))],
        _ => [Some(0), None],
    }
}

fn operands(at: usize, insn: Insn) -> Result<(), VerifyError> {
    const ALU_K: u16 = ALU;
    const ALU_X: u16 = ALU | X;
    let opcode = Err(VerifyError::Opcode { at, code: insn.code });
    match insn.code {
        _ if insn.is_extension() => extension(at, insn),
        _ if insn.load().is_some() => Ok(()),
        LD_IMM | LD_LEN | LDX_IMM | LDX_LEN | RET_K | RET_A | TAX | TXA | JA => Ok(()),
        LD_MEM | LDX_MEM | ST | STX if insn.k as usize >= MEMORY_WORDS => {
            Err(VerifyError::Memory { at, index: insn.k })
        }
        LD_MEM | LDX_MEM | ST | STX => Ok(()),
        _ => match (insn.code & 0x0f, insn.code & 0xfff0) {
            (ALU_K, DIV | MOD) if insn.k == 0 => Err(VerifyError::DivisionByZero { at }),
            (ALU_K, LSH | RSH) if insn.k > 31 => Err(VerifyError::Shift { at, by: insn.k }),
            (ALU_K, NEG) => Ok(()),
            (ALU_K | ALU_X, ADD | SUB | MUL | DIV | OR | AND | LSH | RSH | MOD | XOR) => Ok(()),
            (0x05 | 0x0d, JEQ | JGT | JGE | JSET) => Ok(()),
            _ => opcode,
        },
    }
}

fn extension(at: usize, insn: Insn) -> Result<(), VerifyError> {
    // linux/filter.h, SKF_AD_*, in steps of four.
    const NAMES: [&str; EXTENSIONS as usize] = [
        "the protocol",
        "the packet's type",
        "the interface",
        "a netlink attribute",
        "a nested netlink attribute",
        "the mark",
        "the queue",
        "the hardware type",
        "the hash",
        "the CPU",
        "ALU_XOR_X",
        "the VLAN tag",
        "the VLAN tag's presence",
        "the payload's offset",
        "a random number",
        "the VLAN tag's protocol",
    ];
    if matches!(insn.k, VLAN_TAG | VLAN_TAG_PRESENT) {
        return Ok(());
    }
    Err(VerifyError::Extension { at, what: NAMES[((insn.k - EXTENSION) / 4) as usize] })
}
