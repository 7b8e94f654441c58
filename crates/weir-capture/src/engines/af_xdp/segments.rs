//! Several copiers for one RX ring of the kernel: the ring is divided into segments of fixed length, and copier `k` of
//! `n` copies every `n`th segment, as in HPCAP40. The assignment is fixed, so copiers need not ask for work.
//!
//! ```text
//! RX index   0        256       512       768       1024
//!            | k=0     | k=1     | k=0     | k=1     |
//!  done[0] ─────▲                              (k=0 is here, and has copied everything of its own below)
//!  done[1] ─────────────────▲
//!            └──┴ released: up to the lower of both; these slots and chunks were given back to the kernel
//! ```
//!
//! A copier begins its segment as soon as the segment has a frame, and goes on as more frames come, so frames of a
//! quiet link are not delayed. Frames are in order except at the borders of segments, where two copiers work at the
//! same time. Each copier has its own ring; consumers merge the rings by time.

#[cfg(not(loom))]
use std::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};

// weir-ring/tests/loom_segments.rs includes this file, and tests it with loom.
#[cfg(loom)]
use loom::sync::{
    Mutex,
    atomic::{AtomicU32, Ordering},
};

/// Most and fewest slots of a segment. Segments are long, so that going to the next segment costs little; the ring has
/// slots for two segments of each copier.
const SEGMENT: u32 = 256;
const SEGMENT_MIN: u32 = 16;

/// Returns the most copiers that can work in parallel on a ring with this many slots.
#[must_use]
pub fn copiers_max(slots: u32) -> u32 {
    slots / (2 * SEGMENT_MIN)
}

/// A value on its own cache line. It takes two lines, because the processor prefetches the adjacent line, too.
#[repr(align(128))]
struct Line<T>(T);

/// The progress of each copier, and the index up to which slots were released.
pub struct Segments {
    done: Box<[Line<AtomicU32>]>,
    /// On its own line: all copiers write it, whereas they read the other fields for every frame.
    released: Line<Mutex<u32>>,
    segment: u32,
}

/// The current segment of a copier: the copier's next index, and the segment's end.
#[derive(Clone, Copy, Debug)]
pub struct OwnSegment {
    copier: usize,
    at: u32,
    end: u32,
}

impl OwnSegment {
    /// Returns the next index that the copier has to copy.
    #[must_use]
    pub fn at(&self) -> u32 {
        self.at
    }

    /// Returns the number of consecutive descriptors, at most `most`, that the copier can copy now. `filled`: the RX
    /// index up to which the kernel has filled descriptors.
    #[inline]
    #[must_use]
    pub fn ready(&self, filled: u32, most: u32) -> u32 {
        // Indices wrap around: if `filled` is before `at`, the difference is negative.
        let ahead = filled.wrapping_sub(self.at) as i32;
        if ahead <= 0 {
            return 0;
        }
        (ahead as u32).min(self.end.wrapping_sub(self.at)).min(most)
    }
}

impl Segments {
    /// Creates the segments for 1 to [`copiers_max`] copiers, on a ring of `slots`.
    #[must_use]
    pub fn new(copiers: usize, slots: u32) -> Segments {
        Segments::of(copiers, (slots / (2 * copiers as u32)).clamp(SEGMENT_MIN, SEGMENT))
    }

    /// Creates segments like [`new`](Segments::new), but with only a few slots each, for the loom model.
    #[cfg(loom)]
    #[must_use]
    pub fn model(copiers: usize, segment: u32) -> Segments {
        Segments::of(copiers, segment)
    }

    fn of(copiers: usize, segment: u32) -> Segments {
        let line = |copier| Line(AtomicU32::new(copier as u32 * segment));
        let done = (0..copiers).map(line).collect();
        Segments { done, released: Line(Mutex::new(0)), segment }
    }

    /// Returns the first segment of a copier. Copiers are numbered from 0.
    #[must_use]
    pub fn first_of(&self, copier: usize) -> OwnSegment {
        let at = copier as u32 * self.segment;
        OwnSegment { copier, at, end: at.wrapping_add(self.segment) }
    }

    /// Marks the copier's next `count` descriptors as done; they must all be in its current segment. Returns true if
    /// that segment is done.
    #[inline]
    pub fn advance(&self, own: &mut OwnSegment, count: u32) -> bool {
        own.at = own.at.wrapping_add(count);
        let ended = own.at == own.end;
        if ended {
            let others = (self.done.len() as u32 - 1) * self.segment;
            own.at = own.at.wrapping_add(others);
            own.end = own.at.wrapping_add(self.segment);
        }
        // O, pairs with P in `release`: descriptors below this index were read, and the chunks to give back are stored.
        self.done[own.copier].0.store(own.at, Ordering::Release);
        ended
    }

    /// Returns true if everything below `filled` was released; false while another copier releases.
    #[must_use]
    pub fn is_released(&self, filled: u32) -> bool {
        self.released.0.try_lock().is_ok_and(|released| *released == filled)
    }

    /// Releases, by calling `give(index)`, everything below the index up to which all copiers are done. That index
    /// never decreases. Returns true if anything was released. If another copier is releasing, this call does nothing:
    /// the progress of our copier is then released by that copier or by the next call.
    #[inline]
    pub fn release(&self, give: impl FnOnce(u32)) -> bool {
        let Ok(mut released) = self.released.0.try_lock() else { return false };
        // P, pairs with O in `advance`: the copiers' reads and stores before `advance` come before `give`.
        let ahead = |line: &Line<AtomicU32>| line.0.load(Ordering::Acquire).wrapping_sub(*released);
        let least = self.done.iter().map(ahead).min().unwrap_or(0);
        if least == 0 {
            return false;
        }
        *released = released.wrapping_add(least);
        give(*released);
        true
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn one_copier_has_it_all_and_several_take_turns() {
        let alone = Segments::new(1, 8192);
        let mut own = alone.first_of(0);
        assert_eq!(own.ready(1000, 5000), SEGMENT);
        alone.advance(&mut own, SEGMENT);
        assert_eq!((own.at(), own.ready(1000, 5000)), (SEGMENT, SEGMENT));
        let three = Segments::new(3, 8192);
        let mut second = three.first_of(1);
        assert_eq!(second.ready(SEGMENT, 64), 0);
        assert_eq!(second.ready(SEGMENT + 10, 64), 10);
        three.advance(&mut second, SEGMENT);
        assert_eq!(second.at(), 4 * SEGMENT);
        assert_eq!(second.ready(4 * SEGMENT, 64), 0);
    }

    #[test]
    fn what_is_released_is_done_by_all() {
        let two = Segments::new(2, 8192);
        let (mut first, mut second) = (two.first_of(0), two.first_of(1));
        let mut given = None;
        assert!(!two.advance(&mut second, 100));
        assert!(!two.release(|index| given = Some(index)));
        two.advance(&mut first, 7);
        assert!(two.release(|index| given = Some(index)));
        assert_eq!(given, Some(7));
        assert!(two.advance(&mut first, SEGMENT - 7), "at the end of its segment");
        assert!(two.release(|index| given = Some(index)));
        assert_eq!(given, Some(SEGMENT + 100));
        assert!(!two.release(|_| unreachable!("nothing new")));
    }

    #[test]
    fn indices_wrap() {
        let two = Segments::new(2, 8192);
        let mut owns = [two.first_of(0), two.first_of(1)];
        // Set all indexes to just before 2^32, because a test cannot run that long.
        let near = 0u32.wrapping_sub(2 * SEGMENT);
        for (copier, own) in owns.iter_mut().enumerate() {
            own.at = near.wrapping_add(copier as u32 * SEGMENT);
            own.end = own.at.wrapping_add(SEGMENT);
            two.done[copier].0.store(own.at, Ordering::Relaxed);
        }
        *two.released.0.lock().unwrap() = near;
        for own in &mut owns {
            assert_eq!(own.ready(50, 5000), SEGMENT);
            two.advance(own, SEGMENT);
        }
        assert_eq!((owns[0].at(), owns[0].ready(50, 5000)), (0, 50));
        assert_eq!((owns[1].at(), owns[1].ready(50, 5000)), (SEGMENT, 0));
        let mut given = 0;
        assert!(two.release(|index| given = index));
        assert_eq!(given, 0);
    }

    #[test]
    fn threads_release_every_index_once_and_in_order() {
        const INDICES: u32 = 200_000;
        let segments = Segments::new(3, 8192);
        let (seen, last) = (AtomicU64::new(0), AtomicU32::new(0));
        let release = || {
            segments.release(|index| {
                assert!(index.wrapping_sub(last.swap(index, Ordering::Relaxed)) as i32 > 0);
            })
        };
        std::thread::scope(|scope| {
            for copier in 0..3 {
                let (segments, seen, release) = (&segments, &seen, &release);
                scope.spawn(move || {
                    let mut own = segments.first_of(copier);
                    loop {
                        let count = own.ready(INDICES, 64);
                        if count == 0 {
                            break;
                        }
                        seen.fetch_add(u64::from(count), Ordering::Relaxed);
                        segments.advance(&mut own, count);
                        release();
                    }
                });
            }
        });
        release();
        assert_eq!(seen.load(Ordering::Relaxed), u64::from(INDICES));
        assert_eq!(last.load(Ordering::Relaxed), INDICES);
    }
}
