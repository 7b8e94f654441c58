//! A filter gives the same verdict wherever it runs: in libpcap's interpreter, in Weir's interpreter, as machine code
//! in user space, and in the kernel: at XDP, at TC, and at sockets as eBPF and as classic BPF.

mod classic;
mod expressions;
mod frames;
mod kernel;
mod model;
mod oracle;
mod random;
mod sets;

use proptest::prelude::*;
use weir_filter::ebpf::{Target, convert};
use weir_filter::frame::{TAG_AT, TAG_BYTES};
use weir_filter::{Frame, Program, Tag, UserFilter, interpret};

use kernel::{Loaded, Socket};

/// Runs the filter in user space, interpreted and compiled. Fails if the verdicts differ.
#[track_caller]
fn in_user_space(filter: &UserFilter, bytes: &[u8], wire_len: u32) -> u32 {
    let interpreted = interpret::run(filter.program(), &Frame { bytes, wire_len, tag: None });
    let compiled = filter.run(bytes, wire_len);
    assert_eq!(
        compiled,
        interpreted,
        "compiled, interpreted: {:?} on {bytes:02x?}",
        filter.program()
    );
    interpreted
}

#[track_caller]
fn compiled(program: Program) -> UserFilter {
    let filter = UserFilter::new(program);
    assert_eq!(filter.is_compiled(), cfg!(target_arch = "x86_64"), "{:?}", filter.program());
    filter
}

#[test]
fn user_space_gives_libpcaps_verdict() {
    let frames = frames::all();
    let (mut taken, mut rejected) = (0, 0);
    for text in expressions::all() {
        let program = oracle::compile(&text);
        let filter = compiled(program.clone());
        for bytes in &frames {
            // A frame that is cut still has its length on the wire.
            for wire_len in [bytes.len() as u32, 1500] {
                let expected = oracle::run(&program, bytes, wire_len);
                let found = in_user_space(&filter, bytes, wire_len);
                assert_eq!(found, expected, "'{text}' on {bytes:02x?}");
                let cut = &bytes[..bytes.len().min(program.reach() as usize)];
                assert_eq!(
                    oracle::run(&program, cut, wire_len),
                    expected,
                    "'{text}' on {cut:02x?}"
                );
                if found > 0 { taken += 1 } else { rejected += 1 }
            }
        }
    }
    assert!(taken > 10_000 && rejected > 10_000, "{taken} taken, {rejected} rejected");
}

#[test]
fn a_program_of_any_length_runs_in_user_space() {
    let frames = frames::all();
    for length in [2000, 4096] {
        let program = random::long(length);
        assert_eq!(program.insns().len(), length);
        let filter = UserFilter::new(program.clone());
        for bytes in &frames {
            let wire_len = bytes.len() as u32;
            assert_eq!(
                in_user_space(&filter, bytes, wire_len),
                oracle::run(&program, bytes, wire_len)
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn random_programs_give_libpcaps_verdict(
        program in random::program(),
        bytes in random::bytes(),
        wire_len in any::<u32>(),
    ) {
        let expected = oracle::run(&program, &bytes, wire_len);
        let cut = &bytes[..bytes.len().min(program.reach() as usize)];
        prop_assert_eq!(oracle::run(&program, cut, wire_len), expected, "{:?} on {:02x?}", program, cut);
        prop_assert_eq!(in_user_space(&compiled(program), &bytes, wire_len), expected);
    }

    /// Two programs combined take the frames that both take.
    #[test]
    fn random_programs_as_one_take_what_both_take(
        first in random::program(),
        then in random::program(),
        bytes in random::bytes(),
        wire_len in any::<u32>(),
    ) {
        let expected = match oracle::run(&first, &bytes, wire_len) {
            0 => 0,
            _ => oracle::run(&then, &bytes, wire_len),
        };
        let both = Program::both(&first, &then).expect("short");
        prop_assert_eq!(oracle::run(&both, &bytes, wire_len), expected, "{:?}", both);
        prop_assert_eq!(in_user_space(&compiled(both), &bytes, wire_len), expected);
    }

    /// A program that reads the tag beside the bytes gives the same verdict if the tag is in the bytes.
    #[test]
    fn a_tag_in_the_bytes_is_taken_off_for_those_who_ask(
        program in random::asking(),
        bytes in random::bytes(),
        wire_len in 4u32..,
    ) {
        let mut bytes = bytes;
        if bytes.len() >= TAG_AT + TAG_BYTES {
            bytes[TAG_AT..TAG_AT + 2].copy_from_slice(&[0x81, 0]);
            let (off, tag) = taken_off(&bytes);
            let beside = Frame { bytes: &off, wire_len: wire_len - TAG_BYTES as u32, tag: Some(tag) };
            let expected = interpret::run(&program, &beside);
            let cut = &bytes[..bytes.len().min(program.reach() as usize)];
            let found = interpret::run(&program, &Frame { bytes: cut, wire_len, tag: None });
            prop_assert_eq!(found, expected, "{:?} on {:02x?}", program, cut);
            prop_assert_eq!(in_user_space(&compiled(program), &bytes, wire_len), expected);
        }
    }
}

/// The frame without its tag, and the tag.
fn taken_off(bytes: &[u8]) -> (Vec<u8>, Tag) {
    let word = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
    let tag = Tag { protocol: word(TAG_AT), tci: word(TAG_AT + 2) };
    ([&bytes[..TAG_AT], &bytes[TAG_AT + TAG_BYTES..]].concat(), tag)
}

#[test]
fn the_tag_is_where_the_program_looks_for_it() {
    use weir_filter::insn::*;
    let get =
        |insns: &[Insn]| Program::new([insns, &[Insn::new(RET_A, 0)]].concat()).expect("valid");
    let bytes: Vec<u8> = (0..60).collect();
    let tag = Tag { protocol: 0x88a8, tci: 0x1234 };
    let beside = Frame { bytes: &bytes, wire_len: 60, tag: Some(tag) };
    let mut inside = bytes.clone();
    inside.splice(12..12, [0x88, 0xa8, 0x12, 0x34]);
    let inside = Frame { bytes: &inside, wire_len: 64, tag: None };
    let cases = [
        // Programs that do not read the tag beside the bytes see the frame as it is on the wire.
        (get(&[Insn::new(LD_H_ABS, 12)]), 0x88a8),
        (get(&[Insn::new(LD_W_ABS, 10)]), 0x0a0b_88a8),
        (get(&[Insn::new(LD_W_ABS, 14)]), 0x1234_0c0d),
        (get(&[Insn::new(LDX_IMM, 3), Insn::new(LD_W_IND, 11)]), 0x1234_0c0d),
        (get(&[Insn::new(LD_W_ABS, 16)]), 0x0c0d_0e0f),
        (get(&[Insn::new(LD_LEN, 0)]), 64),
        // Programs that read it see the frame as the kernel's sockets do.
        (get(&[Insn::new(LD_B_ABS, VLAN_TAG_PRESENT)]), 1),
        (get(&[Insn::new(LD_B_ABS, VLAN_TAG)]), 0x1234),
        (get(&[Insn::new(LD_W_ABS, VLAN_TAG), Insn::new(LD_H_ABS, 12)]), 0x0c0d),
        (get(&[Insn::new(LD_W_ABS, VLAN_TAG), Insn::new(LD_W_ABS, 10)]), 0x0a0b_0c0d),
        (get(&[Insn::new(LD_W_ABS, VLAN_TAG), Insn::new(LD_LEN, 0)]), 60),
    ];
    for (program, expected) in cases {
        assert_eq!(interpret::run(&program, &beside), expected, "{program:?}");
        assert_eq!(interpret::run(&program, &inside), expected, "{program:?}");
        assert_eq!(compiled(program).run(inside.bytes, 64), expected);
    }
}

/// Loads the program for XDP and for TC, and compares it with libpcap on all frames that a test run of this type
/// accepts.
fn held_to_libpcap(what: &str, program: &Program, frames: &[Vec<u8>]) {
    for target in [Target::Xdp, Target::Tc] {
        let loaded = Loaded::new(program, target).unwrap_or_else(|log| panic!("{what}: {log}"));
        for bytes in frames.iter().filter(|bytes| target == Target::Xdp || frames::for_tc(bytes)) {
            let expected = oracle::run(program, bytes, bytes.len() as u32);
            assert_eq!(loaded.run(bytes), expected, "{target:?}, '{what}' on {bytes:02x?}");
        }
    }
}

#[test]
fn root_the_kernel_gives_libpcaps_verdict() {
    if !weir_lab::testbed::require_root("root_the_kernel_gives_libpcaps_verdict") {
        return;
    }
    let frames = frames::for_the_kernel();
    for text in expressions::all() {
        held_to_libpcap(&text, &oracle::compile(&text), &frames);
    }
}

#[test]
fn root_random_programs_give_libpcaps_verdict_in_the_kernel() {
    if !weir_lab::testbed::require_root("root_random_programs_give_libpcaps_verdict_in_the_kernel")
    {
        return;
    }
    let frames = frames::for_the_kernel();
    for program in random::some(&random::program(), 150) {
        held_to_libpcap(&program.to_string(), &program, &frames);
    }
}

#[test]
fn root_sockets_give_libpcaps_verdict() {
    if !weir_lab::testbed::require_root("root_sockets_give_libpcaps_verdict") {
        return;
    }
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| !frame.is_empty()).collect();
    let programs = random::some(&random::program(), 50).into_iter();
    let texts = expressions::all().into_iter().step_by(3);
    for program in programs.chain(texts.map(|text| oracle::compile(&text))) {
        let loaded = Loaded::new(&program, Target::Socket).unwrap_or_else(|log| panic!("{log}"));
        let socket = Socket::new(&loaded);
        for bytes in &frames {
            let wire_len = bytes.len() as u32;
            // A socket cuts the frame to the length given by the verdict.
            let expected = oracle::run(&program, bytes, wire_len).min(wire_len);
            assert_eq!(socket.run(bytes), expected, "{program:?} on {bytes:02x?}");
        }
    }
}

#[test]
fn root_a_tag_beside_the_bytes_is_put_back() {
    if !weir_lab::testbed::require_root("root_a_tag_beside_the_bytes_is_put_back") {
        return;
    }
    let programs = random::some(&random::program(), 100).into_iter();
    let programs =
        programs.chain(expressions::all().into_iter().map(|text| oracle::compile(&text)));
    let tag = Tag { protocol: 0x8100, tci: 0x6064 };
    let frames = frames::for_the_kernel();
    for program in programs {
        let filter = convert(&program, Target::Tc).expect("short");
        let loaded = Loaded::tagging(&filter, tag).unwrap_or_else(|log| panic!("{log}"));
        let told = convert(&program, Target::XdpTag).expect("short");
        let told = Loaded::told(&told, tag).unwrap_or_else(|log| panic!("{log}"));
        for bytes in frames.iter().filter(|bytes| frames::for_tc(bytes)) {
            let whole = frames::tagged(bytes, tag);
            let expected = oracle::run(&program, &whole, whole.len() as u32);
            assert_eq!(loaded.run(bytes), expected, "{program:?} on {whole:02x?}");
            assert_eq!(told.run(bytes), expected, "XDP, {program:?} on {whole:02x?}");
        }
    }
}

#[test]
fn root_programs_that_ask_for_the_tag_get_it() {
    if !weir_lab::testbed::require_root("root_programs_that_ask_for_the_tag_get_it") {
        return;
    }
    let tag = Tag { protocol: 0x88a8, tci: 0x6064 };
    let frames = frames::for_the_kernel();
    for program in random::some(&random::asking(), 100) {
        let filter = convert(&program, Target::Tc).expect("short");
        let tagging = Loaded::tagging(&filter, tag).unwrap_or_else(|log| panic!("{log}"));
        let told = convert(&program, Target::XdpTag).expect("short");
        let told = Loaded::told(&told, tag).unwrap_or_else(|log| panic!("{log}"));
        let plain = [Target::Tc, Target::Xdp].map(|target| {
            Loaded::new(&program, target).unwrap_or_else(|log| panic!("{target:?}: {log}"))
        });
        for bytes in frames.iter().filter(|bytes| frames::for_tc(bytes)) {
            let wire_len = bytes.len() as u32;
            let beside = Frame { bytes, wire_len, tag: Some(tag) };
            for with_tag in [&tagging, &told] {
                assert_eq!(with_tag.run(bytes), interpret::run(&program, &beside), "{program:?}");
            }
            let expected = interpret::run(&program, &Frame { tag: None, ..beside });
            for plain in &plain {
                assert_eq!(plain.run(bytes), expected, "{program:?} on {bytes:02x?}");
            }
        }
    }
}

#[test]
fn root_a_long_program_passes_the_verifier() {
    if !weir_lab::testbed::require_root("root_a_long_program_passes_the_verifier") {
        return;
    }
    let hosts: Vec<_> = (0..200).map(|n| format!("host 10.0.{n}.1")).collect();
    let text = hosts.join(" or ");
    let program = oracle::compile(&text);
    assert!(program.insns().len() > 400, "{}", program.insns().len());
    held_to_libpcap(&text, &program, &frames::for_the_kernel());
}
