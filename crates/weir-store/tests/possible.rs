//! A piece is ruled out only if no frame in it passes the filter: expressions of every kind, on frames of every kind.

#[allow(dead_code, reason = "shared with the tests of weir-filter")]
#[path = "../../weir-filter/tests/locations/expressions.rs"]
mod expressions;
#[allow(dead_code, reason = "shared with the tests of weir-filter")]
#[path = "../../weir-filter/tests/locations/frames.rs"]
mod frames;

use pcap::{Capture, Linktype};
use weir_filter::possible::possible;
use weir_filter::{Frame, Program, interpret};
use weir_store::index::{HEAD_BYTES, Piece, Scan, Writer};

/// `None` if this version of libpcap cannot compile the expression, or if Weir does not accept the program.
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

/// Bytes of a piece, which is a block of a ring.
const PIECE_BYTES: u32 = 1 << 20;

/// TCP frames of `flows` flows to port 443, each between two hosts of its own.
fn piece_of(scan: &mut Scan, frames: u32, flows: u64, random: &mut u64) -> Piece {
    for _ in 0..frames {
        *random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        let flow = ((*random >> 33) % flows) as u32;
        let mut frame = [&[2; 12][..], &[8, 0, 0x45], &[0; 45]].concat();
        frame[23] = 6;
        frame[26..30].copy_from_slice(&(0x0a00_0000 + flow).to_be_bytes());
        frame[30..34].copy_from_slice(&(0x0b00_0000 + flow).to_be_bytes());
        frame[34..36].copy_from_slice(&(flow as u16).to_be_bytes());
        frame[36..38].copy_from_slice(&443u16.to_be_bytes());
        scan.add(1, 1, &frame, frame.len() as u32);
    }
    scan.finish(0, PIECE_BYTES)
}

#[test]
fn an_absent_host_is_ruled_out_of_nearly_all_pieces() {
    let (mut scan, mut random) = (Scan::new(), 1);
    let directory = tempfile::tempdir().expect("a directory");
    // As many frames as fit in a piece at 800 B and at 64 B a frame, from a million flows. The index takes less than 1
    // % of the pieces at 800 B, and at most 1.6 % at 64 B (docs/recorder.md).
    for (frames, most, percent) in [(1250, 2.0, 1.0), (10_900, 50.0, 1.6)] {
        let mut found = 0;
        let index = directory.path().join(format!("{frames}.pcapng.index"));
        let mut writer =
            Writer::create(&index, &directory.path().join("a"), 0o600).expect("a file");
        for piece in 0..20 {
            let own = piece_of(&mut scan, frames, 1_000_000, &mut random);
            writer.append(&own).expect("a file");
            let set = own.set;
            for host in 0..50 {
                let text = format!("host 203.0.{piece}.{host} and port 443");
                let program = compile(&text).expect("an expression");
                found += u32::from(possible(&program, 1, &set));
            }
        }
        writer.flush().expect("a file");
        let bytes = index.metadata().expect("a file").len() as f64 / 20.0;
        let found = f64::from(found) / 10.0;
        println!("{frames} frames: {bytes} bytes a piece, {found} % not ruled out");
        let share = 100.0 * bytes / f64::from(PIECE_BYTES);
        assert!(share <= percent, "{share} % of pieces of {frames} frames");
        assert!(found <= most, "{found} % of pieces of {frames} frames");
    }
}
