//! Finds filters that no frame with a VLAN tag passes. Users of tcpdump do not expect such filters, because a live
//! tcpdump filters frames whose tag the kernel has removed.

use std::{fs, io};

use weir_capture::engines::declaration::Target;
use weir_capture::interface::{InterfaceQuery, own_traffic};
use weir_capture::kernel::netns::ask_in;
use weir_capture::{CaptureError, Filter};
use weir_filter::insn::{JEQ, JMP};
use weir_filter::possible::{Facts, Kind, is_tag, possible};
use weir_filter_compile::is_bytecode;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

/// The class and the operation in an instruction's code. Source: linux/bpf_common.h.
const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;

/// Frames with a VLAN tag after the addresses. Nothing else is known about them.
struct Tagged;

impl Facts for Tagged {
    fn may_have(&self, kind: Kind, value: u32) -> bool {
        kind != Kind::EtherType || u16::try_from(value).is_ok_and(is_tag)
    }
}

/// Returns whether frames with a VLAN tag are expected from the source.
///
/// An interface with an address and without VLAN interfaces carries this machine's own untagged traffic: the network
/// stack drops tagged frames there. Any other interface may be a trunk or a monitoring port. For a pattern, frames with
/// tags are expected only if it matches an interface below a VLAN interface. If the kernel does not answer, they are
/// expected.
pub fn may_come(target: &Target) -> bool {
    match target {
        Target::Interface { netns, iface } => {
            let look = || {
                let found = InterfaceQuery::new()?.find(iface)?;
                let own =
                    own_traffic(found.index).map_err(CaptureError::os("asking for addresses"))?;
                let vlans = VlanInterfaces::here()?;
                let names = own.addresses.iter().map(|(name, _)| name).chain(&own.default_route);
                let mut above = names.filter(|name| *name != iface);
                let is_below = vlans.is_below(|below| below == iface);
                Ok(own.is_none() || is_below || above.any(|name| vlans.has(name)))
            };
            ask_in(netns.as_ref(), look)
                .and_then(|found: Result<bool, CaptureError>| found)
                .unwrap_or(true)
        }
        Target::Pattern { netns, pattern } => {
            let look = || Ok(VlanInterfaces::here()?.is_below(|below| pattern.matches(below)));
            ask_in(netns.as_ref(), look)
                .and_then(|found: Result<bool, CaptureError>| found)
                .unwrap_or(true)
        }
        _ => false,
    }
}

/// The VLAN interfaces of a network namespace, each with its name and that of the interface below.
struct VlanInterfaces(Vec<(String, String)>);

impl VlanInterfaces {
    /// Reads the list for the calling thread's network namespace. A kernel without support for VLANs has no list.
    ///
    /// # Errors
    /// [`CaptureError::Os`]: without root, the list cannot be read.
    fn here() -> Result<VlanInterfaces, CaptureError> {
        match fs::read_to_string("/proc/thread-self/net/vlan/config") {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(VlanInterfaces(Vec::new())),
            Err(error) => Err(CaptureError::os("asking for VLAN interfaces")(error)),
            Ok(text) => Ok(VlanInterfaces::of(&text)),
        }
    }

    /// Parses the list. Source: `vlandev_seq_show`, net/8021q/vlanproc.c: `NAME | ID | BELOW`, after two lines of
    /// headings.
    fn of(text: &str) -> VlanInterfaces {
        let of_line = |line: &str| match line.split('|').map(str::trim).collect::<Vec<_>>()[..] {
            [name, _, below] => Some((name.to_owned(), below.to_owned())),
            _ => None,
        };
        VlanInterfaces(text.lines().skip(2).filter_map(of_line).collect())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|(own, _)| own == name)
    }

    fn is_below(&self, is: impl Fn(&str) -> bool) -> bool {
        self.0.iter().any(|(_, below)| is(below))
    }
}

/// Returns a note on a filter that no tagged frame passes and that does not test for tags.
pub fn note(filter: &Filter) -> Option<String> {
    if filter.link_type != LINKTYPE_ETHERNET {
        return None;
    }
    let insns = filter.program.insns();
    let asks = insns.iter().any(|insn| {
        let is_equal = insn.code & CLASS == JMP && insn.code & OPERATION == JEQ;
        is_equal && u16::try_from(insn.k).is_ok_and(is_tag)
    });
    if asks || possible(&filter.program, filter.link_type, &Tagged) {
        return None;
    }
    let text = &filter.text;
    if is_bytecode(text) {
        return Some(
            "frames with a VLAN tag, if there are any, do not pass this filter".to_owned(),
        );
    }
    Some(format!(
        "frames with a VLAN tag, if there are any, do not pass '{text}'; this takes them, too: '({text}) or (vlan and \
         ({text}))'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::compile;

    /// A filter as tcpdump -ddd prints it. Texts are compiled by a process of their own: tests/habits.rs.
    fn noted(instructions: &[&str], link_type: u16) -> Option<String> {
        let text = format!("{},{}", instructions.len(), instructions.join(","));
        let filter = compile(&text, link_type).unwrap().expect("a filter");
        note(&filter)
    }

    #[test]
    fn vlan_interfaces_are_listed_with_those_below_them() {
        let text = "VLAN Dev name    | VLAN ID\nName-Type: VLAN_NAME_TYPE_RAW_PLUS_VID_NO_PAD\n\
                    eth0.100       | 100  | eth0\nq             | 7  | eth0.100\n";
        let vlans = VlanInterfaces::of(text);
        let is_below = |name: &str| vlans.is_below(|below| below == name);
        assert_eq!(["eth0", "eth0.100", "q", "VLAN ID"].map(is_below), [true, true, false, false]);
        assert_eq!(["eth0", "eth0.100", "q"].map(|name| vlans.has(name)), [false, true, true]);
        assert!(VlanInterfaces::of("").0.is_empty());
    }

    #[test]
    fn filters_that_miss_tagged_frames_are_known() {
        let (accept, reject) = ("6 0 0 262144", "6 0 0 0");
        let icmp = ["40 0 0 12", "21 0 3 2048", "48 0 0 23", "21 0 1 1", accept, reject];
        assert!(noted(&icmp, 1).is_some());
        assert_eq!(noted(&icmp, 113), None, "not Ethernet");
        let not_arp = ["40 0 0 12", "21 1 0 2054", accept, reject];
        assert_eq!(noted(&not_arp, 1), None);
        let vlan = ["40 0 0 12", "21 0 1 33024", accept, reject];
        assert_eq!(noted(&vlan, 1), None);
        let longer_than_100 = ["128 0 0 0", "37 0 1 100", accept, reject];
        assert_eq!(noted(&longer_than_100, 1), None);
    }
}
