//! Measures the disk alone: sequential writes as the recorder makes them, from memory that does not change.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use weir_disk::{AnyDisk, Buffer, Bytes, Disk, DiskFile, How, Ticket};

use super::super::fio::Written;
use crate::bench::child::cpu_ns;
use crate::bench::context::stopped;
use crate::{Error, Result};

/// Writes in flight, as many as the recorder has on a volume.
const WRITES: u64 = 16;

/// Writes blocks in sequence into a new file for `seconds`, or until `stop` is set. At `bytes_max` it continues at the
/// beginning of the file, as fio does. The file is deleted. The second value is the disk's note on its method of
/// writing.
///
/// # Errors
/// [`Error::Measure`] with the kernel's error.
pub(super) fn write(
    folder: &Path,
    block_bytes: u64,
    seconds: f64,
    bytes_max: u64,
    stop: &AtomicBool,
) -> Result<(Written, Option<String>)> {
    let path = folder.join("raw");
    let mut disk = weir_disk::open(folder, How::Best).map_err(failed)?;
    let blocks_max = (bytes_max / block_bytes).max(WRITES);
    let file = disk.create(&path, 0o600).map_err(failed)?;
    let buffers = buffers(block_bytes);
    let cpu_before = cpu_ns(std::process::id());
    let begun = Instant::now();
    let go_on = |_| !stopped(stop) && begun.elapsed().as_secs_f64() < seconds;
    let result = write_blocks(&mut disk, &file, buffers, blocks_max, go_on);
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu_after = cpu_ns(std::process::id());
    _ = std::fs::remove_file(&path);
    let written = result?;
    if written == 0 {
        let reason = "nothing was written before the end".to_owned();
        return Err(Error::Measure { what: "writing to the disk".to_owned(), reason });
    }
    let cpu_ns = cpu_after.unwrap_or(0).saturating_sub(cpu_before.unwrap_or(0));
    let written = Written {
        bytes_per_second: written as f64 / elapsed,
        cpu_seconds_per_gb: cpu_ns as f64 / written as f64,
    };
    Ok((written, disk.note().map(str::to_owned)))
}

/// Writes a new file of `mib` MiB, so that all its blocks are allocated.
///
/// # Errors
/// [`Error::Measure`] with the kernel's error, or once `stop` is set.
pub(super) fn fill(path: &Path, mib: u64, stop: &AtomicBool) -> Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut disk = weir_disk::open(folder, How::Best).map_err(failed)?;
    let file = disk.create(path, 0o600).map_err(failed)?;
    let go_on = |asked| asked < mib && !stopped(stop);
    write_blocks(&mut disk, &file, buffers(1 << 20), mib, go_on)?;
    match stopped(stop) {
        true => Err(failed(std::io::ErrorKind::Interrupted.into())),
        false => Ok(()),
    }
}

/// Creates buffers of one block each, one for each write in flight.
fn buffers(block_bytes: u64) -> Vec<Buffer> {
    (0..WRITES).map(|_| filled(block_bytes)).collect()
}

/// Writes the buffers in sequence into a new file, as long as `go_on` returns true for the number of writes so far.
/// After `blocks_max` blocks it continues at the beginning of the file. Returns the bytes written.
fn write_blocks(
    disk: &mut AnyDisk,
    file: &Arc<DiskFile>,
    buffers: Vec<Buffer>,
    blocks_max: u64,
    go_on: impl Fn(u64) -> bool,
) -> Result<u64> {
    let block_bytes = buffers[0].as_slice().len() as u64;
    let mut spare: Vec<Bytes> = buffers.into_iter().map(Bytes::Own).collect();
    let (mut asked, mut written) = (0u64, 0u64);
    let mut over = Vec::new();
    let mut result = Ok(());
    loop {
        if result.is_ok() && go_on(asked) {
            for bytes in spare.drain(..) {
                disk.write(file, asked % blocks_max * block_bytes, bytes, Ticket(asked));
                asked += 1;
            }
        } else if disk.pending() == 0 {
            break;
        }
        disk.completed(true, &mut over);
        for done in over.drain(..) {
            match done.result {
                Ok(()) => written += block_bytes,
                Err(error) => result = Err(failed(error)),
            }
            spare.push(done.bytes);
        }
    }
    result.map(|()| written)
}

fn failed(error: std::io::Error) -> Error {
    Error::Measure { what: "writing to the disk".to_owned(), reason: error.to_string() }
}

/// Creates a buffer of pseudo-random bytes, which no disk can compress or deduplicate: a sequence of xorshift
/// (Marsaglia 2003).
fn filled(block_bytes: u64) -> Buffer {
    let mut buffer = Buffer::new(block_bytes as usize);
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    for word in buffer.grow(block_bytes as usize).chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        word.copy_from_slice(&state.to_ne_bytes());
    }
    buffer
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_written_over_and_the_file_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let stop = AtomicBool::new(false);
        let (written, _) = write(folder.path(), 65536, 0.05, 1 << 20, &stop).unwrap();
        assert!(written.bytes_per_second > 0.0);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_file_that_is_filled_has_all_its_blocks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("filled");
        fill(&path, 3, &AtomicBool::new(false)).unwrap();
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!(found.len(), 3 << 20);
        assert!(fill(&folder.path().join("stopped"), 3, &AtomicBool::new(true)).is_err());
    }

    #[test]
    fn a_stop_before_the_first_write_is_no_rate() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), 65536, 9.0, 1 << 20, &AtomicBool::new(true)).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
