//! Any frames at any time: each is in exactly one record, or counted by the reason why it has no flow.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use weir_flow::{FlowConfig, FlowTable, LinkLayer, Octets, Seen, community_id};

fuzz_target!(|input: (u8, Vec<(Vec<u8>, u64, u32, u32)>)| {
    let (bits, frames) = input;
    let timeout = |bit: u8| (bits & bit == 0).then_some(Duration::from_secs(1));
    let config = FlowConfig {
        flows_max: 1024,
        idle_timeout: timeout(1),
        active_timeout: timeout(2),
        biflow: bits & 4 != 0,
        by_vlan: bits & 8 != 0,
        by_interface: bits & 16 != 0,
        octets: if bits & 32 == 0 { Octets::Ip } else { Octets::Wire },
    };
    let mut table = FlowTable::new(config).expect("a small table");
    let (mut packets, mut records) = (0, 0);
    let mut ended = |record: weir_flow::FlowRecord| {
        assert!(record.first_ns <= record.last_ns && record.forward.packets > 0);
        assert!(community_id(&record.key, record.icmp).starts_with("1:"));
        packets += record.packets();
        records += 1;
    };
    for part in frames.chunks(40) {
        let seen = part.iter().map(|(frame, ts_ns, wire_len, interface)| Seen {
            frame,
            link: [LinkLayer::Ethernet, LinkLayer::Ip, LinkLayer::Other][*interface as usize % 3],
            wire_len: *wire_len,
            ts_ns: *ts_ns,
            interface: *interface,
        });
        table.add(seen, &mut ended);
    }
    table.finish(&mut ended);
    let counters = table.counters();
    assert_eq!(counters.frames, frames.len() as u64);
    assert_eq!(packets + counters.not_flows.total(), counters.frames);
    assert_eq!((records, counters.flows), (counters.began, 0));
});
