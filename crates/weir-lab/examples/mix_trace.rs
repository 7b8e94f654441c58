//! Writes the demo's mix as a pcapng trace: `mix_trace PATH`. It has made
//! `crates/weir/demo/trace.pcapng`.

use weir_frame::pcapng::{self, Interface, LINKTYPE_ETHERNET, SectionInfo};
use weir_frame::record::Meta;

/// First stamp: 2026-01-01 00:00:00 UTC.
const BEGIN_NS: u64 = 1_767_225_600_000_000_000;
/// One frame a millisecond.
const STEP_NS: u64 = 1_000_000;
const FRAMES: usize = 600;

fn main() -> std::io::Result<()> {
    let path = std::env::args().nth(1).expect("usage: mix_trace PATH");
    let mut out = Vec::new();
    pcapng::write::section_header(&mut out, &SectionInfo::default());
    let interface =
        Interface { name: "demo".into(), link_type: LINKTYPE_ETHERNET, ..Interface::default() };
    pcapng::write::interface(&mut out, &interface);
    let frames = weir_lab::generator::mix::frames();
    for (number, frame) in frames.iter().cycle().take(FRAMES).enumerate() {
        let meta = Meta {
            ts_ns: BEGIN_NS + number as u64 * STEP_NS,
            wire_len: frame.bytes.len() as u32,
            ..Meta::default()
        };
        pcapng::write::frame(&mut out, &meta, &frame.bytes);
    }
    std::fs::write(path, out)
}
