//! Requirements for a source, for any engine: feeds, memory, possible changes.

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::record::CAPLEN_MAX;
use weir_ring::memory::{Pages, Placement};
use weir_ring::{Clock, RingSpec, WriterKind};

use crate::error::CaptureError;
use crate::feed::direction::Direction;
use crate::feed::{FEEDS_MAX, Feed};
use crate::kernel::netns::{Owner, OwnerFinder};

/// Settings of a source, for any engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Feeds of the source: at least one, at most [`FEEDS_MAX`].
    pub feeds: Vec<Feed>,
    /// Total size of the rings of one feed.
    pub ring_bytes: u64,
    /// Pages of the rings. The rings of a BPF program are a BPF map, whose pages the kernel chooses.
    pub ring_pages: Pages,
    /// The NUMA node of the rings. `None`: that of the thread that makes them.
    pub ring_node: Option<u32>,
    /// If `ring_node` is `None`, put the rings of an interface on the node of its NIC, if the firmware
    /// reports that node.
    pub near_nic: bool,
    /// Ask the interface for frames that are not addressed to it.
    pub promiscuous: bool,
    /// Feeds may be added and changed while the source runs ([`FeedControl`](crate::FeedControl)). User
    /// space then gets whole frames, whatever the snaplen of the first feeds.
    pub may_change: bool,
    /// Offer frames of both directions, even if the first feeds select only one: a later feed may select
    /// the other.
    pub both_directions: bool,
    /// The source is a daemon's, whose clients choose neither engine nor hook: its notes recommend no flags.
    pub is_for_clients: bool,
    /// Finds the owner of an interface's frames, such as a container.
    pub owner_finder: Option<OwnerFinder>,
    /// The owner, if one was found, for a source with one interface.
    pub owner: Option<Owner>,
}

/// Smallest and largest size of one ring, in MiB.
const RING_MIB_MIN: u64 = weir_ring::geometry::DATA_BLOCKS_MIN;
const RING_MIB_MAX: u64 = weir_ring::geometry::DATA_BLOCKS_MAX;

/// One feed that takes all frames, and 64 MiB for its rings.
impl Default for Setup {
    fn default() -> Setup {
        Setup {
            feeds: vec![Feed::default()],
            ring_bytes: 64 << 20,
            ring_pages: Pages::Now,
            ring_node: None,
            near_nic: true,
            promiscuous: true,
            may_change: false,
            both_directions: false,
            is_for_clients: false,
            owner_finder: None,
            owner: None,
        }
    }
}

impl Setup {
    /// Returns the memory placement of rings that user space allocates.
    pub(crate) fn placement(&self) -> Placement {
        Placement { pages: self.ring_pages, node: self.ring_node }
    }

    /// Returns the number of data blocks of each of `rings` rings: the largest power of two for which all of them fit
    /// into `ring_bytes`.
    ///
    /// # Errors
    /// [`CaptureError::RingTooSmall`] and [`CaptureError::RingTooLarge`] with a size that is possible.
    pub fn data_blocks(&self, rings: u64) -> Result<u64, CaptureError> {
        let mib = self.ring_bytes >> 20;
        let share = mib / rings;
        if share < RING_MIB_MIN {
            let least_mib = RING_MIB_MIN * rings;
            let asked_bytes = self.ring_bytes;
            return Err(CaptureError::RingTooSmall { asked_bytes, rings, least_mib });
        }
        if share > RING_MIB_MAX {
            let most_mib = RING_MIB_MAX * rings;
            return Err(CaptureError::RingTooLarge { asked_mib: mib, rings, most_mib });
        }
        Ok(1 << share.ilog2())
    }

    /// Returns the spec of one of the `rings` rings of feed number `feed`.
    ///
    /// # Errors
    /// As [`data_blocks`](Setup::data_blocks).
    pub fn ring_spec(
        &self,
        feed: usize,
        rings: u64,
        cpu: Option<u32>,
        clock: Clock,
        writer: WriterKind,
    ) -> Result<RingSpec, CaptureError> {
        self.ring_spec_of(&self.feeds[feed], rings, cpu, clock, writer)
    }

    /// Returns the spec of one of the `rings` rings of a feed.
    ///
    /// # Errors
    /// As [`data_blocks`](Setup::data_blocks).
    pub(crate) fn ring_spec_of(
        &self,
        feed: &Feed,
        rings: u64,
        cpu: Option<u32>,
        clock: Clock,
        writer: WriterKind,
    ) -> Result<RingSpec, CaptureError> {
        let data_blocks = self.data_blocks(rings)?;
        // The other feeds' interfaces are not included: a client that may read only this feed must not learn of others.
        let interfaces = vec![feed.interface.clone()];
        Ok(RingSpec { data_blocks, interfaces, cpu, clock, writer })
    }

    /// Returns the direction of the offered frames: those that any feed wants. No engine counts other frames.
    #[must_use]
    pub fn direction(&self) -> Direction {
        if self.both_directions {
            return Direction::Both;
        }
        let directions = self.feeds.iter().map(|feed| feed.direction);
        directions.reduce(Direction::and).unwrap_or_default()
    }

    /// Returns whether all feeds want the same direction.
    #[must_use]
    pub(crate) fn is_of_one_direction(&self) -> bool {
        self.feeds.iter().all(|feed| feed.direction == self.direction())
    }

    /// Returns the largest snaplen of all feeds, at most the caplen that a record can hold.
    #[must_use]
    pub(crate) fn caplen_max(&self) -> u32 {
        let longest = self.feeds.iter().map(|feed| feed.snaplen).max();
        longest.unwrap_or(CAPLEN_MAX).min(CAPLEN_MAX)
    }

    /// Returns the number of bytes of a frame that user space needs: those that are kept, and those that filters read.
    /// The flow hash may read behind any number of headers, and so may the filter of a later feed.
    #[must_use]
    pub(crate) fn bytes_needed(&self) -> u32 {
        if self.may_change || self.feeds.iter().any(Feed::goes_by_flow) {
            return CAPLEN_MAX;
        }
        let filters = self.feeds.iter().filter_map(|feed| feed.filter.as_ref());
        let looked_at = filters.map(|filter| filter.program.reach()).max().unwrap_or(0);
        self.caplen_max().max(looked_at.min(CAPLEN_MAX))
    }

    /// Returns whether some feed has a filter, or may get one.
    #[must_use]
    pub(crate) fn may_have_filters(&self) -> bool {
        self.may_change || self.feeds.iter().any(|feed| feed.filter.is_some())
    }

    /// Refuses feeds that select by queue, for an engine that does not know the RX queue of a frame.
    ///
    /// # Errors
    /// [`CaptureError::Options`] if a feed selects by queue.
    pub(crate) fn refuse_queues(&self, engine: &str) -> Result<(), CaptureError> {
        self.feeds.iter().try_for_each(|feed| refuse_queue(feed, engine))
    }

    /// Makes every feed take both directions, for an engine whose frames have only one direction or an unknown one.
    pub(crate) fn ignore_direction(&mut self) {
        self.feeds.iter_mut().for_each(|feed| feed.direction = Direction::Both);
    }

    /// Refuses settings that no engine supports.
    ///
    /// # Errors
    /// [`CaptureError::Options`].
    pub(crate) fn check(&self) -> Result<(), CaptureError> {
        let wrong = |text: String| Err(CaptureError::Options(text));
        self.feeds.iter().try_for_each(check_snaplen)?;
        let feeds = self.feeds.len();
        if feeds > FEEDS_MAX {
            return wrong(format!("{feeds} feeds: a source has {FEEDS_MAX} at most"));
        }
        assert!(feeds > 0, "a source without feeds");
        Ok(())
    }

    /// Returns the same settings with other feeds.
    pub(crate) fn of_feeds(&self, feeds: Vec<Feed>) -> Setup {
        Setup { feeds, ..self.clone() }
    }

    /// Sets the link type of the feeds' interfaces.
    ///
    /// # Errors
    /// [`CaptureError::Options`] if a filter was compiled for another link type.
    pub(crate) fn set_link_type(&mut self, link_type: u16) -> Result<(), CaptureError> {
        self.feeds.iter_mut().for_each(|feed| feed.interface.link_type = link_type);
        self.feeds.iter().try_for_each(|feed| check_link_type(feed, link_type))
    }

    /// Checks that feeds may join and change.
    ///
    /// # Errors
    /// [`CaptureError::Options`] if the setup says that they may not.
    pub(crate) fn check_changes(&self) -> Result<(), CaptureError> {
        if self.may_change {
            return Ok(());
        }
        Err(CaptureError::Options(
            "this source was not opened for feeds that join or change while it runs".to_owned(),
        ))
    }

    /// Finds the owner of this interface's frames, and describes it in the feeds' interfaces. Called by the
    /// thread that opens the source, in the interface's network namespace.
    pub(crate) fn find_owner(&mut self, iface: &str) {
        self.owner = self.owner_finder.as_ref().and_then(|finder| finder.find_one(iface));
        if let Some(owner) = &self.owner {
            self.feeds.iter_mut().for_each(|feed| owner.describe(&mut feed.interface));
        }
    }

    /// Checks a feed that is to be added or changed, for any engine, and sets its link type and its owner
    /// to those of the source.
    ///
    /// # Errors
    /// [`CaptureError::Options`].
    pub(crate) fn admit(&self, feed: &mut Feed) -> Result<(), CaptureError> {
        self.check_changes()?;
        check_snaplen(feed)?;
        if let Some(first) = self.feeds.first() {
            feed.interface.link_type = first.interface.link_type;
        }
        if let Some(owner) = &self.owner {
            owner.describe(&mut feed.interface);
        }
        check_link_type(feed, feed.interface.link_type)
    }

    /// Checks the direction of a feed that is to be added, for an engine that knows the direction of a frame and is
    /// offered only frames of direction `offered`.
    ///
    /// # Errors
    /// [`CaptureError::Options`] for a feed that also wants other frames.
    pub(crate) fn admit_direction(offered: Direction, feed: &Feed) -> Result<(), CaptureError> {
        if offered.and(feed.direction) == offered {
            return Ok(());
        }
        let one = if offered == Direction::In { "received" } else { "sent" };
        Err(CaptureError::Options(format!(
            "this source was opened for {one} frames only; open it with a feed of both directions"
        )))
    }
}

fn check_snaplen(feed: &Feed) -> Result<(), CaptureError> {
    if feed.snaplen > 0 {
        return Ok(());
    }
    Err(CaptureError::Options(
        "--snaplen 0 keeps nothing; leave it out for whole frames, or use 1 or more (14 keeps the Ethernet header)"
            .to_owned(),
    ))
}

/// Refuses a feed that selects by queue, for an engine that does not know the RX queue of a frame.
///
/// # Errors
/// [`CaptureError::Options`] if the feed selects by queue.
pub(crate) fn refuse_queue(feed: &Feed, engine: &str) -> Result<(), CaptureError> {
    if feed.queue.is_none() {
        return Ok(());
    }
    Err(CaptureError::Options(format!(
        "@q: {engine} does not know which queue a frame came from; the engine bpf knows it with some drivers, and \
         af_xdp captures from the queues that it is given (--queues)"
    )))
}

fn check_link_type(feed: &Feed, link_type: u16) -> Result<(), CaptureError> {
    if link_type != LINKTYPE_ETHERNET && feed.goes_by_flow() {
        return Err(CaptureError::Options(format!(
            "shards and samples of flows are of Ethernet frames only, and these have link type {link_type}"
        )));
    }
    match &feed.filter {
        Some(filter) if filter.link_type != link_type => Err(CaptureError::Options(format!(
            "the filter '{}' was compiled for link type {}, and the frames have {link_type}",
            filter.text, filter.link_type
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feed::Filter;

    fn setup(ring_mib: u64) -> Setup {
        Setup { ring_bytes: ring_mib << 20, ..Setup::default() }
    }

    #[test]
    fn a_short_snaplen_leaves_what_filters_look_at() {
        use weir_filter::insn::{LD_B_ABS, LD_B_IND, LDX_LEN, RET_A};
        use weir_filter::{Insn, Program};

        let mut setup = setup(64);
        let mut needed = |snaplen, insns: &[Insn]| {
            let program = Program::new([insns, &[Insn::new(RET_A, 0)]].concat()).unwrap();
            let filter = Filter { text: String::new(), link_type: LINKTYPE_ETHERNET, program };
            setup.feeds[0] = Feed { snaplen, filter: Some(filter.into()), ..Feed::default() };
            let needed = setup.bytes_needed();
            setup.may_change = true;
            assert_eq!(setup.bytes_needed(), CAPLEN_MAX, "the next filter may look anywhere");
            setup.may_change = false;
            needed
        };
        let protocol = [Insn::new(LD_B_ABS, 23)];
        assert_eq!([needed(10, &protocol), needed(100, &protocol)], [24, 100]);
        let anywhere = [Insn::new(LDX_LEN, 0), Insn::new(LD_B_IND, 0)];
        assert_eq!(needed(10, &anywhere), CAPLEN_MAX);
    }

    #[test]
    fn rings_share_the_size_and_never_exceed_it() {
        assert_eq!(setup(64).data_blocks(1).unwrap(), 64);
        assert_eq!(setup(64).data_blocks(2).unwrap(), 32);
        assert_eq!(setup(64).data_blocks(3).unwrap(), 16);
        assert_eq!(setup(100).data_blocks(1).unwrap(), 64);
    }

    #[test]
    fn a_share_below_four_blocks_says_what_would_do() {
        let error = setup(64).data_blocks(96).unwrap_err();
        assert!(error.to_string().contains("at least 384MiB"), "{error}");
        assert!(setup(0).data_blocks(1).is_err());
    }

    #[test]
    fn a_share_above_the_largest_ring_is_not_cut_in_silence() {
        assert_eq!(setup(16_384).data_blocks(2).unwrap(), 8192);
        let error = setup(16_384).data_blocks(1).unwrap_err();
        assert!(error.to_string().contains("at most 8192MiB"), "{error}");
    }
}
