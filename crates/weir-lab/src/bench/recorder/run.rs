//! A run of the recorder: its report, the frames in its files, and the CPU time of its threads.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::Value;
use weir_frame::record::{self, Meta};

use crate::bench::child::{Child, Line};
use crate::bench::context::stopped;
use crate::bench::row::Frames;
use crate::generator::FCS_BYTES;
use crate::{Error, Result};

pub(super) const WEIR: &str = "weir capture gen: --write DIR/";
/// Longest time from the end of the duration to the end of the program, which first writes the contents of the ring.
const END_LIMIT: Duration = Duration::from_secs(40);
/// Interval at which the CPU time of threads is read.
const LOOK: Duration = Duration::from_millis(10);
/// The thread that generates the frames. All other threads belong to the recorder.
const SOURCE_THREAD: &str = "weir-source";

/// The fields of `weir capture --json` that are used here.
#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Said {
    pub(super) duration_s: f64,
    pub(super) offered: u64,
    pub(super) filtered: u64,
    pub(super) drops: BTreeMap<String, u64>,
    /// Present only in a run that records.
    #[serde(default)]
    pub(super) recorder: Recorder,
    pub(super) consumers: Vec<Consumer>,
    pub(super) feeds: Vec<Feed>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Recorder {
    pub(super) bytes: u64,
    pub(super) torn_blocks: u64,
    pub(super) copied_blocks: u64,
    #[serde(default)]
    pub(super) volumes: Vec<Volume>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Volume {
    pub(super) deleted_bytes: u64,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Consumer {
    pub(super) name: String,
    pub(super) delivered: u64,
    pub(super) lapped: u64,
    pub(super) drops: BTreeMap<String, u64>,
}

#[derive(Debug, Clone, Default, Deserialize)]
pub(super) struct Feed {
    pub(super) delivered: u64,
}

impl Said {
    /// Parses the JSON object at the end of the output.
    ///
    /// # Errors
    /// [`Error::Measure`] with the last message if there is no object.
    pub(super) fn of(lines: &[Line]) -> Result<Said> {
        let objects = lines.iter().rev().filter(|line| line.data && line.text.starts_with('{'));
        let said = objects.filter_map(|line| serde_json::from_str(&line.text).ok()).next();
        said.ok_or_else(|| {
            let last = lines.iter().rev().find(|line| !line.text.trim().is_empty());
            failed(last.map_or("it said nothing", |line| line.text.trim()).to_owned())
        })
    }

    /// Returns the account of one consumer. `offered` replaces the source's count if the frames come from a generator
    /// that counts them itself.
    pub(super) fn frames(&self, consumer: &str, offered: Option<u64>, seconds: f64) -> Frames {
        let found = self.consumers.iter().find(|one| one.name == consumer).cloned();
        let Consumer { delivered, lapped, drops: behind, .. } = found.unwrap_or_default();
        let mut drops = self.drops.clone();
        // The source's drops include those of the first consumer. This consumer's own counts
        // replace them.
        drops.extend(behind);
        drops.insert("lapped".to_owned(), lapped);
        if self.filtered > 0 {
            drops.insert("filtered".to_owned(), self.filtered);
        }
        Frames::new(offered.unwrap_or(self.offered), delivered, drops, seconds)
    }
}

/// A finished run.
pub(super) struct RunResult {
    pub(super) said: Said,
    /// CPU time of all threads except those that generate frames, seconds.
    pub(super) cpu_seconds: f64,
}

/// Captures `sources` for `seconds`, or until `stop` is set. Frames are recorded into `to`, or only
/// counted without it.
///
/// # Errors
/// [`Error::Measure`] with the program's message.
pub(super) fn run(
    weir: &Path,
    sources: &[String],
    to: Option<&Path>,
    seconds: f64,
    stop: &AtomicBool,
) -> Result<RunResult> {
    let mut command = Command::new(weir);
    command
        .arg("capture")
        .args(sources)
        .args(["--json", "--ring-size", "256MiB", "--duration", &format!("{seconds:.3}s")])
        .stdin(Stdio::null());
    if let Some(to) = to {
        command.arg("--write").arg(to.join(""));
    }
    let mut child = Child::start_here(WEIR, command)?;
    let (id, begun) = (child.id(), Instant::now());
    let mut interrupted = false;
    let mut threads = BTreeMap::new();
    // The times of a thread vanish when it ends, so the last values that were read count.
    while !child.has_ended() && begun.elapsed().as_secs_f64() < seconds + END_LIMIT.as_secs_f64() {
        threads.extend(threads_of(id));
        if stopped(stop) && !interrupted {
            child.signal(libc::SIGINT);
            interrupted = true;
        }
        sleep(LOOK);
    }
    let said = Said::of(&child.wait(Duration::from_secs(1))?)?;
    let cpu_ns: u64 = threads.into_values().sum();
    Ok(RunResult { said, cpu_seconds: cpu_ns as f64 / 1e9 })
}

/// Returns the CPU time of each thread except those that generate frames, in nanoseconds, by thread id.
pub(super) fn threads_of(id: u32) -> Vec<(String, u64)> {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return Vec::new() };
    let time_of = |thread: fs::DirEntry| {
        let name = fs::read_to_string(thread.path().join("comm")).ok()?;
        if name.trim() == SOURCE_THREAD {
            return None;
        }
        let text = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        let ns = text.split_whitespace().next()?.parse().ok()?;
        Some((thread.file_name().to_string_lossy().into_owned(), ns))
    };
    threads.flatten().filter_map(time_of).collect()
}

/// Returns the number of frames that `weir extract` reads from a directory.
///
/// # Errors
/// [`Error::Measure`] with the program's message.
pub(super) fn extractable(weir: &Path, folder: &Path) -> Result<u64> {
    let output = Command::new(weir)
        .arg("extract")
        .arg(folder)
        .args(["--json", "--write", "/dev/null"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    let found = serde_json::from_slice::<Value>(&output.stdout).ok();
    found.and_then(|found| found["frames"].as_u64()).ok_or_else(|| {
        failed(format!("weir extract: {}", String::from_utf8_lossy(&output.stderr).trim()))
    })
}

/// Returns the bytes of a generated frame's pcapng record, by the frame's size on the wire.
pub(super) fn record_bytes(size_on_wire: u32) -> u64 {
    let frame = vec![0; (size_on_wire - FCS_BYTES) as usize];
    let mut record = Vec::new();
    record::append(&mut record, &Meta { wire_len: frame.len() as u32, ..Meta::default() }, &frame);
    record.len() as u64
}

pub(super) fn failed(reason: String) -> Error {
    Error::Measure { what: WEIR.to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::counted::tests::lines;

    const SAID: &str = concat!(
        r#"{"duration_s":2.0,"offered":100,"filtered":0,"drops":{"ring":0,"store":0},"#,
        r#""recorder":{"bytes":9000,"torn_blocks":1,"copied_blocks":2},"consumers":["#,
        r#"{"name":"record","delivered":80,"lapped":15,"drops":{"ring":0,"store":5}},"#,
        r#"{"name":"count","delivered":100,"lapped":0,"drops":{"ring":0,"store":0}}],"#,
        r#""feeds":[{"delivered":80}]}"#
    );

    #[test]
    fn each_consumer_has_its_own_loss() {
        let said = Said::of(&lines(SAID)).unwrap();
        let frames = said.frames("record", None, 2.0);
        assert_eq!((frames.kept, frames.lapped(), frames.drops["store"]), (80, 15, 5));
        assert_eq!(frames.unaccounted, 0);
        assert!(said.frames("count", None, 2.0).is_whole());
        assert_eq!(said.frames("record", Some(101), 2.0).unaccounted, 1);
        let error = Said::of(&lines("weir: no such directory\n")).unwrap_err().to_string();
        assert!(error.contains("no such directory"), "{error}");
    }

    #[test]
    fn a_record_has_its_header_and_its_padding() {
        assert_eq!(record_bytes(64), 32 + 60);
        assert_eq!(record_bytes(1518), 32 + 1516);
    }

    #[test]
    fn the_times_of_own_threads_are_seen() {
        assert!(threads_of(std::process::id()).iter().any(|(_, ns)| *ns > 0));
        assert!(threads_of(u32::MAX).is_empty());
    }
}
