//! The filters of all feeds at the hook: one program, which the capture program calls and which is exchanged while
//! frames go by (docs/decisions/0009-filter-homes.md).

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::ptr;

use libbpf_rs::{MapCore, MapFlags, MapHandle};
use weir_filter::Program;
use weir_filter::ebpf::{self, Target};

use super::Hook;
use crate::feed::Feed;
use crate::source::Setup;

/// Most feeds that the capture program writes; `bpf/capture.bpf.c` has the same number.
pub(super) const FEEDS_MAX: usize = 16;

/// A program of filters, in the kernel.
pub(super) struct Filters(OwnedFd);

impl Filters {
    /// Has the kernel take the feeds' filters as one program; `None` if it does not, or if they are too long. The
    /// reason makes no difference: filters that are not here run in user space.
    pub(super) fn load(hook: Hook, feeds: &[Feed]) -> Option<Filters> {
        let target = match hook {
            Hook::Tc => Target::Tc,
            Hook::Xdp => Target::Xdp,
        };
        let programs: Vec<Option<&Program>> =
            feeds.iter().map(|feed| feed.filter.as_ref().map(|filter| &filter.program)).collect();
        let code = ebpf::convert_set(&programs, target).ok()?;
        let mut options = libbpf_sys::bpf_prog_load_opts {
            sz: size_of::<libbpf_sys::bpf_prog_load_opts>() as libbpf_sys::size_t,
            ..Default::default()
        };
        let kind = match hook {
            Hook::Tc => libbpf_sys::BPF_PROG_TYPE_SCHED_CLS,
            Hook::Xdp => {
                // As libbpf loads the capture program: one array holds programs of one kind.
                options.expected_attach_type = libbpf_sys::BPF_XDP;
                options.prog_flags = libbpf_sys::BPF_F_XDP_HAS_FRAGS;
                libbpf_sys::BPF_PROG_TYPE_XDP
            }
        };
        // SAFETY: name and license are terminated, the code lives through the call with its true length, and the
        // options are whole and say their size.
        let fd = unsafe {
            libbpf_sys::bpf_prog_load(
                kind,
                c"weir_filters".as_ptr(),
                c"Dual MIT/GPL".as_ptr(),
                code.as_ptr().cast(),
                code.len() as libbpf_sys::size_t,
                ptr::from_mut(&mut options),
            )
        };
        // SAFETY: the kernel just gave us this descriptor and nobody else has it.
        (fd >= 0).then(|| Filters(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Puts the program where the capture program calls it, in place of the one that was there. Each frame sees the
    /// one or the other whole.
    pub(super) fn put(&self, slots: &MapHandle) -> Result<(), libbpf_rs::Error> {
        let fd = self.0.as_fd().as_raw_fd();
        slots.update(&0u32.to_ne_bytes(), &fd.to_ne_bytes(), MapFlags::ANY)
    }
}

/// Which feeds the hook serves, and which are made from one of its own in user space.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Numbers of the feeds that the hook chooses for.
    pub(super) at_hook: Vec<usize>,
    /// And of those that are derived: the hook has no place for them, or the kernel does not take their filters.
    pub(super) derived: Vec<usize>,
}

impl Plan {
    /// Shares the feeds out, and loads the filters of those at the hook.
    pub(super) fn of(hook: Hook, setup: &Setup, places: usize) -> (Plan, Option<Filters>) {
        Plan::with(&setup.feeds, places, setup.may_change, |feeds| Filters::load(hook, feeds))
    }

    fn with<F>(
        feeds: &[Feed],
        places: usize,
        may_change: bool,
        load: impl Fn(&[Feed]) -> Option<F>,
    ) -> (Plan, Option<F>) {
        let all: Vec<usize> = (0..feeds.len()).collect();
        let is_filtered = |&feed: &usize| feeds[feed].filter.is_some();
        if all.len() <= places && !may_change && !all.iter().any(is_filtered) {
            return (Plan { at_hook: all, derived: Vec::new() }, None);
        }
        let alone = |&feed: &usize| {
            !is_filtered(&feed) || load(std::slice::from_ref(&feeds[feed])).is_some()
        };
        let (mut at_hook, mut derived): (Vec<_>, Vec<_>) = all.into_iter().partition(alone);
        loop {
            // Derived feeds need a place, too: one for all of them.
            let most = if derived.is_empty() { places } else { places - 1 };
            if at_hook.len() > most {
                derived.extend(at_hook.split_off(places - 1));
            }
            let mut chosen: Vec<Feed> = at_hook.iter().map(|&feed| feeds[feed].clone()).collect();
            if !derived.is_empty() {
                // What they are derived from takes all.
                chosen.push(Feed::default());
            }
            let filters = load(&chosen);
            if filters.is_some() || at_hook.is_empty() {
                derived.sort_unstable();
                return (Plan { at_hook, derived }, filters);
            }
            // Each for itself would do, and all are too much: the last makes room.
            derived.extend(at_hook.pop());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_filter::Insn;

    use super::*;
    use crate::feed::Filter;

    /// Feeds with filters of so many instructions; 0 is none.
    fn feeds(lengths: &[usize]) -> Vec<Feed> {
        let filter = |&length: &usize| {
            let insns = vec![Insn::new(weir_filter::insn::RET_K, 1); length];
            let program = Program::new(insns).expect("valid");
            Arc::new(Filter { text: String::new(), link_type: 1, program })
        };
        let one = |length: &usize| Feed {
            filter: Some(length).filter(|length| **length > 0).map(filter),
            ..Feed::default()
        };
        lengths.iter().map(one).collect()
    }

    /// A kernel that takes `most` instructions.
    fn plan(lengths: &[usize], places: usize, most: usize) -> (Plan, bool) {
        let length = |feed: &Feed| feed.filter.as_ref().map_or(0, |f| f.program.insns().len());
        let load = |feeds: &[Feed]| (feeds.iter().map(length).sum::<usize>() <= most).then_some(());
        let (plan, filters) = Plan::with(&feeds(lengths), places, false, load);
        (plan, filters.is_some())
    }

    #[test]
    fn feeds_are_at_the_hook_as_far_as_it_has_places() {
        let planned = |at_hook: &[usize], derived: &[usize]| Plan {
            at_hook: at_hook.to_vec(),
            derived: derived.to_vec(),
        };
        assert_eq!(plan(&[0], 16, 9), (planned(&[0], &[]), false));
        assert_eq!(plan(&[1, 0, 2], 16, 9), (planned(&[0, 1, 2], &[]), true));
        // One place is for all that are derived.
        assert_eq!(plan(&[0, 0, 0, 0], 3, 9), (planned(&[0, 1], &[2, 3]), true));
        assert_eq!(plan(&[1, 1, 1], 3, 9), (planned(&[0, 1, 2], &[]), true));
    }

    #[test]
    fn what_the_kernel_does_not_take_is_derived() {
        let planned = |at_hook: &[usize], derived: &[usize]| Plan {
            at_hook: at_hook.to_vec(),
            derived: derived.to_vec(),
        };
        // Too long alone.
        assert_eq!(plan(&[1, 50, 1], 16, 9), (planned(&[0, 2], &[1]), true));
        // Too long together.
        assert_eq!(plan(&[5, 4, 3], 16, 9), (planned(&[0, 1], &[2]), true));
        assert_eq!(plan(&[50], 16, 9), (planned(&[], &[0]), true));
        assert_eq!(plan(&[1, 1, 50, 1], 3, 9), (planned(&[0, 1], &[2, 3]), true));
    }
}
