//! Decides which entry is blocked because of which alert, and for how long. Callers pass the current time.

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use serde::Serialize;
use weir_alert::eve::{self, NoAlert};
use weir_alert::{Alert, Line, Rules, What};
use weir_client::limits::BLOCK_TIME_MIN;
use weir_filter::block::{ENTRIES_MAX, Entry};

/// Entries that are blocked, and entries that are to be blocked.
pub struct Blocker {
    rules: Rules,
    what: What,
    time: Duration,
    /// Blocked entries, each with the time when it expires, as far as this command knows.
    live: BTreeMap<Entry, Instant>,
    pending: BTreeMap<Entry, Pending>,
    counts: Counts,
}

/// An entry that is to be blocked.
struct Pending {
    end: Instant,
    /// The alert because of which it is blocked; `None` if the entry was reported before.
    alert: Option<Signature>,
    /// The entry was blocked before, but the list no longer has it.
    is_lost: bool,
}

/// The part of an alert that is printed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signature {
    pub id: Option<u64>,
    pub text: String,
}

/// Counts of lines, alerts and entries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub lines: u64,
    /// Lines with an event other than an alert.
    pub other_events: u64,
    /// Lines that could not be parsed as an event.
    pub not_understood: u64,
    /// Lines that are too long.
    pub too_long: u64,
    pub alerts: u64,
    /// Alerts that the rules leave out.
    pub left_out: u64,
    /// Alerts of protocols without ports, where flows are blocked.
    pub without_ports: u64,
    /// Alerts from before the start that are older than the block time.
    pub too_old: u64,
    /// Alerts whose entry was already blocked or pending.
    pub repeated: u64,
    /// Entries that were blocked.
    pub blocked: u64,
    /// Entries that were blocked again, because the feed or the daemon was restarted with an empty list.
    pub blocked_again: u64,
    /// Entries that were refused, because the list was full or for another reason.
    pub refused: u64,
    /// Entries that were still pending at the end.
    pub not_sent: u64,
}

impl Blocker {
    pub fn new(rules: Rules, what: What, time: Duration) -> Blocker {
        let (live, pending, counts) = (BTreeMap::new(), BTreeMap::new(), Counts::default());
        Blocker { rules, what, time, live, pending, counts }
    }

    pub fn counts(&self) -> &Counts {
        &self.counts
    }

    /// Processes a line. `is_old`: the line was in the file at the start, so the block time counts from the time of the
    /// alert. Otherwise it counts from now.
    pub fn take(&mut self, line: Line, is_old: bool, now: Instant, clock: SystemTime) {
        let bytes = match line {
            // An empty line, or the empty rest after the last line.
            Line::Whole(bytes) if bytes.trim_ascii().is_empty() => return,
            Line::Whole(bytes) => Some(bytes),
            Line::TooLong => None,
        };
        self.counts.lines += 1;
        let Some(bytes) = bytes else {
            self.counts.too_long += 1;
            return;
        };
        match eve::parse(bytes) {
            Ok(alert) => self.alert(alert, is_old, now, clock),
            Err(NoAlert::OtherEvent) => self.counts.other_events += 1,
            Err(NoAlert::NotUnderstood) => self.counts.not_understood += 1,
        }
    }

    fn alert(&mut self, alert: Alert, is_old: bool, now: Instant, clock: SystemTime) {
        self.counts.alerts += 1;
        if !self.rules.take(&alert) {
            self.counts.left_out += 1;
            return;
        }
        let Some(entry) = alert.entry(self.what) else {
            self.counts.without_ports += 1;
            return;
        };
        // A time in the future counts as now.
        let age = alert.time.filter(|_| is_old).and_then(|time| clock.duration_since(time).ok());
        let left = self.time.saturating_sub(age.unwrap_or_default());
        if left.is_zero() {
            self.counts.too_old += 1;
            return;
        }
        self.want(
            entry,
            now + left,
            now,
            Signature { id: alert.signature_id, text: alert.signature },
        );
    }

    fn want(&mut self, entry: Entry, end: Instant, now: Instant, alert: Signature) {
        if let Some(pending) = self.pending.get_mut(&entry) {
            pending.end = pending.end.max(end);
            self.counts.repeated += 1;
            return;
        }
        let lives_until = self.live.get(&entry).copied().filter(|until| *until > now);
        if let Some(until) = lives_until {
            self.counts.repeated += 1;
            // The expiry of an entry with further alerts is extended about twice per block time, not with each alert.
            if end > until + self.time / 2 {
                self.pending.insert(entry, Pending { end, alert: None, is_lost: false });
            }
            return;
        }
        if self.live.len() + self.pending.len() >= ENTRIES_MAX {
            self.live.retain(|_, until| *until > now);
        }
        if self.live.len() + self.pending.len() >= ENTRIES_MAX {
            self.counts.refused += 1;
            return;
        }
        self.pending.insert(entry, Pending { end, alert: Some(alert), is_lost: false });
    }

    pub fn has_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns the next entries to block, at most `most`, and their block time.
    ///
    /// The remaining times are rounded up to tenths of the block time, and the returned entries have the same rounded
    /// time. So old alerts need about ten messages, not one each.
    pub fn batch(&mut self, now: Instant, most: usize) -> Option<(Duration, Vec<Entry>)> {
        self.pending.retain(|_, pending| pending.end > now);
        let step = (self.time / 10).max(BLOCK_TIME_MIN);
        let steps_of = |pending: &Pending| {
            pending.end.duration_since(now).as_nanos().div_ceil(step.as_nanos())
        };
        let steps = self.pending.values().map(steps_of).max()?;
        let same = self.pending.iter().filter(|(_, pending)| steps_of(pending) == steps);
        let entries = same.map(|(entry, _)| *entry).take(most).collect();
        let time = step.saturating_mul(u32::try_from(steps).unwrap_or(u32::MAX));
        Some((time.min(self.time).max(BLOCK_TIME_MIN), entries))
    }

    /// Records that these entries are blocked for this time. Returns those that were not reported before.
    pub fn blocked(
        &mut self,
        entries: &[Entry],
        time: Duration,
        now: Instant,
    ) -> Vec<(Entry, Signature)> {
        let mut news = Vec::new();
        for entry in entries {
            let until = self.live.entry(*entry).or_insert(now);
            *until = (*until).max(now + time);
            let Some(pending) = self.pending.remove(entry) else { continue };
            self.counts.blocked_again += u64::from(pending.is_lost);
            if let Some(alert) = pending.alert {
                self.counts.blocked += 1;
                news.push((*entry, alert));
            }
        }
        news
    }

    /// Records that these entries were refused. A further alert makes them pending again.
    pub fn refused(&mut self, entries: &[Entry]) {
        entries.iter().for_each(|entry| _ = self.pending.remove(entry));
        self.counts.refused += entries.len() as u64;
    }

    /// Records that the lists are empty again. Entries that have not expired become pending.
    pub fn lost(&mut self, now: Instant) {
        for (entry, end) in std::mem::take(&mut self.live) {
            if end > now {
                let lost = Pending { end, alert: None, is_lost: true };
                let pending = self.pending.entry(entry).or_insert(lost);
                (pending.end, pending.is_lost) = (pending.end.max(end), true);
            }
        }
    }

    /// Counts the pending entries as not sent, and drops them.
    pub fn end(&mut self) {
        self.counts.not_sent += std::mem::take(&mut self.pending).len() as u64;
    }
}

#[cfg(test)]
#[path = "blocker_tests.rs"]
mod tests;
