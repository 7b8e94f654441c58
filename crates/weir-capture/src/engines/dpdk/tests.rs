//! Tests with two drivers of DPDK that need neither a NIC nor privileges: `net_ring`, which receives frames from a
//! DPDK ring, also in forms that no other driver here produces; and `net_null`, which generates frames.

use std::ffi::CStr;

use weir_frame::record::Meta;
use weir_ring::{Batch, Poll, Reader, Start};

use super::ffi::made::Made;
use super::*;
use crate::engines::af_xdp::Queues;
use crate::feed::Feed;

/// Deadline for steps that should take milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

fn setup(snaplen: u32) -> Setup {
    Setup {
        feeds: vec![Feed { snaplen, ..Feed::default() }],
        ring_bytes: 32 << 20,
        promiscuous: true,
        ..Setup::default()
    }
}

fn open(device: &str, snaplen: u32, options: DpdkOptions) -> Result<Dpdk, CaptureError> {
    Dpdk::open(&Device::new(device).expect("a device"), setup(snaplen), options)
}

/// Sends frames through a DPDK ring: puts `made` into queue 0 of `net_ringN`, where N is `number`. Returns the
/// frames that a reader of Weir's ring gets, and the ledger.
fn through(number: u32, snaplen: u32, made: &[Made<'_>]) -> (Vec<(Meta, Vec<u8>)>, Ledger) {
    let options = DpdkOptions { queues: Queues::Range(0, 1), ..DpdkOptions::default() };
    let mut source = open(&format!("net_ring{number}"), snaplen, options).expect("it opens");
    let Stage::Ready(port) = &source.stage else { panic!("it has not started") };
    // Source: DPDK 22.11, drivers/net/ring/rte_eth_ring.c: frames that are sent on a queue are
    // received on it.
    let ring = CString::new(format!("ETH_RXTX0_net_ring{number}")).unwrap();
    made.iter().for_each(|made| port.make(&ring, made).expect("it is put in"));
    let mut reader = Reader::new(&source.rings()[0], Start::Oldest).expect("a fresh ring");
    source.start().expect("it starts");
    let begin = Instant::now();
    while source.ledger().expect("a ledger").captured < made.len() as u64 {
        source.pump(Duration::from_millis(1)).expect("it goes on");
        assert!(begin.elapsed() < LIMIT, "{:?}", source.ledger());
    }
    let ledger = source.finish().expect("it stops");
    assert!(ledger.closes(), "{ledger}");
    assert_eq!(ledger.offered, made.len() as u64);
    let (mut seen, mut batch) = (Vec::new(), Batch::new());
    while let Poll::Frames(_) = reader.poll(&mut batch).expect("a sound ring") {
        seen.extend(batch.records().map(|record| (record.meta, record.frame.to_vec())));
    }
    (seen, ledger)
}

fn frame(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at ^ at >> 8) as u8).collect()
}

/// The frame with VLAN tags after its addresses, as on the wire.
fn with(frame: &[u8], tags: &[u8]) -> Vec<u8> {
    [&frame[..12], tags, &frame[12..]].concat()
}

#[test]
fn frames_in_parts_and_tags_taken_off_come_out_as_on_the_wire() {
    let (short, long) = (frame(60), frame(9000));
    let plain = |bytes, part| Made { bytes, part, ..Made::default() };
    let tagged = |bytes, outer_tci, part| Made {
        bytes,
        part,
        outer_tci,
        tci: Some(0x6123),
        ..Made::default()
    };
    let made = [
        plain(&short, 0),
        plain(&short, 1),
        plain(&long, 2000),
        tagged(&short, None, 0),
        tagged(&short, Some(0x0007), 0),
        tagged(&long, Some(0x0007), 1500),
    ];
    let one = [0x81, 0x00, 0x61, 0x23];
    let two = [0x88, 0xa8, 0x00, 0x07, 0x81, 0x00, 0x61, 0x23];
    let expected = [
        short.clone(),
        short.clone(),
        long.clone(),
        with(&short, &one),
        with(&short, &two),
        with(&long, &two),
    ];
    for (number, snaplen) in [(0, 262_144), (1, 100), (2, 14)] {
        let (seen, _) = through(number, snaplen, &made);
        assert_eq!(seen.len(), expected.len());
        for ((meta, bytes), whole) in seen.iter().zip(&expected) {
            assert_eq!(bytes, &whole[..whole.len().min(snaplen as usize)], "snaplen {snaplen}");
            assert_eq!(meta.wire_len as usize, whole.len());
        }
    }
}

#[test]
fn a_stamp_of_unknown_meaning_is_not_taken_for_a_time() {
    let before = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let (bytes, stamp) = (frame(60), Some(42));
    let (seen, _) = through(3, 64, &[Made { bytes: &bytes, stamp, ..Made::default() }]);
    assert!(u128::from(seen[0].0.ts_ns) >= before.as_nanos());
    let options = DpdkOptions { stamps: Stamps::Driver, ..DpdkOptions::default() };
    let refusal = open("net_ring4", 64, options).map(drop).unwrap_err().to_string();
    assert!(refusal.contains("--timestamp nic") && refusal.contains("net_ring"), "{refusal}");
}

#[test]
fn the_driver_s_stamps_reach_us() {
    let options = DpdkOptions { queues: Queues::Range(0, 0), ..DpdkOptions::default() };
    let mut source = open("net_ring5", 64, options).expect("it opens");
    let Stage::Ready(mut port) = std::mem::replace(&mut source.stage, Stage::Over) else {
        panic!("it has not started")
    };
    let ring: &CStr = c"ETH_RXTX0_net_ring5";
    let bytes = frame(60);
    port.make(ring, &Made { bytes: &bytes, stamp: Some(42), ..Made::default() }).unwrap();
    port.make(ring, &Made { bytes: &bytes, ..Made::default() }).unwrap();
    port.start().unwrap();
    let (_port, mut receivers) = Rx::all(port, 1);
    let burst = receivers[0].burst();
    let stamps: Vec<_> = burst.frames().map(|frame| frame.stamp).collect();
    assert_eq!(stamps, [Some(42), None]);
}

#[test]
fn a_source_without_end_can_be_stopped_and_its_queues_are_rings() {
    let options =
        DpdkOptions { queues: Queues::Range(0, 1), record_queue: true, ..DpdkOptions::default() };
    let mut source = open("net_null0,size=64", 64, options).expect("it opens");
    assert_eq!(source.rings().len(), 2);
    source.start().expect("it starts");
    let begin = Instant::now();
    while !source.rings().iter().all(|ring| ring.writer_word(ORDINAL) > 0) {
        source.pump(Duration::from_millis(1)).expect("it goes on");
        assert!(begin.elapsed() < LIMIT, "{:?}", source.ledger());
    }
    let ledger = source.finish().expect("it stops");
    assert!(ledger.closes() && ledger.captured > 0, "{ledger}");
}

const ORDINAL: weir_ring::geometry::WriterWord = weir_ring::geometry::WriterWord::Ordinal;

#[test]
fn a_source_that_was_never_started_ends() {
    let mut source = open("net_null1", 64, DpdkOptions::default()).expect("it opens");
    let mut reader = Reader::new(&source.rings()[0], Start::Oldest).expect("a fresh ring");
    assert_eq!(source.finish().expect("it stops").offered, 0);
    assert_eq!(reader.poll(&mut Batch::new()).expect("a sound ring"), Poll::Closed);
}

#[test]
fn what_dpdk_refuses_comes_with_its_reason_and_a_way_out() {
    let refusal = |device| match open(device, 64, DpdkOptions::default()) {
        Ok(_) => panic!("{device} opened"),
        Err(error) => error.to_string(),
    };
    for (device, words) in [
        ("net_nonsense0", ["net_nonsense0", "librte-net-"]),
        ("net_pcap9,rx_pcap=/nowhere/at.all", ["/nowhere/at.all", "docs/dpdk.md"]),
        ("ffff:fe:1d.7", ["vfio-pci", "--hugepages"]),
    ] {
        let text = refusal(device);
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    }
    assert!(refusal("vdev:net_nonsense0").contains("librte-net-"));
    assert!(refusal("net_af_packet9,iface=nowhere0").contains("ip -brief link"));
}

#[test]
fn a_device_has_one_source_and_can_have_the_next() {
    let open = |device| open(device, 64, DpdkOptions::default());
    let mut first = open("net_null2").expect("it opens");
    let twice = open("vdev:net_null2,size=64").map(drop).unwrap_err().to_string();
    assert!(twice.contains("named twice"), "{twice}");
    // The first source is not affected.
    first.start().expect("it starts");
    assert!(first.finish().expect("it stops").closes());
    drop(first);
    open("net_null2").expect("it is free again");
}

#[test]
fn what_a_port_counts_after_the_end_is_not_of_the_run() {
    let mut source = open("net_null3", 64, DpdkOptions::default()).expect("it opens");
    let Stage::Ready(mut port) = std::mem::replace(&mut source.stage, Stage::Over) else {
        panic!("it has not started")
    };
    port.start().expect("it starts");
    let (port, mut receivers) = Rx::all(port, 1);
    source.stage = Stage::Running(Arc::clone(&port));
    let ended = source.finish().expect("it stops");
    // The port still receives frames, like a NIC whose link stays up.
    assert!(receivers[0].burst().len() > 0);
    assert!(port.counts().expect("its statistics").packets > 0);
    assert_eq!(source.ledger().expect("a ledger"), ended);
}

#[test]
fn a_poller_that_dies_does_not_go_unnoticed() {
    let options = DpdkOptions { queues: Queues::Range(0, 0), ..DpdkOptions::default() };
    let mut source = open("net_ring6", 64, options).expect("it opens");
    source.start().expect("it starts");
    source.pollers.push(std::thread::spawn(|| panic!("this one was told to die")));
    let begin = Instant::now();
    let dies = std::panic::AssertUnwindSafe(|| {
        while begin.elapsed() < LIMIT {
            source.pump(Duration::from_millis(10)).expect("it goes on");
        }
    });
    let panic = std::panic::catch_unwind(dies).expect_err("its panic is ours");
    assert_eq!(panic.downcast_ref(), Some(&"this one was told to die"));
    assert!(source.finish().expect("it stops all the same").closes());
}
