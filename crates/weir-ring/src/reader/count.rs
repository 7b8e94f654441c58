//! Counts frames in place: walks over record headers in shared words, without a copy.

use weir_frame::record::{EPB_TYPE, HEADER_BYTES, TRAILER_BYTES, padded};

use super::{Look, Poll, Reader, STEPS_MAX};
use crate::Words;
use crate::batch::WalkEnd;
use crate::copy;
use crate::error::RingError;
use crate::sync::{AtomicU64, Ordering};

/// Counts of frames.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Number of frames.
    pub frames: u64,
    /// Kept bytes of these frames.
    pub kept_bytes: u64,
    /// Bytes of these frames on the wire.
    pub wire_bytes: u64,
    /// Timestamp of the newest of these frames, nanoseconds since the Unix epoch.
    pub last_ns: u64,
}

impl Tally {
    fn add(&mut self, found: &Tally) {
        // Saturating: a hostile ring may claim 4 GiB for each frame, without end.
        self.frames = self.frames.saturating_add(found.frames);
        self.kept_bytes = self.kept_bytes.saturating_add(found.kept_bytes);
        self.wire_bytes = self.wire_bytes.saturating_add(found.wire_bytes);
        self.last_ns = found.last_ns;
    }
}

impl<M: Words> Reader<M> {
    /// Counts at most `frames_max` records in place, and moves past them.
    ///
    /// Reads one or two cache lines of each frame, whatever its length. If the block is reclaimed during the walk,
    /// nothing is added to `tally`. With `frames_max` 0, returns `Poll::Empty`.
    ///
    /// # Errors
    /// As [`poll`](Reader::poll).
    pub fn count_in_place(
        &mut self,
        tally: &mut Tally,
        frames_max: u32,
    ) -> Result<Poll, RingError> {
        if frames_max == 0 {
            return Ok(Poll::Empty);
        }
        for _ in 0..STEPS_MAX {
            let (committed, until) = match self.look()? {
                Look::Committed { bytes, until } => (bytes, until),
                Look::Other(poll) => return Ok(poll),
            };
            let words = self.block_words();
            let Counted { found, highest_id, at, end } =
                count_words(words, self.at, committed, until, frames_max);
            if !self.confirm() {
                return self.lapped_now();
            }
            if found.frames > 0 {
                self.check_interface(highest_id)?;
                self.advance(at, found.frames)?;
                tally.add(&found);
                return Ok(Poll::Frames(found.frames as u32));
            }
            self.pass_padding(end, committed)?;
        }
        Ok(Poll::Empty)
    }
}

/// How many records ahead a header is prefetched. The position of the next record is known only after the current one
/// was read, so without prefetching each long frame costs an access to memory: 145 ns for 1518 bytes, and 33 ns with
/// it. 32 of the shortest records are 3 KiB.
pub(super) const RECORDS_AHEAD: u32 = 32;

/// After this many records of the same length, more of them are expected, and [`count_alike`] counts them. In traffic
/// of mixed lengths, each attempt would be a branch that the processor mispredicts.
const ALIKE_MIN: u32 = 8;

/// Walks over record headers in shared words. Every length is loaded once and bounded by `committed`, so hostile words
/// can do no more than end the walk.
fn count_words(
    words: &[AtomicU64],
    mut at: u32,
    committed: u32,
    until: u32,
    frames_max: u32,
) -> Counted {
    let mut tally = Tally::default();
    let mut highest_id = 0;
    let mut last = (0, 0);
    let mut alike = 0;
    let end = loop {
        if at >= until || tally.frames == u64::from(frames_max) {
            break WalkEnd::Everything;
        }
        let Head { bytes, interface_id, caplen, wire_len, ts_ns } =
            match Head::check(words, at, committed) {
                Ok(head) => head,
                Err(end) => break end,
            };
        if bytes > until - at && tally.frames > 0 {
            break WalkEnd::Everything;
        }
        // Guess: the next records are as long as this one.
        let ahead = at.saturating_add(bytes.saturating_mul(RECORDS_AHEAD));
        if ahead < until {
            copy::prefetch(words, ahead);
        }
        tally.frames += 1;
        tally.kept_bytes += u64::from(caplen);
        tally.wire_bytes += u64::from(wire_len);
        tally.last_ns = ts_ns;
        highest_id = interface_id.max(highest_id);
        at += bytes;
        alike = if last == (bytes, caplen) { alike + 1 } else { 0 };
        last = (bytes, caplen);
        if alike >= ALIKE_MIN && (at | bytes).is_multiple_of(8) {
            alike = 0;
            let most = frames_max as usize - tally.frames as usize;
            let run = &words[at as usize / 8..until as usize / 8];
            let count = count_alike(run, bytes, caplen, most, &mut tally, &mut highest_id);
            at += count * bytes;
        }
    };
    Counted { found: tally, highest_id, at, end }
}

/// Counts up to `most` records, as long as their headers have the same type and lengths as a valid record: such records
/// are valid, too. Returns their number. Without the checks this takes a third of the time of the walk above. It saves
/// most where branches are expensive, as in an emulated guest.
fn count_alike(
    words: &[AtomicU64],
    bytes: u32,
    caplen: u32,
    most: usize,
    tally: &mut Tally,
    highest_id: &mut u32,
) -> u32 {
    let step = bytes as usize / 8;
    let (first, mut count, mut wire_bytes, mut highest, mut ts) =
        (copy::join(EPB_TYPE, bytes), 0, 0, 0, (0, 0));
    let mut rest = &words[..words.len().min(most.saturating_mul(step))];
    while let Some((record, behind)) = rest.split_at_checked(step) {
        let Some(words) = record.first_chunk::<4>() else { break };
        let [a, b, c, d] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        if (a ^ first) | ((c >> 32) ^ u64::from(caplen)) != 0 {
            break;
        }
        copy::prefetch(rest, bytes * RECORDS_AHEAD);
        count += 1;
        wire_bytes += d & u64::from(u32::MAX);
        highest = highest.max(b as u32);
        ts = (b, c);
        rest = behind;
    }
    if count > 0 {
        tally.frames += u64::from(count);
        tally.kept_bytes += u64::from(count) * u64::from(caplen);
        tally.wire_bytes += wire_bytes;
        tally.last_ns = ts.0 >> 32 << 32 | ts.1 & u64::from(u32::MAX);
        *highest_id = highest.max(*highest_id);
    }
    count
}

/// The result of a walk over record headers.
struct Counted {
    found: Tally,
    highest_id: u32,
    /// Where the walk ended, and why.
    at: u32,
    end: WalkEnd,
}

/// Fields of a record's header, loaded once.
pub(super) struct Head {
    pub bytes: u32,
    pub interface_id: u32,
    pub caplen: u32,
    pub wire_len: u32,
    pub ts_ns: u64,
}

impl Head {
    /// Loads the header of the record at `at`. The record must end at `committed` or before; both are multiples of 4.
    /// If there is no complete record, returns why the walk ends.
    #[inline]
    pub fn check(words: &[AtomicU64], at: u32, committed: u32) -> Result<Head, WalkEnd> {
        // `left` is at least 4.
        let left = committed - at;
        if left < HEADER_BYTES + TRAILER_BYTES {
            let bytes = if left >= 8 { half(words, at + 4) } else { 0 };
            return Err(WalkEnd::OtherBlock { block_type: half(words, at), bytes });
        }
        let (block_type, head) = Head::load(words, at);
        let bytes = head.bytes;
        if block_type != EPB_TYPE {
            return Err(WalkEnd::OtherBlock { block_type, bytes });
        }
        let least = u64::from(HEADER_BYTES + TRAILER_BYTES)
            + u64::from(padded(head.caplen.min(u32::MAX - 3)));
        if u64::from(bytes) < least || bytes > left || !bytes.is_multiple_of(4) {
            return Err(WalkEnd::Corrupt);
        }
        Ok(head)
    }

    /// Returns the type of the block at `at`, and its header. `at` is a multiple of 4, and at least 32 bytes follow it.
    #[inline]
    fn load(words: &[AtomicU64], at: u32) -> (u32, Head) {
        let words = words[at as usize / 8..].first_chunk::<4>().expect("32 bytes are there");
        let [a, b, c, d] = words.each_ref().map(|word| word.load(Ordering::Relaxed));
        let high = |word: u64| (word >> 32) as u32;
        if at.is_multiple_of(8) {
            let ts_ns = b >> 32 << 32 | c & u64::from(u32::MAX);
            let (bytes, interface_id) = (high(a), b as u32);
            (a as u32, Head { bytes, interface_id, caplen: high(c), wire_len: d as u32, ts_ns })
        } else {
            let ts_ns = c.rotate_left(32);
            let (bytes, interface_id) = (b as u32, high(b));
            (high(a), Head { bytes, interface_id, caplen: d as u32, wire_len: high(d), ts_ns })
        }
    }
}

/// Returns the 32 bits at byte `at`, a multiple of 4.
#[inline]
fn half(words: &[AtomicU64], at: u32) -> u32 {
    let word = words[at as usize / 8].load(Ordering::Relaxed);
    if at.is_multiple_of(8) { word as u32 } else { (word >> 32) as u32 }
}
