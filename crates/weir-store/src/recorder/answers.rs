//! Handling of completed writes, and periodic work.

use std::time::Instant;

use weir_consumer::{ConsumerError, Cursor};
use weir_disk::{Completed, Disk};

use super::pool::Pool;
use super::stream::Stream;
use super::{Asked, ENDED_OPEN, FLUSH_EVERY, LOOK_AGAIN, Recorder};

impl<D: Disk> Recorder<D> {
    /// Handles completed writes and compressions.
    pub(super) fn collect(&mut self) -> Result<(), ConsumerError> {
        let Recorder { lanes, streams, shared, completed, .. } = self;
        while let Some(packed) = shared.pool.as_mut().and_then(Pool::next) {
            if let Some(stream) = streams.get_mut(&packed.stream) {
                stream.packed(packed, shared);
            }
        }
        shared.disk.completed(false, completed);
        for Completed { ticket, result, bytes } in completed.drain(..) {
            let Some((id, asked)) = shared.tickets.remove(&ticket) else { continue };
            let Some(stream) = streams.get_mut(&id) else { continue };
            match asked {
                Asked::Write(entry) => stream.completed(entry, result, bytes, shared),
                Asked::Preallocation { file, end } => {
                    stream.preallocated(file, end, result.is_ok(), shared);
                }
            }
        }
        while let Some((id, file, result)) = shared.volumes.next_cut() {
            if let Some(stream) = streams.get_mut(&id) {
                stream.was_cut(file, result.is_ok(), shared);
            }
        }
        streams.values_mut().for_each(|stream| stream.write_again(shared));
        for lane in lanes.iter_mut() {
            let Some(stream) = lane.work.and_then(|id| streams.get_mut(&id)) else { continue };
            stream.settle(&mut Some(&mut lane.cursor), shared);
            if stream.has_ended() {
                lane.cursor.end_ahead();
                stream.end();
            }
        }
        lanes.retire();
        let read: Vec<usize> = lanes.iter().filter_map(|lane| lane.work).collect();
        for (_, stream) in streams.iter_mut().filter(|(id, _)| !read.contains(id)) {
            stream.end();
            stream.settle(&mut None, shared);
        }
        if shared.volumes.all_failed() {
            return Err(ConsumerError::Output(Box::new(shared.volumes.error())));
        }
        Ok(())
    }

    /// Does the periodic work, every [`FLUSH_EVERY`].
    pub(super) fn look_at_clock(&mut self) -> Result<(), ConsumerError> {
        if self.looked.elapsed() < FLUSH_EVERY {
            return Ok(());
        }
        self.looked = Instant::now();
        let has_ended = |cursor: &Cursor| cursor.has_left() || cursor.reader().ring().is_closed();
        let is_end = self.lanes.iter().all(|lane| has_ended(&lane.cursor));
        self.give_up_stalled(is_end);
        let Recorder { streams, shared, .. } = self;
        for stream in streams.values_mut() {
            stream.rotate_if_due(shared);
            stream.cut_idle_files(shared);
            stream.flush_index();
        }
        let is_past = |stream: &Stream<D>| stream.ended.is_some_and(|at| at.elapsed() > ENDED_OPEN);
        streams.values_mut().filter(|stream| is_past(stream)).for_each(|stream| {
            stream.close_files(&[], shared);
        });
        streams.retain(|_, stream| !is_past(stream) || stream.has_files());
        Ok(())
    }

    /// Waits for all writes that can still be answered, also after all volumes have failed: the results decide where
    /// files are truncated.
    pub(super) fn drain(&mut self) {
        loop {
            let _ = self.collect();
            if !self.shared.is_at_work() {
                return;
            }
            self.give_up_stalled(true);
            std::thread::sleep(LOOK_AGAIN);
        }
    }

    /// Gives up volumes that do not answer.
    fn give_up_stalled(&mut self, is_end: bool) {
        let Recorder { streams, shared, .. } = self;
        while let Some(volume) = shared.volumes.give_up_stalled(&shared.settings, is_end) {
            shared.disk.abandon();
            streams.values_mut().for_each(|stream| stream.give_up(volume, shared));
        }
    }
}
