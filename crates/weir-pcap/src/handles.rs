//! The handles of `host:` names. They are found by the program's `pcap_t`.

use std::cell::UnsafeCell;
use std::ffi::{c_char, c_int};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError};
use std::time::Instant;

use weir_abi::Stop;
use weir_client::{Address, FeedReader};

use crate::abi::{ERRBUF_SIZE, Insn, PacketHeader, Pcap, Program, Stat};
use crate::guard::write_error;
use crate::real;

/// Most handles of `host:` names that a process can have at a time.
const HANDLES_MAX: usize = 256;

/// A handle of a `host:` name.
pub struct Handle {
    /// The pointer that the program holds.
    pub key: *mut Pcap,
    /// The real libpcap's handle, once this one is activated: with the feed's link type, snapshot length and precision.
    inner: AtomicPtr<Pcap>,
    /// Ends a wait for `pcap_breakloop`. Set once the handle is activated.
    pub stop: OnceLock<Stop>,
    /// Whether a reading call works at the moment: false during the program's callback.
    is_busy: AtomicBool,
    /// Whether [`State::filter`] is set. Read for each frame.
    has_filter: AtomicBool,
    /// Frames of the last run that the program has not read yet.
    unread_at: AtomicPtr<u8>,
    unread_bytes: AtomicUsize,
    /// The last statistics, for calls that must not wait, such as those of a signal handler.
    told: [AtomicU32; 3],
    state: Mutex<State>,
    error: UnsafeCell<[c_char; ERRBUF_SIZE]>,
    /// Whether the text of the last error is that of the inner handle.
    error_is_inner: AtomicBool,
    /// The header to which `pcap_next_ex` points.
    pub header: UnsafeCell<PacketHeader>,
}

// SAFETY: `key` belongs to libpcap, and is only passed to libpcap. `error` and `header` are written by calls of which a
// program may make only one at a time on a handle (pcap(3PCAP), "thread safety"); everything else locks or is atomic.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// Settings of the program, and the feed.
pub struct State {
    pub name: Address,
    pub options: Options,
    pub reader: Option<FeedReader>,
    /// The filter that this library applies to frames from before a change of the filter. Set by
    /// [`Handle::set_filter`].
    filter: Option<Box<[Insn]>>,
    pub nonblock: bool,
    pub polling: Polling,
    /// The process that has made the last reading call.
    pub pid: u32,
    /// The descriptor that the program was given, if it has asked for one.
    pub fd: c_int,
    /// The daemon's last answer about this feed.
    pub at_daemon: AtDaemon,
    /// Time of the last request for that answer.
    pub noted_at: Option<Instant>,
    /// Time of the last such request that the program caused by asking for statistics.
    pub asked_at: Option<Instant>,
}

/// The daemon's counts of a feed's frames.
#[derive(Default)]
pub struct AtDaemon {
    pub captured: u64,
    pub lost: u64,
    /// Frames that the source lost before any feed could have them.
    pub missed_before: u64,
}

/// State of the descriptor for event loops.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// The program has not asked for the descriptor.
    Unused,
    /// The descriptor is readable: a call found frames, and there may be more.
    Readable,
    /// The descriptor becomes readable when frames or an end have come: the last call found nothing.
    Armed,
}

/// Settings that can be made before `pcap_activate`.
#[derive(Clone, Copy, Default)]
pub struct Options {
    pub snaplen: c_int,
    pub timeout_ms: c_int,
    pub immediate: bool,
    pub rfmon: bool,
    pub protocol: c_int,
    pub nanoseconds: bool,
}

/// Records in the reader's memory, valid until its next call.
#[derive(Clone, Copy)]
pub struct Unread {
    pub at: *const u8,
    pub bytes: usize,
}

impl Handle {
    pub fn new(key: *mut Pcap, name: Address) -> Handle {
        let state = State {
            name,
            options: Options::default(),
            reader: None,
            filter: None,
            nonblock: false,
            polling: Polling::Unused,
            pid: std::process::id(),
            fd: -1,
            at_daemon: AtDaemon::default(),
            noted_at: None,
            asked_at: None,
        };
        let none = libc::timeval { tv_sec: 0, tv_usec: 0 };
        Handle {
            key,
            inner: AtomicPtr::new(null_mut()),
            stop: OnceLock::new(),
            is_busy: AtomicBool::new(false),
            has_filter: AtomicBool::new(false),
            unread_at: AtomicPtr::new(null_mut()),
            unread_bytes: AtomicUsize::new(0),
            told: [const { AtomicU32::new(0) }; 3],
            state: Mutex::new(state),
            error: UnsafeCell::new([0; ERRBUF_SIZE]),
            error_is_inner: AtomicBool::new(false),
            header: UnsafeCell::new(PacketHeader { ts: none, caplen: 0, len: 0 }),
        }
    }

    /// Locks the state. It must be locked only during work of this library, never during a callback of the program.
    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the state; `None` if it is locked already.
    pub fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(error)) => Some(error.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Sets the filter that this library applies.
    pub fn set_filter(&self, state: &mut State, filter: Option<Box<[Insn]>>) {
        self.has_filter.store(filter.is_some(), Ordering::Relaxed);
        state.filter = filter;
    }

    /// Tells whether that filter accepts a frame; without a filter, all frames are accepted. The daemon filters frames
    /// before it cuts them, and here the result could differ for a cut frame, so cut frames are accepted.
    ///
    /// # Safety
    /// `data` has `caplen` bytes.
    pub unsafe fn takes(&self, header: &PacketHeader, data: *const u8) -> bool {
        if !self.has_filter.load(Ordering::Relaxed) || header.caplen != header.len {
            return true;
        }
        self.state().filter.as_ref().is_none_or(|insns| {
            let program = Program { len: insns.len() as u32, insns: insns.as_ptr().cast_mut() };
            // SAFETY: libpcap has validated the BPF program, and the caller promises `caplen` bytes; neither is
            // written.
            unsafe { real::pcap_offline_filter(&program, header, data) != 0 }
        })
    }

    /// Returns libpcap's handle with the feed's settings; `None` before the handle is activated.
    pub fn inner(&self) -> Option<*mut Pcap> {
        let inner = self.inner.load(Ordering::Acquire);
        (!inner.is_null()).then_some(inner)
    }

    pub fn set_inner(&self, inner: *mut Pcap) {
        self.inner.store(inner, Ordering::Release);
    }

    /// Sets whether a reading call works at the moment (true), or runs the callback or has returned (false). While it
    /// works, another call must not wait for it: that call may be in a signal handler that has interrupted the same
    /// thread.
    pub fn set_busy(&self, is_busy: bool) {
        self.is_busy.store(is_busy, Ordering::Release);
    }

    pub fn is_busy(&self) -> bool {
        self.is_busy.load(Ordering::Acquire)
    }

    /// Returns the frames that the program has not read yet. They are stored here, so they are correct even if a
    /// callback does not return, or reads frames itself. Only one call reads at a time, so the two words belong to the
    /// same run.
    pub fn unread(&self) -> Unread {
        let at = self.unread_at.load(Ordering::Relaxed).cast_const();
        Unread { at, bytes: self.unread_bytes.load(Ordering::Relaxed) }
    }

    pub fn set_unread(&self, unread: Unread) {
        self.unread_at.store(unread.at.cast_mut(), Ordering::Relaxed);
        self.unread_bytes.store(unread.bytes, Ordering::Relaxed);
    }

    /// Returns the last statistics.
    pub fn told(&self) -> Stat {
        let [recv, drop, ifdrop] = self.told.each_ref().map(|count| count.load(Ordering::Relaxed));
        Stat { recv, drop, ifdrop }
    }

    pub fn set_told(&self, stat: Stat) {
        let counts = [stat.recv, stat.drop, stat.ifdrop];
        self.told.iter().zip(counts).for_each(|(own, count)| own.store(count, Ordering::Relaxed));
    }

    /// Sets the text for `pcap_geterr`, and returns `status`.
    pub fn fail(&self, status: c_int, text: &str) -> c_int {
        self.error_is_inner.store(false, Ordering::Relaxed);
        // SAFETY: the buffer has that size, and nothing else writes it at the same time (see `Sync`).
        unsafe { write_error(self.error.get().cast(), text) };
        status
    }

    /// Makes `pcap_geterr` return the inner handle's text.
    pub fn fail_inner(&self) {
        self.error_is_inner.store(true, Ordering::Relaxed);
    }

    /// Returns the text for `pcap_geterr`.
    pub fn error(&self) -> *mut c_char {
        match self.inner() {
            Some(inner) if self.error_is_inner.load(Ordering::Relaxed) => {
                // SAFETY: the inner handle is libpcap's, and lives as long as this one.
                unsafe { real::pcap_geterr(inner) }
            }
            _ => self.error.get().cast(),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: this handle owns both, and nothing uses them any more: a handle is dropped once it is closed and no
        // call on it is running.
        unsafe {
            if let Some(inner) = self.inner() {
                real::pcap_close(inner);
            }
            real::pcap_close(self.key);
        }
    }
}

/// A place in the table of handles. When a handle is added, it is written before its key; when it is removed, the key
/// is cleared first.
struct Slot {
    key: AtomicPtr<Pcap>,
    handle: AtomicPtr<Handle>,
    /// Number of handles that the slot has had, because a later handle may have the same key.
    ordinal: AtomicU64,
    taken: AtomicBool,
}

static SLOTS: [Slot; HANDLES_MAX] = [const {
    Slot {
        key: AtomicPtr::new(null_mut()),
        handle: AtomicPtr::new(null_mut()),
        ordinal: AtomicU64::new(0),
        taken: AtomicBool::new(false),
    }
}; HANDLES_MAX];

/// Returns the handle of a `pcap_t`; `None` if the `pcap_t` belongs to the real libpcap. Takes no lock, because signal
/// handlers call `pcap_breakloop`.
pub fn find(key: *mut Pcap) -> Option<Arc<Handle>> {
    let slot = slot_of(key)?;
    let handle = slot.handle.load(Ordering::Acquire);
    if handle.is_null() {
        return None;
    }
    // SAFETY: the pointer came from `Arc::into_raw`, and only `take` releases the table's own reference. A program that
    // closes a handle while another thread uses it has a bug that would also crash it with libpcap.
    unsafe {
        Arc::increment_strong_count(handle);
        Some(Arc::from_raw(handle))
    }
}

/// A handle for a call with a callback, in which the program may close the handle, throw, jump, or be cancelled. So
/// this holds no reference, has nothing to drop, and is looked up again after each callback.
#[derive(Clone, Copy)]
pub struct Lookup {
    key: *mut Pcap,
    slot: &'static Slot,
    ordinal: u64,
}

impl Lookup {
    /// Looks up a handle by the same key as [`find`].
    pub fn of(key: *mut Pcap) -> Option<Lookup> {
        let slot = slot_of(key)?;
        Some(Lookup { key, slot, ordinal: slot.ordinal.load(Ordering::Relaxed) })
    }

    /// Returns the handle; `None` once it is closed.
    ///
    /// # Safety
    /// The reference is not used after the program's next callback, in which the handle may be closed.
    #[inline]
    pub unsafe fn get<'a>(self) -> Option<&'a Handle> {
        let Lookup { key, slot, ordinal } = self;
        let is_open = slot.key.load(Ordering::Acquire) == key
            && slot.ordinal.load(Ordering::Relaxed) == ordinal;
        // SAFETY: the pointer came from `Arc::into_raw`, and only closing releases the table's own reference. That
        // happens in a callback, after which the caller does not use the reference, or in another thread, which is a
        // bug of the program (see `find`).
        is_open.then(|| unsafe { slot.handle.load(Ordering::Acquire).as_ref() }).flatten()
    }
}

fn slot_of(key: *mut Pcap) -> Option<&'static Slot> {
    if key.is_null() {
        return None;
    }
    SLOTS.iter().find(|slot| slot.key.load(Ordering::Acquire) == key)
}

/// Adds a handle to the table. Returns false if the table is full.
pub fn add(handle: Handle) -> bool {
    let free = SLOTS.iter().find(|slot| !slot.taken.swap(true, Ordering::AcqRel));
    let Some(slot) = free else { return false };
    let key = handle.key;
    slot.ordinal.fetch_add(1, Ordering::Relaxed);
    slot.handle.store(Arc::into_raw(Arc::new(handle)).cast_mut(), Ordering::Release);
    slot.key.store(key, Ordering::Release);
    true
}

/// Removes a handle from the table, and returns it.
pub fn take(key: *mut Pcap) -> Option<Arc<Handle>> {
    let slot = slot_of(key)?;
    slot.key.store(null_mut(), Ordering::Release);
    let handle = slot.handle.swap(null_mut(), Ordering::AcqRel);
    slot.taken.store(false, Ordering::Release);
    if handle.is_null() {
        return None;
    }
    // SAFETY: this is the table's own reference. The swap returns it to only one caller.
    Some(unsafe { Arc::from_raw(handle) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dead() -> *mut Pcap {
        // SAFETY: only numbers are passed.
        unsafe { real::pcap_open_dead_with_tstamp_precision(1, 65_535, 0) }
    }

    fn handle(key: *mut Pcap) -> Handle {
        Handle::new(key, Address::parse("eth0").unwrap())
    }

    #[test]
    fn a_frame_that_was_cut_is_not_looked_at_here() {
        let handle = handle(dead());
        let header = |caplen| {
            let ts = libc::timeval { tv_sec: 0, tv_usec: 0 };
            PacketHeader { ts, caplen, len: 60 }
        };
        // SAFETY: there are as many bytes.
        let takes = |caplen| unsafe { handle.takes(&header(caplen), [0; 60].as_ptr()) };
        assert!(takes(60) && takes(40), "there is no filter");
        let takes_none = Insn { code: 6, jt: 0, jf: 0, k: 0 };
        handle.set_filter(&mut handle.state(), Some([takes_none].into()));
        assert!(!takes(60) && takes(40));
        handle.set_filter(&mut handle.state(), None);
        assert!(takes(60));
    }

    #[test]
    fn handles_are_found_until_they_are_closed() {
        let [one, other] = [dead(), dead()];
        assert!(add(handle(one)));
        assert!(find(one).is_some() && find(other).is_none() && find(null_mut()).is_none());
        let held = find(one).unwrap();
        assert!(take(one).is_some());
        assert!(find(one).is_none() && take(one).is_none());
        assert_eq!(Arc::strong_count(&held), 1, "who holds it keeps it");
        // Another handle may have its key, and its slot.
        // SAFETY: none is used after a close.
        let is_there = |lookup: Lookup| unsafe { lookup.get() }.is_some();
        let third = dead();
        assert!(add(handle(third)));
        let lookup = Lookup::of(third).unwrap();
        assert!(is_there(lookup));
        let closed = take(third).unwrap();
        assert!(!is_there(lookup) && Lookup::of(third).is_none());
        assert!(add(handle(third)));
        assert!(!is_there(lookup) && is_there(Lookup::of(third).unwrap()));
        // The key belongs to libpcap, and must be closed only once.
        std::mem::forget(closed);
        assert!(take(third).is_some());
        // The limit of the table is the number of handles that are open at a time.
        let keys: Vec<_> = std::iter::repeat_with(dead).take(HANDLES_MAX).collect();
        assert!(keys.iter().all(|key| add(handle(*key))));
        assert!(!add(handle(other)), "it is full");
        assert!(keys.iter().all(|key| take(*key).is_some()));
    }
}
