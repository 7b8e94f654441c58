//! Deletion of files for a quota, or because the file system is full before the quota is reached.

use std::io;
use std::time::Instant;

use weir_disk::Disk;

use super::Volume;
use super::directory::lock_unread;
use crate::limits::{DELETE_AHEAD_BYTES, FRUITLESS_DELETIONS_MAX};
use crate::recorder::housekeeping::{Job, Outcome, Past};

impl<D: Disk> Volume<D> {
    /// Deletes the oldest files until all files are within the quota, with a margin for the bytes that are written
    /// until the deletion is over.
    pub(super) fn keep_quota(&mut self, file_bytes: u64) {
        let Some(quota) = self.quota else { return };
        // In steps, a deletion takes about as long as it takes to write another file.
        let ahead = match self.housekeeping.discards() {
            true => (DELETE_AHEAD_BYTES + file_bytes).min(quota / 16),
            false => DELETE_AHEAD_BYTES.min(quota / 32),
        };
        let most = quota - ahead;
        while self.recorded.saturating_sub(self.deleting_bytes) > most && self.delete_oldest() {}
        self.note_waiting();
    }

    /// Tells the thread to delete fast while writes wait for deletions, or while the quota is exceeded.
    pub(super) fn note_waiting(&self) {
        let is_exceeded = self.quota.is_some_and(|quota| self.recorded > quota);
        self.housekeeping.set_waited_for(self.is_full || self.is_ending || is_exceeded);
    }

    /// Returns whether files may be deleted because of this error.
    pub(super) fn may_delete(&self, error: &io::Error) -> bool {
        let is_full = error.kind() == io::ErrorKind::StorageFull;
        is_full && self.quota.is_some() && self.error.is_none()
    }

    /// Begins to delete the oldest file that is not being read. Returns `false` if there is none.
    pub(super) fn delete_oldest(&mut self) -> bool {
        for at in 0..self.past.len() {
            let own = &mut self.past[at];
            if own.is_kept {
                continue;
            }
            let Ok(lock) = lock_unread(&own.path) else { continue };
            own.lock = lock;
            let Some(past) = self.past.remove(at) else { return false };
            self.deleting_bytes += past.bytes;
            self.deleting += 1;
            self.touch();
            self.housekeeping.ask(Job::Delete(past));
            return true;
        }
        false
    }

    /// Records the result of a job. Returns the result of a truncation, which belongs to a stream.
    pub(super) fn take(&mut self, outcome: Outcome) -> Option<(usize, u64, io::Result<()>)> {
        self.moved = Instant::now();
        match outcome {
            Outcome::Cut { stream, id, result } => return Some((stream, id, result)),
            Outcome::Completed { path, bytes, planned, result } => {
                self.recorded = (self.recorded + bytes).saturating_sub(planned);
                // An empty file was removed.
                if bytes > 0 {
                    self.past.push_back(Past { path, bytes, lock: None, is_kept: false });
                }
                if let Err(error) = result {
                    self.fail(error);
                }
            }
            Outcome::Deleted { past, has_freed, result } => {
                self.deleting_bytes -= past.bytes;
                self.deleting -= 1;
                if result.is_err() {
                    self.past.push_front(Past { is_kept: true, ..past });
                } else {
                    self.deletions += 1;
                    self.recorded = self.recorded.saturating_sub(past.bytes);
                    self.report.deleted_files += 1;
                    self.report.deleted_bytes += past.bytes;
                }
                self.deleted(has_freed);
            }
        }
        None
    }

    /// Records that a deletion is over. If writes wait for it and it freed nothing (because a snapshot also has the
    /// blocks), more deletions would only destroy recorded data.
    pub(super) fn deleted(&mut self, has_freed: bool) {
        let is_full = self.is_full;
        // While no write waits, other writes change the free space, so it proves nothing.
        self.fruitless = if has_freed || !is_full { 0 } else { self.fruitless + 1 };
        if self.deleting == 0 {
            self.is_full = false;
        }
        self.note_waiting();
        if is_full && self.fruitless >= FRUITLESS_DELETIONS_MAX {
            let text = format!(
                "the file system is full, and {} deleted files freed no space on it",
                self.fruitless
            );
            self.fail(io::Error::new(io::ErrorKind::StorageFull, text));
        }
    }
}
