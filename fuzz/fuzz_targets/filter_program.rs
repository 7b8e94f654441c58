//! Any bytecode is verified or refused. A verified program ends, and gives the same verdict interpreted and as
//! machine code, alone and in a set. It can be converted for every place where filters run, or is too long for it.
//! As a classic program for sockets it gives the same verdict in a model of the kernel, with and without a VLAN tag
//! beside the bytes.
#![no_main]

#[path = "../../crates/weir-filter/tests/locations/model.rs"]
mod model;

use libfuzzer_sys::fuzz_target;
use weir_filter::ebpf::{self, Target};
use weir_filter::{Frame, Insn, Program, Tag, UserFilter, UserFilterSet, classic, interpret};

// First the frame's length and its bytes, then instructions of 8 bytes each.
fuzz_target!(|input: &[u8]| {
    let Some((&len, rest)) = input.split_first() else { return };
    let Some((bytes, code)) = rest.split_at_checked(usize::from(len)) else { return };
    let insns: Vec<Insn> = code.chunks_exact(8).map(insn).collect();
    let Ok(program) = Program::new(&insns[..]) else { return };
    // Jumps go forward, so a program without its first instructions is still a program.
    let rests =
        (0..insns.len().min(6)).map(|from| Program::new(&insns[from..]).expect("the end of one"));
    let rests: Vec<_> = rests.collect();
    let set: Vec<_> = rests.iter().map(Some).chain([None, Some(&program)]).collect();

    for target in [Target::Xdp, Target::Tc, Target::Socket] {
        if let Ok(code) = ebpf::convert(&program, target) {
            assert_eq!(code.last().map(|insn| insn & 0xff), Some(0x95), "it ends in exit");
        }
        if let Ok(code) = ebpf::convert_set(&set, target) {
            assert_eq!(code.last().map(|insn| insn & 0xff), Some(0x95), "it ends in exit");
        }
    }
    let tag = Some(Tag { protocol: 0x88a8, tci: 7 });
    let _ = interpret::run(&program, &Frame { bytes, wire_len: 9000, tag });
    if let Ok(code) = classic::convert(&program, 1500) {
        assert!(model::is_taken(&code), "{program:?} as {code:?}");
        // A frame without MAC addresses has no VLAN tag.
        for tag in [None, tag].into_iter().filter(|tag| tag.is_none() || bytes.len() >= 12) {
            let frame = Frame { bytes, wire_len: bytes.len() as u32, tag };
            let (found, expected) =
                (model::run(&code, bytes, tag), interpret::run(&program, &frame));
            assert_eq!(found > 0, expected > 0, "{tag:?}, {program:?} as {code:?}");
        }
    }
    let verdict = |program| interpret::run(program, &Frame { bytes, wire_len: 1500, tag: None });
    let expected = set.iter().enumerate().fold(0, |mask, (n, program)| {
        mask | u32::from(program.is_none_or(|program| verdict(program) > 0)) << n
    });
    assert_eq!(UserFilterSet::new(&set).run(bytes, 1500), expected);
    let expected = verdict(&program);
    assert_eq!(UserFilter::new(program).run(bytes, 1500), expected);
});

/// Codes are 16 bits wide. The upper half is nearly always zero here, so that many programs are valid.
fn insn(bytes: &[u8]) -> Insn {
    let code = u16::from(bytes[0]) | if bytes[1] > 250 { 0x100 } else { 0 };
    let k = u32::from_le_bytes(bytes[4..8].try_into().expect("4 bytes"));
    Insn { code, jt: bytes[2], jf: bytes[3], k }
}
