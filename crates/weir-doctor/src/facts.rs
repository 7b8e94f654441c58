//! Collected facts. `None` means that a fact could not be found out, never "no".

use std::collections::BTreeMap;

use serde::{Serialize, Serializer};

/// The machine, as far as this process sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Machine {
    /// `uname -r`.
    pub kernel: String,
    /// The first two numbers of the kernel's version.
    pub kernel_version: (u32, u32),
    /// Whether the kernel has PREEMPT_RT.
    pub preempt_rt: bool,
    /// `net.core.bpf_jit_enable`.
    pub bpf_jit: Option<u32>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<u32>,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether the verifier accepted the TC programs when they were loaded. The text is the refusal. `None`: they were
    /// not loaded, because rights or memory were missing.
    #[serde(serialize_with = "as_verdict")]
    pub tc_programs: Option<Result<(), String>>,
    /// Whether AF_XDP sockets exist.
    pub af_xdp: Option<bool>,
    /// RLIMIT_MEMLOCK in bytes; `None`: there is no limit.
    pub memlock_bytes: Option<u64>,
    /// Bytes of memory that are free for this process.
    pub free_bytes: Option<u64>,
    /// The cgroup file that sets this limit; `None` if the limit is the machine's memory.
    pub limited_by: Option<String>,
    /// Bytes of the smallest rings of engine bpf.
    pub ring_bytes_least: u64,
    /// Number of free huge pages, by their size in bytes.
    pub hugepages_free: BTreeMap<u64, u64>,
    /// The folders at which hugetlbfs is mounted.
    pub hugepage_mounts: Vec<String>,
    /// CPUs that this process may use.
    pub cpus: Vec<usize>,
    /// The different governors of the CPUs.
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

/// A program or a filter on a hook of the interface, of another program or of another Weir.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Hooked {
    /// `xdp`, `xdpgeneric`, `xdpoffload` (as ip-link(8) calls them), `tcx ingress`, `tcx egress`, `clsact ingress` or
    /// `clsact egress`.
    pub hook: &'static str,
    /// `bpf`, or the kind of a TC filter: `u32`, `flower`, ...
    pub kind: String,
    /// Id of the BPF program.
    pub program: Option<u32>,
    /// Name of the program or of the filter; empty if it has none, or if this process lacks the rights to read it.
    pub name: String,
    /// Id of the BPF link that keeps it attached.
    pub link: Option<u32>,
    /// Priority of a TC filter. Filters with lower priorities run first.
    pub priority: Option<u16>,
}

/// An interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Nic {
    /// Its name.
    pub name: String,
    /// The interface's network namespace, if it is not that of this process: its name in `ip netns`, the path of its
    /// file, or the id of a process in it.
    pub netns: Option<String>,
    /// The kernel's index; 0, and null in JSON, if it cannot be captured at all.
    #[serde(serialize_with = "as_known")]
    pub index: u32,
    /// The reason why Weir cannot capture the interface: it is missing or down, or its link type is not supported.
    pub refused: Option<String>,
    /// Largest packet that it carries, in bytes, without the link-layer header; 0, and null in JSON, if not known.
    #[serde(serialize_with = "as_known")]
    pub mtu: u32,
    /// Pcap link type.
    pub link_type: u16,
    /// Name of the driver.
    pub driver: Option<String>,
    /// Address of the device on the bus, such as `0000:3b:00.0`.
    pub bus: Option<String>,
    /// NUMA node, if there is one.
    pub numa_node: Option<u32>,
    /// CPUs of that node.
    pub node_cpus: Vec<usize>,
    /// Id of the attached XDP program.
    pub xdp_program: Option<u32>,
    /// Number of tcx programs at ingress and at egress.
    pub tcx_programs: Option<(u32, u32)>,
    /// The programs and filters on its hooks, as far as they could be listed; `None` if none was found and a list could
    /// not be read.
    pub hooked: Option<Vec<Hooked>>,
    /// Traffic of this machine that depends on the interface, or on interfaces above it: the default route, addresses.
    pub own_traffic: Option<Vec<String>>,
    /// Whether the driver has native XDP.
    pub native_xdp: Option<bool>,
    /// Whether the driver has zero-copy AF_XDP.
    pub zero_copy: Option<bool>,
    /// Whether a program bound to the device may ask for VLAN tags, as found by loading one.
    pub xdp_tags: Option<bool>,
    /// The features that matter for a capture, by name.
    pub features: BTreeMap<String, Switch>,
    /// Present and largest number of descriptors in the RX ring.
    pub rx_ring: Option<(u32, u32)>,
    /// Present and largest number of RX queues.
    pub rx_queues: Option<(u32, u32)>,
    /// Whether queues are set in pairs, `ethtool -L IFACE combined N`.
    pub queues_combined: bool,
    /// Whether both directions of a connection come to the same queue.
    pub rss_symmetric: Option<bool>,
    /// Bytes of the key of the Toeplitz hash, if the NIC uses this hash and the driver shows the key.
    pub rss_key_bytes: Option<usize>,
    /// Whether the NIC stamps received frames.
    pub hardware_stamps: Option<bool>,
    /// The interrupts of its RX queues.
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
    /// CAP_SYS_ADMIN, which includes the two below.
    pub const SYS_ADMIN: u32 = 21;
    /// CAP_PERFMON.
    pub const PERFMON: u32 = 38;
    /// CAP_BPF.
    pub const BPF: u32 = 39;
}

impl Nic {
    /// Returns the command that a user in this process's network namespace must type, for a command about the
    /// interface.
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

/// Serializes a number that is 0 if it is not known; then as null.
fn as_known<S: Serializer>(number: &u32, to: S) -> Result<S::Ok, S::Error> {
    Some(*number).filter(|number| *number > 0).serialize(to)
}

/// Serializes as `{"loaded": false, "refusal": "..."}`, or as null if the programs were not loaded.
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
    /// Returns whether this process has a capability, or another capability that includes it.
    #[must_use]
    pub fn has(&self, bit: u32) -> bool {
        let one = |bit: u32| self.capabilities >> bit & 1 != 0;
        let implied = matches!(bit, capability::PERFMON | capability::BPF);
        one(bit) || implied && one(capability::SYS_ADMIN)
    }

    /// Returns the names of the capabilities that an engine lacks.
    #[must_use]
    pub fn lacks(&self, engine: &str) -> Vec<&'static str> {
        let needs = weir_capture::engines::by_name(engine).map_or(&[][..], |engine| engine.rights);
        needs.iter().filter(|right| !self.has(right.bit)).map(|right| right.name).collect()
    }

    /// Returns whether the bpf engine can run at TC.
    #[must_use]
    pub fn can_bpf(&self) -> bool {
        !self.preempt_rt
            && self.kernel_version >= (6, 1)
            && self.lacks("bpf").is_empty()
            && !matches!(self.tc_programs, Some(Err(_)))
    }
}
