//! Capabilities that capturing needs.

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Its name, as in capabilities(7).
    pub name: &'static str,
    /// Its bit. Source: linux/capability.h.
    pub bit: u32,
}

/// For settings of interfaces, and for attaching programs to them.
pub const NET_ADMIN: Right = Right { name: "CAP_NET_ADMIN", bit: 12 };
/// For packet sockets, AF_XDP sockets and promiscuous mode.
pub const NET_RAW: Right = Right { name: "CAP_NET_RAW", bit: 13 };
/// For BPF programs that read the kernel's memory.
pub const PERFMON: Right = Right { name: "CAP_PERFMON", bit: 38 };
/// For BPF maps and programs.
pub const BPF: Right = Right { name: "CAP_BPF", bit: 39 };

/// All capabilities that engines for interfaces need, in the order of our `setcap` advice.
pub const CAPTURE: [Right; 4] = [NET_RAW, NET_ADMIN, BPF, PERFMON];
