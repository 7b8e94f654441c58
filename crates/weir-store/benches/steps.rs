//! The cost of each step of a frame's way through user space, on one CPU and without a live writer: into a ring, and
//! out of it to each consumer. ARCHITECTURE.md, "The cost of a frame", has a run of this.
//!
//! `cargo bench -p weir-store --bench steps [-- RUNS]`, on a machine that does nothing else. Each run fills a ring (or
//! two, by turns) and takes everything out again; the median of the runs is printed.

use std::fs::OpenOptions;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_consumer::{Consumer, JoinedFeed, Null, Ordered, Step};
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::{
    Batch, Clock, Mapping, Poll, Reader, Ring, RingSpec, Start, Writer, WriterKind, memory,
};
use weir_store::FileWriter;

/// More than any cache here.
const RING_MIB: u64 = 64;
const BURST: u64 = 64;
const IN_MEMORY: &str = "/dev/shm/weir-steps";

fn main() {
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // as a test: that it builds is enough
    }
    let runs = std::env::args().skip(1).find_map(|text| text.parse().ok()).unwrap_or(9);
    let mut set = CpuSet::new();
    set.set(1);
    sched_setaffinity(None, &set).expect("this bench needs CPU 1");
    println!(
        "{runs} runs, rings of {RING_MIB} MiB together: ns/frame, median [least-most], and Gbit/s"
    );
    for caplen in [60, 1514] {
        row("Writer::push", caplen, runs, || {
            let mut writers = writers(1);
            // Once for the pages of the ring, and once for the time.
            push_all(&mut writers, caplen);
            let begin = Instant::now();
            let frames = push_all(&mut writers, caplen);
            per_frame(begin, frames)
        });
        row("Null: counted in place", caplen, runs, || fill(1, caplen).read(Null::new()));
        row("Reader::poll: copied", caplen, runs, || fill(1, caplen).poll());
        for rings in [1, 2] {
            for (what, path) in [("/dev/null", "/dev/null"), ("a file in memory", IN_MEMORY)] {
                row(&format!("merge of {rings}, to {what}"), caplen, runs, || {
                    let _ = std::fs::remove_file(IN_MEMORY);
                    fill(rings, caplen).write_to(path)
                });
            }
        }
    }
    let _ = std::fs::remove_file(IN_MEMORY);
}

/// Rings with frames in them, closed.
struct Filled {
    rings: Vec<Ring<Mapping>>,
    frames: u64,
}

fn writers(rings: u64) -> Vec<Writer<Mapping>> {
    (0..rings).map(|_| writer(RING_MIB / rings)).collect()
}

/// As many frames as fit, to each ring in turn; says how many.
fn push_all(writers: &mut [Writer<Mapping>], caplen: usize) -> u64 {
    let rings = writers.len() as u64;
    let record_bytes = 32 + caplen.next_multiple_of(4) as u64;
    // Less than all: no block is overwritten.
    let frames = (RING_MIB - 2 * rings) * (1 << 20) / record_bytes;
    let frame = vec![7; caplen];
    for number in 0..frames {
        let writer = &mut writers[(number % rings) as usize];
        let ts_ns = 1_000_000_000 + number;
        writer.push(&Meta { ts_ns, wire_len: caplen as u32, ..Meta::default() }, &frame);
        if number % BURST == 0 {
            writer.publish();
        }
    }
    writers.iter_mut().for_each(Writer::publish);
    frames
}

fn fill(rings: u64, caplen: usize) -> Filled {
    let mut writers = writers(rings);
    let frames = push_all(&mut writers, caplen);
    writers.iter_mut().for_each(Writer::close);
    Filled { rings: writers.iter().map(|writer| writer.ring().clone()).collect(), frames }
}

fn writer(data_mib: u64) -> Writer<Mapping> {
    let interface = Interface { link_type: 1, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: data_mib,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    Writer::new(memory::create_memfd("weir-steps", &spec).expect("64 MiB"))
}

impl Filled {
    /// Nanoseconds a frame until a consumer has all of them.
    fn read(self, mut consumer: impl Consumer) -> f64 {
        let feeds = self.rings.iter().map(|ring| vec![ring.clone()]).collect();
        for feed in JoinedFeed::in_order(feeds) {
            consumer.join(feed).expect("a ring of ours");
        }
        let begin = Instant::now();
        while consumer.step(u64::MAX).expect("nothing fails") != Step::Ended {}
        consumer.finish(&[]).expect("nothing fails");
        let ns = per_frame(begin, self.frames);
        assert_eq!(consumer.delivered().frames, self.frames);
        ns
    }

    fn poll(self) -> f64 {
        let mut reader = Reader::new(&self.rings[0], Start::Oldest).expect("a ring of ours");
        let (mut batch, mut frames) = (Batch::new(), 0);
        let begin = Instant::now();
        loop {
            match reader.poll(&mut batch).expect("a ring of ours") {
                Poll::Frames(more) => frames += u64::from(more),
                Poll::Closed => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(frames, self.frames);
        per_frame(begin, frames)
    }

    fn write_to(self, path: &str) -> f64 {
        let file = OpenOptions::new().write(true).create(true).truncate(true).open(path);
        let file = file.expect("a file");
        self.read(Ordered::new(Duration::ZERO, FileWriter::pipe(file, path)))
    }
}

fn per_frame(begin: Instant, frames: u64) -> f64 {
    begin.elapsed().as_nanos() as f64 / frames as f64
}

fn row(name: &str, caplen: usize, runs: usize, run: impl Fn() -> f64) {
    let mut ns: Vec<f64> = (0..runs).map(|_| run()).collect();
    ns.sort_by(f64::total_cmp);
    let (least, median, most) = (ns[0], ns[runs / 2], ns[runs - 1]);
    let gbps = caplen as f64 * 8.0 / median;
    println!("{caplen:4} B  {name:36} {median:7.1} [{least:.1}-{most:.1}]  {gbps:6.1}");
}
