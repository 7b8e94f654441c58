//! Files compressed piece by piece, so that each piece can be read by itself.
//!
//! A compressed file is zstd frames end to end (RFC 8878): one for each piece of a recorded file, and behind each a
//! skippable frame up to a multiple of 4 KiB. The last one is a seek table, by which readers of the seekable format
//! find any byte; everything else reads the file from its beginning, like any zstd file.
//!
//! Source of the table: contrib/seekable_format/zstd_seekable_compression_format.md in zstd's repository.

mod content;
mod make;
mod table;

pub use content::Content;
pub use make::{Frame, compress, compressor, seek_table, store};

/// How each frame begins.
pub const FRAME_MAGIC: [u8; 4] = 0xfd2f_b528_u32.to_le_bytes();
/// How skippable frames begin, but for the lowest four bits.
const SKIPPABLE_MAGIC: u32 = 0x184d_2a50;
/// How the seek table's frame begins.
const TABLE_MAGIC: u32 = 0x184d_2a5e;
/// How the seek table ends.
const TABLE_END_MAGIC: u32 = 0x8f92_eab1;
/// Magic number and length of a skippable frame.
const SKIPPABLE_HEADER_BYTES: usize = 8;
/// Number of frames, flags, and magic number behind the table.
const TABLE_FOOTER_BYTES: usize = 9;
