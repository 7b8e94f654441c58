//! Frames that wait to be received, and counts: memory that this process and the programs share.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

// bpf/netdev.bpf.c has the same.
/// Most frames of a run.
const FRAMES: usize = 1024;
/// Their bytes begin below this.
const BYTES: usize = 256 * 1024;
/// Longest frame: with what Linux 6.1 has in the page of a live frame, more has no room there.
pub(crate) const LONGEST: usize = 3296;

/// `struct staged` of bpf/netdev.bpf.c.
#[repr(C)]
struct Memory {
    next: AtomicU64,
    is_running: AtomicU64,
    received: AtomicU64,
    sent_into: AtomicU64,
    largest: AtomicU64,
    places: [AtomicU64; FRAMES],
    bytes: [u8; BYTES + LONGEST],
}

/// Frames that wait. The programs read them in a run only, which this process waits for; their counts they change at
/// any time.
pub(crate) struct Staged {
    memory: NonNull<Memory>,
    frames: usize,
    /// Where the next one begins.
    end: usize,
    largest: usize,
}

// SAFETY: the mapping belongs to this value, and no thread has another pointer into it.
unsafe impl Send for Staged {}

impl Staged {
    /// Maps the array `staged`.
    pub(crate) fn map(map: BorrowedFd<'_>) -> io::Result<Staged> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses where, so nothing that is there is replaced.
        let memory = unsafe {
            mmap(std::ptr::null_mut(), size_of::<Memory>(), protection, MapFlags::SHARED, map, 0)?
        };
        let memory = NonNull::new(memory.cast()).expect("mmap gives no null without MAP_FIXED");
        Ok(Staged { memory, frames: 0, end: 0, largest: 0 })
    }

    fn memory(&self) -> &Memory {
        // SAFETY: the array has one value as long as `Memory`, mapped whole until drop, and page-aligned. The
        // programs only write the words in front, which are atomics; `bytes` they only read, and `push`, which
        // writes there, borrows `self` mutably.
        unsafe { self.memory.as_ref() }
    }

    /// Whether another frame of so many bytes has room.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= LONGEST && self.frames < FRAMES && self.end < BYTES
    }

    /// Puts a frame behind the others; it [has room](Self::has_room).
    pub(crate) fn push(&mut self, frame: &[u8]) {
        assert!(self.has_room(frame.len()), "the caller asks first");
        // SAFETY: `end` is below `BYTES` and the frame is at most `LONGEST` long, so it ends within `bytes`. `self` is
        // borrowed mutably, and no program runs that reads there: a run borrows it, too.
        unsafe {
            let to = (&raw mut (*self.memory.as_ptr()).bytes).cast::<u8>().add(self.end);
            to.copy_from_nonoverlapping(frame.as_ptr(), frame.len());
        }
        let place = (self.end as u64) << 32 | frame.len() as u64;
        self.memory().places[self.frames].store(place, Relaxed);
        self.frames += 1;
        self.largest = self.largest.max(frame.len());
        self.end = (self.end + frame.len()).next_multiple_of(8);
    }

    /// How many frames wait.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// One of those that wait.
    pub(crate) fn frame(&self, number: usize) -> &[u8] {
        assert!(number < self.frames, "one of those that wait");
        let place = self.memory().places[number].load(Relaxed);
        &self.memory().bytes[(place >> 32) as usize..][..(place & 0xffff_ffff) as usize]
    }

    /// Lets the program begin with the first one, and returns the length of the part that the kernel is to
    /// put before it.
    pub(crate) fn begin_run(&self) -> usize {
        // The kernel wants an Ethernet header at least.
        let largest = self.largest.max(64);
        self.memory().largest.store(largest as u64, Relaxed);
        self.memory().next.store(0, Relaxed);
        self.memory().is_running.store(1, Relaxed);
        largest
    }

    /// Lets the program pass written frames.
    pub(crate) fn end_run(&self) {
        self.memory().is_running.store(0, Relaxed);
    }

    /// How many of them the program has taken since then.
    pub(crate) fn taken(&self) -> usize {
        (self.memory().next.load(Relaxed) as usize).min(self.frames)
    }

    /// None wait any more.
    pub(crate) fn clear(&mut self) {
        (self.frames, self.end, self.largest) = (0, 0, 0);
    }

    /// Frames that packet sockets have seen, since the start.
    pub(crate) fn received(&self) -> u64 {
        self.memory().received.load(Relaxed)
    }

    /// Frames that somebody sent into the interface, since the start.
    pub(crate) fn sent_into(&self) -> u64 {
        self.memory().sent_into.load(Relaxed)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // SAFETY: exactly the range that `map` got, and no borrow of it is left.
        let _ = unsafe { munmap(self.memory.as_ptr().cast(), size_of::<Memory>()) };
    }
}
