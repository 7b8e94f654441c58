//! What a table takes of the headers of a frame.

use weir_frame::flow::FlowKey;
use weir_frame::headers::{ETHERNET_BYTES, Fragment, FrameView, Ip, Upper};

use super::{FlowTable, Seen};
use crate::fast::plain_v4;
use crate::key::KeyWords;

/// The headers of a frame that has a flow.
pub(super) struct Headers {
    pub key: KeyWords,
    pub ip_bytes: u32,
    pub tcp_flags: u8,
    pub icmp: u32,
}

impl FlowTable {
    /// Reads the headers of a frame. Without a flow, it is counted by name.
    #[inline(always)]
    pub(super) fn headers(&mut self, seen: &Seen<'_>) -> Option<Headers> {
        match plain_v4(seen.frame) {
            Some((key, length, tcp_flags)) => {
                let ip_bytes = length.min(seen.wire_len.saturating_sub(ETHERNET_BYTES as u32));
                Some(Headers { key, ip_bytes, tcp_flags, icmp: 0 })
            }
            None => self.walk(seen),
        }
    }

    #[inline(never)]
    fn walk(&mut self, seen: &Seen<'_>) -> Option<Headers> {
        let view = FrameView::parse(seen.frame);
        let Some(ip) = view.ip() else {
            self.counters.not_flows.count(&view);
            return None;
        };
        let vlan =
            if self.config.by_vlan { view.vlans().first().map(|tag| tag.id()) } else { None };
        let key = match ip.fragment {
            Fragment::Whole => FlowKey::of_ip(ip),
            _ => self.fragments.key(&view, ip, vlan, self.time.elapsed_ns, &mut self.counters),
        };
        Some(Headers {
            key: KeyWords::of(&key, vlan),
            ip_bytes: ip_bytes(&view, ip, seen),
            tcp_flags: view.tcp_flags().unwrap_or(0),
            icmp: match ip.upper {
                Upper::Icmp { kind, code } => u32::from_be_bytes([0, 1, kind, code]),
                Upper::Ports { .. } | Upper::Unknown => 0,
            },
        })
    }
}

/// The length in the IP header, at most what was on the wire behind the Ethernet header.
#[inline(always)]
fn ip_bytes(view: &FrameView<'_>, ip: &Ip, seen: &Seen<'_>) -> u32 {
    let packet_at = (seen.frame.len() - view.packet().len()) as u32;
    let on_wire = seen.wire_len.saturating_sub(packet_at);
    // Where the header has no length, `packet_end` is beyond any frame.
    (ip.packet_end - packet_at).min(on_wire)
}
