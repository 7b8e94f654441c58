//! How much an output keeps, and how long it waits.

use std::time::Duration;

/// Names of addresses that a run keeps, for files that begin later. A host has hundreds of containers; those that come
/// and go for weeks are not to fill its memory.
pub const NAMES_MAX: usize = 16_384;
/// Names take one part of so many of a file's bytes at most, where a file has a limit: the rest is for frames.
pub const NAMES_SHARE: u64 = 4;
/// The longest block of names that is read of a recorded file; Weir's have 100 names, some 28 KiB with the longest.
pub(crate) const NAMES_BLOCK_BYTES_MAX: usize = 64 << 10;

/// Bytes of a recorder's file, unless something else is asked for: one is extracted from, copied or deleted in seconds.
pub const FILE_BYTES: u64 = 1 << 30;
/// The smallest file that a quota makes the recorder write.
pub const FILE_BYTES_MIN: u64 = 4 << 20;
/// The smallest size at which a plain file is followed by another, as the command line has it: a number without the
/// unit that was meant is not to make a file of every frame.
pub const ROTATE_BYTES_MIN: u64 = 4 << 10;
/// Long writes under way on a volume at a time. A disk behind a network answers each of them after 2 to 3 ms, however
/// many there are: 8 brought 1.72 to 2.23 GB/s, 16 brought 2.23 to 2.65, and of 32 the writer overtook some.
pub const VOLUME_WRITES_MAX: usize = 16;
/// The same with those of a page, by which blocks that are whole are made visible: they wait behind long ones, and
/// would keep half of them from being asked for.
pub const VOLUME_PENDING_MAX: usize = 4 * VOLUME_WRITES_MAX;
/// A file that is written in large pieces is preallocated for so many bytes ahead. In a file system, writes that make
/// a file longer wait for each other, and it finds contiguous space only for sizes that it knows early.
pub const PREALLOCATE_BYTES: u64 = 256 << 20;
/// Pieces from this size on are large.
pub const PREALLOCATE_PIECE_BYTES: usize = 128 << 10;
/// Nothing is preallocated on a file system with less than this free: it may be wanted elsewhere soon, and each ring
/// has up to 384 MiB ahead.
pub const FREE_BYTES_MIN: u64 = 4 << 30;
/// Deletions for a quota begin when fewer bytes than this are left of it (at most a 32nd of the quota): so many may be
/// written until the file system has deleted a file. Where files are deleted in steps, they begin one file, or a 16th
/// of the quota, earlier.
pub const DELETE_AHEAD_BYTES: u64 = 256 << 20;
/// On a file system that tells its disk of all that is deleted (`discard`), the space of a file is given back in steps
/// of so many bytes.
pub const DELETE_STEP_BYTES: u64 = 32 << 20;
/// After this time the rest of the file is given back at once.
pub const DELETE_STEPS_TIME_MAX: Duration = Duration::from_secs(3);
/// A full file system on which so many deletions in a row free no space is given up.
pub const FRUITLESS_DELETIONS_MAX: u32 = 3;
/// How long a volume may leave a write unanswered while another one works: disks that are throttled, or clean up, stand
/// still for seconds.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// The same at the end of a run, of any volume. The end of a recording waits for that.
pub const END_STALL_MAX: Duration = Duration::from_secs(30);
/// Pieces of a ring that are read and not settled, at most: behind one that is not answered others are kept, some
/// hundred bytes and a set of fields each.
pub(crate) const UNSETTLED_MAX: usize = 1024;
/// The largest set of fields in an index's entry. Half of the smallest first-level cache of a server's CPU, so that the
/// flows' cache beside it (4 KiB) and the frames fit, too; 1.6 % of a piece of 1 MiB.
pub const SET_BYTES_MAX: usize = 16 << 10;

/// The longest piece of a compressed file, before compression: a recorder's pieces are a few MiB
/// long.
pub(crate) const PLAIN_PIECE_BYTES_MAX: u32 = 64 << 20;

/// Frames of a compressed file that are read: a file of 1 GiB has some thousand.
pub const PACKED_PIECES_MAX: usize = 1 << 20;

/// Flows that a scan keeps, so that their next frames cost one comparison.
pub(crate) const SCAN_FLOWS: usize = 256;

/// Interfaces of a recorded file, as many as a ring describes and more: a file with more of them is no recorder's.
pub const FILE_INTERFACES_MAX: usize = 16_384;
/// Pieces that are read of an index, and bytes of their sets: a file of 1 GiB has a thousand of 1 MiB, and 262,144 of
/// 4 KiB at most. Pieces beyond the limit are read from the file itself.
pub const INDEX_PIECES_MAX: usize = 1 << 20;
/// Bytes of the sets of these pieces.
pub const INDEX_SETS_BYTES_MAX: usize = 256 << 20;

/// Bytes of pieces that an extraction holds at most, to put their frames in order: some hundred rings that overlap.
/// Beyond, frames may go out late, and are counted.
pub const EXTRACT_BYTES_MAX: usize = 512 << 20;
