//! A consumer that gets a ring with arbitrary words: it may refuse the ring, but must neither panic nor miscount.

use std::sync::Arc;
use std::time::Duration;

use weir_consumer::{Begin, Consumer, JoinedFeed, Ordered};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_frame::record::Meta;
use weir_ring::geometry::{BLOCK_BYTES, DATA_BLOCKS_MIN, EntryWord, WriterWord};
use weir_ring::{AtomicU64, Clock, Geometry, Ring, RingSpec, Writer, WriterKind, header};

use crate::broken::hold;
use crate::random::Random;
use crate::sink::Gather;

type Memory = Vec<AtomicU64>;

/// The words at the start of each block that an attack changes; the words after them are never reached.
const TOUCHED_WORDS: usize = 1024;

/// Memory for hostile rings, one at a time.
#[derive(Default)]
pub struct Hostile {
    memory: Option<Arc<Memory>>,
    attacks: u64,
    refused: u64,
}

impl Hostile {
    /// Returns the number of attacks so far, and of those that were detected.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.attacks, self.refused)
    }

    /// Lets a consumer read a ring while its words change.
    pub fn attack(&mut self, seed: u64) {
        let random = &mut Random::new(seed);
        let geometry = Geometry::new(DATA_BLOCKS_MIN).expect("the smallest ring");
        let memory = self.fresh(&geometry);
        let ring = Ring::open(Arc::clone(&memory)).expect("just formatted");
        let _at_work = fill(ring, random);
        self.attacks += 1;
        // In half of the attacks, the ring is changed before it is opened.
        if random.one_in(2) {
            spoil(&memory, &geometry, random);
        }
        let mut consumer = Ordered::new(Duration::ZERO, Gather::new(None, u64::MAX));
        let Ok(ring) = Ring::open(Arc::clone(&memory)) else {
            self.refused += 1;
            return;
        };
        let (label, rings) = (String::new(), vec![ring]);
        let feed = JoinedFeed {
            key: 0,
            output: 0,
            label,
            rings,
            first_line: 0,
            channel: None,
            begin: Begin::First,
        };
        let mut is_refused = consumer.join(feed).is_err();
        for _ in 0..random.below(8) {
            spoil(&memory, &geometry, random);
            is_refused |= consumer.step(1 + random.below(100)).is_err();
            let (all, one) = (consumer.delivered(), consumer.by_interface());
            let frames = one.iter().fold(0u64, |sum, taken| sum.saturating_add(taken.frames));
            hold!(all.frames == frames, "the counts of a hostile ring add up: {all:?}, {one:?}");
        }
        self.refused += u64::from(is_refused);
    }

    /// Returns the memory of a ring that was never written.
    fn fresh(&mut self, geometry: &Geometry) -> Arc<Memory> {
        let make = || (0..geometry.total_words()).map(|_| AtomicU64::new(0)).collect();
        let memory = self.memory.get_or_insert_with(|| Arc::new(make()));
        for block in memory.chunks(BLOCK_BYTES as usize / 8) {
            block[..TOUCHED_WORDS].iter().for_each(clear);
            block[block.len() - 2..].iter().for_each(clear);
        }
        // The ring's own words, and its index.
        memory[BLOCK_BYTES as usize / 128..][..TOUCHED_WORDS].iter().for_each(clear);
        let interface = Interface {
            name: "hostile".into(),
            link_type: LINKTYPE_ETHERNET,
            ..Interface::default()
        };
        let spec = RingSpec {
            data_blocks: DATA_BLOCKS_MIN,
            interfaces: vec![interface],
            cpu: None,
            clock: Clock::Foreign,
            writer: WriterKind::User,
        };
        header::format(memory, &spec).expect("a spec of ours");
        Arc::clone(memory)
    }
}

fn clear(word: &AtomicU64) {
    word.store(0, std::sync::atomic::Ordering::Relaxed);
}

/// Fills a ring with a correct writer. Returns the writer; `None`: the writer is gone, and the ring closed.
fn fill(ring: Ring<Memory>, random: &mut Random) -> Option<Writer<Memory>> {
    let mut writer = Writer::new(ring);
    for _ in 0..random.below(20) {
        let bytes = random.below(100) as usize;
        let meta = Meta { wire_len: 100, ts_ns: random.below(1000), ..Meta::default() };
        writer.push(&meta, &[7; 100][..bytes]);
        match random.below(8) {
            0 => writer.close_block(),
            1..4 => writer.publish(),
            _ => {}
        }
    }
    random.one_in(2).then(|| {
        writer.publish();
        writer
    })
}

/// Changes some of the words that a reader must not trust.
fn spoil(memory: &Memory, geometry: &Geometry, random: &mut Random) {
    for _ in 0..random.below(4) {
        let block = random.below(DATA_BLOCKS_MIN);
        let entry =
            [EntryWord::Seq, EntryWord::Committed, EntryWord::Frames, EntryWord::FirstOrdinal];
        let own = [WriterWord::Opened, WriterWord::Ordinal, WriterWord::Closed];
        let index = match random.below(10) {
            0..4 => geometry.entry_word(block, entry[random.below(4) as usize]),
            4..6 => geometry.writer_word(own[random.below(3) as usize]),
            6..9 => geometry.block_word(block) + random.below(40) as usize,
            _ => BLOCK_BYTES as usize / 128 * random.below(2) as usize + random.below(20) as usize,
        };
        let value = match random.below(6) {
            0 => random.number(),
            1 => random.below(64),
            2 => u64::MAX - random.below(8),
            3 => u64::from(BLOCK_BYTES) - random.below(64),
            4 => 1 << random.below(64),
            _ => random.below(64) * 4,
        };
        memory[index].store(value, std::sync::atomic::Ordering::Relaxed);
    }
}
