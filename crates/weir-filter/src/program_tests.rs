use super::*;
use crate::insn::*;

fn parse(text: &str) -> Result<Program, String> {
    Program::parse(text).map_err(|error| error.to_string())
}

#[test]
fn what_tcpdump_prints_is_read_and_printed_again() {
    let text = "4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0\n";
    let program = parse(text).expect("a program");
    assert_eq!(program.insns()[1], Insn::jump(JMP | JEQ, 0x800, 0, 1));
    assert_eq!(program.to_string(), text);
    // On one line with commas, as iptables and tc write it; and with line ends of Windows.
    assert_eq!(parse("4,40 0 0 12,21 0 1 2048,6 0 0 262144,6 0 0 0,"), Ok(program.clone()));
    assert_eq!(parse(&text.replace('\n', "\r\n")), Ok(program));
}

#[test]
fn text_of_another_form_is_refused_with_its_line() {
    let cases = [
        ("", "line 1: it is empty"),
        ("tcp port 80", "line 1: 'tcp port 80' is no number"),
        ("1\n6 0 0", "line 2: '6 0 0' is not four numbers"),
        ("1\n6 0 0 0 0", "line 2"),
        ("1\n6 0 0 4294967296", "line 2"),
        ("1\n6 256 0 0", "line 2"),
        ("2\n6 0 0 0", "it says 2 instructions, and 1 follow"),
        ("0\n", "no instructions"),
        ("18446744073709551616", "is no number"),
        ("1\n\u{1b}[2J 0 0 0", "'\\u{1b}[2J"),
    ];
    for (text, expected) in cases {
        let error = parse(text).expect_err(text);
        assert!(error.contains(expected), "{text:?}: {error}");
    }
    let long = "99999999\n".to_owned() + &"6 0 0 0\n".repeat(5000);
    assert!(parse(&long).expect_err("too long").contains("at most 4096"));
}

#[test]
fn a_program_takes_all_if_its_first_instruction_says_so() {
    for (text, takes_all) in [
        ("1\n6 0 0 262144", true),
        ("1\n6 0 0 0", false),
        ("1\n22 0 0 0", false),
        ("4\n40 0 0 12\n21 0 1 2048\n6 0 0 262144\n6 0 0 0", false),
    ] {
        assert_eq!(parse(text).map(|program| program.takes_all()), Ok(takes_all), "{text}");
    }
}

#[test]
fn what_is_no_program_is_refused_with_the_instruction() {
    let ret = Insn::new(RET_K, 0);
    let cases: [(&[Insn], &str); 16] = [
        (&[], "no instructions"),
        (&[Insn::new(LD_IMM, 0)], "instruction 0: it goes on at 1"),
        (&[Insn::jump(JMP | JEQ, 0, 0, 1), ret], "instruction 0: it goes on at 2"),
        (&[Insn::jump(JMP | JEQ, 0, 1, 0), ret], "instruction 0: it goes on at 2"),
        (&[Insn::new(JA, u32::MAX), ret], "instruction 0: it jumps back"),
        (&[Insn::new(JA, 0x7fff_ffff), ret], "it goes on at 2147483648"),
        (&[ret, Insn::new(ST, 16), ret], "instruction 1: there is no M[16]"),
        (&[Insn::new(LDX_MEM, u32::MAX), ret], "M[4294967295]"),
        (&[Insn::new(ALU | DIV, 0), ret], "division by zero"),
        (&[Insn::new(ALU | MOD, 0), ret], "division by zero"),
        (&[Insn::new(ALU | NEG | X, 0), ret], "0x008c is no opcode"),
        (&[Insn::new(0x95, 0), ret], "0x0095 is no opcode"),
        (&[Insn::new(0xffff, 0), ret], "0xffff is no opcode"),
        (&[Insn::new(LD_B_ABS, EXTENSION + 4), ret], "it loads the packet's type"),
        (&[Insn::new(LD_W_ABS, EXTENSION + 60), ret], "it loads the VLAN tag's protocol"),
        (&[Insn::new(ALU | LSH, 32), ret], "a shift by 32 bits"),
    ];
    for (insns, expected) in cases {
        let error = Program::new(insns).expect_err(expected).to_string();
        assert!(error.contains(expected), "{insns:?}: {error}");
    }
    // No frame is long enough for this offset, but the load is valid: libpcap makes it from `ether[0 - 1]`.
    assert!(Program::new([Insn::new(LD_B_ABS, u32::MAX), ret]).is_ok());
    assert!(Program::new(vec![ret; INSNS_MAX]).is_ok());
    assert_eq!(
        Program::new(vec![ret; INSNS_MAX + 1]),
        Err(VerifyError::TooLong { insns: INSNS_MAX + 1 })
    );
}
