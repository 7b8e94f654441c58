//! Exported flows, as nfdump's collector reads them (Debian package nfdump).

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, ErrorKind, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_export::Export;
use weir_export::ipfix::Config;
use weir_flow::{FlowRecord, Totals};
use weir_frame::headers::Addresses;

use crate::flows::{batches, flows};
use crate::{PATIENCE, export_to, skip, udp_socket};

/// A running collector. [`finish`](Collector::finish) ends it properly; if a test fails before, it is killed.
struct Collector {
    child: Child,
    port: u16,
}

impl Collector {
    /// Starts a collector. If it is not installed, reports the test as skipped and returns `None`.
    fn start(test: &str, dir: &Path) -> Option<Collector> {
        let port = udp_socket().local_addr().unwrap().port();
        let mut command = Command::new("nfcapd");
        command.args(["-b", "127.0.0.1", "-p", &port.to_string(), "-t", "3600", "-w"]).arg(dir);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let child = match command.env("TZ", "UTC").spawn() {
            Ok(child) => child,
            Err(e) if e.kind() == ErrorKind::NotFound => {
                skip(test, "nfcapd is not installed (Debian package nfdump)");
                return None;
            }
            Err(e) => panic!("nfcapd: {e}"),
        };
        let collector = Collector { child, port };
        collector.wait_for(|socket| socket.is_some());
        Some(collector)
    }

    /// Waits until `is_so` is true for the result of [`socket`].
    fn wait_for(&self, is_so: impl Fn(Option<(u64, u64)>) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(socket(self.port)) {
            assert!(Instant::now() < end, "{:?}", socket(self.port));
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Ends the collector after it has read everything. Returns its output, which has its counts.
    fn finish(mut self) -> String {
        self.wait_for(|socket| socket.is_some_and(|(unread_bytes, _)| unread_bytes == 0));
        let (_, drops) = socket(self.port).unwrap();
        assert_eq!(drops, 0, "the collector's socket was overrun");
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-TERM", &id]).status().unwrap().success());
        let mut said = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(self.child.wait().unwrap().success(), "{said}");
        said
    }
}

impl Drop for Collector {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// For the UDP socket at this port, the unread bytes in its buffer, and the number of datagrams that were dropped
/// because the buffer was full. `None` if there is no such socket.
fn socket(port: u16) -> Option<(u64, u64)> {
    let table = fs::File::open("/proc/net/udp").unwrap();
    let address = format!("0100007F:{port:04X}");
    BufReader::new(table).lines().map_while(Result::ok).find_map(|line| {
        let columns: Vec<_> = line.split_whitespace().collect();
        let (_, unread) = columns[4].split_once(':')?;
        let is_it = columns[1] == address;
        is_it.then(|| (u64::from_str_radix(unread, 16).unwrap(), columns[12].parse().unwrap()))
    })
}

/// Source and destination address, source and destination port, and protocol of a flow.
type Key = (String, String, u64, u64, u64);

/// For each flow in the collector's files, the values that nfdump prints, as text.
fn read(dir: &Path) -> BTreeMap<Key, Vec<String>> {
    let mut command = Command::new("nfdump");
    command.arg("-R").arg(dir).args(["-o", "json"]).env("TZ", "UTC");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The list of records is the first value of the output; a summary follows it.
    let mut values = serde_json::Deserializer::from_slice(&output.stdout).into_iter();
    let records: Vec<Value> = values.next().unwrap().unwrap();
    let number = |record: &Value, name: &str| record[name].as_u64().unwrap_or(0);
    let text = |record: &Value, names: [&str; 2]| {
        names.iter().find_map(|name| record[name].as_str()).unwrap().to_owned()
    };
    let flow = |record: &Value| {
        let key = (
            text(record, ["src4_addr", "src6_addr"]),
            text(record, ["dst4_addr", "dst6_addr"]),
            number(record, "src_port"),
            number(record, "dst_port"),
            number(record, "proto"),
        );
        let names =
            ["in_packets", "in_bytes", "out_packets", "out_bytes", "icmp_type", "icmp_code"];
        let mut shown: Vec<_> = names.map(|name| number(record, name).to_string()).into();
        shown.extend(["input_snmp", "src_vlan"].map(|name| number(record, name).to_string()));
        // nfdump prints no TCP flags for ICMP.
        let texts = ["first", "last", "tcp_flags"];
        shown.extend(texts.map(|name| record[name].as_str().unwrap_or("........").to_owned()));
        (key, shown)
    };
    let flows: BTreeMap<_, _> = records.iter().map(flow).collect();
    assert_eq!(flows.len(), records.len(), "flows that are not told apart");
    flows
}

/// The key and the values that nfdump should print for this flow.
fn wanted(record: &FlowRecord) -> (Key, Vec<String>) {
    let FlowRecord { key, forward, reverse, .. } = record;
    let (src, dst) = match key.addresses {
        Addresses::V4 { src, dst } => (src.to_string(), dst.to_string()),
        Addresses::V6 { src, dst } => (src.to_string(), dst.to_string()),
    };
    let (kind, code) = record.icmp.unwrap_or_default();
    let (src_port, dst_port) = (key.src_port.into(), key.dst_port.into());
    let numbers = [
        forward.packets,
        forward.bytes,
        reverse.packets,
        reverse.bytes,
        kind.into(),
        code.into(),
        u64::from(record.interface) + 1,
        record.vlan.unwrap_or(0).into(),
    ];
    let mut shown: Vec<_> = numbers.map(|number| number.to_string()).into();
    shown.extend([time(record.first_ns), time(record.last_ns)]);
    let flags = "CEUAPRSF".chars().enumerate();
    let is_set = |bit| forward.tcp_flags >> (7 - bit) & 1 != 0;
    let flags = flags.map(|(bit, name)| if is_set(bit) { name } else { '.' }).collect();
    shown.push(flags);
    ((src, dst, src_port, dst_port, key.protocol.into()), shown)
}

/// A time in nfdump's form, such as `2023-11-14T22:13:20.123`. All flows of these tests begin and end in that hour.
fn time(ns: u64) -> String {
    let ms = ns / 1_000_000;
    let (minute, second) = (ms / 60_000 % 60, ms / 1000 % 60);
    format!("2023-11-14T22:{minute:02}:{second:02}.{:03}", ms % 1000)
}

fn exported_and_read(test: &str, config: Config, records: &[FlowRecord]) {
    let options = config.options;
    let dir = tempfile::tempdir().unwrap();
    let Some(collector) = Collector::start(test, dir.path()) else { return };
    let mut ipfix = export_to("ipfix", collector.port, config);
    batches(records).iter().for_each(|batch| ipfix.take(batch).unwrap());
    ipfix.finish().unwrap();
    assert_eq!((ipfix.counts().sent, ipfix.counts().unsent), (records.len() as u64, 0));
    let said = collector.finish();
    assert!(said.contains("Bad Packets: 0"), "{said}");
    assert!(options || said.contains("Sequence Errors: 0"), "{said}");
    let (read, wanted) = (read(dir.path()), records.iter().map(wanted).collect::<BTreeMap<_, _>>());
    for (key, shown) in &wanted {
        assert_eq!(read.get(key), Some(shown), "{key:?}");
    }
    assert_eq!(read.len(), wanted.len());
}

#[test]
fn nfdump_reads_every_flow() {
    // Without a rate limit, the export would send faster than the collector reads.
    let pace = std::num::NonZeroU32::new(50_000);
    for options in [true, false] {
        let config = Config { pace, options, ..Config::default() };
        exported_and_read("nfdump_reads_every_flow", config, &flows(5_000));
    }
}

#[test]
fn nfdump_reads_both_directions() {
    let reverse = |record: FlowRecord| {
        let tcp_flags = if record.key.protocol == 6 { 0x11 } else { 0 };
        let Totals { packets, bytes, .. } = record.forward;
        let reverse = Totals { packets: packets * 2, bytes: bytes * 10, tcp_flags };
        FlowRecord { reverse, ..record }
    };
    let records: Vec<_> = flows(50).into_iter().map(reverse).collect();
    let config = Config { biflow: true, ..Config::default() };
    exported_and_read("nfdump_reads_both_directions", config, &records);
}
