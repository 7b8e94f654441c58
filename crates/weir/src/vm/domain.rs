//! Adds the parts that feeds need to the XML of a libvirt domain. The rest of the text is not changed.
//!
//! The root ports for the region are QEMU options (`qemu:commandline`), not controllers of libvirt: libvirt has no
//! element for `pref64-reserve`, and would plug its own devices into controllers that it manages.
//!
//! Source: libvirt, docs/formatdomain.rst, "Channel"; docs/drvqemu.rst, "Pass-through of arbitrary QEMU commands".

use roxmltree::{Document, Node};

/// Directory for the sockets of machines without libvirt. Each machine has a subdirectory.
pub const FOLDER: &str = "/run/weir-guests";
/// The group of these subdirectories. The daemon's unit has this group (packaging/weir.sysusers); no user is a member.
pub const GROUP: &str = "weir-guests";
/// The name by which a guest finds the port.
pub const PORT: &str = weir_plug::port::NAME;
/// The XML of the port. libvirt chooses the path of its socket.
pub const CHANNEL: &str =
    "    <channel type='unix'>\n      <target type='virtio' name='org.weir.0'/>\n    </channel>\n";
/// The XML namespace of QEMU options.
const QEMU: &str = "http://libvirt.org/schemas/domain/qemu/1.0";

/// Returns the MiB that a root port reserves for a region of this size: twice the size, so that the region fits
/// wherever the firmware places the window.
pub fn reserve_mib(region_mib: u64) -> u64 {
    region_mib.saturating_mul(2)
}

/// Returns the options of two root ports, one for the region and one for the guest's page of words (`weir-region`).
///
/// `slot` is the slot of the root bus; `None` lets QEMU choose. `pair` counts from 0; each pair has its own ids and
/// chassis numbers.
pub fn ports(region_mib: u64, slot: Option<u8>, pair: u8) -> [String; 2] {
    let reserve = reserve_mib(region_mib);
    let at = |function: u8, more: &str| {
        slot.map(|slot| format!(",addr={slot:#x}.{function}{more}")).unwrap_or_default()
    };
    let (first, second) = (at(0, ",multifunction=on"), at(1, ""));
    // libvirt and people use numbers from 1 on, so these chassis numbers are free.
    let (one, two) = (2 * pair, 2 * pair + 1);
    let chassis = |number: u8| 201 + u16::from(number);
    [
        format!(
            "pcie-root-port,id=weir{one},bus=pcie.0{first},chassis={},hotplug=on,pref64-reserve={reserve}M",
            chassis(one)
        ),
        format!(
            "pcie-root-port,id=weir{two},bus=pcie.0{second},chassis={},hotplug=on",
            chassis(two)
        ),
    ]
}

/// Returns the first pair of ports whose ids and chassis numbers are free. Ports for an earlier, smaller region stay.
fn free_pair(root: Node<'_, '_>) -> anyhow::Result<u8> {
    let options = root.descendants().filter(|node| node.has_tag_name((QEMU, "arg")));
    let options: Vec<&str> = options.filter_map(|node| node.attribute("value")).collect();
    let is_named = |name: &str| {
        options.iter().any(|option| option.split(',').any(|one| one.trim_matches('\'') == name))
    };
    let is_free = |pair: &u8| {
        (2 * pair..=2 * pair + 1).all(|number| {
            !is_named(&format!("id=weir{number}"))
                && !is_named(&format!("chassis={}", 201 + u16::from(number)))
        })
    };
    // QEMU's chassis numbers end at 255.
    (0..25).find(is_free).ok_or_else(|| {
        anyhow::anyhow!("it has 25 pairs of ports by now; remove those that are too small")
    })
}

/// Slots of the root bus for the root ports, tried from the last to the first. libvirt assigns slots from 1 on; those
/// from 0x1d on belong to devices of the chipset.
const SLOTS: std::ops::RangeInclusive<u8> = 0x10..=0x1c;

/// Returns a slot of the root bus that no device of the domain has. QEMU creates the devices of `qemu:commandline`
/// before those of libvirt, so ports without a slot could take a slot of libvirt's devices.
fn free_slot(root: Node<'_, '_>) -> Option<u8> {
    let is_taken = |slot: u8| {
        root.descendants().any(|node| {
            let number = |name| {
                let text = node.attribute(name)?.trim_start_matches("0x");
                u8::from_str_radix(text, 16).ok()
            };
            node.has_tag_name("address") && number("bus") == Some(0) && number("slot") == Some(slot)
        })
    };
    let options = root.descendants().filter(|node| node.has_tag_name((QEMU, "arg")));
    let options: Vec<&str> = options.filter_map(|node| node.attribute("value")).collect();
    let is_in_option =
        |slot: u8| options.iter().any(|one| one.contains(&format!("addr={slot:#x}")));
    SLOTS.rev().find(|slot| !is_taken(*slot) && !is_in_option(*slot))
}

/// Returns the MiB that a root port reserves by this option; `None` if the option is not a root port that reserves
/// memory.
pub fn reserved_mib(option: &str) -> Option<u64> {
    let rest = option.strip_prefix("pcie-root-port,")?;
    let value = rest.split(',').find_map(|option| option.strip_prefix("pref64-reserve="))?;
    let (digits, unit) =
        value.split_at(value.find(|c: char| !c.is_ascii_digit()).unwrap_or(value.len()));
    let number: u64 = digits.parse().ok()?;
    Some(match unit {
        "" => number >> 20,
        "K" | "k" => number >> 10,
        "M" | "m" => number,
        "G" | "g" => number.checked_mul(1024)?,
        _ => return None,
    })
}

/// Text that is added to a domain.
#[derive(Debug, PartialEq, Eq)]
pub struct Added {
    /// The place in the XML, as text for people.
    pub place: &'static str,
    /// Lines of XML.
    pub text: String,
}

/// A domain with all parts that feeds need.
#[derive(Debug)]
pub struct Change {
    /// The whole XML.
    pub xml: String,
    /// Elements that were added.
    pub added: Vec<Added>,
    /// Whether the channel was added.
    pub adds_channel: bool,
    /// Whether root ports were added.
    pub adds_ports: bool,
}

/// Adds the parts that a domain lacks for a region of this size.
///
/// # Errors
/// The XML is not that of a domain, or no slot or pair of ports is free.
pub fn change(xml: &str, region_mib: u64) -> anyhow::Result<Change> {
    let document = Document::parse(xml)?;
    let root = document.root_element();
    let devices = child(root, "devices");
    let Some(devices) = devices.filter(|_| root.has_tag_name("domain")) else {
        anyhow::bail!("it is no domain with devices");
    };
    let (mut inserts, mut added) = (Vec::new(), Vec::new());
    let adds_channel = !devices.children().any(is_channel);
    if adds_channel {
        inserts.push((end_of(xml, devices)?, CHANNEL.to_owned()));
        added.push(Added { place: "inside of <devices>", text: CHANNEL.to_owned() });
    }
    let adds_ports = needs_ports(root) && !has_ports(root, region_mib);
    if adds_ports {
        let prefix = root.namespaces().find(|own| own.uri() == QEMU).and_then(|own| own.name());
        let prefix = prefix.unwrap_or("qemu");
        let mut text = String::new();
        let Some(slot) = free_slot(root) else {
            anyhow::bail!(
                "no slot of the root bus is free from {:#x} to {:#x}",
                SLOTS.start(),
                SLOTS.end()
            );
        };
        for port in ports(region_mib, Some(slot), free_pair(root)?) {
            text += &format!(
                "    <{prefix}:arg value='-device'/>\n    <{prefix}:arg value='{port}'/>\n"
            );
        }
        match root.children().find(|node| node.has_tag_name((QEMU, "commandline"))) {
            Some(own) => {
                inserts.push((end_of(xml, own)?, text.clone()));
                added.push(Added { place: "inside of <qemu:commandline>", text });
            }
            None => {
                let whole = format!("  <{prefix}:commandline>\n{text}  </{prefix}:commandline>\n");
                inserts.push((end_of(xml, root)?, whole.clone()));
                added.push(Added { place: "inside of <domain>", text: whole });
            }
        }
        if !root.namespaces().any(|own| own.uri() == QEMU) {
            let name = format!(" xmlns:qemu='{QEMU}'");
            inserts.push((root.range().start + "<domain".len(), name.clone()));
            added.push(Added { place: "in the tag <domain ...>", text: name });
        }
    }
    let mut changed = xml.to_owned();
    // From the last offset to the first, so that the remaining offsets stay valid.
    inserts.sort_by_key(|(at, _)| std::cmp::Reverse(*at));
    for (at, text) in inserts {
        changed.insert_str(at, &text);
    }
    Ok(Change { xml: changed, added, adds_channel, adds_ports })
}

fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|child| child.has_tag_name(name))
}

fn is_channel(node: Node<'_, '_>) -> bool {
    let is_port =
        |child: Node<'_, '_>| child.has_tag_name("target") && child.attribute("name") == Some(PORT);
    node.has_tag_name("channel") && node.children().any(is_port)
}

/// Returns the offset at which lines are inserted at the end of an element: before the indentation of its closing tag.
fn end_of(xml: &str, node: Node<'_, '_>) -> anyhow::Result<usize> {
    let range = node.range();
    let Some(close) = xml[range.clone()].rfind("</") else {
        anyhow::bail!("<{}> is empty", node.tag_name().name());
    };
    let before = &xml[..range.start + close];
    Ok(before.trim_end_matches([' ', '\t']).len())
}

/// Returns whether the root bus of the machine is PCIe. Devices cannot be hot-plugged into such a bus, only into root
/// ports.
fn needs_ports(root: Node<'_, '_>) -> bool {
    let machine = root.children().find(|node| node.has_tag_name("os"));
    let machine = machine.and_then(|os| os.children().find(|node| node.has_tag_name("type")));
    let machine = machine.and_then(|kind| kind.attribute("machine")).unwrap_or_default();
    machine == "q35" || machine.contains("-q35") || machine.starts_with("virt")
}

/// Returns whether the domain has a root port with room for the region, and a second root port.
fn has_ports(root: Node<'_, '_>, region_mib: u64) -> bool {
    let arguments = root.descendants().filter(|node| node.has_tag_name((QEMU, "arg")));
    let options = arguments.filter_map(|node| node.attribute("value"));
    let ports = options.filter(|option| option.starts_with("pcie-root-port,"));
    has_room(ports, region_mib)
}

/// Returns whether one of these root ports has room for the region, and there is a second one.
pub fn has_room<'a>(ports: impl Iterator<Item = &'a str>, region_mib: u64) -> bool {
    let reserved: Vec<Option<u64>> = ports.map(reserved_mib).collect();
    let has_one = reserved.iter().flatten().any(|mib| *mib >= reserve_mib(region_mib));
    has_one && reserved.len() >= 2
}

#[cfg(test)]
mod tests {
    use super::*;

    const PC: &str = "<domain type='qemu'>\n  <os>\n    <type machine='pc-i440fx-7.2'>hvm</type>\n  </os>\n  \
                      <!-- ours -->\n  <devices>\n    <emulator>/usr/bin/q</emulator>\n  </devices>\n</domain>\n";

    #[test]
    fn what_is_missing_is_added_and_nothing_else_changed() {
        let pc = change(PC, 64).unwrap();
        assert_eq!(pc.xml, PC.replace("  </devices>", &format!("{CHANNEL}  </devices>")));
        assert!(pc.adds_channel && !pc.adds_ports);
        let again = change(&pc.xml, 64).unwrap();
        assert!(again.added.is_empty() && again.xml == pc.xml);
        let q35 = PC.replace("pc-i440fx-7.2", "pc-q35-7.2");
        let changed = change(&q35, 64).unwrap();
        assert!(changed.adds_channel && changed.adds_ports);
        assert!(
            changed.xml.contains("<!-- ours -->") && changed.xml.contains("pref64-reserve=128M")
        );
        assert!(changed.xml.starts_with(&format!("<domain xmlns:qemu='{QEMU}' type='qemu'>")));
        assert!(
            changed.xml.contains("addr=0x1c.0,multifunction=on")
                && changed.xml.contains("addr=0x1c.1,")
        );
        assert!(change(&changed.xml, 64).unwrap().added.is_empty());
        let taken = "<disk><address bus='0x00' slot='0x1c'/></disk><emulator>";
        let other = change(&q35.replace("<emulator>", taken), 64).unwrap();
        assert!(other.xml.contains("addr=0x1b.0"), "{}", other.xml);
        let larger = change(&changed.xml, 128).unwrap();
        assert!(larger.adds_ports, "they are too small for it");
        for once in
            ["id=weir0,", "id=weir1,", "id=weir2,", "id=weir3,", "chassis=201,", "chassis=203,"]
        {
            assert_eq!(larger.xml.matches(once).count(), 1, "{once}: {}", larger.xml);
        }
    }

    #[test]
    fn options_of_the_operator_stay() {
        let own = format!(
            "<domain xmlns:q='{QEMU}'>\n<os><type machine='q35'/></os>\n<devices>\n</devices>\n\
                           <q:commandline>\n  <q:arg value='-snapshot'/>\n</q:commandline>\n</domain>"
        );
        let changed = change(&own, 8).unwrap().xml;
        assert!(changed.contains("'-snapshot'/>\n    <q:arg value='-device'/>"), "{changed}");
        assert_eq!(changed.matches("commandline>").count(), 2);
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        for bad in [
            "",
            "<domain/>",
            "<network><devices></devices></network>",
            "<domain><devices/></domain>",
        ] {
            assert!(change(bad, 8).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_port_reserves_what_its_option_says() {
        for (option, mib) in [
            ("pcie-root-port,id=a,pref64-reserve=512M", Some(512)),
            ("pcie-root-port,pref64-reserve=1G,id=a", Some(1024)),
            ("pcie-root-port,pref64-reserve=536870912", Some(512)),
            ("pcie-root-port,pref64-reserve=1X", None),
            ("pcie-root-port,id=a", None),
            ("e1000,pref64-reserve=1G", None),
        ] {
            assert_eq!(reserved_mib(option), mib, "{option}");
        }
        assert!(has_room(ports(256, None, 0).iter().map(String::as_str), 256));
        assert!(!has_room(ports(256, None, 0).iter().map(String::as_str).take(1), 256));
    }
}
