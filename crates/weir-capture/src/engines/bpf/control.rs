//! The words between this process and its programs (`bpf/control.h`): the TAI offset, thresholds, and
//! counts of frames at the hook.

use std::ops::{Add, Sub};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;

use libbpf_rs::MapHandle;
use weir_ring::memory::Access;
use weir_ring::{AtomicU64, Mapping, Words};

use crate::error::CaptureError;

/// Words of `struct weir_control`.
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

/// `WEIR_GENERATIONS`.
pub(super) const GENERATIONS: usize = 8;

/// Frames that came to the hook.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Came {
    /// Those that the feeds could choose among.
    pub(super) judged: u64,
    /// Those that came while another was under way on their CPU.
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
    /// Rings of one feed.
    cpus: usize,
    feeds: usize,
}

impl Control {
    pub(crate) fn map(map: &MapHandle, cpus: usize, feeds: usize) -> Result<Control, CaptureError> {
        let fd = map.as_fd().try_clone_to_owned().map_err(CaptureError::os("duplicating a map"))?;
        let bytes = ((1 + cpus * feeds) * LINE_WORDS * 8).next_multiple_of(4096);
        // SAFETY: a BPF array cannot shrink, and is mapped whole pages long; its words are reached
        // through `word` only, as `AtomicU64`.
        let map = unsafe { Mapping::map(fd, bytes as u64, Access::Write) }?;
        let control = Control { map, cpus, feeds };
        for ring in 0..cpus * feeds {
            control.arm(ring, weir_ring::doorbell::AWAKE);
        }
        Ok(control)
    }

    /// Has the doorbell rung once this ring holds `ordinal` frames. True if it was to be rung at another number before.
    pub(crate) fn arm(&self, ring: usize, ordinal: u64) -> bool {
        self.word(1 + ring, ARMED).swap(ordinal, Ordering::SeqCst) != ordinal
    }

    /// Has the programs of `af_xdp` take no more frames; true of those that run after a grace period.
    pub(crate) fn close(&self) {
        self.word(0, CLOSED).store(1, Ordering::SeqCst);
    }

    /// Frames that came to the hook, on all CPUs.
    pub(crate) fn offered(&self) -> u64 {
        self.sum(0, OFFERED) + self.reentry()
    }

    /// Frames among them that came while another was under way on their CPU.
    pub(crate) fn reentry(&self) -> u64 {
        self.sum(0, OFFERED_NESTED)
    }

    /// Frames that came to one generation of the program of `bpf`.
    pub(super) fn came(&self, generation: usize) -> Came {
        Came {
            judged: self.sum(0, OFFERED_BY + generation),
            reentry: self.sum(0, NESTED_BY + generation),
        }
    }

    /// Makes the words of a place those of a new feed. No program may write frames of it.
    pub(super) fn clear(&self, feed: usize) {
        for ring in feed * self.cpus..(feed + 1) * self.cpus {
            self.arm(ring, weir_ring::doorbell::AWAKE);
            for word in [RUNG, CHOSEN, SAMPLED, SKIP, BLOCKED] {
                self.word(1 + ring, word).store(0, Ordering::Release);
            }
        }
    }

    /// Frames among those that a feed chose.
    pub(crate) fn chosen(&self, feed: usize) -> u64 {
        self.sum(feed, CHOSEN)
    }

    /// Frames among those that sampling left out.
    pub(crate) fn sampled(&self, feed: usize) -> u64 {
        self.sum(feed, SAMPLED)
    }

    /// Frames among those that a block list left out.
    pub(crate) fn blocked(&self, feed: usize) -> u64 {
        self.sum(feed, BLOCKED)
    }

    /// Frames among those offered that the kernel would not have taken into a socket.
    pub(crate) fn in_parts(&self) -> u64 {
        self.sum(0, IN_PARTS)
    }

    /// Frames among those offered that no feed's filter took, and that went into no socket.
    pub(crate) fn unwanted(&self) -> u64 {
        self.sum(0, UNWANTED)
    }

    /// Whether the driver had no answer when it was asked for a VLAN tag.
    pub(crate) fn tags_unknown(&self) -> bool {
        self.word(0, TAGS_UNKNOWN).load(Ordering::Relaxed) != 0
    }

    /// Stamps are CLOCK_TAI minus this, so that they follow clock steps; the offset itself changes
    /// with a leap second, or when a time daemon first sets it.
    pub(crate) fn follow_tai(&self) {
        self.word(0, TAI_OFFSET).store(tai_offset_ns(), Ordering::Relaxed);
    }

    /// A word of all lines of a feed.
    fn sum(&self, feed: usize, word: usize) -> u64 {
        debug_assert!(feed < self.feeds);
        let rings = feed * self.cpus..(feed + 1) * self.cpus;
        rings.map(|ring| self.word(1 + ring, word).load(Ordering::Acquire)).sum()
    }

    fn word(&self, line: usize, word: usize) -> &AtomicU64 {
        &self.map.words()[line * LINE_WORDS + word]
    }
}

/// CLOCK_TAI - CLOCK_REALTIME: whole seconds, so the time between the two readings rounds away.
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
