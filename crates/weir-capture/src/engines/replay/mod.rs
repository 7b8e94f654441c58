//! The engine `replay`: reads frames from a pcap or pcapng file. Needs no privileges.
//!
//! With [`ReplayOptions::waits`], this source waits for readers that have joined a [`Pace`](pace::Pace), so that they
//! are not lapped. Time stamps are those of the file, at any speed.

mod chunks;
pub(crate) mod declaration;
mod input;
mod lz4;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_frame::pcapng::LINKTYPE_ETHERNET;
use weir_frame::read::{Frame, FrameReader};
use weir_frame::record::Meta;
use weir_frame::schedule::Schedule;
pub use weir_frame::schedule::Speed;
use weir_ring::{Clock, Ledger};

use crate::error::CaptureError;
use crate::feed::control::FeedControl;
use crate::feed::direction::Direction;
use crate::feed::pace;
use crate::feed::{Fanout, Feeds};
use crate::plain_engine::PlainEngine;
use crate::setup::Setup;
use crate::source::{Info, Pumped, Source};
use input::Input;

/// Options of the engine `replay`.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// Speed of the replay.
    pub speed: Speed,
    /// Whether to wait for readers that have joined a feed's [`Pace`](pace::Pace). Otherwise slow readers
    /// are lapped, as in any capture.
    pub waits: bool,
    /// Number of times that the file is replayed, 1 or more. The time stamps repeat.
    pub loops: u32,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        ReplayOptions { speed: Speed::Top, waits: false, loops: 1 }
    }
}

/// Frames after which the source publishes, at top speed.
const BURST: u64 = 64;

/// A source that replays a capture file.
pub struct Replay {
    info: Info,
    path: PathBuf,
    direction: Direction,
    /// Most bytes of a frame that any feed needs.
    bytes_needed: usize,
    feeds: Feeds,
    fanout: Fanout,
    file: FrameReader<Input>,
    loops_left: u32,
    /// Number of frames of earlier loops.
    looped_frames: u64,
    /// Number of frames of an unwanted direction. They are not offered, just as a hook for one direction is not offered
    /// the others.
    unwanted: u64,
    /// Number of frames that ended the replay because of their link type. They were read from the file, but not
    /// offered.
    refused: u64,
    link_type: u16,
    pacer: Option<Pacer>,
    /// The frame that waits until it is due.
    pending: Option<Meta>,
    pending_bytes: Vec<u8>,
    closed: bool,
}

impl Replay {
    /// Opens the file, and creates the rings for its frames.
    ///
    /// # Errors
    /// [`CaptureError::File`] if the file cannot be opened or is not a capture file;
    /// [`CaptureError::Options`] for an invalid speed or number of loops.
    pub fn open(
        path: &Path,
        mut setup: Setup,
        options: ReplayOptions,
    ) -> Result<Replay, CaptureError> {
        check_options(&options)?;
        if options.loops > 1 && input::is_pipe(path) {
            let text = "a pipe can be gone through once only; use 1 loop, or a file";
            return Err(CaptureError::Options(text.to_owned()));
        }
        let file = open_file(path)?;
        let link_type = link_type_of(&file);
        let engine = PlainEngine {
            link_type,
            clock: Clock::Foreign,
            has_directions: true,
            waits: options.waits,
            ..PlainEngine::ethernet("a file")
        };
        let (feeds, fanout) = engine.open_feeds(&mut setup)?;
        let info = Info {
            source: format!("file:{}", path.display()),
            engine: "replay",
            hook: None,
            why: if input::is_pipe(path) { "the source is a pipe" } else { "the source is a file" }
                .into(),
            notes: Vec::new(),
            owner: None,
        };
        let pacer = match options.speed {
            Speed::Top => None,
            Speed::Times(times) => Some(Pacer { schedule: Schedule::new(times), began: None }),
        };
        Ok(Replay {
            info,
            path: path.to_owned(),
            direction: setup.direction(),
            bytes_needed: setup.bytes_needed() as usize,
            feeds,
            fanout,
            file,
            loops_left: options.loops - 1,
            looped_frames: 0,
            unwanted: 0,
            refused: 0,
            link_type,
            pacer,
            pending: None,
            pending_bytes: Vec::new(),
            closed: false,
        })
    }

    /// Reads one frame from the file, and writes it to the rings or, if it is not due yet, to `pending`.
    fn step(&mut self) -> Result<Stepped, CaptureError> {
        let Replay { file, path, .. } = self;
        let frame = match file.next() {
            Ok(Some(frame)) => frame,
            Ok(None) => return self.next_loop(),
            Err(error) if error.is_would_block() => return Ok(Stepped::Waits),
            Err(error) => return Err(file_error(path, &error)),
        };
        if frame.link_type != self.link_type {
            self.refused += 1;
            return Err(link_type_changes(path, self.link_type, &frame));
        }
        if !self.direction.takes_frame(frame.flags, frame.link_type, frame.data) {
            self.unwanted += 1;
            return Ok(Stepped::Frame);
        }
        let meta = frame.meta();
        let early = self.pacer.as_mut().is_some_and(|pacer| !pacer.wait(meta.ts_ns).is_zero());
        if early {
            self.pending = Some(meta);
            self.pending_bytes.clear();
            let needed = &frame.data[..frame.data.len().min(self.bytes_needed)];
            self.pending_bytes.extend_from_slice(needed);
            return Ok(Stepped::Early);
        }
        self.fanout.push(&meta, frame.data);
        Ok(Stepped::Frame)
    }

    fn next_loop(&mut self) -> Result<Stepped, CaptureError> {
        let Some(left) = self.loops_left.checked_sub(1) else { return Ok(Stepped::End) };
        self.loops_left = left;
        self.looped_frames += self.file.frames();
        self.file = open_file(&self.path)?;
        if let Some(pacer) = &mut self.pacer {
            pacer.schedule.restart();
            pacer.began = None;
        }
        Ok(Stepped::Frame)
    }

    /// Waits until the pending frame is due, and writes the frame to the rings. Returns false if it is not due before
    /// `deadline`.
    fn release_pending(&mut self, deadline: Instant) -> bool {
        let (Some(meta), Some(pacer)) = (self.pending, &mut self.pacer) else { return true };
        let wait = pacer.wait(meta.ts_ns);
        let left = deadline.saturating_duration_since(Instant::now());
        if wait > left {
            self.fanout.leave();
            std::thread::sleep(left);
            return false;
        }
        self.fanout.leave();
        std::thread::sleep(wait);
        self.fanout.push(&meta, &self.pending_bytes);
        self.pending = None;
        true
    }

    fn count(&self) {
        // The pending frame has not been offered yet.
        let early = u64::from(self.pending.is_some());
        let read = self.looped_frames + self.file.frames();
        let offered = read - early - self.refused - self.unwanted;
        self.feeds.count(Ledger { offered, ..Ledger::default() });
    }

    fn note_interfaces(&mut self) {
        let interfaces = self.file.interfaces().len();
        let noted = self.info.notes.iter().any(|note| note.starts_with("the file has"));
        if interfaces > 1 && !noted {
            self.info.notes.push(format!(
                "the file has {interfaces} interfaces; here their frames are all of this source"
            ));
        }
    }
}

enum Stepped {
    Frame,
    /// The frame is not due yet; it is in `pending`.
    Early,
    /// The file is a pipe, and the next frame has not arrived yet.
    Waits,
    End,
}

fn check_options(options: &ReplayOptions) -> Result<(), CaptureError> {
    let wrong = |text: &str| Err(CaptureError::Options(text.to_owned()));
    if options.loops == 0 {
        return wrong("a file gone through 0 times gives no frame; use 1 loop or more");
    }
    match options.speed {
        Speed::Times(times) if !(times > 0.0 && times.is_finite()) => {
            wrong("a replay speed is a number above 0: 1 is real time, 2 twice as fast")
        }
        _ => Ok(()),
    }
}

/// Waits until the beginning of a capture file has arrived through a pipe, or until `goes_on` returns false. Returns
/// true if the beginning of a capture file, or anything else, has arrived: then [`Replay::open`] does not wait. For
/// files, returns true at once.
///
/// # Errors
/// [`CaptureError::File`]: the file cannot be opened.
pub fn wait_for(path: &Path, goes_on: impl FnMut() -> bool) -> Result<bool, CaptureError> {
    let look = |input: &mut dyn Read| match FrameReader::open(input) {
        Err(error) => !error.is_would_block(),
        Ok(_) => true,
    };
    input::wait_for(path, look, goes_on).map_err(|error| cannot_open(path, &error))
}

pub use input::is_pipe;

/// Returns the link type of the file's frames.
///
/// # Errors
/// [`CaptureError::File`] if the file cannot be opened or is not a capture file.
pub fn link_type(path: &Path) -> Result<u16, CaptureError> {
    let look = |input: &mut dyn Read| FrameReader::open(input).map(|file| link_type_of(&file));
    let link_type = input::peek(path, look).map_err(|error| cannot_open(path, &error))?;
    link_type.map_err(|error| file_error(path, &error))
}

fn link_type_of<R: Read>(file: &FrameReader<R>) -> u16 {
    // A pcapng file without interfaces has no frames either, so any link type is right.
    file.interfaces().first().map_or(LINKTYPE_ETHERNET, |own| own.link_type)
}

fn open_file(path: &Path) -> Result<FrameReader<Input>, CaptureError> {
    let input = input::open(path).map_err(|error| cannot_open(path, &error))?;
    let mut file = FrameReader::open(input).map_err(|error| file_error(path, &error))?;
    file.get_mut().wait_no_more();
    Ok(file)
}

fn cannot_open(path: &Path, error: &io::Error) -> CaptureError {
    let message = match error.kind() {
        io::ErrorKind::IsADirectory if input::has_recorded_files(path) => format!(
            "is a folder of recorded files; put their frames into one: weir extract {} --write all.pcapng",
            path.display()
        ),
        io::ErrorKind::IsADirectory => "is a folder; name a file in it".to_owned(),
        _ => format!("cannot be opened: {error}"),
    };
    CaptureError::File { path: path.to_owned(), message }
}

fn file_error(path: &Path, error: &weir_frame::read::ReadError) -> CaptureError {
    CaptureError::File { path: path.to_owned(), message: error.to_string() }
}

fn link_type_changes(path: &Path, before: u16, frame: &Frame<'_>) -> CaptureError {
    let (now, interface) = (frame.link_type, frame.interface);
    let message = format!(
        "the link type changes from {before} to {now} at a frame of interface {interface}, and a \
         ring has one link type; take the interfaces apart: \
         tshark -r FILE -Y 'frame.interface_id == {interface}' -w OTHER.pcapng"
    );
    CaptureError::File { path: path.to_owned(), message }
}

/// Computes from the time stamps how long to wait for a frame.
#[derive(Debug)]
struct Pacer {
    schedule: Schedule,
    /// Time when the first frame was replayed.
    began: Option<Instant>,
}

impl Pacer {
    /// Returns the time until a frame with this time stamp is due. It may be centuries; `pump` divides the wait into
    /// turns.
    fn wait(&mut self, ts_ns: u64) -> Duration {
        let now = Instant::now();
        let began = *self.began.get_or_insert(now);
        self.schedule.due(ts_ns).saturating_sub(now - began)
    }
}

impl Source for Replay {
    fn info(&self) -> &Info {
        &self.info
    }

    fn control(&self) -> Arc<dyn FeedControl> {
        self.feeds.control()
    }

    fn pump(&mut self, limit: Duration) -> Result<Pumped, CaptureError> {
        let deadline = Instant::now() + limit;
        let mut steps = 0u64;
        let result = loop {
            if !self.release_pending(deadline) {
                break Ok(Pumped::More);
            }
            if !self.fanout.is_open() {
                // Publish the frames, so that readers can read them and catch up.
                self.fanout.publish();
                if Instant::now() >= deadline {
                    break Ok(Pumped::More);
                }
                pace::nap();
                continue;
            }
            match self.step() {
                Ok(Stepped::Frame) => {}
                Ok(Stepped::Early) => self.fanout.publish(),
                Ok(Stepped::Waits) => {
                    self.fanout.publish();
                    self.fanout.leave();
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break Ok(Pumped::More);
                    }
                    self.file.get_mut().wait(left);
                }
                Ok(Stepped::End) => break Ok(Pumped::Ended),
                Err(error) => break Err(error),
            }
            steps += 1;
            if self.pacer.is_some() || steps.is_multiple_of(BURST) {
                self.fanout.publish();
                if Instant::now() >= deadline {
                    break Ok(Pumped::More);
                }
            }
        };
        self.fanout.leave();
        self.count();
        self.note_interfaces();
        result
    }

    fn stop(&mut self) -> Result<(), CaptureError> {
        self.feeds.end();
        if !self.closed {
            self.closed = true;
            self.fanout.close();
            if self.unwanted > 0 {
                let unwanted = self.unwanted;
                self.info.notes.push(format!(
                    "{unwanted} frames of the file were not offered: they go the other way, or the \
                     file does not say which"
                ));
            }
        }
        self.count();
        Ok(())
    }
}
