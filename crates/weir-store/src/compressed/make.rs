//! Creates zstd frames from pieces, and the seek table.

use std::io;

use twox_hash::XxHash64;
use weir_disk::buffer::ALIGN_BYTES;
use weir_disk::{Buffer, buffer};
use zstd::bulk::Compressor;

use super::{
    FRAME_MAGIC, SKIPPABLE_HEADER_BYTES, SKIPPABLE_MAGIC, TABLE_END_MAGIC, TABLE_FOOTER_BYTES,
    TABLE_MAGIC,
};

/// The largest block of a frame. Source: RFC 8878, 3.1.1.2.4.
const BLOCK_BYTES_MAX: usize = 128 << 10;

/// An entry of the seek table: a zstd frame with the skippable data up to the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Bytes in the file.
    pub bytes: u32,
    /// Bytes before compression.
    pub plain_bytes: u32,
}

/// Creates a compressor for pieces. It adds checksums, so that damage is detected.
///
/// # Errors
/// The error of zstd for this level.
pub fn compressor(level: i32) -> io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(level)?;
    compressor.include_checksum(true)?;
    Ok(compressor)
}

/// Compresses a piece to a frame, and pads it for the disk. A piece that does not become shorter is written by
/// [`store`].
pub fn compress(compressor: &mut Compressor<'_>, plain: &[u8]) -> Buffer {
    let room = plain.len() + ALIGN_BYTES;
    let mut buffer = Buffer::new(room + 2 * buffer::ALIGN_BYTES);
    match compressor.compress_to_buffer(plain, buffer.grow(room)) {
        Ok(bytes) => {
            buffer.truncate(bytes);
            pad(&mut buffer, ALIGN_BYTES);
            buffer
        }
        // The result does not fit in the buffer, so these bytes cannot be compressed.
        Err(_) => store(plain),
    }
}

/// Writes a piece as a frame of uncompressed blocks, and pads it for the disk. This costs a copy and a checksum.
pub fn store(plain: &[u8]) -> Buffer {
    let blocks = plain.len().div_ceil(BLOCK_BYTES_MAX).max(1);
    let mut buffer = Buffer::new(plain.len() + 13 + 3 * blocks + 2 * ALIGN_BYTES);
    buffer.extend_from_slice(&FRAME_MAGIC);
    // Flags: a single segment, a content size of four bytes, a checksum. Source: RFC 8878, 3.1.1.1.1.
    buffer.extend_from_slice(&[0b1010_0100]);
    buffer.extend_from_slice(&(plain.len() as u32).to_le_bytes());
    let mut rest = plain;
    loop {
        let (block, behind) = rest.split_at(rest.len().min(BLOCK_BYTES_MAX));
        // Bit 0: the last block; bits 1 and 2: the type, 0 for raw; then the length. Source: RFC 8878, 3.1.1.2.
        let header = u32::from(behind.is_empty()) | (block.len() as u32) << 3;
        buffer.extend_from_slice(&header.to_le_bytes()[..3]);
        buffer.extend_from_slice(block);
        rest = behind;
        if rest.is_empty() {
            break;
        }
    }
    // The lower half of XXH64. Source: RFC 8878, 3.1.1.
    let checksum = XxHash64::oneshot(0, plain) as u32;
    buffer.extend_from_slice(&checksum.to_le_bytes());
    pad(&mut buffer, ALIGN_BYTES);
    buffer
}

/// Returns the end of a file with these frames: padding for the disk, then the seek table.
pub fn seek_table(frames: &[Frame]) -> Buffer {
    let table = 8 * frames.len() + TABLE_FOOTER_BYTES;
    let all = SKIPPABLE_HEADER_BYTES + table;
    let mut buffer = Buffer::new(all + 2 * ALIGN_BYTES);
    let mut before = all.next_multiple_of(ALIGN_BYTES) - all;
    if (1..SKIPPABLE_HEADER_BYTES).contains(&before) {
        before += ALIGN_BYTES;
    }
    skip(&mut buffer, before);
    buffer.extend_from_slice(&TABLE_MAGIC.to_le_bytes());
    buffer.extend_from_slice(&(table as u32).to_le_bytes());
    for (number, Frame { bytes, plain_bytes }) in frames.iter().enumerate() {
        // The last frame extends up to the table.
        let more = if number + 1 == frames.len() { before as u32 } else { 0 };
        buffer.extend_from_slice(&(bytes + more).to_le_bytes());
        buffer.extend_from_slice(&plain_bytes.to_le_bytes());
    }
    buffer.extend_from_slice(&(frames.len() as u32).to_le_bytes());
    buffer.extend_from_slice(&[0]);
    buffer.extend_from_slice(&TABLE_END_MAGIC.to_le_bytes());
    buffer
}

/// Appends a skippable frame up to a multiple of `align`.
fn pad(buffer: &mut Buffer, align: usize) {
    let mut missing = buffer.filled().next_multiple_of(align) - buffer.filled();
    if (1..SKIPPABLE_HEADER_BYTES).contains(&missing) {
        missing += align;
    }
    skip(buffer, missing);
}

/// Appends a skippable frame of `bytes` bytes including its header. For fewer than 8 bytes, appends nothing.
fn skip(buffer: &mut Buffer, bytes: usize) {
    let Some(content) = bytes.checked_sub(SKIPPABLE_HEADER_BYTES) else { return };
    buffer.extend_from_slice(&SKIPPABLE_MAGIC.to_le_bytes());
    buffer.extend_from_slice(&(content as u32).to_le_bytes());
    buffer.grow(content).fill(0);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bytes(length: usize, is_random: bool) -> Vec<u8> {
        let mut state = 1u64;
        (0..length)
            .map(|at| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                if is_random { (state >> 56) as u8 } else { (at / 100) as u8 }
            })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn any_zstd_reads_what_was_made(
            pieces in proptest::collection::vec(
                (0usize..400_000, any::<bool>(), any::<bool>()), 1..4,
            ),
        ) {
            let mut compressor = compressor(1).unwrap();
            let (mut file, mut plain, mut frames) = (Vec::new(), Vec::new(), Vec::new());
            for (length, is_random, is_stored) in pieces {
                let piece = bytes(length, is_random);
                let buffer = if is_stored { store(&piece) } else { compress(&mut compressor, &piece) };
                prop_assert!(buffer.filled().is_multiple_of(ALIGN_BYTES));
                frames.push(Frame { bytes: buffer.filled() as u32, plain_bytes: length as u32 });
                file.extend_from_slice(buffer.as_slice());
                plain.extend(piece);
            }
            let table = seek_table(&frames);
            prop_assert!(table.filled().is_multiple_of(ALIGN_BYTES));
            file.extend_from_slice(table.as_slice());
            prop_assert_eq!(zstd::decode_all(&file[..]).unwrap(), plain);
        }
    }

    #[test]
    fn the_table_stands_as_the_format_says() {
        for count in [0, 1, 508, 509, 510, 511, 1000] {
            let frames = vec![Frame { bytes: 4096, plain_bytes: 7000 }; count];
            let table = seek_table(&frames);
            let table = table.as_slice();
            let end = table.len();
            let word = |at: usize| u32::from_le_bytes(table[at..at + 4].try_into().unwrap());
            assert_eq!(
                (word(end - 4), word(end - 9), table[end - 5]),
                (0x8f92_eab1, count as u32, 0)
            );
            let at = end - 9 - 8 * count - 8;
            assert_eq!((word(at), word(at + 4) as usize), (0x184d_2a5e, 9 + 8 * count));
            let sizes: u32 = (0..count).map(|frame| word(at + 8 + 8 * frame)).sum();
            assert!(count == 0 || sizes as usize == 4096 * count + at, "{count}");
        }
    }
}
