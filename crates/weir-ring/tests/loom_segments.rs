//! Copiers that share the kernel's RX ring by segments, and the kernel, which refills the chunks that they release:
//! every interleaving. The code under test is the code that runs in service.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p weir-ring --test loom_segments`
//!
//! Slots are `UnsafeCell`s of loom, which fails a model in which a slot is read and filled at the same time. The code
//! was broken by hand to check the models: with O or P relaxed, `no_slot_is_filled_again_...` fails; with the maximum
//! instead of the minimum of the copiers' positions, both models fail.
//!
//! `segments.rs` belongs to the AF_XDP engine. The model is here because `weir-capture`, which needs libbpf, does not
//! build with loom's atomics.
#![cfg(loom)]

#[allow(dead_code)]
#[path = "../../weir-capture/src/engines/af_xdp/segments.rs"]
mod segments;

use std::sync::Arc;

use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use segments::Segments;

const COPIERS: usize = 2;
const SEGMENT: u32 = 1;
const SLOTS: u32 = COPIERS as u32 * SEGMENT;

/// An RX ring and its fill ring in one. The kernel fills a slot by storing the slot's index in it.
struct Rx {
    slots: Vec<UnsafeCell<u32>>,
    /// Written by the kernel: slots below this index are filled.
    filled: AtomicU32,
    /// Written by the copiers: the kernel may fill slots up to this index plus the length of the ring.
    released: AtomicU32,
    segments: Segments,
}

impl Rx {
    /// A ring whose slots are all filled once.
    fn new() -> Arc<Rx> {
        Arc::new(Rx {
            slots: (0..SLOTS).map(UnsafeCell::new).collect(),
            filled: AtomicU32::new(SLOTS),
            released: AtomicU32::new(0),
            segments: Segments::model(COPIERS, SEGMENT),
        })
    }

    fn slot(&self, index: u32) -> &UnsafeCell<u32> {
        &self.slots[(index % SLOTS) as usize]
    }

    /// The kernel: fills the slots that were released, up to `end`.
    fn fill(&self, end: u32) {
        let released = self.released.load(Ordering::Acquire);
        let filled = self.filled.load(Ordering::Relaxed);
        let end = end.min(released + SLOTS);
        for index in filled..end {
            // SAFETY: nobody reads the slot now, which loom checks.
            self.slot(index).with_mut(|slot| unsafe { *slot = index });
        }
        self.filled.store(end, Ordering::Release);
    }

    /// A copier that looks for frames `looks` times. Returns the number of frames that it found.
    fn copy(&self, copier: usize, looks: u32) -> u32 {
        let mut own = self.segments.first_of(copier);
        let mut copied = 0;
        for _ in 0..looks {
            let count = own.ready(self.filled.load(Ordering::Acquire), SLOTS);
            for index in own.at()..own.at() + count {
                // SAFETY: nobody fills the slot now, which loom checks.
                let found = self.slot(index).with(|slot| unsafe { *slot });
                assert_eq!(found, index, "a frame that was copied before, or one from later");
            }
            if count > 0 {
                self.segments.advance(&mut own, count);
            }
            copied += count;
            self.release();
        }
        copied
    }

    fn release(&self) {
        self.segments.release(|index| {
            // Only the holder of the lock stores, so this load sees the previous index, which must be lower.
            assert!(self.released.load(Ordering::Relaxed) < index, "released backwards");
            self.released.store(index, Ordering::Release);
        });
    }
}

fn explore(model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn no_slot_is_filled_again_before_its_frame_was_copied() {
    explore(|| {
        let rx = Rx::new();
        let theirs = Arc::clone(&rx);
        let other = thread::spawn(move || theirs.copy(1, 1));
        let theirs = Arc::clone(&rx);
        let kernel = thread::spawn(move || (0..2).for_each(|_| theirs.fill(3 * SLOTS)));
        rx.copy(0, 2);
        other.join().unwrap();
        kernel.join().unwrap();
    });
}

#[test]
fn what_all_have_copied_is_released_and_nothing_else() {
    explore(|| {
        let rx = Rx::new();
        let theirs = Arc::clone(&rx);
        let other = thread::spawn(move || theirs.copy(1, 1));
        let mine = rx.copy(0, 1);
        let theirs = other.join().unwrap();
        assert_eq!((mine, theirs), (SEGMENT, SEGMENT));
        // If both copiers called `release` at the same time, one of them did nothing; this call releases the rest.
        rx.release();
        assert_eq!(rx.released.load(Ordering::Relaxed), SLOTS);
        assert!(rx.segments.is_released(SLOTS));
    });
}
