//! Flows to export.

use std::sync::Arc;

use proptest::option;
use proptest::prelude::*;
use weir_export::{Batch, Origin, Owner};
use weir_flow::{EndReason, FlowRecord, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

pub const FIRST_NS: u64 = 1_700_000_000_123_456_789;

/// `count` flows that are all different: IPv4 and IPv6, TCP, UDP and ICMP, with and without VLAN, of two interfaces.
pub fn flows(count: u32) -> Vec<FlowRecord> {
    (0..count).map(flow).collect()
}

pub fn flow(n: u32) -> FlowRecord {
    let addresses = if n % 3 == 2 {
        let src = (0x2001_0db8_u128 << 96 | u128::from(n)).into();
        Addresses::V6 { src, dst: (0x2001_0db8_u128 << 96 | 0xffff_0000).into() }
    } else {
        Addresses::V4 { src: (0x0a00_0000 + n).into(), dst: [192, 0, 2, 1].into() }
    };
    let is_icmp = n % 5 == 4;
    let protocol = match (is_icmp, addresses) {
        (true, Addresses::V4 { .. }) => 1,
        (true, Addresses::V6 { .. }) => 58,
        (false, _) if n.is_multiple_of(2) => 6,
        (false, _) => 17,
    };
    let (src_port, dst_port) = if is_icmp { (0, 0) } else { (1024 + (n % 60_000) as u16, 443) };
    let n = u64::from(n);
    FlowRecord {
        key: FlowKey { addresses, src_port, dst_port, protocol },
        vlan: n.is_multiple_of(7).then_some(1 + (n % 4_000) as u16),
        interface: (n % 2) as u32,
        first_ns: FIRST_NS + n * 1_000_003,
        last_ns: FIRST_NS + n * 1_000_003 + 5_000_000_007,
        forward: Totals {
            packets: n + 1,
            bytes: (n + 1) * 100,
            tcp_flags: if protocol == 6 { 0x12 } else { 0 },
        },
        reverse: Totals::default(),
        icmp: is_icmp.then_some((8, (n % 4) as u8)),
        reason: EndReason::Idle,
    }
}

/// The records as batches. Their origins are those of [`origins`].
pub fn batches(records: &[FlowRecord]) -> Vec<Arc<Batch>> {
    let origins = Arc::new(origins());
    let batch = |records: &[FlowRecord]| {
        Arc::new(Batch { records: records.to_vec(), origins: Arc::clone(&origins) })
    };
    records.chunks(weir_export::limits::BATCH_RECORDS_MAX).map(batch).collect()
}

pub fn origins() -> Vec<Origin> {
    let owner = Owner { kind: "vm".into(), name: "web".into(), id: None };
    vec![
        Origin { interface: "eth0".into(), owner: None },
        Origin { interface: "vnet0".into(), owner: Some(owner) },
    ]
}

/// Any record. If `biflow` is false, its counts of the reverse direction are zero.
pub fn any_flow(biflow: bool) -> impl Strategy<Value = FlowRecord> {
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>()
            .prop_map(|(src, dst)| Addresses::V4 { src: src.into(), dst: dst.into() }),
        any::<([u8; 16], [u8; 16])>()
            .prop_map(|(src, dst)| Addresses::V6 { src: src.into(), dst: dst.into() }),
    ];
    let key = (addresses, any::<u16>(), any::<u16>(), any::<u8>());
    let key = key.prop_map(|(addresses, src_port, dst_port, protocol)| FlowKey {
        addresses,
        src_port,
        dst_port,
        protocol,
    });
    let totals = || {
        any::<(u64, u64, u8)>().prop_map(|(packets, bytes, tcp_flags)| Totals {
            packets,
            bytes,
            tcp_flags,
        })
    };
    let reverse = if biflow { totals().boxed() } else { Just(Totals::default()).boxed() };
    let reason = prop_oneof![
        Just(EndReason::Idle),
        Just(EndReason::Active),
        Just(EndReason::Forced),
        Just(EndReason::LackOfResources),
    ];
    let where_ = (option::of(0_u16..4096), 0_u32..u32::MAX, option::of(any::<(u8, u8)>()));
    (key, where_, any::<(u64, u64)>(), totals(), reverse, reason).prop_map(
        |(key, (vlan, interface, icmp), (first_ns, last_ns), forward, reverse, reason)| {
            FlowRecord { key, vlan, interface, first_ns, last_ns, forward, reverse, icmp, reason }
        },
    )
}
