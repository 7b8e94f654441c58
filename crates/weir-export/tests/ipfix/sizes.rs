//! Full messages: the last record that fits into a message, and the first that does not.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use weir_export::limits::{NOTES_PACE_BYTES, PACE_CREDIT_MAX};
use weir_export::{Batch, Counts, Export, Origin};
use weir_flow::FlowRecord;

use crate::away::{config, message};
use crate::decoder::{Reader, read_all};
use crate::flows::{batches, flow};
use crate::{accept, export_to, tcp_socket, udp_socket};

/// Largest size of a message over TCP, and size of the headers of a message with one set: 16 bytes for the message, 4
/// for the set.
const BYTES_MAX: usize = 65_535;
const HEADERS: usize = 16 + 4;

/// Different flows of one template, so that all records have the same size.
fn alike(count: usize) -> Vec<FlowRecord> {
    (0..count).map(|n| FlowRecord { first_ns: flow(6).first_ns + n as u64, ..flow(6) }).collect()
}

/// Exports the batches over TCP. Returns the records that were read, and the size in bytes of each message that
/// has flows.
fn over_tcp(batches: &[Arc<Batch>]) -> (Reader, Vec<usize>) {
    let listener = tcp_socket();
    let mut ipfix = export_to("ipfix+tcp", listener.local_addr().unwrap().port(), config());
    let reading = thread::spawn(move || {
        let mut stream = accept(&listener);
        let (mut reader, mut sizes) = (Reader::new(), Vec::new());
        while let Some(message) = message(&mut stream) {
            let before = reader.flows.len();
            // Fails if a message is longer than its header's 16-bit length field can tell.
            reader.read(&message);
            sizes.extend((reader.flows.len() > before).then_some(message.len()));
        }
        (reader, sizes)
    });
    batches.iter().for_each(|batch| ipfix.take(batch).unwrap());
    ipfix.finish().unwrap();
    let records = batches.iter().map(|batch| batch.records.len() as u64).sum();
    assert_eq!(ipfix.counts(), Counts { sent: records, unsent: 0 });
    drop(ipfix);
    reading.join().unwrap()
}

/// Exports the flows over TCP. Returns the size in bytes of each message that has flows.
fn sizes(records: &[FlowRecord]) -> Vec<usize> {
    let (reader, sizes) = over_tcp(&batches(records));
    assert!(reader.flows == records, "{} of {} flows", reader.flows.len(), records.len());
    sizes
}

#[test]
fn a_message_over_tcp_is_filled_to_its_last_record_and_no_further() {
    let [one] = sizes(&alike(1))[..] else { panic!("one flow, one message") };
    let record = one - HEADERS;
    let full = (BYTES_MAX - HEADERS) / record;
    assert!(full > 513, "{full} records of {record} bytes");
    let bytes = |records: usize| HEADERS + records * record;
    for count in [511, 512, 513, full - 1, full] {
        assert_eq!(sizes(&alike(count)), [bytes(count)], "{count}");
    }
    assert_eq!(sizes(&alike(full + 1)), [bytes(full), bytes(1)]);
    assert_eq!(sizes(&alike(2 * full + 512)), [bytes(full), bytes(full), bytes(512)]);
}

/// A batch with one flow, and with `count` interfaces of this name.
fn with_names(count: usize, name: &str) -> Arc<Batch> {
    let origin = |_| Origin { interface: name.to_owned(), owner: None };
    Arc::new(Batch { records: alike(1), origins: Arc::new((0..count).map(origin).collect()) })
}

fn knows_all(reader: &Reader, count: usize, name: &str) {
    assert_eq!(reader.flows, alike(1));
    let numbers = reader.interfaces.iter().map(|(number, _, _)| *number);
    assert!(numbers.eq(1..=count as u64), "{count} interfaces: {}", reader.interfaces.len());
    assert!(reader.interfaces.iter().all(|(_, told, _)| told == name), "{count}");
}

#[test]
fn names_of_many_interfaces_are_not_told_at_once_over_udp() {
    let (count, longest) = (500, "i".repeat(254));
    let socket = udp_socket();
    let port = socket.local_addr().unwrap().port();
    let mut ipfix = export_to("ipfix", port, config());
    let start = Instant::now();
    ipfix.take(&with_names(count, &longest)).unwrap();
    ipfix.finish().unwrap();
    let took = start.elapsed();
    // The rate limit delays the last message by the time that all names take, except for the credit.
    let names = Duration::from_secs(count as u64 * 2 * 254) / NOTES_PACE_BYTES;
    assert!(took > names - 2 * PACE_CREDIT_MAX, "{took:?} for what takes {names:?}");
}

#[test]
fn names_of_many_interfaces_are_told_in_messages_that_are_never_too_long() {
    let longest = "i".repeat(254);
    for (count, name) in [(1, &*longest), (2, &longest), (3, &longest), (40, &longest), (500, "i")]
    {
        let socket = udp_socket();
        let mut ipfix = export_to("ipfix", socket.local_addr().unwrap().port(), config());
        // These are few enough messages for the socket's buffer.
        ipfix.take(&with_names(count, name)).unwrap();
        ipfix.finish().unwrap();
        let mut reader = Reader::new();
        read_all(&socket, &mut reader, 1, 1400);
        knows_all(&reader, count, name);
    }
    for count in [127, 128, 512, 513, 2_000] {
        let (reader, _) = over_tcp(&[with_names(count, &longest)]);
        knows_all(&reader, count, &longest);
    }
}
