//! The interfaces of a source that has several, and what is counted of each.
//!
//! They are numbered as in the source's rings. Number 0 is the source itself, the pattern: no frame is of it. So a ring
//! can be made before any interface is there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::Interface;
use weir_ring::Ledger;

use crate::error::CaptureError;
use crate::limits::PATTERN_INTERFACES_MAX;

/// One interface's share of a feed's ledger.
///
/// With `af_packet` `drops` is empty: the kernel's drops are of the socket that all interfaces share, and stand in the
/// ledger of the feed. So `offered` exceeds the sum of the others by what the socket lost of this interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceLedger {
    /// Its number in the feed's rings.
    pub id: u32,
    /// Its name, as the rings have it.
    pub name: String,
    /// Whether it is there now, and its frames are captured.
    pub is_member: bool,
    /// Its counts.
    pub ledger: Ledger,
}

/// What is counted of an interface in a fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// In a fan-out's tally: frames that came. In a branch's: those that had come when it joined.
    Seen,
    Filtered,
    Blocked,
    Sampled,
    Captured,
    KeptBytes,
    WireBytes,
    SuperFrames,
}

/// Bytes of a row are those of a cache line.
const COLUMNS: usize = 8;
const _: () = assert!(Column::SuperFrames as usize + 1 == COLUMNS);

/// Counts by interface. One thread counts, any may look.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: Box<[[AtomicU64; COLUMNS]]>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { rows: (0..=PATTERN_INTERFACES_MAX).map(|_| Default::default()).collect() }
    }

    /// For the thread that counts.
    #[inline]
    pub(crate) fn add(&self, interface: u32, column: Column, amount: u64) {
        let count = &self.rows[interface as usize][column as usize];
        // One thread stores. Who looks waits for the source's stop before it takes a count for exact.
        count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, interface: u32, column: Column) -> u64 {
        self.rows[interface as usize][column as usize].load(Ordering::Relaxed)
    }

    /// Takes over what has come to a fan-out, for a branch that joins it. For the thread that counts.
    pub(crate) fn join(&self, fanout: &Tally) {
        for (own, seen) in self.rows.iter().zip(&fanout.rows) {
            let seen = seen[Column::Seen as usize].load(Ordering::Relaxed);
            own[Column::Seen as usize].store(seen, Ordering::Relaxed);
        }
    }
}

/// What the engine counted of an interface before any fan-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineCount {
    pub(crate) offered: u64,
    /// Those that no feed wanted, and that did not come to a fan-out.
    pub(crate) unwanted: u64,
    pub(crate) missed_before: Option<u64>,
}

/// Frames that an interface missed since a feed joined. `then`: those missed until then; unknown counts as none.
pub(crate) fn missed_since(now: Option<u64>, then: Option<u64>) -> Option<u64> {
    now.map(|now| now.saturating_sub(then.unwrap_or(0)))
}

/// The engine's counts by interface, from any thread.
pub(crate) trait EngineCounts: Send + Sync {
    fn of(&self, interface: u32) -> Result<EngineCount, CaptureError>;
}

/// The interfaces that a source has, or had.
pub(crate) struct Interfaces {
    /// Stands in the names of the feeds' interfaces where the name of one of these comes.
    pattern: String,
    /// The first has number 1.
    known: Mutex<Vec<Known>>,
}

/// An interface that a source has, or had.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) is_member: bool,
}

impl Interfaces {
    pub(crate) fn new(pattern: String) -> Interfaces {
        Interfaces { pattern, known: Mutex::default() }
    }

    /// Those so far; the first has number 1.
    pub(crate) fn known(&self) -> Vec<Known> {
        self.lock().clone()
    }

    /// How many there are so far.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Gives an interface that joins its number: one that was there before has its old one, and `describe` describes
    /// any other in all rings.
    ///
    /// # Errors
    /// There have been too many, or that of `describe`; nothing has changed then.
    pub(crate) fn join(
        &self,
        name: &str,
        describe: impl FnOnce() -> Result<(), CaptureError>,
    ) -> Result<u32, CaptureError> {
        let mut known = self.lock();
        if let Some(at) = known.iter().position(|known| known.name == name) {
            known[at].is_member = true;
            return Ok(at as u32 + 1);
        }
        if known.len() >= PATTERN_INTERFACES_MAX as usize {
            return Err(CaptureError::Options(format!(
                "a source has named {PATTERN_INTERFACES_MAX} interfaces at most; begin another capture for more"
            )));
        }
        describe()?;
        known.push(Known { name: name.to_owned(), is_member: true });
        Ok(known.len() as u32)
    }

    /// An interface has left; its number stays its own.
    pub(crate) fn leave(&self, number: u32) {
        if let Some(known) = self.lock().get_mut(number as usize - 1) {
            known.is_member = false;
        }
    }

    /// Held for moments only, also by the thread that moves frames. Whole whoever panicked while holding it.
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the rings of a feed whose own interface is `of` say of the one called `name`.
    pub(crate) fn describe(&self, of: &Interface, name: &str) -> Interface {
        let own = match of.name.rfind(&self.pattern) {
            Some(at) => {
                format!("{}{name}{}", &of.name[..at], &of.name[at + self.pattern.len()..])
            }
            None => name.to_owned(),
        };
        // The filter stands once, in the feed's own interface: the header area has room for more interfaces so.
        Interface { name: own, filter: None, ..of.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_called_as_the_pattern_was_in_its_place() {
        let described = |pattern: &str, of: &str| {
            let interfaces = Interfaces::new(pattern.to_owned());
            let of = Interface {
                name: of.to_owned(),
                filter: Some("tcp".to_owned()),
                description: Some("feed web".to_owned()),
                ..Interface::default()
            };
            let own = interfaces.describe(&of, "vnet7");
            assert_eq!((own.filter, own.description.as_deref()), (None, Some("feed web")));
            own.name
        };
        assert_eq!(described("vnet*", "vnet*"), "vnet7");
        assert_eq!(described("any", "netns:any/any@2/4"), "netns:any/vnet7@2/4");
        assert_eq!(described("any", "test"), "vnet7");
    }
}
