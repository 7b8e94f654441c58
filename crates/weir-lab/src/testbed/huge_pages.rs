//! Huge pages reserved for a test.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Where the kernel has its pages of 2 MiB. Source: Documentation/admin-guide/mm/hugetlbpage.rst.
const FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const SETTING: &str = "nr_hugepages";

/// So many huge pages of 2 MiB more than before, until this is dropped. The machine has this setting once: who reserves
/// some waits until no other test has any.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    /// Locked.
    _setting: File,
}

impl HugePages {
    /// Reserves them.
    ///
    /// # Errors
    /// Why there are none, in words for a skipped test.
    pub fn reserve(pages: u64) -> Result<HugePages, &'static str> {
        let setting = File::open(file(SETTING)).map_err(|_| "the kernel has no pages of 2 MiB")?;
        // SAFETY: no pointers are passed; the descriptor lives as long as what is returned.
        let locked = unsafe { libc::flock(setting.as_raw_fd(), libc::LOCK_EX) };
        let before = count(SETTING).filter(|_| locked == 0).ok_or("the setting cannot be read")?;
        let own = HugePages { before, _setting: setting };
        let wanted = before + pages;
        fs::write(file(SETTING), wanted.to_string()).map_err(|_| "needs root, to reserve pages")?;
        // The kernel reserves what it finds.
        match count(SETTING) {
            Some(have) if have >= wanted => Ok(own),
            _ => Err("memory is in pieces smaller than huge pages"),
        }
    }

    /// Those that nobody has taken.
    #[must_use]
    pub fn free(&self) -> u64 {
        count("free_hugepages").unwrap_or(0)
    }
}

impl Drop for HugePages {
    fn drop(&mut self) {
        let _ = fs::write(file(SETTING), self.before.to_string());
    }
}

fn file(name: &str) -> PathBuf {
    PathBuf::from(FOLDER).join(name)
}

fn count(name: &str) -> Option<u64> {
    fs::read_to_string(file(name)).ok()?.trim().parse().ok()
}
