//! Flows for tests.

use weir_flow::{EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::{Addresses, protocol};

/// Returns a UDP flow from port `src_port` of 10.0.0.1 to port 53 of 10.0.0.2, with one packet of 46 bytes.
pub fn flow(src_port: u16) -> FlowRecord {
    let addresses = Addresses::V4 { src: [10, 0, 0, 1].into(), dst: [10, 0, 0, 2].into() };
    FlowRecord {
        key: FlowKey { addresses, src_port, dst_port: 53, protocol: protocol::UDP },
        vlan: None,
        interface: 0,
        first_ns: 1_000_000_000,
        last_ns: 1_000_000_000,
        forward: Totals { packets: 1, bytes: 46, tcp_flags: 0 },
        reverse: Totals::default(),
        icmp: None,
        reason: EndReason::Forced,
    }
}
