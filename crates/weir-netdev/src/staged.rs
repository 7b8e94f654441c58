//! Frames that wait to be received, and counts: memory that this process and the programs share.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

// bpf/netdev.bpf.c has the same constants.
/// Most frames of a run.
const FRAMES: usize = 1024;
/// The bytes of each frame begin below this offset.
const BYTES: usize = 256 * 1024;
/// Longest frame: Linux 6.1 puts data of its own into the page of a live frame, which leaves no space for more.
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

/// Frames that wait to be received. The programs read them only during a run, and this process waits for the run's end.
/// They change their counts at any time.
pub(crate) struct Staged {
    memory: NonNull<Memory>,
    frames: usize,
    /// Offset at which the next frame begins.
    end: usize,
    largest: usize,
}

// SAFETY: the mapping belongs to this value, and no thread has another pointer into it.
unsafe impl Send for Staged {}

impl Staged {
    /// Maps the array `staged`.
    pub(crate) fn map(map: BorrowedFd<'_>) -> io::Result<Staged> {
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no other mapping is replaced.
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

    /// Returns whether there is room for another frame of this length.
    pub(crate) fn has_room(&self, bytes: usize) -> bool {
        bytes <= LONGEST && self.frames < FRAMES && self.end < BYTES
    }

    /// Adds a frame after the others. It [has room](Self::has_room).
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

    /// Returns the number of waiting frames.
    pub(crate) fn len(&self) -> usize {
        self.frames
    }

    /// Returns a waiting frame.
    pub(crate) fn frame(&self, number: usize) -> &[u8] {
        assert!(number < self.frames, "one of those that wait");
        let place = self.memory().places[number].load(Relaxed);
        &self.memory().bytes[(place >> 32) as usize..][..(place & 0xffff_ffff) as usize]
    }

    /// Begins a run with the first frame. Returns the length of the buffer that the kernel must pass to the program.
    pub(crate) fn begin_run(&self) -> usize {
        // The kernel requires at least an Ethernet header.
        let largest = self.largest.max(64);
        self.memory().largest.store(largest as u64, Relaxed);
        self.memory().next.store(0, Relaxed);
        self.memory().is_running.store(1, Relaxed);
        largest
    }

    /// Ends a run. From then on, the program passes frames that are written into the tap.
    pub(crate) fn end_run(&self) {
        self.memory().is_running.store(0, Relaxed);
    }

    /// Returns how many frames the program has taken since the run began.
    pub(crate) fn taken(&self) -> usize {
        (self.memory().next.load(Relaxed) as usize).min(self.frames)
    }

    /// Removes all waiting frames.
    pub(crate) fn clear(&mut self) {
        (self.frames, self.end, self.largest) = (0, 0, 0);
    }

    /// Returns the number of frames that packet sockets have seen since the start.
    pub(crate) fn received(&self) -> u64 {
        self.memory().received.load(Relaxed)
    }

    /// Returns the number of frames that other programs sent into the interface since the start.
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
