//! Measures the rate of engines: `cargo run --release -p weir-capture --example engine_rate -- gen|wire`.
//!
//! `gen [SPEC]`: frames made in memory on core 0: without a reader, with one on core 1, and with one there for which the
//! writer waits. `wire [SIZE] [RUNS]`: the wire generator sends on a veth from core 0; on core 1 the engine af_packet
//! and tcpdump take turns (needs root). Every line has the losses, because a rate without its loss is not a result.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use weir_capture::af_packet::AfPacket;
use weir_capture::generator::{GenSpec, MemGen};
use weir_capture::{CaptureError, Feed, Pumped, Setup, Source};
use weir_lab::generator::{self, GenOptions};
use weir_lab::testbed::Testbed;
use weir_ring::{Mapping, Poll, Reader, Start, Tally};

const RUN: Duration = Duration::from_secs(3);

type Failed = Box<dyn std::error::Error + Send + Sync>;

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gen"] => memory("frames=100M"),
        ["gen", spec] => memory(spec),
        ["wire"] => wire(64, 3),
        ["wire", size] => wire(size.parse()?, 3),
        ["wire", size, runs] => wire(size.parse()?, runs.parse()?),
        _ => Err("say gen [SPEC] or wire [SIZE] [RUNS]".into()),
    }
}

fn setup() -> Setup {
    Setup { feeds: vec![Feed::default()], promiscuous: true, ..Setup::default() }
}

fn pin(cpu: usize) {
    // SAFETY: `set` is plain data, initialized, and lives through the call; 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set);
    }
}

fn memory(spec: &str) -> Result<(), Failed> {
    let spec: GenSpec = spec.parse()?;
    for (what, readers, waited_for) in
        [("alone", 0, false), ("one reader, free", 1, false), ("one reader, waited for", 1, true)]
    {
        let mut source = MemGen::open(spec.clone(), setup(), waited_for)?;
        let pace = source.control().feeds()[0].pace.clone();
        let threads: Vec<_> = (0..readers)
            .map(|_| {
                let reader = Reader::new(&source.rings()[0], Start::Oldest).expect("a ring");
                let place = pace.as_ref().map(|pace| pace.join(0));
                std::thread::spawn(move || {
                    pin(1);
                    count_in_place(reader, |ordinal| {
                        place.iter().for_each(|place| place.reached(ordinal))
                    })
                })
            })
            .collect();
        pin(0);
        let begin = Instant::now();
        source.start()?;
        while source.pump(Duration::from_millis(20))? != Pumped::Ended {
            if spec.frames.is_none() && begin.elapsed() > RUN {
                break;
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        let ledger = source.finish()?;
        let lapped: Vec<u64> =
            threads.into_iter().map(|thread| thread.join().expect("a reader")).collect();
        let rate = ledger.captured as f64 / seconds;
        let gbps = ledger.wire_bytes as f64 * 8.0 / seconds / 1e9;
        println!("{what}: {:.1} Mpps, {gbps:.1} Gbit/s; {ledger}; lapped {lapped:?}", rate / 1e6);
    }
    Ok(())
}

/// A null monitor that sleeps whenever it has found fewer than 64 frames, so that it does not read each frame singly.
/// Returns the number of missed frames.
fn count_in_place(mut reader: Reader<Mapping>, mut reached: impl FnMut(u64)) -> u64 {
    let mut tally = Tally::default();
    loop {
        match reader.count_in_place(&mut tally, u32::MAX).expect("a sound ring") {
            Poll::Closed => return reader.lapped(),
            Poll::Empty => std::thread::sleep(Duration::from_micros(30)),
            Poll::Frames(count) if count < 64 => {
                std::thread::sleep(Duration::from_micros(30));
            }
            Poll::Frames(_) | Poll::Lapped(_) => {}
        }
        reached(reader.ordinal());
    }
}

fn wire(size: u32, runs: u32) -> Result<(), Failed> {
    let mtu = size.max(1518) - 18;
    let bed = Testbed::builder().mtu(mtu).gro(true).build()?;
    let generate = |stop: &AtomicBool| {
        let options = GenOptions { sizes: size.into(), cpus: vec![0], ..GenOptions::default() };
        bed.tx.run(|| generator::run(&bed.tx.iface, &options, stop))
    };
    for run in 1..=runs {
        let stop = AtomicBool::new(false);
        let (capture, sent) = std::thread::scope(|scope| -> Result<_, Failed> {
            // Each side stops the other, also after an error.
            let capturing = scope.spawn(|| {
                let captured = bed.rx.run(|| capture(&bed.rx.iface, &stop));
                stop.store(true, Ordering::Relaxed);
                captured
            });
            std::thread::sleep(Duration::from_millis(100));
            let sent = generate(&stop);
            stop.store(true, Ordering::Relaxed);
            Ok((capturing.join().expect("the engine")??, sent??))
        })?;
        let (text, seconds, captured) = capture;
        let rate = captured as f64 / seconds / 1e6;
        println!("run {run} af_packet: {rate:.2} Mpps of {:.2} sent; {text}", sent.mpps());

        let mut command = Command::new("tcpdump");
        command.args(["-i", &bed.rx.iface, "-w", "/dev/null", "-B", "32768", "-n"]);
        let mut pinned = Command::new("taskset");
        pinned.args(["-c", "1"]).arg(command.get_program()).args(command.get_args());
        pinned.stderr(Stdio::piped());
        let mut tcpdump = bed.rx.spawn(pinned)?;
        std::thread::sleep(Duration::from_millis(500));
        let stop = AtomicBool::new(false);
        let sent = std::thread::scope(|scope| {
            let sending = scope.spawn(|| generate(&stop));
            std::thread::sleep(RUN);
            stop.store(true, Ordering::Relaxed);
            sending.join().expect("the generator")
        })??;
        tcpdump.signal(libc::SIGINT);
        tcpdump.wait_for(Duration::from_secs(5));
        let mut text = String::new();
        if let Some(mut stderr) = tcpdump.stderr.take() {
            std::io::Read::read_to_string(&mut stderr, &mut text)?;
        }
        let captured = text.lines().find_map(|line| line.strip_suffix(" packets captured"));
        let captured: f64 = captured.ok_or_else(|| format!("tcpdump: {text}"))?.parse()?;
        let rate = captured / sent.duration.as_secs_f64() / 1e6;
        let text = text.lines().skip(1).collect::<Vec<_>>().join(", ");
        println!("run {run} tcpdump:   {rate:.2} Mpps of {:.2} sent; {text}", sent.mpps());
    }
    Ok(())
}

/// Captures for the length of a run, beginning with the first frame; then stops the generator. If `stop` is set before
/// the first frame, there is none to wait for.
fn capture(iface: &str, stop: &AtomicBool) -> Result<(String, f64, u64), CaptureError> {
    pin(1);
    let mut source = AfPacket::open(iface, setup())?;
    source.start()?;
    while source.ledger()?.offered == 0 && !stop.load(Ordering::Relaxed) {
        source.pump(Duration::from_millis(1))?;
    }
    let begin = Instant::now();
    while begin.elapsed() < RUN {
        source.pump(Duration::from_millis(20))?;
    }
    let (seconds, captured) = (begin.elapsed().as_secs_f64(), source.ledger()?.captured);
    stop.store(true, Ordering::Relaxed);
    let ledger = source.finish()?;
    Ok((ledger.to_string(), seconds, captured))
}
