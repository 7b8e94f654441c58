//! A piece is ruled out only if no frame of it passes: expressions of every kind, on frames of every kind.

#[allow(dead_code, reason = "shared with the tests of weir-filter")]
#[path = "../../weir-filter/tests/locations/expressions.rs"]
mod expressions;
#[allow(dead_code, reason = "shared with the tests of weir-filter")]
#[path = "../../weir-filter/tests/locations/frames.rs"]
mod frames;

use pcap::{Capture, Linktype};
use weir_filter::possible::possible;
use weir_filter::{Frame, Program, interpret};
use weir_store::index::{HEAD_BYTES, Scan};

/// `None`: a program that this version of libpcap makes, and Weir does not take.
fn compile(text: &str) -> Option<Program> {
    let capture = Capture::dead(Linktype::ETHERNET).expect("libpcap");
    let program = capture.compile(text, true).ok()?;
    let insns = program.get_instructions();
    let lines: Vec<_> = insns.iter().map(ToString::to_string).collect();
    Program::parse(&format!("{}\n{}", insns.len(), lines.join("\n"))).ok()
}

#[test]
fn no_piece_is_ruled_out_of_which_a_frame_passes() {
    let frames = frames::all();
    let mut scan = Scan::new();
    let sets: Vec<_> = frames
        .iter()
        .map(|frame| {
            scan.add(1, 1, &frame[..frame.len().min(HEAD_BYTES)], frame.len() as u32);
            scan.finish(0, 4096).set
        })
        .collect();
    let (mut programs, mut ruled_out) = (0, 0);
    for text in expressions::all() {
        let Some(program) = compile(&text) else { continue };
        programs += 1;
        for (bytes, set) in frames.iter().zip(&sets) {
            let passes = interpret::run(&program, &Frame::whole(bytes)) > 0;
            let may = possible(&program, 1, set);
            assert!(may || !passes, "'{text}' on {bytes:02x?}");
            ruled_out += u32::from(!may);
        }
    }
    assert!(programs > 300 && ruled_out > 1000, "{programs} programs, {ruled_out} ruled out");
    println!("{programs} programs, {ruled_out} ruled out");
}
