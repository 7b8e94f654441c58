//! Decides for which feeds the programs at the hook write rings, and which feeds are derived from such a feed in user
//! space.

use weir_filter::ebpf::Target;

use super::Hook;
use crate::error::CaptureError;
use crate::feed::Feed;
use crate::feed::filters::Filters;
use crate::limits::{FEEDS_MAX, HOOK_FEEDS_MAX};
use crate::setup::Setup;

/// The feeds that the programs at the hook write, and the feeds that are derived in user space.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Numbers of the feeds that the programs at the hook write.
    pub(super) at_hook: Vec<usize>,
    /// Numbers of the derived feeds: there is no place for them at the hook, the kernel does not accept their filters,
    /// or their rings must be sealed.
    pub(super) derived: Vec<usize>,
    /// Whether filters run at the hook.
    pub(super) has_filters: bool,
}

impl Hook {
    /// Returns the target for which filters of this hook are compiled.
    pub(super) fn target(self) -> Target {
        match self {
            Hook::Tc => Target::Tc,
            Hook::Xdp => Target::Xdp,
        }
    }
}

impl Plan {
    /// Returns a plan for this number of places at the hook. It depends on which filters the kernel accepts.
    pub(super) fn of(hook: Hook, setup: &Setup, places: usize) -> Plan {
        Plan::with(&setup.feeds, places, setup.may_change, |feeds| {
            Filters::of(hook.target(), feeds).is_some_and(|filters| filters.are_taken())
        })
    }

    /// Returns a plan for the case that the kernel accepts no filters.
    pub(super) fn without_filters(setup: &Setup, places: usize) -> Plan {
        Plan::with(&setup.feeds, places, setup.may_change, |_| false)
    }

    fn with(
        feeds: &[Feed],
        places: usize,
        may_change: bool,
        takes: impl Fn(&[Feed]) -> bool,
    ) -> Plan {
        let all: Vec<usize> = (0..feeds.len()).collect();
        let is_filtered = |&feed: &usize| feeds[feed].filter.is_some();
        let is_plain = |feed: &usize| !is_filtered(feed) && !feeds[*feed].is_sealed;
        if all.len() <= places && !may_change && all.iter().all(is_plain) {
            return Plan { at_hook: all, derived: Vec::new(), has_filters: false };
        }
        let alone = |&feed: &usize| {
            let needs_none = !is_filtered(&feed) && !may_change;
            // Such a feed is not written at the hook: the rings there are BPF arrays, which other BPF programs can
            // write, too.
            !feeds[feed].is_sealed && (needs_none || takes(std::slice::from_ref(&feeds[feed])))
        };
        let (mut at_hook, mut derived): (Vec<_>, Vec<_>) = all.into_iter().partition(alone);
        loop {
            // The derived feeds, including those that join later, need one place together.
            let needs_base = may_change || !derived.is_empty();
            let most = if needs_base { places - 1 } else { places };
            if at_hook.len() > most {
                derived.extend(at_hook.split_off(places - 1));
            }
            if !may_change && !at_hook.iter().any(is_filtered) || at_hook.is_empty() {
                derived.sort_unstable();
                return Plan { at_hook, derived, has_filters: false };
            }
            let mut chosen: Vec<Feed> = at_hook.iter().map(|&feed| feeds[feed].clone()).collect();
            if needs_base {
                // The base feed, from which the others are derived, takes all frames.
                chosen.push(Feed::default());
            }
            if takes(&chosen) {
                derived.sort_unstable();
                return Plan { at_hook, derived, has_filters: true };
            }
            // The kernel accepts each filter alone, but all together are too long: derive the last feed.
            derived.extend(at_hook.pop());
        }
    }
}

/// Returns the error for a feed of a pattern that would have to be derived.
pub(super) fn no_relay() -> CaptureError {
    CaptureError::Options(format!(
        "--engine bpf serves a pattern with at most {HOOK_FEEDS_MAX} feeds (one less with --control), whose filters \
         the kernel accepts; --engine af_packet serves {FEEDS_MAX}, with any filters"
    ))
}

/// Returns the error for a feed of an RX queue that would have to be derived.
pub(super) fn no_place_by_queue(source: &str) -> CaptureError {
    CaptureError::Options(format!(
        "{source}: no place in the kernel for another feed of an RX queue (@q): it has places for {HOOK_FEEDS_MAX} \
         feeds, one less with --control or where some are chosen in user space, and takes no filter that is too long; \
         leave out @q or some feeds, or shorten a filter"
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_filter::{Insn, Program};

    use super::*;
    use crate::feed::Filter;

    /// Feeds with filters of these numbers of instructions; 0: no filter.
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

    /// The plan for a kernel that accepts `most` instructions.
    fn plan(lengths: &[usize], places: usize, most: usize) -> Plan {
        let length = |feed: &Feed| feed.filter.as_ref().map_or(0, |f| f.program.insns().len());
        let takes = |feeds: &[Feed]| feeds.iter().map(length).sum::<usize>() <= most;
        Plan::with(&feeds(lengths), places, false, takes)
    }

    fn planned(at_hook: &[usize], derived: &[usize], has_filters: bool) -> Plan {
        Plan { at_hook: at_hook.to_vec(), derived: derived.to_vec(), has_filters }
    }

    #[test]
    fn feeds_are_at_the_hook_as_far_as_it_has_places() {
        assert_eq!(plan(&[0], 16, 9), planned(&[0], &[], false));
        assert_eq!(plan(&[1, 0, 2], 16, 9), planned(&[0, 1, 2], &[], true));
        // The derived feeds together take one place.
        assert_eq!(plan(&[0, 0, 0, 0], 3, 9), planned(&[0, 1], &[2, 3], false));
        assert_eq!(plan(&[1, 1, 1], 3, 9), planned(&[0, 1, 2], &[], true));
    }

    #[test]
    fn sealed_feeds_are_derived() {
        let mut feeds = feeds(&[0, 0, 1]);
        feeds[1].is_sealed = true;
        for may_change in [false, true] {
            let plan = Plan::with(&feeds, 16, may_change, |_| true);
            assert_eq!(plan, planned(&[0, 2], &[1], true));
        }
    }

    #[test]
    fn what_the_kernel_does_not_take_is_derived() {
        // Too long alone.
        assert_eq!(plan(&[1, 50, 1], 16, 9), planned(&[0, 2], &[1], true));
        // Too long together.
        assert_eq!(plan(&[5, 4, 3], 16, 9), planned(&[0, 1], &[2], true));
        assert_eq!(plan(&[50], 16, 9), planned(&[], &[0], false));
        assert_eq!(plan(&[0, 50], 16, 9), planned(&[0], &[1], false));
        assert_eq!(plan(&[1, 1, 50, 1], 3, 9), planned(&[0, 1], &[2, 3], true));
        // A kernel that accepts no filters.
        let none = |may_change| Plan::with(&feeds(&[0, 1]), 16, may_change, |_| false);
        assert_eq!(none(false), planned(&[0], &[1], false));
        assert_eq!(none(true), planned(&[], &[0, 1], false));
    }
}
