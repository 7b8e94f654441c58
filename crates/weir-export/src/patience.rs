//! Time limits of an export, and its waits for disk space.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::limits::AT_ONCE_TIME_MAX;

/// Pause between two attempts to write to a full disk.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// A request that exports end at once, which any thread may make. Waiting records are then dropped, and counted. Clones
/// share the request.
#[derive(Clone, Debug, Default)]
pub struct EndAtOnce(Arc<OnceLock<Instant>>);

impl EndAtOnce {
    /// Makes the request. The time of the first call counts.
    pub fn ask(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Returns whether the request was made.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns whether the request was made more than [`AT_ONCE_TIME_MAX`] ago.
    pub(crate) fn is_over(&self) -> bool {
        self.0.get().is_some_and(|asked| asked.elapsed() > AT_ONCE_TIME_MAX)
    }
}

/// State that an export and its queue share: time limits, and how often a disk was full.
#[derive(Default)]
pub struct Patience {
    /// Set when the export has to end. Records that still wait at this time are dropped.
    finish_by: OnceLock<Instant>,
    at_once: EndAtOnce,
    /// How often a disk was found full.
    full: AtomicU64,
    on_full: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Patience {
    /// Creates the state; a request through `at_once` ends the export. The export's thread calls `on_full` the first
    /// time that it finds its disk full.
    #[must_use]
    pub fn new(at_once: EndAtOnce, on_full: impl Fn() + Send + Sync + 'static) -> Patience {
        Patience { at_once, on_full: Some(Box::new(on_full)), ..Patience::default() }
    }

    /// Returns how often the export found its disk full.
    #[must_use]
    pub fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Returns whether the export has to end: at once, or because its time is over.
    pub(crate) fn is_over(&self) -> bool {
        self.at_once.is_asked_for()
            || self.finish_by.get().is_some_and(|end| Instant::now() >= *end)
    }

    pub(crate) fn at_once(&self) -> &EndAtOnce {
        &self.at_once
    }

    pub(crate) fn finish_by(&self) -> Option<Instant> {
        self.finish_by.get().copied()
    }

    /// Sets the time at which the export has to end. Only the first call has an effect.
    pub(crate) fn end_by(&self, end: Instant) {
        self.finish_by.get_or_init(|| end);
    }

    /// Repeats `attempt` while it fails because a disk is full: for at most this time, and only until the export has to
    /// end.
    pub(crate) fn until_there_is_room<T>(
        &self,
        at_most: Duration,
        mut attempt: impl FnMut() -> io::Result<T>,
    ) -> io::Result<T> {
        let mut since = None;
        loop {
            let error = match attempt() {
                Err(error) if is_full(&error) => error,
                other => return other,
            };
            let since = *since.get_or_insert_with(|| {
                self.count_full();
                Instant::now()
            });
            if since.elapsed() >= at_most || self.is_over() {
                return Err(error);
            }
            thread::sleep(FULL_PAUSE);
        }
    }

    fn count_full(&self) {
        let before = self.full.fetch_add(1, Ordering::Relaxed);
        if let Some(on_full) = self.on_full.as_ref().filter(|_| before == 0) {
            on_full();
        }
    }
}

/// Returns whether the error means that a disk or a quota is full.
fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn a_full_disk_is_tried_again_and_said_once() {
        let said = Arc::new(AtomicU64::new(0));
        let times = Arc::clone(&said);
        let on_full = move || {
            times.fetch_add(1, Ordering::Relaxed);
        };
        let patience = Patience::new(EndAtOnce::default(), on_full);
        let full = || io::Error::from(io::ErrorKind::StorageFull);
        for round in 1..3 {
            let mut tries = 0;
            let attempt = || {
                tries += 1;
                if tries < 3 { Err(full()) } else { Ok(tries) }
            };
            assert_eq!(patience.until_there_is_room(Duration::MAX, attempt).unwrap(), 3);
            assert_eq!((patience.full(), said.load(Ordering::Relaxed)), (round, 1));
        }
        // No other error is waited out, and a disk that stays full is not waited for for ever.
        let other = || Err::<(), _>(io::Error::from(io::ErrorKind::NotFound));
        let error = patience.until_there_is_room(Duration::MAX, other).unwrap_err();
        assert_eq!((error.kind(), patience.full()), (io::ErrorKind::NotFound, 2));
        let always = || Err::<(), _>(full());
        patience.until_there_is_room(Duration::ZERO, always).unwrap_err();
        assert_eq!((patience.full(), said.load(Ordering::Relaxed)), (3, 1));
    }

    #[test]
    fn nobody_waits_for_room_once_all_is_to_be_over() {
        let full = || Err::<(), _>(io::ErrorKind::QuotaExceeded.into());
        let wait = |patience: &Patience| {
            let error = patience.until_there_is_room(Duration::MAX, full).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::QuotaExceeded);
        };
        let ended = Patience::default();
        ended.end_by(Instant::now());
        wait(&ended);
        let (at_once, is_waiting) = (EndAtOnce::default(), Arc::new(AtomicBool::new(false)));
        let begun = Arc::clone(&is_waiting);
        let patience = Patience::new(at_once.clone(), move || begun.store(true, Ordering::Release));
        thread::scope(|scope| {
            let waiting = scope.spawn(|| wait(&patience));
            let start = Instant::now();
            while !is_waiting.load(Ordering::Acquire) && !waiting.is_finished() {
                assert!(start.elapsed() < Duration::from_secs(60), "it does not wait");
                thread::sleep(Duration::from_millis(1));
            }
            at_once.ask();
        });
    }
}
