//! Detaching a guest: its feeds end, its devices are removed, and it can open no feeds until it is attached again.

use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::{NOT_SERVED, Worker};

type Reply = SyncSender<Result<(), String>>;

/// A detachment in progress.
pub(super) struct Detaching {
    /// The session ends at this time, and with it all feeds that the guest has not closed.
    session_until: Instant,
    /// Rings that applications may still read are kept until this time.
    places_until: Instant,
    /// The last deadline of all callers.
    until: Instant,
    /// The callers that wait, each with its deadline.
    replies: Vec<(Instant, Reply)>,
}

impl Detaching {
    /// Divides the time: the first quarter is for the guest to close its feeds, and the next half for applications that
    /// still read them.
    fn new(now: Instant, within: Duration) -> Detaching {
        let (session_until, places_until) = (now + within / 4, now + within * 3 / 4);
        Detaching { session_until, places_until, until: now + within, replies: Vec::new() }
    }

    /// Joins two detachments: the earlier deadlines apply, and each caller waits for its own time.
    fn joined(self, other: Detaching) -> Detaching {
        Detaching {
            session_until: self.session_until.min(other.session_until),
            places_until: self.places_until.min(other.places_until),
            until: self.until.max(other.until),
            replies: self.replies.into_iter().chain(other.replies).collect(),
        }
    }

    /// Returns when the next action is due.
    pub(super) fn due(&self) -> Instant {
        let replies = self.replies.iter().map(|(until, _)| *until);
        let due = [self.session_until, self.places_until, self.until];
        due.into_iter().chain(replies).min().unwrap_or(self.until)
    }
}

impl Worker {
    pub(super) fn detach(&mut self, within: Duration, begun: &SyncSender<()>, reply: Reply) {
        let now = Instant::now();
        let refused = if self.ends_by.is_some() {
            NOT_SERVED.to_owned()
        } else if self.monitor.is_none() {
            self.unreachable()
        } else {
            self.ask_leftovers_now(now);
            let mut detaching = Detaching::new(now, within);
            detaching.replies.push((now + within, reply));
            self.begin_detaching(detaching);
            let _ = begun.send(());
            return;
        };
        let _ = reply.send(Err(refused));
    }

    pub(super) fn attach(&mut self) {
        if self.ends_by.is_some() {
            return;
        }
        self.is_detached = false;
        let detaching = self.detaching.take();
        for (_, reply) in detaching.into_iter().flat_map(|detaching| detaching.replies) {
            let text = format!("guest {} was attached again meanwhile", self.spec.name);
            let _ = reply.send(Err(text));
        }
    }

    /// Ends the thread when the devices are removed, at most after `within`.
    pub(super) fn end_within(&mut self, within: Duration) {
        let now = Instant::now();
        self.ends_by = Some(now + within);
        self.begin_detaching(Detaching::new(now, within));
    }

    fn begin_detaching(&mut self, detaching: Detaching) {
        self.is_detached = true;
        self.detaching = Some(match self.detaching.take() {
            Some(before) => before.joined(detaching),
            None => detaching,
        });
    }

    pub(super) fn continue_detaching(&mut self) {
        let Some(detaching) = &mut self.detaching else { return };
        let now = Instant::now();
        if let Some(active) = &self.active {
            if active.feeds > 0 && detaching.session_until <= now {
                // The claims of the guest's feeds are released soon after.
                (self.spec.end_session)();
            }
            let is_unused = active.feeds == 0 && active.left.is_empty();
            if is_unused || detaching.places_until <= now {
                self.begin_removal();
            }
        }
        let has_no_devices = self.has_no_devices();
        let Some(mut detaching) = self.detaching.take() else { return };
        for due in [&mut detaching.session_until, &mut detaching.places_until] {
            if *due <= now {
                *due = detaching.until;
            }
        }
        for (until, reply) in std::mem::take(&mut detaching.replies) {
            if has_no_devices {
                let _ = reply.send(Ok(()));
            } else if until <= now {
                let _ = reply.send(Err(self.unreleased()));
            } else {
                detaching.replies.push((until, reply));
            }
        }
        if !has_no_devices && now < detaching.until {
            self.detaching = Some(detaching);
        }
    }

    /// Returns the message that the devices are still there.
    pub(super) fn unreleased(&self) -> String {
        let why = if self.is_paused { "it is paused" } else { "is it hung, or not yet booted?" };
        format!(
            "guest {} has not released its devices yet ({why}); they go when it answers, which it is asked to each \
             second, or with its reset: try again then",
            self.spec.name
        )
    }
}
