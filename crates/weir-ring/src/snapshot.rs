//! A live ring as a pcapng file.

use std::io::{self, Write};

use thiserror::Error;

use crate::batch::Batch;
use crate::error::RingError;
use crate::reader::{Poll, Reader, Start};
use crate::{Ring, Words};

/// What a snapshot holds.
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
    /// The ring.
    #[error(transparent)]
    Ring(#[from] RingError),
    /// The output; what was written before it is whole blocks.
    #[error("writing a snapshot: {0}")]
    Write(#[from] io::Error),
}

/// Writes the frames that lie in the ring now, oldest first, as a whole pcapng file.
///
/// The ring goes on being written. The oldest half of a full ring is left out: it is about to be
/// overwritten. Frames that come after the call are left out too, so that this ends.
///
/// # Errors
/// [`SnapshotError`].
pub fn snapshot<M: Words>(ring: &Ring<M>, out: &mut impl Write) -> Result<Snapshot, SnapshotError> {
    out.write_all(&ring.identity()?.pcapng_header)?;
    let until = ring.frames_written();
    let mut reader = Reader::new(ring, Start::Oldest)?;
    let mut batch = Batch::new();
    while reader.ordinal() < until {
        match reader.poll(&mut batch)? {
            Poll::Frames(_) => {
                let over = reader.ordinal().saturating_sub(until) as usize;
                let keep = batch.len() - over;
                let bytes: usize = batch.records().take(keep).map(|r| r.block.len()).sum();
                out.write_all(&batch.block_bytes()[..bytes])?;
            }
            Poll::Lapped(_) => {}
            Poll::Empty | Poll::Closed => break,
        }
    }
    let over = reader.ordinal().saturating_sub(until);
    let lapped = reader.lapped();
    Ok(Snapshot { frames: reader.delivered().saturating_sub(over), lapped })
}
