//! What every engine is to the rest: something that fills rings and accounts for each frame.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use weir_frame::pcapng::Interface;
use weir_ring::geometry::WriterWord;
use weir_ring::wake::Bell;
use weir_ring::{Clock, Ledger, Mapping, Ring, RingSpec, WriterKind};

use crate::error::CaptureError;

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
}

/// What is asked of a source, whatever its engine.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The run's interfaces by id, up to and including this source's own, which is the last. The
    /// engine fills in what only it knows of its own (link type).
    pub interfaces: Vec<Interface>,
    /// Most bytes kept of a frame, 1 or more.
    pub snaplen: u32,
    /// Which frames are offered: the others are not counted, whatever the engine.
    pub direction: Direction,
    /// Bytes of all the source's rings together.
    pub ring_bytes: u64,
    /// Ask the interface for frames that are not addressed to it.
    pub promiscuous: bool,
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
    /// [`af_xdp::kind`]: crate::af_xdp::kind
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

    /// Most memory that a source takes whose rings are `ring_bytes` large: an index of 1 MiB for each
    /// ring, and what the kernel or a library keeps for the engine.
    #[must_use]
    pub fn memory(ring_bytes: u64, kind: Kind) -> u64 {
        let index = u64::from(weir_ring::geometry::BLOCK_BYTES);
        let least = crate::bpf::least_ring_bytes();
        let bpf = index * (least / (RING_MIB_MIN << 20));
        // As much for both: af_packet.rs, pcap.rs.
        let buffered = index + BUFFER_BYTES_MAX;
        ring_bytes.saturating_add(match kind {
            Kind::Offline => index,
            Kind::Bpf => bpf,
            Kind::Buffered => buffered,
            Kind::Dpdk { queues, buffer_bytes } => {
                (u64::from(queues) * index).saturating_add(buffer_bytes)
            }
            Kind::AfXdp { queues, copiers } => {
                let rings = u64::from(queues) * u64::from(copiers);
                rings.saturating_mul(index).saturating_add(crate::af_xdp::buffer_bytes_max(queues))
            }
            Kind::Live => bpf.max(buffered),
        })
    }

    /// The spec of one ring of this source.
    ///
    /// # Errors
    /// As [`data_blocks`](Setup::data_blocks).
    pub fn ring_spec(
        &self,
        rings: u64,
        cpu: Option<u32>,
        clock: Clock,
        writer: WriterKind,
    ) -> Result<RingSpec, CaptureError> {
        let data_blocks = self.data_blocks(rings)?;
        Ok(RingSpec { data_blocks, interfaces: self.interfaces.clone(), cpu, clock, writer })
    }

    /// What no engine can do.
    ///
    /// # Errors
    /// [`CaptureError::Options`].
    pub(crate) fn check(&self) -> Result<(), CaptureError> {
        if self.snaplen == 0 {
            let text = "--snaplen 0 keeps nothing; use 1 or more (14 keeps the Ethernet header)";
            return Err(CaptureError::Options(text.into()));
        }
        Ok(())
    }

    /// The source's interface id in every record.
    #[must_use]
    pub fn interface_id(&self) -> u32 {
        self.interfaces.len() as u32 - 1
    }

    /// Sets the link type of the source's own interface.
    pub(crate) fn set_link_type(&mut self, link_type: u16) {
        if let Some(own) = self.interfaces.last_mut() {
            own.link_type = link_type;
        }
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
}

/// The counts of a ledger that the writers of `rings` keep: what went in.
pub(crate) fn written(rings: &[Ring<Mapping>]) -> Ledger {
    let sum = |word| rings.iter().map(|ring| ring.writer_word(word)).sum();
    Ledger {
        captured: sum(WriterWord::Ordinal),
        kept_bytes: sum(WriterWord::KeptBytes),
        wire_bytes: sum(WriterWord::WireBytes),
        super_frames: sum(WriterWord::SuperFrames),
        ..Ledger::default()
    }
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

    /// The rings it fills: one, or one per CPU. Readers may attach before `start`.
    fn rings(&self) -> &[Ring<Mapping>];

    /// An eventfd that sleepers signal after a new wish, where the writer cannot look by itself.
    fn nudge(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// A sleeper to wake; the source's first ring is the sleeper's ring number `first`.
    fn add_bell(&mut self, bell: Bell, first: usize);

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

    /// The ledger so far. While frames come, its counts are not of one instant.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn ledger(&mut self) -> Result<Ledger, CaptureError>;

    /// Stops the offering, drains what is under way into the rings, closes them, and gives the final
    /// ledger, exact to the frame.
    ///
    /// # Errors
    /// If the kernel's counts cannot be read.
    fn stop(&mut self) -> Result<Ledger, CaptureError>;
}

/// The sleepers of a source.
#[derive(Debug, Default)]
pub struct Bells {
    bells: Vec<(Bell, usize)>,
}

impl Bells {
    /// The same sleepers, for another thread that writes other rings of the source.
    ///
    /// # Errors
    /// If there are no descriptors left.
    pub fn try_clone(&self) -> Result<Bells, weir_ring::RingError> {
        let clone = |(bell, first): &(Bell, usize)| Ok((bell.try_clone()?, *first));
        Ok(Bells { bells: self.bells.iter().map(clone).collect::<Result<_, _>>()? })
    }

    /// Adds a sleeper whose lines for this source begin at `first`.
    pub fn add(&mut self, bell: Bell, first: usize) {
        self.bells.push((bell, first));
    }

    /// After publishing: wakes whoever waits for no more than `ordinal` frames in the source's ring
    /// number `ring`.
    #[inline]
    pub fn published(&mut self, ring: usize, ordinal: u64) {
        for (bell, first) in &mut self.bells {
            bell.ring_if_due(*first + ring, ordinal);
        }
    }

    /// The earliest wish for ring number `ring` that `ordinal` does not fulfil.
    #[must_use]
    pub fn earliest(&self, ring: usize, ordinal: u64) -> u64 {
        let wishes = self.bells.iter().map(|(bell, first)| bell.wish(*first + ring));
        wishes.filter(|&wish| wish > ordinal).min().unwrap_or(weir_ring::doorbell::AWAKE)
    }

    /// Wakes everybody: the rings are closed.
    pub fn ring_all(&self) {
        for (bell, _) in &self.bells {
            bell.ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(ring_mib: u64) -> Setup {
        Setup {
            interfaces: vec![Interface::default()],
            snaplen: 262_144,
            direction: Direction::Both,
            ring_bytes: ring_mib << 20,
            promiscuous: true,
        }
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
        let more = |kind| Setup::memory(64 << 20, kind) - (64 << 20);
        assert_eq!(more(Kind::Offline), 1 << 20);
        assert_eq!(more(Kind::Buffered), 33 << 20);
        assert_eq!(more(Kind::Bpf) * 4, crate::bpf::least_ring_bytes());
        assert_eq!(more(Kind::Live), more(Kind::Bpf).max(more(Kind::Buffered)));
        assert_eq!(more(Kind::AfXdp { queues: 1, copiers: 1 }), more(Kind::Buffered));
        assert_eq!(more(Kind::AfXdp { queues: 4, copiers: 3 }), (12 + 32) << 20);
        // Each queue has 128 chunks, however many queues there are.
        assert_eq!(more(Kind::AfXdp { queues: 128, copiers: 1 }), (128 + 64) << 20);
        assert_eq!(more(Kind::Dpdk { queues: 20, buffer_bytes: 40 << 20 }), (20 + 40) << 20);
        assert_eq!(Setup::memory(u64::MAX, Kind::Live), u64::MAX);
        let absurd = Kind::AfXdp { queues: u32::MAX, copiers: u32::MAX };
        assert_eq!(Setup::memory(64 << 20, absurd), u64::MAX);
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
