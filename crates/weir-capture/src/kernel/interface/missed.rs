//! Losses in the NIC or its driver, before any hook: `rx_missed_errors` and `rx_fifo_errors`. They are read
//! by rtnetlink, since /proc/net/dev adds frames to the former that the stack dropped later.

use std::time::{Duration, Instant};

use super::link::{ask, attribute};

const IFLA_STATS64: u16 = 23;
/// Offsets of the two counters in `struct rtnl_link_stats64`. Source: linux/if_link.h.
const RX_FIFO_ERRORS_AT: usize = 8 * 14;
const RX_MISSED_ERRORS_AT: usize = 8 * 15;

/// Maximum age of an answer while a capture runs. The capturing thread makes the request, for which the
/// kernel takes a lock and some drivers query the NIC.
const KEPT_FOR: Duration = Duration::from_secs(1);

/// Losses that an interface has reported since its capture began.
#[derive(Debug)]
pub struct Missed {
    index: u32,
    /// Losses of earlier interfaces of the same name in the same capture.
    before: Option<u64>,
    at_start: Option<u64>,
    last: Option<u64>,
    asked: Instant,
}

impl Missed {
    /// Creates a counter for the interface with this index. Makes no request yet.
    #[must_use]
    pub fn new(index: u32) -> Missed {
        Missed { index, before: None, at_start: None, last: None, asked: Instant::now() }
    }

    /// Begins to count, at the beginning of the capture.
    pub fn begin(&mut self) {
        self.ask();
        self.at_start = self.last;
    }

    /// Begins to count for the next interface of a capture. `before`: losses of earlier interfaces of the same name.
    pub(crate) fn begin_after(&mut self, before: Option<u64>) {
        self.before = before;
        self.begin();
    }

    /// Asks now, whatever the age of the last answer; for the end of a capture.
    pub fn ask(&mut self) {
        self.last = missed(self.index);
        self.asked = Instant::now();
    }

    /// Returns the number of frames lost since the beginning; the number is at most a second old. `None` if it is not
    /// known.
    pub fn frames(&mut self) -> Option<u64> {
        if self.asked.elapsed() >= KEPT_FOR {
            self.ask();
        }
        match (self.last, self.at_start) {
            (Some(last), Some(at_start)) => {
                Some(self.before.unwrap_or(0) + last.saturating_sub(at_start))
            }
            _ => self.before,
        }
    }
}

/// Returns the losses that the interface with this index reports; `None` if the request failed.
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
    fn what_others_of_its_name_lost_is_not_forgotten() {
        let [mut there, mut gone] = [1, u32::MAX].map(Missed::new);
        there.begin_after(Some(7));
        gone.begin_after(Some(7));
        assert_eq!((there.frames(), gone.frames()), (Some(7), Some(7)));
    }

    #[test]
    fn an_answer_is_kept_for_a_second_unless_it_must_be_exact() {
        let mut lost = Missed::new(1);
        assert_eq!(lost.frames(), None, "nothing has begun");
        lost.begin();
        assert_eq!(lost.frames(), Some(0));
        // A new request would fail, as there is no such interface. With `asked` in the future the answer is
        // not too old.
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
