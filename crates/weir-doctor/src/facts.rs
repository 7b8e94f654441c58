//! Collected facts. `None` is "could not be asked", never "no".

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// The machine, as far as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// Its first two numbers.
    pub kernel_version: (u32, u32),
    /// Whether softirqs are threads.
    pub preempt_rt: bool,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit: Option<u32>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<u32>,
    /// Effective capabilities, a bit each.
    pub capabilities: u64,
    /// Whether the verifier took the TC programs when they were loaded; `None` without rights. The text
    /// is its refusal.
    #[serde(serialize_with = "as_verdict")]
    pub tc_programs: Option<Result<(), String>>,
    /// Whether AF_XDP sockets exist.
    pub af_xdp: Option<bool>,
    /// RLIMIT_MEMLOCK in bytes; `None` is no limit.
    pub memlock_bytes: Option<u64>,
    /// Memory that is free for this process, and the file that limits it if it is not the machine.
    pub free_bytes: Option<u64>,
    /// The cgroup file that sets the limit.
    pub limited_by: Option<String>,
    /// Least and usual bytes of rings.
    pub ring_bytes_least: u64,
    /// Free pages by size in bytes.
    pub hugepages_free: BTreeMap<u64, u64>,
    /// Where hugetlbfs is mounted.
    pub hugepage_mounts: Vec<String>,
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// Governors of the CPUs, each once.
    pub governors: Vec<String>,
    /// Current clock source.
    pub clock_source: Option<String>,
    /// libpcap's name and version.
    pub libpcap: String,
}

/// A feature of an interface.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Switch {
    /// Whether it can be changed.
    pub available: bool,
    /// The last requested value.
    pub requested: bool,
    /// The actual value.
    pub active: bool,
}

/// An interrupt of the NIC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Irq {
    /// Its number.
    pub number: u32,
    /// The driver's name for it.
    pub name: String,
    /// CPUs that may take it, as in `smp_affinity_list`.
    pub cpus: String,
}

/// Somebody on a hook of the interface: another program's, or another Weir's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hooked {
    /// `xdp`, `xdpgeneric`, `xdpoffload` (as ip-link(8) calls them), `tcx ingress`, `tcx egress`, `clsact ingress` or
    /// `clsact egress`.
    pub hook: &'static str,
    /// `bpf`, or the kind of a TC filter: `u32`, `flower`, ...
    pub kind: String,
    /// Id of the BPF program.
    pub program: Option<u32>,
    /// Its name, or the filter's; empty if it has none, or it takes rights to see.
    pub name: String,
    /// The link that holds it there.
    pub link: Option<u32>,
    /// A TC filter's priority; lower ones come first.
    pub priority: Option<u16>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// `ip netns` name of where it is, or the number of a process there, if not here.
    pub netns: Option<String>,
    /// The kernel's index; 0 if it cannot be captured at all.
    pub index: u32,
    /// Why Weir cannot capture it: missing, down, a strange link type.
    pub refused: Option<String>,
    /// Layer 3 bytes.
    pub mtu: u32,
    /// Pcap link type.
    pub link_type: u16,
    /// Driver's name.
    pub driver: Option<String>,
    /// Where it sits, `0000:3b:00.0`.
    pub bus: Option<String>,
    /// NUMA node, if there is one.
    pub numa_node: Option<u32>,
    /// CPUs of that node.
    pub node_cpus: Vec<usize>,
    /// Id of an XDP program that is there.
    pub xdp_program: Option<u32>,
    /// tcx programs at ingress and egress.
    pub tcx_programs: Option<(u32, u32)>,
    /// Everybody on its hooks that could be asked for; `None` if nobody was found and not all could.
    pub hooked: Option<Vec<Hooked>>,
    /// Traffic of this machine that depends on it, or on interfaces above it: the default route,
    /// addresses.
    pub own_traffic: Option<Vec<String>>,
    /// Native XDP.
    pub native_xdp: Option<bool>,
    /// AF_XDP without a copy.
    pub zero_copy: Option<bool>,
    /// Whether a program bound to the device may ask for VLAN tags, as found by loading one.
    pub xdp_tags: Option<bool>,
    /// Features by name, those that matter.
    pub features: BTreeMap<String, Switch>,
    /// RX ring slots, now and at most.
    pub rx_ring: Option<(u32, u32)>,
    /// RX queues, now and at most.
    pub rx_queues: Option<(u32, u32)>,
    /// Whether queues are set in pairs, `ethtool -L IFACE combined N`.
    pub queues_combined: bool,
    /// Whether both directions of a connection come to one queue.
    pub rss_symmetric: Option<bool>,
    /// Bytes of the key of its Toeplitz hash, if it has one that can be seen.
    pub rss_key_bytes: Option<usize>,
    /// Whether the NIC stamps received frames.
    pub hardware_stamps: Option<bool>,
    /// Its interrupts for queues.
    pub irqs: Vec<Irq>,
}

/// Capabilities by bit. Source: linux/capability.h.
pub mod capability {
    /// CAP_NET_ADMIN.
    pub const NET_ADMIN: u32 = 12;
    /// CAP_NET_RAW.
    pub const NET_RAW: u32 = 13;
    /// CAP_IPC_LOCK.
    pub const IPC_LOCK: u32 = 14;
    /// CAP_SYS_ADMIN, which stands in for the two below.
    pub const SYS_ADMIN: u32 = 21;
    /// CAP_PERFMON.
    pub const PERFMON: u32 = 38;
    /// CAP_BPF.
    pub const BPF: u32 = 39;
}

impl Nic {
    /// A command about the interface, as it is typed in this process's network namespace.
    #[must_use]
    pub fn command(&self, command: &str) -> String {
        let about_it = ["ethtool ", "ip ", "bpftool "].iter().any(|tool| command.starts_with(tool));
        match &self.netns {
            Some(pid) if about_it && pid.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("nsenter -n -t {pid} {command}")
            }
            Some(path) if about_it && path.starts_with('/') => {
                format!("nsenter --net={path} {command}")
            }
            Some(netns) if about_it => format!("ip netns exec {netns} {command}"),
            _ => command.to_owned(),
        }
    }
}

/// `{"loaded": false, "refusal": "..."}`, or null if nobody tried.
fn as_verdict<S: Serializer>(tried: &Option<Result<(), String>>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Verdict<'a> {
        loaded: bool,
        refusal: Option<&'a str>,
    }
    let verdict = tried.as_ref().map(|result| Verdict {
        loaded: result.is_ok(),
        refusal: result.as_ref().err().map(String::as_str),
    });
    verdict.serialize(to)
}

impl Machine {
    /// Whether this process has a capability, or one that stands in for it.
    #[must_use]
    pub fn has(&self, bit: u32) -> bool {
        let one = |bit: u32| self.capabilities >> bit & 1 != 0;
        let implied = matches!(bit, capability::PERFMON | capability::BPF);
        one(bit) || implied && one(capability::SYS_ADMIN)
    }

    /// Names of the capabilities that an engine lacks.
    #[must_use]
    pub fn lacks(&self, engine: &str) -> Vec<&'static str> {
        let needs = weir_capture::engines::by_name(engine).map_or(&[][..], |engine| engine.rights);
        needs.iter().filter(|right| !self.has(right.bit)).map(|right| right.name).collect()
    }

    /// Whether the bpf engine can run at TC.
    #[must_use]
    pub fn can_bpf(&self) -> bool {
        !self.preempt_rt
            && self.kernel_version >= (6, 1)
            && self.lacks("bpf").is_empty()
            && !matches!(self.tc_programs, Some(Err(_)))
    }
}
