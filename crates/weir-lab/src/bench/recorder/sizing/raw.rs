//! The disk alone: sequential writes as the recorder makes them, of memory that does not change.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use weir_disk::{Buffer, Bytes, Disk, How, Ticket};

use super::super::fio::Written;
use crate::bench::child::cpu_ns;
use crate::bench::context::stopped;
use crate::{Error, Result};

/// As the recorder has them on a volume.
const WRITES: u64 = 16;

/// Writes blocks one behind the other into a new file for `seconds`, or until `stop` is set; behind `bytes_max` it
/// begins anew at the front, as fio does. The file is deleted. The second value is what the disk says of how it wrote.
///
/// # Errors
/// [`Error::Measure`] with what the kernel said.
pub(super) fn write(
    folder: &Path,
    block_bytes: u64,
    seconds: f64,
    bytes_max: u64,
    stop: &AtomicBool,
) -> Result<(Written, Option<String>)> {
    let path = folder.join("raw");
    let failed = |error: std::io::Error| Error::Measure {
        what: "writing to the disk".to_owned(),
        reason: error.to_string(),
    };
    let mut disk = weir_disk::open(folder, How::Best).map_err(failed)?;
    let file = disk.create(&path, 0o600).map_err(failed)?;
    let mut spare: Vec<Bytes> = (0..WRITES).map(|_| Bytes::Own(filled(block_bytes))).collect();
    let blocks_max = (bytes_max / block_bytes).max(WRITES);
    let (mut asked, mut written) = (0u64, 0u64);
    let mut over = Vec::new();
    let mut result = Ok(());
    let cpu_before = cpu_ns(std::process::id());
    let begun = Instant::now();
    loop {
        let go_on = result.is_ok() && !stopped(stop) && begun.elapsed().as_secs_f64() < seconds;
        if go_on {
            for bytes in spare.drain(..) {
                disk.write(&file, asked % blocks_max * block_bytes, bytes, Ticket(asked));
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
    let elapsed = begun.elapsed().as_secs_f64();
    let cpu_after = cpu_ns(std::process::id());
    _ = std::fs::remove_file(&path);
    result?;
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

/// Bytes that no disk makes smaller or leaves out: a sequence of xorshift (Marsaglia 2003).
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
    fn a_stop_before_the_first_write_is_no_rate() {
        let folder = tempfile::tempdir().unwrap();
        assert!(write(folder.path(), 65536, 9.0, 1 << 20, &AtomicBool::new(true)).is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
