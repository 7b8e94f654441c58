//! News for fans, which are other threads'.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weir_filter::UserFilterSet;
use weir_filter::block::BlockList;

/// What is new for a fan: ready to be used, because frames wait while it is taken over.
pub(super) enum News {
    Filters(UserFilterSet),
    /// The block list of this branch.
    Block(usize, Arc<BlockList>),
}

impl News {
    /// Whether nobody needs `other` once there is this.
    fn replaces(&self, other: &News) -> bool {
        match (self, other) {
            (News::Filters(_), News::Filters(_)) => true,
            (News::Block(own, _), News::Block(branch, _)) => own == branch,
            _ => false,
        }
    }
}

/// News on their way to a fan.
#[derive(Default)]
pub(super) struct Mail {
    is_fresh: AtomicBool,
    news: Mutex<Vec<News>>,
}

impl Mail {
    pub(super) fn post(&self, news: News) {
        let mut waiting = self.lock();
        // A quiet fan keeps the last ones only.
        let old: Vec<News> = waiting.extract_if(.., |one| news.replaces(one)).collect();
        waiting.push(news);
        self.is_fresh.store(true, Ordering::Release);
        drop(waiting);
        // Taken to pieces when no fan waits for the lock any more.
        drop(old);
    }

    /// What has come since the last look.
    #[inline]
    pub(super) fn take(&self) -> Vec<News> {
        if !self.is_fresh.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut news = self.lock();
        self.is_fresh.store(false, Ordering::Relaxed);
        std::mem::take(&mut *news)
    }

    /// Whole whoever panicked while holding it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Vec<News>> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
