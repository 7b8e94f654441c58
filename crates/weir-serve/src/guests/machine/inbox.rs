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
    /// One feed less.
    Release {
        memory: Arc<GuestMemory>,
        left: Option<Arc<TakenRing>>,
    },
    Detach {
        within: Duration,
        /// Sent to once it is under way; dropped where it is refused.
        begun: SyncSender<()>,
        reply: SyncSender<Result<(), String>>,
    },
    Attach,
    PortEnded,
    /// The thread is to end, after unplugging as much as it can within this time.
    End {
        unplugs: Option<Duration>,
    },
}

/// Where the answer to a claim goes.
pub(super) struct ClaimReply {
    sender: SyncSender<Result<Claim, String>>,
    caller: Weak<()>,
}

impl ClaimReply {
    /// The caller waits at the receiver, and keeps the other one as long as it does.
    pub(super) fn new() -> (ClaimReply, Receiver<Result<Claim, String>>, Arc<()>) {
        let (sender, receiver) = sync_channel(1);
        let caller = Arc::new(());
        (ClaimReply { sender, caller: Arc::downgrade(&caller) }, receiver, caller)
    }

    /// Nobody waits any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.caller.strong_count() == 0
    }

    pub(super) fn send(&self, answer: Result<Claim, String>) {
        // If the caller does not wait any more, the claim is dropped, which releases it.
        let _ = self.sender.send(answer);
    }
}

/// A queue that a thread can wait for beside other descriptors.
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

    /// Never waits. If the machine's thread has ended, the request and its reply are dropped.
    pub(super) fn post(&self, request: Request) {
        match &mut *self.requests.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(requests) => requests.push_back(request),
            None => return,
        }
        // Fails only where it is readable anyhow.
        let _ = rustix::io::write(&self.ready, &1u64.to_ne_bytes());
    }

    pub(super) fn take(&self) -> VecDeque<Request> {
        let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Nobody takes requests any more.
    pub(super) fn close(&self) {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Without the lock: a request that is dropped may post another.
        drop(requests);
    }

    /// Waits for a request, or for the other descriptor to become readable, until then at most.
    pub(super) fn wait(&self, other: Option<BorrowedFd<'_>>, until: Option<Instant>) {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // Rounded up, so that work due then is due.
        let left = left.map(|left| left + Duration::from_millis(1));
        let left = left.and_then(|left| Timespec::try_from(left).ok());
        let ready = PollFd::from_borrowed_fd(self.ready.as_fd(), PollFlags::IN);
        let other = other.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
        let mut fds: Vec<PollFd<'_>> = [ready].into_iter().chain(other).collect();
        // If it fails, the caller looks too early, which does no harm.
        let _ = poll(&mut fds, left.as_ref());
    }
}
