//! Collectors that are slow or not running: the export continues, and the thread that hands flows over does not wait.

use std::io::Read;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use weir_export::ipfix::{Config, Ipfix, Target};
use weir_export::limits::{BATCHES_MAX, CONNECT_TIME_MAX, DRAIN_TIME_MAX, WRITE_TIME_MAX};
use weir_export::{Counts, Export, Queue, WhenFull};

use crate::decoder::{Reader, read_all};
use crate::flows::{batches, flow, flows};
use crate::{PATIENCE, accept, export_to, tcp_socket, udp_socket};

/// Maximum time of a push. No push waits for a collector, but a loaded machine may delay it.
const PUSH_TIME_MAX: Duration = Duration::from_secs(1);

pub fn config() -> Config {
    Config { domain: 77, ..Config::default() }
}

/// Hands over `count` batches of 1,000 flows, and finishes. Returns the counts, and the time that finishing took.
pub fn push(queue: &mut Queue, count: usize) -> (Counts, Duration) {
    let batch = batches(&flows(1_000)).remove(0);
    for _ in 0..count {
        let start = Instant::now();
        queue.push(&batch);
        assert!(start.elapsed() < PUSH_TIME_MAX, "{:?}", start.elapsed());
    }
    let start = Instant::now();
    let finished = queue.finish();
    assert!(finished.failure.is_none(), "{:?}", finished.failure);
    (finished.counts, start.elapsed())
}

#[test]
fn nobody_at_the_udp_port_costs_flows_only() {
    // A socket that is connected to itself occupies the port, and receives nothing from other sockets.
    let socket = udp_socket();
    socket.connect(socket.local_addr().unwrap()).unwrap();
    let port = socket.local_addr().unwrap().port();
    let mut queue = Queue::start(export_to("ipfix", port, config()), WhenFull::Drop).unwrap();
    let (counts, _) = push(&mut queue, 200);
    assert_eq!(counts.sent + counts.unsent, 200_000);
    // The kernel limits the rate of ICMP errors, so it does not report every datagram that nobody received.
    assert!(counts.unsent > 0, "{counts:?}");
}

#[test]
fn a_udp_collector_that_begins_late_gets_templates_first() {
    let socket = udp_socket();
    let port = socket.local_addr().unwrap().port();
    drop(socket);
    let mut ipfix = export_to("ipfix", port, config());
    // Send flows until the kernel reports that nobody listens at the port. The report may be late.
    let start = Instant::now();
    while ipfix.counts().unsent == 0 {
        assert!(start.elapsed() < PATIENCE, "no answer that nobody listens: {:?}", ipfix.counts());
        ipfix.take(&batches(&[flow(0)])[0]).unwrap();
        ipfix.tick().unwrap();
    }
    let socket = std::net::UdpSocket::bind(("127.0.0.1", port)).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    let before = ipfix.counts();
    ipfix.take(&batches(&flows(100))[0]).unwrap();
    ipfix.finish().unwrap();
    let after = ipfix.counts();
    assert!(after.sent + after.unsent >= before.sent + before.unsent + 100);
    let mut reader = Reader::new();
    reader.sequence = None;
    read_all(&socket, &mut reader, 100, 1400);
    let is_last = reader.flows.ends_with(&flows(100));
    assert!(is_last, "{} flows", reader.flows.len());
}

#[test]
fn a_tcp_collector_that_never_reads_holds_nobody_for_long() {
    let listener = tcp_socket();
    let port = listener.local_addr().unwrap().port();
    let ipfix = export_to("ipfix+tcp", port, config());
    let _stream = accept(&listener);
    let mut queue = Queue::start(ipfix, WhenFull::Drop).unwrap();
    // About 80 MB, which is more than the kernel buffers for a connection.
    let (counts, time) = push(&mut queue, 1_000);
    assert_eq!(counts.sent + counts.unsent, 1_000_000);
    assert!(counts.unsent > (1_000 - BATCHES_MAX as u64) * 1_000 / 2, "{counts:?}");
    let most = WRITE_TIME_MAX * 2 + CONNECT_TIME_MAX + DRAIN_TIME_MAX + PUSH_TIME_MAX * 3;
    assert!(time < most, "{time:?}");
}

/// Accepts one connection, and reads all messages to its end.
fn read(listener: &TcpListener) -> Reader {
    let mut stream = accept(listener);
    let mut reader = Reader::new();
    while let Some(message) = message(&mut stream) {
        reader.read(&message);
    }
    reader
}

/// The next message of a stream; `None` at the end of the stream.
pub fn message(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut message = vec![0; 4];
    stream.read_exact(&mut message).ok()?;
    message.resize(u16::from_be_bytes([message[2], message[3]]).into(), 0);
    stream.read_exact(&mut message[4..]).unwrap();
    Some(message)
}

#[test]
fn a_tcp_collector_that_comes_back_is_sent_everything_it_must_know() {
    let listener = tcp_socket();
    let port = listener.local_addr().unwrap().port();
    let mut ipfix = export_to("ipfix+tcp", port, config());
    let stream = accept(&listener);
    ipfix.take(&batches(&[flow(0)])[0]).unwrap();
    ipfix.tick().unwrap();
    drop(stream);
    drop(listener);
    // Some flows are written to the closed connection, and the others are not sent at all.
    let mut taken = 1;
    let start = Instant::now();
    while ipfix.counts().unsent < 10 {
        assert!(start.elapsed() < PATIENCE, "{:?} without a collector", ipfix.counts());
        ipfix.take(&batches(&[flow(taken)])[0]).unwrap();
        ipfix.tick().unwrap();
        taken += 1;
    }
    let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
    std::thread::scope(|scope| {
        let collector = scope.spawn(|| read(&listener));
        let (before, start) = (ipfix.counts(), Instant::now());
        while ipfix.counts().sent == before.sent {
            ipfix.take(&batches(&[flow(1)])[0]).unwrap();
            ipfix.tick().unwrap();
            taken += 1;
            assert!(start.elapsed() < PATIENCE, "it does not connect again: {:?}", ipfix.counts());
            std::thread::sleep(Duration::from_millis(50));
        }
        ipfix.finish().unwrap();
        let Counts { sent, unsent } = ipfix.counts();
        assert_eq!(sent + unsent, u64::from(taken));
        drop(ipfix);
        let reader = collector.join().unwrap();
        assert_eq!(reader.flows.len() as u64, sent - before.sent);
        assert!(reader.interfaces.len() == 2 && reader.statistics.len() == 2);
        assert!(reader.statistics[0].1 >= 10, "{:?}", reader.statistics);
    });
}

#[test]
fn an_export_that_cannot_begin_says_what_to_do() {
    let port = tcp_socket().local_addr().unwrap().port();
    for (text, config, want) in [
        (format!("ipfix+tcp://127.0.0.1:{port}"), config(), "start the collector"),
        ("ipfix://no.such.host.invalid".into(), config(), "check it, or give the address"),
        ("ipfix://[::1]".into(), Config { datagram_bytes: 100, ..config() }, "give 576 to 65507"),
    ] {
        let target: Target = text.parse().unwrap();
        let error = Ipfix::open(&target, config).err().unwrap();
        assert!(error.to_string().contains(want), "{error}");
    }
}
