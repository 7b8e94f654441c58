//! Facts about an interface of the calling thread's network namespace.

use std::fs;
use std::path::Path;

use weir_capture::CaptureError;
use weir_capture::bpf::{self, AttachPoint, Attached};
use weir_capture::interface::{Filter, InterfaceQuery, filters, own_traffic};

use crate::facts::{Hooked, Irq, Machine, Nic, Switch};
use crate::machine::{cpu_list, read};

/// The features that matter for captures, by the kernel's names (`ETHTOOL_GSTRINGS`).
const FEATURES: [&str; 6] =
    ["rx-vlan-hw-parse", "rx-gro", "rx-lro", "rx-gro-hw", "tx-tcp-segmentation", "rx-gro-list"];

/// Returns the names of the interfaces in this network namespace, except the loopback device.
///
/// # Errors
/// The kernel's error.
pub fn names() -> std::io::Result<Vec<String>> {
    // /proc/self is not used: it shows the namespace of the main thread, which may be another one.
    let text = fs::read_to_string("/proc/thread-self/net/dev")?;
    let names = text.lines().skip(2).filter_map(|line| line.split(':').next());
    Ok(names.map(|name| name.trim().to_owned()).filter(|name| name != "lo").collect())
}

/// Collects the facts about an interface. If engine bpf can run and the driver has native XDP, loads an XDP program
/// that is bound to the device, to find out whether it can ask for VLAN tags; attaches nothing.
///
/// # Errors
/// The sockets for the requests cannot be created. A fact that cannot be found out is no error.
pub fn collect(name: &str, netns: Option<&str>, machine: &Machine) -> Result<Nic, CaptureError> {
    let query = InterfaceQuery::new()?;
    let mut nic = Nic { name: name.to_owned(), netns: netns.map(str::to_owned), ..Nic::default() };
    let found = match query.find(name) {
        Ok(found) => found,
        Err(error) => {
            nic.refused = Some(error.to_string());
            return Ok(nic);
        }
    };
    (nic.index, nic.mtu, nic.link_type) = (found.index, found.mtu, found.link_type);
    if let Ok(driver) = query.driver(name) {
        nic.numa_node = driver.numa_node();
        nic.driver = Some(driver.name);
        nic.bus = Some(driver.bus).filter(|bus| !bus.is_empty());
    }
    nic.own_traffic = own_traffic(found.index).ok().map(|own| {
        let route = own.default_route.map(|name| format!("the default route by {name}"));
        let address = |(name, address)| format!("{address} on {name}");
        route.into_iter().chain(own.addresses.into_iter().map(address)).collect()
    });
    let hooks = bpf::hooks(found.index);
    (nic.xdp_program, nic.tcx_programs) = (hooks.xdp_program, hooks.tcx);
    (nic.native_xdp, nic.zero_copy) = hooks.native.unzip();
    let programs = hooks.programs.into_iter().map(program);
    let filters = filters(found.index);
    // If the kernel does not list its TC filters, the programs that were found are still a result. If there are none
    // either, the result is `None`: not known.
    let all_asked = filters.is_ok();
    let all = programs.chain(filters.unwrap_or_default().into_iter().map(filter));
    nic.hooked = Some(all.collect::<Vec<_>>()).filter(|all| all_asked || !all.is_empty());
    if machine.can_bpf() && nic.native_xdp == Some(true) {
        nic.xdp_tags = Some(bpf::xdp_has_tags(&found));
    }
    for feature in query.features(name).unwrap_or_default() {
        if FEATURES.contains(&feature.name.as_str()) {
            let (available, requested) = (feature.available, feature.requested);
            let switch = Switch { available, requested, active: feature.active };
            nic.features.insert(feature.name, switch);
        }
    }
    nic.rx_ring = query.rx_ring(name).ok().map(|ring| (ring.now, ring.most));
    if let Ok(channels) = query.channels(name) {
        nic.rx_queues = Some((channels.rx, channels.most));
        nic.queues_combined = channels.combined;
    }
    if let Ok(rss) = query.rss(name) {
        nic.rss_symmetric = Some(rss.is_symmetric());
        nic.rss_key_bytes = Some(rss.key.len()).filter(|&bytes| rss.toeplitz && bytes > 0);
    }
    nic.hardware_stamps = query.hardware_stamps(name);
    if let Some(bus) = nic.bus.clone() {
        placement(&mut nic, &bus);
    }
    Ok(nic)
}

fn program(attached: Attached) -> Hooked {
    let hook = match attached.point {
        AttachPoint::Xdp(mode) => mode.word(),
        AttachPoint::TcxIngress => "tcx ingress",
        AttachPoint::TcxEgress => "tcx egress",
    };
    let Attached { program, name, link, .. } = attached;
    Hooked { hook, kind: "bpf".to_owned(), program: Some(program), name, link, priority: None }
}

fn filter(filter: Filter) -> Hooked {
    let hook = if filter.egress { "clsact egress" } else { "clsact ingress" };
    let Filter { kind, priority, program, name, .. } = filter;
    Hooked { hook, kind, program, name, link: None, priority: Some(priority) }
}

/// Reads the CPUs of the NIC's NUMA node, and the interrupts of its queues. Looks up the device by its address on the
/// PCI bus, because /sys/bus is the same in all network namespaces. /sys/class/net shows only the network namespace in
/// which sysfs was mounted.
fn placement(nic: &mut Nic, bus: &str) {
    let device = Path::new("/sys/bus/pci/devices").join(bus);
    if let Some(node) = nic.numa_node {
        let list = read(&format!("/sys/devices/system/node/node{node}/cpulist"));
        nic.node_cpus = cpu_list(&list.unwrap_or_default());
    }
    let names = irq_names(&read("/proc/interrupts").unwrap_or_default());
    let entries = fs::read_dir(device.join("msi_irqs")).into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let irqs = numbers.filter_map(|number| {
        let name = names.iter().find(|(irq, _)| *irq == number)?.1.clone();
        // Keep only interrupts of RX queues, by the words that drivers use; not those of link events and TX queues.
        let lower = name.to_lowercase();
        let queue = ["rx", "input", "comp", "queue"].iter().any(|word| lower.contains(word));
        let cpus = read(&format!("/proc/irq/{number}/smp_affinity_list"))?;
        queue.then_some(Irq { number, name, cpus })
    });
    nic.irqs = irqs.collect();
    nic.irqs.sort_by_key(|irq| irq.number);
}

/// Returns the number and the name of every numbered interrupt in /proc/interrupts. The name is the last word of the
/// line.
fn irq_names(text: &str) -> Vec<(u32, String)> {
    let of = |line: &str| {
        let (number, rest) = line.split_once(':')?;
        Some((number.trim().parse().ok()?, rest.split_whitespace().last()?.to_owned()))
    };
    text.lines().filter_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interrupts_have_names() {
        let text = "    CPU0 CPU1\n 38:  0  13381 PCI-MSIX-0000:00:03.0 1-edge  virtio2-input.0\n\
            NMI:  0  0  Non-maskable interrupts\n";
        assert_eq!(irq_names(text), [(38, "virtio2-input.0".to_owned())]);
    }

    #[test]
    fn a_missing_interface_is_a_fact_with_its_way_out() {
        let nic = collect("no-such0", None, &Machine::default()).unwrap();
        assert!(nic.refused.is_some_and(|text| text.contains("ip -brief link")));
    }
}
