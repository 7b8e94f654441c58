//! Searches for a shorter list of events that also fails.

use crate::event::Event;

/// Removes smaller and smaller parts of the events as long as `fails` returns true for the rest. Returns a list from
/// which no single event can be removed.
///
/// Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28(2), 2002, without
/// the tests of the parts alone.
pub fn shrink(events: &[Event], mut fails: impl FnMut(&[Event]) -> bool) -> Vec<Event> {
    let mut left = events.to_vec();
    let mut part = left.len().div_ceil(2).max(1);
    loop {
        let mut at = 0;
        let before = left.len();
        while at < left.len() {
            let end = (at + part).min(left.len());
            let shorter: Vec<Event> = [&left[..at], &left[end..]].concat();
            if fails(&shorter) {
                left = shorter;
            } else {
                at = end;
            }
        }
        // A single event that could not be removed before may be removable now.
        if part == 1 && left.len() == before {
            return left;
        }
        part = part.div_ceil(2).max(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_all_that_is_needed() {
        let events: Vec<Event> = (0..500).map(Event::Start).collect();
        let needed = [Event::Start(3), Event::Start(250), Event::Start(251), Event::Start(499)];
        let left = shrink(&events, |some| needed.iter().all(|one| some.contains(one)));
        assert_eq!(left, needed);
    }
}
