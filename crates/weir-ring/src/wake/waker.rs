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

/// Least time between two wake-ups from one waker. A thread takes tens of microseconds to wake.
pub const RING_GAP: Duration = Duration::from_micros(50);
/// File system of memfds without huge pages. Source: linux/magic.h.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The writer's end of the channel by which it wakes one consumer.
#[derive(Debug)]
pub struct Waker {
    page: Mapping,
    socket: OwnedFd,
    /// For each ring, the last threshold for which a wake-up was sent.
    woken_for: Vec<u64>,
    woken_at: Option<Instant>,
    /// Number of the request that is to be confirmed, and number of the one that is being confirmed.
    requested: Option<u32>,
    confirming: Option<u32>,
    /// Number of the request to report when the doorbell is armed for quarters.
    arming: Option<u32>,
    /// Whether the consumer has got a confirmation, and so may sleep without a time limit.
    is_confirmed: bool,
}

/// A request of a consumer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// No request.
    Nothing,
    /// The consumer's thresholds have changed: read them. It may also have asked for a confirmation
    /// ([`Waker::wants_confirmation`]).
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
    /// Creates the writer's end of a channel from the descriptors that a consumer in another process has sent
    /// (`Sleeper::channel`). Neither descriptor is trusted.
    ///
    /// # Errors
    /// [`RingError::NotAWakePage`], [`RingError::TooSmall`] or [`RingError::NotAWaker`] for descriptors that no
    /// `Sleeper` makes, because the memory could be truncated, or the socket could block.
    pub fn attach(page: OwnedFd, socket: OwnedFd, lines: usize) -> Result<Waker, RingError> {
        if !(1..=RINGS_MAX).contains(&lines) {
            return Err(RingError::NotAWakePage);
        }
        let seals = rustix::fs::fcntl_get_seals(&page).unwrap_or(SealFlags::empty());
        // Access to a huge page that is not allocated could kill the process. An ordinary page is allocated on access.
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
        // SAFETY: the size was read after the seals were checked, which keep it. The page is accessed only through
        // `line` and `position`, as `AtomicU64`.
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

    /// Returns the number of rings for which the consumer's page has lines.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.woken_for.len()
    }

    /// Creates a second end of the same channel, for a writer of other rings. Each writer wakes the consumer at the
    /// thresholds of its own rings. Only one of them may receive the consumer's messages. The channel is closed when
    /// the last end is dropped.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn try_clone(&self) -> Result<Waker, RingError> {
        let (page, socket) = (duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?);
        Waker::attach(page, socket, self.woken_for.len())
    }

    /// Returns the descriptors of a second end (wake page and socket) for a writer in another process, which
    /// [attaches](Waker::attach) them.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn descriptors(&self) -> Result<[OwnedFd; 2], RingError> {
        Ok([duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?])
    }

    /// Returns how far the consumer has read a ring: the ordinal of its next frame, from its own report
    /// ([`Sleeper::note_position`](super::Sleeper)) or its threshold. 0 if it has reported nothing yet.
    #[must_use]
    pub fn position(&self, ring: usize) -> u64 {
        position_in(&self.page, ring)
    }

    /// Closes this end, and returns only access to the consumer's report of how far it has read. That does not keep the
    /// channel open.
    #[must_use]
    pub fn into_positions(self) -> ReadPositions {
        ReadPositions { page: self.page, lines: self.woken_for.len() }
    }

    /// Wakes the consumer if ring number `ring`, which now has `ordinal` published frames, has reached its threshold.
    /// Sends at most one wake-up for each threshold, and one in [`RING_GAP`]. Never waits.
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

    /// Wakes the consumer regardless of thresholds, for example at the end of a ring.
    pub fn wake(&self) {
        send(&self.socket, message::WAKE, 0);
    }

    /// Wakes the consumer if it waits for quarters of ring number `ring`. Called when another quarter has begun. Never
    /// waits.
    pub fn wake_for_quarter(&self, ring: usize) {
        if self.wake_threshold(ring) == EACH_QUARTER {
            self.wake();
        }
    }

    /// Returns the ordinal for which the consumer waits in ring number `ring`, [`EACH_QUARTER`], or [`AWAKE`].
    #[must_use]
    pub fn wake_threshold(&self, ring: usize) -> u64 {
        line(&self.page, ring).load(Ordering::Relaxed)
    }

    /// Asks the consumer to report new thresholds, and promises to confirm when all programs see them: for the owner of
    /// rings that BPF programs write. Must be called before the consumer reads its first ring.
    pub fn announce_confirmations(&self) {
        send(&self.socket, message::CONFIRMS, 0);
    }

    /// Does the same as [`announce_confirmations`](Waker::announce_confirmations). Also promises to wake the consumer
    /// each time that a quarter of a ring begins ([`wake_for_quarter`](Waker::wake_for_quarter)), and to report when
    /// the doorbell is armed for this ([`tell_armed`](Waker::tell_armed)).
    pub fn announce_quarters(&self) {
        send(&self.socket, message::CONFIRMS, message::QUARTERS);
    }

    /// Receives messages of the consumer. Never waits, and receives a limited number; if there are more, the descriptor
    /// stays readable.
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

    /// Reports to the consumer, if it has asked, that the doorbell is armed for quarters. Must be called when the
    /// doorbell is armed for all thresholds. Programs that are running at that moment may not see this yet, and write
    /// one frame each.
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

    /// Whether the consumer may be sleeping because of a confirmation. If the doorbell is then armed for another
    /// threshold, all programs must see the new one, too.
    #[must_use]
    pub fn relies_on_confirmation(&self) -> bool {
        self.is_confirmed || self.confirming.is_some()
    }

    /// Begins the confirmation that was requested. Must be called when the doorbell is armed for the thresholds, before
    /// the wait for all programs (Q in [`doorbell`]).
    pub fn begin_confirmation(&mut self) {
        if let Some(number) = self.requested.take() {
            self.confirming = Some(number);
        }
    }

    /// Sends the confirmation. Must be called after the wait for all programs, when thresholds that were reached by
    /// then have been handled (S in [`doorbell`]).
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
    /// Returns the same as [`Waker::position`]; 0 for a ring that has no line.
    #[must_use]
    pub fn position(&self, ring: usize) -> u64 {
        if ring < self.lines { position_in(&self.page, ring) } else { 0 }
    }
}

fn position_in(page: &Mapping, ring: usize) -> u64 {
    let noted = position(page, ring).load(Ordering::Relaxed);
    match line(page, ring).load(Ordering::Relaxed) {
        AWAKE | EACH_QUARTER => noted,
        // A consumer that sleeps until the next frame has read all frames before it.
        threshold => noted.max(threshold.saturating_sub(1)),
    }
}
