//! Sleeping until N frames have come or T ns have passed, without a system call while frames flow, and without a timer
//! while nothing comes.
//!
//! Each consumer owns a small memfd with one line per ring: the ordinal at which it wants to be woken, its
//! *threshold*. The writer's side maps it read-only. A consumer can write nothing there but its own thresholds: a
//! hostile page wakes its owner too often, or never.
//!
//! Beside the page there is a *channel* to each writer's side: a pair of Unix sockets. The writer's side holds one end
//! ([`Waker`]) and sends wake-ups; the consumer keeps the other and no copy of the first. So a writer that dies, however it
//! dies, hangs the channel up, and the consumer is told at once ([`Woken::WriterGone`]). Every consumer has channels of its
//! own, so none can fill or block those of another.
//!
//! A channel is no eventfd because `O_NONBLOCK`, which decides whether a write to an eventfd waits, belongs to the open
//! file and not to the descriptor: a consumer could clear it at any time, fill the eventfd, and stop the writer for good.
//! `MSG_DONTWAIT` belongs to the call, and both sides use nothing else.
//!
//! # Wake-ups are limited
//! A page that changes its thresholds all the time would cost the writer a system call for every burst. So a
//! waker sends at most once in [`RING_GAP`], and a sleeper that was woken less than a gap ago looks at its
//! rings once more when the gap is over: what the writer did not tell is there to be seen by then,
//! and whatever comes later wakes it. No clock is read while nobody is due.
//!
//! A sleep that its limit ends leaves its thresholds standing. The next one, if nothing came, finds that it wants
//! what its page says already, and tells nobody anew. Frames that come in between may wake for a threshold that nobody
//! waits on; the next sleep then returns at once.
//!
//! # No timer
//! A thread that writes a ring looks at the page behind a full fence ([`doorbell`]), so it misses no threshold. BPF programs
//! have no such fence. Their owner says so on the channel ([`Waker::announce_confirmations`]); then a sleeper sends it a
//! request with each new threshold and looks at its rings every [`UNCONFIRMED_LIMIT`] until the owner has confirmed that all
//! programs see the threshold. Behind the confirmation it looks once more, and then sleeps for as long as it likes. An owner
//! that is busy, or gone, costs wake-ups and delays nothing. The argument is in [`doorbell`], letters Q to T.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::ReadWriteFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::doorbell::{self, AWAKE};
use crate::error::RingError;
use crate::limits::CHANNELS_MAX;
pub use crate::limits::RINGS_MAX;
use crate::memory::{Access, Mapping};
use crate::reader::Reader;
use crate::sync::{AtomicU64, Ordering};
use crate::{Ring, Words};

/// Words of a line: two cache lines, because the next one is prefetched on x86.
const LINE_WORDS: usize = 16;
/// A waker is quiet for this long after it has woken its consumer. A thread takes tens of microseconds to wake.
pub const RING_GAP: Duration = Duration::from_micros(50);
/// How often a sleeper looks at rings that BPF programs write, until their owner has confirmed its thresholds.
pub const UNCONFIRMED_LIMIT: Duration = Duration::from_millis(8);
/// Longest sleep; longer limits are cut to it.
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Messages that are read from a channel at a time: those of a hostile other side are as many as it likes.
const MESSAGES_MAX: usize = 64;
/// Source: linux/magic.h. Memfds without huge pages live there.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// What a sleep ended with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// Frames, or the end of a ring.
    Frames,
    /// The limit has passed.
    Limit,
    /// A signal, or [`Interrupter::interrupt`].
    Interrupted,
    /// The writer's side of the channel of this number has gone: its process ended, however it did, or it let go of
    /// the [`Waker`]. Said once. Rings of it that are not closed by now get no more frames and no end; what is in them
    /// can be read.
    WriterGone(usize),
}

/// The consumer's end.
#[derive(Debug)]
pub struct Sleeper {
    page: Mapping,
    lines: usize,
    channels: Mutex<Vec<Channel>>,
    /// For owners that do not listen on the channel: their eventfds.
    notify_fds: Vec<OwnedFd>,
    interrupt: OwnedFd,
    /// When a wake-up was last received: not before the writer sent it.
    woken_at: Mutex<Option<Instant>>,
}

/// The consumer's end of its channel to one writer's side.
#[derive(Debug)]
struct Channel {
    /// `None` once the writer's side has gone.
    socket: Option<Arc<OwnedFd>>,
    /// The other side confirms thresholds: its programs need it.
    confirms: bool,
    /// Number of the thresholds that stand, and whether their confirmation was asked for.
    asked: u32,
    is_sent: bool,
    /// Number of those that were confirmed last.
    confirmed: u32,
}

/// The writer's end of one consumer's sleep.
#[derive(Debug)]
pub struct Waker {
    page: Mapping,
    socket: OwnedFd,
    /// For each ring, the last threshold that was reached and woken for.
    woken_for: Vec<u64>,
    woken_at: Option<Instant>,
    /// The request that is to be confirmed, and the one whose confirmation is under way.
    requested: Option<u32>,
    confirming: Option<u32>,
    /// The consumer sleeps by a confirmation.
    is_confirmed: bool,
}

/// First byte of a message. A number of 4 bytes is behind it: that of a request and its confirmation, else 0.
mod message {
    pub const WAKE: u8 = 1;
    pub const CONFIRMS: u8 = 2;
    /// Thresholds are new.
    pub const LOOK: u8 = 3;
    /// To be told when all programs see them.
    pub const REQUEST: u8 = 4;
    pub const CONFIRMED: u8 = 5;
}

/// Adds one to a notify descriptor, an eventfd of an owner in this process, which must not let it run full.
pub fn signal(notify_fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(notify_fd, &1u64.to_ne_bytes());
}

/// Empties a notify descriptor. Never waits, even if somebody has cleared `O_NONBLOCK` on the eventfd.
pub fn drain(notify_fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let mut bytes = [IoSliceMut::new(&mut count)];
    // `u64::MAX`: no offset. NOWAIT belongs to the call.
    let _ = rustix::io::preadv2(notify_fd, &mut bytes, u64::MAX, ReadWriteFlags::NOWAIT);
}

/// Ends a sleep from another thread.
#[derive(Debug)]
pub struct Interrupter(OwnedFd);

impl Interrupter {
    /// Ends the sleep that is under way, or else the next one.
    pub fn interrupt(&self) {
        // Full after 2^64 - 2 calls that nobody took notice of; then the sleep ends, too.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }
}

impl Sleeper {
    /// A sleeper for a consumer of up to `lines` rings, some of which may join later. `notify_fds` are eventfds of owners
    /// of BPF rings in this process that want to hear of new thresholds and requests beside the channel; others listen on
    /// the channel ([`Waker::as_fd`]).
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If `lines` is 0 or above [`RINGS_MAX`].
    pub fn new(lines: usize, notify_fds: Vec<OwnedFd>) -> Result<Sleeper, RingError> {
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
            notify_fds,
            interrupt,
            woken_at: Mutex::new(None),
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

    /// The same for another process, which makes a [`Waker`] of these descriptors: wake page and socket. Whoever
    /// sends them must let go of its own: a copy that is left open hides that the other process has died.
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
        let socket = Some(Arc::new(own));
        channels.push(Channel { socket, confirms: false, asked: 0, is_sent: false, confirmed: 0 });
        Ok([page, writers])
    }

    /// Hangs channel number `channel` up: its rings are read no more.
    pub fn close_channel(&self, channel: usize) {
        if let Some(channel) = self.channels().get_mut(channel) {
            channel.socket = None;
        }
    }

    /// What ends this sleeper's sleeps from another thread.
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

    /// Sleeps until any of the readers' rings has `frames` frames more than that reader has read, or
    /// until `limit` has passed, whichever comes first; returns at once if it is so already.
    ///
    /// `frames` counts per ring. Reader `i` has line `i` of this sleeper, and a writer's side must know that ring by the
    /// same number. The end of a ring wakes too, until its reader has been told of it ([`Reader::has_ended`]).
    ///
    /// # Errors
    /// [`RingError::Os`] if the kernel refuses to wait.
    ///
    /// # Panics
    /// If there are more readers than lines.
    pub fn sleep<M: Words>(
        &self,
        readers: &[Reader<M>],
        frames: u64,
        limit: Duration,
    ) -> Result<Woken, RingError> {
        assert!(readers.len() <= self.lines, "{} readers, {} lines", readers.len(), self.lines);
        let mut is_new = false;
        for (ring, reader) in readers.iter().enumerate() {
            let word = line(&self.page, ring);
            let threshold = match reader.has_ended() {
                true => AWAKE,
                false => reader.ordinal().saturating_add(frames),
            };
            is_new |= word.load(Ordering::Relaxed) != threshold;
            doorbell::set_threshold(word, threshold);
        }
        let is_ready = || readers.iter().any(|reader| is_ready(reader, frames));
        let woken = match is_ready() {
            // What was sent for thresholds of before must not end the next sleep.
            true => Ok(self.receive().woken.unwrap_or(Woken::Frames)),
            false => self.wait(is_ready, limit, is_new),
        };
        // Thresholds that stand were told to everybody: only a wait that told of its thresholds leaves them.
        if !matches!(woken, Ok(Woken::Limit)) {
            for ring in 0..readers.len() {
                doorbell::clear_threshold(line(&self.page, ring));
            }
        }
        woken
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
            // The writer reads its clock after it has published (fence H), and kept quiet only if that was before the end
            // of the gap: what it published then, the look behind this piece finds.
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
        self.notify_fds.iter().for_each(|fd| signal(fd.as_fd()));
    }

    /// Asks those to be told when all of their programs see the thresholds.
    fn request(&self) {
        let mut is_sent = false;
        for channel in self.channels().iter_mut() {
            let wants = channel.confirms && !channel.is_sent;
            if let Some(socket) = channel.socket.as_ref().filter(|_| wants) {
                // Refused by a side that reads nothing: then nothing is confirmed.
                send(socket, message::REQUEST, channel.asked);
                channel.is_sent = true;
                is_sent = true;
            }
        }
        self.notify_fds.iter().filter(|_| is_sent).for_each(|fd| signal(fd.as_fd()));
    }

    fn is_confirmed(&self) -> bool {
        let waits = |channel: &Channel| {
            channel.socket.is_some() && channel.confirms && channel.asked != channel.confirmed
        };
        !self.channels().iter().any(waits)
    }

    /// Waits for messages, at most `limit`, and takes them.
    fn poll(&self, limit: Duration) -> Result<Received, RingError> {
        // Without the lock: a channel that is made or closed meanwhile waits for nobody.
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

    /// Takes the messages of all channels that are there. The first channel found gone ends it: the next call finds others.
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
                            if !std::mem::replace(&mut channel.confirms, true) {
                                // It was not told of the thresholds that stand.
                                send(&socket, message::LOOK, 0);
                            }
                        }
                        message::CONFIRMED => {
                            channel.confirmed = number_of(&bytes);
                            received.news = true;
                        }
                        _ => {}
                    },
                    Ok((_, 0)) | Err(_) => {
                        channel.socket = None;
                        received.woken = Some(Woken::WriterGone(number));
                        return received;
                    }
                }
            }
        }
        received
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

/// What the messages of all channels came to.
struct Received {
    /// The end of a sleep, if they are one.
    woken: Option<Woken>,
    /// A channel confirms from now on, or has confirmed.
    news: bool,
}

/// Nothing is left half done while one of these locks is held.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends a message, or does without: a socket that takes no more holds messages that nobody has read, and one that is
/// broken has nobody at its other end.
fn send(socket: impl AsFd, kind: u8, number: u32) {
    let mut bytes = [kind; 5];
    bytes[1..].copy_from_slice(&number.to_le_bytes());
    let _ = rustix::net::send(socket, &bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

fn number_of(message: &[u8; 8]) -> u32 {
    u32::from_le_bytes([message[1], message[2], message[3], message[4]])
}

fn duplicate(fd: BorrowedFd<'_>) -> Result<OwnedFd, RingError> {
    let doing = "duplicating a descriptor";
    fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
}

/// What wakes: enough frames, or an end that the reader has not seen.
fn is_ready<M: Words>(reader: &Reader<M>, frames: u64) -> bool {
    let ring: &Ring<M> = reader.ring();
    !reader.has_ended()
        && (ring.is_closed() || ring.frames_written() >= reader.ordinal().saturating_add(frames))
}

/// What a consumer has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// To look at its thresholds, which are new, and maybe for a confirmation ([`Waker::wants_confirmation`]).
    Look,
    /// Nothing any more: it is gone. Its descriptor is always readable from now on.
    Gone,
}

impl AsFd for Waker {
    /// Readable when the consumer has asked for something.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Waker {
    /// The writer's end of a consumer in another process, from the descriptors it sent
    /// ([`Sleeper::channel`]). None of them is trusted.
    ///
    /// # Errors
    /// [`RingError::NotAWakePage`], [`RingError::TooSmall`] or [`RingError::NotAWaker`] for what no
    /// [`Sleeper`] makes: it could be cut short under us, or stop us.
    pub fn attach(page: OwnedFd, socket: OwnedFd, lines: usize) -> Result<Waker, RingError> {
        if !(1..=RINGS_MAX).contains(&lines) {
            return Err(RingError::NotAWakePage);
        }
        let seals = rustix::fs::fcntl_get_seals(&page).unwrap_or(SealFlags::empty());
        // Touching a huge page that is not there would end the process; a plain page is made.
        let plain = rustix::fs::fstatfs(&page).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC);
        if !seals.contains(SEALS) || !plain {
            return Err(RingError::NotAWakePage);
        }
        let stat = rustix::fs::fstat(&page).map_err(RingError::os("asking for a wake page"))?;
        let (have, need) = (stat.st_size as u64, page_bytes(lines));
        if have < need {
            return Err(RingError::TooSmall { have, need });
        }
        if sockopt::socket_domain(&socket) != Ok(AddressFamily::UNIX)
            || sockopt::socket_type(&socket) != Ok(SocketType::SEQPACKET)
        {
            return Err(RingError::NotAWaker);
        }
        // SAFETY: its seals, found above, keep the size that was found after them; the page is reached
        // through `line` only, as `AtomicU64`.
        let page = unsafe { Mapping::map(page, need, Access::Read) }?;
        let woken_for = vec![AWAKE; lines];
        Ok(Waker {
            page,
            socket,
            woken_for,
            woken_at: None,
            requested: None,
            confirming: None,
            is_confirmed: false,
        })
    }

    /// Rings that it has a line for.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.woken_for.len()
    }

    /// Another end of the same, for a writer of other rings: whoever reaches a threshold wakes. The consumer's
    /// messages are for one of them only. The channel hangs up when the last is gone.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn try_clone(&self) -> Result<Waker, RingError> {
        let (page, socket) = (duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?);
        Waker::attach(page, socket, self.woken_for.len())
    }

    /// Wakes if ring number `ring`, which now holds `ordinal` published frames, has what the consumer
    /// waits for. Once for each threshold, and once in [`RING_GAP`]. Never waits.
    #[inline]
    pub fn wake_if_due(&mut self, ring: usize, ordinal: u64) {
        if let Some(threshold) = doorbell::due(line(&self.page, ring), ordinal) {
            self.wake_once(ring, threshold);
        }
    }

    #[cold]
    fn wake_once(&mut self, ring: usize, threshold: u64) {
        // A threshold that was reached and is set again is reached when it is set: the consumer
        // looks at the ring after it sets it. So there is nothing to wake for twice.
        if threshold == AWAKE || self.woken_for[ring] == threshold {
            return;
        }
        let now = Instant::now();
        // Quiet: the sleeper looks by itself once the gap is over (`Sleeper::wait`).
        if self.woken_at.is_none_or(|woken| now.duration_since(woken) >= RING_GAP) {
            self.woken_for[ring] = threshold;
            self.woken_at = Some(now);
            self.is_confirmed = false;
            self.wake();
        }
    }

    /// Wakes in any case: at the end of a ring.
    pub fn wake(&self) {
        send(&self.socket, message::WAKE, 0);
    }

    /// The ordinal that the consumer waits for in ring number `ring`, or [`AWAKE`].
    #[must_use]
    pub fn wake_threshold(&self, ring: usize) -> u64 {
        line(&self.page, ring).load(Ordering::Relaxed)
    }

    /// For the owner of rings that BPF programs write: tells the consumer to say when its thresholds are new, and that
    /// it is told when all programs see them. Before the consumer reads its first ring.
    pub fn announce_confirmations(&self) {
        send(&self.socket, message::CONFIRMS, 0);
    }

    /// Takes what the consumer has sent. Never waits, and reads a bounded number of messages: a descriptor that stays
    /// readable is looked at again.
    pub fn take_messages(&mut self) -> Asked {
        let mut asked = Asked::Nothing;
        for _ in 0..MESSAGES_MAX {
            let mut bytes = [0; 8];
            match rustix::net::recv(&self.socket, &mut bytes[..], RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => break,
                Ok((_, 1..)) => {
                    asked = Asked::Look;
                    self.is_confirmed = false;
                    if bytes[0] == message::REQUEST {
                        self.requested = Some(number_of(&bytes));
                    }
                }
                Ok((_, 0)) | Err(_) => return Asked::Gone,
            }
        }
        asked
    }

    /// Whether the consumer waits to be told that all programs see its thresholds.
    #[must_use]
    pub fn wants_confirmation(&self) -> bool {
        self.requested.is_some()
    }

    /// Whether the consumer was told so, and sleeps by it: a doorbell that is armed for another threshold now must be
    /// seen by all programs, too.
    #[must_use]
    pub fn relies_on_confirmation(&self) -> bool {
        self.is_confirmed || self.confirming.is_some()
    }

    /// The doorbell is armed for the thresholds by now, and the wait for all programs begins (Q in [`doorbell`]).
    pub fn begin_confirmation(&mut self) {
        if let Some(number) = self.requested.take() {
            self.confirming = Some(number);
        }
    }

    /// The wait for all programs is over, and whatever they had written by then was looked at (S in [`doorbell`]).
    pub fn finish_confirmation(&mut self) {
        if let Some(number) = self.confirming.take() {
            self.is_confirmed = true;
            send(&self.socket, message::CONFIRMED, number);
        }
    }
}

/// What a wake page must be sealed with: its size stays, and no hole is punched into it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

fn page_bytes(lines: usize) -> u64 {
    ((lines * LINE_WORDS * 8) as u64).next_multiple_of(4096)
}

fn line(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::create_memfd;
    use crate::reader::{Poll, Start};
    use crate::testing::{meta, spec};
    use crate::{Batch, Writer};
    use std::time::Instant;

    const SOON: Duration = Duration::from_millis(20);

    fn ring() -> (Ring<Mapping>, Writer<Mapping>) {
        let ring = create_memfd("weir-test", &spec(4)).unwrap();
        (ring.clone(), Writer::new(ring))
    }

    fn push(writer: &mut Writer<Mapping>, frames: u64) -> u64 {
        for _ in 0..frames {
            writer.push(&meta(writer.frames()), &[0; 60]);
        }
        writer.publish();
        writer.frames()
    }

    #[test]
    fn n_frames_wake_and_fewer_do_not() {
        let (ring, mut writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        push(&mut writer, 9);
        assert_eq!(sleeper.sleep(&readers, 10, SOON).unwrap(), Woken::Limit);
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| {
                let begin = Instant::now();
                let woken = sleeper.sleep(&readers, 10, Duration::from_secs(20)).unwrap();
                (woken, begin.elapsed())
            });
            while waker.wake_threshold(0) == AWAKE {
                std::thread::yield_now();
            }
            assert_eq!(waker.wake_threshold(0), 10);
            waker.wake_if_due(0, push(&mut writer, 1));
            let (woken, took) = woken.join().unwrap();
            assert!(
                woken == Woken::Frames && took < Duration::from_secs(10),
                "{woken:?} after {took:?}"
            );
        });
        assert_eq!(waker.wake_threshold(0), AWAKE);
    }

    fn after_the_gap() {
        std::thread::sleep(RING_GAP);
    }

    #[test]
    fn a_page_full_of_new_thresholds_does_not_cost_a_wake_up_each() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let (begin, mut rings) = (Instant::now(), 0);
        for ordinal in 0..100_000 {
            line(&sleeper.page, 0).store(ordinal, Ordering::Relaxed);
            waker.wake_if_due(0, ordinal);
            rings += rung(&sleeper) as u128;
        }
        let gaps = begin.elapsed().as_nanos() / RING_GAP.as_nanos();
        assert!((1..=gaps + 1).contains(&rings), "{rings} rings in {gaps} gaps");
    }

    #[test]
    fn frames_that_come_in_the_quiet_after_a_ring_wake_too() {
        let (ring, mut writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let begin = Instant::now();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
                let mut batch = Batch::new();
                for _ in 0..500 {
                    assert_eq!(
                        sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(),
                        Woken::Frames
                    );
                    readers[0].poll(&mut batch).unwrap();
                }
            });
            // One frame as soon as it is wished for, mostly less than a gap after the last, then none.
            for ordinal in 1..=500 {
                while waker.wake_threshold(0) != ordinal {
                    assert!(
                        begin.elapsed() < Duration::from_secs(10),
                        "asleep over frame {ordinal}"
                    );
                    std::thread::yield_now();
                }
                waker.wake_if_due(0, push(&mut writer, 1));
            }
        });
    }

    /// Wake-ups that the first channel holds.
    fn rung(sleeper: &Sleeper) -> usize {
        let socket = sleeper.channels()[0].socket.clone().unwrap();
        std::iter::from_fn(|| {
            let mut bytes = [0; 8];
            rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).ok().map(|_| bytes[0])
        })
        .filter(|kind| *kind == message::WAKE)
        .count()
    }

    #[test]
    fn a_threshold_wakes_once_and_only_when_it_is_reached() {
        let sleeper = Sleeper::new(2, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let word = line(&sleeper.page, 1);
        doorbell::set_threshold(word, 100);
        waker.wake_if_due(0, 1000);
        waker.wake_if_due(1, 99);
        assert_eq!(rung(&sleeper), 0);
        waker.wake_if_due(1, 100);
        waker.wake_if_due(1, 120);
        assert_eq!(rung(&sleeper), 1);
        doorbell::set_threshold(word, 150);
        after_the_gap();
        waker.wake_if_due(1, 149);
        assert_eq!(rung(&sleeper), 0);
        waker.wake_if_due(1, 150);
        assert_eq!(rung(&sleeper), 1);
    }

    #[test]
    fn a_threshold_set_while_the_last_one_wakes_is_not_lost() {
        // The threshold that was found due is what is remembered. Were it read again here, the second
        // threshold would count as woken for before it is reached, and never wake after.
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let word = line(&sleeper.page, 0);
        doorbell::set_threshold(word, 100);
        let due = doorbell::due(word, 100).unwrap();
        doorbell::set_threshold(word, 200);
        waker.wake_once(0, due);
        assert_eq!(rung(&sleeper), 1);
        after_the_gap();
        waker.wake_if_due(0, 200);
        assert_eq!(rung(&sleeper), 1);
    }

    #[test]
    fn an_end_wakes_until_it_is_seen_and_then_lets_sleep() {
        let (ended, mut writer) = ring();
        let (live, _writer) = ring();
        let sleeper = Sleeper::new(2, Vec::new()).unwrap();
        let mut readers = [&ended, &live].map(|ring| Reader::new(ring, Start::Oldest).unwrap());
        writer.close();
        let begin = Instant::now();
        assert_eq!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(), Woken::Frames);
        assert!(begin.elapsed() < Duration::from_secs(10));
        let mut batch = Batch::new();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
        let begin = Instant::now();
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
        assert!(begin.elapsed() >= SOON);
        assert_eq!(line(&sleeper.page, 0).load(Ordering::Relaxed), AWAKE);
    }

    #[test]
    fn a_waker_that_is_full_or_made_to_block_does_not_stop_the_writer() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        // What a hostile consumer does to the open files that it shares.
        let own = sleeper.channels()[0].socket.clone().unwrap();
        for fd in [own.as_fd(), waker.as_fd()] {
            rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
        }
        for ordinal in 0..5000 {
            line(&sleeper.page, 0).store(ordinal, Ordering::Relaxed);
            waker.wake_if_due(0, ordinal);
        }
        drop(sleeper);
        waker.wake();
    }

    #[test]
    fn a_writer_that_is_told_reads_what_a_hostile_consumer_sends_and_never_waits() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let own = sleeper.channels()[0].socket.clone().unwrap();
        for fd in [own.as_fd(), waker.as_fd()] {
            rustix::fs::fcntl_setfl(fd, rustix::fs::OFlags::empty()).unwrap();
        }
        assert_eq!(waker.take_messages(), Asked::Nothing);
        let long = [message::REQUEST; 1000];
        for message in [&[message::REQUEST][..], &[0], &[255; 3], &long] {
            rustix::net::send(&own, message, SendFlags::DONTWAIT).unwrap();
            assert_eq!(waker.take_messages(), Asked::Look);
        }
        // As many as it likes, and nobody who reads: it waits for nobody either.
        let full = (0..1_000_000)
            .find(|_| rustix::net::send(&own, &[message::LOOK], SendFlags::DONTWAIT).is_err());
        assert!(full.is_some());
        sleeper.tell_new();
        assert_eq!(waker.take_messages(), Asked::Look);
        waker.begin_confirmation();
        waker.finish_confirmation();
        // An empty message is no message of ours, and neither is an end.
        drop(own);
        drop(sleeper);
        let gone = (0..1_000_000).find(|_| waker.take_messages() == Asked::Gone);
        assert!(gone.is_some());
        waker.wake();
    }

    #[test]
    fn a_channel_that_is_full_harms_no_other_consumer() {
        let (ring, mut writer) = ring();
        let (hostile, honest) =
            (Sleeper::new(1, Vec::new()).unwrap(), Sleeper::new(1, Vec::new()).unwrap());
        let mut wakers = [hostile.waker().unwrap(), honest.waker().unwrap()];
        (0..100_000).for_each(|_| wakers[0].wake());
        let socket = hostile.channels()[0].socket.clone().unwrap();
        while rustix::net::send(&socket, &[message::LOOK], SendFlags::DONTWAIT).is_ok() {}
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| honest.sleep(&readers, 1, Duration::from_secs(60)).unwrap());
            let begin = Instant::now();
            while wakers[1].wake_threshold(0) == AWAKE && begin.elapsed() < Duration::from_secs(20)
            {
                std::thread::yield_now();
            }
            let ordinal = push(&mut writer, 1);
            wakers.iter_mut().for_each(|waker| waker.wake_if_due(0, ordinal));
            assert_eq!(woken.join().unwrap(), Woken::Frames);
        });
    }

    #[test]
    fn a_writer_that_is_gone_is_said_once_for_each_channel() {
        let (ring, _writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let wakers = [sleeper.waker().unwrap(), sleeper.waker().unwrap()];
        let more = wakers[0].try_clone().unwrap();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        let sleep = |limit| sleeper.sleep(&readers, 1, limit).unwrap();
        let [first, second] = wakers;
        drop(first);
        assert_eq!(sleep(SOON), Woken::Limit, "its clone is there");
        assert_eq!(sleeper.find_gone_writer(), None);
        drop(second);
        assert_eq!(sleep(Duration::from_secs(60)), Woken::WriterGone(1));
        assert_eq!(sleep(SOON), Woken::Limit);
        drop(more);
        assert_eq!(sleeper.find_gone_writer(), Some(0));
        assert_eq!((sleeper.find_gone_writer(), sleep(SOON)), (None, Woken::Limit));
        // One that the consumer closes itself is nothing to be told of.
        let third = sleeper.waker().unwrap();
        sleeper.close_channel(2);
        assert_eq!(sleep(SOON), Woken::Limit);
        let mut third = third;
        assert_eq!(third.take_messages(), Asked::Gone);
    }

    #[test]
    fn a_sleep_without_a_limit_is_ended_by_another_thread() {
        let (ring, _writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let interrupter = sleeper.interrupter().unwrap();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        std::thread::scope(|scope| {
            let woken = scope.spawn(|| sleeper.sleep(&readers, 1, Duration::MAX).unwrap());
            interrupter.interrupt();
            assert_eq!(woken.join().unwrap(), Woken::Interrupted);
        });
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
    }

    /// Messages that the consumer has sent, as an owner of BPF rings takes them: how often it was asked to look.
    fn looks(waker: &mut Waker) -> u32 {
        std::iter::from_fn(|| (waker.take_messages() == Asked::Look).then_some(1)).sum()
    }

    #[test]
    fn until_it_is_confirmed_a_threshold_is_looked_after_and_then_no_more() {
        let (ring, mut writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        waker.announce_confirmations();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        // Frames that nobody is woken for are found by the look.
        std::thread::scope(|scope| {
            let woken =
                scope.spawn(|| sleeper.sleep(&readers, 1, Duration::from_secs(60)).unwrap());
            while waker.wake_threshold(0) == AWAKE {
                std::thread::yield_now();
            }
            push(&mut writer, 1);
            assert_eq!(woken.join().unwrap(), Woken::Frames);
        });
        while looks(&mut waker) > 0 {}
        // Confirmed, the sleep is one wait: frames that nobody is woken for stay unseen.
        std::thread::scope(|scope| {
            let woken =
                scope.spawn(|| sleeper.sleep(&readers, 2, Duration::from_secs(60)).unwrap());
            let begin = Instant::now();
            while !waker.wants_confirmation() {
                waker.take_messages();
                assert!(begin.elapsed() < Duration::from_secs(20), "no request");
                std::thread::sleep(Duration::from_millis(1));
            }
            waker.begin_confirmation();
            assert!(waker.relies_on_confirmation());
            waker.finish_confirmation();
            assert!(waker.relies_on_confirmation());
            // Long enough for looks, if there still were any, to ask again.
            std::thread::sleep(5 * UNCONFIRMED_LIMIT);
            assert_eq!((looks(&mut waker), waker.wants_confirmation()), (0, false));
            let ordinal = push(&mut writer, 1);
            waker.wake_if_due(0, ordinal);
            assert!(!waker.relies_on_confirmation());
            assert_eq!(woken.join().unwrap(), Woken::Frames);
        });
    }

    #[test]
    fn draining_a_notify_fd_that_was_made_to_block_does_not_wait() {
        use rustix::event::EventfdFlags;
        let notify_fd =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        rustix::fs::fcntl_setfl(&notify_fd, rustix::fs::OFlags::empty()).unwrap();
        drain(notify_fd.as_fd());
        signal(notify_fd.as_fd());
        signal(notify_fd.as_fd());
        drain(notify_fd.as_fd());
        let mut wait = [PollFd::new(&notify_fd, PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut wait, Some(&Timespec::default())).unwrap(), 0);
    }

    #[test]
    fn notify_fds_are_rung_by_whoever_falls_asleep() {
        use rustix::event::EventfdFlags;
        let notify_fd =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (ring, _writer) = ring();
        let sleeper = Sleeper::new(1, vec![notify_fd.try_clone().unwrap()]).unwrap();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        assert_eq!(sleeper.sleep(&readers, 0, SOON).unwrap(), Woken::Frames);
        assert!(rustix::io::read(&notify_fd, &mut [0u8; 8]).is_err());
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
        assert_eq!(rustix::io::read(&notify_fd, &mut [0u8; 8]).unwrap(), 8);
    }

    #[test]
    fn a_threshold_that_stands_is_not_told_again_and_wakes() {
        let (ring, mut writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let mut bpf_waker = sleeper.waker().unwrap();
        bpf_waker.announce_confirmations();
        sleeper.receive();
        looks(&mut bpf_waker);
        let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        // A request is no news of a threshold.
        let told = || {
            let mut looks = 0;
            let socket = bpf_waker.as_fd().try_clone_to_owned().unwrap();
            let mut bytes = [0; 8];
            while rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {
                looks += u32::from(bytes[0] == message::LOOK);
            }
            looks > 0
        };
        for is_told in [true, false, false] {
            assert_eq!(sleeper.sleep(&readers, 2, SOON).unwrap(), Woken::Limit);
            assert_eq!((told(), waker.wake_threshold(0)), (is_told, 2));
        }
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
        assert!(told(), "another threshold");
        // One comes between two sleeps.
        waker.wake_if_due(0, push(&mut writer, 1));
        assert_eq!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap(), Woken::Frames);
        assert_eq!((told(), waker.wake_threshold(0)), (false, AWAKE));
        let mut batch = Batch::new();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Frames(1));
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
        assert_eq!((told(), waker.wake_threshold(0)), (true, 2), "the next threshold is new");
        // An end that was seen clears the threshold.
        writer.close();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
        assert_eq!(sleeper.sleep(&readers, 1, SOON).unwrap(), Woken::Limit);
        assert_eq!(waker.wake_threshold(0), AWAKE);
    }

    #[test]
    fn what_no_sleeper_made_is_refused() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let other = sleeper.waker().unwrap();
        let dup = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let attach = |page: OwnedFd, rings| Waker::attach(page, dup(&other.as_fd()), rings).err();
        for rings in [0, RINGS_MAX + 1, usize::MAX] {
            let error = attach(dup(&sleeper.page), rings);
            assert!(matches!(error, Some(RingError::NotAWakePage)), "{rings} rings");
        }
        assert!(matches!(attach(dup(&sleeper.page), 4096), Some(RingError::TooSmall { .. })));
        // A plain file, and memfds that could be cut short or holed.
        assert!(matches!(
            attach(tempfile::tempfile().unwrap().into(), 1),
            Some(RingError::NotAWakePage)
        ));
        for seals in [SealFlags::empty(), SealFlags::SHRINK | SealFlags::GROW] {
            let flags = MemfdFlags::ALLOW_SEALING;
            let page = rustix::fs::memfd_create("weir-test", flags).unwrap();
            rustix::fs::ftruncate(&page, 4096).unwrap();
            rustix::fs::fcntl_add_seals(&page, seals).unwrap();
            assert!(matches!(attach(page, 1), Some(RingError::NotAWakePage)), "{seals:?}");
        }
        // Sockets that would stop the writer.
        let (_read, write) = rustix::pipe::pipe().unwrap();
        let udp = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let stream = std::os::unix::net::UnixStream::pair().unwrap().0;
        for socket in [write, udp.into(), stream.into(), dup(&sleeper.page)] {
            let error = Waker::attach(dup(&sleeper.page), socket, 1).err();
            assert!(matches!(error, Some(RingError::NotAWaker)));
        }
    }

    #[test]
    fn the_longest_limit_is_no_error() {
        let (ring, _writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let waker = sleeper.waker().unwrap();
        waker.wake();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        assert_eq!(sleeper.sleep(&readers, u64::MAX, Duration::MAX).unwrap(), Woken::Frames);
    }
}
