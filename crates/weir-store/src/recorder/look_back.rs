//! Look-back: the rings run as history, and only what lies around a trigger is written.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_filter::Program;

/// Which frames are saved, and when.
#[derive(Clone, Debug)]
pub struct LookBack {
    /// How much from before a trigger; half of the rings is the most that there can be.
    pub before: Span,
    /// How much from then on. Another trigger meanwhile begins it again.
    pub after: Span,
    /// The request of the user.
    pub asked: Asked,
    /// The trigger that is searched in the frames.
    pub watch: Watch,
    /// The current time.
    pub clock: Clock,
    /// Told each time that saving begins, on the recorder's thread.
    pub began: fn(&Began),
}

/// So much of what passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// Frames of so much time.
    Time(Duration),
    /// So many bytes of blocks, of all rings together.
    Bytes(u64),
}

/// Triggers that are pulled from outside. Clones are the same ones.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// A signal has come.
    pub signal: Arc<AtomicBool>,
    /// A command has.
    pub command: Arc<AtomicBool>,
}

impl Asked {
    /// Takes the trigger that was pulled, if one was.
    pub(super) fn take(&self) -> Option<Cause> {
        let pulled =
            |flag: &AtomicBool| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        if pulled(&self.signal) {
            return Some(Cause::Signal);
        }
        pulled(&self.command).then_some(Cause::Command)
    }
}

/// Makes the filter for a link type; the error is a text for people.
pub type Compile = Arc<dyn Fn(u16) -> Result<Program, String> + Send + Sync>;

/// Triggers in the frames.
#[derive(Clone, Default)]
pub struct Watch {
    /// A frame that one of these filters accepts.
    pub filters: Vec<Compile>,
    /// More frames in a second than this, measured over a tenth of one.
    pub frames_per_second: Option<u64>,
    /// More bits in a second than this, of frames as they were on the wire, measured so, too.
    pub bits_per_second: Option<u64>,
}

impl Watch {
    /// Whether frames are to be looked at.
    pub(super) fn is_asked_for(&self) -> bool {
        !self.filters.is_empty()
            || self.frames_per_second.is_some()
            || self.bits_per_second.is_some()
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch")
            .field("filters", &self.filters.len())
            .field("frames_per_second", &self.frames_per_second)
            .field("bits_per_second", &self.bits_per_second)
            .finish()
    }
}

/// Where it is known from what time it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Clock {
    /// The machine's: frames are of now.
    Wall,
    /// The frames' own, as of traces.
    Frames,
}

/// Kind of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal.
    Signal,
    /// A command.
    Command,
    /// A frame that the filter accepts.
    Filter,
    /// More frames or bits than so many.
    Rate,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Cause::Signal => "signal",
            Cause::Command => "command",
            Cause::Filter => "filter",
            Cause::Rate => "rate",
        })
    }
}

/// Saving has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began {
    /// Why.
    pub cause: Cause,
    /// When that was, nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// How far before that the oldest frame lies that is saved.
    pub before: Duration,
}

/// Result of looking back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookBackReport {
    /// How often saving began.
    pub saves: u64,
    /// Triggers: signals,
    pub signal: u64,
    /// commands,
    pub command: u64,
    /// frames that the filter accepts,
    pub filter: u64,
    /// tenths of a second with more than so many frames or bits.
    pub rate: u64,
    /// Frames that were overwritten before they were looked at for a trigger.
    pub unwatched: u64,
}

impl LookBackReport {
    pub(super) fn count(&mut self, cause: Cause) {
        match cause {
            Cause::Signal => self.signal += 1,
            Cause::Command => self.command += 1,
            Cause::Filter => self.filter += 1,
            Cause::Rate => self.rate += 1,
        }
    }
}
