//! `weir lab load-bpf`: every program is loaded, or reported as skipped.

mod common;

use common::{Run, bed, ready, weir};

#[test]
fn root_every_program_is_loaded_or_said_to_be_skipped() {
    let Some(_alone) = ready("root_every_program_is_loaded_or_said_to_be_skipped", &[]) else {
        return;
    };
    let bed = bed();
    let text = Run::start(&bed.rx, weir("lab load-bpf")).end().expect(0).text();
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').map_while(|number| number.parse::<u32>().ok());
    let version = (numbers.next().expect("a version"), numbers.next().unwrap_or(0));
    let tags = if version >= (6, 8) { "loaded weir_xdp_tags" } else { "skipped weir_xdp_tags" };
    for line in
        ["loaded weir_tc_wait", "loaded weir_tc_in", "loaded weir_xdp,", "loaded weir_gen", tags]
    {
        assert!(text.lines().any(|said| said.starts_with(line)), "no '{line}' in: {text}");
    }
    assert!(!text.contains("refused"), "{text}");
}
