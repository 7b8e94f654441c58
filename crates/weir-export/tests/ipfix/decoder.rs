//! Exported messages, as the crate `netflow_parser` decodes them.

use std::collections::HashMap;
use std::net::UdpSocket;
use std::time::Duration;

use netflow_parser::variable_versions::ipfix::FlowSetBody;
use netflow_parser::{
    FieldValue, IpfixField, IpfixFieldPair, NetflowPacket, NetflowParser, NetflowParserBuilder,
};
use proptest::prelude::*;
use weir_export::Export;
use weir_export::ipfix::{Config, Ipfix};
use weir_flow::{EndReason, FlowRecord, Octets, Totals};
use weir_frame::flow::FlowKey;
use weir_frame::headers::Addresses;

use crate::flows::{any_flow, batches, flow, flows, origins};
use crate::{export_to, udp_socket};

/// Source: RFC 5103 section 6.1.
const REVERSE: u32 = 29305;
const NTP_EPOCH_S: u64 = 2_208_988_800;

/// A collector's decoder, and the records that it has read.
pub struct Reader {
    parser: NetflowParser,
    numbers: HashMap<IpfixField, (u16, bool)>,
    /// The expected sequence number of the next message, if known.
    pub sequence: Option<u32>,
    pub templates: usize,
    pub flows: Vec<FlowRecord>,
    /// Number, name and description of each interface.
    pub interfaces: Vec<(u64, String, String)>,
    /// From each record of statistics, the number of flows that were exported, and of those that were not sent.
    pub statistics: Vec<(u64, u64)>,
}

impl Reader {
    pub fn new() -> Reader {
        let both = |number| {
            [
                (IpfixField::new(number, None), (number, false)),
                (IpfixField::new(number, Some(REVERSE)), (number, true)),
            ]
        };
        Reader {
            parser: NetflowParserBuilder::default().build().unwrap(),
            numbers: (1..=400).flat_map(both).collect(),
            sequence: Some(0),
            templates: 0,
            flows: Vec::new(),
            interfaces: Vec::new(),
            statistics: Vec::new(),
        }
    }

    /// Reads one message.
    pub fn read(&mut self, bytes: &[u8]) {
        let result = self.parser.parse_bytes(bytes);
        assert!(result.error.is_none(), "{:?}", result.error);
        let [NetflowPacket::IPFix(message)] = &result.packets[..] else {
            panic!("not one message: {result:?}")
        };
        assert_eq!((message.header.version, message.header.observation_domain_id), (10, 77));
        assert_eq!(usize::from(message.header.length), bytes.len());
        let mut sequence = message.header.sequence_number;
        assert_eq!(self.sequence.unwrap_or(sequence), sequence);
        for set in &message.flowsets {
            match &set.body {
                FlowSetBody::Template(_) | FlowSetBody::OptionsTemplate(_) => self.templates += 1,
                FlowSetBody::Templates(templates) => self.templates += templates.len(),
                FlowSetBody::OptionsTemplates(templates) => self.templates += templates.len(),
                FlowSetBody::Data(data) => {
                    assert!(data.padding.is_empty());
                    sequence += data.fields.len() as u32;
                    let flows: Vec<_> =
                        data.fields.iter().map(|record| self.flow(record)).collect();
                    self.flows.extend(flows);
                }
                FlowSetBody::OptionsData(data) => {
                    sequence += data.fields.len() as u32;
                    data.fields.iter().for_each(|record| self.option(record));
                }
                other => panic!("{other:?}"),
            }
        }
        self.sequence = Some(sequence);
    }

    fn values(&self, record: &[IpfixFieldPair]) -> HashMap<(u16, bool), Value> {
        let value = |value: &FieldValue| {
            let mut bytes = Vec::new();
            match value {
                FieldValue::String(text) => bytes.clone_from(&text.raw),
                other => other.write_be_bytes(&mut bytes).unwrap(),
            }
            Value(bytes)
        };
        let values: HashMap<_, _> =
            record.iter().map(|(field, of)| (self.numbers[field], value(of))).collect();
        assert_eq!(values.len(), record.len(), "a field twice: {record:?}");
        values
    }

    fn option(&mut self, record: &[IpfixFieldPair]) {
        let values = self.values(record);
        if let Some(name) = values.get(&(82, false)) {
            let description = values[&(83, false)].text();
            self.interfaces.push((values[&(10, false)].number(), name.text(), description));
        } else {
            assert_eq!(values[&(144, false)].number(), u64::from(std::process::id()));
            let of = |number| values[&(number, false)].number();
            self.statistics.push((of(42), of(166)));
        }
    }

    fn flow(&self, record: &[IpfixFieldPair]) -> FlowRecord {
        let values = self.values(record);
        let number = |number, is_reverse| values.get(&(number, is_reverse)).map(Value::number);
        let of = |element| number(element, false).unwrap();
        let addresses = match values.get(&(8, false)) {
            Some(src) => {
                Addresses::V4 { src: (src.number() as u32).into(), dst: (of(12) as u32).into() }
            }
            None => Addresses::V6 {
                src: values[&(27, false)].long().into(),
                dst: values[&(28, false)].long().into(),
            },
        };
        let icmp = match addresses {
            Addresses::V4 { .. } => number(32, false),
            Addresses::V6 { .. } => number(139, false),
        };
        let totals = |is_reverse| Totals {
            packets: number(2, is_reverse).unwrap_or(0),
            bytes: number(1, is_reverse).or(number(352, is_reverse)).unwrap_or(0),
            tcp_flags: number(6, is_reverse).unwrap_or(0) as u8,
        };
        assert_eq!(number(239, false), number(2, true).map(|_| 1), "biflows say who began");
        FlowRecord {
            key: FlowKey {
                addresses,
                src_port: of(7) as u16,
                dst_port: of(11) as u16,
                protocol: of(4) as u8,
            },
            vlan: number(58, false).map(|id| id as u16),
            interface: of(10) as u32 - 1,
            first_ns: time_ns(of(152), of(156)),
            last_ns: time_ns(of(153), of(157)),
            forward: totals(false),
            reverse: totals(true),
            icmp: icmp.map(|icmp| ((icmp >> 8) as u8, icmp as u8)),
            reason: [
                EndReason::Idle,
                EndReason::Active,
                EndReason::Forced,
                EndReason::LackOfResources,
            ]
            .into_iter()
            .find(|reason| *reason as u64 == of(136))
            .unwrap(),
        }
    }
}

/// The bytes of a field.
struct Value(Vec<u8>);

impl Value {
    fn long(&self) -> u128 {
        self.0.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
    }

    fn number(&self) -> u64 {
        u64::try_from(self.long()).unwrap()
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.clone()).unwrap()
    }
}

/// Nanoseconds since the Unix epoch. `ms` is the same time in milliseconds, `ntp` in NTP's format, which omits the NTP
/// era: it follows from `ms`.
fn time_ns(ms: u64, ntp: u64) -> u64 {
    let (seconds, parts) = (ntp >> 32, ntp & 0xffff_ffff);
    assert_eq!(seconds, (ms / 1000 + NTP_EPOCH_S) & 0xffff_ffff);
    let nanos = (parts * 1_000_000_000) >> 32;
    assert_eq!(ms % 1000, nanos / 1_000_000);
    ms / 1000 * 1_000_000_000 + nanos
}

/// Reads datagrams until the statistics report that `flows` flows were exported. Checks that no datagram is longer than
/// `bytes_max`.
pub fn read_all(socket: &UdpSocket, reader: &mut Reader, flows: usize, bytes_max: usize) {
    let mut buffer = vec![0; 65_536];
    while reader.statistics.last().is_none_or(|(exported, _)| *exported < flows as u64) {
        let length = socket.recv(&mut buffer).unwrap();
        assert!(length <= bytes_max, "{length} bytes");
        reader.read(&buffer[..length]);
    }
}

fn config() -> Config {
    Config { domain: 77, ..Config::default() }
}

fn take(ipfix: &mut Ipfix, records: &[FlowRecord]) {
    batches(records).iter().for_each(|batch| ipfix.take(batch).unwrap());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn flows_are_read_back_as_they_were(
        (config, records) in (any::<(bool, bool)>(), 576_usize..2000).prop_flat_map(
            |((biflow, is_layer2), datagram_bytes)| {
                let octets = if is_layer2 { Octets::Wire } else { Octets::Ip };
                let config = Config { biflow, octets, datagram_bytes, ..config() };
                (Just(config), prop::collection::vec(any_flow(biflow), 1..100))
            },
        ),
    ) {
        let socket = udp_socket();
        let datagram_bytes = config.datagram_bytes;
        let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config);
        take(&mut ipfix, &records);
        ipfix.finish().unwrap();
        let mut reader = Reader::new();
        read_all(&socket, &mut reader, records.len(), datagram_bytes);
        prop_assert_eq!(reader.flows, records.clone());
        prop_assert_eq!(ipfix.counts().sent, records.len() as u64);
        prop_assert_eq!(ipfix.counts().unsent, 0);
    }
}

#[test]
fn collectors_are_told_names_of_interfaces_and_how_many_flows_there_were() {
    let socket = udp_socket();
    let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config());
    take(&mut ipfix, &flows(100));
    ipfix.finish().unwrap();
    let mut reader = Reader::new();
    read_all(&socket, &mut reader, 100, 1400);
    let want = [(1, "eth0".into(), "eth0".into()), (2, "vnet0".into(), "vm web".into())];
    assert_eq!(reader.interfaces, want);
    assert_eq!(reader.statistics, [(0, 0), (100, 0)]);
}

#[test]
fn owners_that_become_known_are_told() {
    let socket = udp_socket();
    let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config());
    let mut batch = (*batches(&[flow(0)])[0]).clone();
    batch.origins = vec![origins()[0].clone(), origins()[0].clone()].into();
    ipfix.take(&batch).unwrap();
    ipfix.tick().unwrap();
    take(&mut ipfix, &flows(2));
    ipfix.finish().unwrap();
    let mut reader = Reader::new();
    read_all(&socket, &mut reader, 3, 1400);
    assert_eq!(reader.interfaces.len(), 3);
    assert_eq!(reader.interfaces[2], (2, "vnet0".into(), "vm web".into()));
}

#[test]
fn templates_are_sent_again_after_so_many_messages_and_so_long() {
    for (refresh_messages, refresh_interval) in
        [(2, Duration::from_secs(3600)), (u32::MAX, Duration::ZERO)]
    {
        let socket = udp_socket();
        let config = Config { refresh_messages, refresh_interval, ..config() };
        let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config);
        for _ in 0..4 {
            take(&mut ipfix, &[flow(0)]);
            ipfix.tick().unwrap();
        }
        ipfix.finish().unwrap();
        let mut reader = Reader::new();
        read_all(&socket, &mut reader, 4, 1400);
        // Each time three templates: one for flows of this kind, and two for options. They are in a message of
        // their own, which counts for `refresh_messages`.
        assert_eq!((reader.templates, reader.flows.len()), (4 * 3, 4));
    }
}

#[test]
fn a_paced_export_takes_its_time() {
    let socket = udp_socket();
    let config = Config { pace: std::num::NonZeroU32::new(1000), ..config() };
    let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config);
    let start = std::time::Instant::now();
    take(&mut ipfix, &flows(500));
    ipfix.finish().unwrap();
    // 500 flows take 500 ms at this rate, but the first and the last message, with about 20 flows each, do not wait.
    assert!(start.elapsed() >= Duration::from_millis(450), "{:?}", start.elapsed());
    let mut reader = Reader::new();
    read_all(&socket, &mut reader, 500, 1400);
    assert_eq!(reader.flows, flows(500));
}
