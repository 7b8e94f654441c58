//! Any bytecode is verified or refused. What is verified ends, and gives the same verdict interpreted and
//! as machine code; it converts for every home, or is too long for it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use weir_filter::ebpf::{self, Target};
use weir_filter::{Frame, Insn, Program, Tag, UserFilter, interpret};

// First the frame's length and its bytes, then instructions of 8 bytes each.
fuzz_target!(|input: &[u8]| {
    let Some((&len, rest)) = input.split_first() else { return };
    let Some((bytes, code)) = rest.split_at_checked(usize::from(len)) else { return };
    let insns: Vec<Insn> = code.chunks_exact(8).map(insn).collect();
    let Ok(program) = Program::new(insns) else { return };

    for target in [Target::Xdp, Target::Tc, Target::Socket] {
        if let Ok(code) = ebpf::convert(&program, target) {
            assert_eq!(code.last().map(|insn| insn & 0xff), Some(0x95), "it ends in exit");
        }
    }
    let tag = Some(Tag { protocol: 0x88a8, tci: 7 });
    let _ = interpret::run(&program, &Frame { bytes, wire_len: 9000, tag });
    let expected = interpret::run(&program, &Frame { bytes, wire_len: 1500, tag: None });
    let filter = UserFilter::new(program);
    assert_eq!(filter.run(bytes, 1500), expected);
});

/// Codes are 16 bits wide; nearly always the upper half is zero here, so that programs come about.
fn insn(bytes: &[u8]) -> Insn {
    let code = u16::from(bytes[0]) | if bytes[1] > 250 { 0x100 } else { 0 };
    let k = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
    Insn { code, jt: bytes[2], jf: bytes[3], k }
}
