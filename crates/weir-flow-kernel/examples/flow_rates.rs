//! Cost of counting flows in the kernel: frames of 64 bytes on a veth pair, at XDP, as fast as they are sent.
//!
//! Three programs that end each frame: one that only counts frames, the flow table, and a table of the kernel's own
//! (`BPF_MAP_TYPE_LRU_PERCPU_HASH`) with the same key and counts. Of one flow, and with each frame a new one. The
//! generator is on CPU 0; so is the receiving end, as a veth has it by itself, or it is on CPU 1 (a NAPI thread).
//!
//! `cargo run -p weir-flow-kernel --example flow_rates [ROUNDS] [SECONDS] [one|new]` as root, on a machine with two
//! CPUs or more that does nothing else. The build's profile changes the time of user space, not that of the
//! programs.

use std::mem::MaybeUninit;
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;
use std::{env, error, fs, thread};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use weir_capture::Direction;
use weir_flow::FlowConfig;
use weir_flow_kernel::{Hook, KernelConfig, KernelCounters, KernelTable, now_ns};
use weir_lab::Testbed;
use weir_lab::generator::{self, Flows, GenEngine, GenOptions};

#[allow(missing_docs, clippy::all, clippy::undocumented_unsafe_blocks, dead_code)]
mod skel {
    include!(concat!(env!("OUT_DIR"), "/flow_rates.skel.rs"));
}

type Result<T> = std::result::Result<T, Box<dyn error::Error + Send + Sync>>;

/// Flows of a table, of each CPU.
const FLOWS: u32 = 1 << 16;
const RECORDS: u32 = 1 << 15;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Program {
    Null,
    Table,
    Lru,
}

/// A program that is attached.
enum Counting {
    Table(Box<KernelTable>, u64),
    Plain { counts: MapHandle, _attached: Link },
}

impl Counting {
    fn attach(program: Program, ifindex: u32, iface: &str) -> Result<Counting> {
        if program == Program::Table {
            let config = KernelConfig {
                flow: FlowConfig { flows_max: u64::from(FLOWS), ..FlowConfig::default() },
                hook: Hook::Xdp,
                direction: Direction::In,
                records_max: RECORDS,
                consume: true,
                ..KernelConfig::default()
            };
            return Ok(Counting::Table(Box::new(KernelTable::open(iface, config)?), 0));
        }
        let mut storage = MaybeUninit::uninit();
        let mut open = skel::FlowRatesSkelBuilder::default().open(&mut storage)?;
        open.maps.rate_flows.set_max_entries(FLOWS)?;
        let mut skel = open.load()?;
        let counts = MapHandle::try_from(&skel.maps.rate_counts)?;
        let chosen = match program {
            Program::Lru => &mut skel.progs.weir_rate_lru,
            _ => &mut skel.progs.weir_rate_null,
        };
        let _attached = chosen.attach_xdp(ifindex.cast_signed())?;
        Ok(Counting::Plain { counts, _attached })
    }

    fn poll(&mut self) {
        if let Counting::Table(table, records) = self {
            table.poll(now_ns(), &mut |_| *records += 1);
        }
    }

    /// Frames so far.
    fn frames(&self) -> Result<u64> {
        match self {
            Counting::Table(table, _) => Ok(table.counters().table.frames),
            Counting::Plain { counts, .. } => {
                let cpus = counts.lookup_percpu(&0u32.to_ne_bytes(), MapFlags::ANY)?;
                let word = |cpu: &Vec<u8>| u64::from_ne_bytes(*cpu.first_chunk().expect("a word"));
                Ok(cpus.unwrap_or_default().iter().map(word).sum())
            }
        }
    }

    fn finish(self) -> Result<Option<(KernelCounters, u64)>> {
        let Counting::Table(mut table, mut records) = self else { return Ok(None) };
        let mut packets = 0;
        table.finish(&mut |record| {
            records += 1;
            packets += record.packets();
        })?;
        Ok(Some((table.counters(), records)))
    }
}

/// Moves the receiving end of the pair to CPU 1.
fn pin_receiver(iface: &str) -> Result<()> {
    thread::sleep(Duration::from_millis(20));
    for entry in fs::read_dir("/proc")?.flatten() {
        let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
        if comm.starts_with(&format!("napi/{iface}")) {
            let pid = entry.file_name().to_string_lossy().into_owned();
            let done = Command::new("taskset").args(["-pc", "1", &pid]).output()?;
            if !done.status.success() {
                return Err(String::from_utf8_lossy(&done.stderr).into_owned().into());
            }
        }
    }
    Ok(())
}

struct Run {
    mpps: f64,
    text: String,
}

fn run(
    bed: &Testbed,
    program: Program,
    flows: Flows,
    own_cpu: bool,
    time: Duration,
) -> Result<Run> {
    let (iface, ifindex) = (bed.rx.iface.as_str(), bed.rx.ifindex);
    let mut counting = bed.rx.run(|| Counting::attach(program, ifindex, iface))??;
    if own_cpu {
        pin_receiver(iface)?;
    }
    let options = GenOptions {
        flows,
        duration: Some(time),
        engine: GenEngine::LiveFrames,
        cpus: vec![0],
        ..GenOptions::default()
    };
    let stop = AtomicBool::new(false);
    let (report, counted) = thread::scope(|scope| -> Result<_> {
        let sending = scope.spawn(|| bed.tx.run(|| generator::run(&bed.tx.iface, &options, &stop)));
        while !sending.is_finished() {
            counting.poll();
            thread::sleep(Duration::from_millis(3));
        }
        let report = sending.join().expect("no panic")??;
        thread::sleep(Duration::from_millis(20));
        Ok((report, counting.frames()?))
    })?;
    let mpps = counted as f64 / report.duration.as_secs_f64() / 1e6;
    let mut text = format!(
        "offered {:.3} Mpps, refused {}, sent and not counted {}",
        report.attempted as f64 / report.duration.as_secs_f64() / 1e6,
        report.refused,
        report.sent.abs_diff(counted)
    );
    if let Some((counters, records)) = counting.finish()? {
        let table = counters.table;
        text += &format!(
            "; {records} records, {} evicted, {} lost with {} frames",
            table.evicted, counters.lost_records, counters.lost_packets
        );
    }
    Ok(Run { mpps, text })
}

fn main() -> Result<()> {
    let mut args = env::args().skip(1);
    let rounds: usize = args.next().map_or(Ok(3), |text| text.parse())?;
    let seconds: f64 = args.next().map_or(Ok(1.0), |text| text.parse())?;
    let time = Duration::from_secs_f64(seconds);
    let flows: &[Flows] = match args.next().as_deref() {
        Some("one") => &[Flows::Single],
        Some("new") => &[Flows::Multi],
        _ => &[Flows::Single, Flows::Multi],
    };
    for own_cpu in [false, true] {
        let bed = Testbed::builder().gro(true).build()?;
        if own_cpu {
            let set = format!("echo 1 > /sys/class/net/{}/threaded", bed.rx.iface);
            let done = Command::new("ip")
                .args(["netns", "exec", &bed.rx.netns, "sh", "-c", &set])
                .status()?;
            if !done.success() {
                return Err("this kernel has no NAPI threads (Linux 5.12)".into());
            }
        }
        println!("receiving on {}", if own_cpu { "CPU 1" } else { "the generator's CPU" });
        let mut means = Vec::new();
        for &flows in flows {
            let mut rates = [Vec::new(), Vec::new(), Vec::new()];
            for _ in 0..rounds {
                for (of, program) in
                    [Program::Null, Program::Table, Program::Lru].into_iter().enumerate()
                {
                    let run = run(&bed, program, flows, own_cpu, time)?;
                    println!("  {flows:?} {program:?}: {:.3} Mpps; {}", run.mpps, run.text);
                    rates[of].push(run.mpps);
                }
            }
            means.push((
                flows,
                rates.map(|mut rates| {
                    rates.sort_by(f64::total_cmp);
                    (rates[0], rates[rates.len() / 2], rates[rates.len() - 1])
                }),
            ));
        }
        for (flows, [null, table, lru]) in means {
            println!(
                "{flows:?}: null {null:.3?}, table {table:.3?}, lru {lru:.3?} (lowest, median, highest)"
            );
            println!(
                "  table / null {:.1} %, table / lru {:.2}",
                table.1 / null.1 * 100.0,
                table.1 / lru.1
            );
        }
    }
    Ok(())
}
