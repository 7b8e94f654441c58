//! Compressed files. Each piece is compressed by itself, so that it can be read without the others.
//!
//! A compressed file is a sequence of zstd frames (RFC 8878): one for each piece of a recorded file, each followed by a
//! skippable frame up to a multiple of 4 KiB. The last frame is a seek table, with which readers of the seekable format
//! find any byte. Other programs read the file from its beginning, like any zstd file.
//!
//! Source of the table: contrib/seekable_format/zstd_seekable_compression_format.md in zstd's repository.

mod content;
mod make;
mod table;

pub use content::Content;
pub use make::{Frame, compress, compressor, seek_table, store};

/// Magic number at the start of each zstd frame.
pub const FRAME_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// Magic number of skippable frames. Its lowest four bits are arbitrary.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// Magic number of the skippable frame that holds the seek table.
const TABLE_MAGIC: u32 = 0x184d_2a5e;
/// Magic number at the end of the seek table.
const TABLE_END_MAGIC: u32 = 0x8f92_eab1;
/// Bytes of a skippable frame's magic number and length.
const SKIPPABLE_HEADER_BYTES: usize = 8;
/// Bytes after the entries of the seek table: number of frames, flags, and magic number.
const TABLE_FOOTER_BYTES: usize = 9;
