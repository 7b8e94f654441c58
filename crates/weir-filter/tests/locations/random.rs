//! Random programs.

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;
use weir_filter::insn::*;
use weir_filter::{Insn, Program};

/// Frames of 0 to 127 bytes. About half of the bytes are below 4, so that comparisons are sometimes true.
pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    vec(prop_oneof![any::<u8>(), 0u8..4], 0..128)
}

/// A program with up to 39 random instructions, of which it often executes more than the first few.
pub fn program() -> impl Strategy<Value = Program> {
    body(40, false, 16)
}

/// A program that leaves one word of scratch memory unused.
pub fn sparing() -> impl Strategy<Value = Program> {
    body(40, false, 15)
}

/// A program that reads the tag beside the bytes.
pub fn asking() -> impl Strategy<Value = Program> {
    body(40, true, 16)
}

/// Returns `count` programs, which are the same in each run.
pub fn some(strategy: &impl Strategy<Value = Program>, count: usize) -> Vec<Program> {
    let mut runner = TestRunner::deterministic();
    let mut one = || strategy.new_tree(&mut runner).expect("nothing is filtered out").current();
    (0..count).map(|_| one()).collect()
}

/// A program of exactly this length, which repeats some loads, arithmetic, a store and a condition.
pub fn long(length: usize) -> Program {
    let cycle = [
        Insn::new(LD_B_ABS, 12),
        Insn::new(LDX_MSH, 14),
        Insn::new(ALU | ADD | X, 0),
        Insn::new(ST, 3),
        Insn::new(LD_H_IND, 1),
        Insn::jump(JMP | JGT, 7, 0, 1),
        Insn::new(ALU | MOD, 7),
    ];
    let mut insns: Vec<_> = cycle.into_iter().cycle().take(length - 2).collect();
    insns.extend([Insn::new(LD_MEM, 3), Insn::new(RET_A, 0)]);
    Program::new(insns).expect("valid")
}

fn body(insns_max: usize, asking: bool, words: u32) -> impl Strategy<Value = Program> {
    vec((insn(words), any::<u8>(), any::<u8>()), 1..insns_max).prop_map(move |parts| {
        // libpcap does not clear its scratch memory. In Weir it begins as 0.
        let mut insns: Vec<_> = (0..words).map(|word| Insn::new(ST, word)).collect();
        if asking {
            insns.push(Insn::new(LD_B_ABS, VLAN_TAG));
            insns.push(Insn::new(ST, 1));
            insns.push(Insn::new(LD_B_ABS, VLAN_TAG_PRESENT));
        }
        let count = parts.len();
        for (at, (mut insn, jt, jf)) in parts.into_iter().enumerate() {
            let left = (count - at) as u32;
            if insn.code == JA {
                insn.k %= left;
            } else if insn.code & 7 == JMP {
                (insn.jt, insn.jf) = (jt % left.min(8) as u8, jf % left.min(8) as u8);
            }
            insns.push(insn);
        }
        insns.push(Insn::new(RET_A, 0));
        Program::new(insns).expect("valid by construction")
    })
}

fn insn(words: u32) -> impl Strategy<Value = Insn> {
    let offset = prop_oneof![8 => 0u32..24, 4 => 0u32..128, 1 => 0u32..70_000, 1 => any::<u32>()];
    // Offsets of extensions are replaced by others.
    let beside = EXTENSION..EXTENSION + 64;
    let offset = offset.prop_map(move |k| if beside.contains(&k) { k - 64 } else { k });
    let absolute = prop_oneof![Just(LD_W_ABS), Just(LD_H_ABS), Just(LD_B_ABS), Just(LDX_MSH)];
    let indirect = prop_oneof![Just(LD_W_IND), Just(LD_H_IND), Just(LD_B_IND)];
    let near = prop_oneof![6 => 0u32..16, 1 => any::<u32>()];
    let small = prop_oneof![4 => 0u32..40, 1 => any::<u32>()];
    let memory = prop_oneof![Just(LD_MEM), Just(LDX_MEM), Just(ST), Just(STX)];
    let op = prop_oneof![
        Just(ADD),
        Just(SUB),
        Just(MUL),
        Just(DIV),
        Just(OR),
        Just(AND),
        Just(LSH),
        Just(RSH),
        Just(MOD),
        Just(XOR),
        Just(NEG)
    ];
    let condition = prop_oneof![Just(JEQ), Just(JGT), Just(JGE), Just(JSET)];
    let by = prop_oneof![Just(0), Just(X)];
    prop_oneof![
        4 => (absolute, offset).prop_map(|(code, k)| Insn::new(code, k)),
        3 => (indirect, near).prop_map(|(code, k)| Insn::new(code, k)),
        2 => (memory, 0u32..words).prop_map(|(code, k)| Insn::new(code, k)),
        2 => small.clone().prop_map(|k| Insn::new(LDX_IMM, k)),
        1 => small.clone().prop_map(|k| Insn::new(LD_IMM, k)),
        4 => (op, by.clone(), small.clone()).prop_map(|(op, by, k)| match op {
            NEG => Insn::new(ALU | NEG, k),
            DIV | MOD if by == 0 => Insn::new(ALU | op, k.max(1)),
            LSH | RSH if by == 0 => Insn::new(ALU | op, k & 31),
            _ => Insn::new(ALU | op | by, k),
        }),
        4 => (condition, by, small.clone()).prop_map(|(c, by, k)| Insn::new(JMP | c | by, k)),
        3 => prop_oneof![Just(TAX), Just(TXA), Just(LD_LEN), Just(LDX_LEN)]
            .prop_map(|code| Insn::new(code, 0)),
        1 => any::<u32>().prop_map(|k| Insn::new(JA, k)),
        1 => small.prop_map(|k| Insn::new(RET_K, k)),
    ]
}
