//! Filters by which frames with a VLAN tag do not pass: a live tcpdump is given frames whose tag the kernel has taken
//! off, so its users do not expect that.

use weir_capture::Filter;
use weir_filter::insn::{JEQ, JMP};
use weir_filter::possible::{Facts, Kind, is_tag, possible};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

/// The class and the operation in an instruction's code. Source: linux/bpf_common.h.
const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;

/// Frames of which nothing is known but that a tag follows the addresses.
struct Tagged;

impl Facts for Tagged {
    fn may_have(&self, kind: Kind, value: u32) -> bool {
        kind != Kind::EtherType || u16::try_from(value).is_ok_and(is_tag)
    }
}

/// What to say of a filter that no tagged frame passes and that does not ask for tags.
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
    Some(format!(
        "frames with a VLAN tag do not pass '{text}'; if they are to: '({text}) or (vlan and ({text}))'"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::feeds::compile;

    #[test]
    fn filters_that_miss_tagged_frames_are_known() {
        let noted = |text: &str, link_type| {
            let filter = compile(text, link_type).unwrap().expect("a filter");
            note(&filter)
        };
        for text in ["icmp", "tcp port 80", "host 10.0.0.1", "ip6", "arp", "tcp and not port 22"] {
            let said = noted(text, 1).expect(text);
            assert!(said.contains(&format!("vlan and ({text})")), "{said}");
        }
        for text in [
            "vlan",
            "icmp or (vlan and icmp)",
            "not arp",
            "ether host 02:00:00:00:00:01",
            "greater 100",
            "ether proto 0x8100",
        ] {
            assert_eq!(noted(text, 1), None, "{text}");
        }
        assert_eq!(noted("icmp", 101), None, "raw IP has no tags");
        // What is said is a filter, and nothing more is to be said of it.
        assert_eq!(noted("(icmp) or (vlan and (icmp))", 1), None);
    }
}
