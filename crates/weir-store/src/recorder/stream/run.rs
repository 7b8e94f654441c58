//! Consecutive whole blocks of a ring that are written by one request. A recorder that is behind the ring's writer
//! finds several blocks at a time; one long write costs less than several short ones.

use std::sync::Arc;

use weir_disk::{ALIGN_BYTES, Buffer, Bytes, Disk};
use weir_ring::{Whole, Words};

use super::super::Shared;
use super::blocks::IN_PLACE;
use super::{State, Stream, What, highest};
use crate::limits::{RUN_BYTES_MAX, VOLUME_WRITES_MAX};

/// Files have at least this number of runs, so that their sizes stay near the limit.
const RUNS_PER_FILE: u64 = 16;

/// Blocks that follow each other in the ring, and are not yet submitted.
#[derive(Default)]
pub struct Run {
    blocks: Vec<(What, Whole)>,
}

impl Run {
    /// Returns the number of blocks.
    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    /// Returns the number of frames in the blocks.
    pub fn frames(&self) -> u64 {
        self.blocks.iter().map(|(_, whole)| whole.frames).sum()
    }

    /// Returns whether this block follows the last one, also in memory.
    fn is_followed_by(&self, next: &Whole) -> bool {
        self.blocks
            .last()
            .is_none_or(|(_, last)| last.block + 1 == next.block && last.at + last.bytes == next.at)
    }
}

impl<D: Disk> Stream<D> {
    /// Adds a block to the run. Submits the run once it has its full length.
    pub(super) fn add_to_run(&mut self, what: What, whole: &Whole, shared: &mut Shared<D>) {
        if !self.run.is_followed_by(whole) {
            self.submit_run(shared);
        }
        self.run.blocks.push((what, *whole));
        if self.run.len() >= self.run_blocks_max(whole.bytes, shared) {
            self.submit_run(shared);
        }
    }

    /// Returns the most blocks in a run. With all writes that a volume accepts in flight, their runs take at most the
    /// share [`IN_PLACE`] of the ring; if they took more, blocks would be copied.
    fn run_blocks_max(&self, block_bytes: usize, shared: &Shared<D>) -> usize {
        let writes = VOLUME_WRITES_MAX * shared.settings.directories.len();
        let of_ring = self.ring.geometry().data_blocks as f64 * IN_PLACE / writes as f64;
        let of_file = shared.volumes.file_bytes() / RUNS_PER_FILE;
        let bytes = usize::try_from(of_file).unwrap_or(usize::MAX).min(RUN_BYTES_MAX);
        (bytes / block_bytes).min(of_ring as usize)
    }

    /// Requests one write of all blocks of the run from ring memory, except for their first page. That page is copied
    /// now and written last: readers of the file stop before it until the whole run is known to be valid.
    pub fn submit_run(&mut self, shared: &mut Shared<D>) {
        let blocks = std::mem::take(&mut self.run.blocks);
        let (Some((_, first)), Some((_, last))) = (blocks.first(), blocks.last()) else { return };
        let (from, bytes) = (first.at, last.at + last.bytes - first.at);
        let highest = blocks.iter().map(|(what, _)| highest(what)).max().unwrap_or(0);
        let mut first_page = shared.spare.take(ALIGN_BYTES);
        first_page.fill_from_ring(&self.ring.memory().words()[from / 8..][..ALIGN_BYTES / 8]);
        let Some((file, at)) = self.place(bytes, highest, shared) else {
            // All volumes have failed, so the data counts as `store` drops.
            return blocks
                .into_iter()
                .for_each(|(what, whole)| self.push_failed(what, whole.bytes));
        };
        let leader = self.push_run(blocks, file, at, first_page);
        let memory = Arc::clone(self.ring.memory());
        let rest = Bytes::Ring { memory, at: from + ALIGN_BYTES, bytes: bytes - ALIGN_BYTES };
        self.write(leader, file, at + ALIGN_BYTES as u64, rest, shared);
    }

    /// Adds an entry for each block. Returns the number of the first one, the leader, which has the run's write.
    fn push_run(
        &mut self,
        blocks: Vec<(What, Whole)>,
        file: u64,
        at: u64,
        first_page: Buffer,
    ) -> u64 {
        let leader = self.first_entry + self.entries.len() as u64;
        let (mut first_page, mut at) = (Some(first_page), at);
        let mut followers = blocks.len() - 1;
        for (what, whole) in blocks {
            self.push(what, file, at, whole.bytes, first_page.take());
            if let Some(entry) = self.entries.back_mut() {
                entry.followers = std::mem::take(&mut followers);
                entry.reads_ring = true;
            }
            at += whole.bytes as u64;
        }
        leader
    }

    /// Returns how many blocks at the beginning of a run the ring's writer has overwritten. It overwrites the oldest
    /// block first, so if the ring holds a block, it holds the following ones.
    pub(super) fn torn_in_run(&self, leader: usize) -> usize {
        let run = self.entries.range(leader..=leader + self.entries[leader].followers);
        run.take_while(|entry| match &entry.what {
            What::Frames { block: Some(whole), .. } => !self.reader.holds(whole.block),
            _ => false,
        })
        .count()
    }

    /// Records that all bytes of a run except for the first page are in the file.
    pub(super) fn end_followers(&mut self, leader: usize) {
        self.entries[leader].reads_ring = false;
        let followers = self.entries[leader].followers;
        for entry in self.entries.range_mut(leader + 1..=leader + followers) {
            entry.state = State::Done;
        }
    }

    /// Replaces the first `torn` blocks of a run by one block of padding. The other blocks are valid.
    pub(super) fn hide_torn(&mut self, leader: usize, torn: usize, shared: &mut Shared<D>) {
        self.end_followers(leader);
        shared.report.torn_blocks += torn as u64;
        let mut bytes = 0;
        for at in leader..leader + torn {
            let entry = &mut self.entries[at];
            entry.state = State::Torn;
            let own = std::mem::take(&mut entry.bytes);
            bytes += own;
            if at == leader {
                continue;
            }
            // The padding is counted with the leader.
            let (file, frames) = (entry.file, entry.frames());
            self.release(file);
            self.add_lapped(frames);
        }
        let entry = &mut self.entries[leader];
        (entry.followers, entry.first_page) = (0, None);
        (entry.bytes, entry.plain_bytes) = (bytes, bytes);
        self.cover(leader, shared);
    }

    /// Records that a write has failed. The followers of the entry have failed with it: the file is cut off before
    /// them.
    pub(super) fn set_failed(&mut self, at: usize, bytes: Option<Bytes>) {
        let entry = &mut self.entries[at];
        let followers = std::mem::take(&mut entry.followers);
        entry.state = State::Failed(bytes);
        let torn = match entry.what {
            What::Cover { of, .. } => Some(of),
            _ => None,
        };
        for entry in self.entries.range_mut(at + 1..=at + followers) {
            entry.state = State::Failed(None);
        }
        if let Some(torn) = torn {
            self.end_cover(torn);
        }
    }
}
