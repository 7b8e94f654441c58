//! A seeded simulation of a probe: what happens follows from a number, and after everything that happens the
//! identities are held.
//!
//! The probe's core, its bookkeeping of feeds and consumers, the fan-out with its filters and ledgers, the rings, the
//! wake-ups and the consumers with their merge are the real ones, on one thread. The source of the frames, the clock,
//! the disk and those who give commands are the simulator's. `docs/simulator.md` says what is held.
//!
//! | module | what it does |
//! |---|---|
//! | [`event`] | what happens in a run, from a seed |
//! | [`world`] | carries it out |
//! | [`truth`], [`account`] | what should come of each frame: in a feed, at a consumer |
//! | [`fake_source`], [`sink`], [`reader`], [`hostile`] | both ends of the real code |
//! | `many` | runs of many seeds |
//! | [`shrink`] | a shorter run that fails, too |
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
    /// How many events had happened before the one that failed; as many as there are: what holds at the end does not.
    pub step: usize,
    /// The condition that does not hold.
    pub broken: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.step, self.broken)
    }
}

/// Carries out these events, and ends the run.
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

/// The events of a failing run, as short as they become; and how the short run fails.
#[must_use]
pub fn shrunk(events: &[Event], planted: Option<Planted>) -> Option<(Vec<Event>, Failure)> {
    let first = play(events, planted).err()?;
    let until = events[..events.len().min(first.step + 1)].to_vec();
    let short = shrink::shrink(&until, |events| play(events, planted).is_err());
    let failure = play(&short, planted).err()?;
    Some((short, failure))
}
