//! Sleeping until N frames have come or T ns have passed, without a system call while frames flow.
//!
//! Each consumer owns a small memfd with one line per ring: the ordinal at which it wants to be
//! woken. The writer's side maps it read-only and rings the consumer's eventfd. What a consumer writes
//! there is its own wish and nothing else: a hostile page wakes its owner too often, or never.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags};
use rustix::fs::{MemfdFlags, SealFlags};

use crate::doorbell::{self, AWAKE};
use crate::error::RingError;
use crate::memory::{Access, Mapping};
use crate::reader::Reader;
use crate::sync::{AtomicU64, Ordering};
use crate::{Ring, Words};

/// Words of a line: two cache lines, because the next one is prefetched on x86.
const LINE_WORDS: usize = 16;
/// Most rings that one consumer sleeps on: a ring per CPU of the largest machines.
pub const RINGS_MAX: usize = 4096;

/// The consumer's end.
#[derive(Debug)]
pub struct Sleeper {
    page: Mapping,
    bell: OwnedFd,
    nudge: Option<OwnedFd>,
    rings: usize,
}

/// The writer's end of one consumer's sleep.
#[derive(Debug)]
pub struct Bell {
    page: Mapping,
    bell: OwnedFd,
    rings: usize,
    rung_for: Vec<u64>,
}

fn eventfd() -> Result<OwnedFd, RingError> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(RingError::os("creating an eventfd"))
}

/// Adds one to an eventfd: the wake-up itself.
///
/// # Errors
/// None that matter: a full eventfd is awake already.
pub fn signal(fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
}

/// Empties an eventfd.
pub fn drain(fd: BorrowedFd<'_>) {
    let _ = rustix::io::read(fd, &mut [0u8; 8]);
}

impl Sleeper {
    /// A sleeper for a consumer of `rings` rings. `nudge` is an eventfd of the writer's side that
    /// wants to hear of new wishes: BPF writers need one, threads do not.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If `rings` is 0 or above [`RINGS_MAX`].
    pub fn new(rings: usize, nudge: Option<OwnedFd>) -> Result<Sleeper, RingError> {
        assert!((1..=RINGS_MAX).contains(&rings), "{rings} rings");
        let bytes = page_bytes(rings);
        let fd =
            rustix::fs::memfd_create("weir-wake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(RingError::os("creating a wake page"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(RingError::os("sizing a wake page"))?;
        let seals = SealFlags::SHRINK | SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&fd, seals).map_err(RingError::os("sealing a wake page"))?;
        let page = Mapping::map(fd, bytes, Access::Write)?;
        for ring in 0..rings {
            line(&page, ring).store(AWAKE, Ordering::Relaxed);
        }
        Ok(Sleeper { page, bell: eventfd()?, nudge, rings })
    }

    /// The writer's end, for a writer in this process.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn bell(&self) -> Result<Bell, RingError> {
        let dup = |fd: BorrowedFd<'_>| {
            let doing = "duplicating a descriptor";
            fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
        };
        Bell::attach(dup(self.page.as_fd())?, dup(self.bell.as_fd())?, self.rings)
    }

    /// The descriptors that make a [`Bell`] in the writer's process: wake page and eventfd.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.page.as_fd(), self.bell.as_fd()]
    }

    /// Sleeps until any of the readers' rings has `frames` frames more than that reader has read, or
    /// until `limit` has passed, whichever comes first; returns at once if it is so already.
    ///
    /// `frames` counts per ring. Reader `i` must read ring `i` of this sleeper. True if it was woken
    /// by frames.
    ///
    /// # Errors
    /// [`RingError::Os`] if the kernel refuses to wait; an interrupted wait is a wake-up.
    pub fn sleep<M: Words>(
        &self,
        readers: &[Reader<M>],
        frames: u64,
        limit: Duration,
    ) -> Result<bool, RingError> {
        let wishes = || readers.iter().take(self.rings).enumerate();
        for (ring, reader) in wishes() {
            doorbell::wish(line(&self.page, ring), reader.ordinal().saturating_add(frames));
        }
        let ready = || {
            wishes().any(|(_, reader)| {
                let ring: &Ring<M> = reader.ring();
                ring.is_closed() || ring.frames_written() >= reader.ordinal().saturating_add(frames)
            })
        };
        let mut woken = ready();
        if !woken {
            if let Some(nudge) = &self.nudge {
                signal(nudge.as_fd());
            }
            let limit = limit.try_into().map_err(|_| RingError::Os {
                doing: "waiting for frames",
                source: io::ErrorKind::InvalidInput.into(),
            })?;
            let mut wait = [PollFd::new(&self.bell, PollFlags::IN)];
            match rustix::event::poll(&mut wait, Some(&limit)) {
                Ok(events) => woken = events > 0,
                Err(rustix::io::Errno::INTR) => {}
                Err(errno) => return Err(RingError::os("waiting for frames")(errno)),
            }
        }
        for ring in 0..self.rings {
            doorbell::withdraw(line(&self.page, ring));
        }
        drain(self.bell.as_fd());
        Ok(woken)
    }
}

impl Bell {
    /// The writer's end of a consumer in another process, from the descriptors it sent.
    ///
    /// # Errors
    /// [`RingError::NotSealed`] or [`RingError::TooSmall`] for a page that is not what a [`Sleeper`]
    /// makes: it could be cut short under us.
    pub fn attach(page: OwnedFd, bell: OwnedFd, rings: usize) -> Result<Bell, RingError> {
        let seals = rustix::fs::fcntl_get_seals(&page).unwrap_or(SealFlags::empty());
        if !seals.contains(SealFlags::SHRINK) {
            return Err(RingError::NotSealed);
        }
        let stat = rustix::fs::fstat(&page).map_err(RingError::os("asking for a wake page"))?;
        let (have, need) = (stat.st_size as u64, page_bytes(rings));
        if have < need {
            return Err(RingError::TooSmall { have, need });
        }
        // A blocking eventfd that is full would stop the writer.
        let flags = rustix::fs::fcntl_getfl(&bell).map_err(RingError::os("asking an eventfd"))?;
        rustix::fs::fcntl_setfl(&bell, flags | rustix::fs::OFlags::NONBLOCK)
            .map_err(RingError::os("setting up an eventfd"))?;
        let page = Mapping::map(page, need, Access::Read)?;
        Ok(Bell { page, bell, rings, rung_for: vec![AWAKE; rings] })
    }

    /// Rings if ring number `ring`, which now holds `ordinal` frames, has what the consumer waits
    /// for. Once for each wish.
    #[inline]
    pub fn ring_if_due(&mut self, ring: usize, ordinal: u64) {
        let word = line(&self.page, ring);
        if doorbell::is_due(word, ordinal) {
            self.ring_once(ring);
        }
    }

    #[cold]
    fn ring_once(&mut self, ring: usize) {
        let wish = line(&self.page, ring).load(Ordering::Relaxed);
        if wish != AWAKE && self.rung_for[ring] != wish {
            self.rung_for[ring] = wish;
            self.ring();
        }
    }

    /// Rings in any case: at the end of a ring.
    pub fn ring(&self) {
        signal(self.bell.as_fd());
    }

    /// The ordinal that the consumer waits for in ring number `ring`, or [`AWAKE`].
    #[must_use]
    pub fn wish(&self, ring: usize) -> u64 {
        assert!(ring < self.rings);
        line(&self.page, ring).load(Ordering::Relaxed)
    }
}

fn page_bytes(rings: usize) -> u64 {
    ((rings * LINE_WORDS * 8) as u64).next_multiple_of(4096)
}

fn line(page: &Mapping, ring: usize) -> &AtomicU64 {
    &page.words()[ring * LINE_WORDS]
}
