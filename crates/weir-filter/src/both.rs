//! Combines two programs to one, which takes a frame if both take it.

use std::collections::BTreeSet;

use crate::insn::*;
use crate::program::Program;
use crate::verify::VerifyError;

/// The reason why two programs cannot be combined.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BothError {
    /// Only one of them reads the VLAN tag beside the bytes. The other one expects it in the bytes
    /// (see [`crate::frame`]).
    #[error(
        "bytecode that asks for the VLAN tag (as tcpdump -ddd prints it for a live interface) does not go together \
         with a filter that finds the tag in the frame; give an expression"
    )]
    Tag,
    /// The combined program is too long.
    #[error(transparent)]
    Verify(#[from] VerifyError),
}

impl Program {
    /// Combines two programs to one that takes the frames which both take: `first` decides, and `then` runs on the
    /// frames that it accepts. The verdict is that of `then`, or 0. `then` cannot change the decision of `first`,
    /// because it follows all of its instructions.
    ///
    /// # Errors
    /// [`BothError`].
    pub fn both(first: &Program, then: &Program) -> Result<Program, BothError> {
        if first.asks_for_tag() != then.asks_for_tag() {
            return Err(BothError::Tag);
        }
        let own = first.insns();
        let rejects_by_a = [Insn::jump(JMP | JEQ, 0, 0, 1), Insn::new(RET_K, 0)];
        let asks_a = own.iter().any(|insn| insn.code == RET_A);
        let rejects_by_a = if asks_a { &rejects_by_a[..] } else { &[] };
        let (test, accepted) = (own.len(), own.len() + rejects_by_a.len());
        // Makes a jump to the instruction of this number.
        let skip = |at: usize, to: usize| Insn::new(JA, (to - at - 1) as u32);
        let mut insns: Vec<Insn> = Vec::with_capacity(accepted + then.insns().len() + 2);
        insns.extend(own.iter().enumerate().map(|(at, insn)| match insn.code {
            RET_A => skip(at, test),
            RET_K if insn.k != 0 => skip(at, accepted),
            _ => *insn,
        }));
        insns.extend(rejects_by_a);
        // Restores the state in which a program begins: everything is 0.
        insns.extend([Insn::new(LD_IMM, 0), Insn::new(LDX_IMM, 0)]);
        let loads = then.insns().iter().filter(|insn| matches!(insn.code, LD_MEM | LDX_MEM));
        let words: BTreeSet<u32> = loads.map(|insn| insn.k).collect();
        insns.extend(words.into_iter().map(|word| Insn::new(ST, word)));
        insns.extend(then.insns());
        Ok(Program::new(insns)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::Frame;
    use crate::interpret::run;

    fn parse(text: &str) -> Program {
        Program::parse(text).expect(text)
    }

    fn verdict(program: &Program, bytes: &[u8]) -> u32 {
        run(program, &Frame { bytes, wire_len: bytes.len() as u32, tag: None })
    }

    #[test]
    fn both_decide_whatever_they_leave_behind() {
        // Takes frames whose first byte is odd, and leaves it in A, X and M[3]; rejects by ret #0.
        let odd = "7,48 0 0 0,2 0 0 3,97 0 0 3,69 0 1 1,6 0 0 9,6 0 0 0,6 0 0 0";
        // The same by ret A.
        let odd_by_a = "3,48 0 0 0,84 0 0 1,22 0 0 0";
        // Takes those whose second byte is odd, if A, X and M[3] are 0 at its beginning.
        let clean = "10,21 0 8 0,7 0 0 0,135 0 0 0,21 0 5 0,96 0 0 3,21 0 3 0,48 0 0 1,69 0 1 1,6 0 0 7,6 0 0 0";
        for first in [odd, odd_by_a] {
            let both = Program::both(&parse(first), &parse(clean)).unwrap();
            for (bytes, expected) in [([1, 1], 7), ([1, 2], 0), ([2, 1], 0), ([2, 2], 0)] {
                assert_eq!(verdict(&both, &bytes), expected, "{bytes:?}: {both}");
            }
        }
        let none = Program::both(&parse("1,6 0 0 0"), &parse("1,6 0 0 1")).unwrap();
        assert_eq!(verdict(&none, &[1, 1]), 0);
    }

    #[test]
    fn programs_that_see_frames_otherwise_and_those_that_are_too_long_are_refused() {
        let asks = parse("2,48 0 0 4294963248,22 0 0 0");
        assert!(asks.asks_for_tag());
        assert_eq!(Program::both(&asks, &parse("1,6 0 0 1")), Err(BothError::Tag));
        let long = parse(&("4000,".to_owned() + &"0 0 0 0,".repeat(3999) + "6 0 0 1"));
        assert!(matches!(Program::both(&long, &long), Err(BothError::Verify(_))));
    }
}
