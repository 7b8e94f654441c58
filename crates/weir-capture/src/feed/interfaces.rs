//! The interfaces of a source that has several, and the counts of each.
//!
//! They are numbered as in the source's rings. Number 0 is the pattern, that is the source itself: no frame
//! has this number, and a ring can be made before there is any interface.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::Interface;
use weir_ring::Ledger;

use crate::error::CaptureError;
use crate::kernel::netns::Owner;
use crate::limits::{LATE_OWNERS_MAX, PATTERN_INTERFACES_MAX};

/// One interface's share of a feed's ledger.
///
/// With `af_packet`, `drops` is empty: the kernel counts drops for the socket, which all interfaces share,
/// so they are in the ledger of the feed. `offered` exceeds the sum of the other counts by the frames of
/// this interface that the socket lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceLedger {
    /// Its number in the feed's rings.
    pub id: u32,
    /// Its name in the rings.
    pub name: String,
    /// Owner of its frames, if it was found. An interface of the same name with another owner has another
    /// number.
    pub owner: Option<Owner>,
    /// Whether it is present and its frames are captured.
    pub is_member: bool,
    /// Its counts.
    pub ledger: Ledger,
}

/// Counts of an interface in a fan-out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    /// In a fan-out's tally: frames that came to it. In a branch's tally: frames that had come to the
    /// fan-out when the branch joined.
    Seen,
    Filtered,
    Blocked,
    Sampled,
    Captured,
    KeptBytes,
    WireBytes,
    SuperFrames,
}

/// A row has the size of a cache line, 64 bytes.
const COLUMNS: usize = 8;
const _: () = assert!(Column::SuperFrames as usize + 1 == COLUMNS);

/// Counts by interface. One thread counts; any thread may read.
#[derive(Debug)]
pub(crate) struct Tally {
    rows: Box<[[AtomicU64; COLUMNS]]>,
}

impl Tally {
    pub(crate) fn new() -> Tally {
        Tally { rows: (0..=PATTERN_INTERFACES_MAX).map(|_| Default::default()).collect() }
    }

    /// Adds to a count. Only the thread that counts may call this.
    #[inline]
    pub(crate) fn add(&self, interface: u32, column: Column, amount: u64) {
        let count = &self.rows[interface as usize][column as usize];
        // Only one thread stores, so load and store need not be one atomic operation. Counts are exact only
        // after the source has stopped.
        count.store(count.load(Ordering::Relaxed) + amount, Ordering::Relaxed);
    }

    pub(crate) fn get(&self, interface: u32, column: Column) -> u64 {
        self.rows[interface as usize][column as usize].load(Ordering::Relaxed)
    }

    /// Copies the fan-out's counts of seen frames, for a branch that joins. Only the thread that counts may call this.
    pub(crate) fn join(&self, fanout: &Tally) {
        for (own, seen) in self.rows.iter().zip(&fanout.rows) {
            let seen = seen[Column::Seen as usize].load(Ordering::Relaxed);
            own[Column::Seen as usize].store(seen, Ordering::Relaxed);
        }
    }
}

/// Counts of the engine for an interface before any fan-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EngineCount {
    pub(crate) offered: u64,
    /// Frames that no feed wanted and that were rejected before a fan-out.
    pub(crate) unwanted: u64,
    pub(crate) missed_before: Option<u64>,
}

/// Returns the number of frames that an interface missed since a feed joined. `then`: the count at that time; an
/// unknown count is taken as 0.
pub(crate) fn missed_since(now: Option<u64>, then: Option<u64>) -> Option<u64> {
    now.map(|now| now.saturating_sub(then.unwrap_or(0)))
}

/// Reads the engine's counts by interface, on any thread.
pub(crate) trait EngineCounts: Send + Sync {
    fn of(&self, interface: u32) -> Result<EngineCount, CaptureError>;
}

/// The interfaces that a source has, or had.
pub(crate) struct Interfaces {
    /// The text in the name of a feed's own interface that is replaced by the name of a matching interface.
    pattern: String,
    /// The first has number 1.
    known: Mutex<Vec<Known>>,
}

/// An interface that a source has, or had.
#[derive(Clone)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) owner: Option<Owner>,
    pub(crate) is_member: bool,
    /// The number that its frames have had since its owner was found, if they have another number since then.
    continued_as: Option<u32>,
}

impl Interfaces {
    pub(crate) fn new(pattern: String) -> Interfaces {
        Interfaces { pattern, known: Mutex::default() }
    }

    /// Returns all interfaces so far; the first has number 1.
    pub(crate) fn known(&self) -> Vec<Known> {
        self.lock().clone()
    }

    /// Returns the number of interfaces so far.
    pub(crate) fn count(&self) -> usize {
        self.lock().len()
    }

    /// Returns the number of an interface that joins. An interface that was there before with the same
    /// owner gets its old number. Any other gets a new number, and `describe` adds it to all rings; if
    /// these have no space for a description with an owner, it is added without one.
    ///
    /// # Errors
    /// Too many interfaces, or the error of `describe`. Nothing has changed then.
    pub(crate) fn join(
        &self,
        name: &str,
        owner: Option<&Owner>,
        describe: impl Fn(Option<&Owner>) -> Result<(), CaptureError>,
    ) -> Result<u32, CaptureError> {
        let joined = self.join_as(name, owner, &describe);
        match (joined, owner) {
            (Err(_), Some(_)) => self.join_as(name, None, &describe),
            (joined, _) => joined,
        }
    }

    fn join_as(
        &self,
        name: &str,
        owner: Option<&Owner>,
        describe: &impl Fn(Option<&Owner>) -> Result<(), CaptureError>,
    ) -> Result<u32, CaptureError> {
        let mut known = self.lock();
        let is_same = |known: &Known| {
            let has_owner = match (&known.owner, owner) {
                (Some(known), Some(owner)) => known.is_same(owner),
                (known, owner) => known.is_none() && owner.is_none(),
            };
            known.name == name && has_owner && known.continued_as.is_none()
        };
        if let Some(at) = known.iter().position(is_same) {
            known[at].is_member = true;
            return Ok(at as u32 + 1);
        }
        if known.len() >= PATTERN_INTERFACES_MAX as usize {
            return Err(CaptureError::Options(format!(
                "a source has named {PATTERN_INTERFACES_MAX} interfaces at most; begin another capture for more"
            )));
        }
        describe(owner)?;
        let (name, owner) = (name.to_owned(), owner.cloned());
        known.push(Known { name, owner, is_member: true, continued_as: None });
        Ok(known.len() as u32)
    }

    /// Returns whether an interface may get another number when its owner is found. This is limited, to leave numbers
    /// and space for descriptions to new interfaces.
    pub(crate) fn may_continue(&self) -> bool {
        let continued = self.lock().iter().filter(|known| known.continued_as.is_some()).count();
        continued < LATE_OWNERS_MAX
    }

    /// Gives the frames of an interface another number from now on, because its owner was found.
    pub(crate) fn continue_as(&self, old: u32, new: u32) {
        if let Some(known) = self.lock().get_mut(old as usize - 1).filter(|_| old != new) {
            (known.is_member, known.continued_as) = (false, Some(new));
        }
    }

    /// Adds the counts that an interface had before its owner was found to those that it has had since.
    /// `ledgers` are the ledgers of all interfaces, in order.
    pub(crate) fn join_ledgers(&self, mut ledgers: Vec<InterfaceLedger>) -> Vec<InterfaceLedger> {
        let known = self.known();
        let next = |number: u32| known[number as usize - 1].continued_as;
        // This ends: a number that is continued is not assigned again, so there are no cycles.
        let last = |number| std::iter::successors(Some(number), |&number| next(number)).last();
        let mut at = 0;
        while let Some(own) = ledgers.get(at) {
            let into = last(own.id).filter(|&last| last != own.id);
            // An interface that joined while the ledgers were read has no ledger yet.
            let into = into.and_then(|into| ledgers.iter().position(|other| other.id == into));
            let Some(into) = into else {
                at += 1;
                continue;
            };
            let counts = std::mem::take(&mut ledgers[at].ledger);
            ledgers[into].ledger.add(&counts);
            ledgers.remove(at);
        }
        ledgers
    }

    /// Marks an interface as removed. Its number is not reused.
    pub(crate) fn leave(&self, number: u32) {
        if let Some(known) = self.lock().get_mut(number as usize - 1) {
            known.is_member = false;
        }
    }

    /// Locks the list. The lock is held only briefly, because the thread that moves frames takes it, too. The data is
    /// valid even if a thread panicked while holding it.
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the description of the interface `name` for the rings of a feed whose own interface is `of`.
    pub(crate) fn describe(&self, of: &Interface, name: &str, owner: Option<&Owner>) -> Interface {
        let own = match of.name.rfind(&self.pattern) {
            Some(at) => {
                format!("{}{name}{}", &of.name[..at], &of.name[at + self.pattern.len()..])
            }
            None => name.to_owned(),
        };
        // The filter is only in the feed's own interface, which leaves space for more interfaces in the
        // header area.
        let mut own = Interface { name: own, filter: None, ..of.clone() };
        if let Some(owner) = owner {
            owner.describe(&mut own);
        }
        own
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
            let own = interfaces.describe(&of, "vnet7", None);
            assert_eq!((own.filter, own.description.as_deref()), (None, Some("feed web")));
            own.name
        };
        assert_eq!(described("vnet*", "vnet*"), "vnet7");
        assert_eq!(described("any", "netns:any/any@2/4"), "netns:any/vnet7@2/4");
        assert_eq!(described("any", "test"), "vnet7");
    }

    #[test]
    fn a_name_that_another_owner_has_gets_another_number() {
        let interfaces = Interfaces::new("v*".to_owned());
        let owner = |name: &str| Owner { kind: "vm", name: name.to_owned(), ..Owner::default() };
        let (web, db) = (owner("web"), owner("db"));
        let join = |owner| interfaces.join("v1", owner, |_| Ok(())).unwrap();
        assert_eq!([None, Some(&web), Some(&db), Some(&web), None].map(join), [1, 2, 3, 2, 1]);
        let of = Interface { description: Some("feed x".to_owned()), ..Interface::default() };
        let described = interfaces.describe(&of, "v1", Some(&web)).description;
        assert_eq!(described.as_deref(), Some("VM web (qemu), feed x"));
    }

    #[test]
    fn what_came_before_the_owner_was_found_is_counted_for_it() {
        let interfaces = Interfaces::new("v*".to_owned());
        let owner = Owner { kind: "vm", ..Owner::default() };
        let join = |owner| interfaces.join("v1", owner, |_| Ok(())).unwrap();
        assert_eq!([join(None), join(Some(&owner))], [1, 2]);
        interfaces.continue_as(1, 2);
        // It joins again, and its owner is found again. The other interface never has an owner.
        assert_eq!([join(None), join(Some(&owner))], [3, 2]);
        interfaces.continue_as(3, 2);
        interfaces.join("v2", None, |_| Ok(())).unwrap();
        let ledger = |id| {
            let ledger = Ledger { offered: 10 * u64::from(id), ..Ledger::default() };
            InterfaceLedger { id, ledger, ..InterfaceLedger::default() }
        };
        let joined = interfaces.join_ledgers((1..=4).map(ledger).collect());
        let offered = joined.iter().map(|own| (own.id, own.ledger.offered)).collect::<Vec<_>>();
        assert_eq!(offered, [(2, 60), (4, 40)]);
        // A VM gets a tap that another process made, and joins again.
        let vm = Owner { name: "web".into(), ..owner.clone() };
        assert_eq!(join(Some(&vm)), 5);
        interfaces.continue_as(2, 5);
        let joined = interfaces.join_ledgers((1..=5).map(ledger).collect());
        let offered = joined.iter().map(|own| (own.id, own.ledger.offered)).collect::<Vec<_>>();
        assert_eq!(offered, [(4, 40), (5, 110)]);
        let joined = interfaces.join_ledgers((1..=2).map(ledger).collect());
        assert_eq!(joined.len(), 2, "the newest number has no counts yet");
        let late = (0..LATE_OWNERS_MAX as u32).take_while(|n| {
            let old = interfaces.join(&format!("w{n}"), None, |_| Ok(())).unwrap();
            interfaces.continue_as(old, 2);
            interfaces.may_continue()
        });
        assert_eq!(late.count(), LATE_OWNERS_MAX - 4);
    }

    #[test]
    fn one_that_there_is_no_room_for_its_owner_joins_without() {
        let interfaces = Interfaces::new("v*".to_owned());
        let room = |owner: Option<&Owner>| match owner {
            Some(_) => Err(CaptureError::Ended),
            None => Ok(()),
        };
        let owner = Owner::default();
        let join = || interfaces.join("v1", Some(&owner), room).unwrap();
        assert_eq!([join(), join()], [1, 1]);
        assert_eq!(interfaces.known()[0].owner, None);
    }
}
