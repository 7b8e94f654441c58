//! The writer's side of wake-ups: wakes a consumer whose threshold is reached.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};

use super::interrupt::duplicate;
use super::message::{self, MESSAGES_MAX, number_of, send};
use super::page::{SEALS, line, page_bytes, position};
use crate::doorbell::{self, AWAKE, EACH_QUARTER};
use crate::error::RingError;
use crate::limits::RINGS_MAX;
use crate::memory::{Access, Mapping};
use crate::sync::Ordering;

/// A waker sends at most one wake-up in this time. A thread takes tens of microseconds to wake.
pub const RING_GAP: Duration = Duration::from_micros(50);
/// The file system of memfds without huge pages. Source: linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The writer's end of the channel by which it wakes one consumer.
#[derive(Debug)]
pub struct Waker {
    page: Mapping,
    socket: OwnedFd,
    /// For each ring, the last threshold for which a wake-up was sent.
    woken_for: Vec<u64>,
    woken_at: Option<Instant>,
    /// The number of the request to be confirmed, and of the one that is being confirmed.
    requested: Option<u32>,
    confirming: Option<u32>,
    /// The number of the request to be told that the doorbell is armed for quarters.
    arming: Option<u32>,
    /// The consumer has got a confirmation, and may sleep without a time limit.
    is_confirmed: bool,
}

/// Requests of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// Nothing.
    Nothing,
    /// Its thresholds are new: read them. It may also have asked for a confirmation ([`Waker::wants_confirmation`]).
    Look,
    /// The consumer is gone. The descriptor is always readable from now on.
    Gone,
}

impl AsFd for Waker {
    /// The descriptor is readable when the consumer has sent messages.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Waker {
    /// The writer's end of a consumer in another process, from the descriptors it sent
    /// ([`Sleeper::channel`]). None of them is trusted.
    ///
    /// # Errors
    /// [`RingError::NotAWakePage`], [`RingError::TooSmall`] or [`RingError::NotAWaker`] for descriptors that no
    /// [`Sleeper`] makes: memory that could be truncated, or a socket that could block.
    pub fn attach(page: OwnedFd, socket: OwnedFd, lines: usize) -> Result<Waker, RingError> {
        if !(1..=RINGS_MAX).contains(&lines) {
            return Err(RingError::NotAWakePage);
        }
        let seals = rustix::fs::fcntl_get_seals(&page).unwrap_or(SealFlags::empty());
        // Reading a huge page that is not allocated could kill the process; a plain page is allocated on access.
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
        // SAFETY: the size was read after the seals, which keep it; the page is reached through `line` only, as
        // `AtomicU64`.
        let page = unsafe { Mapping::map(page, need, Access::Read) }?;
        let woken_for = vec![AWAKE; lines];
        Ok(Waker {
            page,
            socket,
            woken_for,
            woken_at: None,
            requested: None,
            confirming: None,
            arming: None,
            is_confirmed: false,
        })
    }

    /// The number of rings for which its page has lines.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.woken_for.len()
    }

    /// A second end of the same channel, for a writer of other rings. Each writer wakes the consumer at the thresholds
    /// of its own rings. Only one of them may take the consumer's messages. The channel is closed with the last end.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn try_clone(&self) -> Result<Waker, RingError> {
        let (page, socket) = (duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?);
        Waker::attach(page, socket, self.woken_for.len())
    }

    /// The descriptors of a second end (wake page and socket) for a writer in another process, which
    /// [attaches](Waker::attach) them.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn descriptors(&self) -> Result<[OwnedFd; 2], RingError> {
        Ok([duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?])
    }

    /// How far the consumer has read a ring, by its own report ([`Sleeper::note_position`](super::Sleeper)) or by its
    /// threshold: the ordinal of its next frame. 0 if it has reported nothing yet.
    #[must_use]
    pub fn position(&self, ring: usize) -> u64 {
        position_in(&self.page, ring)
    }

    /// Closes this end, and keeps only the consumer's report of how far it has read, which does not keep the channel
    /// open.
    #[must_use]
    pub fn into_positions(self) -> ReadPositions {
        ReadPositions { page: self.page, lines: self.woken_for.len() }
    }

    /// Wakes the consumer if ring number `ring`, which now has `ordinal` published frames, has reached its
    /// threshold. At most once for each threshold, and once in [`RING_GAP`]. Never waits.
    #[inline]
    pub fn wake_if_due(&mut self, ring: usize, ordinal: u64) {
        if let Some(threshold) = doorbell::due(line(&self.page, ring), ordinal) {
            self.wake_once(ring, threshold);
        }
    }

    #[cold]
    pub(super) fn wake_once(&mut self, ring: usize, threshold: u64) {
        // If the consumer sets the same threshold again, it is reached already, and the consumer notices that itself,
        // because it reads the ring after it has set a threshold. So no second wake-up is needed.
        if threshold == AWAKE || self.woken_for[ring] == threshold {
            return;
        }
        let now = Instant::now();
        // Within the gap no wake-up is sent: the sleeper checks the ring itself after the gap (`Sleeper::wait`).
        if self.woken_at.is_none_or(|woken| now.duration_since(woken) >= RING_GAP) {
            self.woken_for[ring] = threshold;
            self.woken_at = Some(now);
            self.is_confirmed = false;
            self.wake();
        }
    }

    /// Wakes the consumer regardless of thresholds, such as at the end of a ring.
    pub fn wake(&self) {
        send(&self.socket, message::WAKE, 0);
    }

    /// Wakes the consumer if it waits for quarters of ring number `ring`, of which another one has begun. Never waits.
    pub fn wake_for_quarter(&self, ring: usize) {
        if self.wake_threshold(ring) == EACH_QUARTER {
            self.wake();
        }
    }

    /// The ordinal that the consumer waits for in ring number `ring`, [`EACH_QUARTER`], or [`AWAKE`].
    #[must_use]
    pub fn wake_threshold(&self, ring: usize) -> u64 {
        line(&self.page, ring).load(Ordering::Relaxed)
    }

    /// For the owner of rings that BPF programs write: asks the consumer to report new thresholds, and promises to
    /// confirm when all programs see them. Must be called before the consumer reads its first ring.
    pub fn announce_confirmations(&self) {
        send(&self.socket, message::CONFIRMS, 0);
    }

    /// The same of an owner that also promises to wake the consumer each time a quarter of a ring begins
    /// ([`wake_for_quarter`](Waker::wake_for_quarter)), and to tell when its programs ring for that
    /// ([`tell_armed`](Waker::tell_armed)).
    pub fn announce_quarters(&self) {
        send(&self.socket, message::CONFIRMS, message::QUARTERS);
    }

    /// Reads messages of the consumer. Never waits, and reads a bounded number; if more are there, the descriptor stays
    /// readable.
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
                    match bytes[0] {
                        message::REQUEST => self.requested = Some(number_of(&bytes)),
                        message::ARM => self.arming = Some(number_of(&bytes)),
                        _ => {}
                    }
                }
                Ok((_, 0)) | Err(_) => return Asked::Gone,
            }
        }
        asked
    }

    /// To be called when the doorbell is armed for all thresholds: tells a consumer that asked for it, whose
    /// thresholds are for quarters. Runs of programs that are under way may not see it yet, and write one frame each.
    pub fn tell_armed(&mut self) {
        if let Some(number) = self.arming.take() {
            send(&self.socket, message::ARMED, number);
        }
    }

    /// Whether the consumer has asked for a confirmation that all programs see its thresholds.
    #[must_use]
    pub fn wants_confirmation(&self) -> bool {
        self.requested.is_some()
    }

    /// Whether the consumer may sleep because of a confirmation. If the doorbell is then armed for another threshold,
    /// all programs must see that, too.
    #[must_use]
    pub fn relies_on_confirmation(&self) -> bool {
        self.is_confirmed || self.confirming.is_some()
    }

    /// To be called when the doorbell is armed for the thresholds, before the wait for all programs (Q in
    /// [`doorbell`]).
    pub fn begin_confirmation(&mut self) {
        if let Some(number) = self.requested.take() {
            self.confirming = Some(number);
        }
    }

    /// To be called after the wait for all programs, when thresholds that were reached by then have been handled (S in
    /// [`doorbell`]).
    pub fn finish_confirmation(&mut self) {
        if let Some(number) = self.confirming.take() {
            self.is_confirmed = true;
            send(&self.socket, message::CONFIRMED, number);
        }
    }
}

/// A consumer's report of how far it has read its rings, without the ability to wake it.
#[derive(Debug)]
pub struct ReadPositions {
    page: Mapping,
    lines: usize,
}

impl ReadPositions {
    /// As [`Waker::position`]; 0 for a ring that has no line.
    #[must_use]
    pub fn position(&self, ring: usize) -> u64 {
        if ring < self.lines { position_in(&self.page, ring) } else { 0 }
    }
}

fn position_in(page: &Mapping, ring: usize) -> u64 {
    let noted = position(page, ring).load(Ordering::Relaxed);
    match line(page, ring).load(Ordering::Relaxed) {
        AWAKE | EACH_QUARTER => noted,
        // It sleeps until the frame with this ordinal is there.
        threshold => noted.max(threshold.saturating_sub(1)),
    }
}
