use super::*;

#[track_caller]
fn code(insns: &[Insn]) -> Vec<Insn> {
    convert(&Program::new(insns).expect("valid"), 96).expect("it can be had")
}

const ENDS: [Insn; 2] = [Insn::new(RET_K, 5), Insn::new(RET_K, 0)];

fn asks_for_tags(code: &[Insn]) -> bool {
    code.iter().any(|insn| insn.is_extension())
}

#[test]
fn what_looks_at_the_addresses_alone_is_there_once() {
    let first = Insn::jump(JMP | JEQ, 0x0200_0000, 0, 1);
    let addresses = [Insn::new(LD_W_ABS, 8), first, ENDS[0], ENDS[1]];
    assert_eq!(code(&addresses), [addresses[0], first, Insn::new(RET_K, 96), ENDS[1]]);
    let behind = [Insn::new(LD_W_ABS, 9), first, ENDS[0], ENDS[1]];
    assert!(asks_for_tags(&code(&behind)));
    let index = |most| [Insn::new(LDX_IMM, most), Insn::new(LD_B_IND, 1), first, ENDS[0], ENDS[1]];
    assert!(!asks_for_tags(&code(&index(10))) && asks_for_tags(&code(&index(11))));
    assert!(asks_for_tags(&code(&[Insn::new(LD_LEN, 0), first, ENDS[0], ENDS[1]])));
}

#[test]
fn what_is_known_before_it_looks_is_one_instruction() {
    assert_eq!(code(&ENDS[..1]), [Insn::new(RET_K, 96)]);
    assert_eq!(code(&ENDS[1..]), ENDS[1..]);
    let far = [Insn::new(LD_B_ABS, EXTENSION - 1), Insn::new(RET_K, 5)];
    assert_eq!(code(&far), ENDS[1..]);
}

#[test]
fn an_index_is_compared_only_where_it_may_come_round() {
    let compares = |x| {
        let code = code(&[x, Insn::new(LD_B_IND, 16), Insn::new(RET_A, 0)]);
        code.iter().any(|insn| insn.code == JMP | JGT)
    };
    assert!(!compares(Insn::new(LDX_MSH, 14)));
    assert!(compares(Insn::new(LDX_LEN, 0)));
}

#[test]
fn what_cannot_be_had_says_why() {
    let refused = |insns: &[Insn]| convert(&Program::new(insns).expect("valid"), 1).unwrap_err();
    let asks = [Insn::new(LD_B_ABS, VLAN_TAG_PRESENT), Insn::new(RET_A, 0)];
    assert_eq!(refused(&asks), ClassicError::AsksForTag);
    let mut all_words: Vec<Insn> = (0..16).map(|word| Insn::new(ST, word)).collect();
    all_words.extend([Insn::new(LDX_LEN, 0), Insn::new(TXA, 0), Insn::new(RET_A, 0)]);
    assert_eq!(refused(&all_words), ClassicError::NoWord);
    let mut long = vec![Insn::new(LD_H_ABS, 20); 2500];
    long.push(Insn::new(RET_A, 0));
    let error = refused(&long);
    assert!(matches!(error, ClassicError::TooLong { insns: 5000.. }), "{error}");
}
