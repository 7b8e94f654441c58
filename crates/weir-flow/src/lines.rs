//! Memory aligned to cache lines, and vector operations on a whole line. The only unsafe code of the crate.

#![allow(
    unsafe_code,
    reason = "mappings, prefetches and vector instructions; each has its argument"
)]

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use thiserror::Error;

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;
/// Bytes of a huge page of x86-64 and arm64.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// A cache line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C, align(64))]
pub struct Line(pub [u64; 8]);

const _: () = assert!(size_of::<Line>() == LINE_BYTES);

/// The memory for a table cannot be allocated.
#[derive(Debug, Error)]
#[error("a flow table takes {bytes} bytes, which this machine does not give; ask for fewer flows")]
pub struct NoMemory {
    bytes: usize,
    source: rustix::io::Errno,
}

/// Lines of memory, zero at first, in huge pages if the kernel has some. All pages are allocated at creation.
pub struct Lines {
    map: NonNull<u8>,
    map_bytes: usize,
    at: NonNull<Line>,
    count: usize,
}

// SAFETY: the mapping is private memory that only this value points to, like a `Box<[Line]>`.
unsafe impl Send for Lines {}
// SAFETY: as above; a shared reference gives shared references to lines only.
unsafe impl Sync for Lines {}

impl Lines {
    /// Allocates `count` lines of zeroes.
    ///
    /// # Errors
    /// [`NoMemory`] if the kernel refuses the mapping.
    pub fn zeroed(count: usize) -> Result<Lines, NoMemory> {
        let bytes = count.max(1).saturating_mul(LINE_BYTES);
        // Huge pages begin at multiples of their size; the used part of the mapping begins there, too.
        let map_bytes = bytes.saturating_add(HUGE_PAGE_BYTES);
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address that the kernel chooses touches no memory that is in use.
        let map = unsafe { mmap_anonymous(std::ptr::null_mut(), map_bytes, access, flags) };
        let map = map.map_err(|source| NoMemory { bytes, source })?;
        let map = NonNull::new(map.cast::<u8>()).expect("the kernel maps nothing at 0");
        let skip = map.as_ptr().addr().next_multiple_of(HUGE_PAGE_BYTES) - map.as_ptr().addr();
        // SAFETY: `skip` is less than a huge page, and the mapping is longer than `bytes` by a huge page.
        let at = unsafe { map.add(skip) };
        // If this is refused, the pages are small.
        // SAFETY: the range lies in the mapping made above; the advice changes no contents.
        let _ = unsafe { madvise(at.as_ptr().cast(), bytes, Advice::LinuxHugepage) };
        // Populates the pages now, because frames that arrived during later page faults would wait: clearing 92 MB
        // took up to 170 ms. If this is refused (before Linux 5.14, or no memory is left), each page is allocated
        // when it is first written.
        // SAFETY: as above; populated pages contain zeroes, as absent pages do when they are read.
        let _ = unsafe { madvise(at.as_ptr().cast(), bytes, Advice::LinuxPopulateWrite) };
        Ok(Lines { map, map_bytes, at: at.cast(), count })
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        // SAFETY: `zeroed` made this mapping, of this length; nothing borrows from a value that is being dropped.
        let _ = unsafe { munmap(self.map.as_ptr().cast(), self.map_bytes) };
    }
}

impl Deref for Lines {
    type Target = [Line];

    #[inline]
    fn deref(&self) -> &[Line] {
        // SAFETY: in bounds: `count` lines were mapped from `at` on, which is a multiple of 2 MiB, so it is aligned.
        // Initialised: the kernel zeroes anonymous pages, and every bit pattern is a `Line`. Alive and exclusive: the
        // mapping lives as long as `self`, and nobody else has a pointer into it.
        unsafe { std::slice::from_raw_parts(self.at.as_ptr(), self.count) }
    }
}

impl DerefMut for Lines {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as `deref`; `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.at.as_ptr(), self.count) }
    }
}

/// Prefetches a line into the cache.
#[inline(always)]
pub fn prefetch(lines: &[Line], at: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let at = lines.as_ptr().wrapping_add(at).cast::<i8>();
        // SAFETY: a prefetch of any address is a hint, and never a fault (Intel SDM volume 2, PREFETCHh).
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = (lines, at);
}

/// Returns a mask of the 16 16-bit numbers in the first four words that equal `tag`: bit 0 is the lowest of the first
/// word.
#[inline(always)]
pub fn equal_tags(line: &Line, tag: u16) -> u32 {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { sse2::equal_tags(line, tag) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::equal_tags(line, tag)
}

/// Finds the bytes among the 16 in words 4 and 5 that are farthest behind `now`, as numbers that wrap. Returns the
/// distance, and a mask of these bytes.
#[inline(always)]
pub fn oldest_ages(line: &Line, now: u8) -> (u8, u32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: every x86-64 processor has SSE2.
    return unsafe { sse2::oldest_ages(line, now) };
    #[cfg(not(target_arch = "x86_64"))]
    portable::oldest_ages(line, now)
}

#[cfg(target_arch = "x86_64")]
mod sse2 {
    use std::arch::x86_64::*;

    use super::Line;

    #[inline]
    #[target_feature(enable = "sse2")]
    pub fn equal_tags(line: &Line, tag: u16) -> u32 {
        let [a, b, c, d, ..] = line.0.map(u64::cast_signed);
        let want = _mm_set1_epi16(tag.cast_signed());
        let low = _mm_cmpeq_epi16(_mm_set_epi64x(b, a), want);
        let high = _mm_cmpeq_epi16(_mm_set_epi64x(d, c), want);
        _mm_movemask_epi8(_mm_packs_epi16(low, high)).cast_unsigned()
    }

    #[inline]
    #[target_feature(enable = "sse2")]
    pub fn oldest_ages(line: &Line, now: u8) -> (u8, u32) {
        let [.., a, b, _, _] = line.0.map(u64::cast_signed);
        let ages = _mm_sub_epi8(_mm_set1_epi8(now.cast_signed()), _mm_set_epi64x(b, a));
        let most = _mm_max_epu8(ages, _mm_srli_si128::<8>(ages));
        let most = _mm_max_epu8(most, _mm_srli_si128::<4>(most));
        let most = _mm_max_epu8(most, _mm_srli_si128::<2>(most));
        let most = _mm_max_epu8(most, _mm_srli_si128::<1>(most));
        let most = _mm_cvtsi128_si32(most) as u8;
        let equal = _mm_cmpeq_epi8(ages, _mm_set1_epi8(most.cast_signed()));
        (most, _mm_movemask_epi8(equal).cast_unsigned())
    }
}

#[cfg(any(test, not(target_arch = "x86_64")))]
mod portable {
    use super::Line;

    pub fn equal_tags(line: &Line, tag: u16) -> u32 {
        let mut mask = 0;
        for slot in 0..16 {
            let own = (line.0[slot / 4] >> (slot % 4 * 16)) as u16;
            mask |= u32::from(own == tag) << slot;
        }
        mask
    }

    pub fn oldest_ages(line: &Line, now: u8) -> (u8, u32) {
        let age = |slot: usize| now.wrapping_sub((line.0[4 + slot / 8] >> (slot % 8 * 8)) as u8);
        let most = (0..16).map(age).max().unwrap_or_default();
        (most, (0..16).filter(|slot| age(*slot) == most).map(|slot| 1 << slot).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_are_zero_aligned_and_written() {
        let mut lines = Lines::zeroed(40_000).unwrap();
        assert_eq!((lines.len(), lines.as_ptr().addr() % HUGE_PAGE_BYTES), (40_000, 0));
        assert!(lines.iter().all(|line| *line == Line::default()));
        lines[39_999].0[7] = 7;
        assert_eq!(lines[39_999].0, [0, 0, 0, 0, 0, 0, 0, 7]);
        assert!(Lines::zeroed(0).unwrap().is_empty());
    }

    #[test]
    fn too_much_memory_is_an_error() {
        let error = Lines::zeroed(usize::MAX / 128).err().expect("no machine has that");
        assert!(error.to_string().contains("fewer flows"), "{error}");
    }

    proptest! {
        #[test]
        fn vector_instructions_find_what_loops_find(
            tags in any::<[u16; 16]>(), ages in any::<[u8; 16]>(), at in 0..16usize, now in any::<u8>(),
        ) {
            let mut line = Line::default();
            for (slot, tag) in tags.iter().enumerate() {
                line.0[slot / 4] |= u64::from(tag % 5) << (slot % 4 * 16);
            }
            for (slot, age) in ages.iter().enumerate() {
                line.0[4 + slot / 8] |= u64::from(*age) << (slot % 8 * 8);
            }
            let tag = tags[at] % 5;
            prop_assert!(equal_tags(&line, tag) & 1 << at != 0);
            prop_assert_eq!(equal_tags(&line, tag), portable::equal_tags(&line, tag));
            prop_assert_eq!(oldest_ages(&line, now), portable::oldest_ages(&line, now));
        }
    }
}
