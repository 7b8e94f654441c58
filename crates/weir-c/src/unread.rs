//! The frames of a reader's current run (`weir_client::FeedReader::run`) that were not handed out yet.

use weir_frame::record::Record;

use crate::failure::{Code, Failure};

/// Records in a reader's memory. The owner must not let the reader take more frames while this value or the results of
/// [`take`](Unread::take) and [`take_all`](Unread::take_all) are in use.
pub struct Unread {
    at: *const u8,
    bytes: usize,
    frames: u64,
}

// SAFETY: `at` points into memory of the reader. The reader is in the same struct (`Feed`) as this value, so both move
// to another thread together.
unsafe impl Send for Unread {}

impl Unread {
    pub const NONE: Unread =
        Unread { at: std::ptr::NonNull::dangling().as_ptr(), bytes: 0, frames: 0 };

    /// Takes all frames of a run.
    pub fn of(block_bytes: &[u8], frames: u64) -> Unread {
        Unread { at: block_bytes.as_ptr(), bytes: block_bytes.len(), frames }
    }

    /// Returns the number of frames that remain.
    pub fn frames(&self) -> u64 {
        self.frames
    }

    /// Returns the next frame; `None` after the last.
    ///
    /// # Errors
    /// The next bytes are not a record. The rest of the run is dropped then.
    ///
    /// # Safety
    /// The reader has taken no more frames since [`of`](Unread::of), and takes none as long as the frame is in use. The
    /// reader may have been leaked (`mem::forget`), as in the child of a fork: its memory stays.
    #[inline]
    pub unsafe fn take<'a>(&mut self) -> Result<Option<Record<'a>>, Failure> {
        if self.bytes == 0 {
            return Ok(None);
        }
        // SAFETY: these bytes are the end of the slice that `of` was given. The caller promises that they still exist
        // and that nothing writes to them.
        let bytes = unsafe { std::slice::from_raw_parts(self.at, self.bytes) };
        match Record::parse(bytes) {
            Ok(record) => {
                let rest = &bytes[record.block.len()..];
                *self = Unread::of(rest, self.frames.saturating_sub(1));
                Ok(Some(record))
            }
            Err(error) => {
                *self = Unread::NONE;
                Err(Failure { code: Code::Corrupt, text: format!("the daemon's memory: {error}") })
            }
        }
    }

    /// Returns all remaining frames: the address of their records, the length of the records in bytes, the number of
    /// frames.
    pub fn take_all(&mut self) -> (*const u8, usize, u64) {
        let Unread { at, bytes, frames } = std::mem::replace(self, Unread::NONE);
        (at, bytes, frames)
    }
}

#[cfg(test)]
mod tests {
    use weir_frame::record::{Meta, append};

    use super::*;

    #[test]
    fn frames_come_one_by_one_and_then_the_rest() {
        let mut bytes = Vec::new();
        for frame in [&[1_u8; 60][..], &[2; 61], &[3; 62]] {
            append(&mut bytes, &Meta { wire_len: 90, ..Meta::default() }, frame);
        }
        let mut unread = Unread::of(&bytes, 3);
        // SAFETY: `bytes` is not changed until the end of the test.
        let first = unsafe { unread.take() }.unwrap().unwrap();
        assert_eq!((first.frame, unread.frames()), (&[1_u8; 60][..], 2));
        let (at, len, frames) = unread.take_all();
        assert_eq!((at, len, frames), (bytes[first.block.len()..].as_ptr(), bytes.len() - 92, 2));
        // SAFETY: as above.
        assert!(unsafe { unread.take() }.unwrap().is_none());
        let mut cut = Unread::of(&bytes[..50], 1);
        // SAFETY: as above.
        assert_eq!(unsafe { cut.take() }.unwrap_err().code, Code::Corrupt);
        assert_eq!(cut.frames(), 0);
    }
}
