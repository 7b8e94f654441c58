//! Measures writes from ring memory: GB/s and CPU time, by size and number of concurrent writes, beside
//! `fio` on the same file system in the same run. `cargo bench -p weir-disk`; `WEIR_BENCH_DIR` names a
//! directory other than that of the build.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_disk::{Bytes, Disk, Files, How, Ticket};
use weir_frame::pcapng::Interface;
use weir_ring::memory::create_memfd;
use weir_ring::{Clock, Mapping, RingSpec, WriterKind};

const TOTAL: u64 = 2 << 30;

fn main() {
    let directory = std::env::var_os("WEIR_BENCH_DIR").map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| PathBuf::from(env!("CARGO_TARGET_TMPDIR")));
    let spec = RingSpec {
        data_blocks: 64,
        interfaces: vec![Interface::default()],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    let ring = create_memfd("disk-bench", &spec).expect("memory for a ring");
    println!("{:<10} {:>8} {:>6} {:>8} {:>12}", "by", "KiB", "depth", "GB/s", "CPU-s per GB");
    for (kib, depth) in [(256, 8), (1024, 1), (1024, 4), (1024, 8), (4096, 4)] {
        let uring = write(&directory, How::Uring, ring.memory(), kib << 10, depth);
        line("io_uring", kib, depth, uring);
        if let Some(fio) = fio(&directory, kib, depth) {
            println!("{:<10} {kib:>8} {depth:>6} {fio:>8.2}", "fio");
        }
    }
    line("pwrite", 1024, 8, write(&directory, How::Plain, ring.memory(), 1 << 20, 8));
}

fn line(by: &str, kib: usize, depth: usize, (time, cpu): (Duration, Duration)) {
    let gigabytes = TOTAL as f64 / 1e9;
    let (rate, cpu) = (gigabytes / time.as_secs_f64(), cpu.as_secs_f64() / gigabytes);
    println!("{by:<10} {kib:>8} {depth:>6} {rate:>8.2} {cpu:>12.3}");
}

fn write(
    directory: &Path,
    how: How,
    memory: &Arc<Mapping>,
    bytes: usize,
    depth: usize,
) -> (Duration, Duration) {
    let path = directory.join("weir-disk-bench");
    let _ = std::fs::remove_file(&path);
    let mut disk = weir_disk::open(directory, how).expect("a disk");
    let file = disk.create(&path, 0o600).expect("a file");
    let (start, cpu) = (Instant::now(), cpu_time());
    let (mut at, mut over) = (0, Vec::new());
    while at < TOTAL || disk.pending() > 0 {
        while at < TOTAL && disk.pending() < depth {
            let from = (1 << 20) + (at as usize % (64 << 20));
            let part = Bytes::Ring { memory: Arc::clone(memory), at: from, bytes };
            disk.write(&file, at, part, Ticket(0));
            at += bytes as u64;
        }
        disk.completed(true, &mut over);
        over.drain(..).for_each(|one| one.result.expect("it is written"));
    }
    disk.files().sync(&file).expect("it is on the disk");
    let took = (start.elapsed(), cpu_time().saturating_sub(cpu));
    std::fs::remove_file(&path).expect("it was there");
    took
}

/// CPU time of this process and its threads, including io_uring's workers.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// GB/s of `fio`; `None` if it is not installed.
fn fio(directory: &Path, kib: usize, depth: usize) -> Option<f64> {
    let path = directory.join("weir-disk-bench-fio");
    let output = Command::new("fio")
        .args(["--name=x", "--rw=write", "--ioengine=io_uring", "--direct=1", "--fallocate=none"])
        .args(["--output-format=terse", "--terse-version=3", "--end_fsync=1"])
        .arg(format!("--size={TOTAL}"))
        .arg(format!("--bs={kib}k"))
        .arg(format!("--iodepth={depth}"))
        .arg(format!("--filename={}", path.display()))
        .output()
        .ok()?;
    let _ = std::fs::remove_file(&path);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let kib_per_second: f64 = text.split(';').nth(47)?.parse().ok()?;
    Some(kib_per_second * 1024.0 / 1e9)
}
