//! Requests to the thread of a machine.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use weir_vm::{GuestMemory, TakenRing};

use super::Claim;

/// A request to the thread of a machine.
pub(super) enum Request {
    Claim(ClaimReply),
    /// A feed was closed.
    Release {
        memory: Arc<GuestMemory>,
        left: Option<Arc<TakenRing>>,
    },
    Detach {
        within: Duration,
        /// Used once the detachment has begun; dropped if the request is refused.
        begun: SyncSender<()>,
        reply: SyncSender<Result<(), String>>,
    },
    Attach,
    PortEnded,
    /// The thread must end, after it has unplugged the devices, for which it has this time.
    End {
        unplugs: Option<Duration>,
    },
}

/// The sender of the answer to a claim.
pub(super) struct ClaimReply {
    sender: SyncSender<Result<Claim, String>>,
    caller: Weak<()>,
}

impl ClaimReply {
    /// Creates the sender and the receiver of an answer. The caller keeps the last value as long as it waits.
    pub(super) fn new() -> (ClaimReply, Receiver<Result<Claim, String>>, Arc<()>) {
        let (sender, receiver) = sync_channel(1);
        let caller = Arc::new(());
        (ClaimReply { sender, caller: Arc::downgrade(&caller) }, receiver, caller)
    }

    /// Tells whether the caller has stopped waiting.
    pub(super) fn is_abandoned(&self) -> bool {
        self.caller.strong_count() == 0
    }

    pub(super) fn send(&self, answer: Result<Claim, String>) {
        // If the caller has stopped waiting, the claim is dropped, which releases it.
        let _ = self.sender.send(answer);
    }
}

/// A queue that a thread can wait for together with other descriptors.
pub(super) struct Inbox {
    /// `None` once the machine's thread has ended.
    requests: Mutex<Option<VecDeque<Request>>>,
    /// Written to when there is a request.
    ready: OwnedFd,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Inbox> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Inbox { requests: Mutex::new(Some(VecDeque::new())), ready })
    }

    /// Adds a request. Never waits. If the machine's thread has ended, the request and its reply are dropped.
    pub(super) fn post(&self, request: Request) {
        match &mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(requests) => requests.push_back(request),
            None => return,
        }
        // The write fails only if the descriptor is readable already.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> VecDeque<Request> {
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Closes the queue. No requests are accepted any more.
    pub(super) fn close(&self) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Without the lock, because dropping a request may post another.
        drop(requests);
    }

    /// Waits for a request, or until `other` is readable, at most until `until`.
    pub(super) fn wait(&self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Rounded up, so that work for that time is due then.
        let left = left.map(|left| left + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let ready = PollFd::from_borrowed_fd(self.ready.as_fd(), PollFlags::IN);
        let other = other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = [ready].into_iter().chain(other).collect();
        // After an error, the caller only checks its queue too early.
        let _ = poll(&mut fds, left.as_ref());
    }
}
