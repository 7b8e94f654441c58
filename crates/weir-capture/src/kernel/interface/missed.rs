//! What the NIC or its driver lost before any hook: `rx_missed_errors` and `rx_fifo_errors`, asked over
//! rtnetlink, because /proc/net/dev adds to the former what the stack dropped later.

use std::time::{Duration, Instant};

use super::link::{ask, attribute};

const IFLA_STATS64: u16 = 23;
/// Offsets of the two counters in `struct rtnl_link_stats64`. Source: linux/if_link.h.
const RX_FIFO_ERRORS_AT: usize = 8 * 14;
const RX_MISSED_ERRORS_AT: usize = 8 * 15;

/// How old an answer may be while a capture runs. The kernel takes a lock for each, and some drivers ask
/// their NIC; who asks is the thread that captures.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// What an interface says it lost since a capture of it began.
#[derive(Debug)]
pub struct Missed {
    index: u32,
    at_start: Option<u64>,
    last: Option<u64>,
    asked: Instant,
}

impl Missed {
    /// Of the interface of this index; asks nothing yet.
    #[must_use]
    pub fn new(index: u32) -> Missed {
        Missed { index, at_start: None, last: None, asked: Instant::now() }
    }

    /// The capture begins now.
    pub fn begin(&mut self) {
        self.ask();
        self.at_start = self.last;
    }

    /// Asks now, whatever was asked before: at the end of a capture.
    pub fn ask(&mut self) {
        self.last = missed(self.index);
        self.asked = Instant::now();
    }

    /// Frames lost since the beginning, as of a second ago at most; `None` if nobody can tell.
    pub fn frames(&mut self) -> Option<u64> {
        if self.asked.elapsed() >= KEPT_FOR {
            self.ask();
        }
        Some(self.last?.saturating_sub(self.at_start?))
    }
}

/// Frames that the interface of this index says it lost; `None` if it cannot be asked.
fn missed(ifindex: u32) -> Option<u64> {
    let answer = ask(ifindex).ok()?;
    let value = attribute(&answer, IFLA_STATS64)?;
    let word = |at: usize| Some(u64::from_ne_bytes(value.get(at..at + 8)?.try_into().ok()?));
    Some(word(RX_FIFO_ERRORS_AT)? + word(RX_MISSED_ERRORS_AT)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_loopback_device_can_be_asked() {
        assert!(missed(1).is_some());
        assert_eq!(missed(u32::MAX), None);
    }

    #[test]
    fn an_answer_is_kept_for_a_second_unless_it_must_be_exact() {
        let mut lost = Missed::new(1);
        assert_eq!(lost.frames(), None, "nothing has begun");
        lost.begin();
        assert_eq!(lost.frames(), Some(0));
        // Asked now, it would say that there is no such interface. A second that lies ahead is not over.
        lost.index = u32::MAX;
        lost.asked = Instant::now() + Duration::from_secs(3600);
        assert_eq!(lost.frames(), Some(0));
        lost.asked = Instant::now().checked_sub(KEPT_FOR).expect("this machine is up for a second");
        assert_eq!(lost.frames(), None);
        lost.index = 1;
        lost.ask();
        assert_eq!(lost.frames(), Some(0));
    }
}
