//! Finds filters that no frame with a VLAN tag passes. Users of tcpdump do not expect that, because a live tcpdump
//! filters frames whose tag the kernel has removed.

use weir_capture::Filter;
use weir_filter::insn::{JEQ, JMP};
use weir_filter::possible::{Facts, Kind, is_tag, possible};
use weir_filter_compile::is_bytecode;
use weir_frame::pcapng::LINKTYPE_ETHERNET;

/// The class and the operation in an instruction's code. Source: linux/bpf_common.h.
const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;

/// Frames with a VLAN tag after the addresses. Nothing else is known of them.
struct Tagged;

impl Facts for Tagged {
    fn may_have(&self, kind: Kind, value: u32) -> bool {
        kind != Kind::EtherType || u16::try_from(value).is_ok_and(is_tag)
    }
}

/// A note on a filter that no tagged frame passes and that does not test for tags.
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
        return Some("frames with a VLAN tag do not pass this filter".to_owned());
    }
    Some(format!(
        "frames with a VLAN tag do not pass '{text}'; if they are to: '({text}) or (vlan and ({text}))'"
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
