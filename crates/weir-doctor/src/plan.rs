//! Derives a command line and settings from facts. Nothing in this module queries the system.

use serde::Serialize;
use weir_capture::interface::Rss;

use crate::facts::{Machine, Nic, capability};
use crate::settings::{BPF_JIT_ENABLE, Knob, Setting, hex, irq_cpus_file};

/// Use of the interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The interface carries traffic of this machine, which the capture must not change.
    Passive,
    /// The interface only receives copies of traffic: nothing on this machine needs its frames.
    MonitoringPort,
}

/// A plan for an interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Plan {
    /// Command line for watching the interface, if any engine can run.
    pub passive: Option<String>,
    /// Command line for taking all frames of a monitoring port, if any engine can run, and nothing on this machine
    /// depends on the interface.
    pub monitoring_port: Option<String>,
    /// CPUs near the NIC, for its interrupts and for readers.
    pub cores: Vec<usize>,
    /// Bytes of rings.
    pub ring_bytes: u64,
    /// Settings that `--apply` changes for this use.
    pub settings: Vec<Setting>,
}

/// Makes a plan for an interface.
#[must_use]
pub fn plan(nic: &Nic, machine: &Machine, used: Use) -> Plan {
    let ring_bytes = ring_bytes(machine);
    let cores = cores(nic, machine);
    if nic.refused.is_some() {
        return Plan { passive: None, monitoring_port: None, cores, ring_bytes, settings: vec![] };
    }
    let source = match &nic.netns {
        Some(netns) => format!("netns:{netns}/{}", nic.name),
        None => nic.name.clone(),
    };
    let cpus =
        near_node(nic, machine).map(|node| format!(" --cpus node:{node}")).unwrap_or_default();
    let line = |flags: &str| {
        format!("weir capture {source} {flags} --ring-size {}MiB{cpus}", ring_bytes >> 20)
    };
    let passive = if machine.can_bpf() {
        Some(line("--engine bpf --hook tc"))
    } else {
        machine.lacks("af_packet").is_empty().then(|| line("--engine af_packet"))
    };
    let xdp = machine.can_bpf() && nic.xdp_program.is_none();
    let locks = machine.memlock_bytes.is_none_or(|bytes| bytes >= 64 << 20);
    let sockets = machine.af_xdp == Some(true) && (locks || machine.has(capability::IPC_LOCK));
    // No plan may disconnect the machine, so it must be known that none of its own traffic uses the interface.
    let is_own = nic.own_traffic.as_ref().is_none_or(|own| !own.is_empty());
    let monitoring_port = match (xdp, nic.native_xdp, nic.zero_copy) {
        _ if is_own => None,
        // With zero copy, the NIC writes into the memory that the engine reads. Only then are AF_XDP sockets worth
        // their threads.
        (true, Some(true), Some(true)) if sockets => Some(line("--engine af_xdp --consume")),
        (true, Some(true) | None, _) => Some(line("--engine bpf --consume")),
        _ => passive.clone(),
    };
    let settings = settings(nic, machine, used, &cores);
    Plan { passive, monitoring_port, cores, ring_bytes, settings }
}

/// Returns the NIC's NUMA node, if it makes a difference and threads can be kept on it: this process may use all CPUs
/// of the node, and other CPUs, too.
fn near_node(nic: &Nic, machine: &Machine) -> Option<u32> {
    let is_near = |cpu: &usize| nic.node_cpus.contains(cpu);
    let may_be_used = nic.node_cpus.iter().all(|cpu| machine.cpus.contains(cpu));
    let is_one_of_several = may_be_used && !machine.cpus.iter().all(is_near);
    nic.numa_node.filter(|_| is_one_of_several && !nic.node_cpus.is_empty())
}

/// Returns the CPUs of the NIC's node that this process may use; if there are none, all CPUs that it may use.
#[must_use]
pub fn cores(nic: &Nic, machine: &Machine) -> Vec<usize> {
    let near = nic.node_cpus.iter().copied().filter(|cpu| machine.cpus.contains(cpu));
    let near: Vec<usize> = near.collect();
    if near.is_empty() { machine.cpus.clone() } else { near }
}

/// Returns the bytes of the rings: 64 MiB for each CPU, but at most 1/32 of the free memory; a power of two up to 1
/// GiB. Never less than 64 MiB, which is the default, or than the minimum.
///
/// Rings of BPF programs cannot be swapped out, other rings should not be, and several captures may run. At 10 Gbit/s
/// 64 MiB hold the frames of 50 ms, the longest time for which a busy machine usually leaves a reader without a CPU. A
/// user who sees lapped frames needs larger rings.
fn ring_bytes(machine: &Machine) -> u64 {
    let share = machine.free_bytes.unwrap_or(0) / 32;
    let most = share.min((machine.cpus.len() as u64) << 26);
    let size = (6..=10).map(|power| 1u64 << (20 + power)).rfind(|&bytes| bytes <= most);
    size.unwrap_or(64 << 20).max(machine.ring_bytes_least)
}

fn settings(nic: &Nic, machine: &Machine, used: Use, cores: &[usize]) -> Vec<Setting> {
    let mut settings = Vec::new();
    let mut set = |knob, value: String, why: &str| {
        settings.push(Setting { knob, value, why: why.to_owned() });
    };
    if machine.bpf_jit == Some(0) {
        let knob = Knob::File { path: BPF_JIT_ENABLE.to_owned() };
        set(knob, "1".to_owned(), "programs are interpreted without it");
    }
    let iface = || nic.name.clone();
    if let Some((_, most)) = nic.rx_ring.filter(|(now, most)| now < most) {
        set(Knob::RxRing { iface: iface() }, most.to_string(), "bursts wait there");
    }
    if used == Use::Passive {
        return settings;
    }
    // On a monitoring port, no connection of this machine benefits from joined segments.
    let mut features = vec![
        ("rx-gro", "frames as they were on the wire, whichever engine"),
        ("rx-lro", "joined frames cannot be told apart again, and native XDP is barred"),
        ("rx-gro-hw", "frames as they were on the wire; native XDP is barred by most drivers"),
    ];
    if nic.xdp_tags == Some(false) {
        features.push(("rx-vlan-hw-parse", "XDP cannot ask this driver for the tag"));
    }
    for (name, why) in features {
        let switch = nic.features.get(name).copied().unwrap_or_default();
        if switch.available && switch.requested {
            set(Knob::Feature { iface: iface(), name: name.to_owned() }, "0".to_owned(), why);
        }
    }
    // A monitoring port receives copies of both directions, and consumers of a queue want whole connections.
    if nic.rx_queues.is_some_and(|(now, _)| now > 1)
        && nic.rss_symmetric == Some(false)
        && let Some(bytes) = nic.rss_key_bytes
    {
        let key = hex(&Rss::symmetric_key(bytes));
        set(Knob::RssKey { iface: iface() }, key, "both ways of a connection to one queue");
    }
    // Give each interrupt a CPU, but only if all of them share one CPU now: any other arrangement was made on purpose.
    let shared = nic.irqs.len() > 1 && nic.irqs.iter().all(|irq| irq.cpus == nic.irqs[0].cpus);
    if shared && cores.len() > 1 && !nic.irqs[0].cpus.contains(['-', ',']) {
        for (at, irq) in nic.irqs.iter().enumerate() {
            let value = cores[at % cores.len()].to_string();
            if value != irq.cpus {
                let path = irq_cpus_file(irq.number);
                set(Knob::File { path }, value, "a CPU for each queue");
            }
        }
    }
    settings
}
