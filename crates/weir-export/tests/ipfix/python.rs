//! Exported flows, as the Python library `ipfix` reads them from a connection.

use std::io::Write;
use std::net::{Shutdown, TcpListener};
use std::process::{Command, Stdio};
use std::thread;

use serde_json::Value;
use weir_export::Export;
use weir_export::ipfix::Config;
use weir_flow::{FlowRecord, Octets, Totals};
use weir_frame::headers::Addresses;

use crate::flows::{batches, flows};
use crate::{accept, export_to, skip, tcp_socket};

/// Reads messages from stdin, checks their sequence numbers, and prints a line of JSON for each record.
const SCRIPT: &str = r"
import ipfix.ie, ipfix.reader, json, sys
ipfix.ie.use_iana_default()
ipfix.ie.use_5103_default()
reader = ipfix.reader.from_stream(sys.stdin.buffer)
before, message = 0, None
for count, record in enumerate(reader.namedict_iterator()):
    if reader.msg.sequence != message:
        message = reader.msg.sequence
        assert message == count, (message, count)
    assert reader.msg.odid == 1
    print(json.dumps(record, default=str))
";

/// Debian's Python, for which the package python3-ipfix installs the library.
const PYTHON: &str = "/usr/bin/python3";

fn has_library(test: &str) -> bool {
    let mut command = Command::new(PYTHON);
    command.args(["-c", "import ipfix.reader"]).stderr(Stdio::null());
    let is_there = command.status().is_ok_and(|status| status.success());
    if !is_there {
        skip(test, "the Python library ipfix is not installed (Debian package python3-ipfix)");
    }
    is_there
}

/// Accepts one connection, reads it to its end, and passes the bytes to the library. Returns the records that the
/// library read.
fn collect(listener: &TcpListener) -> Vec<Value> {
    let mut stream = accept(listener);
    // Collectors send nothing, and some shut down their sending direction at once. The export must continue.
    stream.shutdown(Shutdown::Write).unwrap();
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut stream, &mut bytes).unwrap();
    let mut command = Command::new(PYTHON);
    command.args(["-W", "error", "-c", SCRIPT]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = thread::spawn(move || stdin.write_all(&bytes));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn check(record: &FlowRecord, read: &Value) {
    let number = |name: &str| read[name].as_u64();
    let (src, dst, version) = match record.key.addresses {
        Addresses::V4 { src, dst } => (src.to_string(), dst.to_string(), "IPv4"),
        Addresses::V6 { src, dst } => (src.to_string(), dst.to_string(), "IPv6"),
    };
    assert_eq!(read[format!("source{version}Address")], src, "{read}");
    assert_eq!(read[format!("destination{version}Address")], dst, "{read}");
    let icmp = record.icmp.map(|(kind, code)| u64::from(kind) << 8 | u64::from(code));
    for (name, value) in [
        ("sourceTransportPort", Some(record.key.src_port.into())),
        ("destinationTransportPort", Some(record.key.dst_port.into())),
        ("protocolIdentifier", Some(record.key.protocol.into())),
        ("packetDeltaCount", Some(record.forward.packets)),
        ("layer2OctetDeltaCount", Some(record.forward.bytes)),
        ("tcpControlBits", Some(record.forward.tcp_flags.into())),
        ("reversePacketDeltaCount", Some(record.reverse.packets)),
        ("reverseTcpControlBits", Some(record.reverse.tcp_flags.into())),
        ("biflowDirection", Some(1)),
        ("ingressInterface", Some(u64::from(record.interface) + 1)),
        ("vlanId", record.vlan.map(u64::from)),
        (&format!("icmpTypeCode{version}"), icmp),
        ("flowEndReason", Some(record.reason as u64)),
    ] {
        assert_eq!(number(name), value, "{name}: {read}");
    }
    let of_second = |ns: u64| ns / 1000 % 1_000_000;
    for (name, ns) in
        [("flowStartNanoseconds", record.first_ns), ("flowEndNanoseconds", record.last_ns)]
    {
        // Python's times have a resolution of microseconds.
        let time = read[name].as_str().unwrap();
        let micros: u64 = time.split(['.', '+']).nth(1).unwrap().parse().unwrap();
        assert!(micros.abs_diff(of_second(ns)) <= 1, "{name}: {time}, {ns}");
    }
}

#[test]
fn a_python_library_reads_every_flow_of_each_connection() {
    const TEST: &str = "a_python_library_reads_every_flow_of_each_connection";
    if !has_library(TEST) {
        return;
    }
    let listener = tcp_socket();
    let port = listener.local_addr().unwrap().port();
    // More flows than fit into one message, which has at most 64 KiB.
    let reverse = Totals { packets: 3, bytes: 300, tcp_flags: 0x10 };
    let records: Vec<_> =
        flows(2_000).into_iter().map(|record| FlowRecord { reverse, ..record }).collect();
    let config = Config { biflow: true, octets: Octets::Wire, ..Config::default() };
    for _ in 0..2 {
        thread::scope(|scope| {
            let collector = scope.spawn(|| collect(&listener));
            let mut ipfix = export_to("ipfix+tcp", port, config.clone());
            batches(&records).iter().for_each(|batch| ipfix.take(batch).unwrap());
            ipfix.finish().unwrap();
            assert_eq!((ipfix.counts().sent, ipfix.counts().unsent), (2_000, 0));
            drop(ipfix);
            let read = collector.join().unwrap();
            let flows: Vec<_> =
                read.iter().filter(|record| record.get("packetDeltaCount").is_some()).collect();
            assert_eq!(flows.len(), records.len());
            records.iter().zip(flows).for_each(|(record, read)| check(record, read));
            let owner = |record: &&Value| record["interfaceDescription"] == "vm web";
            assert_eq!(read.iter().filter(owner).count(), 1);
        });
    }
}
