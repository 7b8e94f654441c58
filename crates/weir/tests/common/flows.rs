//! Flows as counted by `weir flows`, tshark and nfdump.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::testbed::End;

use super::tools::tool;
use super::{Run, number, program};

/// Addresses, ports (0 where there are none) and protocol of a flow.
pub type Key = (String, String, u64, u64, u64);
/// Packets and IP bytes of each flow.
pub type Flows = BTreeMap<Key, (u64, u64)>;

/// Parses the output of `weir flows --json`: the lines of flows, and the report that follows them.
pub fn lines(stdout: &[u8]) -> (Vec<Value>, Value) {
    let text = String::from_utf8(stdout.to_vec()).expect("text");
    let mut all: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let report = all.pop().expect("a report");
    assert!(all.iter().all(|line| line["event"] == "flow"), "{text}");
    (all, report)
}

/// Sums the records of each flow. The reverse direction of a biflow counts as a flow of its own.
pub fn by_key(lines: &[Value]) -> Flows {
    let mut flows = Flows::new();
    for line in lines {
        let text = |name: &str| line[name].as_str().expect(name).to_owned();
        let port = |name: &str| line[name].as_u64().unwrap_or_default();
        let (source, destination) = (text("src_ip"), text("dst_ip"));
        let (from, to) = (port("src_port"), port("dst_port"));
        let key = (source, destination, from, to, number(line, "proto"));
        let back = (key.1.clone(), key.0.clone(), to, from, key.4);
        for (key, counts) in [(key, line), (back, &line["reverse"])] {
            if counts["packets"].as_u64().is_some_and(|packets| packets > 0) {
                let own = flows.entry(key).or_default();
                own.0 += number(counts, "packets");
                own.1 += number(counts, "bytes");
            }
        }
    }
    flows
}

/// The same sums by tshark: by the outermost addresses, and with no more bytes than the frame contains, even if its
/// IP header claims more.
pub fn by_tshark(file: &str) -> Flows {
    let fields = [
        "ip.src",
        "ip.dst",
        "ipv6.src",
        "ipv6.dst",
        "tcp.srcport",
        "tcp.dstport",
        "udp.srcport",
        "udp.dstport",
        "ip.proto",
        "ipv6.nxt",
        "ip.len",
        "ipv6.plen",
        "frame.len",
        "frame.protocols",
    ];
    let fields = fields.iter().flat_map(|field| ["-e", field]);
    // Only the first occurrence of each field: an ICMP error quotes the headers of the packet that caused it.
    let args = ["-n", "-r", file, "-T", "fields", "-E", "separator=|", "-E", "occurrence=f"];
    let args: Vec<&str> = args.into_iter().chain(["-Y", "ip or ipv6"]).chain(fields).collect();
    let mut flows = Flows::new();
    for line in tool("tshark", &args).lines() {
        let fields: Vec<&str> = line.split('|').collect();
        let count = |text: &str| text.parse::<u64>().unwrap_or_default();
        let Some((is_v6, header_at)) = outermost(fields[13]) else { continue };
        let ip = |v4: usize, v6: usize| fields[if is_v6 { v6 } else { v4 }];
        let port = |places: [usize; 2]| count(places.map(|place| fields[place]).concat().as_str());
        let (from, to) = (port([4, 6]), port([5, 7]));
        let key = (ip(0, 2).to_owned(), ip(1, 3).to_owned(), from, to, count(ip(8, 9)));
        let claimed = if is_v6 { count(fields[11]) + 40 } else { count(fields[10]) };
        let own = flows.entry(key).or_default();
        *own = (own.0 + 1, own.1 + claimed.min(count(fields[12]) - header_at));
    }
    flows
}

/// Whether the first IP header of a frame with these protocols is IPv6, and its offset. `None` if there is no IP
/// header, or if headers other than Ethernet and VLAN tags precede it.
fn outermost(protocols: &str) -> Option<(bool, u64)> {
    // Packets without a link layer begin with the IP header.
    let mut at = if protocols.starts_with("eth:") { 14 } else { 0 };
    for protocol in protocols.split(':') {
        match protocol {
            "eth" | "ethertype" | "raw" => {}
            "vlan" | "ieee8021ad" => at += 4,
            "ip" => return Some((false, at)),
            "ipv6" => return Some((true, at)),
            _ => return None,
        }
    }
    None
}

/// The UDP port of nfdump's collector.
pub const COLLECTOR_PORT: u16 = 9995;

/// nfdump's collector in the network namespace of an end, on loopback, over UDP.
pub struct Collector {
    run: Run,
    /// The files that it writes.
    dir: TempDir,
}

impl Collector {
    pub fn start(end: &End) -> Collector {
        let dir = super::folder();
        let path = dir.path().to_str().expect("a path").to_owned();
        let line = format!("nfcapd -b 127.0.0.1 -p {COLLECTOR_PORT} -t 3600 -w {path}");
        let mut run = Run::start(end, program(&line));
        run.wait_for("its socket", |run| socket(run).is_some());
        Collector { run, dir }
    }

    /// Ends the collector; returns the flows that nfdump reads from its files.
    pub fn finish(mut self) -> Flows {
        self.run.wait_for("that all is read", |run| matches!(socket(run), Some((0, _))));
        assert_eq!(socket(&self.run), Some((0, 0)), "the collector's socket was overrun");
        self.run.signal(libc::SIGTERM);
        let said = self.run.end().expect(0).stderr;
        assert!(said.contains("Bad Packets: 0"), "{said}");
        by_nfdump(self.dir.path())
    }
}

/// Unread bytes in the receive buffer of the collector's socket, and datagrams that were dropped because it was full.
fn socket(run: &Run) -> Option<(u64, u64)> {
    let table = fs::read_to_string(format!("/proc/{}/net/udp", run.pid())).expect("/proc");
    let address = format!("0100007F:{COLLECTOR_PORT:04X}");
    table.lines().find_map(|line| {
        let columns: Vec<&str> = line.split_whitespace().collect();
        let (_, unread) = columns[4].split_once(':')?;
        let drops = columns.get(12)?.parse().ok()?;
        (columns[1] == address).then(|| (u64::from_str_radix(unread, 16).expect("hex"), drops))
    })
}

/// Flows that nfdump reads from these files.
fn by_nfdump(dir: &Path) -> Flows {
    let dir = dir.to_str().expect("a path");
    let text = tool("nfdump", &["-R", dir, "-o", "json"]);
    // A second JSON value, the summary, follows the records.
    let mut values = serde_json::Deserializer::from_str(&text).into_iter();
    let records: Vec<Value> = values.next().expect("records").expect("JSON");
    let mut flows = Flows::new();
    for record in &records {
        let count = |name: &str| record[name].as_u64().unwrap_or_default();
        let address = |names: [&str; 2]| {
            let found = names.iter().find_map(|name| record[name].as_str());
            found.expect("an address").to_owned()
        };
        let (source, destination) =
            (address(["src4_addr", "src6_addr"]), address(["dst4_addr", "dst6_addr"]));
        let (from, to) = (count("src_port"), count("dst_port"));
        let key = (source, destination, from, to, count("proto"));
        let back = (key.1.clone(), key.0.clone(), to, from, key.4);
        for (key, packets, bytes) in
            [(key, "in_packets", "in_bytes"), (back, "out_packets", "out_bytes")]
        {
            if count(packets) > 0 {
                let own = flows.entry(key).or_default();
                *own = (own.0 + count(packets), own.1 + count(bytes));
            }
        }
    }
    flows
}
