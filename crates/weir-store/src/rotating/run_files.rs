//! The files of a run, as far as a quota is concerned.

use std::collections::VecDeque;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The files of a run, whose oldest are deleted when they have too many bytes together. Clones share them: one for each
/// file that is open.
#[derive(Clone, Debug)]
pub(super) struct RunFiles {
    shared: Arc<Mutex<Shared>>,
    /// Its own place in `Shared::open`.
    own: usize,
}

#[derive(Debug)]
struct Shared {
    bytes_max: u64,
    /// Complete ones and their bytes, oldest first.
    complete: VecDeque<(PathBuf, u64)>,
    /// Bytes of those that are written.
    open: Vec<u64>,
}

impl RunFiles {
    /// For files that have so many bytes together at most.
    pub(super) fn new(bytes_max: u64) -> RunFiles {
        let shared = Shared { bytes_max, complete: VecDeque::new(), open: vec![0] };
        RunFiles { shared: Arc::new(Mutex::new(shared)), own: 0 }
    }

    /// For one more file that is open at the same time.
    pub(super) fn another(&self) -> RunFiles {
        let mut shared = self.lock();
        shared.open.push(0);
        RunFiles { shared: Arc::clone(&self.shared), own: shared.open.len() - 1 }
    }

    /// A file is begun: one of this name is replaced.
    pub(super) fn begin(&self, path: &Path) {
        self.lock().complete.retain(|(complete, _)| complete != path);
    }

    /// The open file is about to have so many bytes: the oldest are deleted that there is no room for then.
    pub(super) fn grow(&self, bytes: u64) {
        let mut shared = self.lock();
        shared.open[self.own] = bytes;
        while shared.bytes() > shared.bytes_max {
            let Some((oldest, _)) = shared.complete.pop_front() else { return };
            // Somebody else may have deleted or moved it, which is as good.
            let _ = fs::remove_file(oldest);
        }
    }

    /// The open file is complete, and has so many bytes.
    pub(super) fn complete(&self, path: PathBuf, bytes: u64) {
        let mut shared = self.lock();
        shared.open[self.own] = 0;
        shared.complete.push_back((path, bytes));
    }

    /// The data is valid even if a thread panicked while holding it.
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
