//! The interfaces of a source that has several, and what is counted of each.
//!
//! They are numbered as in the source's rings. Number 0 is the source itself, the pattern: no frame is of it. So a ring
//! can be made before any interface is there.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_frame::pcapng::Interface;
use weir_ring::Ledger;

use crate::error::CaptureError;
use crate::kernel::netns::Owner;
use crate::limits::{LATE_OWNERS_MAX, PATTERN_INTERFACES_MAX};

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
    /// Owner of its frames, if it was found. One of the same name whose frames are another's has another number.
    pub owner: Option<Owner>,
    /// Whether it is there now, and its frames are captured.
    pub is_member: bool,
    /// Its counts.
    pub ledger: Ledger,
}

/// Counts of an interface in a fan-out.
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
        // One thread stores. A caller waits for the source's stop before it takes a count for exact.
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

/// Counts of the engine for an interface before any fan-out.
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
    pub(crate) owner: Option<Owner>,
    pub(crate) is_member: bool,
    /// The number that it has had since its owner was found.
    continued_as: Option<u32>,
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

    /// Gives an interface that joins its number: one that was there before, with the same owner, has its old one, and
    /// `describe` describes any other in all rings. Where these have no room for an owner, it has none.
    ///
    /// # Errors
    /// There have been too many, or that of `describe`; nothing has changed then.
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

    /// Whether an interface may have another number once its owner is found: numbers, and room for descriptions, are
    /// for those that come.
    pub(crate) fn may_continue(&self) -> bool {
        let continued = self.lock().iter().filter(|known| known.continued_as.is_some()).count();
        continued < LATE_OWNERS_MAX
    }

    /// The frames of an interface have another number from here on, since its owner was found.
    pub(crate) fn continue_as(&self, old: u32, new: u32) {
        if let Some(known) = self.lock().get_mut(old as usize - 1).filter(|_| old != new) {
            (known.is_member, known.continued_as) = (false, Some(new));
        }
    }

    /// Adds the counts of an interface before its owner was found to those that it has had since. `ledgers` are those
    /// of all interfaces, in order.
    pub(crate) fn join_ledgers(&self, mut ledgers: Vec<InterfaceLedger>) -> Vec<InterfaceLedger> {
        let known = self.known();
        let next = |number: u32| known[number as usize - 1].continued_as;
        // A number that is continued is given to nobody any more, so this ends.
        let last = |number| std::iter::successors(Some(number), |&number| next(number)).last();
        let mut at = 0;
        while let Some(own) = ledgers.get(at) {
            let into = last(own.id).filter(|&last| last != own.id);
            // One that came while these were read has none yet.
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

    /// An interface has left; its number stays its own.
    pub(crate) fn leave(&self, number: u32) {
        if let Some(known) = self.lock().get_mut(number as usize - 1) {
            known.is_member = false;
        }
    }

    /// Held for moments only, also by the thread that moves frames. The data is valid even if a thread
    /// panicked while holding it.
    fn lock(&self) -> MutexGuard<'_, Vec<Known>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the rings of a feed whose own interface is `of` say of the one called `name`.
    pub(crate) fn describe(&self, of: &Interface, name: &str, owner: Option<&Owner>) -> Interface {
        let own = match of.name.rfind(&self.pattern) {
            Some(at) => {
                format!("{}{name}{}", &of.name[..at], &of.name[at + self.pattern.len()..])
            }
            None => name.to_owned(),
        };
        // The filter stands once, in the feed's own interface: the header area has room for more interfaces so.
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
        // It comes back, and its owner is found again. Another one never has an owner.
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
        // A VM gets a tap that another process made, and comes back.
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
