//! Messages for the operator of the daemon.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::source::Info;
use weir_plug::Who;

use crate::limits::{REFUSAL_CHARS_MAX, REFUSALS_A_MINUTE_MAX};

/// Writes lines to the daemon's log.
pub struct Journal {
    log: Box<dyn Fn(&str) + Send + Sync>,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    /// Number of refusals since the daemon started.
    count: u64,
    /// Beginning of the current minute. The next two fields count the refusals in it that were logged and that were
    /// not.
    since: Option<Instant>,
    said: u32,
    left_out: u64,
}

impl Journal {
    /// Creates a journal that passes its lines to `log`.
    pub fn new(log: impl Fn(&str) + Send + Sync + 'static) -> Journal {
        Journal { log: Box::new(log), refusals: Mutex::default() }
    }

    /// Logs a line.
    pub fn say(&self, line: &str) {
        (self.log)(line);
    }

    /// Logs that a source was opened for its first client.
    pub fn opened(&self, source: &str, info: &Info) {
        let hook = info.hook.map_or_else(String::new, |hook| format!(" at {hook}"));
        (self.log)(&format!("{source} is captured with {}{hook}: {}", info.engine, info.why));
    }

    /// Logs that a client was refused a feed. Only a limited number of refusals is logged each minute; the others are
    /// only counted.
    pub fn refused(&self, who: &Who, source: &str, why: &str) {
        let mut refusals = self.refusals.lock().unwrap_or_else(PoisonError::into_inner);
        refusals.count += 1;
        let now = Instant::now();
        let is_over = |since: Instant| now.duration_since(since) >= Duration::from_secs(60);
        if refusals.since.is_none_or(is_over) {
            if refusals.left_out > 0 {
                (self.log)(&format!("{} more were refused in that minute", refusals.left_out));
            }
            let count = refusals.count;
            *refusals = Refusals { count, since: Some(now), ..Refusals::default() };
        }
        if refusals.said >= REFUSALS_A_MINUTE_MAX {
            refusals.left_out += 1;
            return;
        }
        refusals.said += 1;
        let line = format!("{who} was refused '{source}': {why}");
        (self.log)(&plain(&line));
    }

    /// Returns the number of refused feeds.
    pub fn refusals(&self) -> u64 {
        self.refusals.lock().unwrap_or_else(PoisonError::into_inner).count
    }
}

/// Returns one short line without control characters, because a client has chosen a part of the text.
fn plain(line: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    line.chars().map(shown).take(REFUSAL_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use weir_plug::Credentials;

    use super::*;

    #[test]
    fn refusals_are_told_on_one_line_each_and_not_without_end() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let own = Arc::clone(&lines);
        let journal = Journal::new(move |line| own.lock().unwrap().push(line.to_owned()));
        for _ in 0..1000 {
            journal.refused(&Who::Process(Credentials::default()), "a\nb", &"x".repeat(10_000));
        }
        let lines = lines.lock().unwrap();
        assert_eq!((lines.len(), journal.refusals()), (REFUSALS_A_MINUTE_MAX as usize, 1000));
        assert!(lines.iter().all(|line| line.chars().count() == REFUSAL_CHARS_MAX));
        assert!(lines[0].starts_with("user 0 (process 0) was refused 'a b': xxx"), "{}", lines[0]);
    }
}
