use super::asm::JUMP_MAX;
use super::*;
use crate::Insn;
use crate::insn::*;

const TARGETS: [Target; 5] =
    [Target::Xdp, Target::XdpTag, Target::Tc, Target::Socket, Target::User];

fn program(insns: &[Insn]) -> Program {
    Program::new(insns).expect("valid")
}

/// A program that takes frames whose byte at offset `at` is 7.
fn byte(at: u32) -> Program {
    program(&[
        Insn::new(LD_B_ABS, at),
        Insn::jump(JMP | JEQ, 7, 0, 1),
        Insn::new(RET_K, 1),
        Insn::new(RET_K, 0),
    ])
}

/// A program of repeated loads through X. Each load becomes some 20 eBPF instructions in each of
/// two copies of the code: one for frames of which enough bytes can be read without a check, and one with checks.
fn indirect(insns: usize) -> Program {
    let mut code = vec![Insn::new(LD_W_IND, 4); insns];
    code[0] = Insn::new(LD_B_ABS, 0);
    code[insns - 1] = Insn::new(RET_A, 0);
    program(&code)
}

fn touches_mask(code: &[EbpfInsn]) -> bool {
    code.iter().any(|insn| {
        let (class, off) = (insn & 7, (insn >> 16) as i16);
        (1..=3).contains(&class) && off == MASK
    })
}

#[test]
fn a_set_of_one_is_as_short_as_the_program_alone() {
    for target in TARGETS {
        let one = byte(20);
        let alone = convert(&one, target).expect("short");
        let set = convert_set(&[Some(&one)], target).expect("short");
        assert_eq!(set.len(), alone.len(), "{target:?}");
        // Programs equal to another one, and programs that take every frame, add no instructions.
        let set = convert_set(&[None, Some(&one), Some(&byte(20)), None], target).expect("short");
        assert_eq!(set.len(), alone.len(), "{target:?}");
        assert!(!touches_mask(&set), "{target:?}");
        let two = convert_set(&[Some(&one), Some(&byte(21))], target).expect("short");
        assert_eq!(touches_mask(&two), target != Target::User);
        assert!(two.len() < 2 * alone.len() + 12, "{target:?}: they share what can be shared");
    }
}

#[test]
fn a_set_that_asks_nothing_is_two_instructions() {
    let every = program(&[Insn::new(JA, 0), Insn::new(RET_K, 3)]);
    let none = program(&[Insn::new(RET_K, 0)]);
    for (set, mask) in [
        (&[][..], 0),
        (&[None, None][..], 3),
        (&[Some(&none), None, Some(&every)][..], 6),
        (&[Some(&none)][..], 0),
    ] {
        for target in TARGETS {
            let code = convert_set(set, target).expect("short");
            assert_eq!(code, [0xb4 | mask << 32, 0x95], "{target:?}, {set:?}");
        }
    }
}

#[test]
fn what_is_too_long_is_named() {
    let (short, long) = (byte(1), indirect(4096));
    let set = [Some(&short), None, Some(&long), Some(&short)];
    let error = convert_set(&set, Target::Xdp).expect_err("too long");
    assert_eq!(error, ConvertError::TooLong { number: 2, insns: 4096 });
    assert_eq!(convert(&long, Target::Xdp), Err(ConvertError::TooLong { number: 0, insns: 4096 }));
    assert!(convert_set(&[Some(&short), None, None, Some(&short)], Target::Xdp).is_ok());
    // Each of these programs alone could be converted, but not all of them in one set.
    let many: Vec<_> = (0..SET_MAX).map(|n| indirect(1000 + n)).collect();
    let set: Vec<_> = many.iter().map(Some).collect();
    let error = convert_set(&set, Target::Xdp).expect_err("too long");
    assert!(
        matches!(error, ConvertError::SetTooLong { insns } if insns > EBPF_INSNS_MAX),
        "{error}"
    );
    assert!(convert_set(&set[..8], Target::Xdp).expect("eight of them").len() > 4 * JUMP_MAX);
}

#[test]
#[should_panic(expected = "a set has 32 filters at most, not 33")]
fn more_filters_than_bits_are_a_mistake() {
    let _ = convert_set(&[None; SET_MAX + 1], Target::User);
}
