//! x86-64: copies in units of 4 to 32 bytes, in assembly.
//!
//! Other threads and processes read ring memory while it is written, so a plain `memcpy` would be a data race, which is
//! undefined behaviour in Rust. The compiler knows about assembly only that it accesses memory. The behaviour of the
//! processor is defined (Intel SDM volume 3, section 9.2; AMD APM volume 2, section 7.2): stores become visible in
//! program order, loads are not reordered among each other, and each byte that is loaded is either the old or the new
//! one. So a `Release` store publishes the bytes stored here, and a fence orders these loads and stores, in the same
//! way as those of atomic words.
//!
//! Frames are mostly short, or longer than 1,000 bytes. A copy of up to 64 bytes takes at most four loads and four
//! stores, which overlap in the middle, and no loop. A longer copy takes a loop of 64 bytes, whose last round overlaps
//! the one before. `rep movsb` takes longer to start than this whole copy takes.

use std::arch::asm;
use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};

use weir_frame::record::{self, CAPLEN_MAX, HEADER_BYTES, Meta};

use super::join;
use crate::sync::AtomicU64;

/// How far ahead of a long copy its source is prefetched. The processor prefetches by itself, but not across the end of
/// a page, and the pages of a ring are small. Of 512 to 8192 bytes, 2048 were best: flows of small frames are counted 2
/// to 4 % faster.
const AHEAD_BYTES: u32 = 2048;

/// Copies words from a ring, as many as the shorter slice has.
#[inline]
pub fn load(to: &mut [u64], from: &[AtomicU64]) {
    let bytes = to.len().min(from.len()) * 8;
    // SAFETY: both have that many bytes; `to` is borrowed exclusively, so they do not overlap.
    unsafe { copy(to.as_mut_ptr().cast(), from.as_ptr().cast(), bytes) }
}

/// Prefetches the cache line of byte `at`.
#[inline(always)]
pub fn prefetch(words: &[AtomicU64], at: u32) {
    let at = words.as_ptr().cast::<i8>().wrapping_add(at as usize);
    // SAFETY: a prefetch is a hint, and causes no fault at any address (Intel SDM volume 2, PREFETCHh).
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at) }
}

/// Stores a record from byte `at` on, a multiple of 4. Changes no bytes outside of the record.
///
/// # Panics
/// If the frame is longer than [`CAPLEN_MAX`], or the record does not fit the words.
#[inline(always)] // else engines that push frames one by one make one more call for each frame
pub fn store_record(words: &[AtomicU64], at: u32, meta: &Meta, frame: &[u8]) {
    assert!(frame.len() <= CAPLEN_MAX as usize, "a frame is cut before");
    let caplen = frame.len() as u32;
    let header = record::header(meta, caplen);
    let bytes = header[1];
    // All bounds are checked here.
    let out = &words[at as usize / 8..(at + bytes).div_ceil(8) as usize];
    let begin = out.as_ptr().cast::<u8>().cast_mut().wrapping_add(at as usize % 8);
    let behind_frame = HEADER_BYTES + caplen;
    // SAFETY: a record has 32 bytes or more, and `out` has space for this whole record: header, frame, padding to 4,
    // tail. With a frame of at most CAPLEN_MAX the record's length does not overflow. Atomics may be written through a
    // shared reference. Only one thread writes, and the frame does not overlap the ring, because it is borrowed as a
    // plain slice.
    unsafe {
        store_header(begin, header);
        // This word has the last bytes of the frame, or is the one after them. Its bytes behind the frame must be 0.
        store_u32(begin.add((behind_frame & !3) as usize), 0);
        copy(begin.add(HEADER_BYTES as usize), frame.as_ptr(), frame.len());
        if meta.flags.is_some() || meta.queue.is_some() {
            let tail = record::tail(meta, caplen);
            let tail_bytes = tail.words().len() * 4;
            let to = begin.add(bytes as usize - tail_bytes);
            return copy(to, tail.words().as_ptr().cast(), tail_bytes);
        }
        store_u32(begin.add(bytes as usize - 4), bytes);
    }
}

/// # Safety
/// `to` has 28 bytes.
#[inline(always)]
unsafe fn store_header(to: *mut u8, [a, b, c, d, e, f, last]: [u32; 7]) {
    // SAFETY: `to` has 28 bytes, as the caller promises; nothing else is changed, neither stack nor flags.
    unsafe {
        asm!(
            "mov qword ptr [{to}], {ab}",
            "mov qword ptr [{to} + 8], {cd}",
            "mov qword ptr [{to} + 16], {ef}",
            "mov dword ptr [{to} + 24], {last:e}",
            to = in(reg) to,
            ab = in(reg) join(a, b),
            cd = in(reg) join(c, d),
            ef = in(reg) join(e, f),
            last = in(reg) last,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// `to` has 4 bytes.
#[inline(always)]
unsafe fn store_u32(to: *mut u8, value: u32) {
    // SAFETY: `to` has 4 bytes, as the caller promises.
    unsafe {
        asm!(
            "mov dword ptr [{to}], {value:e}",
            to = in(reg) to,
            value = in(reg) value,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies bytes between two places that do not overlap.
///
/// # Safety
/// Both have `bytes` bytes. Code that reads the target at the same time must tolerate a mixture of old and new bytes.
#[inline(always)]
unsafe fn copy(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: both have `bytes` bytes, and each function gets a number of bytes that it allows.
    unsafe {
        match bytes {
            0 => {}
            1..=3 => copy_1_to_3(to, from, bytes),
            4..=7 => copy_4_to_8(to, from, bytes),
            8..=16 => copy_8_to_16(to, from, bytes),
            17..=32 => copy_16_to_32(to, from, bytes),
            33..=64 => copy_32_to_64(to, from, bytes),
            _ if is_x86_feature_detected!("avx") => copy_from_64_avx(to, from, bytes),
            _ => copy_from_64_sse(to, from, bytes),
        }
    }
}

/// # Safety
/// As [`copy`], with 1 to 3 bytes.
#[inline(always)]
unsafe fn copy_1_to_3(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: copies the first, the middle and the last byte, which are all of 1 to 3 bytes.
    unsafe {
        asm!(
            "movzx {a:e}, byte ptr [{from}]",
            "movzx {b:e}, byte ptr [{from} + {middle}]",
            "movzx {c:e}, byte ptr [{from} + {bytes} - 1]",
            "mov byte ptr [{to}], {a:l}",
            "mov byte ptr [{to} + {middle}], {b:l}",
            "mov byte ptr [{to} + {bytes} - 1], {c:l}",
            to = in(reg) to,
            from = in(reg) from,
            middle = in(reg) bytes / 2,
            bytes = in(reg) bytes,
            a = out(reg_abcd) _,
            b = out(reg_abcd) _,
            c = out(reg_abcd) _,
            options(nostack, preserves_flags)
        );
    }
}

/// Defines a function that copies between one and two registers of bytes: it moves the first and the last register of
/// the range, which may overlap.
macro_rules! copy_both_ends {
    ($name:ident, $width:literal, $class:ident, $move:literal, $unit:literal, $a:literal, $b:literal) => {
        /// # Safety
        /// As [`copy`], with one to two times the bytes of the register.
        #[inline(always)]
        unsafe fn $name(to: *mut u8, from: *const u8, bytes: usize) {
            // SAFETY: reads and writes the first and the last register of the bytes, which are at least one register.
            unsafe {
                asm!(
                    concat!($move, " ", $a, ", ", $unit, " ptr [{from}]"),
                    concat!($move, " ", $b, ", ", $unit, " ptr [{from} + {bytes} - ", $width, "]"),
                    concat!($move, " ", $unit, " ptr [{to}], ", $a),
                    concat!($move, " ", $unit, " ptr [{to} + {bytes} - ", $width, "], ", $b),
                    to = in(reg) to,
                    from = in(reg) from,
                    bytes = in(reg) bytes,
                    a = out($class) _,
                    b = out($class) _,
                    options(nostack, preserves_flags)
                );
            }
        }
    };
}

copy_both_ends!(copy_4_to_8, 4, reg, "mov", "dword", "{a:e}", "{b:e}");
copy_both_ends!(copy_8_to_16, 8, reg, "mov", "qword", "{a}", "{b}");
copy_both_ends!(copy_16_to_32, 16, xmm_reg, "movups", "xmmword", "{a}", "{b}");

/// # Safety
/// As [`copy`], with 32 to 64 bytes.
#[inline(always)]
unsafe fn copy_32_to_64(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: copies the first 32 bytes and the last 32, which are all of 32 to 64 bytes.
    unsafe {
        asm!(
            "movups {a}, xmmword ptr [{from}]",
            "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + {bytes} - 32]",
            "movups {d}, xmmword ptr [{from} + {bytes} - 16]",
            "movups xmmword ptr [{to}], {a}",
            "movups xmmword ptr [{to} + 16], {b}",
            "movups xmmword ptr [{to} + {bytes} - 32], {c}",
            "movups xmmword ptr [{to} + {bytes} - 16], {d}",
            to = in(reg) to,
            from = in(reg) from,
            bytes = in(reg) bytes,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack, preserves_flags)
        );
    }
}

/// # Safety
/// As [`copy`], with 64 bytes or more, on a processor that has AVX.
#[inline]
unsafe fn copy_from_64_avx(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: copies 64 bytes at a time while more than 64 are left, and then the last 64. The prefetched addresses are
    // in `from`, too. `vzeroupper` clears the upper halves of all vector registers at the end, as callers expect; no
    // live value is in them.
    unsafe {
        asm!(
            "cmp {left}, {far}",
            "jbe 2f",
            "3:",
            "vmovdqu ymm0, ymmword ptr [{from}]",
            "vmovdqu ymm1, ymmword ptr [{from} + 32]",
            "prefetcht0 byte ptr [{from} + {ahead}]",
            "add {from}, 64",
            "vmovdqu ymmword ptr [{to}], ymm0",
            "vmovdqu ymmword ptr [{to} + 32], ymm1",
            "add {to}, 64",
            "sub {left}, 64",
            "cmp {left}, {far}",
            "ja 3b",
            "2:",
            "vmovdqu ymm0, ymmword ptr [{from}]",
            "vmovdqu ymm1, ymmword ptr [{from} + 32]",
            "add {from}, 64",
            "vmovdqu ymmword ptr [{to}], ymm0",
            "vmovdqu ymmword ptr [{to} + 32], ymm1",
            "add {to}, 64",
            "sub {left}, 64",
            "cmp {left}, 64",
            "ja 2b",
            "vmovdqu ymm0, ymmword ptr [{from} + {left} - 64]",
            "vmovdqu ymm1, ymmword ptr [{from} + {left} - 32]",
            "vmovdqu ymmword ptr [{to} + {left} - 64], ymm0",
            "vmovdqu ymmword ptr [{to} + {left} - 32], ymm1",
            "vzeroupper",
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            left = inout(reg) bytes => _,
            ahead = const AHEAD_BYTES,
            far = const AHEAD_BYTES + 64,
            out("xmm0") _, out("xmm1") _, out("xmm2") _, out("xmm3") _,
            out("xmm4") _, out("xmm5") _, out("xmm6") _, out("xmm7") _,
            out("xmm8") _, out("xmm9") _, out("xmm10") _, out("xmm11") _,
            out("xmm12") _, out("xmm13") _, out("xmm14") _, out("xmm15") _,
            options(nostack)
        );
    }
}

/// # Safety
/// As [`copy`], with 64 bytes or more.
#[inline]
unsafe fn copy_from_64_sse(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: copies 64 bytes at a time while more than 64 are left, and then the last 64.
    unsafe {
        asm!(
            "2:",
            "movups {a}, xmmword ptr [{from}]",
            "movups {b}, xmmword ptr [{from} + 16]",
            "movups {c}, xmmword ptr [{from} + 32]",
            "movups {d}, xmmword ptr [{from} + 48]",
            "add {from}, 64",
            "movups xmmword ptr [{to}], {a}",
            "movups xmmword ptr [{to} + 16], {b}",
            "movups xmmword ptr [{to} + 32], {c}",
            "movups xmmword ptr [{to} + 48], {d}",
            "add {to}, 64",
            "sub {left}, 64",
            "cmp {left}, 64",
            "ja 2b",
            "movups {a}, xmmword ptr [{from} + {left} - 64]",
            "movups {b}, xmmword ptr [{from} + {left} - 48]",
            "movups {c}, xmmword ptr [{from} + {left} - 32]",
            "movups {d}, xmmword ptr [{from} + {left} - 16]",
            "movups xmmword ptr [{to} + {left} - 64], {a}",
            "movups xmmword ptr [{to} + {left} - 48], {b}",
            "movups xmmword ptr [{to} + {left} - 32], {c}",
            "movups xmmword ptr [{to} + {left} - 16], {d}",
            to = inout(reg) to => _,
            from = inout(reg) from => _,
            left = inout(reg) bytes => _,
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            d = out(xmm_reg) _,
            options(nostack)
        );
    }
}

/// Copies as on processors without AVX.
#[cfg(test)]
pub fn copy_without_avx(to: &mut [u8], from: &[u8]) {
    assert!(to.len() == from.len() && to.len() >= 64);
    // SAFETY: both have that many bytes, 64 or more, and do not overlap.
    unsafe { copy_from_64_sse(to.as_mut_ptr(), from.as_ptr(), from.len()) }
}
