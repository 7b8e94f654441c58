//! Lets a consumer sleep until N frames have come or T ns have passed, without a system call while frames come, and
//! without a timer while none come.
//!
//! Each consumer owns a small memfd, the *wake page*, with one line for each ring. The line has the *threshold*: the
//! ordinal at which the consumer wants to be woken. [`EACH_QUARTER`](crate::doorbell::EACH_QUARTER) is not an ordinal,
//! and has a special meaning. The writer's side maps the page read-only. A consumer can change nothing there but its
//! own thresholds: with a hostile page it is woken too often, or never.
//!
//! In addition to the page there is a *channel* to each writer's side: a pair of Unix sockets. The writer's side holds
//! one end ([`Waker`]) and sends wake-ups. The consumer keeps the other end, and no copy of the first. So when a writer
//! dies, for any reason, the kernel closes its end, and the consumer learns this at once ([`Woken::WriterGone`]). Every
//! consumer has channels of its own, so no consumer can fill or block another one's.
//!
//! A channel is not an eventfd, because `O_NONBLOCK`, which decides whether a write to an eventfd waits, belongs to the
//! open file and not to the descriptor: a consumer could clear the flag at any time, fill the eventfd, and block the
//! writer forever. `MSG_DONTWAIT` belongs to the call, and both sides always use it.
//!
//! # Wake-ups are limited
//! A consumer that changes its thresholds all the time would cost the writer a system call for every burst. So a waker
//! sends at most one wake-up in [`RING_GAP`]. A sleeper that was woken less than this gap ago looks at its rings once
//! more when the gap is over: by then it sees frames for which the writer sent no wake-up, and later frames wake it.
//! The writer reads no clock while no threshold is reached.
//!
//! When a sleep ends because its limit has passed, its thresholds stay set. If no frames came, the next sleep needs the
//! same thresholds, and need not tell the writers. Frames that come between the two sleeps may cause a wake-up although
//! nobody waits; the next sleep then returns at once.
//!
//! # Pauses that end when a ring fills
//! A reader that may read frames late pauses by a timer. It must look again before a ring is full, however fast frames
//! come by then. Such a reader can wait longer if an owner wakes it each time that a quarter of a ring was filled
//! ([`Sleeper::wait_for_quarter`]). The threshold for quarters stays the same from one wait to the next, so the owner
//! need not be told again.
//!
//! # No timer
//! A thread that writes a ring loads the thresholds after a full fence (`doorbell`), so it misses none. BPF programs
//! have no such fence. Their owner announces this on the channel ([`Waker::announce_confirmations`]). Then a sleeper
//! sends the owner a message with each new threshold, and looks at its rings every [`UNCONFIRMED_LIMIT`] until the
//! owner has confirmed that all programs see the threshold. After the confirmation it looks once more, and then sleeps
//! without such looks. If the owner is busy, or gone, the sleep costs further wake-ups, but no frame is delayed. For
//! the proof see `doorbell`, letters Q to T.

mod interrupt;
mod message;
mod page;
mod pollable;
mod quarters;
mod sleep;
mod waker;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::doorbell::AWAKE;
use crate::error::RingError;
use crate::limits::CHANNELS_MAX;
pub use crate::limits::RINGS_MAX;
use crate::memory::{Access, Mapping};
use crate::sync::Ordering;
pub use interrupt::Interrupter;
use interrupt::duplicate;
use message::{Channel, MESSAGES_MAX, number_of, send};
use page::{SEALS, line, page_bytes, position};
use pollable::Pollable;
pub use waker::{Asked, RING_GAP, ReadPositions, Waker};

/// How often a sleeper looks at rings that BPF programs write, until their owner has confirmed its thresholds.
pub const UNCONFIRMED_LIMIT: Duration = Duration::from_millis(8);
/// The longest sleep. A longer limit is reduced to this one.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Result of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// There are new frames, or a ring has ended. Rarely neither: a wake-up that arrived while the last sleep was
    /// ending ends this sleep.
    Frames,
    /// The limit has passed.
    Limit,
    /// A signal or [`Interrupter::interrupt`] has ended the sleep.
    Interrupted,
    /// The writer's side of the channel of this number is gone: its process ended, for any reason, or it dropped the
    /// [`Waker`]. Reported once. Its rings that are not closed by now get no more frames and are never closed; the
    /// frames in them can be read.
    WriterGone(usize),
}

/// The consumer's end of the channels, and its wake page.
#[derive(Debug)]
pub struct Sleeper {
    page: Mapping,
    lines: usize,
    channels: Mutex<Vec<Channel>>,
    interrupt: OwnedFd,
    /// When a wake-up was last received, which is not before the writer sent it.
    woken_at: Mutex<Option<Instant>>,
    pollable: Pollable,
}

impl Sleeper {
    /// Creates a sleeper for a consumer of up to `lines` rings, some of which may join later.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If `lines` is 0 or above [`RINGS_MAX`].
    pub fn new(lines: usize) -> Result<Sleeper, RingError> {
        assert!((1..=RINGS_MAX).contains(&lines), "{lines} rings");
        let bytes = page_bytes(lines);
        let fd =
            rustix::fs::memfd_create("weir-wake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(RingError::os("creating a wake page"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(RingError::os("sizing a wake page"))?;
        // SAFETY: no other process has the new descriptor before it is sealed below, which keeps its size. The page is
        // accessed only through `line` and `position`, as `AtomicU64`.
        let page = unsafe { Mapping::map(fd, bytes, Access::Write) }?;
        for ring in 0..lines {
            line(&page, ring).store(AWAKE, Ordering::Relaxed);
        }
        // FUTURE_WRITE keeps this mapping writable, and prevents holes in the page, which could kill the writer.
        rustix::fs::fcntl_add_seals(&page, SEALS).map_err(RingError::os("sealing a wake page"))?;
        let interrupt = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(RingError::os("creating an eventfd"))?;
        Ok(Sleeper {
            page,
            lines,
            channels: Mutex::default(),
            interrupt,
            woken_at: Mutex::new(None),
            pollable: Pollable::default(),
        })
    }

    /// Creates a channel to a writer's side in this process. Channels are numbered from 0 in the order of their
    /// creation. A sleep that is in progress does not receive the messages of a new channel; the next sleep does.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn waker(&self) -> Result<Waker, RingError> {
        let [page, socket] = self.channel()?;
        Waker::attach(page, socket, self.lines)
    }

    /// Creates a channel to another process, which makes a [`Waker`] of the returned descriptors: wake page and socket.
    /// The sender must close its own copies: an open copy hides that the other process has died.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If there would be more than [`CHANNELS_MAX`] open channels.
    pub fn channel(&self) -> Result<[OwnedFd; 2], RingError> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (own, writers) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
                .map_err(RingError::os("creating a channel"))?;
        let page = duplicate(self.page.as_fd())?;
        let mut channels = self.channels();
        let open = channels.iter().filter(|channel| channel.socket.is_some()).count();
        assert!(open < CHANNELS_MAX, "{open} channels");
        let mut channel = Channel { socket: Some(Arc::new(own)), ..Channel::default() };
        self.pollable.watch(&mut channel)?;
        channels.push(channel);
        Ok([page, writers])
    }

    /// Closes channel number `channel`: the consumer no longer reads its rings.
    pub fn close_channel(&self, channel: usize) {
        if let Some(channel) = self.channels().get_mut(channel) {
            self.hang_up(channel);
        }
    }

    /// Reports how far a ring was read, for programs that monitor the consumer's lag. `ordinal` is that of the next
    /// frame.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn note_position(&self, ring: usize, ordinal: u64) {
        assert!(ring < self.lines, "line {ring} of {}", self.lines);
        position(&self.page, ring).store(ordinal, Ordering::Relaxed);
    }

    /// Creates an interrupter, which ends a sleep of this sleeper from another thread.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn interrupter(&self) -> Result<Interrupter, RingError> {
        Ok(Interrupter(duplicate(self.interrupt.as_fd())?))
    }

    /// Returns a channel whose writer's side is gone, if there is one that was not reported before: for a consumer that
    /// is always busy and never sleeps. Called once a second, it finds a dead writer within a second. Makes system
    /// calls.
    pub fn find_gone_writer(&self) -> Option<usize> {
        match self.receive().woken {
            Some(Woken::WriterGone(channel)) => Some(channel),
            _ => None,
        }
    }

    fn wait(
        &self,
        is_ready: impl Fn() -> bool,
        limit: Duration,
        is_new: bool,
    ) -> Result<Woken, RingError> {
        if is_new {
            self.tell_new();
        }
        let (begin, limit) = (Instant::now(), limit.min(LIMIT_MAX));
        loop {
            let now = Instant::now();
            let left = limit.saturating_sub(now.duration_since(begin));
            let is_confirmed = self.is_confirmed();
            let mut piece = if is_confirmed { left } else { left.min(UNCONFIRMED_LIMIT) };
            // The writer reads its clock after it has published frames (fence H), and sends no wake-up only if that
            // time was within the gap. So the look after this piece finds the frames that it published then.
            let quiet = self.quiet_for(now);
            if !quiet.is_zero() {
                piece = piece.min(quiet);
            }
            let received = self.poll(piece)?;
            match received.woken {
                Some(woken) => return Ok(woken),
                // T: look also after a confirmation.
                None if is_ready() => return Ok(Woken::Frames),
                None if received.news => {}
                None if piece == left => return Ok(Woken::Limit),
                // No frame came for a while, so a confirmation is worth its cost: the owners wait for all their
                // programs.
                None if !is_confirmed && quiet.is_zero() => self.request(),
                None => {}
            }
        }
    }

    /// Reports new thresholds to every writer's side that confirms thresholds.
    fn tell_new(&self) {
        for channel in self.channels().iter_mut() {
            channel.asked = channel.asked.wrapping_add(1);
            channel.is_sent = false;
            if let Some(socket) = channel.socket.as_ref().filter(|_| channel.confirms) {
                send(socket, message::LOOK, 0);
            }
        }
    }

    /// Asks these writers' sides to confirm when all of their programs see the thresholds.
    fn request(&self) {
        for channel in self.channels().iter_mut() {
            let wants = channel.confirms && !channel.is_sent;
            if let Some(socket) = channel.socket.as_ref().filter(|_| wants) {
                // If the socket is full because the other side reads nothing, nothing is confirmed.
                send(socket, message::REQUEST, channel.asked);
                channel.is_sent = true;
            }
        }
    }

    fn is_confirmed(&self) -> bool {
        let waits = |channel: &Channel| {
            channel.socket.is_some() && channel.confirms && channel.asked != channel.confirmed
        };
        !self.channels().iter().any(waits)
    }

    /// Waits for messages, at most `limit`, and receives them.
    fn poll(&self, limit: Duration) -> Result<Received, RingError> {
        // Waits without the lock, so that other threads can make and close channels meanwhile.
        let sockets: Vec<Arc<OwnedFd>> =
            self.channels().iter().filter_map(|channel| channel.socket.clone()).collect();
        let mut wait = vec![PollFd::new(&self.interrupt, PollFlags::IN)];
        wait.extend(sockets.iter().map(|socket| PollFd::new(&**socket, PollFlags::IN)));
        let limit = Timespec::try_from(limit).expect("a day fits a timespec");
        match rustix::event::poll(&mut wait, Some(&limit)) {
            Ok(0) => Ok(Received { woken: None, news: false }),
            Ok(_) => Ok(self.receive()),
            Err(rustix::io::Errno::INTR) => {
                Ok(Received { woken: Some(Woken::Interrupted), news: false })
            }
            Err(errno) => Err(RingError::os("waiting for frames")(errno)),
        }
    }

    /// Receives the available messages of all channels. Returns at the first channel whose writer is gone; the next
    /// call finds others.
    fn receive(&self) -> Received {
        let mut received = Received { woken: None, news: false };
        if rustix::io::read(&self.interrupt, &mut [0; 8]).is_ok() {
            received.woken = Some(Woken::Interrupted);
        }
        for (number, channel) in self.channels().iter_mut().enumerate() {
            let Some(socket) = channel.socket.clone() else { continue };
            for _ in 0..MESSAGES_MAX {
                let mut bytes = [0; 8];
                match rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                    Err(rustix::io::Errno::INTR) => {}
                    Err(rustix::io::Errno::AGAIN) => break,
                    Ok((_, 1..)) => match bytes[0] {
                        message::WAKE => {
                            *lock(&self.woken_at) = Some(Instant::now());
                            received.woken.get_or_insert(Woken::Frames);
                        }
                        message::CONFIRMS => {
                            received.news = true;
                            channel.knows_quarters = number_of(&bytes) == message::QUARTERS;
                            if !std::mem::replace(&mut channel.confirms, true) {
                                // The writer's side does not know the present thresholds yet.
                                send(&socket, message::LOOK, 0);
                            }
                        }
                        message::CONFIRMED => {
                            channel.confirmed = number_of(&bytes);
                            received.news = true;
                        }
                        message::ARMED => {
                            channel.quarters_armed = number_of(&bytes);
                            received.news = true;
                        }
                        _ => {}
                    },
                    Ok((_, 0)) | Err(_) => {
                        self.hang_up(channel);
                        received.woken = Some(Woken::WriterGone(number));
                        return received;
                    }
                }
            }
        }
        received
    }

    /// Closes the consumer's end of a channel: no more messages are sent or received.
    fn hang_up(&self, channel: &mut Channel) {
        channel.socket.take().iter().for_each(|socket| self.pollable.forget(socket));
    }

    /// Returns how long after `now` the writer may still send no wake-up, because it has just woken this sleeper.
    fn quiet_for(&self, now: Instant) -> Duration {
        let woken_at = *lock(&self.woken_at);
        woken_at.map_or(Duration::ZERO, |woken| (woken + RING_GAP).saturating_duration_since(now))
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        lock(&self.channels)
    }
}

/// Result of receiving the messages of all channels.
struct Received {
    /// Why the sleep ends, if a message ends it.
    woken: Option<Woken>,
    /// Whether a writer's side has announced confirmations, has confirmed thresholds, or has armed its doorbell for
    /// quarters.
    news: bool,
}

/// Locks a mutex. A poisoned one is valid, because no change is left incomplete if its holder panics.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
