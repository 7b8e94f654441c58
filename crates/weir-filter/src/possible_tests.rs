use super::*;
use crate::Insn;

/// Frames in whose headers only these values occur, each with its kind of field.
struct Only(&'static [(Kind, u32)]);

impl Facts for Only {
    fn may_have(&self, kind: Kind, value: u32) -> bool {
        self.0.contains(&(kind, value))
    }
}

const WEB: Only = Only(&[
    (Kind::EtherType, 0x800),
    (Kind::Protocol, 6),
    (Kind::V4Address, 0x0a00_0001),
    (Kind::V4Address, 0x0a00_0002),
    (Kind::Port, 80),
    (Kind::Port, 4242),
]);

/// `tcp port N`, as libpcap compiles it.
fn tcp_port(port: u16) -> Program {
    let text = format!(
        "20,40 0 0 12,21 0 6 34525,48 0 0 20,21 0 15 6,40 0 0 54,21 12 0 {port},40 0 0 56,21 10 11 {port},\
         21 0 10 2048,48 0 0 23,21 0 8 6,40 0 0 20,69 6 0 8191,177 0 0 14,72 0 0 14,21 2 0 {port},\
         72 0 0 16,21 0 1 {port},6 0 0 262144,6 0 0 0"
    );
    Program::parse(&text).expect("a program")
}

#[test]
fn an_absent_port_is_impossible() {
    assert!(possible(&tcp_port(80), 1, &WEB));
    assert!(!possible(&tcp_port(443), 1, &WEB));
    assert!(!possible(&tcp_port(80), 1, &Only(&[])));
    // Nothing is known about other link types.
    assert!(possible(&tcp_port(443), 113, &WEB));
}

#[test]
fn a_port_is_not_known_unless_later_fragments_are_ruled_out() {
    let by_index = |fragment_first: bool| {
        let fragment = [Insn::new(LD_H_ABS, 20), Insn::jump(JMP | JSET, 0x1fff, 4, 0)];
        let port = [
            Insn::new(LDX_MSH, 14),
            Insn::new(LD_H_IND, 14),
            Insn::jump(JMP | JEQ, 443, 0, 1),
            Insn::new(RET_K, 1),
            Insn::new(RET_K, 0),
        ];
        let ip = [
            Insn::new(LD_H_ABS, 12),
            Insn::jump(JMP | JEQ, 0x800, 0, 8),
            Insn::new(LD_B_ABS, 23),
            Insn::jump(JMP | JEQ, 6, 0, 6),
        ];
        let neither = [Insn::new(LD_H_ABS, 20), Insn::jump(JMP | JSET, 0x1000, 4, 0)];
        let insns = [&ip[..], if fragment_first { &fragment } else { &neither }, &port].concat();
        possible(&Program::new(insns).expect("a program"), 1, &WEB)
    };
    assert!(!by_index(true));
    assert!(by_index(false));
}

#[test]
fn ranges_and_prefixes_are_looked_up_value_by_value() {
    let address = |mask: u32, network: u32| {
        let insns = [
            Insn::new(LD_H_ABS, 12),
            Insn::jump(JMP | JEQ, 0x800, 0, 4),
            Insn::new(LD_W_ABS, 26),
            Insn::new(ALU | AND, mask),
            Insn::jump(JMP | JEQ, network, 0, 1),
            Insn::new(RET_K, 1),
            Insn::new(RET_K, 0),
        ];
        possible(&Program::new(insns).expect("a program"), 1, &WEB)
    };
    assert!(address(0xffff_fffc, 0x0a00_0000));
    assert!(!address(0xffff_fffc, 0x0a00_0004));
    assert!(!address(0xffff_fff0, 0x0a00_0010));
    // A prefix with too many addresses to look up, and a mask that is not a prefix: the answer is always yes.
    assert!(address(0xffff_ff00, 0x0b00_0000));
    assert!(address(0xffff_fff5, 0x0b00_0000));
    // After the `and`, bits that the mask clears are zero, so the comparison cannot succeed.
    assert!(!address(0xffff_ff00, 0x0a00_0001));
}

#[test]
fn a_verdict_in_a_register_counts() {
    let verdict = |insns: &[Insn]| possible(&Program::new(insns).expect("a program"), 1, &WEB);
    assert!(!verdict(&[Insn::new(LD_IMM, 0), Insn::new(RET_A, 0)]));
    assert!(verdict(&[Insn::new(LD_IMM, 3), Insn::new(RET_A, 0)]));
    assert!(verdict(&[Insn::new(LD_LEN, 0), Insn::new(RET_A, 0)]));
}

#[test]
fn the_work_is_bounded() {
    // Each condition splits the path in two, and both parts meet again behind it: to follow every path would take
    // 2^1000 steps.
    let mut insns = Vec::new();
    for n in 0..1000 {
        insns.push(Insn::new(LD_B_ABS, n));
        insns.push(Insn::jump(JMP | JGT, n, 0, 1));
        insns.push(Insn::new(TAX, 0));
    }
    insns.push(Insn::new(RET_K, 0));
    let _ = possible(&Program::new(insns).expect("a program"), 1, &WEB);
}
