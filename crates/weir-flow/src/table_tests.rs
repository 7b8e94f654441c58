use std::collections::HashMap;
use std::time::Duration;

use proptest::prelude::*;
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

use crate::key::tests::any_key;
use crate::limits::{CLOCK_AHEAD_MAX, FLOWS_MIN};
use crate::table::LinkLayer;
use crate::{EndReason, FlowConfig, FlowError, FlowRecord, FlowTable, Octets, Seen, Totals, merge};

const SECOND: u64 = 1_000_000_000;
/// Late enough that a clock can be set back.
const START: u64 = 1_700_000_000 * SECOND;

fn v4(last: u8, ports: [u16; 2], protocol: u8) -> FlowKey {
    let addresses = Addresses::V4 { src: [10, 0, 0, last].into(), dst: [10, 0, 0, 9].into() };
    FlowKey { addresses, src_port: ports[0], dst_port: ports[1], protocol }
}

/// A frame of this flow: the IP header, then `payload` bytes of which the first four are the ports. `fragment` is the
/// IPv4 word with flags and offset. `tcp_flags` is stored in byte 13 of the payload, where TCP has its flags.
fn frame(key: &FlowKey, payload: usize, fragment: u16, tcp_flags: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    match key.addresses {
        Addresses::V4 { src, dst } => {
            let [a, b] = (20 + payload as u16).to_be_bytes();
            let [c, d] = fragment.to_be_bytes();
            frame.extend([8, 0, 0x45, 0, a, b, 0x12, 0x34, c, d, 64, key.protocol, 0, 0]);
            frame.extend(src.octets().into_iter().chain(dst.octets()));
        }
        Addresses::V6 { src, dst } => {
            let [a, b] = (payload as u16).to_be_bytes();
            frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, a, b, key.protocol, 64]);
            frame.extend(src.octets().into_iter().chain(dst.octets()));
        }
    }
    let at = frame.len();
    frame.resize(at + payload, 0);
    let ports: Vec<u8> =
        [key.src_port, key.dst_port].iter().flat_map(|port| port.to_be_bytes()).collect();
    if payload >= 4 && fragment & 0x1fff == 0 {
        frame[at..at + 4].copy_from_slice(&ports);
    }
    if payload > 13 {
        frame[at + 13] = tcp_flags;
    }
    frame
}

fn seen(frame: &[u8], ts_ns: u64) -> Seen<'_> {
    let (link, wire_len) = (LinkLayer::Ethernet, (frame.len() as u32).max(60));
    Seen { frame, link, wire_len, ts_ns, interface: 0 }
}

fn table(config: FlowConfig) -> FlowTable {
    FlowTable::new(FlowConfig { flows_max: FLOWS_MIN, ..config }).unwrap()
}

fn run<'a>(
    config: FlowConfig,
    frames: impl IntoIterator<Item = Seen<'a>>,
) -> (Vec<FlowRecord>, FlowTable) {
    let (mut table, mut ended) = (table(config), Vec::new());
    table.add(frames, &mut |record| ended.push(record));
    table.finish(&mut |record| ended.push(record));
    (ended, table)
}

#[test]
fn a_flow_has_its_packets_bytes_times_and_flags() {
    let key = v4(1, [4242, 80], 6);
    let (syn, data) = (frame(&key, 20, 0, 2), frame(&key, 120, 0, 0x18));
    let frames = [seen(&syn, START + 5), seen(&data, START + 3), seen(&data, START + 9)];
    let (ended, table) = run(FlowConfig::default(), frames);
    let want = FlowRecord {
        key,
        vlan: None,
        interface: 0,
        first_ns: START + 3,
        last_ns: START + 9,
        forward: Totals { packets: 3, bytes: 40 + 2 * 140, tcp_flags: 0x1a },
        reverse: Totals::default(),
        icmp: None,
        reason: EndReason::Forced,
    };
    assert_eq!(ended, [want]);
    assert_eq!(
        (table.counters().frames, table.counters().began, table.counters().flows),
        (3, 1, 0)
    );
    let (ended, _) = run(FlowConfig { octets: Octets::Wire, ..FlowConfig::default() }, frames);
    assert_eq!(ended[0].bytes(), 60 + 2 * 154);
}

#[test]
fn a_biflow_has_the_direction_of_its_first_frame() {
    for key in [v4(1, [4242, 80], 6), v4(1, [4242, 80], 6).reversed()] {
        let (there, back) = (frame(&key, 20, 0, 2), frame(&key.reversed(), 30, 0, 0x12));
        let frames =
            [seen(&there, START), seen(&back, START), seen(&back, START), seen(&there, START)];
        let (ended, _) = run(FlowConfig { biflow: true, ..FlowConfig::default() }, frames);
        let forward = Totals { packets: 2, bytes: 80, tcp_flags: 2 };
        let reverse = Totals { packets: 2, bytes: 100, tcp_flags: 0x12 };
        assert_eq!((ended.len(), ended[0].key), (1, key));
        assert_eq!((ended[0].forward, ended[0].reverse), (forward, reverse));
        assert_eq!(run(FlowConfig::default(), frames).0.len(), 2);
    }
}

#[test]
fn vlans_and_interfaces_keep_flows_apart_where_asked() {
    let plain = frame(&v4(1, [1, 2], 17), 12, 0, 0);
    let tagged: Vec<u8> = [&plain[..12], &[0x81, 0, 0x60, 7], &plain[12..]].concat();
    let other = Seen { interface: 70_000, ..seen(&plain, START) };
    let frames = [seen(&plain, START), seen(&tagged, START), other];
    let (ended, _) = run(FlowConfig::default(), frames);
    assert_eq!((ended.len(), ended[0].forward.packets, ended[0].bytes()), (1, 3, 3 * 32));
    let (ended, _) = run(FlowConfig { by_vlan: true, ..FlowConfig::default() }, frames);
    let mut vlans: Vec<_> = ended.iter().map(|record| (record.vlan, record.packets())).collect();
    vlans.sort_unstable();
    assert_eq!(vlans, [(None, 2), (Some(7), 1)]);
    let (ended, _) = run(FlowConfig { by_interface: true, ..FlowConfig::default() }, frames);
    let mut interfaces: Vec<_> =
        ended.iter().map(|record| (record.interface, record.packets())).collect();
    interfaces.sort_unstable();
    assert_eq!(interfaces, [(0, 2), (65_535, 1)]);
}

#[test]
fn later_fragments_have_the_ports_of_the_first() {
    let key = v4(1, [4242, 53], 17);
    let parts = [0x2000, 0x2002, 4].map(|word| frame(&key, 16, word, 0));
    let (ended, table) = run(FlowConfig::default(), parts.iter().map(|part| seen(part, START)));
    assert_eq!((ended.len(), ended[0].key, ended[0].packets(), ended[0].bytes()), (1, key, 3, 108));
    assert_eq!(
        (table.counters().fragments_attributed, table.counters().fragments_unattributed),
        (2, 0)
    );
    let (ended, table) =
        run(FlowConfig::default(), parts.iter().rev().map(|part| seen(part, START)));
    let mut flows: Vec<_> =
        ended.iter().map(|record| (record.key.src_port, record.packets())).collect();
    flows.sort_unstable();
    assert_eq!(flows, [(0, 2), (4242, 1)]);
    assert_eq!(
        (table.counters().fragments_attributed, table.counters().fragments_unattributed),
        (0, 2)
    );
}

#[test]
fn fragments_of_ipv6_are_found_behind_other_headers() {
    let key = FlowKey {
        addresses: Addresses::V6 {
            src: "fd00::1".parse().unwrap(),
            dst: "fd00::2".parse().unwrap(),
        },
        ..v4(1, [4242, 53], 17)
    };
    let part = |offset: u16, id: u8, payload: &[u8]| {
        let mut part = frame(&FlowKey { protocol: 0, ..key }, 16 + payload.len(), 0, 0);
        let [a, b] = offset.to_be_bytes();
        part[54..70].copy_from_slice(&[44, 0, 1, 4, 0, 0, 0, 0, 17, 0, a, b, 0, 0, 0, id]);
        part[70..].copy_from_slice(payload);
        part
    };
    let first = part(1, 7, &[0x10, 0x92, 0, 53, 0, 24, 0, 0]);
    let (last, other) = (part(8, 7, &[1; 8]), part(8, 8, &[1; 8]));
    let (ended, table) =
        run(FlowConfig::default(), [&first, &last, &other].map(|part| seen(part, START)));
    let mut flows: Vec<_> =
        ended.iter().map(|record| (record.key.src_port, record.packets())).collect();
    flows.sort_unstable();
    assert_eq!(flows, [(0, 1), (4242, 2)]);
    assert_eq!(
        (table.counters().fragments_attributed, table.counters().fragments_unattributed),
        (1, 1)
    );
}

#[test]
fn more_fragmented_packets_than_places_are_counted() {
    let parts: Vec<_> = (0..20_000u16)
        .map(|id| {
            let mut part = frame(&v4(1, [4242, 53], 17), 16, 0x2000, 0);
            part[18..20].copy_from_slice(&id.to_be_bytes());
            part
        })
        .collect();
    let (_, table) = run(FlowConfig::default(), parts.iter().map(|part| seen(part, START)));
    // In the end all places of the table are taken, except for a few by chance.
    let forgotten = table.counters().fragments_forgotten;
    assert!((20_000 - 4096..20_000 - 4000).contains(&forgotten), "{forgotten}");
}

#[test]
fn what_has_no_flow_is_counted_by_name() {
    let mut arp = vec![2; 12];
    arp.extend([8, 6, 0, 1]);
    let lldp = [&arp[..12], &[0x88, 0xcc, 1, 2]].concat();
    let tags = [&arp[..12], &[0x81, 0, 0, 5].repeat(9)[..]].concat();
    let whole = frame(&v4(1, [1, 2], 17), 12, 0, 0);
    let mut malformed = whole.clone();
    malformed[14] = 0x41;
    let frames =
        [&arp, &lldp, &tags, &malformed, &whole[..20].to_vec(), &whole[..3].to_vec(), &whole];
    let (ended, table) = run(FlowConfig::default(), frames.map(|frame| seen(frame, START)));
    let not_flows = table.counters().not_flows;
    assert_eq!((not_flows.arp, not_flows.other_protocol, not_flows.too_many_vlans), (1, 1, 1));
    assert_eq!((not_flows.malformed, not_flows.cut_off, not_flows.total()), (1, 2, 6));
    assert_eq!((ended.len(), table.counters().frames), (1, 7));
}

#[test]
fn icmp_has_type_and_code_of_its_first_frame() {
    let key = v4(1, [0x0800, 0], 1);
    let (request, reply) = (frame(&key, 16, 0, 0), frame(&v4(1, [0, 0], 1).reversed(), 16, 0, 0));
    let config = FlowConfig { biflow: true, ..FlowConfig::default() };
    let (ended, _) = run(config, [seen(&request, START), seen(&reply, START)]);
    assert_eq!((ended.len(), ended[0].icmp, ended[0].key), (1, Some((8, 0)), v4(1, [0, 0], 1)));
    assert_eq!((ended[0].forward.packets, ended[0].reverse.packets), (1, 1));
}

#[test]
fn an_idle_flow_ends_by_the_time_of_others_and_by_the_clock() {
    let (quiet, busy) = (frame(&v4(1, [1, 2], 17), 12, 0, 0), frame(&v4(2, [1, 2], 17), 12, 0, 0));
    let config = FlowConfig { idle_timeout: Some(Duration::from_secs(8)), ..FlowConfig::default() };
    let (mut table, mut ended) = (table(config), Vec::new());
    table.add([seen(&quiet, START)], &mut |record| ended.push(record));
    table.add((0..=8).map(|second| seen(&busy, START + second * SECOND)), &mut |record| {
        ended.push(record)
    });
    assert_eq!(ended, []);
    table.add((9..=10).map(|second| seen(&busy, START + second * SECOND)), &mut |record| {
        ended.push(record)
    });
    assert_eq!(
        ended.iter().map(|record| (record.reason, record.key)).collect::<Vec<_>>(),
        [(EndReason::Idle, v4(1, [1, 2], 17))]
    );
    for second in 10..=20 {
        table.advance(START + second * SECOND, &mut |record| ended.push(record));
    }
    assert_eq!((ended.len(), ended[1].packets(), table.counters().flows), (2, 11, 0));
    // A frame after the time-out begins another flow, even if the sweep of the table has not ended the old one yet.
    table
        .add([START, START + 9 * SECOND].map(|ns| seen(&quiet, ns + 60 * SECOND)), &mut |record| {
            ended.push(record)
        });
    assert_eq!((ended.len(), table.counters().flows), (3, 1));
}

#[test]
fn a_flow_that_goes_on_is_recorded_in_parts() {
    let busy = frame(&v4(1, [1, 2], 17), 12, 0, 0);
    let config =
        FlowConfig { active_timeout: Some(Duration::from_secs(64)), ..FlowConfig::default() };
    let frames = (0..200).map(|second| seen(&busy, START + second * SECOND));
    let (ended, _) = run(config, frames);
    let parts: Vec<_> = ended.iter().map(|record| (record.reason, record.packets())).collect();
    assert_eq!(parts.iter().map(|part| part.1).sum::<u64>(), 200);
    assert_eq!(
        parts.iter().map(|part| part.0).collect::<Vec<_>>(),
        [EndReason::Active, EndReason::Active, EndReason::Active, EndReason::Forced,]
    );
    let whole = merge(ended, false, false);
    assert_eq!((whole.len(), whole[0].packets(), whole[0].reason), (1, 200, EndReason::Forced));
    assert_eq!((whole[0].first_ns, whole[0].last_ns), (START, START + 199 * SECOND));
}

#[test]
fn clock_steps_are_counted_and_end_nothing() {
    let frames: Vec<_> = (1..=200).map(|last| frame(&v4(last, [1, 2], 17), 12, 0, 0)).collect();
    let (mut table, mut ended) = (table(FlowConfig::default()), Vec::new());
    let year = 365 * 24 * 3600 * SECOND;
    for ns in [START, START + 9 * year, START + SECOND, 0, u64::MAX, 3, START] {
        table.add(frames.iter().map(|frame| seen(frame, ns)), &mut |record| ended.push(record));
    }
    assert_eq!((ended.len(), table.counters().flows), (0, 200));
    assert_eq!((table.counters().clock_steps_ahead, table.counters().clock_steps_back), (3, 3));
    // The longest step that is not taken for a set clock: all flows have ended.
    let later = START + CLOCK_AHEAD_MAX.as_nanos() as u64;
    table.advance(later, &mut |record| ended.push(record));
    assert_eq!((ended.len(), table.counters().flows), (200, 0));
    assert!(ended.iter().all(|record| (record.reason, record.packets()) == (EndReason::Idle, 7)));
}

#[test]
fn a_full_table_ends_the_flows_that_were_seen_least_recently() {
    let flow = |number: u16| frame(&v4(1, [number, 80], 6), 20, 0, 2);
    let frames: Vec<_> = (0..20_000u16).map(flow).collect();
    let config = FlowConfig {
        idle_timeout: Some(Duration::from_secs(64)),
        active_timeout: None,
        ..FlowConfig::default()
    };
    let (mut table, mut ended) = (table(config), Vec::new());
    let live = &frames[..200];
    for (second, batch) in frames[200..].chunks(200).enumerate() {
        let ts_ns = START + second as u64 * SECOND;
        table.add(live.iter().chain(batch).map(|frame| seen(frame, ts_ns)), &mut |record| {
            ended.push(record)
        });
    }
    let counters = table.counters();
    assert!(counters.evicted > 15_000 && ended.len() as u64 == counters.evicted, "{counters:?}");
    assert!(
        ended
            .iter()
            .all(|record| record.reason == EndReason::LackOfResources && record.packets() == 1)
    );
    assert!(
        counters.flows > table.capacity() * 95 / 100 && counters.flows <= table.capacity(),
        "{counters:?}"
    );
    assert_eq!(table.live().filter(|record| record.packets() == 99).count(), 200);
}

#[test]
fn it_takes_92_bytes_a_flow_and_refuses_what_it_cannot_keep() {
    let table = FlowTable::new(FlowConfig::default()).unwrap();
    assert!(table.memory_bytes() <= table.capacity() * 93, "{}", table.memory_bytes());
    for flows_max in [0, FLOWS_MIN - 1, u64::MAX] {
        let error = FlowTable::new(FlowConfig { flows_max, ..FlowConfig::default() }).err();
        assert!(matches!(error, Some(FlowError::Flows(_))));
    }
    let timeout = Some(Duration::from_nanos(1));
    assert!(FlowTable::new(FlowConfig { idle_timeout: timeout, ..FlowConfig::default() }).is_err());
    assert!(
        FlowTable::new(FlowConfig { active_timeout: timeout, ..FlowConfig::default() }).is_err()
    );
}

/// Packets and bytes of both directions by key, as a hash map counts them.
fn naive(frames: &[(FlowKey, usize)], biflow: bool) -> HashMap<FlowKey, (u64, u64)> {
    let mut flows = HashMap::new();
    for (key, payload) in frames {
        let header = if matches!(key.addresses, Addresses::V4 { .. }) { 20 } else { 40 };
        let flow: &mut (u64, u64) =
            flows.entry(if biflow { (*key).min(key.reversed()) } else { *key }).or_default();
        *flow = (flow.0 + 1, flow.1 + header + *payload as u64);
    }
    flows
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn counts_are_those_of_a_hash_map(
        keys in proptest::collection::vec(any_key(), 1..4000),
        order in proptest::collection::vec((any::<proptest::sample::Index>(), any::<bool>(), 14..200usize), 1..6000),
        biflow in any::<bool>(), apart_ns in prop_oneof![Just(0), Just(SECOND / 100), Just(SECOND)],
    ) {
        // Only protocols with ports that are not the numbers of IPv6 extension headers. First every key once, then
        // some again.
        let ports = |key: &FlowKey| FlowKey { protocol: [6, 17, 33, 132, 136][usize::from(key.protocol) % 5], ..*key };
        let again = order.iter().map(|(at, back, payload)| {
            let key = ports(at.get(&keys));
            (if *back { key.reversed() } else { key }, *payload)
        });
        let frames: Vec<_> = keys.iter().map(|key| (ports(key), 20)).chain(again).collect();
        let bytes: Vec<_> = frames.iter().map(|(key, payload)| frame(key, *payload, 0, 0)).collect();
        let seen = bytes.iter().enumerate().map(|(at, frame)| seen(frame, START + at as u64 * apart_ns));
        let (ended, table) = run(FlowConfig { biflow, ..FlowConfig::default() }, seen);
        let counters = table.counters();
        prop_assert_eq!(ended.len() as u64, counters.began);
        prop_assert_eq!(ended.iter().map(FlowRecord::packets).sum::<u64>(), counters.frames);
        let evicted = ended.iter().filter(|record| record.reason == EndReason::LackOfResources).count();
        prop_assert_eq!(evicted as u64, counters.evicted);
        let merged: HashMap<_, _> = merge(ended, biflow, false).into_iter()
            .map(|record| (if biflow { record.key.min(record.key.reversed()) } else { record.key }, record))
            .map(|(key, record)| (key, (record.packets(), record.bytes())))
            .collect();
        prop_assert_eq!(merged, naive(&frames, biflow));
    }

    #[test]
    fn any_bytes_at_any_time_are_counted_once(
        frames in proptest::collection::vec(
            (proptest::collection::vec(any::<u8>(), 0..120), 0..5u8, any::<u64>(), any::<u32>()), 0..400),
    ) {
        let frames: Vec<_> = frames.into_iter().map(|(mut frame, kind, ts_ns, wire_len)| {
            if frame.len() > 20 {
                let kinds = [([8, 0], 0x45), ([0x86, 0xdd], 0x60), ([0x81, 0], 0), ([8, 6], 0), ([8, 0], 0x46)];
                let (head, version) = kinds[usize::from(kind)];
                frame[12..14].copy_from_slice(&head);
                frame[14] = version;
            }
            (frame, ts_ns, wire_len)
        }).collect();
        let config = FlowConfig { biflow: true, by_vlan: true, by_interface: true, ..FlowConfig::default() };
        let seen = frames.iter().map(|(frame, ts_ns, wire_len)| {
            let link = [LinkLayer::Ethernet, LinkLayer::Ip][*ts_ns as usize % 2];
            Seen { frame, link, wire_len: *wire_len, ts_ns: *ts_ns, interface: *wire_len % 3 }
        });
        let (ended, table) = run(config, seen);
        let packets: u64 = ended.iter().map(FlowRecord::packets).sum();
        prop_assert_eq!(packets + table.counters().not_flows.total(), table.counters().frames);
        prop_assert_eq!(table.counters().frames, frames.len() as u64);
        prop_assert!(ended.iter().all(|record| record.first_ns <= record.last_ns));
    }
}
