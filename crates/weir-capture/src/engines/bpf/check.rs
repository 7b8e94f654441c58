//! Checks whether this kernel's verifier accepts the programs.

use std::num::NonZero;
use std::sync::Arc;

use libbpf_rs::btf::{Btf, types};
use weir_filter::insn::{LD_H_ABS, RET_A};
use weir_filter::{Insn, Program};
use weir_frame::shard::Shard;

use super::block::Blocks;
use super::program::{Choice, Maps, load};
use super::{BpfOptions, memory, placeholder};
use crate::error::CaptureError;
use crate::feed::{Feed, Filter, Sampling};
use crate::kernel::interface::{Interface, InterfaceQuery};
use crate::setup::Setup;

/// Result of testing a program.
#[derive(Debug)]
pub enum Loaded {
    /// The kernel accepted the program.
    Yes,
    /// The kernel refused the program.
    Refused(CaptureError),
    /// The program was not loaded, and captures on this machine do not use it. The text is the reason.
    Skipped(String),
}

/// Loads every program of the engine `bpf`, and attaches none. Returns names and results. `device`: an interface in the
/// calling thread's network namespace whose driver supports XDP, or the reason why there is none. The programs that
/// request VLAN tags from the driver are bound to this interface.
#[must_use]
pub fn load_all(device: Result<&str, String>) -> Vec<(&'static str, Loaded)> {
    let lo = loopback();
    let try_load =
        |choice, interface: &Interface, variant| match try_one(choice, interface, variant) {
            Ok(()) => Loaded::Yes,
            Err(error) => Loaded::Refused(error),
        };
    let tags = |variant| match find(&device) {
        Ok(device) => try_load(Choice::XdpWithTags, &device, variant),
        Err(why) => Loaded::Skipped(why),
    };
    let wait = match placeholder::load() {
        Ok(_) => Loaded::Yes,
        Err(error) => Loaded::Refused(error),
    };
    vec![
        ("weir_tc_wait", wait),
        (
            "weir_tc_in, weir_tc_out, weir_close, weir_store",
            try_load(Choice::Tc, &lo, Variant::Plain),
        ),
        ("weir_tc_in, weir_tc_out with queue option", try_load(Choice::Tc, &lo, Variant::Queues)),
        ("weir_tc_in, weir_tc_out with a block list", try_load(Choice::Tc, &lo, Variant::Changing)),
        ("weir_tc_in, weir_tc_out with feeds", try_load(Choice::Tc, &lo, Variant::Feeds)),
        ("weir_tc_in, weir_tc_out of a pattern", try_load(Choice::Tc, &lo, Variant::Pattern)),
        (
            "weir_tc_in, weir_tc_out of a pattern with feeds",
            try_load(Choice::Tc, &lo, Variant::PatternFeeds),
        ),
        ("weir_xdp, weir_close, weir_store", try_load(Choice::Xdp, &lo, Variant::Plain)),
        ("weir_xdp with queue option", try_load(Choice::Xdp, &lo, Variant::Queues)),
        ("weir_xdp with a block list", try_load(Choice::Xdp, &lo, Variant::Changing)),
        ("weir_xdp with feeds", try_load(Choice::Xdp, &lo, Variant::Feeds)),
        ("weir_xdp_tags, weir_close, weir_store", tags(Variant::Plain)),
        ("weir_xdp_tags with queue option", tags(Variant::Queues)),
        ("weir_xdp_tags with a block list", tags(Variant::Changing)),
        ("weir_xdp_tags with feeds", tags(Variant::Feeds)),
    ]
}

/// Loads the TC programs, and attaches none.
///
/// # Errors
/// The kernel refused a program.
pub fn load_tc() -> Result<(), CaptureError> {
    try_one(Choice::Tc, &loopback(), Variant::Plain)
}

/// Returns true if an XDP program on this interface can request the VLAN tag that the driver removed.
#[must_use]
pub fn xdp_has_tags(interface: &Interface) -> bool {
    find(&Ok(&interface.name)).is_ok()
        && try_one(Choice::XdpWithTags, interface, Variant::Plain).is_ok()
}

/// Returns a filter that reads the frame.
pub(crate) fn filter() -> Filter {
    let insns = [Insn::new(LD_H_ABS, 12), Insn::new(RET_A, 0)];
    let program = Program::new(insns).expect("valid");
    Filter { text: "ether[12:2] != 0".to_owned(), link_type: 1, program }
}

fn loopback() -> Interface {
    Interface { name: "lo".into(), index: 1, link_type: 1, mtu: 65536 }
}

/// The features of a program under test. The code of other features is dead, so the verifier does not check it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Variant {
    /// One feed that takes all frames.
    Plain,
    /// One feed that takes all frames, with the queue in each record.
    Queues,
    /// One feed with a filter and a block list. The code that writes records is inline.
    Changing,
    /// Two feeds. The filter, shard, queue and sampling of one of them are set.
    Feeds,
    /// One feed that takes all frames of several interfaces.
    Pattern,
    /// As `Feeds`, for several interfaces.
    PatternFeeds,
}

fn try_one(choice: Choice, interface: &Interface, variant: Variant) -> Result<(), CaptureError> {
    let all = Feed::default();
    let filtered = Feed { filter: Some(Arc::new(filter())), ..Feed::default() };
    let choosy = Feed {
        shard: Shard::new(1, 2).expect("a shard"),
        queue: Some(0),
        sampling: Sampling::FlowsOneIn(NonZero::new(2).expect("above 0")),
        ..filtered.clone()
    };
    let feeds = match variant {
        Variant::Plain | Variant::Queues | Variant::Pattern => vec![all],
        Variant::Changing => vec![filtered],
        Variant::Feeds | Variant::PatternFeeds => vec![choosy, all],
    };
    let may_change = matches!(variant, Variant::Changing | Variant::Feeds | Variant::PatternFeeds);
    let setup = Setup {
        feeds,
        ring_bytes: super::least_ring_bytes(),
        promiscuous: false,
        may_change,
        ..Setup::default()
    };
    let options = BpfOptions { record_queue: variant == Variant::Queues, ..BpfOptions::default() };
    let rings = memory::create(&setup, 0..setup.feeds.len())?;
    let blocks = may_change.then(|| Blocks::new(setup.feeds.len())).transpose()?;
    let lists = blocks.as_ref().map(Blocks::maps);
    let places: Vec<Option<Feed>> = setup.feeds.iter().cloned().map(Some).collect();
    let maps = Maps {
        places: &places,
        rings: &rings,
        cpus: super::cpus::entries()?,
        has_filters: may_change,
        blocks: lists,
        several: matches!(variant, Variant::Pattern | Variant::PatternFeeds),
    };
    load(choice, interface.index, &setup, &options, maps).map(|_| ())
}

/// Returns the device for the bound programs. The error tells why there is no device, or why this kernel does not
/// support these programs.
fn find(device: &Result<&str, String>) -> Result<Interface, String> {
    const ASKS_FOR_TAGS: &str = "bpf_xdp_metadata_rx_vlan_tag";
    let btf = Btf::from_vmlinux().map_err(|error| format!("this kernel shows no BTF: {error}"))?;
    if btf.type_by_name::<types::Func<'_>>(ASKS_FOR_TAGS).is_none() {
        return Err("XDP cannot ask for VLAN tags before Linux 6.8".to_owned());
    }
    let name = device.clone().map_err(|why| format!("no device to bind it to: {why}"))?;
    let found = InterfaceQuery::new().and_then(|query| query.find(name));
    found.map_err(|error| format!("no device to bind it to: {error}"))
}
