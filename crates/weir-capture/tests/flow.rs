//! The BPF programs compute the same flow keys and hashes as `weir-frame`, at every hook and for every frame. Block
//! lists in the kernel block the same frames as those of `weir-filter`.

#[path = "flow/blocking.rs"]
mod blocking;
#[path = "flow/frames.rs"]
mod frames;
#[path = "flow/kernel.rs"]
mod kernel;

use std::net::{IpAddr, Ipv4Addr};

use frames::Random;
use kernel::{Found, Hook, Programs};
use weir_capture::bpf::block::{BlockError, Blocks};
use weir_filter::block::{BlockList, ENTRIES_MAX, Entry, Flow, touched_words};
use weir_frame::flow::{FlowKey, shard_hash};
use weir_frame::headers::{Addresses, Fragment, FrameView};

/// Result of `weir-frame` for a whole frame.
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

/// Compares the program of a hook with `weir-frame` for those of the frames that can come to this hook. Returns how
/// many frames had ports, and how many had no flow key.
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
        // With fewer kinds of frames, this test would prove little.
        assert!(with_ports > 500 && without_key > 100, "{hook:?}: {with_ports}, {without_key}");
    }
}

/// A block list entry that blocks frames with this key, and possibly others.
fn entry_for(random: &mut Random, key: &FlowKey) -> Entry {
    let (src, dst): (IpAddr, IpAddr) = match key.addresses {
        Addresses::V4 { src, dst } => (src.into(), dst.into()),
        Addresses::V6 { src, dst } => (src.into(), dst.into()),
    };
    let end = random.of(&[src, dst]);
    match random.below(3) {
        0 => Entry::Address(end),
        1 => Entry::Flow(Flow::new(*key)),
        _ => {
            // Mostly long prefixes, since a short one blocks nearly all frames.
            let width = if end.is_ipv4() { 32 } else { 128 };
            let bits =
                if random.one_in(40) { random.below(20) } else { 20 + random.below(width - 19) };
            Entry::around(end, bits as u8).expect("not too many bits")
        }
    }
}

#[test]
fn root_the_kernel_blocks_what_the_lists_hold() {
    if !weir_lab::testbed::require_root("root_the_kernel_blocks_what_the_lists_hold") {
        return;
    }
    let frames: Vec<_> = frames::all().into_iter().step_by(7).collect();
    let keys: Vec<_> = frames.iter().map(|frame| FlowKey::of(&FrameView::parse(frame))).collect();
    let found: Vec<FlowKey> = keys.iter().flatten().copied().collect();
    let mut random = Random(0xb10c);
    let mut blocks = Blocks::new(blocking::FEEDS).expect("maps");
    let mut storage = blocking::storage();
    let skel = blocking::load(&mut storage, &blocks);
    let (mut blocked, mut passed) = (0, 0);
    for round in 0..8 {
        for _ in 0..60 {
            // No entry is ever added to the list of the last feed.
            let feed = random.below(blocking::FEEDS - 1);
            let count = blocks.list(feed).len();
            // In every other round, more entries are removed than added.
            if count > 0 && random.below(8) < if round % 2 == 0 { 2 } else { 6 } {
                let goes = *blocks.list(feed).iter().nth(random.below(count)).expect("so many");
                assert!(blocks.remove(feed, &goes).expect("no error"), "{goes}");
            } else {
                let key = random.of(&found);
                let comes = entry_for(&mut random, &key);
                let is_new = !blocks.list(feed).has(&comes);
                assert_eq!(blocks.add(feed, comes).expect("no error"), is_new, "{comes}");
            }
        }
        for (frame, key) in frames.iter().zip(&keys) {
            let holds = |feed: usize| key.is_some_and(|key| blocks.list(feed).contains(&key));
            let expected: u32 =
                (0..blocking::FEEDS).map(|feed| u32::from(holds(feed)) << feed).sum();
            assert_eq!(blocking::run(&skel.progs.block_xdp, frame), expected, "{frame:02x?}");
            if Hook::Tc.meets(frame) {
                assert_eq!(blocking::run(&skel.progs.block_tc, frame), expected, "{frame:02x?}");
            }
            if expected == 0 { passed += 1 } else { blocked += 1 }
        }
    }
    assert!(blocked > 300 && passed > 300, "{blocked} blocked, {passed} passed");
    for feed in 0..blocking::FEEDS {
        blocks.set(feed, &BlockList::default()).expect("no error");
    }
    for frame in &frames {
        assert_eq!(blocking::run(&skel.progs.block_xdp, frame), 0, "{frame:02x?}");
    }
}

/// UDP from 10.0.0.1 to 10.0.0.2.
#[rustfmt::skip]
const UDP: [u8; 60] = [
    2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0,
    0x45, 0, 0, 46, 0, 1, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2,
    0x10, 0x92, 0, 53, 0, 26, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Other entries that need the same bits of the list's front (a kind of Bloom filter) as this one: addresses, or
/// flows between the same hosts.
fn companions(of: &Entry, count: usize) -> Vec<Entry> {
    let candidate = |number: u32| match of {
        Entry::Address(_) => {
            Entry::Address(Ipv4Addr::from_bits(number.wrapping_add(0x0b00_0000)).into())
        }
        Entry::Flow(flow) => {
            let (src_port, dst_port) = ((number >> 16) as u16, number as u16);
            Entry::Flow(Flow::new(FlowKey { src_port, dst_port, ..flow.key() }))
        }
        Entry::Prefix(_) => unreachable!("not asked for"),
    };
    let mut wanted = BlockList::default();
    wanted.add(*of).expect("room");
    let wanted = wanted.front_words();
    let mut one = BlockList::default();
    // One address in 2^19, or one flow in 2^20, needs the same bits.
    let found = (0..u32::MAX).map(candidate).filter(|entry| {
        if entry == of || touched_words(entry).any(|word| wanted[word] == 0) {
            return false;
        }
        one.add(*entry).expect("room");
        let same = touched_words(of).all(|word| one.front_words()[word] == wanted[word]);
        one.remove(entry);
        same
    });
    let found: Vec<Entry> = found.take(count).collect();
    assert_eq!(found.len(), count, "other entries with the bits of {of}");
    found
}

#[test]
fn root_what_stays_in_a_list_is_blocked_all_the_time() {
    if !weir_lab::testbed::require_root("root_what_stays_in_a_list_is_blocked_all_the_time") {
        return;
    }
    let entry = |text: &str| text.parse::<Entry>().expect("an entry");
    // Prefixes in the same cell of the front as the frame's source, which they do not contain.
    let beside = ["10.0.1.0/24", "10.0.2.0/23", "10.0.8.0/21", "10.0.0.128/25"];
    // Prefixes that contain the frame's source, like the prefix that stays in the list.
    let around = ["10.0.0.0/8", "10.0.0.0/12", "10.0.0.0/17", "10.0.0.0/20"];
    let mut blocks = Blocks::new(1).expect("maps");
    let mut storage = blocking::storage();
    let skel = blocking::load(&mut storage, &blocks);
    for stays in
        ["10.0.0.1", "10.0.0.0/25", "10.0.0.0/16", "udp 10.0.0.1:4242 10.0.0.2:53"].map(entry)
    {
        assert!(blocks.add(0, stays).expect("room"));
        let others = match stays {
            Entry::Prefix(prefix) if prefix.bits() == 16 => around.map(entry).to_vec(),
            Entry::Prefix(_) => beside.map(entry).to_vec(),
            Entry::Address(_) | Entry::Flow(_) => companions(&stays, 2),
        };
        std::thread::scope(|scope| {
            let changes = scope.spawn(|| {
                for _ in 0..150 {
                    for other in &others {
                        assert!(blocks.add(0, *other).expect("room"));
                    }
                    for other in &others {
                        assert!(blocks.remove(0, other).expect("no error"));
                    }
                }
            });
            while !changes.is_finished() {
                assert_eq!(blocking::run(&skel.progs.block_xdp, &UDP), 1, "{stays}");
            }
        });
        assert!(blocks.remove(0, &stays).expect("no error"));
        assert_eq!(blocking::run(&skel.progs.block_xdp, &UDP), 0, "{stays}");
    }
}

#[test]
fn root_a_list_in_the_kernel_holds_as_much_as_it_says() {
    if !weir_lab::testbed::require_root("root_a_list_in_the_kernel_holds_as_much_as_it_says") {
        return;
    }
    let mut blocks = Blocks::new(1).expect("maps");
    let mut storage = blocking::storage();
    let skel = blocking::load(&mut storage, &blocks);
    let source = u32::from_be_bytes([10, 0, 0, 1]);
    // Prefixes far apart from each other. The last one contains the frame's source.
    let prefix = |n: u32| {
        let address = source.wrapping_sub((ENTRIES_MAX as u32 - 1 - n).wrapping_mul(0x1_0002));
        Entry::around(Ipv4Addr::from_bits(address).into(), 31).expect("31 are not too many")
    };
    let mut wanted = BlockList::default();
    for n in 0..ENTRIES_MAX as u32 - 1 {
        blocks.add(0, prefix(n)).expect("room");
        wanted.add(prefix(n)).expect("room");
    }
    assert_eq!(blocking::run(&skel.progs.block_xdp, &UDP), 0);
    let last = prefix(ENTRIES_MAX as u32 - 1);
    assert!(blocks.add(0, last).expect("room"));
    assert_eq!(blocking::run(&skel.progs.block_xdp, &UDP), 1);
    let over = "10.1.2.3".parse().expect("an entry");
    assert!(matches!(blocks.add(0, over), Err(BlockError::Full(_))));
    // `set` replaces a list even if the maps have no space for the old and the new list at once.
    assert!(wanted.add(over).expect("room"));
    blocks.set(0, &wanted).expect("no error");
    assert_eq!(blocking::run(&skel.progs.block_xdp, &UDP), 0);
    assert!(blocks.list(0).has(&over) && blocks.list(0).len() == ENTRIES_MAX);
}
