//! Reserves huge pages for a test.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::PathBuf;

/// Directory of the settings for huge pages of 2 MiB. Source: Documentation/admin-guide/mm/hugetlbpage.rst.
const FOLDER: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB";
const SETTING: &str = "nr_hugepages";

/// Additional huge pages of 2 MiB, reserved until this value is dropped. The setting applies to the whole machine, so a
/// reservation first waits until no other test has one.
#[derive(Debug)]
pub struct HugePages {
    before: u64,
    /// The file whose lock is held.
    _setting: File,
}

impl HugePages {
    /// Reserves the pages.
    ///
    /// # Errors
    /// The reason why the pages cannot be reserved, as a text for a skipped test.
    pub fn reserve(pages: u64) -> Result<HugePages, &'static str> {
        let setting = File::open(file(SETTING)).map_err(|_| "the kernel has no pages of 2 MiB")?;
        // SAFETY: no pointers are passed. The descriptor lives as long as the returned value.
        let locked = unsafe { libc::flock(setting.as_raw_fd(), libc::LOCK_EX) };
        let before = count(SETTING).filter(|_| locked == 0).ok_or("the setting cannot be read")?;
        let own = HugePages { before, _setting: setting };
        let wanted = before + pages;
        fs::write(file(SETTING), wanted.to_string()).map_err(|_| "needs root, to reserve pages")?;
        // The kernel reserves fewer pages if it does not find enough memory.
        match count(SETTING) {
            Some(have) if have >= wanted => Ok(own),
            _ => Err("memory is in pieces smaller than huge pages"),
        }
    }

    /// Returns the number of huge pages that are not in use.
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
