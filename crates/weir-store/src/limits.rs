//! Limits of outputs: sizes, counts and times.

use std::time::Duration;

/// Most names of addresses that a run keeps for later files. A host has hundreds of containers; the limit bounds the
/// memory if containers come and go for weeks.
pub const NAMES_MAX: usize = 16_384;
/// Names take at most 1/`NAMES_SHARE` of a file of limited size. The rest is for frames.
pub const NAMES_SHARE: u64 = 4;
/// The longest name resolution block that is read from a recorded file. Those of Weir have up to 100 names, at most
/// about 28 KiB.
pub(crate) const NAMES_BLOCK_BYTES_MAX: usize = 64 << 10;

/// Default size of a recorder's file. A file of this size is searched, copied or deleted in seconds.
pub const FILE_BYTES: u64 = 1 << 30;
/// The smallest size of a recorder's file that a quota may lead to.
pub const FILE_BYTES_MIN: u64 = 4 << 20;
/// The smallest size at which a plain file is rotated on the command line, so that a number with a forgotten unit does
/// not make a file of every frame.
pub const ROTATE_BYTES_MIN: u64 = 4 << 10;
/// Most large writes in flight on a volume. A network disk answers each after 2 to 3 ms, independent of their
/// number: 8 gave 1.72 to 2.23 GB/s and 16 gave 2.23 to 2.65 GB/s; with 32, the ring's writer overtook some
/// blocks.
pub const VOLUME_WRITES_MAX: usize = 16;
/// Most bytes that are written from ring memory by one request.
pub const RUN_BYTES_MAX: usize = 4 << 20;
/// Most writes in flight on a volume, including the writes of one page that make whole blocks visible. These wait
/// behind large writes, so with a common limit only half as many large writes would be in flight.
pub const VOLUME_PENDING_MAX: usize = 4 * VOLUME_WRITES_MAX;
/// Bytes that are preallocated beyond the end of a file that is written in large pieces. In a file system, writes
/// that extend a file wait for each other, and contiguous space is found only for a size that is known early.
pub const PREALLOCATE_BYTES: u64 = 256 << 20;
/// Smallest size of a large piece, for which space is preallocated.
pub const PREALLOCATE_PIECE_BYTES: usize = 128 << 10;
/// Nothing is preallocated on a file system with less free space than this: other programs may need it soon, and up to
/// 384 MiB are preallocated per ring.
pub const FREE_BYTES_MIN: u64 = 4 << 30;
/// Deletions for a quota begin when fewer bytes than this are left of it (at most a 32nd of the quota), because so much
/// may be written until the file system has deleted a file. If files are deleted in steps, deletions begin one file, or
/// a 16th of the quota, earlier.
pub const DELETE_AHEAD_BYTES: u64 = 256 << 20;
/// On a file system mounted with `discard`, the space of a deleted file is freed in steps of this size.
pub const DELETE_STEP_BYTES: u64 = 32 << 20;
/// After this time, the rest of the space of a deleted file is freed in one step.
pub const DELETE_STEPS_TIME_MAX: Duration = Duration::from_secs(3);
/// A volume on a full file system fails after this number of successive deletions that free no space.
pub const FRUITLESS_DELETIONS_MAX: u32 = 3;
/// The latest time in a file name that later files must follow, in nanoseconds since the Unix epoch: March 2255.
/// Times end in April 2262; this leaves seven years for later names.
pub(crate) const NAME_NS_MAX: u64 = 9_000_000_000_000_000_000;
/// Longest time of a write on a volume while another volume works. Disks that are throttled or collect garbage may
/// stall for seconds.
pub const STALL_MAX: Duration = Duration::from_secs(10);
/// Longest time of a write at the end of a run, for any volume. The end of a recording waits for that long at most.
pub const END_STALL_MAX: Duration = Duration::from_secs(30);
/// Most pieces of a ring that are read but not settled. The pieces after an unanswered write are kept in memory; each
/// takes some hundred bytes and a set of fields.
pub(crate) const UNSETTLED_MAX: usize = 1024;
/// The largest set of fields in an index entry, in bytes: 1.6 % of a piece of 1 MiB. While a set is built, it takes
/// half of the smallest L1 cache of a server's CPU, and recent keys and ports take 8 KiB each.
pub const SET_BYTES_MAX: usize = 16 << 10;

/// The longest piece of a compressed file, before compression. A recorder's pieces have a few MiB.
pub(crate) const PLAIN_PIECE_BYTES_MAX: u32 = 64 << 20;

/// Most zstd frames that are read from a compressed file. A file of 1 GiB has some thousand.
pub const PACKED_PIECES_MAX: usize = 1 << 20;

/// Keys that a set remembers while it is built, so that one which comes again costs one comparison: 8 KiB.
pub(crate) const SET_RECENT: usize = 1024;

/// Most interfaces of a recorded file. A ring describes fewer, so a file with more was not written by a recorder.
pub const FILE_INTERFACES_MAX: usize = 16_384;
/// The most pieces that are read from an index. A file of 1 GiB has a thousand pieces of 1 MiB, or at most 262,144 of
/// 4 KiB. Pieces beyond the limit are read from the file itself.
pub const INDEX_PIECES_MAX: usize = 1 << 20;
/// Most bytes of the sets of all pieces that are read from an index.
pub const INDEX_SETS_BYTES_MAX: usize = 256 << 20;

/// Most bytes of pieces that an extraction holds to sort their frames, enough for some hundred overlapping rings. If
/// more would be needed, frames may be written late, and are counted.
pub const EXTRACT_BYTES_MAX: usize = 512 << 20;
