//! Limits of filters and block lists.

/// Most entries of one block list.
pub const ENTRIES_MAX: usize = 65_536;

/// Most filters of a set: its answer has a bit for each.
pub const SET_MAX: usize = 32;

/// Most instructions of a program: the kernel's limit for sockets (`BPF_MAXINSNS`).
pub const INSNS_MAX: usize = 4096;

/// Most instructions of an eBPF program in the kernel (`BPF_COMPLEXITY_LIMIT_INSNS`, linux/bpf.h).
pub const EBPF_INSNS_MAX: usize = 1_000_000;

/// Most paths through a program that [`crate::possible::possible`] follows. With more, its answer
/// is that frames may pass.
pub const WAYS_MAX: usize = 10_000;
