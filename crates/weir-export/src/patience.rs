//! How long an export goes on with the records that it has.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use crate::limits::AT_ONCE_TIME_MAX;

/// Between two tries to write to a disk that is full.
const FULL_PAUSE: Duration = Duration::from_millis(100);

/// Asks exports to end at once, from any thread: records that wait for them are dropped, and counted. Clones ask the
/// same ones.
#[derive(Clone, Debug, Default)]
pub struct EndAtOnce(Arc<OnceLock<Instant>>);

impl EndAtOnce {
    /// Asks for it. The first time counts.
    pub fn ask(&self) {
        self.0.get_or_init(Instant::now);
    }

    /// Whether it was asked for.
    #[must_use]
    pub fn is_asked_for(&self) -> bool {
        self.0.get().is_some()
    }

    /// Whether exports had the time that they then have.
    pub(crate) fn is_over(&self) -> bool {
        self.0.get().is_some_and(|asked| asked.elapsed() > AT_ONCE_TIME_MAX)
    }
}

/// State that an export and its queue share: the deadline of the export, and its present wait.
#[derive(Default)]
pub struct Patience {
    /// Called once nothing more comes: records that still wait by then are dropped.
    finish_by: OnceLock<Instant>,
    at_once: EndAtOnce,
    /// Times that a disk was full.
    full: AtomicU64,
    on_full: Option<Box<dyn Fn() + Send + Sync>>,
}

impl Patience {
    /// It is over once `at_once` was asked for. `on_full` is called, by the thread of the export, the first time that
    /// it finds its disk full.
    #[must_use]
    pub fn new(at_once: EndAtOnce, on_full: impl Fn() + Send + Sync + 'static) -> Patience {
        Patience { at_once, on_full: Some(Box::new(on_full)), ..Patience::default() }
    }

    /// How often the export found its disk full.
    #[must_use]
    pub fn full(&self) -> u64 {
        self.full.load(Ordering::Relaxed)
    }

    /// Whether all is to be over.
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

    /// The first time that is said counts.
    pub(crate) fn end_by(&self, end: Instant) {
        self.finish_by.get_or_init(|| end);
    }

    /// Tries again where a disk is full, so long at most, and not where all is to be over.
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

/// Whether there may be room later.
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
