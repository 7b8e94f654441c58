//! Links that break during an export, in network namespaces of their own.

use std::net::{TcpListener, UdpSocket};
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_export::ipfix::{Config, Ipfix, Target};
use weir_export::{Counts, Export};

use crate::PATIENCE;
use crate::away::config;
use crate::decoder::{Reader, read_all};
use crate::flows::{batches, flow};
use crate::netns::{Netns, can_run};

/// Hands over the flow with this number, and makes the export send it.
fn send(ipfix: &mut Ipfix, number: u32) {
    ipfix.take(&batches(&[flow(number)])[0]).unwrap();
    ipfix.tick().unwrap();
}

/// Calls `tick` until `is_so` is true for the export's counts.
fn wait_for(ipfix: &mut Ipfix, what: &str, is_so: impl Fn(Counts) -> bool) {
    let start = Instant::now();
    while !is_so(ipfix.counts()) {
        assert!(start.elapsed() < PATIENCE, "waited for {what} in vain: {:?}", ipfix.counts());
        ipfix.tick().unwrap();
        sleep(Duration::from_millis(10));
    }
}

#[test]
fn root_a_template_that_could_not_be_sent_comes_before_its_flows() {
    if !can_run("root_a_template_that_could_not_be_sent_comes_before_its_flows") {
        return;
    }
    let netns = Netns::new("template");
    netns.within(|| {
        netns.ip("addr add 192.0.2.9/32 dev lo");
        let socket = UdpSocket::bind(("192.0.2.9", 0)).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let target: Target = format!("ipfix://{}", socket.local_addr().unwrap()).parse().unwrap();
        let mut ipfix = Ipfix::open(&target, config()).unwrap();
        // A flow of TCP over IPv4.
        send(&mut ipfix, 6);
        wait_for(&mut ipfix, "the first flow", |counts| counts.sent == 1);
        // Now the collector's address is unreachable.
        netns.ip("addr del 192.0.2.9/32 dev lo");
        // An IPv6 flow, which needs another template.
        send(&mut ipfix, 2);
        wait_for(&mut ipfix, "a refusal", |counts| counts.unsent == 1);
        netns.ip("addr add 192.0.2.9/32 dev lo");
        send(&mut ipfix, 8);
        send(&mut ipfix, 6);
        ipfix.finish().unwrap();
        assert_eq!(ipfix.counts(), Counts { sent: 3, unsent: 1 });
        // A reader that does not know a template fails.
        let mut reader = Reader::new();
        read_all(&socket, &mut reader, 3, 1400);
        assert_eq!(reader.flows, [6, 8, 6].map(flow));
        assert_eq!(reader.statistics.last(), Some(&(3, 1)));
    });
}

#[test]
fn root_a_collector_that_vanishes_is_noticed_by_what_it_does_not_acknowledge() {
    if !can_run("root_a_collector_that_vanishes_is_noticed_by_what_it_does_not_acknowledge") {
        return;
    }
    let (here, there) = (Netns::new("here"), Netns::new("there"));
    here.ip(&format!("link add veth0 type veth peer name veth0 netns {}", there.0));
    for (netns, address) in [(&here, "192.0.2.1/24"), (&there, "192.0.2.2/24")] {
        netns.ip(&format!("addr add {address} dev veth0"));
        netns.ip("link set veth0 up");
    }
    let listener = there.within(|| TcpListener::bind(("192.0.2.2", 0)).unwrap());
    let target: Target = format!("ipfix+tcp://{}", listener.local_addr().unwrap()).parse().unwrap();
    here.within(|| {
        let config = Config { user_timeout: Duration::from_secs(1), ..config() };
        let mut ipfix = Ipfix::open(&target, config).unwrap();
        send(&mut ipfix, 0);
        wait_for(&mut ipfix, "an acknowledged flow", |counts| counts.sent == 1);
        // No FIN or RST arrives. With the default settings, TCP gives up after about 15 minutes.
        there.ip("link set veth0 down");
        send(&mut ipfix, 1);
        assert_eq!(ipfix.counts(), Counts { sent: 1, unsent: 0 });
        wait_for(&mut ipfix, "that it is away", |counts| counts.unsent == 1);
        // A flow that comes meanwhile is counted as unsent when the attempt to connect again fails.
        send(&mut ipfix, 2);
        wait_for(&mut ipfix, "a connection that is not taken", |counts| counts.unsent == 2);
        there.ip("link set veth0 up");
        let start = Instant::now();
        while ipfix.counts().sent == 1 {
            assert!(start.elapsed() < PATIENCE, "{:?}", ipfix.counts());
            send(&mut ipfix, 3);
            sleep(Duration::from_millis(50));
        }
    });
}
