//! Preallocation of space beyond a file's end, and truncation of unused space.

use std::sync::Arc;

use weir_disk::{Bytes, Disk};

use super::super::Shared;
use super::super::housekeeping::Job;
use super::{Asked, Stream};

impl<D: Disk> Stream<D> {
    /// Reserves `length` bytes at the end of a file, and returns their offset. Requests a preallocation if the file
    /// needs one.
    pub(super) fn extend(&mut self, id: u64, length: usize, shared: &mut Shared<D>) -> Option<u64> {
        let file = self.files.get_mut(&id)?;
        let (before, volume) = (file.taken(), file.volume);
        let ahead = file.ahead_of(length, shared.volumes.file_bytes());
        let at = file.end;
        file.end += length as u64;
        if let Some((at, bytes)) = ahead
            && shared.volumes.may_preallocate(volume)
        {
            let end = at + bytes;
            file.set_ahead(end);
            file.pending += 1;
            shared.volumes.begin(volume, 0);
            let ticket = shared.ticket(self.id, Asked::Preallocation { file: id, end });
            shared.disk.write(&file.file, at, Bytes::Preallocate { bytes }, ticket);
        }
        shared.volumes.grow(volume, file.taken() - before);
        Some(at)
    }

    /// Records the result of a preallocation up to `end`.
    pub fn preallocated(&mut self, id: u64, end: u64, is_done: bool, shared: &mut Shared<D>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let before = file.taken();
        file.preallocated(end, is_done);
        shared.volumes.end(file.volume, 0, false);
        shared.volumes.shrink(file.volume, before - file.taken());
        self.release(id);
    }

    /// Truncates files to which no large pieces are being written at the end of their data, so that readers of the
    /// open file of a quiet link do not see preallocated zeros.
    pub fn cut_idle_files(&mut self, shared: &mut Shared<D>) {
        for (id, file) in self.files.iter_mut().filter(|(_, file)| !file.is_closing) {
            if !shared.volumes.has_failed(file.volume) && file.is_idle() {
                file.is_being_cut = true;
                let (stream, id, length) = (self.id, *id, file.end);
                let job = Job::Cut { stream, id, file: Arc::clone(&file.file), length };
                shared.volumes.ask(file.volume, job);
            }
        }
    }

    /// Records the result of a truncation.
    pub fn was_cut(&mut self, id: u64, is_done: bool, shared: &mut Shared<D>) {
        let Some(file) = self.files.get_mut(&id) else { return };
        let before = file.taken();
        file.was_cut(is_done);
        shared.volumes.shrink(file.volume, before - file.taken());
    }
}
