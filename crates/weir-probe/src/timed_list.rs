//! A block list whose entries may expire: changes, expired entries, and the time of the next check. It has no clock:
//! callers pass the time.

use std::collections::BTreeMap;
use std::time::Instant;

use weir_filter::block::Entry;

use crate::limits::EXPIRY_PAUSE_MIN;

/// The time at which an entry expires; `None`: never.
pub type End = Option<Instant>;

/// A change of a block list: entries to remove, and entries to add until a given time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListChange {
    /// Entries to remove. Entries that do not exist are ignored.
    pub remove: Vec<Entry>,
    /// Entries to block.
    pub add: Vec<Entry>,
    /// When the entries of `add` expire. An entry that exists already expires at the later of both times.
    pub end: End,
}

/// Undoes a change: the previous states of the entries that it has changed; `None`: the entry did not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Undo(pub(crate) BTreeMap<Entry, Option<End>>);

impl Undo {
    /// Returns the number of entries that the change has changed.
    #[must_use]
    pub fn entries(&self) -> usize {
        self.0.len()
    }

    /// Returns the entries that the change has changed.
    pub fn touched(&self) -> impl Iterator<Item = &Entry> {
        self.0.keys()
    }
}

/// A block list: entries, and when each expires.
#[derive(Clone, Debug, Default)]
pub struct TimedList {
    entries: BTreeMap<Entry, End>,
    /// No entry expires before this time.
    next: End,
    /// When expired entries were last removed.
    expired: Option<Instant>,
}

impl TimedList {
    /// Returns the entries.
    #[must_use]
    pub fn entries(&self) -> &BTreeMap<Entry, End> {
        &self.entries
    }

    /// Returns the entries that a change would change, and their new states. Entries that stay as they are are not
    /// included.
    #[must_use]
    pub fn plan(&self, change: &ListChange) -> BTreeMap<Entry, Option<End>> {
        let gone = change.remove.iter().filter(|entry| self.entries.contains_key(entry));
        let mut planned: BTreeMap<Entry, Option<End>> = gone.map(|entry| (*entry, None)).collect();
        for entry in &change.add {
            let is_removed = planned.contains_key(entry);
            match self.entries.get(entry).filter(|_| !is_removed) {
                Some(before) if later(*before, change.end) == *before => {}
                Some(_) | None => _ = planned.insert(*entry, Some(change.end)),
            }
        }
        planned
    }

    /// Carries out a plan, and returns the value that undoes it.
    pub fn carry_out(&mut self, planned: &BTreeMap<Entry, Option<End>>) -> Undo {
        let mut undo = Undo::default();
        for (entry, then) in planned {
            let before = match then {
                Some(end) => {
                    let soonest = [self.next, *end].into_iter().flatten().min();
                    self.next = soonest;
                    self.entries.insert(*entry, *end)
                }
                None => self.entries.remove(entry),
            };
            undo.0.insert(*entry, before);
        }
        undo
    }

    /// Returns the entries that have expired. Empty if others were removed shortly before, because the engine builds a
    /// new list each time.
    #[must_use]
    pub fn due(&mut self, now: Instant) -> Vec<Entry> {
        if self.next().is_none_or(|next| now < next) {
            return Vec::new();
        }
        let ends = self.entries.iter().filter_map(|(entry, end)| Some((entry, (*end)?)));
        let (due, later): (Vec<_>, Vec<_>) = ends.partition(|(_, end)| *end <= now);
        self.next = later.iter().map(|(_, end)| *end).min();
        due.into_iter().map(|(entry, _)| *entry).collect()
    }

    /// Removes these entries, which the engine does not block any more.
    pub fn expired(&mut self, entries: &[Entry], now: Instant) {
        entries.iter().for_each(|entry| _ = self.entries.remove(entry));
        self.expired = Some(now);
    }

    /// Records that expired entries could not be removed: they are due again after a pause.
    pub fn not_expired(&mut self, now: Instant) {
        self.next = Some(now);
        self.expired = Some(now);
    }

    /// Returns when to call [`due`](TimedList::due) next; `None` if no entry expires.
    #[must_use]
    pub fn next(&self) -> End {
        let next = self.next?;
        Some(self.expired.map_or(next, |expired| next.max(expired + EXPIRY_PAUSE_MIN)))
    }
}

/// Returns the later of two times.
fn later(one: End, other: End) -> End {
    Some(one?.max(other?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn entry(last: u8) -> Entry {
        Entry::Address([10, 0, 0, last].into())
    }

    fn add(entries: &[u8], end: End) -> ListChange {
        let add = entries.iter().map(|last| entry(*last)).collect();
        ListChange { add, end, ..ListChange::default() }
    }

    fn remove(entries: &[u8]) -> ListChange {
        let remove = entries.iter().map(|last| entry(*last)).collect();
        ListChange { remove, ..ListChange::default() }
    }

    fn make(list: &mut TimedList, change: &ListChange) -> Undo {
        let planned = list.plan(change);
        list.carry_out(&planned)
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn entries_end_when_their_time_is_over_and_others_stay() {
        let start = Instant::now();
        let mut list = TimedList::default();
        make(&mut list, &add(&[1], None));
        assert_eq!(list.next(), None);
        make(&mut list, &add(&[2], Some(start + 20 * SECOND)));
        make(&mut list, &add(&[3], Some(start + 10 * SECOND)));
        assert_eq!(list.next(), Some(start + 10 * SECOND));
        assert_eq!(list.due(start + 9 * SECOND), []);
        assert_eq!(list.due(start + 10 * SECOND), [entry(3)]);
        list.expired(&[entry(3)], start + 10 * SECOND);
        assert_eq!(list.next(), Some(start + 20 * SECOND));
        assert_eq!(list.due(start + 3600 * SECOND), [entry(2)]);
        list.expired(&[entry(2)], start + 3600 * SECOND);
        assert_eq!(list.next(), None);
        assert_eq!(list.entries().keys().copied().collect::<Vec<_>>(), [entry(1)]);
    }

    #[test]
    fn the_later_end_counts_and_what_is_blocked_for_good_stays() {
        let start = Instant::now();
        let mut list = TimedList::default();
        let until = |seconds| Some(start + seconds * SECOND);
        let end = |list: &TimedList| list.entries()[&entry(1)];
        make(&mut list, &add(&[1], until(10)));
        assert_eq!(make(&mut list, &add(&[1], until(5))).entries(), 0);
        assert_eq!(end(&list), until(10));
        assert_eq!(make(&mut list, &add(&[1], until(30))).entries(), 1);
        assert_eq!(end(&list), until(30));
        assert_eq!(list.due(start + 10 * SECOND), []);
        // An end that was found to be of no use is not asked for again.
        assert_eq!(list.next(), until(30));
        make(&mut list, &add(&[1], None));
        assert_eq!(make(&mut list, &add(&[1], until(30))).entries(), 0);
        assert_eq!((end(&list), list.due(start + 60 * SECOND)), (None, vec![]));
        // If it is removed and added in one change, its time begins again.
        make(&mut list, &ListChange { remove: vec![entry(1)], ..add(&[1], until(5)) });
        assert_eq!(end(&list), until(5));
        make(&mut list, &remove(&[1]));
        assert!(list.entries().is_empty() && list.due(start + 60 * SECOND).is_empty());
    }

    #[test]
    fn a_change_that_is_taken_back_leaves_entries_and_ends_as_they_were() {
        let start = Instant::now();
        let mut list = TimedList::default();
        make(&mut list, &add(&[1, 2], Some(start + SECOND)));
        let before = list.entries().clone();
        let change = ListChange { remove: vec![entry(2), entry(9)], ..add(&[1, 3], None) };
        let undo = make(&mut list, &change);
        assert_eq!(undo.entries(), 3);
        assert_ne!(list.entries(), &before);
        list.carry_out(&undo.0);
        assert_eq!(list.entries(), &before);
        assert_eq!(list.due(start + SECOND), [entry(1), entry(2)]);
    }

    #[test]
    fn ends_that_follow_each_other_closely_are_due_together() {
        let start = Instant::now();
        let mut list = TimedList::default();
        for last in 1..=100 {
            make(&mut list, &add(&[last], Some(start + u32::from(last) * SECOND / 100)));
        }
        assert_eq!(list.due(start + SECOND / 100), [entry(1)]);
        list.expired(&[entry(1)], start + SECOND / 100);
        let next = list.next().unwrap();
        assert_eq!(next, start + SECOND / 100 + EXPIRY_PAUSE_MIN);
        assert_eq!(list.due(start + SECOND / 2), []);
        assert_eq!(list.due(next).len(), 99);
        list.not_expired(next);
        assert_eq!(list.next(), Some(next + EXPIRY_PAUSE_MIN));
        assert_eq!(list.due(next + EXPIRY_PAUSE_MIN).len(), 99);
    }
}
