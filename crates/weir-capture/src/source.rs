//! What every engine is to the rest: something that fills rings and accounts for each frame.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use weir_filter::block::{BlockList, Entry, Full};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_frame::record::{CAPLEN_MAX, Flags};
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Waker;
use weir_ring::{Clock, Ledger, Mapping, Ring, RingSpec, WriterKind};

use crate::error::CaptureError;
use crate::feed::block_lists::BlockLists;
use crate::feed::{FEEDS_MAX, Feed, Filter};

/// Which way frames go, as seen from the machine that captures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Direction {
    /// Received.
    In,
    /// Sent.
    Out,
    /// Either.
    #[default]
    Both,
}

impl Direction {
    /// Whether received frames are wanted.
    #[must_use]
    pub fn takes_in(self) -> bool {
        self != Direction::Out
    }

    /// Whether sent frames are wanted.
    #[must_use]
    pub fn takes_out(self) -> bool {
        self != Direction::In
    }

    /// Both ways that either of the two takes.
    #[must_use]
    pub fn and(self, other: Direction) -> Direction {
        if self == other { self } else { Direction::Both }
    }

    /// Whether a frame with these flags goes this way. One that does not say goes neither.
    #[must_use]
    #[inline]
    pub fn takes(self, flags: Option<Flags>) -> bool {
        // The direction is the low two bits: 1 in, 2 out, 0 unknown.
        let way = flags.map_or(0, |flags| flags.0 & 3);
        match self {
            Direction::Both => true,
            Direction::In => way == Flags::INBOUND.0,
            Direction::Out => way == Flags::OUTBOUND.0,
        }
    }
}

/// What is asked of a source, whatever its engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The run's interfaces by id, as far as this source's own, of which each feed has one. The engine fills
    /// in what only it knows of those (link type).
    pub interfaces: Vec<Interface>,
    /// What is wanted of the source: one feed or more, at most [`FEEDS_MAX`].
    pub feeds: Vec<Feed>,
    /// Bytes of all rings of one feed together.
    pub ring_bytes: u64,
    /// Ask the interface for frames that are not addressed to it.
    pub promiscuous: bool,
    /// What feeds choose may be changed while they run ([`Source::change`]), which costs a look for each frame.
    pub may_change: bool,
}

/// What of a feed changes while it runs.
#[derive(Clone, Debug)]
pub enum Change {
    /// Its filter. Every frame is judged by the old one or by the new one.
    Filter(Option<Arc<Filter>>),
    /// Its block list: entries that leave it, and entries that come. Not one changes if any cannot.
    Block {
        /// To be blocked no more; those that are not there make no difference.
        remove: Vec<Entry>,
        /// To be blocked, too.
        add: Vec<Entry>,
    },
}

/// Most that an engine of [`Kind::Buffered`] keeps beside its rings.
pub(crate) const BUFFER_BYTES_MAX: u64 = 32 << 20;

/// What a source is, as far as its memory goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A file or made-up frames.
    Offline,
    /// A ring for each CPU.
    Bpf,
    /// One ring, and the kernel's or a library's buffer beside it: `af_packet`, `pcap`.
    Buffered,
    /// A ring for each queue, and DPDK's buffers beside them (`dpdk::kind`).
    Dpdk {
        /// RX queues.
        queues: u32,
        /// Bytes of all mbufs.
        buffer_bytes: u64,
    },
    /// A ring for each copier of each queue, and sockets with memory of their own ([`af_xdp::kind`]).
    ///
    /// [`af_xdp::kind`]: crate::engines::af_xdp::kind
    AfXdp {
        /// RX queues.
        queues: u32,
        /// Copiers of each.
        copiers: u32,
    },
    /// An interface, by whichever engine works.
    Live,
}

/// Fewest and most MiB of one ring.
const RING_MIB_MIN: u64 = weir_ring::geometry::DATA_BLOCKS_MIN;
const RING_MIB_MAX: u64 = weir_ring::geometry::DATA_BLOCKS_MAX;

impl Setup {
    /// Data blocks of each of `rings` rings: the largest power of two that keeps within `ring_bytes`.
    ///
    /// # Errors
    /// [`CaptureError::RingTooSmall`] and [`CaptureError::RingTooLarge`] with the size that would do.
    pub fn data_blocks(&self, rings: u64) -> Result<u64, CaptureError> {
        let mib = self.ring_bytes >> 20;
        let share = mib / rings;
        if share < RING_MIB_MIN {
            let least_mib = RING_MIB_MIN * rings;
            return Err(CaptureError::RingTooSmall { asked_mib: mib, rings, least_mib });
        }
        if share > RING_MIB_MAX {
            let most_mib = RING_MIB_MAX * rings;
            return Err(CaptureError::RingTooLarge { asked_mib: mib, rings, most_mib });
        }
        Ok(1 << share.ilog2())
    }

    /// Most memory that a source takes, of whose `feeds` feeds each has rings of `ring_bytes`: an index of 1 MiB for
    /// each ring, and what the kernel or a library keeps for the engine.
    #[must_use]
    pub fn memory(ring_bytes: u64, feeds: u64, kind: Kind) -> u64 {
        let index = feeds.saturating_mul(u64::from(weir_ring::geometry::BLOCK_BYTES));
        let ring_bytes = ring_bytes.saturating_mul(feeds);
        let least = crate::engines::bpf::least_ring_bytes();
        let bpf = index * (least / (RING_MIB_MIN << 20));
        // As much for both: af_packet.rs, pcap.rs.
        let buffered = index + BUFFER_BYTES_MAX;
        ring_bytes.saturating_add(match kind {
            Kind::Offline => index,
            Kind::Bpf => bpf,
            Kind::Buffered => buffered,
            Kind::Dpdk { queues, buffer_bytes } => {
                u64::from(queues).saturating_mul(index).saturating_add(buffer_bytes)
            }
            Kind::AfXdp { queues, copiers } => {
                let rings = u64::from(queues) * u64::from(copiers);
                rings
                    .saturating_mul(index)
                    .saturating_add(crate::engines::af_xdp::buffer_bytes_max(queues))
            }
            Kind::Live => bpf.max(buffered),
        })
    }

    /// The spec of one of the `rings` rings of feed number `feed`.
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
        let data_blocks = self.data_blocks(rings)?;
        let interfaces = self.interfaces[..=self.feeds[feed].interface_id as usize].to_vec();
        Ok(RingSpec { data_blocks, interfaces, cpu, clock, writer })
    }

    /// Which frames are offered, those that any feed wants: the others are not counted, whatever the engine.
    #[must_use]
    pub fn direction(&self) -> Direction {
        let directions = self.feeds.iter().map(|feed| feed.direction);
        directions.reduce(Direction::and).unwrap_or_default()
    }

    /// Whether all feeds want the same direction.
    #[must_use]
    pub(crate) fn is_of_one_direction(&self) -> bool {
        self.feeds.iter().all(|feed| feed.direction == self.direction())
    }

    /// Most bytes that any feed keeps of a frame, as far as a record can hold them.
    #[must_use]
    pub(crate) fn caplen_max(&self) -> u32 {
        let longest = self.feeds.iter().map(|feed| feed.snaplen).max();
        longest.unwrap_or(CAPLEN_MAX).min(CAPLEN_MAX)
    }

    /// How much of a frame has to come to user space: what is kept, and what filters look at. A flow's hash may look
    /// behind any number of headers, and so may a filter that comes later.
    #[must_use]
    pub(crate) fn bytes_needed(&self) -> u32 {
        if self.may_change || self.feeds.iter().any(Feed::goes_by_flow) {
            return CAPLEN_MAX;
        }
        let filters = self.feeds.iter().filter_map(|feed| feed.filter.as_ref());
        let looked_at = filters.map(|filter| filter.program.reach()).max().unwrap_or(0);
        self.caplen_max().max(looked_at.min(CAPLEN_MAX))
    }

    /// For an engine that does not know a frame's RX queue.
    ///
    /// # Errors
    /// [`CaptureError::Options`] if a feed goes by it.
    pub(crate) fn refuse_queues(&self, engine: &str) -> Result<(), CaptureError> {
        if self.feeds.iter().all(|feed| feed.queue.is_none()) {
            return Ok(());
        }
        Err(CaptureError::Options(format!(
            "@q: {engine} does not know which queue a frame came from; take --engine bpf, or af_xdp with --queues"
        )))
    }

    /// For an engine whose frames go one way only: every feed gets them all.
    pub(crate) fn ignore_direction(&mut self) {
        self.feeds.iter_mut().for_each(|feed| feed.direction = Direction::Both);
    }

    /// What no engine can do.
    ///
    /// # Errors
    /// [`CaptureError::Options`].
    pub(crate) fn check(&self) -> Result<(), CaptureError> {
        let wrong = |text: String| Err(CaptureError::Options(text));
        if self.feeds.iter().any(|feed| feed.snaplen == 0) {
            let text = "--snaplen 0 keeps nothing; leave it out for whole frames, or use 1 or more (14 keeps the Ethernet header)";
            return wrong(text.into());
        }
        let feeds = self.feeds.len();
        if feeds > FEEDS_MAX {
            return wrong(format!("{feeds} feeds: a source has {FEEDS_MAX} at most"));
        }
        let has_interface = |feed: &Feed| (feed.interface_id as usize) < self.interfaces.len();
        assert!(feeds > 0 && self.feeds.iter().all(has_interface), "an interface for every feed");
        Ok(())
    }

    /// The same for some of its feeds.
    pub(crate) fn of_feeds(&self, feeds: Vec<Feed>) -> Setup {
        Setup { feeds, ..self.clone() }
    }

    /// Sets the link type of the source's own interfaces.
    ///
    /// # Errors
    /// A filter that was compiled for another one.
    pub(crate) fn set_link_type(&mut self, link_type: u16) -> Result<(), CaptureError> {
        for feed in &self.feeds {
            self.interfaces[feed.interface_id as usize].link_type = link_type;
        }
        if link_type != LINKTYPE_ETHERNET && self.feeds.iter().any(Feed::goes_by_flow) {
            return Err(CaptureError::Options(format!(
                "shards and samples of flows are of Ethernet frames only, and these have link type {link_type}"
            )));
        }
        let mut filters = self.feeds.iter().filter_map(|feed| feed.filter.as_ref());
        if let Some(filter) = filters.find(|filter| filter.link_type != link_type) {
            return Err(CaptureError::Options(format!(
                "the filter '{}' was compiled for link type {}, and the frames have {link_type}",
                filter.text, filter.link_type
            )));
        }
        Ok(())
    }
}

/// What a source says about itself, once it is open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// As the user named it: `eth0`, `file:trace.pcapng`.
    pub source: String,
    /// The engine's name.
    pub engine: &'static str,
    /// Where in the kernel frames are taken, if in the kernel: `tc`, `xdp`, `xdp-generic`, `socket`.
    pub hook: Option<&'static str>,
    /// Why this engine and this hook.
    pub why: String,
    /// Things the user should know: what this engine cannot see here, and the remedy.
    pub notes: Vec<String>,
    /// Where each feed's frames are chosen, feed by feed.
    pub homes: Vec<FilterLocation>,
}

/// Where a feed's frames are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FilterLocation {
    /// There is nothing to choose.
    #[default]
    Nowhere,
    /// In the kernel, at the hook.
    Hook,
    /// There, too, by a classic BPF program, which cannot count what it leaves out.
    Classic,
    /// In user space, by machine code.
    Compiled,
    /// In user space, step by step.
    Interpreted,
}

impl FilterLocation {
    /// As reports have it.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        match self {
            FilterLocation::Nowhere => None,
            FilterLocation::Hook => Some("hook"),
            FilterLocation::Classic => Some("hook, classic"),
            FilterLocation::Compiled => Some("user space, compiled"),
            FilterLocation::Interpreted => Some("user space, interpreted"),
        }
    }
}

/// A block list with these changes; it is as it was if there is no room for them.
pub(crate) fn change_list(
    list: &mut BlockList,
    remove: &[Entry],
    add: &[Entry],
) -> Result<(), Full> {
    let gone: Vec<Entry> = remove.iter().filter(|entry| list.remove(entry)).copied().collect();
    let mut come = Vec::new();
    for entry in add {
        match list.add(*entry) {
            Ok(true) => come.push(*entry),
            Ok(false) => {}
            Err(full) => {
                come.iter().for_each(|entry| _ = list.remove(entry));
                for entry in gone {
                    list.add(entry).expect("it was there before");
                }
                return Err(full);
            }
        }
    }
    Ok(())
}

/// Takes over the counts that the writers of a feed's rings keep: what went in.
pub(crate) fn count_written(ledger: &mut Ledger, rings: &[Ring<Mapping>]) {
    let sum = |word| rings.iter().map(|ring| ring.writer_word(word)).sum();
    ledger.captured = sum(WriterWord::Ordinal);
    ledger.kept_bytes = sum(WriterWord::KeptBytes);
    ledger.wire_bytes = sum(WriterWord::WireBytes);
    ledger.super_frames = sum(WriterWord::SuperFrames);
}

/// What a turn of [`Source::pump`] came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pumped {
    /// There may be more.
    More,
    /// The source is at its end: a file read to the end, a count reached.
    Ended,
}

/// A source of frames, opened by one engine: fills rings, wakes sleepers, keeps the ledger.
///
/// One thread owns it. Open, [`start`](Source::start), [`pump`](Source::pump) until told to stop or
/// `Ended`, then [`stop`](Source::stop); dropping it undoes whatever it attached.
pub trait Source: Send {
    /// Engine, hook and reasons.
    fn info(&self) -> &Info;

    /// The rings it fills: of each feed one, or as many as threads or CPUs write; those of the first feed
    /// first, and all feeds have as many. Readers may attach before `start`.
    fn rings(&self) -> &[Ring<Mapping>];

    /// An eventfd that sleepers signal after a new threshold, where the writer cannot look by itself.
    fn notify_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A sleeper to wake; the source's first ring is the sleeper's ring number `first`.
    ///
    /// # Errors
    /// If there are no descriptors left for those who wake it.
    fn add_waker(&mut self, waker: Waker, first: usize) -> Result<(), CaptureError>;

    /// Begins: from here on frames are offered.
    ///
    /// # Errors
    /// Whatever keeps the engine from attaching.
    fn start(&mut self) -> Result<(), CaptureError>;

    /// Moves frames, wakes sleepers, follows the clock; returns after about `limit` at the latest.
    ///
    /// # Errors
    /// [`CaptureError::Vanished`] and other ends that the user must hear of. The source can still be
    /// stopped, and its ledger read.
    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError>;

    /// The ledgers so far, feed by feed. While frames come, their counts are not of one instant.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn ledgers(&mut self) -> Result<Vec<Ledger>, CaptureError>;

    /// All feeds together: a frame that is offered to two of them counts twice.
    ///
    /// # Errors
    /// As [`ledgers`](Source::ledgers).
    fn ledger(&mut self) -> Result<Ledger, CaptureError> {
        Ok(of_all_feeds(&self.ledgers()?))
    }

    /// What changes its feeds' block lists from any thread; `None` where only [`change`](Source::change) does.
    fn lists(&self) -> Option<BlockLists> {
        None
    }

    /// Changes what feed number `feed` chooses, of a source whose [`Setup::may_change`] was set. It holds for every
    /// frame that comes after this returns.
    ///
    /// # Errors
    /// If the place where this feed's frames are chosen cannot do it; nothing has changed then.
    fn change(&mut self, feed: usize, change: Change) -> Result<(), CaptureError>;

    /// Stops the offering, drains what is under way into the rings and closes them. From here on the ledgers are
    /// exact to the frame; gives that of all feeds together.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn stop(&mut self) -> Result<Ledger, CaptureError>;
}

/// The feeds of one source together.
pub(crate) fn of_all_feeds(ledgers: &[Ledger]) -> Ledger {
    let mut total = Ledger::default();
    ledgers.iter().for_each(|ledger| total.add(ledger));
    // Of the source, and told to each of them.
    total.missed_before = ledgers.first().and_then(|ledger| ledger.missed_before);
    total
}

/// The sleepers of a source.
#[derive(Debug, Default)]
pub struct Wakers {
    wakers: Vec<(Waker, usize)>,
}

impl Wakers {
    /// The same sleepers, for another thread that writes other rings of the source.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> Result<Wakers, weir_ring::RingError> {
        let clone = |(waker, first): &(Waker, usize)| Ok((waker.try_clone()?, *first));
        Ok(Wakers { wakers: self.wakers.iter().map(clone).collect::<Result<_, _>>()? })
    }

    /// Adds a sleeper whose lines for this source begin at `first`.
    pub fn add(&mut self, waker: Waker, first: usize) {
        self.wakers.push((waker, first));
    }

    /// After publishing: wakes whoever waits for no more than `ordinal` frames in the source's ring
    /// number `ring`.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for (waker, first) in &mut self.wakers {
            waker.wake_if_due(*first + ring, ordinal);
        }
    }

    /// The lowest threshold for ring number `ring` that `ordinal` does not fulfil.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let thresholds =
            self.wakers.iter().map(|(waker, first)| waker.wake_threshold(*first + ring));
        thresholds
            .filter(|&threshold| threshold > ordinal)
            .min()
            .unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Wakes everybody: the rings are closed.
    pub fn wake_all(&self) {
        for (waker, _) in &self.wakers {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(ring_mib: u64) -> Setup {
        Setup {
            interfaces: vec![Interface::default()],
            feeds: vec![Feed::default()],
            ring_bytes: ring_mib << 20,
            promiscuous: true,
            may_change: false,
        }
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
    fn memory_is_more_than_the_rings() {
        let more = |kind| Setup::memory(64 << 20, 1, kind) - (64 << 20);
        assert_eq!(more(Kind::Offline), 1 << 20);
        assert_eq!(more(Kind::Buffered), 33 << 20);
        assert_eq!(more(Kind::Bpf) * 4, crate::engines::bpf::least_ring_bytes());
        assert_eq!(more(Kind::Live), more(Kind::Bpf).max(more(Kind::Buffered)));
        assert_eq!(more(Kind::AfXdp { queues: 1, copiers: 1 }), more(Kind::Buffered));
        assert_eq!(more(Kind::AfXdp { queues: 4, copiers: 3 }), (12 + 32) << 20);
        // Each queue has 128 chunks, however many queues there are.
        assert_eq!(more(Kind::AfXdp { queues: 128, copiers: 1 }), (128 + 64) << 20);
        assert_eq!(more(Kind::Dpdk { queues: 20, buffer_bytes: 40 << 20 }), (20 + 40) << 20);
        assert_eq!(Setup::memory(u64::MAX, 1, Kind::Live), u64::MAX);
        assert_eq!(Setup::memory(64 << 20, 3, Kind::Buffered), (3 * 65 + 32) << 20);
        let absurd = Kind::AfXdp { queues: u32::MAX, copiers: u32::MAX };
        assert_eq!(Setup::memory(64 << 20, 1, absurd), u64::MAX);
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
