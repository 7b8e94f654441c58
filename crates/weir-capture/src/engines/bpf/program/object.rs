//! Prepares and loads the object of `bpf/bpf.bpf.c`.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::skel::{OpenSkel, Skel, SkelBuilder};
use libbpf_rs::{AsRawLibbpf, MapCore, MapHandle, MapType};

use super::constants::{Constants, set_feeds};
use super::skel::types::rodata as Data;
use super::skel::{BpfSkelBuilder, OpenBpfSkel};
use super::{AtHook, Choice, Maps, MemberMaps, Programs, update_rings};
use crate::engines::bpf::BpfOptions;
use crate::engines::bpf::block::first_lists;
use crate::engines::bpf::clsact::Side;
use crate::engines::bpf::memory::refused;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::filters::{Filters, Template, prepare};
use crate::in_parallel::{both, each};
use crate::kernel::map_options;
use crate::limits::PATTERN_INTERFACES_MAX;
use crate::setup::Setup;

/// Returns the name in `bpf/bpf.bpf.c` of the program for a side at TC, or for XDP.
fn name(choice: Choice, side: Option<Side>) -> &'static str {
    match (choice, side) {
        (Choice::Tc, Some(Side::Egress)) => "weir_tc_out",
        (Choice::Tc, _) => "weir_tc_in",
        (Choice::Xdp, _) => "weir_xdp",
        (Choice::XdpWithTags, _) => "weir_xdp_tags",
    }
}

/// Makes libbpf load only these of the programs for hooks, by name.
fn load_only(open: &mut OpenBpfSkel<'_>, names: &[&str]) {
    let progs = &mut open.progs;
    let at_hooks = [
        &mut progs.weir_tc_in,
        &mut progs.weir_tc_out,
        &mut progs.weir_xdp,
        &mut progs.weir_xdp_tags,
    ];
    for program in at_hooks {
        let is_wanted = names.iter().any(|name| program.name() == *name);
        program.set_autoload(is_wanted);
    }
}

/// Sets the read-only data and the sizes of the maps, and hands over the maps that exist: the block lists and
/// `by_number`, the map of rings. Returns the read-only data.
fn set_up(
    open: &mut OpenBpfSkel<'_>,
    choice: Choice,
    sides: &[Option<Side>],
    setup: &Setup,
    options: &BpfOptions,
    maps: Maps<'_>,
    by_number: &MapHandle,
) -> Result<Data, libbpf_rs::Error> {
    let rings = maps.rings;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.block_mask = rings[0].max_entries() - 2;
    rodata.rings_per_feed = maps.cpus;
    rodata.may_block = u32::from(maps.blocks.is_some());
    set_feeds(rodata, maps.places, &first_lists(maps.places.len()));
    let chooses = maps.has_filters || rodata.by_flow | rodata.by_queue != 0;
    // For each interface, the programs count only the frames that came and the frames that a feed selected. The
    // filtered frames are the difference.
    let chooses = chooses || !setup.is_of_one_direction() || maps.several;
    rodata.chooses = u32::from(chooses);
    // At TC, both directions share a ring, and frames may be super-frames; at XDP, neither is the case.
    rodata.with_flags = u32::from(choice == Choice::Tc);
    rodata.with_queue = u32::from(options.record_queue);
    rodata.consume = u32::from(options.consume);
    rodata.several = u32::from(maps.several);
    let data = *rodata;
    let names: Vec<&str> = sides.iter().map(|side| name(choice, *side)).collect();
    load_only(open, &names);
    let all = maps.rings_max();
    open.maps.control.set_max_entries(1 + all)?;
    let own = &mut open.maps;
    match maps.blocks {
        Some(blocks) => {
            own.block_front.reuse_fd(blocks.front)?;
            own.block_addresses.reuse_fd(blocks.addresses)?;
            own.block_flows.reuse_fd(blocks.flows)?;
            own.block_prefixes.reuse_fd(blocks.prefixes)?;
        }
        None => {
            own.block_front.set_autocreate(false)?;
            own.block_addresses.set_autocreate(false)?;
            own.block_flows.set_autocreate(false)?;
            own.block_prefixes.set_autocreate(false)?;
        }
    }
    let rows = PATTERN_INTERFACES_MAX + 1;
    if maps.several {
        own.came.set_max_entries(maps.cpus * rows)?;
        own.shares.set_max_entries(all * rows)?;
    } else {
        own.members.set_autocreate(false)?;
        own.came.set_autocreate(false)?;
        own.shares.set_autocreate(false)?;
    }
    open.maps.rings.reuse_fd(by_number.as_fd())?;
    Ok(data)
}

pub(in crate::engines::bpf) fn load(
    choice: Choice,
    ifindex: u32,
    setup: &Setup,
    options: &BpfOptions,
    maps: Maps<'_>,
) -> Result<Programs, CaptureError> {
    let what = match choice {
        Choice::Tc => "the TC capture programs",
        Choice::Xdp | Choice::XdpWithTags => "the XDP capture program",
    };
    let refuse = refused(what);
    let mut object = MaybeUninit::uninit();
    let mut open = BpfSkelBuilder::default().open(&mut object).map_err(refuse)?;
    let sides = match choice {
        Choice::Tc => Side::of(setup.direction()).into_iter().map(Some).collect(),
        Choice::Xdp | Choice::XdpWithTags => vec![None],
    };
    let by_number = map_of_rings(&maps).map_err(refuse)?;
    let data =
        set_up(&mut open, choice, &sides, setup, options, maps, &by_number).map_err(refuse)?;
    // Programs with filters, and programs that are bound to a device, are loaded by this crate: libbpf cannot reserve
    // the space in which bound programs grow (decision 0020).
    let by_us = maps.has_filters || choice == Choice::XdpWithTags;
    let mut templates = match by_us {
        true => templates(&mut open, choice, ifindex, &sides).map_err(refuse)?,
        false => Vec::new(),
    };
    // SAFETY: the map belongs to the open object, which lives through the call.
    let named = unsafe { libbpf_sys::bpf_map__fd(open.maps.rodata.as_libbpf_object().as_ptr()) };
    let own = |program: BorrowedFd<'_>| {
        program.try_clone_to_owned().map_err(CaptureError::os("duplicating a program"))
    };
    let load = || {
        let skel = open.load().map_err(refuse)?;
        let programs: Vec<OwnedFd> = match (maps.has_filters, by_us) {
            (true, _) => with_filters(&templates, choice, maps.places).map_err(refuse)?,
            (false, true) => {
                // Templates are not kept, because filters of this source cannot change ([`Programs::may_change`]).
                let plain = templates.drain(..).map(|template| template.plain());
                plain.collect::<io::Result<_>>().map_err(|error| refuse(error.into()))?
            }
            (false, false) => {
                let loaded = |side: &Option<Side>| {
                    let mut all = skel.object().progs();
                    let program = all.find(|program| program.name() == name(choice, *side));
                    own(program.expect("every side has one").as_fd())
                };
                sides.iter().map(loaded).collect::<Result<_, _>>()?
            }
        };
        Ok::<_, CaptureError>((skel, programs))
    };
    // The update waits for RCU, while the verifier takes CPU time.
    let update = || update_rings(&by_number, &maps.numbers(), maps.rings);
    let (updated, loaded) = both(update, load);
    let (skel, programs) = loaded?;
    updated.map_err(|(_, error)| refuse(error))?;
    let progs = &skel.progs;
    let own_maps = &skel.maps;
    let member_maps = || -> Result<MemberMaps, libbpf_rs::Error> {
        Ok(MemberMaps {
            members: MapHandle::try_from(&own_maps.members)?,
            came: MapHandle::try_from(&own_maps.came)?,
            shares: MapHandle::try_from(&own_maps.shares)?,
        })
    };
    Ok(Programs {
        count_chosen: data.chooses != 0,
        at: AtHook(sides.into_iter().zip(programs.into_iter().map(Arc::new)).collect()),
        close: own(progs.weir_close.as_fd())?,
        store: own(progs.weir_store.as_fd())?,
        rings: by_number,
        control: MapHandle::try_from(&skel.maps.control).map_err(refuse)?,
        doorbell: MapHandle::try_from(&skel.maps.doorbell).map_err(refuse)?,
        members: maps.several.then(member_maps).transpose().map_err(refuse)?,
        templates,
        constants: Constants::new(data, named),
    })
}

/// Creates the map `rings` of `bpf/bpf.bpf.c`, still empty. The kernel takes the type and size of the maps in it from
/// an example: the first ring.
fn map_of_rings(maps: &Maps<'_>) -> Result<MapHandle, libbpf_rs::Error> {
    let inner_map_fd = maps.rings[0].as_fd().as_raw_fd() as u32;
    let options = libbpf_sys::bpf_map_create_opts { inner_map_fd, ..map_options(0) };
    MapHandle::create(MapType::ArrayOfMaps, Some("rings"), 4, 4, maps.rings_max(), &options)
}

/// Takes the programs for the hook out of the object, as templates, so that libbpf does not load them.
fn templates(
    open: &mut OpenBpfSkel<'_>,
    choice: Choice,
    ifindex: u32,
    sides: &[Option<Side>],
) -> Result<Vec<Template>, libbpf_rs::Error> {
    prepare(open.open_object())?;
    let object = open.open_object();
    let device = (choice == Choice::XdpWithTags).then_some(ifindex);
    let take = |side: &Option<Side>| {
        let program = object.progs().find(|program| program.name() == name(choice, *side));
        let program = program.expect("every side has one");
        Template::take(object, &program, choice.target(), choice.judge(), device)
    };
    let templates = sides.iter().map(take).collect::<Result<_, _>>()?;
    load_only(open, &[]);
    Ok(templates)
}

/// Loads the templates with the feeds' filters.
fn with_filters(
    templates: &[Template],
    choice: Choice,
    places: &[Option<Feed>],
) -> Result<Vec<OwnedFd>, libbpf_rs::Error> {
    let filters = Filters::of_each(choice.target(), places.iter().map(Option::as_ref))
        .ok_or_else(|| io::Error::other("the kernel does not take the filters"))?;
    Ok(each(templates, |template| template.with(&filters)).into_iter().collect::<Result<_, _>>()?)
}
