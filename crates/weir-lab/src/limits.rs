//! Limits of the generator.

/// Most sending threads: the number of programs in the kernel's XDP dispatcher (`BPF_DISPATCHER_MAX`).
pub const THREADS_MAX: usize = 48;

/// Size of the smallest Ethernet frame on the wire.
pub const SIZE_MIN: u32 = 64;

/// Largest size of a live frame on the wire. The frame shares one 4 KiB page with 256 bytes of
/// headroom, 112 bytes of the kernel (`struct xdp_page_head`) and 320 bytes of `skb_shared_info`.
/// The 4 bytes of its FCS are not in the page.
pub const LIVE_SIZE_MAX: u32 = 4096 - 256 - 112 - 320 + 4;

/// Most frames of one turn of a mix of sizes: the length of the table in the BPF program.
pub const TURN_MAX: usize = 4096;

/// Most frames that a thread attempts at a time: 2.4 ms at 6.9 Mpps, so the thread checks the stop flag and the
/// deadline often enough.
pub const GRANT_MAX: u64 = 16_384;
