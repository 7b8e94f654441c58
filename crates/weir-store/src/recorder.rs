//! The recorder: writes the contents of rings to disk without change.
//!
//! Blocks of a ring consist of pcapng blocks, so files are written from ring memory without a copy, with many writes in
//! flight. Each ring has a file on each volume; [`extract`](crate::extract) reads them as one stream in order of time.
//!
//! | module | what it does |
//! |---|---|
//! | [`settings`] | the settings |
//! | `answers` | work after completed writes, and periodic work |
//! | `volume` | a directory with its lock, quota and errors |
//! | `file` | a file that is being written |
//! | `housekeeping` | a thread for each volume that completes, truncates and deletes files |
//! | [`look_back`] | the settings for writing only the frames around a trigger |
//! | `history` | the part of the rings that is kept for a trigger, and the part that is saved |
//! | `watcher` | recognises triggers in the frames |
//! | `shared` | state that all rings share: the disk, the volumes, the counts |
//! | `stream` | the writing of one ring to files |
//! | `pool` | threads that compress |
//! | `gather` | collected frames of incomplete blocks |
//! | `error` | errors of the recorder |
//!
//! A write completes some milliseconds after its bytes were read; meanwhile the ring's writer may overtake the block.
//! So the written data is valid only if the ring still holds the block *after* the write. The first page of a block
//! is written after that check: until then, readers of the file find zeros there and stop, so they never see a torn
//! frame, however the recorder ends. A block that the ring no longer holds is overwritten with padding, and its
//! frames count as lapped. If the ring's writer is close, blocks are copied before they are written, so that none is
//! torn.

mod answers;
mod error;
mod file;
mod gather;
mod history;
mod housekeeping;
pub mod look_back;
mod pool;
mod report;
pub mod settings;
mod shared;
mod stream;
pub(crate) mod volume;
mod watcher;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use weir_consumer::{
    Consumer, ConsumerError, Count, Delivered, JoinedFeed, Lanes, Rings, Step, Taken,
};
use weir_disk::{Completed, Disk, Spare};
use weir_frame::pcapng::Statistics;

use crate::names::Names;
pub use error::RecorderError;
use history::History;
use look_back::LookBackReport;
use pool::Pool;
pub use report::{RecorderReport, VolumeReport};
pub use settings::Settings;
use shared::{Asked, Shared};
use stream::{Progress, Stream};
use volume::Volumes;

/// Interval at which the available part of an incomplete block is written, and the index is flushed.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Pause between checks for completed writes: at 2 GB/s, a disk completes one every 0.5 ms.
const LOOK_AGAIN: Duration = Duration::from_micros(100);
/// Pause between checks for a closed block, while nothing is being written.
const LOOK_LATER: Duration = Duration::from_millis(5);
/// Time for which files of ended rings stay open, so that they get the statistics if the run ends.
const ENDED_OPEN: Duration = Duration::from_secs(5);

/// Writes frames into files of one or several directories.
pub struct Recorder<D: Disk> {
    lanes: Lanes<Option<usize>>,
    /// Streams of rings that are being read, and of ended rings whose files are still open.
    streams: BTreeMap<usize, Stream<D>>,
    next_stream: usize,
    history: Option<History>,
    shared: Shared<D>,
    completed: Vec<Completed>,
    looked: Instant,
    has_begun: bool,
}

impl<D: Disk> Recorder<D> {
    /// Creates a recorder into these directories. It takes the lock of each.
    ///
    /// # Errors
    /// [`RecorderError`]: a directory does not exist, cannot be written to, or is locked by another recorder.
    pub fn new(settings: Settings, disk: D) -> Result<Recorder<D>, RecorderError> {
        let volumes = Volumes::open(&settings, &disk)?;
        let pool = settings.compression.map(Pool::new).transpose()?;
        let history = settings.look_back.clone().map(History::new);
        Ok(Recorder {
            lanes: Lanes::new(),
            streams: BTreeMap::new(),
            next_stream: 0,
            history,
            shared: Shared {
                disk,
                volumes,
                settings,
                names: Names::default(),
                pool,
                spare: Spare::default(),
                tickets: BTreeMap::new(),
                next_ticket: 0,
                kept: Count::default(),
                taken: Count::default(),
                report: RecorderReport::default(),
            },
            completed: Vec::new(),
            looked: Instant::now(),
            has_begun: false,
        })
    }

    /// Writes these names into every file, before later frames and at its end, as
    /// [`FileWriter::with_names`](crate::FileWriter::with_names) does.
    #[must_use]
    pub fn with_names(mut self, names: &Names) -> Recorder<D> {
        self.shared.names = names.clone();
        self
    }

    /// Returns notes for the user at the start, such as that a slower method of writing is used.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let note = self.shared.disk.note().map(str::to_owned);
        note.into_iter().chain(self.shared.volumes.notes()).collect()
    }

    /// Returns the number of files of killed recorders in the directories at the start.
    #[must_use]
    pub fn left_files(&self) -> usize {
        self.shared.volumes.left_files()
    }

    /// Returns the report so far, with bytes and files of each directory.
    #[must_use]
    pub fn report(&self) -> RecorderReport {
        let volumes = self.shared.volumes.report();
        let look_back = self
            .history
            .as_ref()
            .map(|history| LookBackReport { is_saving: history.is_saving(), ..history.report });
        let note = self.shared.disk.note().map(str::to_owned);
        RecorderReport { volumes, look_back, note, ..self.shared.report.clone() }
    }

    fn unsettled(&self) -> u64 {
        self.streams.values().map(Stream::unsettled).sum()
    }
}

impl<D: Disk> Consumer for Recorder<D> {
    fn join(&mut self, feed: JoinedFeed) -> Result<(), ConsumerError> {
        let (key, output, label) = (feed.key, feed.output, feed.label.clone());
        let rings = feed.rings.clone();
        if let Some(history) = &mut self.history
            && feed.has_foreign_clock()?
        {
            history.go_by_frames();
        }
        self.lanes.join(feed)?;
        let numbering = self.lanes.numbering().clone();
        for (number, ring) in rings.iter().enumerate() {
            let numbers = numbering.interfaces_of(output).to_vec();
            let mut stream = Stream::new(self.next_stream, number, ring, &label, numbers)?;
            let watch = self.shared.settings.look_back.as_ref().map(|asks| &asks.watch);
            if let Some(watch) = watch.filter(|watch| watch.is_asked_for()) {
                stream.watch(watch)?;
            }
            let own = |lane: &&mut weir_consumer::lanes::Lane<Option<usize>>| {
                lane.work.is_none() && lane.is_ring(key, number)
            };
            if let Some(lane) = self.lanes.iter_mut().find(own) {
                lane.work = Some(self.next_stream);
            }
            self.streams.insert(self.next_stream, stream);
            self.next_stream += 1;
        }
        let streams = self.streams.values().filter(|stream| stream.ended.is_none()).count();
        self.shared.volumes.check_quota(streams, &self.shared.settings).map_err(output_error)
    }

    fn allows_delay(&self) -> bool {
        self.history.is_none()
    }

    fn rings(&self) -> &dyn Rings {
        &self.lanes
    }

    fn rings_mut(&mut self) -> &mut dyn Rings {
        &mut self.lanes
    }

    fn step(&mut self, frames_max: u64) -> Result<Step, ConsumerError> {
        if !self.has_begun {
            self.has_begun = (self.shared.settings.may_begin)();
            if !self.has_begun {
                return Ok(Step::Waiting);
            }
        }
        let before = self.shared.taken.frames;
        self.collect()?;
        // `frames_max` was computed before `collect` took these frames.
        let frames_max = frames_max.saturating_sub(self.shared.taken.frames - before);
        self.look_at_clock()?;
        let (mut moved, mut waits) = (false, self.shared.is_at_work());
        let mut is_past = false;
        if let Some(history) = &mut self.history {
            moved = history.look(&self.lanes, &mut self.streams)?;
            waits = true;
            is_past = history.is_past(&self.lanes);
            match history.is_saving() {
                true => history.begin_saving(&mut self.lanes, &mut self.streams)?,
                false => moved |= history.let_go(&mut self.lanes, &mut self.streams)?,
            }
        }
        let mut unsettled = self.unsettled();
        let mut left = frames_max.saturating_sub(unsettled);
        let mut has_more = false;
        let Recorder { lanes, streams, shared, history, .. } = self;
        for lane in lanes.round() {
            let Some((id, stream)) = lane.work.and_then(|id| Some((id, streams.get_mut(&id)?)))
            else {
                continue;
            };
            (stream.is_last, stream.may_cut) = (is_past, unsettled == 0);
            loop {
                if history.as_ref().is_some_and(|history| !history.wants(&lane.cursor)) {
                    break;
                }
                if left == 0 || !shared.has_room(lane.cursor.reader().fill()) {
                    (waits, has_more) = (true, true);
                    break;
                }
                let before = stream.bytes_read;
                let progress = stream.read_on(&mut lane.cursor, left, shared)?;
                has_more |= !matches!(progress, Progress::Nothing);
                if let Some(history) = history {
                    history.count(id, &lane.cursor, stream.bytes_read - before);
                }
                match progress {
                    Progress::Frames(frames) => {
                        (left, unsettled) = (left.saturating_sub(frames), unsettled + frames);
                        stream.may_cut = false;
                        moved = true;
                    }
                    Progress::Moved => moved = true,
                    Progress::Later => {
                        waits = true;
                        break;
                    }
                    Progress::Nothing => break,
                }
            }
            stream.submit_run(shared);
        }
        if left == 0 {
            // No frames follow after the limit, so the collected data is written now.
            for stream in streams.values_mut() {
                stream.submit_gathered(shared);
            }
        }
        if let Some(history) = history.as_mut().filter(|_| is_past && !has_more) {
            streams.values_mut().for_each(|stream| stream.submit_gathered(shared));
            // Data that is still being compressed also belongs to these files.
            if shared.pool.as_ref().is_none_or(Pool::is_idle) {
                history.end_saving();
                streams.values_mut().for_each(|stream| stream.close_files(&[], shared));
            }
        }
        self.collect()?;
        let is_writing = self.shared.is_at_work();
        Ok(match (moved, waits && !self.lanes.is_empty()) {
            (true, _) => Step::Busy,
            (false, true) if is_writing => Step::Writing,
            (false, true) => Step::Waiting,
            (false, false) => Step::of_round(false, self.lanes.is_empty()),
        })
    }

    fn delivered(&self) -> Delivered {
        let Taken { lapped, untriggered, .. } = self.lanes.taken();
        let Count { frames, wire_bytes } = self.shared.taken;
        Delivered { frames, wire_bytes, lapped, untriggered, ..Delivered::default() }
    }

    fn by_interface(&self) -> Vec<Taken> {
        self.lanes.by_interface()
    }

    fn finish(&mut self, statistics: &[Statistics]) -> Result<(), ConsumerError> {
        self.shared.volumes.end_soon();
        let Recorder { streams, shared, .. } = self;
        for stream in streams.values_mut() {
            stream.submit_gathered(shared);
        }
        self.drain();
        if self.history.as_ref().is_some_and(|history| !history.is_saving()) {
            // The rest of rings that were not closed passes without being saved.
            self.lanes.iter_mut().for_each(|lane| lane.cursor.let_rest_pass());
        }
        let Recorder { streams, shared, .. } = self;
        for stream in streams.values_mut() {
            stream.close_files(statistics, shared);
        }
        self.drain();
        if let Some(history) = &mut self.history {
            history.end_saving();
        }
        let failure = self.shared.volumes.all_failed().then(|| self.shared.volumes.error());
        failure.map_or(Ok(()), |error| Err(output_error(error)))
    }

    fn kept(&self) -> Count {
        self.shared.kept
    }

    fn due(&self) -> Duration {
        if self.shared.is_at_work() { LOOK_AGAIN } else { LOOK_LATER }
    }
}

fn output_error(error: RecorderError) -> ConsumerError {
    ConsumerError::Output(Box::new(error))
}

#[cfg(test)]
#[path = "recorder/tests.rs"]
mod tests;
