//! The portable implementation: copies whole 64-bit words, each of them an atomic. Models use it, and tests compare the
//! other implementation with it.

use weir_frame::record::{self, Meta};

use super::join;
use crate::sync::{AtomicU64, Ordering};

/// Copies words out of a ring.
pub fn load(to: &mut [u64], from: &[AtomicU64]) {
    for (own, shared) in to.iter_mut().zip(from) {
        *own = shared.load(Ordering::Relaxed);
    }
}

/// Does nothing: only `vector` prefetches.
#[cfg(any(loom, miri, not(target_arch = "x86_64")))]
pub fn prefetch(_: &[AtomicU64], _: u32) {}

/// Stores a record from byte `at` on, in whole 64-bit words only.
///
/// A word is the unit of atomicity: Rust does not define the result of atomic accesses of different widths to the same
/// bytes. A record may begin in the upper half of a word whose lower half is already published. Then the lower half is
/// loaded (this writer stored it) and stored again unchanged, which no reader can notice.
#[inline(always)]
pub fn store_record(words: &[AtomicU64], at: u32, meta: &Meta, frame: &[u8]) {
    let caplen = frame.len() as u32;
    let [h0, h1, h2, h3, h4, h5, h6] = record::header(meta, caplen);
    // `h1` is the length of the record. All bounds are checked here, once.
    let out = &words[at as usize / 8..(at + h1).div_ceil(8) as usize];
    let store = |word: &AtomicU64, value: u64| word.store(value, Ordering::Relaxed);
    let Some((head, out)) = out.split_first_chunk::<4>() else { unreachable!("32 bytes or more") };
    let body = if at.is_multiple_of(8) {
        store(&head[0], join(h0, h1));
        store(&head[1], join(h2, h3));
        store(&head[2], join(h4, h5));
        let Some((start, body)) = frame.split_first_chunk::<4>() else {
            // The frame has fewer than 4 bytes, so it does not fill the last word of the header. If it is empty, the
            // tail begins in that word.
            return store_short(&head[3], out, h6, frame, meta);
        };
        store(&head[3], join(h6, u32::from_le_bytes(*start)));
        body
    } else {
        let kept = head[0].load(Ordering::Relaxed) as u32;
        store(&head[0], join(kept, h0));
        store(&head[1], join(h1, h2));
        store(&head[2], join(h3, h4));
        store(&head[3], join(h5, h6));
        frame
    };
    let (whole, end) = body.as_chunks::<8>();
    let (body_words, out) = out.split_at(whole.len());
    for (word, bytes) in body_words.iter().zip(whole) {
        store(word, u64::from_le_bytes(*bytes));
    }
    store_tail(out, end, meta, caplen);
}

/// Stores the end of an aligned record whose frame has fewer than 4 bytes. `h6` is the last 32-bit word of its header.
fn store_short(last: &AtomicU64, out: &[AtomicU64], h6: u32, frame: &[u8], meta: &Meta) {
    let tail = record::tail(meta, frame.len() as u32);
    let frame = (!frame.is_empty()).then(|| partial(frame) as u32);
    let mut rest = frame.iter().chain(tail.words());
    last.store(join(h6, *rest.next().expect("a tail is never empty")), Ordering::Relaxed);
    for word in out {
        let [low, high] = [rest.next(), rest.next()].map(|half| half.copied().unwrap_or(0));
        word.store(join(low, high), Ordering::Relaxed);
    }
}

/// Stores the last bytes of a frame, fewer than 8, and the tail words.
#[inline(always)] // else each frame of an engine that pushes frames one by one costs one more call
fn store_tail(mut out: &[AtomicU64], end: &[u8], meta: &Meta, caplen: u32) {
    if meta.flags.is_none() && meta.queue.is_none() {
        return store_length(out, end, record::record_bytes(meta, caplen));
    }
    let mut put = |value: u64| {
        let (word, rest) = out.split_first().expect("the record's words were counted");
        word.store(value, Ordering::Relaxed);
        out = rest;
    };
    // Padded to a multiple of 4, the last bytes of the frame are no, one or two 32-bit words.
    let mut half = None;
    match end.len() {
        0 => {}
        1..=4 => half = Some(partial(end) as u32),
        _ => put(partial(end)),
    }
    for &word in record::tail(meta, caplen).words() {
        match half.take() {
            None => half = Some(word),
            Some(low) => put(join(low, word)),
        }
    }
    if let Some(low) = half {
        put(u64::from(low));
    }
}

/// Does the same as [`store_tail`] for a record without options: only the length follows the frame.
#[inline]
fn store_length(out: &[AtomicU64], end: &[u8], bytes: u32) {
    match end.len() {
        0 => out[0].store(u64::from(bytes), Ordering::Relaxed),
        1..=4 => out[0].store(join(partial(end) as u32, bytes), Ordering::Relaxed),
        _ => {
            out[0].store(partial(end), Ordering::Relaxed);
            out[1].store(u64::from(bytes), Ordering::Relaxed);
        }
    }
}

/// Returns fewer than 8 bytes as the low end of a word, with at most two overlapping loads.
#[inline]
fn partial(bytes: &[u8]) -> u64 {
    let shift = |kept: usize| 8 * (bytes.len() - kept);
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(low), Some(high)) => {
            u64::from(u32::from_le_bytes(*low)) | u64::from(u32::from_le_bytes(*high)) << shift(4)
        }
        _ => match *bytes {
            [a, b, c] => u64::from(a) | u64::from(b) << 8 | u64::from(c) << 16,
            [a, b] => u64::from(a) | u64::from(b) << 8,
            [a] => u64::from(a),
            _ => 0,
        },
    }
}
