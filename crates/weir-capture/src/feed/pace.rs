//! How a source that can wait, a file, is told to: readers show how far they are, and the writer does
//! not overtake them.
//!
//! A ring's writer never sees its readers, and for a live source that is the promise. Here readers
//! *offer* their progress: each takes a [`ReaderProgress`] and says after each poll what it has read.
//! Only readers of this process can; a consumer elsewhere is fed by something in this process that holds
//! one. A reader that hangs holds up its file, and nothing else: the source's thread still stops when
//! it is told to.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_ring::geometry::WriterWord;
use weir_ring::{Mapping, Ring};

/// The progress of a reader that has left: nobody waits for it.
const LEFT: u64 = u64::MAX;

/// The readers that one source's ring waits for. Clones are the same readers.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    readers: Arc<Mutex<Vec<Arc<AtomicU64>>>>,
}

/// One reader's progress; dropping it leaves.
#[derive(Debug)]
pub struct ReaderProgress {
    progress: Arc<AtomicU64>,
}

impl Pace {
    /// Nobody to wait for yet.
    #[must_use]
    pub fn new() -> Pace {
        Pace::default()
    }

    /// Adds a reader that has read `ordinal` frames: [`Reader::ordinal`](weir_ring::Reader::ordinal).
    /// Join before the source starts, or the start of the file may be gone.
    #[must_use]
    pub fn join(&self, ordinal: u64) -> ReaderProgress {
        let progress = Arc::new(AtomicU64::new(ordinal));
        self.lock().push(Arc::clone(&progress));
        ReaderProgress { progress }
    }

    /// Position of the slowest reader; readers that left are forgotten. `u64::MAX` if there is
    /// nobody.
    fn slowest(&self) -> u64 {
        let mut readers = self.lock();
        // Acquire, pairs with the release in `ReaderProgress::reached`: frames that it read are
        // copied out.
        readers.retain(|reader| reader.load(Ordering::Acquire) != LEFT);
        readers.iter().map(|reader| reader.load(Ordering::Acquire)).min().unwrap_or(LEFT)
    }

    /// A list of numbers is valid even if a thread panicked while holding it.
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderProgress {
    /// Says how many frames of the ring this reader has had so far: its ordinal, after each poll.
    #[inline]
    pub fn reached(&self, ordinal: u64) {
        self.progress.store(ordinal.min(LEFT - 1), Ordering::Release);
    }
}

impl Drop for ReaderProgress {
    fn drop(&mut self) {
        self.progress.store(LEFT, Ordering::Release);
    }
}

/// A pause between looks at a gate that is closed.
pub(crate) fn nap() {
    const NAP: Duration = Duration::from_micros(50);
    std::thread::sleep(NAP);
}

/// The writer's side: asks before each burst whether it may open one more block.
pub(crate) struct Gate {
    pace: Pace,
    ring: Ring<Mapping>,
    /// For each block from the oldest that is still there: an ordinal within it, or in the few frames
    /// after its first.
    blocks: VecDeque<u64>,
    opened: u64,
    passed: bool,
}

impl Gate {
    pub(crate) fn new(pace: Pace, ring: Ring<Mapping>) -> Gate {
        Gate { pace, ring, blocks: VecDeque::new(), opened: 0, passed: true }
    }

    /// Whether a burst that opens at most one block would overtake nobody. `frames` is the number
    /// of frames that the writer has written so far; all of them must be published, or a reader
    /// could not catch up.
    #[inline]
    pub(crate) fn is_open(&mut self, frames: u64) -> bool {
        let opened = self.ring.writer_word(WriterWord::Opened);
        if opened != self.opened {
            debug_assert_eq!(opened, self.opened + 1, "a burst opens at most one block");
            self.opened = opened;
            self.blocks.push_back(frames);
            self.passed = false;
        }
        self.passed || self.look()
    }

    #[cold]
    fn look(&mut self) -> bool {
        // The next block to open takes the place of the oldest. A reader may still stand at the end of
        // that one, all of it read: only a frame of the block after it shows that it has moved on.
        let blocks = self.ring.geometry().data_blocks as usize;
        while self.blocks.len() > blocks {
            self.blocks.pop_front();
        }
        self.passed = self.blocks.len() < blocks || self.pace.slowest() > self.blocks[1];
        self.passed
    }
}
