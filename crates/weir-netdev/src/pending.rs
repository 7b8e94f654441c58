//! Counts frames that were sent into the interface, and have neither come out nor been refused yet.

use std::time::Instant;

use crate::backlog::PATIENCE;

/// Number of sent frames that are not accounted for. Most come before the sending call returns. A frame that waits in
/// another CPU's backlog comes within [`PATIENCE`], or was dropped there.
pub(crate) struct Pending {
    /// Frames that were sent since the start.
    let_out: u64,
    /// Of these, frames that came out or were refused.
    decided: u64,
    /// The number of frames that had been sent at this time.
    mark: (Instant, u64),
}

impl Pending {
    pub(crate) fn new(now: Instant) -> Pending {
        Pending { let_out: 0, decided: 0, mark: (now, 0) }
    }

    /// Returns the number of frames that are not accounted for.
    pub(crate) fn frames(&self) -> u64 {
        self.let_out - self.decided
    }

    /// Adds frames that are sent now.
    pub(crate) fn let_out(&mut self, frames: u64) {
        self.let_out += frames;
    }

    /// Adds frames that came out or were refused; returns how many of them were pending.
    pub(crate) fn decide(&mut self, frames: u64) -> u64 {
        let frames = frames.min(self.frames());
        self.decided += frames;
        frames
    }

    /// Gives up frames that have waited too long; returns their number.
    pub(crate) fn overdue(&mut self, now: Instant) -> u64 {
        let (since, let_out) = self.mark;
        if now.duration_since(since) < PATIENCE {
            return 0;
        }
        self.mark = (now, self.let_out);
        self.decide(let_out.saturating_sub(self.decided))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_come_in_time_is_pending_no_more() {
        let begin = Instant::now();
        let mut pending = Pending::new(begin);
        pending.let_out(10);
        assert_eq!((pending.decide(7), pending.frames()), (7, 3));
        assert_eq!(pending.overdue(begin + PATIENCE), 0, "nothing is known to be so old");
        pending.let_out(5);
        assert_eq!(pending.decide(2), 2);
        // Of the first ten nine have come.
        assert_eq!(pending.overdue(begin + PATIENCE * 2), 1);
        assert_eq!(pending.overdue(begin + PATIENCE * 2), 0);
        assert_eq!(pending.frames(), 5);
        assert_eq!((pending.decide(9), pending.frames()), (5, 0), "others came, too");
    }
}
