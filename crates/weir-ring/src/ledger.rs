//! Account of what became of every frame.

use std::collections::BTreeMap;
use std::fmt;

/// `offered = filtered + blocked + sampled + captured + named drops`, to the frame.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    /// Frames that came to the hook, by a count the writer does not make.
    pub offered: u64,
    /// Frames that a filter or the direction left out.
    pub filtered: u64,
    /// A filter in the kernel left out others, which nobody could count: they are in no number here, not in `offered`
    /// either.
    pub filtered_uncounted: bool,
    /// Frames that passed the filter, and that a block list left out.
    pub blocked: u64,
    /// Frames that passed the filter, and that sampling left out.
    pub sampled: u64,
    /// Frames written into the ring.
    pub captured: u64,
    /// Bytes kept of them.
    pub kept_bytes: u64,
    /// Bytes of them on the wire.
    pub wire_bytes: u64,
    /// Offload super-frames among them.
    pub super_frames: u64,
    /// Every place where a frame was lost, by name.
    pub drops: BTreeMap<&'static str, u64>,
    /// Losses that the NIC or driver reports before the hook; outside the identity, because they
    /// cannot be read at the same instant. `None` where nobody can tell.
    pub missed_before: Option<u64>,
}

impl Ledger {
    /// All named drops together.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.drops.values().sum()
    }

    /// Frames that the filter took. Never below 0: a source that failed at its stop may leave counts of different
    /// moments.
    #[must_use]
    pub fn accepted(&self) -> u64 {
        self.offered.saturating_sub(self.filtered)
    }

    /// `offered - (filtered + blocked + sampled + captured + drops)`; 0 when the ledger closes.
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

    /// Counts since the ledger was `base`. Offered are the frames that are accounted for, since the counts of a
    /// running feed are not of one instant.
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

    /// Frames that the ledger names a fate of: as many as were offered, if it closes.
    #[must_use]
    pub fn accounted_for(&self) -> u64 {
        self.filtered + self.blocked + self.sampled + self.captured + self.dropped()
    }

    /// Adds another source's ledger.
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
