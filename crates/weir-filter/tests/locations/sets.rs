//! Sets of filters: wherever a set runs, each bit of its result is libpcap's verdict on the one filter that it stands
//! for.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use weir_filter::ebpf::{Target, convert_set};
use weir_filter::{Frame, Program, SET_MAX, Tag, UserFilterSet, interpret};

use crate::kernel::{Loaded, Socket};
use crate::{expressions, frames, oracle, random};

/// libpcap's verdicts on the filters, one bit for each.
fn by_libpcap(set: &[Option<&Program>], bytes: &[u8]) -> u32 {
    mask(set, |program| oracle::run(program, bytes, bytes.len() as u32))
}

fn mask(set: &[Option<&Program>], verdict: impl Fn(&Program) -> u32) -> u32 {
    let takes = |program: &Option<&Program>| program.is_none_or(|program| verdict(program) > 0);
    set.iter().enumerate().fold(0, |mask, (n, program)| mask | u32::from(takes(program)) << n)
}

/// Sets of each size, filled from these programs in turn. Some members take every frame, some occur
/// twice.
fn sets(programs: &[Program]) -> Vec<Vec<Option<&Program>>> {
    let mut next = programs.iter().cycle();
    let set = |size| {
        let one = |n| if n % 9 == 8 { None } else { next.next() };
        let mut set: Vec<_> = (0..size).map(one).collect();
        if size % 4 == 3 {
            set[size - 1] = set[0];
        }
        set
    };
    (1..=SET_MAX).map(set).collect()
}

fn expressions() -> Vec<Program> {
    // Adjacent expressions are similar, so this changes the order. It takes steps of a prime that does not divide the
    // number of expressions, and so takes each once.
    let texts = expressions::all();
    let step = if texts.len().is_multiple_of(71) { 73 } else { 71 };
    (0..texts.len()).map(|n| oracle::compile(&texts[n * step % texts.len()])).collect()
}

#[test]
fn sets_give_libpcaps_verdicts_in_user_space() {
    let (programs, frames) = (expressions(), frames::all());
    for set in sets(&programs) {
        let filters = UserFilterSet::new(&set);
        assert_eq!(filters.is_compiled(), cfg!(target_arch = "x86_64"), "{set:?}");
        for bytes in &frames {
            let found = filters.run(bytes, bytes.len() as u32);
            assert_eq!(found, by_libpcap(&set, bytes), "{set:?} on {bytes:02x?}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn sets_of_random_programs_give_libpcaps_verdicts_in_user_space(
        programs in vec(option::weighted(0.9, random::program()), 0..=SET_MAX),
        frames in vec(random::bytes(), 8),
    ) {
        let set: Vec<_> = programs.iter().map(Option::as_ref).collect();
        let filters = UserFilterSet::new(&set);
        for bytes in frames {
            prop_assert_eq!(filters.run(&bytes, bytes.len() as u32), by_libpcap(&set, &bytes));
        }
    }

    /// Programs that read the tag beside the bytes, and others, run on the same frame.
    #[test]
    fn in_a_set_each_sees_the_tag_where_it_looks_for_it(
        asking in vec(random::asking(), 1..8),
        others in vec(random::program(), 1..8),
        bytes in random::bytes(),
        is_tagged in any::<bool>(),
    ) {
        let mut bytes = bytes;
        if let (true, Some(protocol)) = (is_tagged, bytes.get_mut(12..14)) {
            protocol.copy_from_slice(&[0x88, 0xa8]);
        }
        let frame = Frame { tag: None, ..Frame::whole(&bytes) };
        let set: Vec<_> = asking.iter().chain(&others).map(Some).collect();
        let expected = mask(&set, |program| interpret::run(program, &frame));
        prop_assert_eq!(UserFilterSet::new(&set).run(&bytes, frame.wire_len), expected);
    }
}

/// Loads the set for XDP and for TC, and compares it with libpcap, also with a tag beside the bytes.
fn held_to_libpcap(set: &[Option<&Program>], frames: &[Vec<u8>]) {
    for target in [Target::Xdp, Target::Tc] {
        let loaded = Loaded::set(set, target).unwrap_or_else(|log| panic!("{set:?}: {log}"));
        for bytes in frames.iter().filter(|bytes| target == Target::Xdp || frames::for_tc(bytes)) {
            let expected = by_libpcap(set, bytes);
            assert_eq!(loaded.run(bytes), expected, "{target:?}, {set:?} on {bytes:02x?}");
        }
    }
    let tag = Tag { protocol: 0x8100, tci: 0x6064 };
    let code = convert_set(set, Target::Tc).expect("it was converted");
    let tagging = Loaded::tagging(&code, tag).unwrap_or_else(|log| panic!("{set:?}: {log}"));
    let told = convert_set(set, Target::XdpTag).expect("it was converted");
    // The verifier must accept it without knowledge of the tag that the caller passes, and with this known tag.
    Loaded::code(&told, Target::XdpTag).unwrap_or_else(|log| panic!("{set:?}: {log}"));
    let told = Loaded::told(&told, tag).unwrap_or_else(|log| panic!("{set:?}: {log}"));
    for bytes in frames.iter().filter(|bytes| frames::for_tc(bytes)) {
        let whole = frames::tagged(bytes, tag);
        for with_tag in [&tagging, &told] {
            assert_eq!(with_tag.run(bytes), by_libpcap(set, &whole), "{set:?} on {whole:02x?}");
        }
    }
}

#[test]
fn root_sets_give_libpcaps_verdicts_in_the_kernel() {
    if !weir_lab::testbed::require_root("root_sets_give_libpcaps_verdicts_in_the_kernel") {
        return;
    }
    let (programs, frames) = (expressions(), frames::for_the_kernel());
    for set in sets(&programs) {
        held_to_libpcap(&set, &frames);
    }
}

#[test]
fn root_sets_of_random_programs_give_libpcaps_verdicts_in_the_kernel() {
    let name = "root_sets_of_random_programs_give_libpcaps_verdicts_in_the_kernel";
    if !weir_lab::testbed::require_root(name) {
        return;
    }
    let (programs, frames) = (random::some(&random::program(), 100), frames::for_the_kernel());
    for set in sets(&programs).iter().step_by(3) {
        held_to_libpcap(set, &frames);
    }
}

#[test]
fn root_sets_where_some_ask_for_the_tag_agree_with_the_interpreter() {
    let name = "root_sets_where_some_ask_for_the_tag_agree_with_the_interpreter";
    if !weir_lab::testbed::require_root(name) {
        return;
    }
    let tag = Tag { protocol: 0x88a8, tci: 0x6064 };
    let frames = frames::for_the_kernel();
    let mut programs = random::some(&random::asking(), 40);
    programs.extend(random::some(&random::program(), 40));
    // Each set gets programs of both kinds.
    let half = programs.len() / 2;
    let mixed: Vec<_> = (0..half).flat_map(|n| [&programs[n], &programs[n + half]]).collect();
    for set in mixed.chunks(8) {
        let set: Vec<_> = set.iter().map(|program| Some(*program)).collect();
        let code = convert_set(&set, Target::Tc).expect("short");
        let tagging = Loaded::tagging(&code, tag).unwrap_or_else(|log| panic!("{log}"));
        let plain = [Target::Tc, Target::Xdp]
            .map(|target| Loaded::set(&set, target).unwrap_or_else(|log| panic!("{log}")));
        for bytes in frames.iter().filter(|bytes| frames::for_tc(bytes)) {
            let beside = Frame { tag: Some(tag), ..Frame::whole(bytes) };
            let expected = mask(&set, |program| interpret::run(program, &beside));
            assert_eq!(tagging.run(bytes), expected, "{set:?} on {bytes:02x?}");
            let expected = mask(&set, |program| interpret::run(program, &Frame::whole(bytes)));
            for plain in &plain {
                assert_eq!(plain.run(bytes), expected, "{set:?} on {bytes:02x?}");
            }
        }
    }
}

#[test]
fn root_sets_give_libpcaps_verdicts_at_sockets() {
    if !weir_lab::testbed::require_root("root_sets_give_libpcaps_verdicts_at_sockets") {
        return;
    }
    let frames: Vec<_> = frames::all().into_iter().filter(|frame| !frame.is_empty()).collect();
    let (texts, random) = (expressions(), random::some(&random::program(), 40));
    // A socket truncates the frame to as many bytes as the result says. So for small sets the length of the delivered
    // frame shows the whole result.
    let small = sets(&texts).into_iter().take(8).chain(sets(&random).into_iter().take(6));
    for set in small.chain(sets(&texts).into_iter().skip(8).step_by(8)) {
        let loaded = Loaded::set(&set, Target::Socket).unwrap_or_else(|log| panic!("{log}"));
        let socket = Socket::new(&loaded);
        for bytes in &frames {
            let expected = by_libpcap(&set, bytes).min(bytes.len() as u32);
            assert_eq!(socket.run(bytes), expected, "{set:?} on {bytes:02x?}");
        }
    }
}

/// If the kernel refuses a set, a loader can load fewer of its filters.
#[test]
fn root_what_is_too_much_for_the_verifier_is_less_without_the_last_filters() {
    let name = "root_what_is_too_much_for_the_verifier_is_less_without_the_last_filters";
    if !weir_lab::testbed::require_root(name) {
        return;
    }
    // All filters together have 600,000 instructions. Linux 6.18 accepts a set of eight.
    let programs: Vec<_> = (0..SET_MAX).map(|n| random::long(1500 - n)).collect();
    let set: Vec<_> = programs.iter().map(Some).collect();
    let mut count = SET_MAX;
    let loaded = loop {
        match Loaded::set(&set[..count], Target::Xdp) {
            Ok(loaded) => break loaded,
            Err(log) => assert!(count > 1, "not even one: {log}"),
        }
        count /= 2;
    };
    for bytes in &frames::for_the_kernel() {
        assert_eq!(loaded.run(bytes), by_libpcap(&set[..count], bytes), "{count} filters");
    }
}
