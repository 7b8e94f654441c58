//! Limits of sources and feeds.

use std::time::Duration;

use weir_filter::limits::ENTRIES_MAX;

/// Most feeds of one source.
pub const FEEDS_MAX: usize = 32;

/// Most feeds that the capture program of `bpf` writes; a relay derives further feeds. `bpf/bpf.bpf.c` has
/// room for one more.
pub const HOOK_FEEDS_MAX: usize = 16;

/// Most entries of one kind in the block lists of all feeds of a source in the kernel. Its hash tables allocate 16
/// bytes for each possible entry at the start.
pub const ENTRIES_OF_A_KIND_MAX: usize = 4 * ENTRIES_MAX;

/// Bytes of a pipe that are read at a time: as many as a pipe holds. Source: pipe(7).
pub const PIPE_CHUNK_BYTES: usize = 64 << 10;
/// Most chunks that are read from a pipe but not yet parsed.
pub const PIPE_CHUNKS_AHEAD: usize = 8;

/// Longest wait for a neighbour's Ethernet address. The kernel sends three requests, a second apart, and gives up after
/// three seconds.
pub const NEIGHBOUR_WAIT_MAX: Duration = Duration::from_secs(4);

/// Most threads that share a queue (`af_xdp`).
pub const COPIERS_MAX: u32 = 64;

/// Most interfaces that a source by pattern has in a run, including those that have left.
/// `bpf/af_packet_pattern.bpf.c` has the same limit. The header area of a ring holds about as many
/// descriptions.
pub const PATTERN_INTERFACES_MAX: u32 = 1024;

/// Most interfaces of a source by pattern that get a second number because their owner was found after they had joined.
/// Further interfaces keep their number, without an owner, so that new interfaces still find numbers and space in the
/// headers of the rings.
pub const LATE_OWNERS_MAX: usize = 256;

/// Most bytes of the buffers that `af_packet` and `pcap` have in addition to their rings.
pub const BUFFER_BYTES_MAX: u64 = 32 << 20;

/// Most bytes of a frame that `pcap` keeps: libpcap's buffer has blocks of 256 KiB, which include the
/// kernel's headers.
pub const LIBPCAP_CAPLEN_MAX: u32 = 262_000;

/// Longest wait for the last block of a packet socket that is stopped. The kernel retires it after 4 ms, but the
/// machine may be busy.
pub(crate) const DRAIN_TIME_MAX: Duration = Duration::from_secs(2);
/// Longest time that a reader in a guest waits for the host to close the ring after the guest's broker has ended. The
/// host notices within milliseconds. If the host's daemon has ended too, the ring is never closed, and the next daemon
/// removes the memory.
pub const WRITER_END_MAX: Duration = Duration::from_millis(200);
