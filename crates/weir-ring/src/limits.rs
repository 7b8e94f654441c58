//! Limits of rings and of who reads them.

use std::time::Duration;

/// Fewest data blocks of a ring: one that is written, one that is next, two to read from.
pub const DATA_BLOCKS_MIN: u64 = 4;
/// Most data blocks of a ring (8 GiB): the index has room for these.
pub const DATA_BLOCKS_MAX: u64 = 8192;
/// Most descriptors of one message. The kernel takes 253 (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 128;
/// The longest sleep. Nothing depends on it: every writer wakes, dies noticeably ([`Woken`](crate::wake::Woken)),
/// or confirms first that it will wake ([`doorbell`](crate::doorbell), Q to T). One look a second costs nothing,
/// and bounds what an owner can do that confirms and then wakes nobody.
pub const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Most rings that one consumer sleeps on: a ring per CPU of the largest machines.
pub const RINGS_MAX: usize = 4096;
/// Most writers' sides that one consumer has channels to.
pub const CHANNELS_MAX: usize = 1024;
