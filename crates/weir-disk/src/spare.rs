//! Used buffers that are kept for reuse. To allocate new memory costs more than to copy into it, because the kernel
//! clears and maps each page on first access.

use crate::buffer::Buffer;
use crate::limits::SPARE_BUFFERS_MAX;

/// A buffer may be at most this many times as large as requested, so that small requests do not take large
/// buffers.
const TIMES_MAX: usize = 4;

/// Used buffers, kept for reuse.
#[derive(Default)]
pub struct Spare {
    /// The buffer that was returned last is taken first, because it may still be in a CPU's cache.
    buffers: Vec<Buffer>,
}

impl Spare {
    /// Returns an empty buffer for at least `bytes` bytes.
    pub fn take(&mut self, bytes: usize) -> Buffer {
        let fits = |buffer: &Buffer| {
            let room = buffer.capacity();
            room >= bytes && room <= Buffer::rounded(bytes).saturating_mul(TIMES_MAX)
        };
        let Some(at) = self.buffers.iter().rposition(fits) else { return Buffer::new(bytes) };
        let mut buffer = self.buffers.remove(at);
        buffer.clear();
        buffer
    }

    /// Keeps a used buffer. If there are too many, drops the oldest.
    pub fn give(&mut self, buffer: Buffer) {
        if self.buffers.len() == SPARE_BUFFERS_MAX {
            self.buffers.remove(0);
        }
        self.buffers.push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buffer::ALIGN_BYTES;

    #[test]
    fn a_buffer_is_used_again_empty_for_what_is_about_its_size() {
        let mut spare = Spare::default();
        let mut large = Buffer::new(1 << 20);
        large.extend_from_slice(b"old");
        let place = large.as_slice().as_ptr();
        spare.give(large);
        assert_eq!(spare.take(ALIGN_BYTES).capacity(), ALIGN_BYTES, "a small one of its own");
        assert_eq!(spare.take((1 << 20) + 1).capacity(), (1 << 20) + ALIGN_BYTES);
        let again = spare.take(1 << 19);
        assert_eq!((again.as_slice().as_ptr(), again.filled()), (place, 0));
        assert_ne!(spare.take(1 << 20).as_slice().as_ptr(), place, "it is taken");
    }

    #[test]
    fn no_more_than_so_many_are_kept() {
        let mut spare = Spare::default();
        (0..2 * SPARE_BUFFERS_MAX).for_each(|_| spare.give(Buffer::new(ALIGN_BYTES)));
        assert_eq!(spare.buffers.len(), SPARE_BUFFERS_MAX);
    }
}
