//! DPDK through `shim.c`: all `unsafe` of this engine is here.
//!
//! A [`Port`] owns its device, a [`Rx`] one of its queues, a [`Burst`] the mbufs of one turn: each has one
//! `Drop` and no clone.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

/// Frames of one turn. Source: drivers that receive in vectors take multiples of 32; `net_af_xdp` splits
/// what is more than 64.
pub(super) const BURST: usize = 64;

const STAMPED: u32 = 1;
const VLAN: u32 = 2;
const QINQ: u32 = 4;
const PARTS: u32 = 8;

/// `struct weir_frame`.
#[repr(C)]
#[derive(Clone, Copy)]
struct RawFrame {
    data: *const u8,
    stamp: u64,
    caplen: u32,
    wire_len: u32,
    flags: u32,
    tci: u16,
    tci_outer: u16,
}
const _: () = assert!(size_of::<RawFrame>() == 32, "as in shim.h");

/// `struct weir_facts`.
#[repr(C)]
struct RawFacts {
    driver: [c_char; 64],
    device: [c_char; 64],
    virtual_device: u32,
    max_rx_queues: u32,
    min_rx_bufsize: u32,
    can_stamp: u32,
    can_scatter: u32,
}
const _: () = assert!(size_of::<RawFacts>() == 148, "as in shim.h");

/// How a port is set up: `struct weir_wish`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) queues: u32,
    /// Of each queue; [`Port::set_up`] writes back what the driver made of it.
    pub(super) descriptors: u32,
    pub(super) mbufs: u32,
    /// Bytes of a frame that one mbuf takes.
    pub(super) room_bytes: u32,
    /// 1: the driver is to stamp.
    pub(super) stamps: u32,
    /// 1: a frame may take several mbufs.
    pub(super) scatter: u32,
}
const _: () = assert!(size_of::<Wish>() == 24, "as in shim.h");

/// `struct weir_port`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct RawPort {
    stamp_flag: u64,
    stamp_offset: i32,
    id: u16,
}
const _: () = assert!(size_of::<RawPort>() == 16, "as in shim.h");

/// A port's statistics: `struct weir_counts`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) packets: u64,
    pub(super) missed: u64,
    pub(super) errors: u64,
    pub(super) no_mbuf: u64,
}

unsafe extern "C" {
    fn weir_init(argc: c_int, argv: *mut *mut c_char) -> c_int;
    fn weir_said(text: *mut c_char, room: usize) -> usize;
    fn weir_probe(devargs: *const c_char, id: *mut u16) -> c_int;
    fn weir_facts(id: u16, facts: *mut RawFacts) -> c_int;
    fn weir_setup(id: u16, wish: *mut Wish, pool: *mut *mut c_void) -> c_int;
    fn weir_start(id: u16, port: *mut RawPort) -> c_int;
    fn weir_promiscuous(id: u16, on: c_int) -> c_int;
    fn weir_mtu(id: u16, mtu: u16) -> c_int;
    fn weir_counts(id: u16, counts: *mut Counts) -> c_int;
    fn weir_is_removed(id: u16) -> c_int;
    fn weir_link_down(id: u16) -> c_int;
    fn weir_close(id: u16, pool: *mut c_void) -> c_int;
    fn weir_enter();
    fn weir_leave();
    fn weir_burst(
        port: *const RawPort,
        queue: u16,
        mbufs: *mut *mut c_void,
        frames: *mut RawFrame,
        room: u16,
    ) -> u16;
    fn weir_gather(mbuf: *const c_void, bytes: *mut u8, room: u32) -> u32;
    fn weir_free(mbufs: *mut *mut c_void, count: u16);
}

/// The numbers of open ports. Ports are made, configured and taken down one at a time, by who holds this:
/// DPDK gives a port's number to the next before the pool of that number is gone.
static OPEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

fn alone() -> MutexGuard<'static, Vec<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A call into DPDK that gave this.
fn result(result: c_int) -> io::Result<()> {
    if result < 0 { Err(io::Error::from_raw_os_error(-result)) } else { Ok(()) }
}

/// Starts DPDK in this process with these arguments, the program's name first. Once a process, whatever
/// comes of it.
pub(super) fn init(args: &[CString]) -> io::Result<()> {
    // DPDK may reorder what it is given, and keeps pointers into it.
    let owned: Vec<CString> = args.to_vec();
    let mut pointers: Vec<*mut c_char> = owned.into_iter().map(CString::into_raw).collect();
    let count = pointers.len() as c_int;
    pointers.push(null_mut());
    let argv: &'static mut [*mut c_char] = pointers.leak();
    // SAFETY: `argv` has `count` terminated strings and a null after them, all of which live for ever: that
    // is what DPDK, like `main`, may count on. The caller calls once a process (`eal.rs`).
    result(unsafe { weir_init(count, argv.as_mut_ptr()) })
}

/// What DPDK and its drivers have said since they were last asked.
pub(super) fn said() -> String {
    let mut text = vec![0_u8; 2048];
    // SAFETY: no more than `text` has room for is written, and nothing is kept.
    let bytes = unsafe { weir_said(text.as_mut_ptr().cast(), text.len()) };
    String::from_utf8_lossy(&text[..bytes.min(text.len())]).into_owned()
}

/// What a port is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// The driver: `net_af_packet`.
    pub(super) driver: String,
    /// The device: `net_af_packet0`, `0000:03:00.0`.
    pub(super) device: String,
    /// No hardware is behind it.
    pub(super) is_virtual: bool,
    pub(super) max_rx_queues: u32,
    pub(super) min_rx_bufsize: u32,
    pub(super) can_stamp: bool,
    pub(super) can_scatter: bool,
}

/// A port, from its probing to its closing.
#[derive(Debug)]
pub(super) struct Port {
    id: u16,
    pool: *mut c_void,
    raw: RawPort,
}

// SAFETY: port and pool are numbers and memory of the process, not of a thread; DPDK's configuration calls
// must not overlap, and all are made under `alone()`.
unsafe impl Send for Port {}
// SAFETY: what takes `&self` either reads (what the port is, its statistics, whether the device is gone) and
// keeps nothing, or configures under `alone()`; DPDK allows both beside threads that receive.
unsafe impl Sync for Port {}

impl Port {
    /// Has DPDK find and probe the device, and take its first port; `None` if that is open already, which
    /// DPDK has nothing against. DPDK must run.
    pub(super) fn probe(device: &CStr) -> io::Result<Option<Port>> {
        let mut open = alone();
        let mut id = 0;
        // SAFETY: a terminated string and a place for a number, both alive through the call.
        result(unsafe { weir_probe(device.as_ptr(), &raw mut id) })?;
        if open.contains(&id) {
            return Ok(None);
        }
        open.push(id);
        Ok(Some(Port { id, pool: null_mut(), raw: RawPort::default() }))
    }

    pub(super) fn facts(&self) -> io::Result<Facts> {
        // SAFETY: the struct is plain integers and byte arrays: all zeroes is a value of it.
        let mut raw: RawFacts = unsafe { std::mem::zeroed() };
        // SAFETY: the port was probed and is closed in `drop` only; `raw` lives through the call.
        result(unsafe { weir_facts(self.id, &raw mut raw) })?;
        // SAFETY: snprintf has terminated both within their arrays.
        let text = |chars: &[c_char; 64]| unsafe { CStr::from_ptr(chars.as_ptr()) };
        Ok(Facts {
            driver: text(&raw.driver).to_string_lossy().into_owned(),
            device: text(&raw.device).to_string_lossy().into_owned(),
            is_virtual: raw.virtual_device != 0,
            max_rx_queues: raw.max_rx_queues,
            min_rx_bufsize: raw.min_rx_bufsize,
            can_stamp: raw.can_stamp != 0,
            can_scatter: raw.can_scatter != 0,
        })
    }

    /// Makes the port's mbufs and queues. Once a port.
    pub(super) fn set_up(&mut self, wish: &mut Wish) -> io::Result<()> {
        assert!(self.pool.is_null(), "a port is set up once");
        let _alone = alone();
        // SAFETY: as in `facts`. The pool, once made, is kept until the port that uses it is closed.
        result(unsafe { weir_setup(self.id, wish, &raw mut self.pool) })
    }

    /// Lets frames come.
    pub(super) fn start(&mut self) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as in `facts`.
        result(unsafe { weir_start(self.id, &raw mut self.raw) })
    }

    pub(super) fn set_promiscuous(&self, on: bool) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: a number of a port that is open.
        result(unsafe { weir_promiscuous(self.id, c_int::from(on)) })
    }

    pub(super) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as above.
        result(unsafe { weir_mtu(self.id, mtu) })
    }

    /// Ends the arrival of frames, where the driver can.
    pub(super) fn link_down(&self) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as above.
        result(unsafe { weir_link_down(self.id) })
    }

    pub(super) fn counts(&self) -> io::Result<Counts> {
        let mut counts = Counts::default();
        // SAFETY: as above; `counts` lives through the call.
        result(unsafe { weir_counts(self.id, &raw mut counts) })?;
        Ok(counts)
    }

    /// Whether the device was taken out.
    pub(super) fn is_removed(&self) -> bool {
        // SAFETY: as above.
        unsafe { weir_is_removed(self.id) > 0 }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut open = alone();
        open.retain(|&id| id != self.id);
        // SAFETY: the port was open until now, and nobody receives from it: each `Rx` holds the `Arc` that keeps this
        // from running. The pool is null or this port's own, and its mbufs are back: each `Burst` borrows
        // its `Rx`.
        let _ = unsafe { weir_close(self.id, self.pool) };
    }
}

/// One queue of a started port; the one that receives from it.
pub(super) struct Rx {
    raw: RawPort,
    queue: u16,
    mbufs: [*mut c_void; BURST],
    frames: [RawFrame; BURST],
    _port: Arc<Port>,
}

// SAFETY: the pointers are only used between `burst` and the drop of its `Burst`, by the thread that has
// the `Rx`; mbufs may be freed on any thread.
unsafe impl Send for Rx {}

impl Rx {
    /// The receivers of all `queues` of a started port. Taking them by the port's only handle keeps each
    /// queue to one thread, as DPDK wants it.
    pub(super) fn all(port: Port, queues: u32) -> (Arc<Port>, Vec<Rx>) {
        let raw = port.raw;
        let port = Arc::new(port);
        let nothing = RawFrame {
            data: std::ptr::null(),
            stamp: 0,
            caplen: 0,
            wire_len: 0,
            flags: 0,
            tci: 0,
            tci_outer: 0,
        };
        let rx = |queue| Rx {
            raw,
            queue: queue as u16,
            mbufs: [null_mut(); BURST],
            frames: [nothing; BURST],
            _port: Arc::clone(&port),
        };
        let all = (0..queues).map(rx).collect();
        (port, all)
    }

    /// Takes what has come, up to [`BURST`] frames.
    #[inline]
    pub(super) fn burst(&mut self) -> Burst<'_> {
        // SAFETY: both arrays have room for BURST; the queue is one of the set-up ones, the port is started
        // and not closed (`_port`), and `&mut self` of the queue's only `Rx` keeps other threads off.
        let count = unsafe {
            weir_burst(
                &raw const self.raw,
                self.queue,
                self.mbufs.as_mut_ptr(),
                self.frames.as_mut_ptr(),
                BURST as u16,
            )
        };
        Burst { count: usize::from(count).min(BURST), rx: self }
    }
}

/// Frames that DPDK has lent; given back when dropped.
pub(super) struct Burst<'a> {
    rx: &'a mut Rx,
    count: usize,
}

/// One of them.
pub(super) struct Frame<'a> {
    /// The bytes; of a frame in parts, the first of them.
    pub(super) bytes: &'a [u8],
    pub(super) wire_len: u32,
    /// As the driver counts.
    pub(super) stamp: Option<u64>,
    /// VLAN tags that were taken off: the one that stood first on the wire, and the one behind it.
    pub(super) outer_tci: Option<u16>,
    pub(super) tci: Option<u16>,
    parts: Option<*mut c_void>,
}

impl Frame<'_> {
    /// Of a frame in parts: puts the first `room` bytes together. Whether it was in parts.
    pub(super) fn gather(&self, into: &mut Vec<u8>, room: usize) -> bool {
        let Some(mbuf) = self.parts else { return false };
        let bytes = room.min(self.wire_len as usize);
        into.clear();
        into.resize(bytes, 0);
        // SAFETY: the mbuf is the burst's, which this frame borrows; `into` has room for `bytes`.
        let filled = unsafe { weir_gather(mbuf, into.as_mut_ptr(), bytes as u32) };
        into.truncate(filled as usize);
        true
    }
}

impl Burst<'_> {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let pairs = self.rx.frames.iter().zip(&self.rx.mbufs).take(self.count);
        pairs.map(|(raw, &mbuf)| {
            let has = |flag| raw.flags & flag != 0;
            Frame {
                // SAFETY: `caplen` bytes of the first segment of an mbuf that is ours until this burst is
                // dropped, which the frame borrows; drivers write to it no more.
                bytes: unsafe { std::slice::from_raw_parts(raw.data, raw.caplen as usize) },
                wire_len: raw.wire_len.max(raw.caplen),
                stamp: has(STAMPED).then_some(raw.stamp),
                outer_tci: has(QINQ).then_some(raw.tci_outer),
                tci: has(VLAN).then_some(raw.tci),
                parts: has(PARTS).then_some(mbuf),
            }
        })
    }
}

impl Drop for Burst<'_> {
    fn drop(&mut self) {
        if self.count > 0 {
            // SAFETY: the first `count` mbufs came from `weir_burst` and are given back here only.
            unsafe { weir_free(self.rx.mbufs.as_mut_ptr(), self.count as u16) };
        }
    }
}

/// A thread that DPDK's pools keep a cache for, until it drops this.
pub(super) struct Entered(());

impl Entered {
    pub(super) fn new() -> Entered {
        // SAFETY: no arguments; DPDK runs, since there is a port to receive from.
        unsafe { weir_enter() };
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: undoes `weir_enter` on the same thread, since this is not `Send` by its use as a local;
        // on a thread that is not registered it does nothing.
        unsafe { weir_leave() };
    }
}

/// Has a system call that `thread` sleeps in return, as some drivers sleep up to a second when nothing
/// comes. A call that it makes later sleeps all the same: repeat until the thread has seen its orders.
pub(super) fn interrupt<T>(thread: &JoinHandle<T>) {
    extern "C" fn nothing(_signal: c_int) {}
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        // SAFETY: `sigaction` is integers and a function's address: all zeroes is a value of it. The handler
        // does nothing, which is safe at any point; SIGURG means nothing to anybody else here.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(c_int) as libc::sighandler_t;
            libc::sigaction(libc::SIGURG, &raw const action, null_mut());
        }
    });
    // SAFETY: a thread that has not been joined has a valid id, even if it has ended.
    unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGURG) };
}

/// For tests: frames that no driver here would hand over.
#[cfg(test)]
pub(super) mod made {
    use std::ffi::{CStr, c_char, c_int, c_void};
    use std::io;

    use super::{Port, QINQ, STAMPED, VLAN, result};

    #[repr(C)]
    struct RawMade {
        data: *const u8,
        stamp: u64,
        len: u32,
        part: u32,
        flags: u32,
        tci: u16,
        tci_outer: u16,
    }

    unsafe extern "C" {
        fn weir_make(ring: *const c_char, pool: *mut c_void, made: *const RawMade) -> c_int;
    }

    /// What becomes one mbuf, or several of `part` bytes (0: one).
    #[derive(Default)]
    pub(in super::super) struct Made<'a> {
        pub(in super::super) bytes: &'a [u8],
        pub(in super::super) part: u32,
        pub(in super::super) outer_tci: Option<u16>,
        pub(in super::super) tci: Option<u16>,
        pub(in super::super) stamp: Option<u64>,
    }

    impl Port {
        /// Puts a frame into a ring of DPDK's that a `net_ring` port receives from.
        pub(in super::super) fn make(&self, ring: &CStr, made: &Made<'_>) -> io::Result<()> {
            let flag = |is: bool, flag: u32| if is { flag } else { 0 };
            let raw = RawMade {
                data: made.bytes.as_ptr(),
                stamp: made.stamp.unwrap_or_default(),
                len: made.bytes.len() as u32,
                part: made.part,
                flags: flag(made.tci.is_some(), VLAN)
                    | flag(made.outer_tci.is_some(), QINQ)
                    | flag(made.stamp.is_some(), STAMPED),
                tci: made.tci.unwrap_or_default(),
                tci_outer: made.outer_tci.unwrap_or_default(),
            };
            // SAFETY: string, bytes and struct live through the call; the pool is this port's, set up.
            result(unsafe { weir_make(ring.as_ptr(), self.pool, &raw const raw) })
        }
    }
}
