//! Sleeping until N frames have come or T ns have passed, without a system call while frames flow.
//!
//! Each consumer owns a small memfd with one line per ring: the ordinal at which it wants to be
//! woken. The writer's side maps it read-only and wakes the consumer. What a consumer writes
//! there is its own threshold and nothing else: a hostile page wakes its owner too often, or never.
//!
//! The waker is a pair of Unix sockets, not an eventfd. Whether a write to an eventfd waits is decided by
//! `O_NONBLOCK`, which belongs to the open file and not to the descriptor: a consumer could clear it at
//! any time, fill the eventfd, and stop the writer for good. `MSG_DONTWAIT` belongs to the call.
//!
//! A page that changes its thresholds all the time would cost the writer a system call for every burst. So a
//! waker sends at most once in [`RING_GAP`], and a sleeper that was woken less than a gap ago looks at its
//! rings once more when the gap is over: what the writer did not tell is there to be seen by then,
//! and whatever comes later wakes it. No clock is read while nobody is due.
//!
//! A sleep that its limit ends leaves its thresholds standing. The next one, if nothing came, finds that it wants
//! what its page says already, and tells nobody anew: on an idle link only the sleeper itself wakes. Frames
//! that come in between may wake for a threshold that nobody waits on; the next sleep then returns at once.

use std::io::IoSliceMut;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::ReadWriteFlags;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

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
/// A waker is quiet for this long after it has woken its consumer. A thread takes tens of microseconds to wake.
pub const RING_GAP: Duration = Duration::from_micros(50);
/// Longest sleep; longer limits are cut to it. Every sleep ends (`doorbell`).
const LIMIT_MAX: Duration = Duration::from_secs(24 * 3600);
/// Source: linux/magic.h. Memfds without huge pages live there.
const TMPFS_MAGIC: rustix::fs::FsWord = 0x0102_1994;

/// The consumer's end.
#[derive(Debug)]
pub struct Sleeper {
    page: Mapping,
    /// Our end of the waker's socket pair, and the writer's.
    socket: OwnedFd,
    writer_socket: OwnedFd,
    notify_fds: Vec<OwnedFd>,
    rings: usize,
    /// When the socket was last emptied of a wake-up: not before the writer sent it.
    rung_at: Mutex<Option<Instant>>,
}

/// The writer's end of one consumer's sleep.
#[derive(Debug)]
pub struct Waker {
    page: Mapping,
    writer_socket: OwnedFd,
    /// For each ring, the last threshold that was reached and woken for.
    woken_for: Vec<u64>,
    rung_at: Option<Instant>,
}

/// Adds one to a notify descriptor, an eventfd of the writer's side.
///
/// This waits where the other side made the eventfd a blocking one and lets it run full, which takes
/// 2^64 signals. So it is for consumers, who trust the writer's side, and not the other way round.
pub fn signal(notify_fd: BorrowedFd<'_>) {
    let _ = rustix::io::write(notify_fd, &1u64.to_ne_bytes());
}

/// Empties a notify descriptor. Never waits, even if a consumer has cleared `O_NONBLOCK` on the eventfd it shares.
pub fn drain(notify_fd: BorrowedFd<'_>) {
    let mut count = [0; 8];
    let mut bytes = [IoSliceMut::new(&mut count)];
    // `u64::MAX`: no offset. NOWAIT belongs to the call.
    let _ = rustix::io::preadv2(notify_fd, &mut bytes, u64::MAX, ReadWriteFlags::NOWAIT);
}

impl Sleeper {
    /// A sleeper for a consumer of `rings` rings. `notify_fds` are eventfds of writers' sides that
    /// want to hear of new thresholds: BPF writers need one each, threads do not.
    ///
    /// # Errors
    /// [`RingError::Os`].
    ///
    /// # Panics
    /// If `rings` is 0 or above [`RINGS_MAX`].
    pub fn new(rings: usize, notify_fds: Vec<OwnedFd>) -> Result<Sleeper, RingError> {
        assert!((1..=RINGS_MAX).contains(&rings), "{rings} rings");
        let bytes = page_bytes(rings);
        let fd =
            rustix::fs::memfd_create("weir-wake", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
                .map_err(RingError::os("creating a wake page"))?;
        rustix::fs::ftruncate(&fd, bytes).map_err(RingError::os("sizing a wake page"))?;
        // SAFETY: the descriptor is new and ours alone until it is sealed below, which keeps its size;
        // the page is reached through `line` only, as `AtomicU64`.
        let page = unsafe { Mapping::map(fd, bytes, Access::Write) }?;
        for ring in 0..rings {
            line(&page, ring).store(AWAKE, Ordering::Relaxed);
        }
        // FUTURE_WRITE keeps our mapping, and rules out that holes are punched under the writer.
        rustix::fs::fcntl_add_seals(&page, SEALS).map_err(RingError::os("sealing a wake page"))?;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (socket, writer_socket) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None)
                .map_err(RingError::os("creating a waker"))?;
        Ok(Sleeper { page, socket, writer_socket, notify_fds, rings, rung_at: Mutex::new(None) })
    }

    /// The writer's end, for a writer in this process.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn waker(&self) -> Result<Waker, RingError> {
        let dup = |fd: BorrowedFd<'_>| {
            let doing = "duplicating a descriptor";
            fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
        };
        Waker::attach(dup(self.page.as_fd())?, dup(self.writer_socket.as_fd())?, self.rings)
    }

    /// The descriptors that make a [`Waker`] in the writer's process: wake page and socket.
    #[must_use]
    pub fn fds(&self) -> [BorrowedFd<'_>; 2] {
        [self.page.as_fd(), self.writer_socket.as_fd()]
    }

    /// Sleeps until any of the readers' rings has `frames` frames more than that reader has read, or
    /// until `limit` has passed, whichever comes first; returns at once if it is so already.
    ///
    /// `frames` counts per ring. Reader `i` must read ring `i` of this sleeper. The end of a ring
    /// wakes too, until its reader has been told of it ([`Reader::has_ended`]). True if it was woken
    /// by frames or an end, false after `limit`.
    ///
    /// # Errors
    /// [`RingError::Os`] if the kernel refuses to wait; an interrupted wait is a wake-up.
    ///
    /// # Panics
    /// If there are more readers than rings.
    pub fn sleep<M: Words>(
        &self,
        readers: &[Reader<M>],
        frames: u64,
        limit: Duration,
    ) -> Result<bool, RingError> {
        assert!(readers.len() <= self.rings, "{} readers, {} rings", readers.len(), self.rings);
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
        let woken = if readers.iter().any(|reader| is_ready(reader, frames)) {
            Ok(true)
        } else {
            self.wait(readers, frames, limit, is_new)
        };
        // What stands was told to everybody: only a wait that told of its thresholds leaves them.
        if !matches!(woken, Ok(false)) {
            for ring in 0..readers.len() {
                doorbell::clear_threshold(line(&self.page, ring));
            }
        }
        // A wake-up for a threshold of this call may still come: then the next call returns at once, once.
        self.empty_socket();
        woken
    }

    fn wait<M: Words>(
        &self,
        readers: &[Reader<M>],
        frames: u64,
        limit: Duration,
        is_new: bool,
    ) -> Result<bool, RingError> {
        for notify_fd in self.notify_fds.iter().filter(|_| is_new) {
            signal(notify_fd.as_fd());
        }
        let (begin, limit) = (Instant::now(), limit.min(LIMIT_MAX));
        let quiet = self.quiet_for(begin);
        if !quiet.is_zero() {
            match self.poll(quiet.min(limit))? {
                Polled::Rung => return Ok(true),
                Polled::Interrupted => return Ok(false),
                // The writer reads its clock after it has published (fence H), and kept quiet only if
                // that was before now: what it published then, this look finds.
                Polled::TimedOut if readers.iter().any(|reader| is_ready(reader, frames)) => {
                    return Ok(true);
                }
                Polled::TimedOut => {}
            }
        }
        Ok(matches!(self.poll(limit.saturating_sub(begin.elapsed()))?, Polled::Rung))
    }

    fn poll(&self, limit: Duration) -> Result<Polled, RingError> {
        let limit = Timespec::try_from(limit).expect("a day fits a timespec");
        match rustix::event::poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], Some(&limit)) {
            Ok(0) => Ok(Polled::TimedOut),
            Ok(_) => Ok(Polled::Rung),
            Err(rustix::io::Errno::INTR) => Ok(Polled::Interrupted),
            Err(errno) => Err(RingError::os("waiting for frames")(errno)),
        }
    }

    /// How long from `now` the writer may still keep quiet, because it has rung.
    fn quiet_for(&self, now: Instant) -> Duration {
        let rung_at = *self.rung_at.lock().unwrap_or_else(PoisonError::into_inner);
        rung_at.map_or(Duration::ZERO, |rung| (rung + RING_GAP).saturating_duration_since(now))
    }

    fn empty_socket(&self) {
        let mut rung = false;
        loop {
            match rustix::net::recv(&self.socket, &mut [0u8; 64][..], RecvFlags::DONTWAIT) {
                Ok((_, 64)) => rung = true,
                Ok((_, bytes)) => {
                    rung |= bytes > 0;
                    break;
                }
                Err(_) => break,
            }
        }
        if rung {
            *self.rung_at.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        }
    }
}

/// Outcome of a wait on the socket.
enum Polled {
    Rung,
    TimedOut,
    Interrupted,
}

/// What wakes: enough frames, or an end that the reader has not seen.
fn is_ready<M: Words>(reader: &Reader<M>, frames: u64) -> bool {
    let ring: &Ring<M> = reader.ring();
    !reader.has_ended()
        && (ring.is_closed() || ring.frames_written() >= reader.ordinal().saturating_add(frames))
}

impl Waker {
    /// The writer's end of a consumer in another process, from the descriptors it sent
    /// ([`Sleeper::fds`]). None of them is trusted.
    ///
    /// # Errors
    /// [`RingError::NotAWakePage`], [`RingError::TooSmall`] or [`RingError::NotAWaker`] for what no
    /// [`Sleeper`] makes: it could be cut short under us, or stop us.
    pub fn attach(page: OwnedFd, writer_socket: OwnedFd, rings: usize) -> Result<Waker, RingError> {
        if !(1..=RINGS_MAX).contains(&rings) {
            return Err(RingError::NotAWakePage);
        }
        let seals = rustix::fs::fcntl_get_seals(&page).unwrap_or(SealFlags::empty());
        // Touching a huge page that is not there would end the process; a plain page is made.
        let plain = rustix::fs::fstatfs(&page).is_ok_and(|fs| fs.f_type == TMPFS_MAGIC);
        if !seals.contains(SEALS) || !plain {
            return Err(RingError::NotAWakePage);
        }
        let stat = rustix::fs::fstat(&page).map_err(RingError::os("asking for a wake page"))?;
        let (have, need) = (stat.st_size as u64, page_bytes(rings));
        if have < need {
            return Err(RingError::TooSmall { have, need });
        }
        if sockopt::socket_domain(&writer_socket) != Ok(AddressFamily::UNIX)
            || sockopt::socket_type(&writer_socket) != Ok(SocketType::STREAM)
        {
            return Err(RingError::NotAWaker);
        }
        // SAFETY: its seals, found above, keep the size that was found after them; the page is reached
        // through `line` only, as `AtomicU64`.
        let page = unsafe { Mapping::map(page, need, Access::Read) }?;
        Ok(Waker { page, writer_socket, woken_for: vec![AWAKE; rings], rung_at: None })
    }

    /// Rings that it has a line for.
    #[must_use]
    pub fn lines(&self) -> usize {
        self.woken_for.len()
    }

    /// Another end of the same, for a writer of other rings: whoever reaches a threshold wakes.
    ///
    /// # Errors
    /// [`RingError::Os`].
    pub fn try_clone(&self) -> Result<Waker, RingError> {
        let dup = |fd: BorrowedFd<'_>| {
            let doing = "duplicating a descriptor";
            fd.try_clone_to_owned().map_err(|source| RingError::Os { doing, source })
        };
        Waker::attach(
            dup(self.page.as_fd())?,
            dup(self.writer_socket.as_fd())?,
            self.woken_for.len(),
        )
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
        if self.rung_at.is_none_or(|rung| now.duration_since(rung) >= RING_GAP) {
            self.woken_for[ring] = threshold;
            self.rung_at = Some(now);
            self.wake();
        }
    }

    /// Wakes in any case: at the end of a ring.
    pub fn wake(&self) {
        // A socket that takes no more bytes holds a wake-up already; one that is broken wakes nobody, and the
        // consumer broke it.
        let _ =
            rustix::net::send(&self.writer_socket, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
    }

    /// The ordinal that the consumer waits for in ring number `ring`, or [`AWAKE`].
    #[must_use]
    pub fn wake_threshold(&self, ring: usize) -> u64 {
        line(&self.page, ring).load(Ordering::Relaxed)
    }
}

/// What a wake page must be sealed with: its size stays, and no hole is punched into it.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::FUTURE_WRITE);

fn page_bytes(rings: usize) -> u64 {
    ((rings * LINE_WORDS * 8) as u64).next_multiple_of(4096)
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
        assert!(!sleeper.sleep(&readers, 10, SOON).unwrap());
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
            assert!(woken && took < Duration::from_secs(10), "{woken} after {took:?}");
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
                    assert!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap());
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

    /// Bytes that the socket holds.
    fn rung(sleeper: &Sleeper) -> usize {
        rustix::net::recv(&sleeper.socket, &mut [0u8; 64][..], RecvFlags::DONTWAIT)
            .map_or(0, |(_, bytes)| bytes)
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
        assert!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap());
        assert!(begin.elapsed() < Duration::from_secs(10));
        let mut batch = Batch::new();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
        let begin = Instant::now();
        assert!(!sleeper.sleep(&readers, 1, SOON).unwrap());
        assert!(begin.elapsed() >= SOON);
        assert_eq!(line(&sleeper.page, 0).load(Ordering::Relaxed), AWAKE);
    }

    #[test]
    fn a_waker_that_is_full_or_made_to_block_does_not_stop_the_writer() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let mut waker = sleeper.waker().unwrap();
        // What a hostile consumer does to the open files that it shares.
        for fd in [&sleeper.socket, &sleeper.writer_socket] {
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
        assert!(sleeper.sleep(&readers, 0, SOON).unwrap());
        assert!(rustix::io::read(&notify_fd, &mut [0u8; 8]).is_err());
        assert!(!sleeper.sleep(&readers, 1, SOON).unwrap());
        assert_eq!(rustix::io::read(&notify_fd, &mut [0u8; 8]).unwrap(), 8);
    }

    #[test]
    fn a_threshold_that_stands_is_not_told_again_and_wakes() {
        use rustix::event::EventfdFlags;
        let notify_fd =
            rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).unwrap();
        let (ring, mut writer) = ring();
        let sleeper = Sleeper::new(1, vec![notify_fd.try_clone().unwrap()]).unwrap();
        let mut waker = sleeper.waker().unwrap();
        let mut readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        let told = || rustix::io::read(&notify_fd, &mut [0u8; 8]).is_ok();
        for is_told in [true, false, false] {
            assert!(!sleeper.sleep(&readers, 2, SOON).unwrap());
            assert_eq!((told(), waker.wake_threshold(0)), (is_told, 2));
        }
        assert!(!sleeper.sleep(&readers, 1, SOON).unwrap());
        assert!(told(), "another threshold");
        // One comes between two sleeps.
        waker.wake_if_due(0, push(&mut writer, 1));
        assert!(sleeper.sleep(&readers, 1, Duration::from_secs(20)).unwrap());
        assert_eq!((told(), waker.wake_threshold(0)), (false, AWAKE));
        let mut batch = Batch::new();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Frames(1));
        assert!(!sleeper.sleep(&readers, 1, SOON).unwrap());
        assert_eq!((told(), waker.wake_threshold(0)), (true, 2), "the next threshold is new");
        // An end that was seen clears the threshold.
        writer.close();
        assert_eq!(readers[0].poll(&mut batch).unwrap(), Poll::Closed);
        assert!(!sleeper.sleep(&readers, 1, SOON).unwrap());
        assert_eq!(waker.wake_threshold(0), AWAKE);
    }

    #[test]
    fn what_no_sleeper_made_is_refused() {
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        let dup = |fd: &dyn AsFd| fd.as_fd().try_clone_to_owned().unwrap();
        let attach =
            |page: OwnedFd, rings| Waker::attach(page, dup(&sleeper.writer_socket), rings).err();
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
        for socket in [write, udp.into(), dup(&sleeper.page)] {
            let error = Waker::attach(dup(&sleeper.page), socket, 1).err();
            assert!(matches!(error, Some(RingError::NotAWaker)));
        }
    }

    #[test]
    fn the_longest_limit_is_no_error() {
        let (ring, _writer) = ring();
        let sleeper = Sleeper::new(1, Vec::new()).unwrap();
        sleeper.waker().unwrap().wake();
        let readers = [Reader::new(&ring, Start::Oldest).unwrap()];
        assert!(sleeper.sleep(&readers, u64::MAX, Duration::MAX).unwrap());
    }
}
