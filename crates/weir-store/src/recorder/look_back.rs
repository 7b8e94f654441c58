//! Look-back: the rings serve as history, and only frames around a trigger are written.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use weir_filter::Program;

/// The settings of look-back recording: which frames are saved, and when.
#[derive(Clone, Debug)]
pub struct LookBack {
    /// The span before a trigger. At most half of the rings can be saved.
    pub before: Span,
    /// The span after a trigger. A further trigger during the span restarts it.
    pub after: Span,
    /// Triggers by signal or command.
    pub asked: Asked,
    /// Triggers in the frames.
    pub watch: Watch,
    /// Called each time that saving begins, on the recorder's thread.
    pub began: fn(&Began),
}

/// An amount of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Span {
    /// The frames of this time.
    Time(Duration),
    /// This many bytes of blocks, in all rings together.
    Bytes(u64),
}

/// Triggers by signal or command. Clones share the flags.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// Whether a signal has come.
    pub signal: Arc<AtomicBool>,
    /// Whether a command has come.
    pub command: Arc<AtomicBool>,
}

impl Asked {
    /// Takes a pending trigger, if there is one.
    pub(super) fn take(&self) -> Option<Cause> {
        let pulled =
            |flag: &AtomicBool| flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::AcqRel);
        if pulled(&self.signal) {
            return Some(Cause::Signal);
        }
        pulled(&self.command).then_some(Cause::Command)
    }
}

/// A function that compiles a filter for a link type. The error is a text for the user.
pub type Compile = Arc<dyn Fn(u16) -> Result<Program, String> + Send + Sync>;

/// Triggers in the frames.
#[derive(Clone, Default)]
pub struct Watch {
    /// Filters: a frame that one of them accepts is a trigger.
    pub filters: Vec<Compile>,
    /// Limit of frames per second, measured over 0.1 s: a higher rate is a trigger.
    pub frames_per_second: Option<u64>,
    /// Limit of bits per second, by the length of frames on the wire, measured over 0.1 s: a higher rate is a
    /// trigger.
    pub bits_per_second: Option<u64>,
}

impl Watch {
    /// Returns whether there is any trigger in the frames.
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

/// The kind of a trigger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A signal.
    Signal,
    /// A command.
    Command,
    /// A frame that a filter accepts.
    Filter,
    /// A rate above the limit.
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

/// The event that saving has begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Began {
    /// The kind of the trigger.
    pub cause: Cause,
    /// Time of the trigger, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Time from the oldest saved frame to the trigger.
    pub before: Duration,
    /// Whether a ring had room for less than the wanted time.
    pub is_short: bool,
}

/// Counters of look-back recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookBackReport {
    /// Whether frames are being saved for a trigger at this time.
    pub is_saving: bool,
    /// Number of times that saving began.
    pub saves: u64,
    /// Triggers by signal.
    pub signal: u64,
    /// Triggers by command.
    pub command: u64,
    /// Triggers by a frame that a filter accepts.
    pub filter: u64,
    /// Triggers by rate: intervals of 0.1 s above the limit.
    pub rate: u64,
    /// Frames that were overwritten before they were checked for a trigger.
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
