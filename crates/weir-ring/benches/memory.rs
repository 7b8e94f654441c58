//! The ring in memory alone: no NIC, no kernel, stamps made up. No consumer behind the NIC can do better.
//!
//! `cargo bench -p weir-ring --bench memory [-- [SECONDS [RUNS]] [ROWS]]`, on a machine that does nothing else: writer
//! on CPU 0, readers on CPU 1. ROWS is part of a row's name, or `paced`. Prints the median of the runs, and their
//! spread.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::thread::{CpuSet, sched_setaffinity};
use weir_frame::pcapng::Interface;
use weir_frame::record::Meta;
use weir_ring::idle::{DISTANCE_BYTES, Spin};
use weir_ring::{
    Batch, Clock, Mapping, Poll, Reader, Ring, RingSpec, Start, Tally, Writer, WriterKind, memory,
};

const DATA_BLOCKS: u64 = 64;
/// Frames between two publishings: a burst as engines take them.
const BURST: u64 = 64;
const PACE_MPPS: u64 = 5;
/// No burst takes this long unless the writer was off its CPU.
const OFF_CPU: Duration = Duration::from_micros(30);

fn main() {
    let numbers: Vec<f64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let only = std::env::args().skip(1).find(|a| a.parse::<f64>().is_err() && !a.starts_with('-'));
    let wanted = |name: &str| only.as_ref().is_none_or(|only| name.contains(&only[..]));
    let time = Duration::from_secs_f64(numbers.first().copied().unwrap_or(1.0));
    let runs = numbers.get(1).map_or(5, |&runs| runs as usize);
    if !std::env::args().any(|argument| argument == "--bench") {
        return; // as a test: that it builds is enough
    }
    println!(
        "ring 64 MiB, publish every {BURST} frames, {runs} runs of {time:?}: median [least-most]"
    );
    for caplen in [60, 1514] {
        for (name, how) in [
            ("writer alone", None),
            ("writer, count in place", Some(How::Count)),
            ("writer, poll", Some(How::Poll)),
        ] {
            let name = format!("{name}, {caplen} B");
            if wanted(&name) {
                row(&name, runs, || full_speed(time, caplen, how, false));
            }
        }
    }
    for (name, how) in [("writer alone", None), ("writer, count in place", Some(How::Count))] {
        let name = format!("{name}, 60 B, clock per frame");
        if wanted(&name) {
            row(&name, runs, || full_speed(time, 60, how, true));
        }
    }
    if !wanted("paced") {
        return;
    }
    println!("writer's own time at {PACE_MPPS} Mpps, 60 B, with readers that keep up");
    let mut alone = 0.0;
    for (readers, how) in
        [(0, How::Count), (1, How::Count), (4, How::Count), (1, How::Poll), (4, How::Poll)]
    {
        let (mut times, mut lapped) = (Vec::new(), 0);
        for _ in 0..runs {
            let (ns, missed) = paced(time, readers, how);
            times.push(ns);
            lapped += missed;
        }
        let ns = median(&mut times);
        if readers == 0 {
            alone = ns;
        }
        let cost = (ns / alone - 1.0) * 100.0;
        let spread = format!("[{:.2}-{:.2}]", times[0], times[times.len() - 1]);
        println!(
            "{readers} x {how:?}: {ns:6.2} ns per frame {spread:15} {cost:+5.1} %, {lapped} lapped"
        );
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Count,
    Poll,
}

/// Result of one run.
#[derive(Clone, Copy, Default)]
struct Rates {
    written_mpps: f64,
    gbps: f64,
    read_mpps: f64,
    lapped: f64,
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn row(name: &str, runs: usize, run: impl Fn() -> Rates) {
    let results: Vec<Rates> = (0..runs).map(|_| run()).collect();
    let of = |what: fn(&Rates) -> f64| {
        let mut values: Vec<f64> = results.iter().map(what).collect();
        (median(&mut values), values[0], values[values.len() - 1])
    };
    let (mpps, least, most) = of(|r| r.written_mpps);
    let spread = format!("[{least:.1}-{most:.1}]");
    let (gbps, ..) = of(|r| r.gbps);
    print!("{name:38} {mpps:6.1} Mpps {spread:15} {gbps:6.1} Gbit/s");
    let (read, ..) = of(|r| r.read_mpps);
    let (lapped, ..) = of(|r| r.lapped);
    if read > 0.0 {
        print!("   read {read:6.1} Mpps, lapped {:.2} %", lapped * 100.0);
    }
    println!();
}

fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    set.set(cpu);
    sched_setaffinity(None, &set).expect("this bench needs CPUs 0 and 1");
}

fn new_ring() -> Ring<Mapping> {
    let interface = Interface { link_type: 1, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: DATA_BLOCKS,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    memory::create_memfd("weir-bench", &spec).expect("64 MiB")
}

/// A reader as another process has it: with a mapping of its own.
fn attach(ring: &Ring<Mapping>) -> Reader<Mapping> {
    let fd = ring.memory().as_fd().try_clone_to_owned().expect("a descriptor");
    Reader::new(&memory::attach(fd, memory::Trust::Owner).expect("our own ring"), Start::Oldest)
        .expect("our own ring")
}

fn burst(writer: &mut Writer<Mapping>, meta: &mut Meta, frame: &[u8]) {
    for _ in 0..BURST {
        meta.ts_ns += 67;
        writer.push(meta, frame);
    }
    writer.publish();
}

fn full_speed(time: Duration, caplen: u32, how: Option<How>, clock: bool) -> Rates {
    let ring = new_ring();
    let reader = how.map(|_| attach(&ring));
    let mut writer = Writer::new(ring);
    let frame = vec![0x5a; caplen as usize];
    let mut meta = Meta { wire_len: caplen, ..Meta::default() };
    // Once around, so that every page is there and the first lap is behind everyone.
    while writer.frames() < DATA_BLOCKS << 20 >> 5 {
        burst(&mut writer, &mut meta, &frame);
    }
    std::thread::scope(|scope| {
        let reading =
            reader.zip(how).map(|(reader, how)| scope.spawn(move || read(reader, how, 1)));
        pin(0);
        // Lets the reader arrive.
        std::thread::sleep(Duration::from_millis(50));
        let (begin, before) = (Instant::now(), writer.frames());
        while begin.elapsed() < time {
            for _ in 0..16 {
                if clock {
                    for _ in 0..BURST {
                        let now = rustix::time::clock_gettime(rustix::time::ClockId::Realtime);
                        meta.ts_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
                        writer.push(&meta, &frame);
                    }
                    writer.publish();
                } else {
                    burst(&mut writer, &mut meta, &frame);
                }
            }
        }
        let (seconds, frames) = (begin.elapsed().as_secs_f64(), writer.frames() - before);
        writer.close();
        let mpps = frames as f64 / seconds / 1e6;
        let mut rates = Rates {
            written_mpps: mpps,
            gbps: mpps * f64::from(caplen) * 8.0 / 1e3,
            ..Rates::default()
        };
        if let Some(reading) = reading {
            let reader = reading.join().expect("a reader");
            // Its first lap, before the clock ran, is not the ring's doing.
            let missed = reader.lapped().saturating_sub(before);
            rates.lapped = missed as f64 / frames as f64;
            rates.read_mpps = mpps * (1.0 - rates.lapped);
        }
        rates
    })
}

/// Reads until the end of the ring.
fn read(mut reader: Reader<Mapping>, how: How, cpu: usize) -> Reader<Mapping> {
    pin(cpu);
    reader.keep_distance(DISTANCE_BYTES);
    let mut batch = Batch::new();
    let mut tally = Tally::default();
    let mut spin = Spin::new();
    loop {
        let poll = match how {
            How::Count => reader.count_in_place(&mut tally, 4096),
            How::Poll => reader.poll(&mut batch),
        };
        match poll.expect("our own ring") {
            Poll::Frames(_) | Poll::Lapped(_) => spin.reset(),
            Poll::Empty => spin.wait(),
            Poll::Closed => break,
        }
    }
    std::hint::black_box((&tally, &batch));
    reader
}

/// The writer's time inside the ring per frame, at a fixed rate, and the frames that readers missed.
fn paced(time: Duration, readers: usize, how: How) -> (f64, u64) {
    let ring = new_ring();
    let frame = [0x5a; 60];
    let mut meta = Meta { wire_len: 60, ..Meta::default() };
    let attached: Vec<_> = (0..readers).map(|_| attach(&ring)).collect();
    let mut writer = Writer::new(ring);
    std::thread::scope(|scope| {
        let reading: Vec<_> =
            attached.into_iter().map(|reader| scope.spawn(move || read(reader, how, 1))).collect();
        pin(0);
        let (begin, mut busy) = (Instant::now(), Duration::ZERO);
        let (mut counted, mut bursts) = (0u64, 0u64);
        let mut now = begin;
        while now - begin < time {
            let due = begin + Duration::from_nanos(bursts * BURST * 1000 / PACE_MPPS);
            while now < due {
                std::hint::spin_loop();
                now = Instant::now();
            }
            burst(&mut writer, &mut meta, &frame);
            let after = Instant::now();
            // The first quarter touches every page once. Bursts that took longer than OFF_CPU show
            // that another program ran on this CPU.
            if after - begin > time / 4 && after - now < OFF_CPU {
                busy += after - now;
                counted += BURST;
            }
            now = after;
            bursts += 1;
        }
        writer.close();
        let lapped = reading.into_iter().map(|r| r.join().expect("a reader").lapped()).sum();
        (busy.as_nanos() as f64 / counted as f64, lapped)
    })
}
