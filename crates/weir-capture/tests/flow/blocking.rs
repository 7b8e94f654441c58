//! Runs the programs of `bpf/tests/block_test.bpf.c` on the maps that [`Blocks`] fills.

use std::mem::MaybeUninit;

use libbpf_rs::ProgramInput;
use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use weir_capture::bpf::block::Blocks;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/block_test.skel.rs"));
}

pub use skel::BlockTestSkel;
use skel::BlockTestSkelBuilder;

/// Memory from which the skeleton borrows.
pub type Storage = Box<MaybeUninit<libbpf_rs::OpenObject>>;

pub fn storage() -> Storage {
    Box::new(MaybeUninit::uninit())
}

/// Number of feeds whose block lists the programs check.
pub const FEEDS: usize = 3;

/// Loads the programs with these maps. Does not attach them.
pub fn load<'obj>(storage: &'obj mut Storage, blocks: &Blocks) -> BlockTestSkel<'obj> {
    let mut open = BlockTestSkelBuilder::default().open(storage).expect("a sound object");
    let maps = blocks.maps();
    let uses = [
        open.maps.block_front.reuse_fd(maps.front),
        open.maps.block_addresses.reuse_fd(maps.addresses),
        open.maps.block_flows.reuse_fd(maps.flows),
        open.maps.block_prefixes.reuse_fd(maps.prefixes),
    ];
    assert!(uses.iter().all(Result::is_ok), "{uses:?}");
    open.load().expect("the kernel takes the programs")
}

/// Runs a program on the frame. Returns a bit for each feed, set if the feed's list blocks the frame.
pub fn run(program: &libbpf_rs::ProgramMut<'_>, frame: &[u8]) -> u32 {
    let input = ProgramInput { data_in: Some(frame), ..ProgramInput::default() };
    let run = program.test_run(input);
    run.unwrap_or_else(|error| panic!("{} bytes: {error}", frame.len())).return_value
}
