//! Counts the frames of a source by their fate.

use std::collections::BTreeMap;
use std::fmt;

/// `offered = filtered + blocked + sampled + captured + named drops`, exact to the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames that reached the hook. Not counted by the writer of the ring.
    pub offered: u64,
    /// Frames that a filter or the direction excluded.
    pub filtered: u64,
    /// Whether a filter in the kernel excluded further frames, which nobody could count. No count here includes them,
    /// not even `offered`.
    pub filtered_uncounted: bool,
    /// Frames that passed the filter, and that a block list excluded.
    pub blocked: u64,
    /// Frames that passed the filter, and that sampling excluded.
    pub sampled: u64,
    /// Frames written into the ring.
    pub captured: u64,
    /// Kept bytes of the captured frames.
    pub kept_bytes: u64,
    /// Bytes of the captured frames on the wire.
    pub wire_bytes: u64,
    /// Offload super-frames among the captured frames.
    pub super_frames: u64,
    /// Lost frames by the name of the place where they were lost.
    pub drops: BTreeMap<&'static str, u64>,
    /// Frames that the NIC or driver reports as lost before the hook. They are not part of the equation above, because
    /// they cannot be read at the same instant. `None` if this number is not available.
    pub missed_before: Option<u64>,
}

impl Ledger {
    /// Returns the sum of all named drops.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Returns the number of frames that the filter accepted. Never below 0: if a source fails while it stops, its
    /// counts may be of different moments.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.offered.saturating_sub(self.filtered)
    }

    /// Returns `offered - (filtered + blocked + sampled + captured + drops)`; 0 if every offered frame is accounted
    /// for.
    #[must_use]
    pub fn unexplained(&self) -> i128 {
        i128::from(self.offered)
            - i128::from(self.filtered)
            - i128::from(self.blocked)
            - i128::from(self.sampled)
            - i128::from(self.captured)
            - i128::from(self.dropped())
    }

    /// Whether every offered frame is accounted for.
    #[must_use]
    pub fn closes(&self) -> bool {
        self.unexplained() == 0
    }

    /// Returns the counts since the ledger was `base`. Its `offered` is the sum of the other counts, because the counts
    /// of a running feed are not read at one instant.
    #[must_use]
    pub fn since(&self, base: &Ledger) -> Ledger {
        let drops = self.drops.iter().map(|(&name, &count)| {
            (name, count.saturating_sub(base.drops.get(name).copied().unwrap_or_default()))
        });
        let mut since = Ledger {
            offered: 0,
            filtered: self.filtered.saturating_sub(base.filtered),
            filtered_uncounted: self.filtered_uncounted,
            blocked: self.blocked.saturating_sub(base.blocked),
            sampled: self.sampled.saturating_sub(base.sampled),
            captured: self.captured.saturating_sub(base.captured),
            kept_bytes: self.kept_bytes.saturating_sub(base.kept_bytes),
            wire_bytes: self.wire_bytes.saturating_sub(base.wire_bytes),
            super_frames: self.super_frames.saturating_sub(base.super_frames),
            drops: drops.collect(),
            missed_before: self
                .missed_before
                .map(|missed| missed.saturating_sub(base.missed_before.unwrap_or_default())),
        };
        since.offered = since.accounted_for();
        since
    }

    /// Returns the number of frames whose fate is counted: the number of offered frames, if the ledger closes.
    #[must_use]
    pub fn accounted_for(&self) -> u64 {
        self.filtered + self.blocked + self.sampled + self.captured + self.dropped()
    }

    /// Adds the counts of another source.
    pub fn add(&mut self, other: &Ledger) {
        self.offered += other.offered;
        self.filtered += other.filtered;
        self.filtered_uncounted |= other.filtered_uncounted;
        self.blocked += other.blocked;
        self.sampled += other.sampled;
        self.captured += other.captured;
        self.kept_bytes += other.kept_bytes;
        self.wire_bytes += other.wire_bytes;
        self.super_frames += other.super_frames;
        for (name, count) in &other.drops {
            *self.drops.entry(name).or_default() += count;
        }
        self.missed_before = match (self.missed_before, other.missed_before) {
            (None, None) => None,
            (a, b) => Some(a.unwrap_or(0) + b.unwrap_or(0)),
        };
    }
}

impl fmt::Display for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.closes() { "=" } else { "≠" };
        let uncounted = if self.filtered_uncounted { " (others uncounted)" } else { "" };
        write!(
            f,
            "offered {} {sign} filtered {}{uncounted} + blocked {} + sampled {} + captured {}",
            self.offered, self.filtered, self.blocked, self.sampled, self.captured
        )?;
        for (name, count) in &self.drops {
            write!(f, " + {name} {count}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_a_failed_stop_do_not_wrap() {
        let ledger = |offered, filtered| Ledger { offered, filtered, ..Ledger::default() };
        assert_eq!(ledger(10, 3).accepted(), 7);
        assert_eq!(ledger(3, 10).accepted(), 0);
        assert_eq!(ledger(3, 10).unexplained(), -7);
    }

    #[test]
    fn a_ledger_since_another_closes_although_both_are_of_no_instant() {
        let ledger = |offered, captured, lost| Ledger {
            offered,
            captured,
            drops: [("kernel", lost)].into(),
            ..Ledger::default()
        };
        // Frames that are offered by now and captured or lost in a moment.
        let since = ledger(100, 80, 12).since(&ledger(50, 45, 2));
        assert!(since.closes(), "{since}");
        assert_eq!((since.offered, since.captured, since.drops["kernel"]), (45, 35, 10));
    }

    #[test]
    fn a_frame_that_nobody_accounts_for_shows() {
        let mut ledger = Ledger {
            offered: 10,
            captured: 5,
            filtered: 1,
            blocked: 1,
            sampled: 1,
            ..Ledger::default()
        };
        ledger.drops.insert("kernel", 1);
        assert!(!ledger.closes());
        assert_eq!(ledger.unexplained(), 1);
        *ledger.drops.get_mut("kernel").unwrap() += 1;
        assert!(ledger.closes());
    }
}
