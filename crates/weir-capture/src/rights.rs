//! Capabilities that capturing takes.

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// As capabilities(7) has it.
    pub name: &'static str,
    /// Its bit. Source: linux/capability.h.
    pub bit: u32,
}

/// Interfaces: settings, hooks.
pub const NET_ADMIN: Right = Right { name: "CAP_NET_ADMIN", bit: 12 };
/// Packet sockets; promiscuous mode.
pub const NET_RAW: Right = Right { name: "CAP_NET_RAW", bit: 13 };
/// BPF programs that look at the kernel's memory.
pub const PERFMON: Right = Right { name: "CAP_PERFMON", bit: 38 };
/// BPF maps and programs.
pub const BPF: Right = Right { name: "CAP_BPF", bit: 39 };

/// All that engines of interfaces take, in the order that `setcap` advice has them.
pub const CAPTURE: [Right; 4] = [NET_RAW, NET_ADMIN, BPF, PERFMON];
