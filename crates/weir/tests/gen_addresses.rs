//! `weir gen` to given addresses: a socket at the other end receives the datagrams.

mod common;

use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use common::tools::{bytes_of, read, tool};
use common::{Run, folder, generate, number, path, ready, settle, sh, weir, within};
use weir_lab::Testbed;
use weir_lab::testbed::End;

/// A pair with IPv4 and IPv6 addresses at both ends, which answer ARP and neighbour discovery.
fn addressed() -> Testbed {
    Testbed::builder().gro(true).ipv6(true).addresses(true).build().expect("a testbed")
}

fn socket(end: &End, address: &str) -> UdpSocket {
    let socket = within(end, || UdpSocket::bind(address).expect("an address of the end"));
    socket.set_read_timeout(Some(Duration::from_secs(5))).expect("a time above zero");
    socket
}

fn datagram(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut bytes = vec![0; 2048];
    let (count, from) = socket.recv_from(&mut bytes).expect("a datagram");
    bytes.truncate(count);
    (bytes, from)
}

fn mac(end: &End) -> String {
    end.mac.map(|byte| format!("{byte:02x}")).join(":")
}

#[test]
fn root_a_socket_at_the_other_end_receives_what_is_sent_to_its_address() {
    let test = "root_a_socket_at_the_other_end_receives_what_is_sent_to_its_address";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = addressed();
    for (to, from, engine) in [
        ("10.77.0.2", "10.77.0.1", ""),
        ("10.77.0.2", "10.77.0.1", "--af-packet"),
        ("fd77::2", "fd77::1", ""),
        ("fd77::2", "fd77::1", "--af-packet"),
    ] {
        let listening = socket(&bed.rx, &SocketAddr::new(to.parse().unwrap(), 5300).to_string());
        let line = format!("--dst-ip {to} --dst-port 5300 --flows 3 --frames 6 {engine}");
        let sent = generate(&bed.tx, &line);
        assert_eq!(number(&sent, "sent"), 6, "{sent}");
        assert_eq!(sent["addresses"]["dst_mac"], mac(&bed.rx), "{sent}");
        assert_eq!(sent["addresses"]["src_mac"], mac(&bed.tx), "{sent}");
        let mut ports = Vec::new();
        for number in 0..6u64 {
            let (bytes, source) = datagram(&listening);
            assert_eq!(source.ip(), from.parse::<std::net::IpAddr>().unwrap());
            assert_eq!(bytes[..8], number.to_be_bytes(), "{to} {engine}");
            ports.push(source.port());
        }
        assert_eq!(ports[..3], ports[3..]);
        assert_ne!(ports[0], ports[1]);
        // The payload arrives without padding, even if the frame is below Ethernet's minimum. `--size` adds zeros.
        let hello = "--payload text:hello --src-port 1234 --frames 1";
        generate(&bed.tx, &format!("--dst-ip {to} --dst-port 5300 {hello} {engine}"));
        let (bytes, source) = datagram(&listening);
        assert_eq!((bytes, source.port()), (b"hello".to_vec(), 1234));
        generate(&bed.tx, &format!("--dst-ip {to} --dst-port 5300 {hello} --size 1000 {engine}"));
        let (bytes, _) = datagram(&listening);
        let headers = if to.contains(':') { 62 } else { 42 };
        assert_eq!((bytes.len(), &bytes[..6]), (996 - headers, &b"hello\0"[..]));
    }
}

#[test]
fn root_an_address_behind_a_gateway_has_the_gateways_mac() {
    let test = "root_an_address_behind_a_gateway_has_the_gateways_mac";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = addressed();
    sh(&bed.tx, "ip route add 192.0.2.0/24 via 10.77.0.2");
    sh(&bed.rx, &format!("ip addr add 192.0.2.9/32 dev {}", bed.rx.iface));
    let listening = socket(&bed.rx, "192.0.2.9:5300");
    let sent = generate(&bed.tx, "--dst-ip 192.0.2.9 --dst-port 5300 --frames 2");
    assert_eq!(sent["addresses"]["dst_mac"], mac(&bed.rx), "{sent}");
    assert_eq!(datagram(&listening).1.ip().to_string(), "10.77.0.1");
    // The broadcast address of the subnet has the broadcast MAC address.
    let sent = generate(&bed.tx, "--dst-ip 10.77.0.255 --frames 1");
    assert_eq!(sent["addresses"]["dst_mac"], "ff:ff:ff:ff:ff:ff", "{sent}");
}

#[test]
fn root_an_address_that_nobody_has_says_the_way_out() {
    let test = "root_an_address_that_nobody_has_says_the_way_out";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = addressed();
    let iface = &bed.tx.iface;
    let refused = |args: &str, words: &[&str]| {
        let run = Run::start(&bed.tx, weir(&format!("gen {iface} --frames 1 {args}")));
        run.end().refused(words);
    };
    refused("--dst-ip 10.77.0.99", &["nobody answers for 10.77.0.99, so", "--dst-mac"]);
    refused("--dst-ip fd99::1", &["no route to fd99::1", "--dst-mac"]);
    refused("--dst-ip 10.77.0.1", &["an address of this machine"]);
    refused("--dst-ip 10.77.0.2 --vlan 5", &["without a tag", "--dst-mac"]);
    refused("--dst-ip 10.77.0.2 --flows multi", &["32768 flows"]);
    refused("--dst-ip fd77::2 --size 64", &["size 64", "74 to"]);
    let both = format!("gen {iface} --file a --dst-ip 10.77.0.2");
    let ended = Run::start(&bed.tx, weir(&both)).end().expect(2);
    assert!(
        ended.stderr.contains("--dst-ip") && ended.stderr.contains("--file"),
        "{}",
        ended.stderr
    );
}

#[test]
fn root_headers_are_what_was_asked_for_and_their_checksums_hold() {
    let test = "root_headers_are_what_was_asked_for_and_their_checksums_hold";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let bed = common::bed();
    let mac = "--src-mac 02:00:00:00:00:0a --dst-mac 02:00:00:00:00:0b";
    let v4 = "--src-ip 10.1.1.1 --dst-ip 10.2.2.2";
    let v6 = "--src-ip 2001:db8::a --dst-ip 2001:db8::b";
    for (args, shown) in [
        (
            format!("{mac} {v4} --src-port 7 --dst-port 8 --vlan 5"),
            "02:00:00:00:00:0a|02:00:00:00:00:0b||5|10.1.1.1||10.2.2.2||7|8",
        ),
        (
            format!("{mac} {v6} --src-port 7 --dst-port 8 --vlan 5,42 --size 100"),
            "02:00:00:00:00:0a|02:00:00:00:00:0b|5|42||2001:db8::a||2001:db8::b|7|8",
        ),
        (
            format!("{mac} {v4} --src-port 7 --dst-port 53 --payload 0102030405"),
            "02:00:00:00:00:0a|02:00:00:00:00:0b|||10.1.1.1||10.2.2.2||7|53",
        ),
        (format!("{mac} --dst-ip 2001:db8::b --src-ip flow --src-port 7 --dst-port 8 --stamp"), ""),
        (format!("{mac} {v4} --flows 50 --size 128:7,594:4,1518:1"), ""),
    ] {
        for engine in ["", "--af-packet"] {
            let dir = folder();
            let (file, name) = path(&dir, "got.pcapng");
            let capture = Run::capture(&bed.rx, &format!("--direction in --write {name}"));
            let sent = generate(&bed.tx, &format!("{args} --frames 40 --rate 2kpps {engine}"));
            settle();
            capture.stop().expect(0);
            assert_eq!(number(&sent, "sent"), 40, "{sent}");
            let got = bytes_of(&read(&file).1);
            assert_eq!(got.len(), 40);
            let bytes: usize = got.iter().map(|frame| frame.len() + 4).sum();
            assert_eq!(bytes as u64, number(&sent, "bytes"), "{args}");
            let checks = ["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"];
            let good = "udp.checksum.status == 1 and (ipv6 or ip.checksum.status == 1)";
            let fields = [
                "eth.src",
                "eth.dst",
                "ieee8021ad.id",
                "vlan.id",
                "ip.src",
                "ipv6.src",
                "ip.dst",
                "ipv6.dst",
                "udp.srcport",
                "udp.dstport",
            ];
            let mut line = vec!["-r", &name, "-Y", good, "-T", "fields", "-E", "separator=|"];
            line.extend(checks);
            fields.iter().for_each(|field| line.extend(["-e", field]));
            let lines = tool("tshark", &line);
            assert_eq!(lines.lines().count(), 40, "{args} {engine}: {lines}");
            if !shown.is_empty() {
                assert!(lines.lines().all(|line| line == shown), "{args} {engine}: {lines}");
            }
        }
    }
}

#[test]
fn root_a_network_namespace_is_reached_by_process_and_by_path() {
    let test = "root_a_network_namespace_is_reached_by_process_and_by_path";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = addressed();
    // A process in the namespace of the sending end; `weir` runs in the namespace of the receiving end.
    let mut sleep = std::process::Command::new("sleep");
    sleep.arg("60");
    let there = Run::start(&bed.tx, sleep);
    let (pid, iface) = (there.pid(), &bed.tx.iface);
    let listening = socket(&bed.rx, "10.77.0.2:5300");
    for place in [
        format!("netns:{pid}"),
        format!("netns:/proc/{pid}/ns/net"),
        format!("/proc/{pid}/ns/net"),
        format!("netns:/run/netns/{}", bed.tx.netns),
    ] {
        let line = format!("gen {place}/{iface} --dst-ip 10.77.0.2 --dst-port 5300 --frames 1");
        Run::start(&bed.rx, weir(&line)).end().expect(0);
        assert_eq!(datagram(&listening).1.ip().to_string(), "10.77.0.1", "{place}");
        let line = format!("capture {place}/{iface} --duration 100ms --json");
        let json = Run::start(&bed.rx, weir(&line)).end().expect(0).json();
        let owner = if place.contains("/run/") { "netns" } else { "process" };
        assert_eq!(json["sources"][0]["owner"]["kind"], owner, "{place}: {json}");
    }
    let gone = "gen netns:/proc/4194305/ns/net/eth0 --frames 1";
    Run::start(&bed.rx, weir(gone)).end().refused(&["/proc/4194305/ns/net", "no such process"]);
}
