//! Judges facts by their meaning for a capture. Nothing in this module queries the system.

mod hooked;

use std::borrow::Cow;

use serde::Serialize;

use weir_capture::engines::ENGINES;
use weir_capture::engines::declaration::Takes;
use weir_capture::interface::Rss;

use crate::facts::{Machine, Nic, capability};
use crate::settings::{Knob, hex};
use hooked::hooked;

/// The grade of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Grade {
    /// Nothing to do.
    Ok,
    /// Good to know; capturing works.
    Note,
    /// Something does not work.
    No,
}

/// A judgement about one fact.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Its subject, a word or two.
    pub about: Cow<'static, str>,
    /// The grade.
    pub grade: Grade,
    /// Its meaning for capture.
    pub meaning: String,
    /// A command that helps, if one does.
    pub remedy: Option<String>,
}

/// A list of findings.
#[derive(Default)]
struct Findings(Vec<Finding>);

impl Findings {
    fn ok(&mut self, about: impl Into<Cow<'static, str>>, meaning: impl Into<String>) {
        self.add(about, Grade::Ok, meaning, None);
    }

    fn note(
        &mut self,
        about: impl Into<Cow<'static, str>>,
        meaning: impl Into<String>,
        remedy: Option<String>,
    ) {
        self.add(about, Grade::Note, meaning, remedy);
    }

    fn no(
        &mut self,
        about: impl Into<Cow<'static, str>>,
        meaning: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(about, Grade::No, meaning, Some(remedy.into()));
    }

    fn add(
        &mut self,
        about: impl Into<Cow<'static, str>>,
        grade: Grade,
        meaning: impl Into<String>,
        remedy: Option<String>,
    ) {
        self.0.push(Finding { about: about.into(), grade, meaning: meaning.into(), remedy });
    }
}

/// Judges the machine.
#[must_use]
pub fn machine(facts: &Machine) -> Vec<Finding> {
    let mut findings = Findings::default();
    kernel(&mut findings, facts);
    rights(&mut findings, facts);
    memory(&mut findings, facts);
    clocks_and_cpus(&mut findings, facts);
    findings.0
}

const UPGRADE: &str = "apt install linux-image-amd64 && reboot";
const SETCAP: &str =
    "setcap cap_net_raw,cap_net_admin,cap_bpf,cap_perfmon+ep \"$(command -v weir)\"";

fn kernel(findings: &mut Findings, facts: &Machine) {
    let name = &facts.kernel;
    if facts.kernel_version < (6, 1) {
        findings.no("kernel", format!("{name} is older than 6.1: engine bpf cannot run"), UPGRADE);
    } else if facts.kernel_version < (6, 6) {
        let text = format!("{name} has no tcx (6.6): a clsact filter is used, which works as well");
        findings.note("kernel", text, None);
    } else {
        findings.ok("kernel", format!("{name} has tcx: programs go away with their process"));
    }
    if facts.kernel_version >= (6, 1) && facts.kernel_version < (6, 8) {
        let text = "XDP cannot ask for a VLAN tag before Linux 6.8; TC always has it";
        findings.note("xdp metadata", text, None);
    }
    if facts.preempt_rt {
        let text = "PREEMPT_RT: engine bpf does not run here, af_packet does";
        findings.no("preemption", text, "weir capture IFACE --engine af_packet");
    }
    match &facts.tc_programs {
        Some(Ok(())) => findings.ok("bpf programs", "this kernel's verifier takes them"),
        Some(Err(why)) => {
            let text = format!("refused, so engine bpf cannot run: {why}");
            findings.no("bpf programs", text, "weir lab load-bpf");
        }
        None => findings.note("bpf programs", "not tried: that takes rights and memory", None),
    }
    if facts.bpf_jit == Some(0) {
        let text = "off: programs are interpreted, at a multiple of the cost of a frame";
        findings.no("bpf jit", text, "sysctl -w net.core.bpf_jit_enable=1");
    } else if facts.bpf_jit.is_some() {
        findings.ok("bpf jit", "on");
    }
    match facts.af_xdp {
        Some(false) => {
            findings.no(
                "af_xdp",
                "this kernel has no AF_XDP sockets: engine af_xdp cannot run",
                UPGRADE,
            );
        }
        Some(true) => findings.ok("af_xdp", "this kernel has AF_XDP sockets"),
        None => findings.note("af_xdp", "could not be tried", None),
    }
    findings.ok("libpcap", facts.libpcap.clone());
}

fn rights(findings: &mut Findings, facts: &Machine) {
    for engine in ENGINES.iter().filter(|engine| engine.takes == Takes::Interfaces) {
        let lacks = facts.lacks(engine.name);
        let about = format!("rights of {}", engine.name);
        if lacks.is_empty() {
            findings.ok(about, "all there");
        } else {
            findings.no(about, format!("missing: {}", lacks.join(", ")), SETCAP);
        }
    }
    if facts.unprivileged_bpf_disabled == Some(0) {
        let text = "any user may load BPF programs; Weir does not need that";
        let remedy = "sysctl -w kernel.unprivileged_bpf_disabled=2".to_owned();
        findings.note("unprivileged bpf", text, Some(remedy));
    }
}

fn memory(findings: &mut Findings, facts: &Machine) {
    // Since Linux 5.11, of the memory that engines use, only that of AF_XDP counts against this limit.
    match facts.memlock_bytes {
        Some(bytes) if bytes < 64 << 20 && !facts.has(capability::IPC_LOCK) => {
            let text = format!("{} KiB: too little for the memory of engine af_xdp", bytes >> 10);
            findings.no("locked memory", text, "sudo prlimit --pid $$ --memlock=unlimited");
        }
        _ => findings.ok("locked memory", "enough for engine af_xdp"),
    }
    let least = facts.ring_bytes_least;
    match facts.free_bytes {
        Some(free) if free < least + (64 << 20) => {
            let by = facts.limited_by.clone().unwrap_or_else(|| "the machine".to_owned());
            let text =
                format!("{} MiB left by {by}: rings take {} at least", free >> 20, least >> 20);
            let file = facts.limited_by.as_ref();
            let remedy =
                file.map_or_else(|| "free -m".to_owned(), |file| format!("echo 1G > {file}"));
            findings.no("memory", text, remedy);
        }
        Some(free) => findings.ok("memory", format!("{} MiB free for rings", free >> 20)),
        None => findings.note("memory", "could not be asked", None),
    }
    let free: u64 = facts.hugepages_free.values().sum();
    let mounted = if facts.hugepage_mounts.is_empty() { "not mounted" } else { "mounted" };
    let wants = ENGINES.iter().filter(|engine| engine.heeds("--hugepages"));
    let wants: Vec<&str> = wants.map(|engine| engine.name).collect();
    let text = format!("{free} free, {mounted}; with --hugepages: {}", wants.join(", "));
    findings.ok("hugepages", text);
}

fn clocks_and_cpus(findings: &mut Findings, facts: &Machine) {
    match facts.clock_source.as_deref() {
        Some(source @ ("hpet" | "acpi_pm" | "jiffies")) => {
            let text = format!("{source}: every stamp of a frame is slow to take");
            let path = "/sys/devices/system/clocksource/clocksource0/current_clocksource";
            findings.no("clock", text, format!("echo tsc > {path}"));
        }
        Some(source) => findings.ok("clock", format!("{source}: stamps are cheap")),
        None => findings.note("clock", "could not be asked", None),
    }
    if facts.cpus.len() == 1 {
        let text = "one: capturing and reading share it, and so does the traffic";
        findings.note("cpus", text, None);
    } else {
        findings.ok("cpus", format!("{} may be used", facts.cpus.len()));
    }
    if facts.governors.iter().any(|governor| governor == "powersave") {
        let text = "powersave: a CPU may still be slow when a burst comes";
        findings.note("governor", text, Some("cpupower frequency-set -g performance".to_owned()));
    }
}

/// Judges an interface.
#[must_use]
pub fn nic(nic: &Nic, machine: &Machine) -> Vec<Finding> {
    let mut findings = Findings::default();
    let name = &nic.name;
    if let Some(why) = &nic.refused {
        let remedy = if why.contains(" is down") {
            format!("ip link set {name} up")
        } else {
            "ip -brief link".to_owned()
        };
        findings.no("interface", why.clone(), remedy);
        return findings.0;
    }
    let driver = nic.driver.as_deref().unwrap_or("no driver that says its name");
    findings.ok("interface", format!("up, MTU {}, {driver}", nic.mtu));
    own_traffic(&mut findings, nic);
    hooks(&mut findings, nic, machine);
    offloads(&mut findings, nic, machine);
    queues(&mut findings, nic, machine);
    for remedy in findings.0.iter_mut().filter_map(|finding| finding.remedy.as_mut()) {
        *remedy = nic.command(remedy);
    }
    findings.0
}

fn own_traffic(findings: &mut Findings, nic: &Nic) {
    match nic.own_traffic.as_deref() {
        None => {
            let text = "could not be asked: whoever consumes it may cut this machine off";
            findings.note("own traffic", text, None);
        }
        Some([]) => {
            findings.ok("own traffic", "no address, no default route: --consume harms nobody")
        }
        Some(own) => {
            let text = format!("{}: watch it, --consume cuts this machine off", own.join(", "));
            findings.note("own traffic", text, None);
        }
    }
}

fn hooks(findings: &mut Findings, nic: &Nic, machine: &Machine) {
    hooked(findings, nic, machine);
    match (nic.native_xdp, nic.zero_copy) {
        (Some(true), Some(true)) => findings.ok("native xdp", "there, and AF_XDP without a copy"),
        (Some(true), _) => {
            findings.note("native xdp", "there, but AF_XDP copies each frame in the kernel", None);
        }
        (Some(false), _) => {
            let text = "the driver has none: the generic hook is slower than TC";
            findings.note("native xdp", text, None);
        }
        (None, _) => findings.note("native xdp", "this kernel does not say", None),
    }
}

fn offloads(findings: &mut Findings, nic: &Nic, machine: &Machine) {
    let name = &nic.name;
    let on = |feature: &str| nic.features.get(feature).is_some_and(|switch| switch.active);
    let off = |feature: &str| Some(format!("ethtool -K {name} {feature} off"));
    if on("rx-vlan-hw-parse") {
        match nic.xdp_tags {
            Some(true) => findings.ok("vlan tags", "taken off by the driver; XDP asks it for them"),
            // The program that finds this out was not loaded, for lack of rights.
            None if !machine.can_bpf() => {}
            _ => {
                let text = "the driver takes tags off and XDP cannot see them there; TC can";
                findings.note("vlan tags", text, off("rxvlan"));
            }
        }
    }
    if on("rx-lro") {
        let text = "LRO joins frames so that they cannot be told apart again, and bars native XDP";
        findings.note("lro", text, off("lro"));
    }
    if on("rx-gro-hw") {
        let text = "the NIC joins TCP segments, and bars native XDP with most drivers";
        findings.note("gro in hardware", text, off("rx-gro-hw"));
    }
    if on("rx-gro") {
        let text =
            "the stack joins TCP segments before TC: super-frames are kept whole and flagged";
        findings.note("gro", text, off("gro"));
    }
    if on("tx-tcp-segmentation") {
        findings.ok("tso", "sent TCP is seen before the NIC cuts it: super-frames, flagged");
    }
}

fn queues(findings: &mut Findings, nic: &Nic, machine: &Machine) {
    let name = &nic.name;
    match nic.rx_ring {
        Some((now, most)) if now < most => {
            let text =
                format!("{now} of {most} slots: a burst overflows the NIC sooner than it must");
            findings.note("rx ring", text, Some(format!("ethtool -G {name} rx {most}")));
        }
        Some((now, _)) => findings.ok("rx ring", format!("{now} slots, the most there are")),
        None => findings.ok("rx ring", "the driver has none to set"),
    }
    if let Some((now, most)) = nic.rx_queues {
        let cpus = machine.cpus.len() as u32;
        // A veth without a program or GRO passes frames on where they are sent, whatever its number of queues is.
        let has_own = nic.driver.as_deref() != Some("veth");
        if has_own && now == 1 && most > 1 && cpus > 1 {
            let text = format!("1 of {most}: one CPU takes all frames");
            let kind = if nic.queues_combined { "combined" } else { "rx" };
            let remedy = format!("ethtool -L {name} {kind} {}", most.min(cpus));
            findings.note("queues", text, Some(remedy));
        } else {
            findings.ok("queues", format!("{now} of {most}"));
        }
        if now > 1 && nic.rss_symmetric == Some(false) {
            let mut text =
                "both ways of a connection may come to different CPUs; merged files are in order"
                    .to_owned();
            let sorted = format!("ethtool -X {name} xfrm symmetric-xor");
            let new = machine.kernel_version >= (6, 8);
            let key = nic.rss_key_bytes.map(|bytes| {
                let key = hex(&Rss::symmetric_key(bytes));
                Knob::RssKey { iface: name.clone() }.command(&key)
            });
            if key.is_some() && new {
                text += &format!("; some drivers take `{sorted}` instead");
            }
            findings.note("rss", text, key.or_else(|| new.then_some(sorted)));
        }
    }
    if let [first, _, ..] = &nic.irqs[..]
        && nic.irqs.iter().all(|irq| irq.cpus == first.cpus)
        && !first.cpus.contains(['-', ','])
    {
        let text = format!("all queues interrupt CPU {}: the others do not help", first.cpus);
        let cpu = crate::plan::cores(nic, machine).into_iter().last().unwrap_or(0);
        let path = format!("/proc/irq/{}/smp_affinity_list", first.number);
        findings.note("interrupts", text, Some(format!("echo {cpu} > {path}")));
    }
    if let Some(node) = nic.numa_node
        && !nic.node_cpus.iter().any(|cpu| machine.cpus.contains(cpu))
    {
        let text = format!("no CPU of its node {node} may be used: every frame crosses to another");
        findings.note("numa", text, Some(format!("numactl -N {node} weir capture {name}")));
    }
    match nic.hardware_stamps {
        Some(true) => {
            findings.ok("stamps", "the NIC has its own; Weir takes the kernel's at the hook")
        }
        _ => findings.ok("stamps", "the kernel's, at the hook"),
    }
}

#[cfg(test)]
#[path = "judge_tests.rs"]
mod tests;
