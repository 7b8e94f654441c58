//! The programs in the kernel that capture frames.

mod constants;
mod object;

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/bpf.skel.rs"));
}

use std::ffi::CStr;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_filter::ebpf::Target;
use weir_ring::{Mapping, Ring, Words, header};

use super::block;
use super::clsact::Side;
use super::memory::is;
use super::{BpfOptions, Hook};
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::filters::{Filters, Template};
use crate::in_parallel::each;
use crate::kernel::interface::Interface;
use crate::setup::Setup;

use constants::Constants;
pub(super) use object::load;

/// The descriptors that are kept after the skeleton is freed. They keep the programs and maps loaded.
pub(super) struct Programs {
    pub(super) at: AtHook,
    /// Whether the programs count the frames that each feed selected. They do if a feed may reject frames.
    pub(super) count_chosen: bool,
    /// The programs' map of rings, by number of the ring.
    rings: MapHandle,
    close: OwnedFd,
    store: OwnedFd,
    pub(super) control: MapHandle,
    pub(super) doorbell: MapHandle,
    /// The maps for a source with several interfaces; `None` for a single interface.
    pub(super) members: Option<MemberMaps>,
    /// The programs for the hook as templates, in which filters replace a function; empty if the source has no filters.
    templates: Vec<Template>,
    constants: Constants,
}

/// The programs at the hook: one for each side at TC, or one at XDP.
pub(super) struct AtHook(Vec<(Option<Side>, Arc<OwnedFd>)>);

/// The maps that `bpf/members.h` declares.
pub(super) struct MemberMaps {
    pub(super) members: MapHandle,
    pub(super) came: MapHandle,
    pub(super) shares: MapHandle,
}

/// Maps that are created before the programs are loaded, and settings of the programs.
#[derive(Clone, Copy)]
pub(super) struct Maps<'a> {
    /// The feeds whose rings the programs write, by place.
    pub(super) places: &'a [Option<Feed>],
    /// The rings of the taken places, one after the other.
    pub(super) rings: &'a [MapHandle],
    /// Number of possible CPUs. In every place, each CPU has a ring.
    pub(super) cpus: u32,
    /// Whether feeds have filters at the hook, or may get filters.
    pub(super) has_filters: bool,
    /// The block lists, if feeds may have any.
    pub(super) blocks: Option<block::Maps<'a>>,
    /// Whether the source has several interfaces, each with its own counts.
    pub(super) several: bool,
}

/// The programs of the object that are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Tc,
    Xdp,
    /// XDP, with a program that is bound to the device and can request the VLAN tag that the driver removed (Linux
    /// 6.8).
    XdpWithTags,
}

impl Maps<'_> {
    /// Returns the number of rings if every place is taken. The rings of a place that is free now may be created later.
    fn rings_max(&self) -> u32 {
        self.cpus * self.places.len() as u32
    }

    /// Returns the numbers of `rings`.
    fn numbers(&self) -> Vec<u32> {
        let taken = (0..self.places.len()).filter(|place| self.places[*place].is_some());
        taken
            .flat_map(|place| (0..self.cpus).map(move |cpu| place as u32 * self.cpus + cpu))
            .collect()
    }
}

impl Choice {
    /// Returns the target for which filters are compiled.
    fn target(self) -> Target {
        match self {
            Choice::Tc => Target::Tc,
            Choice::Xdp => Target::Xdp,
            Choice::XdpWithTags => Target::XdpTag,
        }
    }

    /// Returns the name of the function of `bpf/bpf.bpf.c` that filters replace.
    fn judge(self) -> &'static CStr {
        match self {
            Choice::Tc => c"weir_judge_tc",
            Choice::Xdp | Choice::XdpWithTags => c"weir_judge_xdp",
        }
    }
}

impl AtHook {
    /// Returns the sides at TC that have a program, or `None` for XDP.
    pub(super) fn sides(&self) -> impl Iterator<Item = Option<Side>> {
        self.0.iter().map(|(side, _)| *side)
    }

    /// Returns the program of a side at TC; `None`: the program at XDP.
    pub(super) fn program(&self, side: Option<Side>) -> &Arc<OwnedFd> {
        let found = self.0.iter().find(|(of, _)| *of == side);
        &found.expect("every side that is wanted has a program").1
    }
}

impl Programs {
    /// Loads the programs for the hook. Also returns notes for the user about frames or tags that the programs cannot
    /// see. `interface`: needed for XDP.
    pub(super) fn load(
        interface: Option<&Interface>,
        setup: &Setup,
        options: &BpfOptions,
        maps: Maps<'_>,
    ) -> Result<(Programs, Vec<String>), CaptureError> {
        let index = interface.map_or(0, |interface| interface.index);
        let load = |choice, maps| object::load(choice, index, setup, options, maps);
        let Some(interface) = interface.filter(|_| options.hook == Hook::Xdp) else {
            return Ok((load(Choice::Tc, maps)?, Vec::new()));
        };
        // The kernel often refuses the program that can request tags (old kernel, driver without metadata, generic mode
        // only). Then the plain program is loaded, and an error is reported only if the kernel refuses that, too.
        if super::xdp::metadata_possible(interface) {
            let without = Maps { has_filters: false, ..maps };
            match load(Choice::XdpWithTags, maps) {
                Ok(programs) => return Ok((programs, Vec::new())),
                // If only the filters are too long, report that. The plain program would accept them, but would lose
                // the tags.
                Err(error) if maps.has_filters && load(Choice::XdpWithTags, without).is_ok() => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok((load(Choice::Xdp, maps)?, vec![super::xdp::unbound_note(interface, "--hook tc")]))
    }

    /// Loads the programs for the hook with these feeds and the numbers of their block lists, both by place. They count
    /// in the words of this generation. Returns `None` if the kernel does not accept them.
    ///
    /// # Errors
    /// Missing privileges, or no memory for the programs' constants.
    pub(super) fn with_feeds(
        &self,
        places: &[Option<Feed>],
        lists: &[u32],
        generation: usize,
    ) -> Result<Option<AtHook>, CaptureError> {
        let refused = super::memory::refused("the capture program with other feeds");
        let target = self.templates.first().expect("loaded for filters").target();
        let Some(filters) = Filters::of_each(target, places.iter().map(Option::as_ref)) else {
            return Ok(None);
        };
        let constants = self.constants.with_feeds(places, lists, generation).map_err(refused)?;
        let (named, map) = (self.constants.named(), constants.as_fd());
        // The verifier checks each side separately.
        let made = each(&self.templates, |template| template.with_map(&filters, named, map));
        let mut programs = Vec::new();
        for (side, made) in self.at.sides().zip(made) {
            match made.map_err(libbpf_rs::Error::from) {
                Ok(program) => programs.push((side, Arc::new(program))),
                // EPERM does not depend on this program: the kernel would refuse any other, too.
                Err(error) if is(&error, libc::EPERM) => return Err(refused(error)),
                Err(_) => return Ok(None),
            }
        }
        Ok(Some(AtHook(programs)))
    }

    /// Returns true if the programs at the hook can be replaced.
    pub(super) fn may_change(&self) -> bool {
        !self.templates.is_empty()
    }

    /// Adds rings to the map of rings, from this number on. If that fails, adds none of them.
    pub(super) fn put_rings(&self, first: u32, arrays: &[MapHandle]) -> Result<(), CaptureError> {
        let numbers: Vec<u32> = (first..first + arrays.len() as u32).collect();
        update_rings(&self.rings, &numbers, arrays).map_err(|(added, error)| {
            // If this fails, too, the rings that were added keep their memory.
            let _ = self.forget_rings(first..first + added as u32);
            super::memory::refused("a ring")(error)
        })
    }

    /// Removes rings that no program writes any more. Their memory is freed once no reader maps it.
    pub(super) fn forget_rings(&self, numbers: Range<u32>) -> Result<(), CaptureError> {
        let numbers: Vec<u32> = numbers.collect();
        // Each deletion waits for RCU, and the kernel has no batches of deletions for these maps.
        let freed = each(&numbers, |number| self.rings.delete(&number.to_ne_bytes()));
        let freed: Result<(), _> = freed.into_iter().collect();
        freed.map_err(super::memory::refused("freeing a ring"))
    }

    /// Ends the open block of a ring, and closes the ring. No program may write into it any more.
    pub(super) fn close_ring(&self, ring: u32) -> Result<(), CaptureError> {
        run(&self.close, &mut ring.to_ne_bytes(), || format!("closing ring {ring}"))
    }

    /// Adds the description of an interface to the rings of a feed, and returns its id in them. A program stores it,
    /// because the rings are frozen. `first`: the number of the first ring. Programs may write frames of the interface
    /// once this has returned.
    pub(super) fn append_interface(
        &self,
        first: usize,
        rings: &[Ring<Mapping>],
        interface: &weir_frame::pcapng::Interface,
    ) -> Result<u32, CaptureError> {
        // All rings of a feed describe the same interfaces.
        let append = header::append(rings[0].memory().words(), interface)?;
        for number in (first as u32..).take(rings.len()) {
            // The count is stored last (`header::Append`).
            for (index, value) in append.stores.iter().chain([&append.count]) {
                let mut context = [0; 16];
                context[..4].copy_from_slice(&number.to_ne_bytes());
                context[4..8].copy_from_slice(&index.to_ne_bytes());
                context[8..].copy_from_slice(&value.to_ne_bytes());
                let doing = || format!("describing an interface in ring {number}");
                run(&self.store, &mut context, doing)?;
            }
        }
        Ok(append.id)
    }
}

/// Adds rings to a map of rings, with these numbers. An error comes with the number of rings that were added.
fn update_rings(
    map: &impl MapCore,
    numbers: &[u32],
    arrays: &[MapHandle],
) -> Result<(), (usize, libbpf_rs::Error)> {
    let keys: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
    let fds = arrays.iter().map(|ring| ring.as_fd().as_raw_fd());
    let values: Vec<u8> = fds.flat_map(i32::to_ne_bytes).collect();
    // The kernel waits for RCU after each update of a map of maps, but for a batch only once.
    let count = numbers.len() as u32;
    if map.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY).is_ok() {
        return Ok(());
    }
    for (added, (key, value)) in keys.chunks(4).zip(values.chunks(4)).enumerate() {
        map.update(key, value, MapFlags::ANY).map_err(|error| (added, error))?;
    }
    Ok(())
}

/// Runs a program that is not attached to a hook, with this context.
fn run(
    program: &OwnedFd,
    context: &mut [u8],
    doing: impl Fn() -> String,
) -> Result<(), CaptureError> {
    let mut run = libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        ctx_in: context.as_mut_ptr().cast(),
        ctx_size_in: context.len() as u32,
        ..Default::default()
    };
    // SAFETY: `run` and the context to which it points live through the call, with their true sizes; the descriptor is
    // a loaded program.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut run) };
    if result < 0 || run.retval != 0 {
        return Err(CaptureError::last_os(doing()));
    }
    Ok(())
}
