//! The writer's end of a consumer's sleep.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::SealFlags;
use rustix::net::{AddressFamily, RecvFlags, SocketType, sockopt};

use super::interrupt::duplicate;
use super::message::{self, MESSAGES_MAX, number_of, send};
use super::page::{SEALS, line, page_bytes, position};
use crate::doorbell::{self, AWAKE};
use crate::error::RingError;
use crate::limits::RINGS_MAX;
use crate::memory::{Access, Mapping};
use crate::sync::Ordering;

/// A waker is quiet for this long after it has woken its consumer. A thread takes tens of microseconds to wake.
pub const RING_GAP: Duration = Duration::from_micros(50);
/// Source: linux/magic.h. Memfds without huge pages live there.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

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

/// Requests of a consumer.
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

    /// Another end of the same, for a writer of other rings: each writer wakes at a threshold that it reaches.
    /// The consumer's messages are for one of them only. The channel hangs up when the last is gone.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn try_clone(&self) -> Result<Waker, RingError> {
        let (page, socket) = (duplicate(self.page.as_fd())?, duplicate(self.socket.as_fd())?);
        Waker::attach(page, socket, self.woken_for.len())
    }

    /// The descriptors of another end of the same, for a writer in another process, which [attaches](Waker::attach)
    /// them: wake page and socket.
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

    /// Closes this end, and leaves the consumer's report of how far it has read. The channel is not held open by
    /// that.
    #[must_use]
    pub fn into_positions(self) -> ReadPositions {
        ReadPositions { page: self.page, lines: self.woken_for.len() }
    }

    /// Wakes if ring number `ring`, which now holds `ordinal` published frames, has reached the
    /// consumer's threshold. Once for each threshold, and once in [`RING_GAP`]. Never waits.
    #[inline]
    pub fn wake_if_due(&mut self, ring: usize, ordinal: u64) {
        if let Some(threshold) = doorbell::due(line(&self.page, ring), ordinal) {
            self.wake_once(ring, threshold);
        }
    }

    #[cold]
    pub(super) fn wake_once(&mut self, ring: usize, threshold: u64) {
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

    /// Takes the messages of the consumer. Never waits, and reads a bounded number of messages: a descriptor that
    /// stays readable is looked at again.
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

/// How far a consumer says that it has read its rings, for who does not wake it.
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
        AWAKE => noted,
        // It sleeps until the next frame is there.
        threshold => noted.max(threshold.saturating_sub(1)),
    }
}
