//! The memory that a run needs, and the check that it is free.

use anyhow::{Result, bail};
use weir_capture::generator::{GenSpec, Rate};
use weir_capture::memory_limit;
use weir_frame::record::{Meta, record_bytes};
use weir_ring::geometry::BLOCK_BYTES;
use weir_ring::memory::{HUGE_PAGE_BYTES, Pages};

use super::{CapturePlan, FeedPlan, PlannedSource};
use crate::source_name::SourceName;
use crate::units::grouped;

/// Default size of the rings of a feed: about 50 ms of traffic at 10 Gbit/s.
const DEFAULT: u64 = 64 << 20;

/// Returns the size of a feed's rings in bytes: the requested size, or a default that gives every CPU its minimum.
///
/// A single file waits for its readers, so its rings need not buffer frames during a reader's pause, and are small
/// enough to stay in a cache. With several files, the rings of each must buffer frames during the pauses of the others,
/// or frames would be merged out of order. If feeds may change, rings must buffer frames until a reader joins.
///
/// Frames that are generated at full speed come ten times as fast as those of a link, and fill 64 MiB in 6 ms. The
/// kernel may give the consumer's CPU to another program for 4 ms at a time.
pub(super) fn ring_bytes(
    asked: Option<u64>,
    sources: &[PlannedSource],
    feeds: &FeedPlan,
    feeds_may_change: bool,
) -> u64 {
    const DEFAULT_OF_ONE_FILE: u64 = 8 << 20;
    const DEFAULT_OF_FULL_SPEED: u64 = 256 << 20;
    match (asked, sources) {
        (Some(asked), _) => asked,
        (None, [only]) if only.request.options.waits && !feeds_may_change => DEFAULT_OF_ONE_FILE,
        (None, [only])
            if feeds.named.len() <= 1
                && !feeds_may_change
                && goes_at_full_speed(&only.name)
                && memory_limit::free()
                    .is_none_or(|free| free.bytes > 4 * DEFAULT_OF_FULL_SPEED) =>
        {
            DEFAULT_OF_FULL_SPEED
        }
        _ => DEFAULT.max(weir_capture::bpf::least_ring_bytes()),
    }
}

/// Returns whether a source is a generator without a rate limit that generates more frames than fit into a default
/// ring.
fn goes_at_full_speed(name: &SourceName) -> bool {
    let SourceName::Gen(text) = name else { return false };
    text.parse::<GenSpec>().is_ok_and(|spec| {
        let record = record_bytes(&Meta::default(), spec.frame_bytes() as u32);
        let bytes_of = |frames: u64| frames.saturating_mul(u64::from(record));
        spec.rate == Rate::Max && spec.frames.is_none_or(|frames| bytes_of(frames) > DEFAULT)
    })
}

/// Returns the size of the rings of all feeds together; `None` if a daemon decides on some of them.
pub(super) fn rings_bytes(
    ring_bytes: u64,
    sources: &[PlannedSource],
    feeds: &FeedPlan,
) -> Option<u64> {
    if sources.iter().any(|source| source.name.is_of_daemon()) {
        return None;
    }
    let count: u64 = sources.iter().map(|source| feeds_of(source, feeds)).sum();
    Some(ring_bytes.saturating_mul(count))
}

/// Returns the number of feeds of a source.
fn feeds_of(source: &PlannedSource, feeds: &FeedPlan) -> u64 {
    (feeds.named.len().max(1) * source.parts.len()) as u64
}

/// Refuses rings that do not fit into the free memory: the kernel would allocate them, and other programs would run out
/// of memory.
pub(super) fn check(plan: &CapturePlan) -> Result<()> {
    let named = plan.feeds.named.len().max(1) as u64;
    let changes = plan.control.is_some();
    // Frames of a derived feed are copied in user space from the rings of one additional feed. A feed is derived if the
    // hook has no place for it, or if the kernel does not accept its filter. All feeds may be derived.
    let derives = plan.feeds.are_filtered() || changes;
    let fronts = if changes { (named << 18) + (8 << 20) } else { 0 };
    let feeds_of = |source: &PlannedSource| feeds_of(source, &plan.feeds);
    let need = |source: &PlannedSource| {
        if source.name.is_of_daemon() {
            return 0;
        }
        let feeds = feeds_of(source) + u64::from(derives);
        let memory = source.request.memory(&source.target);
        memory.total_bytes(plan.ring_bytes, feeds).saturating_add(fronts)
    };
    let mut wanted = plan.sources.iter().map(need).fold(0, u64::saturating_add);
    if plan.ring_pages == Pages::Reserved {
        // The rings from which derived feeds are copied are not included: rings of BPF programs are never in reserved
        // huge pages.
        let pages = |source: &PlannedSource| {
            let rings = source.request.memory(&source.target).rings;
            let each = (plan.ring_bytes / rings.max(1)).saturating_add(u64::from(BLOCK_BYTES));
            feeds_of(source).saturating_mul(rings).saturating_mul(each.div_ceil(HUGE_PAGE_BYTES))
        };
        let pages = plan.sources.iter().map(pages).fold(0, u64::saturating_add);
        check_huge_pages(pages)?;
        // The remainder is ordinary memory.
        wanted = wanted.saturating_sub(pages.saturating_mul(HUGE_PAGE_BYTES));
    }
    let free = memory_limit::free().filter(|free| wanted > free.bytes);
    let Some(free) = free else { return Ok(()) };
    let (wanted, bytes) = (grouped(wanted >> 20), grouped(free.bytes >> 20));
    match free.limit {
        None => bail!(
            "--ring-size: rings and their buffers take {wanted} MiB, more than the {bytes} MiB of memory \
             that are free here; ask for less"
        ),
        Some(limit) => bail!(
            "--ring-size: rings and their buffers take {wanted} MiB, more than the {bytes} MiB that {} \
             leaves free here; ask for less, or raise that limit",
            limit.display()
        ),
    }
}

/// Refuses rings that do not fit into the free reserved huge pages.
fn check_huge_pages(pages: u64) -> Result<()> {
    let Some(free) = memory_limit::free_huge_pages() else {
        bail!("--hugepages: this kernel has no huge pages of 2 MiB; leave it out")
    };
    if free < pages {
        bail!(
            "--hugepages: the rings take {pages} huge pages of 2 MiB, and {free} are free; reserve more \
             (`sysctl -w vm.nr_hugepages={}`), ask for less with --ring-size, or leave --hugepages out: rings are in \
             huge pages then, too, where the kernel finds some",
            memory_limit::huge_pages().unwrap_or_default() + pages - free
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_generator_that_nothing_holds_back_has_more_than_a_link() {
        let of = |text: &str| goes_at_full_speed(&text.parse().unwrap());
        assert!(of("gen:size=64") && of("gen:size=1518,frames=100000"));
        for held in ["gen:size=64,rate=1Mpps", "gen:size=64,frames=100000", "eth0", "file:a"] {
            assert!(!of(held), "{held}");
        }
    }
}
