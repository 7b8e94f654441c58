//! Limits of rings, readers and consumers.

use std::time::Duration;

/// Fewest data blocks of a ring: one that is being written, the next one to be written, and two to read from.
pub const DATA_BLOCKS_MIN: u64 = 4;
/// Most data blocks of a ring (8 GiB): the index has entries for this many blocks.
pub const DATA_BLOCKS_MAX: u64 = 8192;
/// Most descriptors in one message. The kernel allows 253 (`SCM_MAX_FD`).
pub const FDS_MAX: usize = 128;
/// The longest sleep. No wake-up depends on it: every writer wakes its readers, is noticed when it dies
/// ([`Woken`](crate::wake::Woken)), or first confirms that it will wake them ([`doorbell`](crate::doorbell), Q to T).
/// It limits the delay that an owner can cause that confirms and then wakes nobody. One wake-up a second costs almost
/// nothing.
pub const SLEEP_MAX: Duration = Duration::from_secs(1);

/// Most rings that one consumer sleeps on: a ring per CPU of the largest machines.
pub const RINGS_MAX: usize = 4096;
/// Most channels of one consumer, each to the writer's side of some rings.
pub const CHANNELS_MAX: usize = 1024;
