//! The files of a run, and the quota for them.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files of a run. If they have too many bytes together, the oldest are deleted. Clones share the files; there is
/// a clone for each file that is open at the same time.
#[derive(Clone, Debug)]
pub(super) struct RunFiles {
    shared: Arc<Mutex<Shared>>,
    /// The index of this clone's file in `Shared::open`.
    own: usize,
}

#[derive(Debug)]
struct Shared {
    bytes_max: u64,
    /// Complete files and their bytes, oldest first.
    complete: VecDeque<(PathBuf, u64)>,
    /// Bytes of the files that are being written.
    open: Vec<u64>,
}

impl RunFiles {
    /// Creates the files of a run, which may have `bytes_max` bytes together.
    pub(super) fn new(bytes_max: u64) -> RunFiles {
        let shared = Shared { bytes_max, complete: VecDeque::new(), open: vec![0] };
        RunFiles { shared: Arc::new(Mutex::new(shared)), own: 0 }
    }

    /// Returns a clone for one more file that is open at the same time.
    pub(super) fn another(&self) -> RunFiles {
        let mut shared = self.lock();
        shared.open.push(0);
        RunFiles { shared: Arc::clone(&self.shared), own: shared.open.len() - 1 }
    }

    /// Records that a file is begun, which replaces a complete file of the same name.
    pub(super) fn begin(&self, path: &Path) {
        self.lock().complete.retain(|(complete, _)| complete != path);
    }

    /// Records that the open file will have `bytes` bytes, and deletes the oldest complete files if the quota would
    /// be exceeded.
    pub(super) fn grow(&self, bytes: u64) {
        let mut shared = self.lock();
        shared.open[self.own] = bytes;
        while shared.bytes() > shared.bytes_max {
            let Some((oldest, _)) = shared.complete.pop_front() else { return };
            // If another process has deleted or moved the file, the result is the same.
            let _ = fs::remove_file(oldest);
        }
    }

    /// Records that the open file is complete and has `bytes` bytes.
    pub(super) fn complete(&self, path: PathBuf, bytes: u64) {
        let mut shared = self.lock();
        shared.open[self.own] = 0;
        shared.complete.push_back((path, bytes));
    }

    /// Locks the data, which is valid even if a thread panicked while it held the lock.
    fn lock(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    fn bytes(&self) -> u64 {
        self.complete.iter().map(|(_, bytes)| bytes).chain(&self.open).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_go_and_none_that_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let there = |name: &str| path(name).exists();
        let one = RunFiles::new(100);
        let two = one.another();
        ["a", "b", "c"].into_iter().for_each(|name| fs::write(path(name), "x").unwrap());
        one.complete(path("a"), 40);
        two.complete(path("b"), 40);
        one.grow(20);
        assert!(there("a") && there("b"));
        two.grow(1);
        assert!(!there("a") && there("b"), "101 bytes");
        // It is written anew, so it is no longer an old one.
        two.begin(&path("b"));
        one.grow(100);
        two.grow(200);
        assert!(there("b") && there("c"), "there is nothing to delete");
        one.complete(path("c"), 50);
        fs::remove_file(path("c")).unwrap();
        one.grow(1);
        assert_eq!(one.lock().complete.len(), 0);
    }
}
