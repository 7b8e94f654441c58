//! Copiers on an RX ring without a NIC. With them, one can measure on any machine, for any number of copiers, how
//! copying scales, and test that no frame is lost or duplicated.
//!
//! The copiers, the segments and both rings are those of the engine. Only the kernel is replaced: chunks that are given
//! back are full again at once.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use weir_ring::memory::Placement;
use weir_ring::{Clock, Mapping, Ring, RingSpec, WriterKind, memory};

use super::area::Area;
use super::copier::{Copier, Partial, Queue};
use super::rings::kernel;
use super::segments::Segments;
use crate::error::CaptureError;
use crate::feed::fanout::Fanout;

/// Bytes of a chunk, and the offset in it at which the kernel writes the frame.
const CHUNK_BYTES: u32 = 2048;
const OFFSET: u32 = 256;
/// Batches between two readings of the clock.
const LOOK_BATCHES: u32 = 64;

/// Properties of the RX ring.
#[derive(Clone, Copy, Debug)]
pub struct SyntheticSpec {
    /// Bytes of every frame, without FCS; at most 1792.
    pub frame_bytes: u32,
    /// Slots of the RX ring, a power of two.
    pub slots: u32,
    /// Number of copiers (threads) that share the RX ring.
    pub copiers: u32,
    /// Size of each copier's ring, in MiB.
    pub ring_mib: u64,
}

/// A copier, for one thread.
pub struct SyntheticCopier {
    copier: Copier,
}

/// Creates the RX ring and its copiers. Each copier is for a thread of its own, and is returned with the ring that it
/// fills.
///
/// # Errors
/// No memory.
pub fn copiers(spec: SyntheticSpec) -> Result<Vec<(SyntheticCopier, Ring<Mapping>)>, CaptureError> {
    let queue = queue(spec.slots, spec.copiers).map_err(CaptureError::os("making an RX ring"))?;
    while queue.rings.receive(spec.frame_bytes, OFFSET, false, |_| {}) {}
    let queue = Arc::new(queue);
    let make = |number: usize| {
        let ring = ring(spec.ring_mib)?;
        let copier = copier(&queue, number, Fanout::into_ring(&ring, CHUNK_BYTES as usize));
        Ok((SyntheticCopier { copier }, ring))
    };
    (0..spec.copiers as usize).map(make).collect()
}

/// Creates a ring for a copier's frames.
fn ring(mib: u64) -> Result<Ring<Mapping>, CaptureError> {
    let spec = RingSpec {
        data_blocks: mib,
        interfaces: vec![weir_frame::pcapng::Interface { link_type: 1, ..Default::default() }],
        cpu: None,
        clock: Clock::Realtime,
        writer: WriterKind::User,
    };
    Ok(memory::create_memfd("weir-synthetic", &spec)?)
}

impl SyntheticCopier {
    /// Copies frames for this long, and sets the time stamp of each. Returns the number of frames.
    pub fn copy_for(&mut self, time: Duration) -> u64 {
        let queue = Arc::clone(&self.copier.queue);
        let before = self.copier.fanout.frames();
        let begin = Instant::now();
        while begin.elapsed() < time {
            for _ in 0..LOOK_BATCHES {
                // This copier has no frames, because other copiers are behind. One of them may need this CPU. The
                // engine's copier would free the CPU by sleeping.
                if self.copier.turn(&queue) == 0 {
                    std::thread::yield_now();
                }
                queue.rings.refill();
            }
        }
        self.copier.fanout.frames() - before
    }
}

fn queue(slots: u32, copiers: u32) -> io::Result<Queue> {
    let rings = kernel::rings(slots)?;
    rings.give_all(CHUNK_BYTES);
    Ok(Queue {
        rings,
        umem: Area::anonymous((slots * CHUNK_BYTES) as usize, Placement::default())?,
        chunk_bytes: CHUNK_BYTES,
        has_words: true,
        segments: Segments::new(copiers as usize, slots),
        socket: None,
        ending: AtomicBool::new(false),
        unreadable: AtomicU64::new(0),
    })
}

fn copier(queue: &Arc<Queue>, number: usize, fanout: Fanout) -> Copier {
    Copier {
        queue: Arc::clone(queue),
        segment: queue.segments.first_of(number),
        fanout,
        bytes_needed: CHUNK_BYTES as usize,
        queue_option: None,
        partial: Partial::default(),
        filled: 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use weir_ring::{Batch, Poll, Reader, Start};

    use super::*;

    /// Writes a frame that contains its number, with the hook's words before it. The stamp is the number
    /// too.
    fn write_frame(umem: &Area, address: u64, number: u64, len: u32) {
        let kind = 0x5765_6970u64 << 32;
        let words = umem.u64s(address as usize - 16, 2);
        words[0].store(number, Ordering::Relaxed);
        words[1].store(kind, Ordering::Relaxed);
        for word in umem.u64s(address as usize, len.div_ceil(8) as usize) {
            word.store(number, Ordering::Relaxed);
        }
    }

    /// All frames of a ring: stamp and length. Checks that the bytes contain the same number.
    fn read_all(ring: &Ring<Mapping>) -> Vec<(u64, u32)> {
        let mut reader = Reader::new(ring, Start::Oldest).unwrap();
        let (mut batch, mut frames) = (Batch::new(), Vec::new());
        loop {
            match reader.poll(&mut batch).unwrap() {
                Poll::Closed => return frames,
                Poll::Lapped(missed) => panic!("{missed} frames lapped: the ring is too small"),
                _ => {}
            }
            for record in batch.records() {
                let number = record.meta.ts_ns.to_ne_bytes();
                assert!(record.frame.chunks(8).all(|word| word == &number[..word.len()]));
                frames.push((record.meta.ts_ns, record.meta.wire_len));
            }
        }
    }

    /// Copies `frames` frames by `copiers` threads on a small ring, which wraps often.
    fn run(copiers: u32, frames: u64, parts: u32) -> (Vec<Vec<(u64, u32)>>, u64) {
        let queue = Arc::new(queue(1024, copiers).unwrap());
        let rings: Vec<_> = (0..copiers).map(|_| ring(32).unwrap()).collect();
        thread::scope(|scope| {
            for (number, ring) in rings.iter().enumerate() {
                let copier = copier(&queue, number, Fanout::into_ring(ring, CHUNK_BYTES as usize));
                scope.spawn(move || copier.run().unwrap());
            }
            let receive = |number: u64, len, continues| {
                let write = |address| write_frame(&queue.umem, address, number, len);
                while !queue.rings.receive(len, OFFSET, continues, write) {
                    thread::yield_now();
                }
            };
            for number in 1..=frames {
                for part in 1..=parts {
                    receive(number, 64 * part, part < parts);
                }
            }
            queue.ending.store(true, Ordering::Release);
        });
        let unreadable = queue.unreadable.load(Ordering::Relaxed);
        (rings.iter().map(read_all).collect(), unreadable)
    }

    #[test]
    fn every_frame_is_copied_once_and_in_order_within_a_ring() {
        const FRAMES: u64 = 100_000;
        for copiers in [1, 2, 3] {
            let (rings, unreadable) = run(copiers, FRAMES, 1);
            assert_eq!(unreadable, 0);
            for (number, ring) in rings.iter().enumerate() {
                assert!(ring.is_sorted(), "ring {number} of {copiers}");
                assert!(!ring.is_empty(), "ring {number} of {copiers} had its share");
            }
            let mut all = rings.concat();
            all.sort_unstable();
            let numbers = all.iter().map(|&(number, _)| number);
            assert!(numbers.eq(1..=FRAMES), "{copiers} copiers, {} frames", all.len());
        }
    }

    #[test]
    fn a_frame_in_several_chunks_is_one_frame() {
        let (rings, unreadable) = run(1, 5_000, 3);
        assert_eq!((unreadable, rings[0].len()), (0, 5_000));
        assert!(rings[0].iter().all(|&(_, wire_len)| wire_len == 64 + 128 + 192));
    }

    #[test]
    fn a_descriptor_to_nowhere_is_counted_and_harms_nothing() {
        let queue = Arc::new(queue(1024, 1).unwrap());
        // Beyond the chunk, beyond the UMEM, and valid.
        for len in [CHUNK_BYTES, u32::MAX, 64] {
            assert!(queue.rings.receive(len, OFFSET, false, |at| {
                if len == 64 {
                    write_frame(&queue.umem, at, 7, len);
                }
            }));
        }
        queue.ending.store(true, Ordering::Release);
        let ring = ring(4).unwrap();
        copier(&queue, 0, Fanout::into_ring(&ring, CHUNK_BYTES as usize)).run().unwrap();
        assert_eq!(queue.unreadable.load(Ordering::Relaxed), 2);
        assert_eq!(read_all(&ring), [(7, 64)]);
    }

    #[test]
    fn chunks_go_back_by_the_segment_and_when_nothing_more_comes() {
        let queue = Arc::new(queue(1024, 1).unwrap());
        for number in 1..=300 {
            assert!(queue.rings.receive(64, OFFSET, false, |at| write_frame(
                &queue.umem,
                at,
                number,
                64
            )));
        }
        let ring = ring(4).unwrap();
        let mut copier = copier(&queue, 0, Fanout::into_ring(&ring, CHUNK_BYTES as usize));
        let mut turns = [(64, 0), (64, 0), (64, 0), (64, 256), (44, 256), (0, 300)].into_iter();
        assert!(turns.all(|(count, released)| {
            copier.turn(&queue) == count && queue.segments.is_released(released)
        }));
        assert_eq!(ring.frames_written(), 300);
    }

    #[test]
    fn synthetic_copiers_copy() {
        let spec = SyntheticSpec { frame_bytes: 60, slots: 1024, copiers: 1, ring_mib: 4 };
        let mut copiers = copiers(spec).unwrap();
        let (copier, ring) = &mut copiers[0];
        let frames = copier.copy_for(Duration::from_millis(5));
        assert!(frames > 1000, "{frames}");
        assert_eq!(ring.frames_written(), frames);
    }
}
