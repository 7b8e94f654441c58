//! Flow keys and hashes in the kernel are those of `weir-frame`, at every hook, for every frame.

#[path = "flow/frames.rs"]
mod frames;
#[path = "flow/kernel.rs"]
mod kernel;

use kernel::{Found, Hook, Programs};
use weir_frame::flow::{FlowKey, shard_hash};
use weir_frame::headers::{Fragment, FrameView};

/// What `weir-frame` says of a whole frame.
fn expected(frame: &[u8]) -> Found {
    let view = FrameView::parse(frame);
    let key = FlowKey::of(&view);
    Found {
        key,
        fragment: view.ip().is_some_and(|ip| ip.fragment != Fragment::Whole),
        hash: key.map_or(0, |key| key.symmetric_hash()),
        shard_hash: shard_hash(&view),
    }
}

/// Holds the hook to `weir-frame` on all of these frames that it can meet; how many had ports, and how
/// many had no key.
fn hold(programs: &Programs, hook: Hook, frames: &[Vec<u8>]) -> (usize, usize) {
    let (mut with_ports, mut without_key) = (0, 0);
    for frame in frames.iter().filter(|frame| hook.meets(frame)) {
        let wire = hook.on_the_wire(frame);
        let expected = expected(&wire);
        let (found, walked) = programs.find(hook, frame);
        assert_eq!(found, expected, "{hook:?} of {wire:02x?}");
        assert_eq!(walked, expected, "the walk, {hook:?} of {wire:02x?}");
        match expected.key {
            Some(key) => with_ports += usize::from(key.src_port | key.dst_port != 0),
            None => without_key += 1,
        }
    }
    (with_ports, without_key)
}

#[test]
fn root_the_kernel_finds_the_keys_and_hashes_of_weir_frame() {
    let test = "root_the_kernel_finds_the_keys_and_hashes_of_weir_frame";
    if !weir_lab::testbed::require_root(test) {
        return;
    }
    let frames = frames::all();
    let mut storage = kernel::storage();
    let programs = Programs::load(&mut storage);
    for hook in [Hook::Tc, Hook::TcTagged, Hook::Xdp, Hook::XdpTagged] {
        let (with_ports, without_key) = hold(&programs, hook, &frames);
        // The frames are of many kinds, or this test would say little.
        assert!(with_ports > 500 && without_key > 100, "{hook:?}: {with_ports}, {without_key}");
    }
}
