//! Capabilities that capturing needs.

/// A capability.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Right {
    /// Its name, as in capabilities(7).
    pub name: &'static str,
    /// Its bit. Source: linux/capability.h.
    pub bit: u32,
}

/// To change settings of interfaces and attach programs to them.
pub const NET_ADMIN: Right = Right { name: "CAP_NET_ADMIN", bit: 12 };
/// To open packet sockets and AF_XDP sockets, and to set promiscuous mode.
pub const NET_RAW: Right = Right { name: "CAP_NET_RAW", bit: 13 };
/// To load BPF programs that read kernel memory.
pub const PERFMON: Right = Right { name: "CAP_PERFMON", bit: 38 };
/// To create BPF maps and load BPF programs.
pub const BPF: Right = Right { name: "CAP_BPF", bit: 39 };

/// All capabilities that engines for interfaces need, in the order of our `setcap` advice.
pub const CAPTURE: [Right; 4] = [NET_RAW, NET_ADMIN, BPF, PERFMON];
