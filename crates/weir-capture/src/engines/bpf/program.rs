//! The capture programs, as they are in the kernel.

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
use std::thread::{self, ScopedJoinHandle};

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
use crate::kernel::interface::Interface;
use crate::setup::Setup;

use constants::Constants;
pub(super) use object::load;

/// The descriptors that remain once the skeleton is gone. They keep everything in the kernel alive.
pub(super) struct Programs {
    pub(super) at: AtHook,
    /// Some feed leaves frames out, and they count what each of them chose.
    pub(super) count_chosen: bool,
    /// At TC: lets frames by until the capture starts.
    pub(super) wait: Option<Arc<OwnedFd>>,
    /// By number.
    rings: MapHandle,
    close: OwnedFd,
    store: OwnedFd,
    pub(super) control: MapHandle,
    pub(super) doorbell: MapHandle,
    /// Of a source of several interfaces.
    pub(super) members: Option<MemberMaps>,
    /// The programs for the hook, with a place for filters; empty where there are none.
    templates: Vec<Template>,
    constants: Constants,
}

/// The programs at the hook: one for each side at TC, or one at XDP.
pub(super) struct AtHook(Vec<(Option<Side>, Arc<OwnedFd>)>);

/// The maps of `bpf/members.h`.
pub(super) struct MemberMaps {
    pub(super) members: MapHandle,
    pub(super) came: MapHandle,
    pub(super) shares: MapHandle,
}

/// Maps that are there before the programs.
#[derive(Clone, Copy)]
pub(super) struct Maps<'a> {
    /// Feeds that are written, by place.
    pub(super) places: &'a [Option<Feed>],
    /// The rings of the places that are taken, one after the other.
    pub(super) rings: &'a [MapHandle],
    /// CPUs that there may be, each with a ring in every place.
    pub(super) cpus: u32,
    /// Feeds have filters at the hook, or may get some.
    pub(super) has_filters: bool,
    /// Block lists, if feeds may have any.
    pub(super) blocks: Option<block::Maps<'a>>,
    /// The source has several interfaces, each with counts of its own.
    pub(super) several: bool,
}

/// Which programs of the object to load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Choice {
    Tc,
    Xdp,
    /// XDP bound to the device, which may ask it for the VLAN tag it took off (Linux 6.8).
    XdpWithTags,
}

impl Choice {
    /// Where filters of its programs run.
    fn target(self) -> Target {
        match self {
            Choice::Tc => Target::Tc,
            Choice::Xdp => Target::Xdp,
            Choice::XdpWithTags => Target::XdpTag,
        }
    }

    /// The function that filters come in the place of, in `bpf/bpf.bpf.c`.
    fn judge(self) -> &'static CStr {
        match self {
            Choice::Tc => c"weir_judge_tc",
            Choice::Xdp | Choice::XdpWithTags => c"weir_judge_xdp",
        }
    }
}

impl AtHook {
    /// Sides at TC that have a program, or `None` for XDP.
    pub(super) fn sides(&self) -> impl Iterator<Item = Option<Side>> {
        self.0.iter().map(|(side, _)| *side)
    }

    /// The program of a side at TC; `None`: the one at XDP.
    pub(super) fn program(&self, side: Option<Side>) -> &Arc<OwnedFd> {
        let found = self.0.iter().find(|(of, _)| *of == side);
        &found.expect("every side that is wanted has a program").1
    }
}

impl Programs {
    /// Loads the programs for the hook; also returns notes on what it cannot see. `interface`: the
    /// one for XDP.
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
        // A refusal is likely here (old kernel, driver without metadata, generic mode only) and the
        // plain program is the answer to all of them; its own refusal is the one to report.
        if super::xdp::metadata_possible(interface) {
            let without = Maps { has_filters: false, ..maps };
            match load(Choice::XdpWithTags, maps) {
                Ok(programs) => return Ok((programs, Vec::new())),
                // Filters that are too much for it cost nobody the tags.
                Err(error) if maps.has_filters && load(Choice::XdpWithTags, without).is_ok() => {
                    return Err(error);
                }
                Err(_) => {}
            }
        }
        Ok((load(Choice::Xdp, maps)?, vec![super::xdp::unbound_note(interface, "--hook tc")]))
    }

    /// The programs for the hook, with these feeds and the numbers of their block lists by place, counting in the
    /// words of this generation; `None` if the kernel does not take such programs.
    ///
    /// # Errors
    /// No rights, or no memory for their constants.
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
        let filters = &filters;
        let with = move |template: &Template| template.with_map(filters, named, map);
        // The sides at the same time: the verifier looks at each by itself.
        thread::scope(|scope| {
            let threads: Vec<_> =
                self.templates.iter().map(|template| scope.spawn(move || with(template))).collect();
            let made: Vec<_> = threads.into_iter().map(join).collect();
            let mut programs = Vec::new();
            for (side, made) in self.at.sides().zip(made) {
                match made.map_err(libbpf_rs::Error::from) {
                    Ok(program) => programs.push((side, Arc::new(program))),
                    // No word about the programs: none would be taken.
                    Err(error) if is(&error, libc::EPERM) => return Err(refused(error)),
                    Err(_) => return Ok(None),
                }
            }
            Ok(Some(AtHook(programs)))
        })
    }

    /// Whether what runs at the hook can be exchanged.
    pub(super) fn may_change(&self) -> bool {
        !self.templates.is_empty()
    }

    /// Has the programs write rings that had no memory before, from this number on: all of them, or none.
    pub(super) fn put_rings(&self, first: u32, arrays: &[MapHandle]) -> Result<(), CaptureError> {
        let numbers = first..first + arrays.len() as u32;
        let keys: Vec<u8> = numbers.flat_map(u32::to_ne_bytes).collect();
        let fds = arrays.iter().map(|ring| ring.as_fd().as_raw_fd());
        let values: Vec<u8> = fds.flat_map(i32::to_ne_bytes).collect();
        // The kernel waits for RCU after each change of a map of maps, but once for all in a batch.
        let count = arrays.len() as u32;
        if self.rings.update_batch(&keys, &values, count, MapFlags::ANY, MapFlags::ANY).is_ok() {
            return Ok(());
        }
        for (number, (key, value)) in (first..).zip(keys.chunks(4).zip(values.chunks(4))) {
            if let Err(error) = self.rings.update(key, value, MapFlags::ANY) {
                // Rings that stay there keep their memory.
                let _ = self.forget_rings(first..number);
                return Err(super::memory::refused("a ring")(error));
            }
        }
        Ok(())
    }

    /// Frees rings that no program writes any more, except for memory that readers hold.
    pub(super) fn forget_rings(&self, numbers: Range<u32>) -> Result<(), CaptureError> {
        let forget = |number: u32| self.rings.delete(&number.to_ne_bytes());
        // At the same time, since each waits for RCU (as above), and there are no batches.
        let freed: Vec<_> = thread::scope(|scope| {
            let threads: Vec<_> =
                numbers.map(|number| scope.spawn(move || forget(number))).collect();
            threads.into_iter().map(join).collect()
        });
        let freed: Result<(), _> = freed.into_iter().collect();
        freed.map_err(super::memory::refused("freeing a ring"))
    }

    /// Ends the open block of a ring and closes it; no program may write it any more.
    pub(super) fn close_ring(&self, ring: u32) -> Result<(), CaptureError> {
        run(&self.close, &mut ring.to_ne_bytes(), || format!("closing ring {ring}"))
    }

    /// Describes one more interface in the rings of a feed, which are frozen; gives its id there. `first`: the number
    /// of the first of them. Programs may write frames of it once this has returned.
    pub(super) fn append_interface(
        &self,
        first: usize,
        rings: &[Ring<Mapping>],
        interface: &weir_frame::pcapng::Interface,
    ) -> Result<u32, CaptureError> {
        // The rings of a feed say the same of its interfaces.
        let append = header::append(rings[0].memory().words(), interface)?;
        for number in (first as u32..).take(rings.len()) {
            // The count comes last: `header::Append`.
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

/// A thread's result, or its panic.
pub(super) fn join<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Runs a program that is no hook's, with its argument.
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
    // SAFETY: `run` and the context it points to live through the call, with their true sizes;
    // the descriptor is a loaded program.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.as_raw_fd(), &raw mut run) };
    if result < 0 || run.retval != 0 {
        return Err(CaptureError::last_os(doing()));
    }
    Ok(())
}
