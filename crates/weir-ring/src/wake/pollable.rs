//! A sleep in a program's own event loop: a descriptor for `poll`, `select` and `epoll`.
//!
//! A program with its own event loop cannot call [`Sleeper::sleep`]. Instead it reads until there are no more frames,
//! calls [`Sleeper::arm_on`], and waits for the descriptor together with its others. The descriptor is an epoll
//! instance of everything for which a sleep waits: the channels, the interrupter, and a timer for the times at which a
//! sleep would look at the rings. So all times of a sleep apply here, too: the gap after a wake-up, the limit for
//! unconfirmed thresholds, and the caller's limit.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};

use super::message::Channel;
use super::page::line;
use super::sleep::{is_ready, threshold_of};
use super::{LIMIT_MAX, Sleeper, UNCONFIRMED_LIMIT, Woken};
use crate::Words;
use crate::doorbell;
use crate::error::RingError;
use crate::reader::Reader;
use crate::sync::Ordering;

/// Descriptors for the event loop, created on first use.
#[derive(Debug, Default)]
pub(super) struct Pollable(OnceLock<Descriptors>);

#[derive(Debug)]
struct Descriptors {
    epoll: OwnedFd,
    timer: OwnedFd,
}

impl Descriptors {
    fn new(sleeper: &Sleeper) -> rustix::io::Result<Descriptors> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let descriptors = Descriptors { epoll, timer };
        descriptors.add(&descriptors.timer)?;
        descriptors.add(&sleeper.interrupt)?;
        Ok(descriptors)
    }

    fn add(&self, fd: impl AsFd) -> rustix::io::Result<()> {
        epoll::add(&self.epoll, fd, EventData::new_u64(0), EventFlags::IN)
    }

    /// Sets the timer. `None` stops it.
    fn set_timer(&self, after: Option<Duration>) -> rustix::io::Result<()> {
        // Zero would stop the timer.
        let after = after.map(|after| after.clamp(Duration::from_nanos(1), LIMIT_MAX));
        let after = Timespec::try_from(after.unwrap_or_default()).expect("a day fits a timespec");
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: after };
        rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).map(drop)
    }
}

impl Pollable {
    /// Adds the socket of a channel to the epoll instance, once, if there is such an instance.
    pub(super) fn watch(&self, channel: &mut Channel) -> Result<(), RingError> {
        let (Some(own), Some(socket)) = (self.0.get(), channel.socket.as_ref()) else {
            return Ok(());
        };
        if !channel.is_watched {
            own.add(&**socket).map_err(RingError::os("watching a channel"))?;
            channel.is_watched = true;
        }
        Ok(())
    }

    /// Removes a socket from the epoll instance. Closing the socket would not be enough if another process, such as a
    /// fork, also has it open.
    pub(super) fn forget(&self, socket: &Arc<OwnedFd>) {
        if let Some(own) = self.0.get() {
            let _ = epoll::delete(&own.epoll, &**socket);
        }
    }
}

impl Sleeper {
    /// Returns the descriptor, the same one each time. It is readable until [`arm_on`](Sleeper::arm_on) is called for
    /// the first time. Do not read from it.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn pollable(&self) -> Result<BorrowedFd<'_>, RingError> {
        if self.pollable.0.get().is_none() {
            let doing = "making a descriptor that can be polled";
            let new = Descriptors::new(self).map_err(RingError::os(doing))?;
            new.set_timer(Some(Duration::ZERO)).map_err(RingError::os(doing))?;
            // Another thread may have made the descriptors meanwhile; then these are dropped.
            let _ = self.pollable.0.set(new);
            self.channels().iter_mut().try_for_each(|channel| self.pollable.watch(channel))?;
        }
        Ok(self.pollable.0.get().expect("made above").epoll.as_fd())
    }

    /// Makes [`pollable`](Sleeper::pollable) readable as soon as one of the readers' rings has `frames` frames more
    /// than that reader has read, has ended, or has lost its writer, or when `limit` has passed. Each reader is passed
    /// with its line, as in [`sleep_on`](Sleeper::sleep_on). The descriptor may become readable without a reason: a
    /// caller that finds nothing arms it again.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If there is no such line.
    pub fn arm_on<'a, M: Words + 'a>(
        &self,
        readers: impl Iterator<Item = (usize, &'a Reader<M>)> + Clone,
        frames: u64,
        limit: Duration,
    ) -> Result<Option<Woken>, RingError> {
        self.pollable()?;
        // Receives the messages that made the descriptor readable, so that it is no longer readable.
        let received = self.receive();
        let mut is_new = false;
        for (ring, reader) in readers.clone() {
            assert!(ring < self.lines, "line {ring} of {}", self.lines);
            let word = line(&self.page, ring);
            let threshold = threshold_of(reader, frames);
            is_new |= word.load(Ordering::Relaxed) != threshold;
            doorbell::set_threshold(word, threshold);
        }
        let is_confirmed = self.is_confirmed();
        if is_new {
            self.tell_new();
        } else if !is_confirmed && !received.news {
            // No message came since the descriptor was armed last, so a confirmation is worth its cost: the owners wait
            // for all their programs.
            self.request();
        }
        // The caller must look at its rings again after an interruption, and its last look was before this call.
        let is_news = matches!(received.woken, Some(Woken::Interrupted | Woken::WriterGone(_)));
        let after = if is_news || readers.clone().any(|(_, reader)| is_ready(reader, frames)) {
            Duration::ZERO
        } else {
            let quiet = self.quiet_for(Instant::now());
            let unseen = if self.is_confirmed() { limit } else { UNCONFIRMED_LIMIT };
            limit.min(unseen).min(if quiet.is_zero() { limit } else { quiet })
        };
        let own = self.pollable.0.get().expect("made above");
        own.set_timer(Some(after)).map_err(RingError::os("setting a timer"))?;
        Ok(received.woken.filter(|woken| matches!(woken, Woken::WriterGone(_))))
    }

    /// Makes [`pollable`](Sleeper::pollable) readable until it is armed, even if messages are received meanwhile.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn disarm(&self) -> Result<(), RingError> {
        self.pollable()?;
        let own = self.pollable.0.get().expect("made above");
        own.set_timer(Some(Duration::ZERO)).map_err(RingError::os("setting a timer"))
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags};

    use super::*;
    use crate::reader::{Poll, Start};
    use crate::testing::{meta, spec};
    use crate::wake::Asked;
    use crate::{Batch, Mapping, Ring, Writer};

    const LONG: Duration = Duration::from_secs(60);

    struct Fixture {
        sleeper: Sleeper,
        writer: Writer<Mapping>,
        reader: Reader<Mapping>,
    }

    impl Fixture {
        fn new() -> Fixture {
            let ring: Ring<Mapping> = crate::memory::create_memfd("weir-test", &spec(4)).unwrap();
            let reader = Reader::new(&ring, Start::Oldest).unwrap();
            Fixture { sleeper: Sleeper::new(1).unwrap(), writer: Writer::new(ring), reader }
        }

        fn push(&mut self) -> u64 {
            self.writer.push(&meta(self.writer.frames()), &[0; 60]);
            self.writer.publish();
            self.writer.frames()
        }

        fn arm(&self, limit: Duration) -> Option<Woken> {
            self.sleeper.arm_on([(0, &self.reader)].into_iter(), 1, limit).unwrap()
        }

        fn is_readable(&self, within: Duration) -> bool {
            let fd = self.sleeper.pollable().unwrap();
            let mut fds = [PollFd::new(&fd, PollFlags::IN)];
            let within = Timespec::try_from(within).unwrap();
            rustix::event::poll(&mut fds, Some(&within)).unwrap() == 1
        }
    }

    #[test]
    fn it_is_readable_until_it_is_armed_and_then_when_frames_come() {
        let mut it = Fixture::new();
        let mut waker = it.sleeper.waker().unwrap();
        assert!(it.is_readable(Duration::ZERO));
        assert_eq!(it.arm(LONG), None);
        assert!(!it.is_readable(Duration::from_millis(20)));
        let ordinal = it.push();
        waker.wake_if_due(0, ordinal);
        assert!(it.is_readable(LONG));
        // Nobody has read them.
        it.arm(LONG);
        assert!(it.is_readable(LONG));
        assert_eq!(it.reader.poll(&mut Batch::new()).unwrap(), Poll::Frames(1));
        // Behind the quiet after a wake-up it may be readable once for nothing.
        std::thread::sleep(crate::wake::RING_GAP);
        it.arm(LONG);
        assert!(!it.is_readable(Duration::from_millis(20)));
        it.arm(Duration::from_millis(1));
        assert!(it.is_readable(LONG), "the limit has passed");
        it.arm(LONG);
        assert!(!it.is_readable(Duration::from_millis(20)));
        it.sleeper.disarm().unwrap();
        assert!(it.is_readable(LONG));
        assert_eq!(it.sleeper.find_gone_writer(), None);
        assert!(it.is_readable(LONG), "a look at the channels takes nothing of it");
    }

    #[test]
    fn what_the_writer_keeps_quiet_about_is_looked_for() {
        // A thread that is held up between a wake-up and its look has missed the quiet: so, several times.
        let found = (0..20).any(|_| {
            let mut it = Fixture::new();
            let waker = it.sleeper.waker().unwrap();
            it.arm(LONG);
            waker.wake();
            it.arm(LONG);
            // As if it had been published while the writer sent no wake-up.
            it.push();
            it.is_readable(Duration::from_millis(100))
        });
        assert!(found);
    }

    #[test]
    fn writers_that_have_gone_and_interruptions_are_told() {
        let it = Fixture::new();
        it.arm(LONG);
        it.sleeper.interrupter().unwrap().interrupt();
        assert!(it.is_readable(LONG));
        assert_eq!(it.arm(LONG), None);
        assert!(it.is_readable(LONG), "the caller has not looked since");
        it.arm(LONG);
        // A channel that is made later is heard, too.
        let waker = it.sleeper.waker().unwrap();
        assert!(!it.is_readable(Duration::from_millis(20)));
        drop(waker);
        assert!(it.is_readable(LONG));
        assert_eq!(it.arm(LONG), Some(Woken::WriterGone(0)));
        assert_eq!(it.arm(LONG), None);
        assert!(!it.is_readable(Duration::from_millis(20)), "said once");
    }

    #[test]
    fn thresholds_that_nobody_has_confirmed_are_looked_after() {
        let it = Fixture::new();
        let mut waker = it.sleeper.waker().unwrap();
        waker.announce_confirmations();
        it.arm(LONG);
        assert!(it.is_readable(LONG), "within the limit for what is not confirmed");
        it.arm(LONG);
        while !waker.wants_confirmation() {
            assert_ne!(waker.take_messages(), Asked::Gone);
            it.arm(LONG);
        }
        waker.begin_confirmation();
        waker.finish_confirmation();
        assert!(it.is_readable(LONG), "the confirmation");
        it.arm(LONG);
        assert!(!it.is_readable(4 * UNCONFIRMED_LIMIT));
    }
}
