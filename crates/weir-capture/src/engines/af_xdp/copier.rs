//! Copies frames from a socket's chunks to a ring, and sets the time stamp of frames that the program at the hook has
//! not stamped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use weir_frame::record::{CAPLEN_MAX, Meta};

use super::area::Area;
use super::rings::{Descriptor, Rings};
use super::segments::{OwnSegment, Segments};
use super::socket::Socket;
use super::words::{KIND_AT, WORDS_BYTES, Words};
use crate::error::CaptureError;
use crate::feed::fanout::Fanout;
use crate::kernel::vlan::{self, TAG_BYTES};

/// Most descriptors that a copier handles before it publishes their frames.
const BATCH: u32 = 64;
/// If frames are long, each is prefetched this many frames ahead of its copy, because the processor's prefetcher starts
/// anew at each chunk. This makes frames of 512 bytes 1.2 times as fast; short frames gain nothing.
const AHEAD: u32 = 2;
const LONG_BYTES: u32 = 256;
/// A copier that finds no frames checks again after this pause. After `PAUSES_MAX` pauses in a row, it sleeps in the
/// kernel until frames come.
const PAUSE: Duration = Duration::from_micros(20);
const PAUSES_MAX: u32 = 8;
/// Longest sleep in the kernel, and so the longest time until a copier notices that it must stop.
const SLEEP: Duration = Duration::from_millis(20);

/// A queue of the interface: its socket, rings and memory, and the division of the RX ring among copiers.
pub(super) struct Queue {
    pub(super) rings: Rings,
    pub(super) umem: Area,
    pub(super) chunk_bytes: u32,
    /// Whether the program at the hook writes metadata words in front of frames.
    pub(super) has_words: bool,
    pub(super) segments: Segments,
    /// `None` if the RX ring is synthetic.
    pub(super) socket: Option<Socket>,
    /// Whether no more frames will come.
    pub(super) ending: AtomicBool,
    /// Number of frames whose descriptor was invalid.
    pub(super) unreadable: AtomicU64,
}

impl Queue {
    /// Returns the bytes that a descriptor describes; `None` if they are not within one chunk.
    ///
    /// # Safety
    /// The descriptor's index is between `released` and `filled`, and belongs to the caller (`Segments`).
    #[inline]
    unsafe fn frame(&self, descriptor: Descriptor) -> Option<&[u8]> {
        let offset = descriptor.address & u64::from(self.chunk_bytes - 1);
        if offset + u64::from(descriptor.len) > u64::from(self.chunk_bytes) {
            return None;
        }
        // SAFETY: the bytes are within one chunk, and between `filled` and `released` only the caller accesses that
        // chunk.
        unsafe { self.umem.bytes(descriptor.address, descriptor.len) }
    }

    /// Prefetches the frame at this index.
    #[inline]
    fn prefetch(&self, index: u32) {
        let Descriptor { address, len, .. } = self.rings.descriptor(index);
        // A descriptor may contain any length; at most one chunk is prefetched.
        let lines = (0..u64::from(len.min(self.chunk_bytes))).step_by(64);
        lines.for_each(|at| self.umem.prefetch(address.wrapping_add(at)));
    }

    /// Takes the metadata words that the program at the hook wrote in front of the frame, and clears them, so that the
    /// next frame in this chunk does not get outdated words.
    ///
    /// # Safety
    /// As [`frame`](Queue::frame).
    #[inline]
    unsafe fn take_words(&self, descriptor: Descriptor) -> Option<Words> {
        let offset = descriptor.address & u64::from(self.chunk_bytes - 1);
        let at = descriptor.address.checked_sub(u64::from(WORDS_BYTES))?;
        if !self.has_words || offset < u64::from(WORDS_BYTES) {
            return None;
        }
        // SAFETY: the words are in front of the frame, in the same chunk.
        let words = Words::parse(unsafe { self.umem.bytes(at, WORDS_BYTES) }?.first_chunk()?);
        if words.is_some() && at.is_multiple_of(4) {
            self.umem.u32(at as usize + KIND_AT).store(0, Ordering::Relaxed);
        }
        words
    }

    /// Gives the kernel the slots and chunks that all copiers have finished.
    #[inline]
    fn release(&self) {
        let given = self.segments.release(|index| self.rings.release(index));
        if given
            && self.rings.needs_wakeup()
            && let Some(socket) = &self.socket
        {
            socket.wake_kernel();
        }
    }
}

/// The work of one thread on a queue.
pub(super) struct Copier {
    pub(super) queue: Arc<Queue>,
    pub(super) segment: OwnSegment,
    pub(super) fanout: Fanout,
    /// The most bytes of a frame that any feed needs.
    pub(super) bytes_needed: usize,
    /// The queue number, if it is to be recorded as an option of each frame.
    pub(super) queue_option: Option<u32>,
    pub(super) partial: Partial,
    /// The RX index up to which the kernel had filled descriptors when it was last read.
    pub(super) filled: u32,
}

/// Assembles a frame that is in several chunks.
#[derive(Default)]
pub(super) struct Partial {
    bytes: Vec<u8>,
    wire_len: u32,
    words: Option<Words>,
    is_open: bool,
    /// Whether the descriptor of a part was invalid.
    is_bad: bool,
}

impl Copier {
    /// Copies frames until the queue ends, then closes the ring.
    ///
    /// # Errors
    /// Waiting for frames failed. The ring is closed nevertheless.
    pub(super) fn run(mut self) -> Result<(), CaptureError> {
        let result = self.copy_all();
        self.fanout.close();
        result
    }

    fn copy_all(&mut self) -> Result<(), CaptureError> {
        let queue = Arc::clone(&self.queue);
        let mut pauses = 0;
        loop {
            // Read before the RX ring, so that all frames before the end are copied.
            let ending = queue.ending.load(Ordering::Acquire);
            if self.turn(&queue) > 0 {
                pauses = 0;
                continue;
            }
            if ending {
                return Ok(());
            }
            self.fanout.leave();
            if pauses < PAUSES_MAX || !self.is_ring_empty() {
                pauses += 1;
                thread::sleep(PAUSE);
                continue;
            }
            match &queue.socket {
                Some(socket) => {
                    socket.wait(SLEEP).map_err(CaptureError::os("waiting for frames"))?;
                }
                None => thread::sleep(PAUSE),
            }
        }
    }

    /// Returns true if no copier has a descriptor to copy; then it makes sense to wait for the socket.
    fn is_ring_empty(&self) -> bool {
        self.queue.segments.is_released(self.queue.rings.filled())
    }

    /// Copies the available descriptors of this copier, at most one batch, and returns their number. `queue` is the
    /// copier's own queue. It is passed by reference, because cloning the `Arc` in each call would write its reference
    /// count, which shares a cache line with words that all copiers read.
    #[inline]
    pub(super) fn turn(&mut self, queue: &Queue) -> u32 {
        let mut count = self.segment.ready(self.filled, BATCH);
        if count == 0 {
            // Read only if necessary: the kernel writes this cache line at every flush, and reading takes the line away
            // from the kernel's CPU.
            self.filled = queue.rings.filled();
            count = self.segment.ready(self.filled, BATCH);
        }
        if count == 0 {
            // Releases the progress since the last end of a segment, and descriptors that an earlier call did not
            // release because another copier was releasing.
            queue.release();
            return 0;
        }
        let chunk_mask = !u64::from(queue.chunk_bytes - 1);
        let first = self.segment.at();
        // The first frame's length serves as an estimate for the batch.
        let is_long = queue.rings.descriptor(first).len >= LONG_BYTES;
        let ahead = if is_long { AHEAD } else { BATCH };
        for index in 0..count {
            if index + ahead < count {
                queue.prefetch(first.wrapping_add(index + ahead));
            }
            let index = first.wrapping_add(index);
            let descriptor = queue.rings.descriptor(index);
            self.take(queue, descriptor);
            queue.rings.give_back(index, descriptor.address & chunk_mask);
        }
        self.fanout.publish();
        // Release after each segment and not after each batch, because the kernel and all copiers share the words that
        // a release writes. The ring has slots for two segments of each copier, so the kernel still has chunks.
        if queue.segments.advance(&mut self.segment, count) {
            queue.release();
        }
        count
    }

    /// Copies one frame, or a part of one.
    #[inline]
    fn take(&mut self, queue: &Queue, descriptor: Descriptor) {
        if descriptor.continues || self.partial.is_open {
            return self.take_part(queue, descriptor);
        }
        // SAFETY: the descriptor is between `released` and `filled`, so the chunk is ours until `advance`, which is
        // called after the whole batch; only this copier has this index (`Segments`).
        let (bytes, words) = unsafe { (queue.frame(descriptor), queue.take_words(descriptor)) };
        match bytes {
            Some(bytes) => self.push(bytes, descriptor.len, words),
            None => drop(queue.unreadable.fetch_add(1, Ordering::Relaxed)),
        }
    }

    #[cold]
    fn take_part(&mut self, queue: &Queue, descriptor: Descriptor) {
        let partial = &mut self.partial;
        if !partial.is_open {
            *partial = Partial { bytes: std::mem::take(&mut partial.bytes), ..Partial::default() };
            partial.bytes.clear();
            partial.is_open = true;
            // SAFETY: as in `take`.
            partial.words = unsafe { queue.take_words(descriptor) };
        }
        // SAFETY: as in `take`.
        match unsafe { queue.frame(descriptor) } {
            Some(bytes) => {
                let room = (CAPLEN_MAX as usize).saturating_sub(partial.bytes.len());
                partial.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
                partial.wire_len = partial.wire_len.saturating_add(descriptor.len);
            }
            None => partial.is_bad = true,
        }
        if descriptor.continues {
            return;
        }
        partial.is_open = false;
        if partial.is_bad {
            queue.unreadable.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (bytes, wire_len, words) =
            (std::mem::take(&mut partial.bytes), partial.wire_len, partial.words);
        self.push(&bytes, wire_len, words);
        self.partial.bytes = bytes;
    }

    #[inline]
    fn push(&mut self, frame: &[u8], wire_len: u32, words: Option<Words>) {
        let ts_ns = match words {
            Some(words) => words.ts_ns,
            None => now_ns(),
        };
        let mut meta =
            Meta { interface_id: 0, ts_ns, wire_len, flags: None, queue: self.queue_option };
        match words.and_then(|words| words.tag) {
            None => self.fanout.push(&meta, frame),
            Some(tag) => {
                meta.wire_len = meta.wire_len.saturating_add(TAG_BYTES as u32);
                let mut scratch = Vec::with_capacity(frame.len() + TAG_BYTES);
                let whole = vlan::put_back(&mut scratch, frame, tag, self.bytes_needed);
                self.fanout.push(&meta, whole);
            }
        }
    }
}

/// Returns the time of the realtime clock, in ns since the Unix epoch.
#[inline]
fn now_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}
