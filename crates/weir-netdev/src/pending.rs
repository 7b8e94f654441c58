//! Frames that were let out and have not been seen yet.

use std::time::Instant;

use crate::backlog::PATIENCE;

/// How many of the frames that were let out are not accounted for. Most come before the call returns that let them
/// out; one that waits in another CPU's backlog comes within [`PATIENCE`], or was dropped there.
pub(crate) struct Pending {
    /// Frames that were let out, since the start.
    let_out: u64,
    /// Those of them that came, or that were refused.
    decided: u64,
    /// How many had been let out at this time.
    mark: (Instant, u64),
}

impl Pending {
    pub(crate) fn new(now: Instant) -> Pending {
        Pending { let_out: 0, decided: 0, mark: (now, 0) }
    }

    /// Frames that are not decided.
    pub(crate) fn frames(&self) -> u64 {
        self.let_out - self.decided
    }

    /// So many frames are let out.
    pub(crate) fn let_out(&mut self, frames: u64) {
        self.let_out += frames;
    }

    /// So many came or were refused; gives how many of them are pending ones.
    pub(crate) fn decide(&mut self, frames: u64) -> u64 {
        let frames = frames.min(self.frames());
        self.decided += frames;
        frames
    }

    /// Decides frames that will not come any more; gives how many.
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
