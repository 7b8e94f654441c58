//! The directory into which the bench records: on a real disk, with enough space, and idle before each measurement.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_disk::{Files, KernelFiles};

use crate::bench::context::Context;
use crate::{Error, Result};

/// How long a disk must be idle before a measurement, and the longest wait for that.
const IDLE: Duration = Duration::from_millis(500);
const IDLE_LIMIT: Duration = Duration::from_secs(20);
/// File systems that are not on a disk.
const IN_MEMORY: [&str; 2] = ["tmpfs", "ramfs"];

/// A new directory of the bench. Dropping it deletes the directory with its contents.
pub(super) struct Place {
    folder: TempDir,
    /// File system, device and mount options.
    pub(super) on: String,
    /// `MAJOR:MINOR` of the device.
    device: String,
}

impl Place {
    /// Creates the directory below `--disk DIR`; by default beside the program, else below `$TMPDIR`.
    ///
    /// # Errors
    /// [`Error::Measure`] if none of these is on a disk.
    pub(super) fn new(context: &Context) -> Result<Place> {
        let beside = context.options.weir.parent().map(Path::to_owned);
        let parents: Vec<PathBuf> = match &context.options.disk {
            Some(disk) => vec![disk.clone()],
            None => beside.into_iter().chain([std::env::temp_dir()]).collect(),
        };
        let mut reason = String::new();
        for parent in parents {
            match Place::below(&parent) {
                Ok(place) => return Ok(place),
                Err(error) => reason = format!("{}: {error}", parent.display()),
            }
        }
        Err(failed(format!("{reason}; name a directory on a disk with --disk DIR")))
    }

    pub(super) fn below(parent: &Path) -> std::result::Result<Place, String> {
        let folder = tempfile::Builder::new().prefix("weir-bench-").tempdir_in(parent);
        let folder = folder.map_err(|error| error.to_string())?;
        let device = folder.path().metadata().map_err(|error| error.to_string())?.dev();
        let device = format!("{}:{}", libc::major(device), libc::minor(device));
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let (kind, on) = mount_of(&mounts, &device).ok_or("on no device of its own")?;
        if IN_MEMORY.contains(&kind.as_str()) {
            return Err(format!("{kind} is in memory"));
        }
        Ok(Place { folder, on, device })
    }

    pub(super) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Creates a directory in this one, which is deleted when the handle is dropped.
    ///
    /// # Errors
    /// [`Error::Measure`] if the directory cannot be created.
    pub(super) fn folder(&self) -> Result<TempDir> {
        tempfile::tempdir_in(self.path()).map_err(|error| failed(error.to_string()))
    }

    /// Checks that `bytes` and a quarter more fit.
    ///
    /// # Errors
    /// [`Error::Measure`] if there is not enough space.
    pub(super) fn needs(&self, bytes: u64) -> Result<()> {
        let space = KernelFiles.space(self.path()).map_err(|error| failed(error.to_string()))?;
        let free = space.free;
        if free < bytes / 4 * 5 {
            let gb = |bytes: u64| bytes as f64 / 1e9;
            let reason = format!("{:.1} GB needed, {:.1} GB free", gb(bytes / 4 * 5), gb(free));
            return Err(failed(reason));
        }
        Ok(())
    }

    /// Writes cached data and waits until the disk is idle, at most for [`IDLE_LIMIT`]. Some file
    /// systems discard the blocks of deleted files later.
    pub(super) fn settle(&self) {
        // `-f` is the short option: busybox has no long one.
        _ = Command::new("sync").arg("-f").arg(self.path()).status();
        let (begun, mut since) = (Instant::now(), Instant::now());
        let mut before = self.work();
        while since.elapsed() < IDLE && begun.elapsed() < IDLE_LIMIT {
            sleep(Duration::from_millis(50));
            let now = self.work();
            if now != before || now.is_some_and(|(_, under_way)| under_way > 0) {
                since = Instant::now();
            }
            before = now;
        }
    }

    fn work(&self) -> Option<(u64, u64)> {
        work_of(&fs::read_to_string("/proc/diskstats").ok()?, &self.device)
    }
}

/// Returns the number of finished writes and discards, and the requests in flight, of a device in `/proc/diskstats`.
fn work_of(stats: &str, device: &str) -> Option<(u64, u64)> {
    let (major, minor) = device.split_once(':')?;
    let line = stats.lines().find(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(major) && words.next() == Some(minor)
    })?;
    let number = |at: usize| line.split_whitespace().nth(at).and_then(|word| word.parse().ok());
    // Kernels before 4.18 have no counter of discards.
    Some((number(7)? + number(14).unwrap_or(0), number(11)?))
}

/// Returns the file system type, and a description in one line, of the device with this number in
/// `/proc/self/mountinfo`.
fn mount_of(mounts: &str, device: &str) -> Option<(String, String)> {
    let line = mounts.lines().find(|line| line.split_whitespace().nth(2) == Some(device))?;
    let (left, right) = line.split_once(" - ")?;
    let mut words = right.split_whitespace();
    let (kind, source, options) = (words.next()?, words.next()?, words.next().unwrap_or(""));
    let at = left.split_whitespace().nth(4)?;
    Some((kind.to_owned(), format!("{kind} on {source} at {at} ({options})")))
}

pub(super) fn failed(reason: String) -> Error {
    Error::Measure { what: "a directory to record into".to_owned(), reason }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_found_by_its_device() {
        let mounts = "22 1 254:0 / / rw,noatime shared:1 - ext4 /dev/vda rw,discard\n\
            23 22 0:5 / /dev/shm rw - tmpfs tmpfs rw,size=1g\n";
        let (kind, on) = mount_of(mounts, "254:0").unwrap();
        assert_eq!((kind.as_str(), on.as_str()), ("ext4", "ext4 on /dev/vda at / (rw,discard)"));
        assert_eq!(mount_of(mounts, "0:5").unwrap().0, "tmpfs");
        assert_eq!(mount_of(mounts, "8:0"), None);
    }

    #[test]
    fn memory_is_no_disk() {
        let error = Place::below(Path::new("/dev/shm")).err().unwrap();
        assert!(error.contains("is in memory"), "{error}");
    }

    #[test]
    fn writes_and_discards_are_work() {
        let stats = " 254       0 vda 10 0 80 5 20 0 160 9 3 7 8 4 0 32 1 0 0\n   7 0 loop0 0 0 0 0 0 0 0 0 0 0 0\n";
        assert_eq!(work_of(stats, "254:0"), Some((24, 3)));
        assert_eq!(work_of(stats, "7:0"), Some((0, 0)));
        assert_eq!(work_of(stats, "8:0"), None);
    }
}
