//! The capture programs, loaded for one interface.

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/capture.skel.rs"));
}

use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{MapCore, MapFlags, MapHandle};
use skel::{CaptureSkelBuilder, OpenCaptureSkel};

use super::block;
use super::memory::refused;
use super::{BpfOptions, Hook};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::iface::Interface;
use crate::source::Setup;

/// What is left once the skeleton is gone: descriptors that keep everything in the kernel alive.
pub(super) struct Programs {
    pub(super) at: AtHook,
    close: OwnedFd,
    pub(super) control: MapHandle,
    pub(super) doorbell: MapHandle,
    /// Where the filters' program is.
    pub(super) filters: MapHandle,
}

/// What runs at the hook.
pub(super) enum AtHook {
    Tc {
        /// Lets frames by until the capture starts.
        wait: OwnedFd,
        received: OwnedFd,
        sent: OwnedFd,
    },
    Xdp(OwnedFd),
}

/// What XDP cannot see where the driver does not tell.
pub(super) fn tags_note(interface: &Interface) -> String {
    format!(
        "VLAN tags that the driver takes off do not reach XDP here; to keep them: \
         `ethtool -K {} rxvlan off`, or --hook tc",
        interface.name
    )
}

/// Maps that are there before the programs.
#[derive(Clone, Copy)]
pub(super) struct Maps<'a> {
    /// The rings, feed by feed.
    pub(super) rings: &'a [MapHandle],
    /// There is a program of filters, which is put in before any frame comes.
    pub(super) has_filters: bool,
    /// Block lists, if feeds may have any.
    pub(super) blocks: Option<block::Maps<'a>>,
}

/// Which programs of the object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Tc,
    Xdp,
    /// XDP bound to the device, which may ask it for the VLAN tag it took off (Linux 6.8).
    XdpWithTags,
}

impl Programs {
    /// Loads what the hook needs; also notes on what it cannot see.
    pub(super) fn load(
        interface: &Interface,
        setup: &Setup,
        options: &BpfOptions,
        maps: Maps<'_>,
    ) -> Result<(Programs, Vec<String>), CaptureError> {
        let load = |choice| load(choice, interface, setup, options, maps);
        if options.hook == Hook::Tc {
            return Ok((load(Choice::Tc)?, Vec::new()));
        }
        // A refusal is likely here (old kernel, driver without metadata, generic mode only) and the
        // plain program is the answer to all of them; its own refusal is the one to report.
        let chooses = setup.may_change || setup.feeds.iter().any(|feed| feed.filter.is_some());
        // A program that is bound to a device cannot call filters.
        if super::xdp::metadata_possible(interface)
            && !chooses
            && let Ok(programs) = load(Choice::XdpWithTags)
        {
            return Ok((programs, Vec::new()));
        }
        Ok((load(Choice::Xdp)?, vec![tags_note(interface)]))
    }

    /// Runs what is at the hook once, on a frame that came in.
    pub(super) fn run_once(&self, frame: &[u8]) -> Result<(), CaptureError> {
        let program = match &self.at {
            AtHook::Tc { received, .. } => received,
            AtHook::Xdp(program) => program,
        };
        let mut run = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            data_in: frame.as_ptr().cast(),
            data_size_in: frame.len() as u32,
            repeat: 1,
            ..Default::default()
        };
        // SAFETY: `run` and the frame it points to live through the call, with their true sizes; the
        // descriptor is a loaded program.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut run) };
        if result < 0 {
            return Err(CaptureError::last_os("running a capture program".to_owned()));
        }
        Ok(())
    }

    /// Ends the open block of a ring and closes it; no program may write it any more.
    pub(super) fn close_ring(&self, ring: u32) -> Result<(), CaptureError> {
        let mut context = ring.to_ne_bytes();
        let mut run = libbpf_sys::bpf_test_run_opts {
            sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
            ctx_in: context.as_mut_ptr().cast(),
            ctx_size_in: context.len() as u32,
            ..Default::default()
        };
        // SAFETY: `run` and the context it points to live through the call, with their true sizes;
        // the descriptor is a loaded program.
        let result =
            unsafe { libbpf_sys::bpf_prog_test_run_opts(self.close.as_raw_fd(), &raw mut run) };
        if result < 0 || run.retval != 0 {
            return Err(CaptureError::last_os(format!("closing ring {ring}")));
        }
        Ok(())
    }
}

/// `WEIR_ANY_QUEUE` of `bpf/capture.bpf.c`.
const ANY_QUEUE: u32 = u32::MAX;

fn set_up(
    open: &mut OpenCaptureSkel<'_>,
    choice: Choice,
    setup: &Setup,
    options: &BpfOptions,
    maps: Maps<'_>,
) -> Result<(), libbpf_rs::Error> {
    let rings = maps.rings;
    let rodata = open.maps.rodata_data.as_deref_mut().expect("the object has read-only data");
    rodata.block_mask = rings[0].max_entries() - 2;
    for (number, feed) in setup.feeds.iter().enumerate() {
        let own = &mut rodata.feed_of[number];
        own.interface_id = feed.interface_id;
        own.snaplen = feed.snaplen;
        own.one_in = feed.sampling.one_in();
        own.flows_one_in = feed.sampling.flows_one_in();
        own.shard_index = feed.shard.index();
        own.shard_of = feed.shard.of();
        own.queue = feed.queue.unwrap_or(ANY_QUEUE);
        rodata.wanted_in |= u32::from(feed.direction.takes_in()) << number;
        rodata.wanted_out |= u32::from(feed.direction.takes_out()) << number;
    }
    rodata.feeds = setup.feeds.len() as u32;
    rodata.rings_per_feed = (rings.len() / setup.feeds.len()) as u32;
    rodata.with_filters = u32::from(maps.has_filters);
    rodata.may_block = u32::from(maps.blocks.is_some());
    rodata.by_flow = u32::from(setup.feeds.iter().any(Feed::goes_by_flow));
    rodata.by_queue = u32::from(setup.feeds.iter().any(|feed| feed.queue.is_some()));
    let chooses = rodata.with_filters | rodata.by_flow | rodata.by_queue != 0;
    rodata.chooses = u32::from(chooses || !setup.is_of_one_direction());
    // At TC both directions share a ring and super-frames are told apart; at XDP there is neither.
    rodata.with_flags = u32::from(choice == Choice::Tc);
    rodata.with_queue = u32::from(options.record_queue);
    rodata.consume = u32::from(options.consume);
    let progs = &mut open.progs;
    progs.weir_tc_wait.set_autoload(choice == Choice::Tc);
    progs.weir_tc_in.set_autoload(choice == Choice::Tc);
    progs.weir_tc_out.set_autoload(choice == Choice::Tc);
    progs.weir_xdp.set_autoload(choice == Choice::Xdp);
    progs.weir_xdp_tags.set_autoload(choice == Choice::XdpWithTags);
    open.maps.control.set_max_entries(1 + rings.len() as u32)?;
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
    open.maps.rings.set_max_entries(rings.len() as u32)?;
    open.maps.rings.set_inner_map_fd(rings[0].as_fd())
}

pub(super) fn load(
    choice: Choice,
    interface: &Interface,
    setup: &Setup,
    options: &BpfOptions,
    maps: Maps<'_>,
) -> Result<Programs, CaptureError> {
    let rings = maps.rings;
    let what = match choice {
        Choice::Tc => "the TC capture programs",
        Choice::Xdp | Choice::XdpWithTags => "the XDP capture program",
    };
    let refuse = refused(what);
    let mut object = MaybeUninit::uninit();
    let mut open = CaptureSkelBuilder::default().open(&mut object).map_err(refuse)?;
    set_up(&mut open, choice, setup, options, maps).map_err(refuse)?;
    if choice == Choice::XdpWithTags {
        open.progs.weir_xdp_tags.set_ifindex(interface.index);
        open.progs.weir_xdp_tags.set_flags(libbpf_sys::BPF_F_XDP_DEV_BOUND_ONLY);
    }
    let skel = open.load().map_err(refuse)?;
    for (number, ring) in rings.iter().enumerate() {
        let (key, value) = ((number as u32).to_ne_bytes(), ring.as_fd().as_raw_fd().to_ne_bytes());
        skel.maps.rings.update(&key, &value, MapFlags::ANY).map_err(refuse)?;
    }
    let own = |fd: std::os::fd::BorrowedFd<'_>| {
        fd.try_clone_to_owned().map_err(CaptureError::os("duplicating a program"))
    };
    let progs = &skel.progs;
    let at = match choice {
        Choice::Tc => AtHook::Tc {
            wait: own(progs.weir_tc_wait.as_fd())?,
            received: own(progs.weir_tc_in.as_fd())?,
            sent: own(progs.weir_tc_out.as_fd())?,
        },
        Choice::Xdp => AtHook::Xdp(own(progs.weir_xdp.as_fd())?),
        Choice::XdpWithTags => AtHook::Xdp(own(progs.weir_xdp_tags.as_fd())?),
    };
    Ok(Programs {
        at,
        close: own(progs.weir_close.as_fd())?,
        control: MapHandle::try_from(&skel.maps.control).map_err(refuse)?,
        doorbell: MapHandle::try_from(&skel.maps.doorbell).map_err(refuse)?,
        filters: MapHandle::try_from(&skel.maps.filters).map_err(refuse)?,
    })
}
