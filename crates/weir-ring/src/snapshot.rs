//! Copies a live ring into a pcapng file.

use std::io::{self, Write};

use thiserror::Error;

use crate::batch::Batch;
use crate::error::RingError;
use crate::reader::{Poll, Reader, Start};
use crate::{Ring, Words};

/// Contents of a snapshot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Frames in the file.
    pub frames: u64,
    /// Frames that the writer overwrote while the snapshot was being taken.
    pub lapped: u64,
}

/// Why a snapshot could not be taken.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// An error of the ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// An error of the output. Everything that was written before it is complete pcapng blocks.
    #[error("writing a snapshot")]
    Write(#[from] io::Error),
}

/// How often a poll is repeated that returned `Empty` although there are frames, because the writer kept overtaking the
/// reader.
const LOOKS_MAX: u32 = 100;

/// Writes the frames that are in the ring now, oldest first, as a complete pcapng file.
///
/// The writer keeps writing meanwhile. Once the ring has wrapped, its oldest half is omitted, because it is about to be
/// overwritten. Frames that are written after the call begins are omitted, too; otherwise the copy might never end.
///
/// # Errors
/// [`SnapshotError`].
pub fn snapshot<M: Words>(ring: &Ring<M>, out: &mut impl Write) -> Result<Snapshot, SnapshotError> {
    let (reader, until) = begin(ring)?;
    // Read after `until`: an interface that joins later has no frame before `until`.
    out.write_all(&ring.identity()?.pcapng_header)?;
    copy_frames(reader, until, out)
}

/// Returns a reader, and the ordinal of the first frame that is not part of the snapshot.
fn begin<M: Words>(ring: &Ring<M>) -> Result<(Reader<M>, u64), RingError> {
    let reader = Reader::new(ring, Start::Oldest)?;
    // Loaded after the reader was placed, so that it is not before the reader's position.
    Ok((reader, ring.frames_written()))
}

/// Copies the frames, without a header. Each frame before `until` is either written to the file or counted as lapped.
fn copy_frames<M: Words>(
    mut reader: Reader<M>,
    until: u64,
    out: &mut impl Write,
) -> Result<Snapshot, SnapshotError> {
    let mut taken = Snapshot::default();
    let mut batch = Batch::new();
    let mut looks = 0;
    while reader.ordinal() < until {
        let before = reader.ordinal();
        match reader.poll(&mut batch)? {
            Poll::Frames(frames) => {
                let wanted = (until - before).min(u64::from(frames));
                let bytes: usize =
                    batch.records().take(wanted as usize).map(|record| record.block.len()).sum();
                out.write_all(&batch.block_bytes()[..bytes])?;
                taken.frames += wanted;
            }
            Poll::Lapped(_) => taken.lapped += reader.ordinal().min(until) - before,
            // These frames were published: `Empty` means that the writer was faster than every try.
            Poll::Empty if looks < LOOKS_MAX => {
                looks += 1;
                std::thread::yield_now();
            }
            Poll::Empty | Poll::Closed => {
                return Err(reader.corrupt("fewer frames than the writer counted").into());
            }
        }
    }
    Ok(taken)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Writer;
    use crate::sync::AtomicU64;
    use crate::testing::{heap_ring, meta};
    use weir_frame::record::Record;

    /// An output during whose first record the writer goes on, as with a slow disk.
    struct Slow<'a> {
        writer: &'a mut Writer<Vec<AtomicU64>>,
        blocks: u64,
        bytes: Vec<u8>,
    }

    impl Write for Slow<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.bytes.extend_from_slice(bytes);
            for _ in 0..std::mem::take(&mut self.blocks) {
                self.writer.push(&meta(self.writer.frames()), &[]);
                self.writer.close_block();
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn frames_that_come_meanwhile_are_left_out_and_overwritten_ones_counted() {
        for (blocks, frames, lapped) in [(0, 4, 0), (1, 3, 1), (2, 2, 2), (3, 1, 3), (40, 1, 3)] {
            let ring = heap_ring();
            let mut writer = Writer::new(ring.clone());
            for ordinal in 0..4 {
                writer.push(&meta(ordinal), &[]);
                writer.close_block();
            }
            let mut out = Slow { writer: &mut writer, blocks, bytes: Vec::new() };
            let (reader, until) = begin(&ring).unwrap();
            let taken = copy_frames(reader, until, &mut out).unwrap();
            assert_eq!(taken, Snapshot { frames, lapped }, "{blocks} blocks meanwhile");
            let mut rest = &out.bytes[..];
            let mut found = Vec::new();
            while let Ok(record) = Record::parse(rest) {
                found.push(record.meta.ts_ns - meta(0).ts_ns);
                rest = &rest[record.block.len()..];
            }
            let want: Vec<u64> = (0..4).filter(|&i| i == 0 || i > lapped).collect();
            assert_eq!(found, want);
        }
    }

    #[test]
    fn a_ring_that_counts_more_frames_than_it_has_is_refused() {
        let ring = heap_ring();
        let mut writer = Writer::new(ring.clone());
        writer.push(&meta(0), &[]);
        writer.publish();
        let word = ring.geometry().writer_word(crate::geometry::WriterWord::Ordinal);
        ring.memory()[word].store(1 << 60, crate::sync::Ordering::Relaxed);
        let mut out = Vec::new();
        let (reader, until) = begin(&ring).unwrap();
        assert!(matches!(copy_frames(reader, until, &mut out), Err(SnapshotError::Ring(_))));
    }
}
