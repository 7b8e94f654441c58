//! Replaces one function of a program by other code.

use weir_filter::ebpf::EbpfInsn;

/// A program's functions, one after the other; the first is the program itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) insns: Vec<EbpfInsn>,
    pub(super) functions: Vec<Function>,
}

/// Beginning and type of a function, in the kernel's format (`struct bpf_func_info`, linux/bpf.h).
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Function {
    /// Its first instruction.
    pub(super) begin: u32,
    /// Id of its type in the program's BTF.
    pub(super) type_id: u32,
}

impl Code {
    /// Returns the code with `body` in the place of the function of this type; `None` if there is no such function.
    /// `body` calls no function of the program.
    pub(super) fn with_body(&self, of_type: u32, body: &[EbpfInsn]) -> Option<Code> {
        let number = self.functions.iter().position(|function| function.type_id == of_type)?;
        let begin = self.functions[number].begin as usize;
        let end = self.functions.get(number + 1).map_or(self.insns.len(), |f| f.begin as usize);
        // The new position of an instruction that is not replaced.
        let moved = |at: usize| if at < end { at } else { at - end + begin + body.len() };
        let kept = |range: std::ops::Range<usize>| {
            range.map(|at| match target(self.insns[at]) {
                Some(distance) => {
                    let to = (at + 1).wrapping_add_signed(distance as isize);
                    let distance = moved(to) as isize - moved(at) as isize - 1;
                    with_target(self.insns[at], distance as i32)
                }
                None => self.insns[at],
            })
        };
        let mut insns: Vec<EbpfInsn> = kept(0..begin).collect();
        insns.extend(body);
        insns.extend(kept(end..self.insns.len()));
        let functions = self.functions.iter().map(|function| {
            let begin = moved(function.begin as usize) as u32;
            Function { begin, ..*function }
        });
        Some(Code { insns, functions: functions.collect() })
    }

    /// Returns the code with these instructions in front, which call no function.
    pub(super) fn with_ahead(&self, ahead: &[EbpfInsn]) -> Code {
        let moved = self.functions.iter().enumerate().map(|(number, function)| {
            // The instructions in front become part of the first function.
            let begin = if number == 0 { 0 } else { function.begin + ahead.len() as u32 };
            Function { begin, ..*function }
        });
        Code { insns: [ahead, &self.insns].concat(), functions: moved.collect() }
    }
}

/// Returns the distance to a function, from the next instruction, if the instruction calls one or takes its address.
/// Source: the kernel's Documentation/bpf/standardization/instruction-set.rst; linux/bpf.h.
fn target(insn: EbpfInsn) -> Option<i32> {
    const CALL: u8 = 0x85;
    const LOAD_64: u8 = 0x18;
    const PSEUDO_CALL: u8 = 1;
    const PSEUDO_FUNC: u8 = 4;
    let (code, src) = (insn as u8, (insn >> 12) as u8 & 0xf);
    matches!((code, src), (CALL, PSEUDO_CALL) | (LOAD_64, PSEUDO_FUNC))
        .then_some((insn >> 32) as i32)
}

fn with_target(insn: EbpfInsn, distance: i32) -> EbpfInsn {
    insn & 0xffff_ffff | u64::from(distance as u32) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXIT: EbpfInsn = 0x95;

    fn call(distance: i32) -> EbpfInsn {
        with_target(0x1085, distance)
    }

    fn code(insns: &[EbpfInsn], begins: &[u32]) -> Code {
        let function = |(number, &begin): (usize, &u32)| Function { begin, type_id: number as u32 };
        Code { insns: insns.to_vec(), functions: begins.iter().enumerate().map(function).collect() }
    }

    #[test]
    fn calls_reach_the_functions_that_they_did() {
        // 0: calls all others. 1: is replaced. 2: calls 1 and 3. 3: does nothing.
        let before = code(
            &[call(3), call(3), call(5), EXIT, EXIT, call(-2), call(1), EXIT, EXIT],
            &[0, 4, 5, 8],
        );
        for length in 1..5 {
            let body: Vec<EbpfInsn> = (1..length).chain([EXIT]).collect();
            let l = length as i32;
            let insns = [
                &[call(3), call(2 + l), call(4 + l), EXIT][..],
                &body,
                &[call(-1 - l), call(1), EXIT, EXIT],
            ];
            let length = length as u32;
            let after = code(&insns.concat(), &[0, 4, 4 + length, 7 + length]);
            assert_eq!(before.with_body(1, &body), Some(after), "{length} instructions");
        }
        assert_eq!(before.with_body(1, &[EXIT]), Some(before.clone()));
    }

    #[test]
    fn the_last_function_is_exchanged_too() {
        let before = code(&[call(1), EXIT, 7, EXIT], &[0, 2]);
        let after = code(&[call(1), EXIT, 1, 2, 3, EXIT], &[0, 2]);
        assert_eq!(before.with_body(1, &[1, 2, 3, EXIT]), Some(after));
    }

    #[test]
    fn calls_of_helpers_stay_what_they_are() {
        let helper = with_target(0x85, 26);
        let before = code(&[call(2), helper, EXIT, EXIT, helper, EXIT], &[0, 3, 4]);
        let after = code(&[call(2), helper, EXIT, 1, 2, EXIT, helper, EXIT], &[0, 3, 6]);
        assert_eq!(before.with_body(1, &[1, 2, EXIT]), Some(after));
    }

    #[test]
    fn what_runs_first_is_part_of_the_program_itself() {
        let before = code(&[call(2), EXIT, EXIT, call(-2), EXIT], &[0, 2, 3]);
        let after = code(&[1, 2, 3, call(2), EXIT, EXIT, call(-2), EXIT], &[0, 5, 6]);
        assert_eq!(before.with_ahead(&[1, 2, 3]), after);
    }

    #[test]
    fn what_is_not_there_is_not_exchanged() {
        assert_eq!(code(&[EXIT], &[0]).with_body(3, &[EXIT]), None);
    }
}
