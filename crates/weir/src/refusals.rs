//! Refusals of a source by its daemon: when to ask again, and which the user was not told of.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_capture::CaptureError;

/// Pause before a feed that a daemon refused is asked for again: each request costs the daemon work, and somebody has
/// to change something there first.
const REFUSED_PAUSE: Duration = Duration::from_secs(1);

/// The refusals of one source, as noted by its opener.
#[derive(Default)]
pub struct Refusals(Mutex<State>);

#[derive(Default)]
struct State {
    /// The probe reports the error of the first attempt itself.
    was_tried: bool,
    /// The last attempt, if it was refused, and the reason.
    last: Option<(Instant, String)>,
    /// A reason that was not reported yet.
    news: Option<String>,
}

impl Refusals {
    /// Records the result of an attempt to open the source.
    pub fn note(&self, error: Option<&CaptureError>) {
        let mut state = self.lock();
        let was_tried = std::mem::replace(&mut state.was_tried, true);
        let Some(CaptureError::DaemonRefuses { reason, .. }) = error else {
            state.last = None;
            return;
        };
        if was_tried && state.last.as_ref().is_none_or(|(_, last)| last != reason) {
            state.news = Some(reason.clone());
        }
        state.last = Some((Instant::now(), reason.clone()));
    }

    /// Returns whether the daemon has just refused the source.
    pub fn is_recent(&self) -> bool {
        self.lock().last.as_ref().is_some_and(|(at, _)| at.elapsed() < REFUSED_PAUSE)
    }

    /// Returns the reason of a refusal that no event of the probe reports, once.
    pub fn take_news(&self) -> Option<String> {
        self.lock().news.take()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_news_unless_the_probe_reports_it_or_it_was_the_last_one() {
        let refused = |reason: &str| CaptureError::DaemonRefuses {
            feed: "host:lan".into(),
            path: "s".into(),
            reason: reason.into(),
        };
        let refusals = Refusals::default();
        for (error, news) in [
            (Some(refused("no")), None),
            (Some(refused("no")), None),
            (Some(refused("never")), Some("never")),
            (None, None),
            (Some(refused("never")), Some("never")),
            (Some(CaptureError::Ended), None),
            (Some(refused("no")), Some("no")),
        ] {
            let is_refused = matches!(error, Some(CaptureError::DaemonRefuses { .. }));
            refusals.note(error.as_ref());
            assert_eq!(refusals.take_news().as_deref(), news, "{error:?}");
            assert_eq!(refusals.is_recent(), is_refused, "{error:?}");
        }
    }
}
