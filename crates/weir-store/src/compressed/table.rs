//! Finds the frames of a compressed file: by its seek table, or by reading the headers of all frames if the table is
//! missing or invalid.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::{
    FRAME_MAGIC, SKIPPABLE_HEADER_BYTES, SKIPPABLE_MAGIC, TABLE_END_MAGIC, TABLE_FOOTER_BYTES,
    TABLE_MAGIC,
};
use crate::limits::{PACKED_PIECES_MAX, PLAIN_PIECE_BYTES_MAX};

/// The longest header of a frame, including its magic number. Source: RFC 8878, 3.1.1.1.
const HEAD_BYTES_MAX: usize = 18;
/// The longest block in a frame. Source: RFC 8878, 3.1.1.2.4.
const BLOCK_BYTES_MAX: u64 = 128 << 10;

/// A frame: its offset in the file, and the offset of its contents before compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub at: u64,
    /// Bytes of the frame; from a seek table, including skippable data after it.
    pub bytes: u32,
    pub plain_at: u64,
    pub plain_bytes: u32,
}

/// The frames of a file.
#[derive(Debug, Default)]
pub(super) struct Table {
    frames: Vec<Placed>,
    pub cut_off_bytes: u64,
    /// Whether it was read from a seek table at the end of the file, so that the file is complete.
    pub is_at_end: bool,
}

impl Table {
    pub fn read(file: &File) -> io::Result<Table> {
        let length = file.metadata()?.len();
        match Table::from_end(file, length)? {
            Some(table) => Ok(table),
            None => Table::by_walk(file, length),
        }
    }

    pub fn plain_length(&self) -> u64 {
        self.frames.last().map_or(0, |last| last.plain_at + u64::from(last.plain_bytes))
    }

    pub fn frames(&self) -> &[Placed] {
        &self.frames
    }

    /// Returns the frame that contains the byte at this uncompressed offset, and its number.
    pub fn find(&self, plain_at: u64) -> Option<(usize, &Placed)> {
        let number = self
            .frames
            .partition_point(|frame| frame.plain_at + u64::from(frame.plain_bytes) <= plain_at);
        Some((number, self.frames.get(number)?))
    }

    fn push(&mut self, at: u64, bytes: u32, plain_bytes: u32) {
        let plain_at = self.plain_length();
        self.frames.push(Placed { at, bytes, plain_at, plain_bytes });
    }

    /// Reads the seek table at the end of the file. `None` if there is none, or it does not match the file.
    fn from_end(file: &File, length: u64) -> io::Result<Option<Table>> {
        let Some(footer_at) = length.checked_sub(TABLE_FOOTER_BYTES as u64) else {
            return Ok(None);
        };
        let mut footer = [0; TABLE_FOOTER_BYTES];
        file.read_exact_at(&mut footer, footer_at)?;
        let count = u64::from(word(&footer, 0));
        let has_checksums = footer[4] & 0x80 != 0;
        let entry_bytes = if has_checksums { 12 } else { 8 };
        if word(&footer, 5) != TABLE_END_MAGIC {
            return Ok(None);
        }
        if count > PACKED_PIECES_MAX as u64 {
            return Ok(None);
        }
        let Some(at) = footer_at.checked_sub(count * entry_bytes) else { return Ok(None) };
        let Some(header_at) = at.checked_sub(SKIPPABLE_HEADER_BYTES as u64) else {
            return Ok(None);
        };
        let mut header = [0; SKIPPABLE_HEADER_BYTES];
        file.read_exact_at(&mut header, header_at)?;
        if word(&header, 0) != TABLE_MAGIC {
            return Ok(None);
        }
        let mut entries = vec![0; (count * entry_bytes) as usize];
        file.read_exact_at(&mut entries, at)?;
        let (mut table, mut end) = (Table { is_at_end: true, ..Table::default() }, 0u64);
        for entry in entries.chunks_exact(entry_bytes as usize) {
            let (bytes, plain_bytes) = (word(entry, 0), word(entry, 4));
            if plain_bytes > PLAIN_PIECE_BYTES_MAX {
                return Ok(None);
            }
            if plain_bytes > 0 {
                // Data that cannot be compressed becomes a little longer, and is padded. More than that is invalid.
                if u64::from(bytes) > u64::from(plain_bytes) * 129 / 128 + BLOCK_BYTES_MAX {
                    return Ok(None);
                }
                table.push(end, bytes, plain_bytes);
            }
            end += u64::from(bytes);
        }
        Ok((end == header_at).then_some(table))
    }

    /// Finds frames by their headers and the headers of their blocks, up to the first invalid header.
    fn by_walk(file: &File, length: u64) -> io::Result<Table> {
        let (mut table, mut at) = (Table::default(), 0);
        while at < length {
            let Some((bytes, plain_bytes)) = frame_at(file, at, length)? else { break };
            if plain_bytes > 0 {
                if table.frames.len() == PACKED_PIECES_MAX {
                    break;
                }
                table.push(at, bytes, plain_bytes);
            }
            at += u64::from(bytes);
        }
        table.cut_off_bytes = length - at;
        Ok(table)
    }
}

/// Returns the length of the frame at this offset, and of its contents before compression. `None`: there is no whole
/// frame.
fn frame_at(file: &File, at: u64, length: u64) -> io::Result<Option<(u32, u32)>> {
    let mut head = [0; HEAD_BYTES_MAX];
    let there = (length - at).min(HEAD_BYTES_MAX as u64) as usize;
    if there < SKIPPABLE_HEADER_BYTES {
        return Ok(None);
    }
    file.read_exact_at(&mut head[..there], at)?;
    if word(&head, 0) & !0xf == SKIPPABLE_MAGIC {
        let bytes = u64::from(word(&head, 4)) + SKIPPABLE_HEADER_BYTES as u64;
        let is_there = bytes <= length - at;
        return Ok(u32::try_from(bytes).ok().filter(|_| is_there).map(|bytes| (bytes, 0)));
    }
    let Some((head_bytes, plain_bytes, has_checksum)) = frame_head(&head) else { return Ok(None) };
    let mut end = at + head_bytes as u64;
    let mut plain_max = 0u64;
    loop {
        let mut block = [0; 3];
        if end + 3 > length {
            return Ok(None);
        }
        file.read_exact_at(&mut block, end)?;
        let header = u32::from_le_bytes([block[0], block[1], block[2], 0]);
        let (is_last, kind, size) = (header & 1 == 1, header >> 1 & 3, u64::from(header >> 3));
        // Types: 0 is raw, 1 is one repeated byte, 2 is compressed. Source: RFC 8878, 3.1.1.2.
        let bytes = match kind {
            _ if size > BLOCK_BYTES_MAX => return Ok(None),
            0 | 2 => size,
            1 => 1,
            _ => return Ok(None),
        };
        end += 3 + bytes;
        plain_max += BLOCK_BYTES_MAX;
        if is_last {
            break;
        }
        if plain_max > u64::from(PLAIN_PIECE_BYTES_MAX) {
            return Ok(None);
        }
    }
    end += if has_checksum { 4 } else { 0 };
    let is_there = end <= length;
    Ok(u32::try_from(end - at).ok().filter(|_| is_there).map(|bytes| (bytes, plain_bytes)))
}

/// Returns the length of a frame's header, the length of its contents before compression, and whether a checksum
/// follows. `None` if the header is invalid or has no content size.
fn frame_head(head: &[u8; HEAD_BYTES_MAX]) -> Option<(usize, u32, bool)> {
    if head[..4] != FRAME_MAGIC {
        return None;
    }
    let flags = head[4];
    let is_single = flags & 0x20 != 0;
    let dictionary = [0, 1, 2, 4][usize::from(flags & 3)];
    let at = 5 + usize::from(!is_single) + dictionary;
    let (bytes, more) = match flags >> 6 {
        0 if is_single => (1, 0),
        0 => return None,
        1 => (2, 256),
        2 => (4, 0),
        _ => (8, 0),
    };
    let mut length = [0; 8];
    length[..bytes].copy_from_slice(&head[at..at + bytes]);
    let length = u64::from_le_bytes(length).checked_add(more)?;
    let length = u32::try_from(length).ok().filter(|length| *length <= PLAIN_PIECE_BYTES_MAX)?;
    Some((at + bytes, length, flags & 4 != 0))
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].try_into().map_or(0, u32::from_le_bytes)
}
