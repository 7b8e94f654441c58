//! Memory that this process shares with its programs (`bpf/control.h`): the TAI offset, thresholds, and counts of
//! frames at the hook.

use std::ops::{Add, Sub};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use weir_ring::memory::Access;
use weir_ring::{AtomicU64, Mapping, Words};

use crate::error::CaptureError;

/// Length of `struct weir_control` in words. The constants after it are the offsets of fields, also in words.
const LINE_WORDS: usize = 48;
const TAI_OFFSET: usize = 0;
const ARMED: usize = 1;
const CLOSED: usize = 2;
const OFFERED: usize = 17;
const OFFERED_NESTED: usize = 18;
const TAGS_UNKNOWN: usize = 19;
const IN_PARTS: usize = 20;
const CHOSEN: usize = 22;
const SAMPLED: usize = 23;
const BLOCKED: usize = 25;
const RUNG: usize = 21;
const SKIP: usize = 24;
const UNWANTED: usize = 26;
const OFFERED_BY: usize = 32;
const NESTED_BY: usize = 40;

/// As `WEIR_GENERATIONS` in `bpf/control.h`.
pub(super) const GENERATIONS: usize = 8;

/// Numbers of frames that came to the hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    /// Frames that were offered to the feeds.
    pub(super) judged: u64,
    /// Frames that came while the program was handling another frame on the same CPU. They are not captured.
    pub(super) reentry: u64,
}

impl Add for Came {
    type Output = Came;

    fn add(self, other: Came) -> Came {
        Came { judged: self.judged + other.judged, reentry: self.reentry + other.reentry }
    }
}

impl Sub for Came {
    type Output = Came;

    fn sub(self, before: Came) -> Came {
        Came { judged: self.judged - before.judged, reentry: self.reentry - before.reentry }
    }
}

pub(crate) struct Control {
    map: Mapping,
    /// Number of rings of each feed.
    cpus: usize,
    feeds: usize,
}

impl Control {
    pub(crate) fn map(map: &MapHandle, cpus: usize, feeds: usize) -> Result<Control, CaptureError> {
        let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
        let bytes = ((1 + cpus * feeds) * LINE_WORDS * 8).next_multiple_of(4096);
        // SAFETY: a BPF array cannot shrink, and the mapping consists of whole pages of it; its words are accessed
        // through `word` only, as `AtomicU64`.
        let map = unsafe { Mapping::map(fd, bytes as u64, Access::Write) }?;
        let control = Control { map, cpus, feeds };
        for ring in 0..cpus * feeds {
            control.arm(ring, weir_ring::doorbell::AWAKE);
        }
        Ok(control)
    }

    /// Arms the doorbell: it rings when this ring holds `ordinal` frames. Returns true if it was armed for another
    /// number before.
    pub(crate) fn arm(&self, ring: usize, ordinal: u64) -> bool {
        self.word(1 + ring, ARMED).swap(ordinal, Ordering::SeqCst) != ordinal
    }

    /// Tells the programs of `af_xdp` to take no more frames. After an RCU grace period, no program takes any.
    pub(crate) fn close(&self) {
        self.word(0, CLOSED).store(1, Ordering::SeqCst);
    }

    /// Returns the number of frames that came to the hook, on all CPUs.
    pub(crate) fn offered(&self) -> u64 {
        self.sum(0, OFFERED) + self.reentry()
    }

    /// Returns the number of frames that came while the program was handling another frame on the same CPU.
    pub(crate) fn reentry(&self) -> u64 {
        self.sum(0, OFFERED_NESTED)
    }

    /// Returns the numbers of frames that came to one generation of the programs of `bpf`.
    pub(super) fn came(&self, generation: usize) -> Came {
        Came {
            judged: self.sum(0, OFFERED_BY + generation),
            reentry: self.sum(0, NESTED_BY + generation),
        }
    }

    /// Clears the words of a place for a new feed. No program may be writing in this place.
    pub(super) fn clear(&self, feed: usize) {
        for ring in feed * self.cpus..(feed + 1) * self.cpus {
            self.arm(ring, weir_ring::doorbell::AWAKE);
            for word in [RUNG, CHOSEN, SAMPLED, SKIP, BLOCKED] {
                self.word(1 + ring, word).store(0, Ordering::Release);
            }
        }
    }

    /// Returns the number of offered frames that a feed selected.
    pub(crate) fn chosen(&self, feed: usize) -> u64 {
        self.sum(feed, CHOSEN)
    }

    /// Returns the number of selected frames that sampling excluded.
    pub(crate) fn sampled(&self, feed: usize) -> u64 {
        self.sum(feed, SAMPLED)
    }

    /// Returns the number of selected frames that a block list excluded.
    pub(crate) fn blocked(&self, feed: usize) -> u64 {
        self.sum(feed, BLOCKED)
    }

    /// Returns the number of offered frames that the kernel cannot redirect to a socket, because they are in several
    /// parts.
    pub(crate) fn in_parts(&self) -> u64 {
        self.sum(0, IN_PARTS)
    }

    /// Returns the number of offered frames that no feed's filter accepted, and that were therefore not redirected to a
    /// socket.
    pub(crate) fn unwanted(&self) -> u64 {
        self.sum(0, UNWANTED)
    }

    /// Returns true if the driver could not answer a request for a VLAN tag.
    pub(crate) fn tags_unknown(&self) -> bool {
        self.word(0, TAGS_UNKNOWN).load(Ordering::Relaxed) != 0
    }

    /// Updates the TAI offset. Time stamps are CLOCK_TAI minus this offset, so that they follow steps of the realtime
    /// clock. The offset changes at a leap second, or when a time daemon sets it for the first time.
    pub(crate) fn follow_tai(&self) {
        self.word(0, TAI_OFFSET).store(tai_offset_ns(), Ordering::Relaxed);
    }

    /// Returns the sum of a word over all lines of a feed.
    fn sum(&self, feed: usize, word: usize) -> u64 {
        debug_assert!(feed < self.feeds);
        let rings = feed * self.cpus..(feed + 1) * self.cpus;
        rings.map(|ring| self.word(1 + ring, word).load(Ordering::Acquire)).sum()
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.map.words()[line * LINE_WORDS + word]
    }
}

/// Returns CLOCK_TAI - CLOCK_REALTIME, which is a whole number of seconds. Rounding removes the time between the two
/// readings.
fn tai_offset_ns() -> u64 {
    const SECOND: i128 = 1_000_000_000;
    let seconds =
        (now_ns(libc::CLOCK_TAI) - now_ns(libc::CLOCK_REALTIME) + SECOND / 2).div_euclid(SECOND);
    (seconds * SECOND) as u64
}

fn now_ns(clock: libc::clockid_t) -> i128 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel fills the one timespec that is passed; both clocks exist since Linux 3.10.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}
