//! Prints spanning tree protocols. Source: IEEE 802.1D-2004, section 9; 802.1Q-2018, section 14.

use std::io::Write;

use crate::bytes::Bytes;
use crate::line::Line;
use crate::text::Text;

const CONFIG: u8 = 0;
const RAPID: u8 = 2;
const TOPOLOGY_CHANGE: u8 = 0x80;

pub fn write(line: &mut Line<'_>, rest: Bytes<'_>) {
    line.begin("");
    line.out.put("STP ");
    let Some(&[p0, p1, version, kind]) = rest.head::<4>() else { return line.cut_off("stp") };
    if (p0, p1) != (0, 0) {
        line.out.put("unknown protocol");
        return line.length(rest.len());
    }
    line.out.put(match version {
        0 => "802.1d",
        2 => "802.1w",
        3 => "802.1s",
        4 => "802.1aq",
        _ => "unknown version",
    });
    line.out.put(match (version, kind) {
        (_, CONFIG) => ", Config",
        (_, TOPOLOGY_CHANGE) => ", Topology Change",
        (2, RAPID) => ", Rapid STP",
        (3, RAPID) => ", Rapid STP, CIST",
        (_, RAPID) => ", Rapid STP",
        _ => ", unknown message",
    });
    if matches!(kind, CONFIG | RAPID) {
        let Some(body) = rest.head::<27>() else { return line.cut_off("stp") };
        write_flags(line, body[4]);
        write_bridge(line, body);
    }
    line.length(rest.len());
}

/// Writes the flags: `, Flags [Proposal, Learn, Forward]`
fn write_flags(line: &mut Line<'_>, flags: u8) {
    const NAMES: [(u8, &str); 6] = [
        (0x01, "Topology change"),
        (0x02, "Proposal"),
        (0x10, "Learn"),
        (0x20, "Forward"),
        (0x40, "Agreement"),
        (0x80, "Topology change ACK"),
    ];
    line.out.put(", Flags [");
    let set = NAMES.iter().filter(|(bit, _)| flags & bit != 0);
    let mut separator = "";
    for (_, name) in set {
        line.out.put(separator);
        line.out.put(name);
        separator = ", ";
    }
    line.out.put(if separator.is_empty() { "none]" } else { "]" });
}

/// Writes priority, address and port of a bridge: `, bridge-id 8000.00:11:22:33:44:55.8001`
fn write_bridge(line: &mut Line<'_>, body: &[u8; 27]) {
    let digits = |bytes: &[u8]| u16::from_be_bytes([bytes[0], bytes[1]]);
    let _ = write!(line.out, ", bridge-id {:04x}.", digits(&body[17..]));
    line.out.mac(std::array::from_fn(|i| body[19 + i]));
    let _ = write!(line.out, ".{:04x}", digits(&body[25..]));
}
