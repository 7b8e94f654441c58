//! A seeded simulation of a probe: the events follow from a number, and the identities are checked after every event.
//!
//! The probe's core, its bookkeeping of feeds and consumers, the fan-out with its filters and ledgers, the rings, the
//! wake-ups and the consumers with their merge are the real code, on one thread. The source of the frames, the clock,
//! the disk and the callers are simulated. `docs/simulator.md` lists the identities.
//!
//! | module | contents |
//! |---|---|
//! | [`event`] | the events of a run, from a seed |
//! | [`world`] | the execution of the events |
//! | [`truth`], [`account`] | the expected result for each frame: in a feed, at a consumer |
//! | [`fake_source`], [`sink`], [`reader`], [`hostile`] | both ends of the real code |
//! | `many` | runs of many seeds |
//! | [`shrink`] | the search for a shorter run that also fails |
//! | [`planted`] | bugs that the simulator must find |
#![forbid(unsafe_code)]

pub mod account;
mod broken;
pub mod event;
pub mod fake_source;
pub mod frame;
pub mod hostile;
mod many;
pub mod meaning;
pub mod planted;
mod planted_control;
pub mod random;
pub mod reader;
pub mod shrink;
pub mod sink;
pub mod truth;
pub mod world;

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

pub use event::{Event, events_of};
pub use many::play_many;
pub use planted::Planted;
pub use world::Counts;

use world::World;

/// A run that failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Number of events before the failing one; if it is the number of all events, a condition at the end does not
    /// hold.
    pub step: usize,
    /// The condition that does not hold.
    pub broken: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.broken)
    }
}

/// Plays these events, and ends the run.
///
/// # Errors
/// The first identity that does not hold, or a panic.
pub fn play(events: &[Event], planted: Option<Planted>) -> Result<Counts, Failure> {
    let mut step = 0;
    let played = catch_unwind(AssertUnwindSafe(|| {
        let mut world = World::new(planted);
        for event in events {
            world.play(event);
            step += 1;
        }
        world.finish()
    }));
    played.map_err(|end| Failure { step, broken: broken::text_of(end.as_ref()) })
}

/// Returns the events of a failing run, shortened as far as possible, and the failure of the short run.
#[must_use]
pub fn shrunk(events: &[Event], planted: Option<Planted>) -> Option<(Vec<Event>, Failure)> {
    let first = play(events, planted).err()?;
    let until = events[..events.len().min(first.step + 1)].to_vec();
    let short = shrink::shrink(&until, |events| play(events, planted).is_err());
    let failure = play(&short, planted).err()?;
    Some((short, failure))
}
