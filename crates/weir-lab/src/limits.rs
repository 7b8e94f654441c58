//! Limits of the generator.

/// Most threads: as many programs as the kernel's XDP dispatcher holds (`BPF_DISPATCHER_MAX`).
pub const THREADS_MAX: usize = 48;

/// The smallest Ethernet frame on the wire.
pub const SIZE_MIN: u32 = 64;

/// Largest size on the wire of a live frame: the frame lies in one 4 KiB page, beside 256 bytes of
/// headroom, 112 of the kernel's own (`struct xdp_page_head`) and 320 of `skb_shared_info`; its check sequence of
/// 4 bytes does not.
pub const LIVE_SIZE_MAX: u32 = 4096 - 256 - 112 - 320 + 4;

/// Most frames of one turn of a mix of sizes: the table of the BPF program.
pub const TURN_MAX: usize = 4096;

/// Most frames that a thread tries at a time: 2.4 ms at 6.9 Mpps, so it looks at the stop flag and the deadline often.
pub const GRANT_MAX: u64 = 16_384;
