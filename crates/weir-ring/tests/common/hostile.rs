//! A reader of memory that its owner changes at any moment: whatever the owner does, the reader returns frames,
//! counts or errors. The fuzz targets and the property tests share this; those of weir-store read such memory through
//! consumers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::common::{spec, zeroed};
use weir_frame::record::{EPB_TYPE, Meta};
use weir_ring::geometry::{BLOCK_BYTES, DATA_BLOCKS_MIN, PADDING_TYPE};
use weir_ring::{
    AtomicU64, Batch, Geometry, Poll, Reader, Ring, Start, Tally, Words, Writer, header,
};

/// The most polls of a ring for one input.
const LOOKS_MAX: usize = 64;

/// Memory that changes while it is read: each time the reader accesses it, the next store of the script may happen.
/// So a word can differ between two loads of one poll.
pub struct Hostile {
    words: Arc<Vec<AtomicU64>>,
    bound: usize,
    script: Vec<Store>,
    next: AtomicUsize,
    loads: AtomicUsize,
}

#[derive(Clone, Copy)]
struct Store {
    /// Number of accesses to the memory before this store happens.
    after: usize,
    index: usize,
    value: u64,
}

impl Words for Hostile {
    fn words(&self) -> &[AtomicU64] {
        let loads = self.loads.fetch_add(1, Ordering::Relaxed);
        let next = self.next.load(Ordering::Relaxed);
        if let Some(store) = self.script.get(next)
            && store.after <= loads
        {
            self.words[store.index % self.bound].store(store.value, Ordering::Relaxed);
            self.next.store(next + 1, Ordering::Relaxed);
        }
        &self.words[..self.bound]
    }
}

/// Takes numbers from the input until it is used up; then there are only zeros.
pub struct Input<'a>(pub &'a [u8]);

impl Input<'_> {
    pub fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|_| self.byte()))
    }

    /// A value that is often plausible: entirely random values are rejected at once.
    fn value(&mut self, geometry: &Geometry) -> u64 {
        let small = |input: &mut Self| u64::from(input.byte());
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        match self.byte() % 10 {
            0 => self.word(),
            1 => small(self),
            2 => u64::MAX - small(self),
            3 => u64::from(geometry.block_bytes).saturating_sub(small(self)),
            4 => small(self) * 4,
            5 => pair(EPB_TYPE, self.byte().into()),
            6 => pair(PADDING_TYPE, geometry.block_bytes.saturating_sub(self.byte().into())),
            7 => pair(self.byte().into(), EPB_TYPE),
            8 => 1 << (self.byte() % 64),
            _ => pair(self.byte().into(), self.byte().into()),
        }
    }
}

/// Fills the ring with an honest writer, which may close the ring at the end.
fn fill(ring: Ring<Vec<AtomicU64>>, frames_max: u8, input: &mut Input<'_>) {
    let mut writer = Writer::new(ring);
    for _ in 0..input.byte() % (frames_max + 1) {
        let size = input.byte();
        let meta = Meta { wire_len: size.into(), queue: Some(1), ..Meta::default() };
        writer.push(&meta, &[size; 100][..usize::from(size % 100)]);
        match size % 8 {
            0 => writer.close_block(),
            1..4 => writer.publish(),
            _ => {}
        }
    }
    if input.byte().is_multiple_of(2) {
        writer.close();
    }
    // Dropping the writer would close the ring. Forgetting it leaks only a reference count of memory that is kept
    // anyway.
    std::mem::forget(writer);
}

thread_local! {
    /// Memory for all rings of this thread, two at a time: to allocate 5 MiB for each takes longer than everything
    /// else.
    static MEMORY: [Arc<Vec<AtomicU64>>; 2] = [0, 1].map(|_| Arc::new(zeroed(5 << 17)));
}

/// Runs one input. Returns its findings, so that a test can check that inputs reach all code.
pub fn run(bytes: &[u8]) -> Seen {
    let mut input = Input(bytes);
    // Small rings are fast. One input in 16 gets a ring of real size.
    let attacked =
        if input.byte() >= 240 { whole_ring(&mut input, 0) } else { toy_ring(&mut input) };
    read_attacked(attacked)
}

/// Which results a reader returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    pub frames: bool,
    pub empty: bool,
    pub lapped: bool,
    pub closed: bool,
    pub corrupt: bool,
}

/// The same memory, with zeros wherever an earlier run may have left data: at the start and at the very
/// end of blocks.
fn memory(geometry: &Geometry, number: usize) -> Arc<Vec<AtomicU64>> {
    let memory = MEMORY.with(|memory| Arc::clone(&memory[number]));
    let clear =
        |words: &[AtomicU64]| words.iter().for_each(|word| word.store(0, Ordering::Relaxed));
    if geometry.block_bytes < BLOCK_BYTES {
        clear(&memory[..geometry.total_words()]);
    } else {
        for block in memory.chunks(BLOCK_BYTES as usize / 8) {
            clear(&block[..1024]);
            clear(&block[block.len() - 2..]);
        }
        clear(&memory[BLOCK_BYTES as usize / 128..][..1024]);
    }
    memory
}

fn toy_ring(input: &mut Input<'_>) -> Attacked {
    let block_bytes = 192 + u32::from(input.byte() % 64) * 8;
    let geometry = Geometry::model(block_bytes, 1 << (input.byte() % 4), 180);
    let words = memory(&geometry, 0);
    fill(Ring::new(Arc::clone(&words), geometry).expect("as many words as it needs"), 40, input);
    attack(words, |memory| Ring::new(memory, geometry).ok(), geometry, input)
}

/// A ring with a header, opened as a consumer opens it. `number` selects one of this thread's two memories.
pub fn whole_ring(input: &mut Input<'_>, number: usize) -> Attacked {
    let geometry = Geometry::new(DATA_BLOCKS_MIN).expect("the smallest ring");
    let words = memory(&geometry, number);
    header::format(&words, &spec(DATA_BLOCKS_MIN)).expect("a spec of ours");
    fill(Ring::open(Arc::clone(&words)).expect("just formatted"), 7, input);
    // About half of the changes go to the first words of the header area, the others to the ring's own words.
    for _ in 0..input.byte() % 4 {
        let index = match input.byte() {
            byte if byte < 128 => usize::from(byte) % 24,
            byte => BLOCK_BYTES as usize / 128 + usize::from(byte) % 10,
        };
        words[index].store(input.value(&geometry), Ordering::Relaxed);
    }
    attack(words, |memory| Ring::open(memory).ok(), geometry, input)
}

/// A ring under attack.
pub struct Attacked {
    /// `None` if it is refused at once.
    pub ring: Option<Ring<Hostile>>,
    /// How its reader begins, and what it does in each poll.
    pub start: u8,
    pub looks: Vec<u8>,
}

fn attack(
    words: Arc<Vec<AtomicU64>>,
    open: impl Fn(Arc<Hostile>) -> Option<Ring<Hostile>>,
    geometry: Geometry,
    input: &mut Input<'_>,
) -> Attacked {
    // The reader relies on the writer's words and on the index, which begin here. The other words hold records.
    let toy = geometry.block_bytes < BLOCK_BYTES;
    let (writer, index) = match toy {
        true => (0, 8),
        false => (BLOCK_BYTES as usize / 128 + 0x100 / 8, BLOCK_BYTES as usize / 128 + 0x1000 / 8),
    };
    let start = input.byte();
    let looks: Vec<u8> = (0..input.byte() % 48).map(|_| input.byte()).collect();
    let mut after = 0;
    let mut script = Vec::new();
    while !input.0.is_empty() && script.len() < 256 {
        after += usize::from(input.byte() % 16);
        let index = match input.byte() {
            byte if byte < 60 => writer + usize::from(byte) % 6,
            byte if byte < 200 => index + usize::from(byte) % 32,
            byte if toy => usize::from(byte) * 256 + usize::from(input.byte()),
            byte => {
                BLOCK_BYTES as usize / 8 * usize::from(1 + byte % 4) + usize::from(input.byte())
            }
        };
        script.push(Store { after, index, value: input.value(&geometry) });
    }
    let memory = Hostile {
        words,
        bound: geometry.total_words(),
        script,
        next: AtomicUsize::new(0),
        loads: AtomicUsize::new(0),
    };
    Attacked { ring: open(Arc::new(memory)), start, looks }
}

fn read_attacked(attacked: Attacked) -> Seen {
    let Attacked { ring, start, looks } = attacked;
    let mut seen = Seen::default();
    let Some(ring) = ring else {
        seen.corrupt = true;
        return seen;
    };
    if start.is_multiple_of(4) {
        let mut file = Vec::new();
        let _ = weir_ring::snapshot::snapshot(&ring, &mut file);
    }
    let distance = u32::from(start / 16) * 40;
    let start = match start % 3 {
        0 => Start::Oldest,
        1 => Start::Newest,
        _ => Start::Ordinal(u64::from(start) << (start % 57)),
    };
    match Reader::new(&ring, start) {
        Ok(mut reader) => {
            reader.keep_distance(distance);
            read(reader, &looks, &mut seen);
        }
        Err(_) => seen.corrupt = true,
    }
    seen
}

fn read(mut reader: Reader<Hostile>, looks: &[u8], seen: &mut Seen) {
    let mut batch = Batch::new();
    let mut tally = Tally::default();
    // A reader that begins at an ordinal which is no longer in the ring has been lapped already.
    let (mut delivered, mut lapped) = (0u64, reader.lapped());
    for &look in looks.iter().take(LOOKS_MAX) {
        let before = reader.ordinal();
        let poll = match look % 3 {
            0 => reader.count_in_place(&mut tally, look.into()),
            _ => reader.poll(&mut batch),
        };
        match poll {
            Ok(Poll::Frames(frames)) => {
                seen.frames = true;
                assert!(frames > 0);
                delivered += u64::from(frames);
                if look % 3 != 0 {
                    assert_eq!(batch.len(), frames as usize);
                    assert_eq!(batch.records().count(), frames as usize);
                    let bytes: usize = batch.records().map(|record| record.block.len()).sum();
                    assert_eq!(bytes, batch.block_bytes().len());
                }
            }
            Ok(Poll::Lapped(frames)) => {
                seen.lapped = true;
                assert!(frames > 0);
                lapped += frames;
            }
            Ok(Poll::Empty) => seen.empty = true,
            Ok(Poll::Closed) => {
                seen.closed = true;
                assert!(reader.has_ended());
            }
            Err(_) => {
                seen.corrupt = true;
                assert_eq!(reader.ordinal(), before);
            }
        }
        // Even the counts of a hostile ring add up, unless an error was returned.
        assert_eq!((reader.delivered(), reader.lapped()), (delivered, lapped));
        assert_eq!(reader.ordinal() - reader.joined_at(), delivered + lapped);
    }
}
