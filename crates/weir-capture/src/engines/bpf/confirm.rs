//! Confirms to consumers that they may sleep without a timer. The programs have no memory fence; instead, this process
//! waits until all running programs have ended.
//!
//! The proof is in `weir_ring::doorbell`, letters Q to T. A wait takes tens of milliseconds, so a thread of its own
//! waits, while the source's thread continues to wake readers.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use rustix::event::EventfdFlags;

use crate::error::CaptureError;
use crate::feed::wakers::Wakers;
use crate::kernel::rcu;

/// Waits until running programs have ended, with at most one wait at a time.
pub(super) struct Confirmer {
    /// The thread that waits; `None` before the first wait.
    thread: Option<(Sender<()>, Receiver<bool>)>,
    /// An eventfd that is readable when a wait is over. It is opened in advance and shared with the thread, so that the
    /// first wait needs no new descriptor.
    over: Arc<OwnedFd>,
    is_waiting: bool,
    /// Whether a doorbell was armed for another number of frames since the last wait began.
    is_changed: bool,
    /// Whether a wait failed. Nothing is confirmed then, and sleeping consumers poll by a timer.
    is_refused: bool,
}

impl Confirmer {
    pub(super) fn new() -> Result<Confirmer, CaptureError> {
        let over = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|errno| CaptureError::os("creating an eventfd")(errno.into()))?;
        Ok(Confirmer {
            thread: None,
            over: Arc::new(over),
            is_waiting: false,
            is_changed: false,
            is_refused: false,
        })
    }

    /// Records that the doorbell of a ring was armed for another ordinal.
    pub(super) fn armed_otherwise(&mut self) {
        self.is_changed = true;
    }

    /// Returns true if a wait has ended successfully. The caller must then check all rings and wake readers (S), and
    /// call [`confirm`](Confirmer::confirm).
    pub(super) fn take_end(&mut self) -> bool {
        let Some((_, ends)) = self.thread.as_ref().filter(|_| self.is_waiting) else {
            return false;
        };
        let Ok(worked) = ends.try_recv() else { return false };
        let _ = rustix::io::read(&self.over, &mut [0; 8]);
        self.is_waiting = false;
        self.is_refused |= !worked;
        worked
    }

    /// Sends confirmations to the consumers whose thresholds all programs now see.
    pub(super) fn confirm<'a>(&self, wakers: impl Iterator<Item = &'a mut Wakers>) {
        wakers.for_each(Wakers::finish_confirmations);
    }

    /// Begins a wait if a consumer needs one. Before, the doorbells must be armed for all requested thresholds (Q).
    pub(super) fn begin<'a>(&mut self, wakers: impl Iterator<Item = &'a mut Wakers>) {
        if self.is_waiting || self.is_refused {
            return;
        }
        let mut wakers: Vec<&mut Wakers> = wakers.collect();
        let is_asked = wakers.iter().any(|wakers| wakers.want_confirmation());
        let is_due = self.is_changed && wakers.iter().any(|wakers| wakers.rely_on_confirmation());
        if !(is_asked || is_due) {
            return;
        }
        let Some((begin, _)) = self.thread() else {
            self.is_refused = true;
            return;
        };
        if begin.send(()).is_ok() {
            (self.is_waiting, self.is_changed) = (true, false);
            wakers.iter_mut().for_each(|wakers| wakers.begin_confirmations());
        }
    }

    /// Returns the channels of the thread, which is started at the first call and ends with the `Confirmer`.
    fn thread(&mut self) -> Option<&(Sender<()>, Receiver<bool>)> {
        if self.thread.is_none() {
            let ((begin, begins), (end, ends)) = (channel(), channel());
            let over = Arc::clone(&self.over);
            let work = move || {
                while begins.recv().is_ok() {
                    if end.send(rcu::synchronize().is_ok()).is_err() {
                        return;
                    }
                    // There is only one wait at a time, so the counter cannot overflow.
                    let _ = rustix::io::write(&over, &1u64.to_ne_bytes());
                }
            };
            thread::Builder::new().name("weir-confirm".into()).spawn(work).ok()?;
            self.thread = Some((begin, ends));
        }
        self.thread.as_ref()
    }
}

impl AsFd for Confirmer {
    /// Returns the descriptor that is readable when a wait is over.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.over.as_fd()
    }
}
