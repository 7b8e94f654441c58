//! Feeds: selections of a source's frames for subscribers, and how they are filled.

pub mod change;
pub(crate) mod channel_poll;
pub mod control;
pub(crate) mod counts;
pub mod direction;
pub(crate) mod fanout;
pub(crate) mod feeds;
pub(crate) mod filters;
pub mod interfaces;
pub mod location;
pub mod pace;
mod update_queue;
pub mod wakers;

use std::fmt;
use std::num::NonZero;
use std::sync::Arc;

use weir_filter::Program;
use weir_frame::pcapng::Interface;
use weir_frame::record::CAPLEN_MAX;
use weir_frame::shard::{Sample, Shard};

use crate::feed::direction::Direction;

pub use crate::limits::FEEDS_MAX;
pub use fanout::Fanout;
pub use feeds::Feeds;

/// One feed: a selection of a source's frames, and how much of each is kept.
#[derive(Clone, Debug)]
pub struct Feed {
    /// The feed's name; empty if the source has only this feed.
    pub name: String,
    /// The interface that its rings describe. The engine sets the link type.
    pub interface: Interface,
    /// The filter; `None` takes all frames.
    pub filter: Option<Arc<Filter>>,
    /// Most bytes kept of a frame, 1 or more.
    pub snaplen: u32,
    /// The direction of its frames.
    pub direction: Direction,
    /// The shard of the flows that it takes.
    pub shard: Shard,
    /// The RX queue of its frames; `None` takes the frames of all queues. Only engines that know a frame's queue
    /// support it.
    pub queue: Option<u32>,
    /// Sampling of the frames that the fields above select.
    pub sampling: Sampling,
    /// Whether its rings must be sealed memory instead of BPF maps: for readers that may load BPF programs,
    /// which could write to a map.
    pub is_sealed: bool,
}

impl Default for Feed {
    /// Creates a feed that takes all frames, whole.
    fn default() -> Self {
        Feed {
            name: String::new(),
            interface: Interface::default(),
            filter: None,
            snaplen: CAPLEN_MAX,
            direction: Direction::Both,
            shard: Shard::WHOLE,
            queue: None,
            sampling: Sampling::All,
            is_sealed: false,
        }
    }
}

impl Feed {
    /// Returns whether the feed selects by the hash of the flow.
    pub(crate) fn goes_by_flow(&self) -> bool {
        self.shard != Shard::WHOLE || matches!(self.sampling, Sampling::FlowsOneIn(_))
    }

    /// Returns whether the feed takes every frame of its direction.
    pub(crate) fn takes_all(&self) -> bool {
        self.filter.is_none()
            && self.shard == Shard::WHOLE
            && self.queue.is_none()
            && self.sampling == Sampling::All
    }

    /// Returns whether both feeds take the same frames with the same snaplen, and need the same kind of memory.
    #[must_use]
    pub fn is_like(&self, other: &Feed) -> bool {
        let program = |feed: &Feed| feed.filter.as_ref().map(|filter| filter.program.clone());
        let rest =
            |feed: &Feed| (feed.snaplen, feed.direction, feed.shard, feed.queue, feed.sampling);
        let is_as_sealed = self.is_sealed == other.is_sealed;
        is_as_sealed && rest(self) == rest(other) && program(self) == program(other)
    }
}

/// A filter: the user's text, and the compiled program.
#[derive(Clone, PartialEq, Eq)]
pub struct Filter {
    /// The text, as it was written.
    pub text: String,
    /// The link type that it was compiled for, as in pcapng.
    pub link_type: u16,
    /// The compiled filter.
    pub program: Program,
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({:?})", self.text)
    }
}

/// Selects the frames that are kept, among those that pass the filter.
///
/// Source: RFC 5475, sections 5.1 (systematic count-based sampling) and 6.2 (hash-based selection).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sampling {
    /// All frames.
    #[default]
    All,
    /// The first of each N frames, counted separately for each ring.
    OneIn(u32),
    /// All frames of one flow in N, in both directions.
    FlowsOneIn(NonZero<u32>),
}

impl Sampling {
    /// Returns N if one in N frames is kept: 1 or more.
    pub(crate) fn one_in(self) -> u32 {
        match self {
            Sampling::All | Sampling::FlowsOneIn(_) => 1,
            Sampling::OneIn(count) => count.max(1),
        }
    }

    /// Returns N if one in N flows is kept: 1 or more.
    pub(crate) fn flows_one_in(self) -> u32 {
        match self {
            Sampling::All | Sampling::OneIn(_) => 1,
            Sampling::FlowsOneIn(count) => count.get(),
        }
    }
}

/// The state of a feed's sampling for one ring.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sampler {
    one_in: u32,
    flows: Option<Sample>,
    /// Number of frames to exclude before the next one is kept.
    left: u32,
}

impl Sampler {
    pub(crate) fn new(sampling: Sampling) -> Sampler {
        let flows = match sampling {
            Sampling::FlowsOneIn(one_in) => Some(Sample { one_in }),
            Sampling::All | Sampling::OneIn(_) => None,
        };
        Sampler { one_in: sampling.one_in(), flows, left: 0 }
    }

    /// Decides whether the next frame is kept, and advances the count.
    #[inline]
    pub(crate) fn takes(&mut self, flow_hash: u64) -> bool {
        if self.flows.is_some_and(|flows| !flows.takes(flow_hash)) {
            return false;
        }
        if self.left > 0 {
            self.left -= 1;
            return false;
        }
        self.left = self.one_in - 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_in_n_is_the_first_of_each_n() {
        let mut sampler = Sampler::new(Sampling::OneIn(3));
        let kept: Vec<bool> = (0..7).map(|_| sampler.takes(0)).collect();
        assert_eq!(kept, [true, false, false, true, false, false, true]);
        let mut all = Sampler::new(Sampling::All);
        assert!((0..5).all(|_| all.takes(0)));
    }

    #[test]
    fn feeds_are_alike_whatever_their_names() {
        let program = |k| weir_filter::Program::new([weir_filter::Insn::new(6, k)]).unwrap();
        let filter = |text: &str, k| {
            Some(Arc::new(Filter { text: text.into(), link_type: 1, program: program(k) }))
        };
        let web = Feed { name: "web".into(), filter: filter("tcp", 1), ..Feed::default() };
        let same = Feed { name: "also".into(), filter: filter(" tcp ", 1), ..Feed::default() };
        assert!(web.is_like(&same));
        assert!(!web.is_like(&Feed { filter: filter("tcp", 2), ..web.clone() }));
        assert!(!web.is_like(&Feed { snaplen: 64, ..web.clone() }));
        assert!(!web.is_like(&Feed { sampling: Sampling::OneIn(2), ..web.clone() }));
        assert!(!web.is_like(&Feed { filter: None, ..web.clone() }));
    }
}
