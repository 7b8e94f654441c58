//! Flow control for a source that can wait, such as a file: readers report their progress, and the writer
//! does not overtake them.
//!
//! The writer of a ring never depends on its readers; for a live source that is guaranteed. Here, readers
//! volunteer their progress: each has a [`ReaderProgress`], and reports after each poll how much it has
//! read. Only readers in this process can do so; for a consumer in another process, a reader in this
//! process must do it. A reader that hangs stops only the reading of the file: the source's thread still
//! stops when it is told to.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weir_ring::geometry::WriterWord;
use weir_ring::{Mapping, Ring};

/// The progress of a reader that has left. The writer does not wait for it.
const LEFT: u64 = u64::MAX;

/// The readers that the writer of a ring waits for. Clones share the same readers.
#[derive(Clone, Debug, Default)]
pub struct Pace {
    readers: Arc<Mutex<Vec<Arc<AtomicU64>>>>,
}

/// One reader's progress. Dropping it makes the reader leave.
#[derive(Debug)]
pub struct ReaderProgress {
    progress: Arc<AtomicU64>,
}

impl Pace {
    /// Creates a pace without readers.
    #[must_use]
    pub fn new() -> Pace {
        Pace::default()
    }

    /// Adds a reader that has read `ordinal` frames: [`Reader::ordinal`](weir_ring::Reader::ordinal). A
    /// reader should join before the source starts; otherwise the beginning of the file may already be
    /// overwritten.
    #[must_use]
    pub fn join(&self, ordinal: u64) -> ReaderProgress {
        let progress = Arc::new(AtomicU64::new(ordinal));
        self.lock().push(Arc::clone(&progress));
        ReaderProgress { progress }
    }

    /// Returns the position of the slowest reader; `u64::MAX` if there are no readers. Removes readers that have left.
    fn slowest(&self) -> u64 {
        let mut readers = self.lock();
        // Acquire, pairs with the release in `ReaderProgress::reached`: the reader has copied the frames
        // that it reports as read.
        readers.retain(|reader| reader.load(Ordering::Acquire) != LEFT);
        readers.iter().map(|reader| reader.load(Ordering::Acquire)).min().unwrap_or(LEFT)
    }

    /// Locks the list. A list of numbers is valid even if a thread panicked while holding it.
    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Arc<AtomicU64>>> {
        self.readers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ReaderProgress {
    /// Reports how many frames of the ring this reader has read: its ordinal, after each poll.
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

/// Sleeps between two checks of a closed gate.
pub(crate) fn nap() {
    const NAP: Duration = Duration::from_micros(50);
    std::thread::sleep(NAP);
}

/// The writer's side: it checks before each burst whether it may open one more block.
pub(crate) struct Gate {
    pace: Pace,
    ring: Ring<Mapping>,
    /// For each block in the ring, oldest first: the ordinal of a frame at or shortly after its beginning.
    blocks: VecDeque<u64>,
    opened: u64,
    passed: bool,
}

impl Gate {
    pub(crate) fn new(pace: Pace, ring: Ring<Mapping>) -> Gate {
        Gate { pace, ring, blocks: VecDeque::new(), opened: 0, passed: true }
    }

    /// Returns whether a burst that opens at most one block would overtake no reader. `frames` is the number of frames
    /// that the writer has written so far; all of them must be published, so that readers can read them.
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
        // The next block overwrites the oldest. A reader that has read the oldest block completely may
        // still be positioned at its end; only when it has read a frame of the following block has it left
        // the oldest.
        let blocks = self.ring.geometry().data_blocks as usize;
        while self.blocks.len() > blocks {
            self.blocks.pop_front();
        }
        self.passed = self.blocks.len() < blocks || self.pace.slowest() > self.blocks[1];
        self.passed
    }
}
