//! Runs `fio`: measures the write rate of the file system without a capture.

use std::path::Path;
use std::process::{Command, Stdio};

use serde::Deserialize;

use crate::{Error, Result};

pub(super) const FIO: &str = "fio, bs=1M or 4M, iodepth 16";
/// The length of a block of a ring, and of the longest write of the recorder.
pub(super) const BLOCK_BYTES: u64 = 1 << 20;
pub(super) const RUN_BYTES: u64 = 4 << 20;

/// The fields of `--output-format=json` that are used here.
#[derive(Deserialize)]
struct Output {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    write: Write,
    /// CPU time in percent of the run time.
    usr_cpu: f64,
    sys_cpu: f64,
}

#[derive(Deserialize)]
struct Write {
    io_bytes: u64,
    /// Run time in milliseconds.
    runtime: u64,
}

/// Result of a run of `fio`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Written {
    pub(super) bytes_per_second: f64,
    pub(super) cpu_seconds_per_gb: f64,
}

/// Writes blocks of `block_bytes` in sequence by io_uring with O_DIRECT: one job with 16 writes in flight, into a new
/// file. At `bytes_max` it starts again at the beginning of the file. The file is deleted afterwards.
///
/// # Errors
/// [`Error::Measure`] with fio's message.
pub(super) fn write(
    folder: &Path,
    block_bytes: u64,
    seconds: f64,
    bytes_max: u64,
) -> Result<Written> {
    let file = folder.join("fio");
    let runtime = format!("--runtime={}ms", (seconds * 1e3) as u64);
    let output = Command::new("fio")
        .args(["--name=bench", "--rw=write", "--ioengine=io_uring", "--direct=1"])
        .args(["--iodepth=16", "--numjobs=1", "--fallocate=none", "--time_based"])
        .args([
            &format!("--bs={block_bytes}"),
            &runtime,
            &format!("--size={bytes_max}"),
            "--output-format=json",
        ])
        .arg(format!("--filename={}", file.display()))
        .stdin(Stdio::null())
        .output();
    _ = std::fs::remove_file(&file);
    said(output)
}

/// Writes in the same way by two jobs with eight writes in flight each, into files of 1 GiB that are deleted once they
/// are written, as by a recorder with a quota. A file system that discards deleted blocks is slower then.
///
/// # Errors
/// [`Error::Measure`] with fio's message.
pub(super) fn write_and_delete(folder: &Path, seconds: f64) -> Result<Written> {
    let runtime = format!("--runtime={}ms", (seconds * 1e3) as u64);
    let output = Command::new("fio")
        .args(["--name=bench", "--rw=write", "--ioengine=io_uring", "--direct=1", "--iodepth=8"])
        .args([
            "--numjobs=2",
            "--group_reporting",
            "--fallocate=native",
            "--size=1G",
            "--loops=10000",
        ])
        .args(["--unlink_each_loop=1", "--unlink=1", "--output-format=json", &runtime])
        .args([format!("--bs={BLOCK_BYTES}"), format!("--directory={}", folder.display())])
        .stdin(Stdio::null())
        .output();
    said(output)
}

fn said(output: std::io::Result<std::process::Output>) -> Result<Written> {
    let output = output.map_err(|error| failed(error.to_string()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    read(&text).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        failed(said.lines().chain(text.lines()).next().unwrap_or("it said nothing").to_owned())
    })
}

/// Parses the output of fio. A note may precede the JSON object.
fn read(text: &str) -> Option<Written> {
    let output: Output = serde_json::from_str(&text[text.find('{')?..]).ok()?;
    let job = output.jobs.first().filter(|job| job.error == 0 && job.write.runtime > 0)?;
    let seconds = job.write.runtime as f64 / 1e3;
    let bytes = job.write.io_bytes as f64;
    Some(Written {
        bytes_per_second: bytes / seconds,
        cpu_seconds_per_gb: (job.usr_cpu + job.sys_cpu) / 100.0 * seconds / (bytes / 1e9),
    })
}

fn failed(reason: String) -> Error {
    Error::Measure { what: FIO.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_and_time_are_read_and_errors_are_no_rate() {
        let text = |error| {
            format!(
                "note: both iodepth >= 1\n{{\"jobs\":[{{\"error\":{error},\"usr_cpu\":5.0,\"sys_cpu\":15.0,\
                 \"write\":{{\"io_bytes\":4000000000,\"runtime\":2000}}}}]}}"
            )
        };
        let written = read(&text(0)).unwrap();
        assert_eq!(written, Written { bytes_per_second: 2e9, cpu_seconds_per_gb: 0.1 });
        assert_eq!(read(&text(28)), None);
        assert_eq!(read("fio: unknown option\n"), None);
    }
}
