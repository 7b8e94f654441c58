//! Sleeping until N frames have come or T ns have passed, without a system call while frames flow, and without a timer
//! while nothing comes.
//!
//! Each consumer owns a small memfd with one line per ring: its *threshold*, the ordinal at which it wants
//! to be woken ([`EACH_QUARTER`](crate::doorbell::EACH_QUARTER) is none, and has a meaning of its own). The writer's
//! side maps it read-only. A consumer can write nothing there but its own thresholds: a hostile page wakes its owner
//! too often, or never.
//!
//! Beside the page there is a *channel* to each writer's side: a pair of Unix sockets. The writer's side holds one
//! end ([`Waker`]) and sends wake-ups; the consumer keeps the other and no copy of the first. So a writer that
//! dies, however it dies, hangs the channel up, and the consumer is told at once ([`Woken::WriterGone`]). Every
//! consumer has channels of its own, so none can fill or block those of another.
//!
//! A channel is no eventfd because `O_NONBLOCK`, which decides whether a write to an eventfd waits, belongs to the
//! open file and not to the descriptor: a consumer could clear it at any time, fill the eventfd, and stop the
//! writer for good. `MSG_DONTWAIT` belongs to the call, and both sides use nothing else.
//!
//! # Wake-ups are limited
//! A page that changes its thresholds all the time would cost the writer a system call for every burst. So a
//! waker sends at most once in [`RING_GAP`], and a sleeper that was woken less than a gap ago looks at its rings
//! once more when the gap is over: frames that the writer did not announce are visible by then, and later ones
//! wake it. No clock is read while nobody is due.
//!
//! A sleep that its limit ends leaves its thresholds standing. The next one, if nothing came, finds that it wants
//! what its page says already, and tells nobody anew. Frames that come in between may wake for a threshold that nobody
//! waits on; the next sleep then returns at once.
//!
//! # Pauses that end when a ring fills
//! A reader whose frames may wait for a while pauses by a timer, and must look again before a ring is full, however
//! fast frames may come by then. Such a reader can wait longer where an owner wakes it when a quarter of a ring was
//! filled ([`Sleeper::wait_for_quarter`]). The threshold for that stays the same from one wait to the next, so that
//! nobody is told of it again.
//!
//! # No timer
//! A thread that writes a ring looks at the page behind a full fence ([`doorbell`]), so it misses no
//! threshold. BPF programs have no such fence. Their owner says so on the channel
//! ([`Waker::announce_confirmations`]); then a sleeper sends it a request with each new threshold and looks at its
//! rings every [`UNCONFIRMED_LIMIT`] until the owner has confirmed that all programs see the threshold. Behind the
//! confirmation it looks once more, and then sleeps for as long as it likes. An owner that is busy, or gone, costs
//! such a sleep wake-ups and delays nothing. The argument is in [`doorbell`], letters Q to T.

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
/// Longest sleep; longer limits are cut to it.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// Result of a sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Frames, or the end of a ring. Rarely nothing: a wake-up that crossed the look which ended the last sleep ends
    /// this one.
    Frames,
    /// The limit has passed.
    Limit,
    /// A signal, or [`Interrupter::interrupt`].
    Interrupted,
    /// The writer's side of the channel of this number has gone: its process ended, however it did, or it dropped the
    /// [`Waker`]. Said once. Its rings that are not closed by now get no more frames and no end; the frames in them
    /// can be read.
    WriterGone(usize),
}

/// The consumer's end.
#[derive(Debug)]
pub struct Sleeper {
    page: Mapping,
    lines: usize,
    channels: Mutex<Vec<Channel>>,
    interrupt: OwnedFd,
    /// When a wake-up was last received: not before the writer sent it.
    woken_at: Mutex<Option<Instant>>,
    pollable: Pollable,
}

impl Sleeper {
    /// A sleeper for a consumer of up to `lines` rings, some of which may join later.
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
        // SAFETY: the descriptor is new and ours alone until it is sealed below, which keeps its size;
        // the page is reached through `line` only, as `AtomicU64`.
        let page = unsafe { Mapping::map(fd, bytes, Access::Write) }?;
        for ring in 0..lines {
            line(&page, ring).store(AWAKE, Ordering::Relaxed);
        }
        // FUTURE_WRITE keeps our mapping, and rules out that holes are punched under the writer.
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

    /// A channel to a writer's side in this process. Channels are numbered from 0 in the order in which they are
    /// made. One that is made while a sleep is under way is heard from the next one on.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn waker(&self) -> Result<Waker, RingError> {
        let [page, socket] = self.channel()?;
        Waker::attach(page, socket, self.lines)
    }

    /// The same for another process, which makes a [`Waker`] of these descriptors: wake page and socket. The
    /// sender must close its own copy: an open copy hides that the other process has died.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// Above [`CHANNELS_MAX`] channels that have not hung up.
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

    /// Hangs channel number `channel` up: its rings are read no more.
    pub fn close_channel(&self, channel: usize) {
        if let Some(channel) = self.channels().get_mut(channel) {
            self.hang_up(channel);
        }
    }

    /// Reports how far a ring was read, for those who monitor the consumer's lag: the ordinal of the next frame.
    ///
    /// # Panics
    /// If there is no such line.
    pub fn note_position(&self, ring: usize, ordinal: u64) {
        assert!(ring < self.lines, "line {ring} of {}", self.lines);
        position(&self.page, ring).store(ordinal, Ordering::Relaxed);
    }

    /// Ends this sleeper's sleeps from another thread.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn interrupter(&self) -> Result<Interrupter, RingError> {
        Ok(Interrupter(duplicate(self.interrupt.as_fd())?))
    }

    /// A channel whose writer's side has gone, if there is one that was not told of before: for a consumer that is
    /// always busy and never sleeps. Asked once a second, it notices a dead writer within a second. A system call.
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
            // The writer reads its clock after it has published (fence H), and sent nothing only if that was
            // before the end of the gap: the look after this piece finds frames that it published then.
            let quiet = self.quiet_for(now);
            if !quiet.is_zero() {
                piece = piece.min(quiet);
            }
            let received = self.poll(piece)?;
            match received.woken {
                Some(woken) => return Ok(woken),
                // T: behind a confirmation, too.
                None if is_ready() => return Ok(Woken::Frames),
                None if received.news => {}
                None if piece == left => return Ok(Woken::Limit),
                // Nothing came in a while: it is worth a wait for all programs.
                None if !is_confirmed && quiet.is_zero() => self.request(),
                None => {}
            }
        }
    }

    /// Tells every writer's side that confirms that thresholds are new.
    fn tell_new(&self) {
        for channel in self.channels().iter_mut() {
            channel.asked = channel.asked.wrapping_add(1);
            channel.is_sent = false;
            if let Some(socket) = channel.socket.as_ref().filter(|_| channel.confirms) {
                send(socket, message::LOOK, 0);
            }
        }
    }

    /// Asks those to be told when all of their programs see the thresholds.
    fn request(&self) {
        for channel in self.channels().iter_mut() {
            let wants = channel.confirms && !channel.is_sent;
            if let Some(socket) = channel.socket.as_ref().filter(|_| wants) {
                // Refused by a side that reads nothing: then nothing is confirmed.
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

    /// Waits for messages, at most `limit`, and takes them.
    fn poll(&self, limit: Duration) -> Result<Received, RingError> {
        // Without the lock, so that making or closing a channel does not have to wait.
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

    /// Takes the messages of all channels that are there. The first channel found gone ends it: the next call finds
    /// others.
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
                                // It does not know the present thresholds yet.
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

    /// Nothing is sent to it or received from it from here on.
    fn hang_up(&self, channel: &mut Channel) {
        channel.socket.take().iter().for_each(|socket| self.pollable.forget(socket));
    }

    /// How long from `now` the writer may still keep quiet, because it has woken this sleeper.
    fn quiet_for(&self, now: Instant) -> Duration {
        let woken_at = *lock(&self.woken_at);
        woken_at.map_or(Duration::ZERO, |woken| (woken + RING_GAP).saturating_duration_since(now))
    }

    fn channels(&self) -> MutexGuard<'_, Vec<Channel>> {
        lock(&self.channels)
    }
}

/// Result of the messages of all channels.
struct Received {
    /// The end of a sleep, if they are one.
    woken: Option<Woken>,
    /// A channel confirms from now on, has confirmed, or has armed its doorbell for quarters.
    news: bool,
}

/// Nothing is left half done while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
