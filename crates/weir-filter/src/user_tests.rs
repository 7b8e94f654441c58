use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::insn::*;
use crate::{Insn, SET_MAX};

/// A program that takes frames whose byte at offset `at` is at least `value`. It relies on A, X and M[3] being 0 at its
/// beginning, and changes them.
fn byte(at: u32, value: u32) -> Program {
    let insns = [
        Insn::new(ALU | ADD | X, 0),
        Insn::new(ALU | ADD, 1),
        Insn::new(TAX, 0),
        Insn::new(LD_MEM, 3),
        Insn::new(ST, 4),
        Insn::new(LD_B_ABS, at),
        Insn::jump(JMP | JGE, value, 0, 2),
        Insn::new(ST, 3),
        Insn::new(RET_K, 9),
        Insn::new(LD_MEM, 4),
        Insn::new(ALU | ADD | X, 0),
        Insn::new(ALU | SUB, 1),
        Insn::new(RET_A, 0),
    ];
    Program::new(insns).expect("valid")
}

/// A program of `length` instructions, with loads and conditions.
fn long(length: usize, value: u32) -> Program {
    let cycle = [
        Insn::new(LD_B_ABS, 12),
        Insn::new(LDX_MSH, 3),
        Insn::new(LD_B_IND, 1),
        Insn::jump(JMP | JEQ, value, 0, 1),
    ];
    let mut insns: Vec<_> = cycle.into_iter().cycle().take(length - 2).collect();
    insns.extend([Insn::new(TAX, 0), Insn::new(RET_A, 0)]);
    Program::new(insns).expect("valid")
}

/// A program that is too long to be converted: each of its loads through X must check where the VLAN tag is.
fn too_long() -> Program {
    let mut insns = vec![Insn::new(LD_W_IND, 1); 4000];
    insns.extend([Insn::new(LD_B_ABS, VLAN_TAG_PRESENT), Insn::new(RET_A, 0)]);
    Program::new(insns).expect("valid")
}

/// The interpreter's verdicts: bit n is set if filter n takes the frame.
fn expected(set: &[Option<&Program>], bytes: &[u8]) -> u32 {
    let frame = Frame { bytes, wire_len: 1500, tag: None };
    let takes = |program: &Option<&Program>| program.is_none_or(|p| interpret::run(p, &frame) > 0);
    set.iter().enumerate().fold(0, |mask, (n, program)| mask | u32::from(takes(program)) << n)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn each_filter_of_a_set_has_its_own_bit_and_its_own_memory(
        parts in vec(option::weighted(0.9, (0u32..70, 0u32..4)), 0..=SET_MAX),
        bytes in vec(0u8..4, 0..80),
    ) {
        let set: Vec<_> = parts.iter().map(|part| part.map(|(at, value)| byte(at, value))).collect();
        let set: Vec<_> = set.iter().map(Option::as_ref).collect();
        let filters = UserFilterSet::new(&set);
        prop_assert_eq!(filters.run(&bytes, 1500), expected(&set, &bytes));
    }
}

#[test]
fn a_set_of_nothing_needs_no_code() {
    let all = UserFilterSet::new(&[None; SET_MAX]);
    assert_eq!((all.run(&[], 0), all.is_compiled()), (u32::MAX, true));
    assert_eq!(UserFilterSet::new(&[]).run(&[1; 60], 60), 0);
    let [every, none] = [5, 0].map(|k| Program::new([Insn::new(RET_K, k)]).expect("valid"));
    let set = [Some(&every), Some(&none), None, Some(&none)];
    assert_eq!(UserFilterSet::new(&set).run(&[1; 60], 60), 0b101);
}

const FRAMES: [&[u8]; 4] =
    [&[], &[0; 14], &[0x81; 60], &[1, 7, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13]];

#[test]
fn a_long_set_goes_over_stepping_stones() {
    let programs: Vec<_> = (0..SET_MAX).map(|n| long(1500, n as u32)).collect();
    let set: Vec<_> = programs.iter().map(Some).collect();
    let filters = UserFilterSet::new(&set);
    assert_eq!(matches!(filters.code, SetCode::Whole(_)), cfg!(target_arch = "x86_64"));
    for bytes in FRAMES {
        assert_eq!(filters.run(bytes, 1500), expected(&set, bytes), "on {bytes:02x?}");
    }
}

#[test]
fn what_cannot_be_compiled_is_interpreted() {
    let (short, long) = (byte(0, 1), too_long());
    let set = [Some(&short), None, Some(&long), Some(&short)];
    let filters = UserFilterSet::new(&set);
    assert!(!filters.is_compiled());
    for bytes in FRAMES {
        assert_eq!(filters.run(bytes, 1500), expected(&set, bytes), "on {bytes:02x?}");
    }
    let long = UserFilter::new(long);
    assert_eq!((long.is_compiled(), long.run(&[0x81; 60], 60)), (false, 0));
}
