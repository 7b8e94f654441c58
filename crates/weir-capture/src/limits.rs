//! Limits of sources and feeds.

use std::time::Duration;

use weir_filter::limits::ENTRIES_MAX;

/// Most feeds of one source.
pub const FEEDS_MAX: usize = 32;

/// Most feeds that the capture program of `bpf` writes; a relay derives those beyond. `bpf/bpf.bpf.c` has one place
/// more.
pub const HOOK_FEEDS_MAX: usize = 16;

/// Most entries of one kind in the block lists of all feeds of a source in the kernel. Its hash tables take 16 bytes
/// for each at once, entries or not.
pub const ENTRIES_OF_A_KIND_MAX: usize = 4 * ENTRIES_MAX;

/// Bytes of a pipe that are read at a time: as many as a pipe holds. Source: pipe(7).
pub const PIPE_CHUNK_BYTES: usize = 64 << 10;
/// How many times that a pipe is read ahead of its frames.
pub const PIPE_CHUNKS_AHEAD: usize = 8;

/// Longest wait for a neighbour's Ethernet address. The kernel asks three times, a second apart, and gives up after
/// three seconds.
pub const NEIGHBOUR_WAIT_MAX: Duration = Duration::from_secs(4);

/// Most threads that share a queue (`af_xdp`).
pub const COPIERS_MAX: u32 = 64;

/// Most interfaces that a source by pattern ever names, those that have left it included; `bpf/af_packet_pattern.bpf.c`
/// has the same number. The header area of a ring holds about as many.
pub const PATTERN_INTERFACES_MAX: u32 = 1024;

/// Most interfaces of a source by pattern that get another number because their owner was found after they had joined.
/// Those beyond keep the one that they have, without an owner: numbers, and room in the rings' headers, are for
/// interfaces that come.
pub const LATE_OWNERS_MAX: usize = 256;

/// Most that `af_packet` and `pcap` keep beside their rings.
pub const BUFFER_BYTES_MAX: u64 = 32 << 20;

/// Longest frame that `pcap` keeps: libpcap's buffer has blocks of 256 KiB, headers of the kernel's included.
pub const LIBPCAP_CAPLEN_MAX: u32 = 262_000;

/// How long a packet socket that is stopped may take to hand over its last block: a few of its time-outs of 4 ms, on a
/// machine that is busy with other things.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// How long a feed whose daemon in a guest has gone waits for the host to close its ring. A host hears of it within
/// milliseconds; one that has gone itself never closes it, and its successor takes the memory away.
pub const WRITER_END_MAX: Duration = Duration::from_millis(200);
