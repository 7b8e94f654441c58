//! Receiving: a queue, the frames of a turn, and the registration of the receiving thread.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use super::port::Port;
use super::{
    PARTS, QINQ, RawFrame, RawPort, STAMPED, VLAN, weir_burst, weir_enter, weir_free, weir_gather,
    weir_leave,
};

/// Most frames of one turn. Drivers with vectorized receive functions need multiples of 32; `net_af_xdp` splits
/// requests for more than 64.
pub(crate) const BURST: usize = 64;

/// The only receiver of one queue of a started port.
pub(crate) struct Rx {
    raw: RawPort,
    queue: u16,
    mbufs: [*mut c_void; BURST],
    frames: [RawFrame; BURST],
    _port: Arc<Port>,
}

// SAFETY: the pointers are only used between `burst` and the drop of its `Burst`, by the thread that has the `Rx`; any
// thread may free mbufs.
unsafe impl Send for Rx {}

impl Rx {
    /// Returns the receivers of all `queues` of a started port. The port is consumed, so there is only one receiver for
    /// each queue, as DPDK requires.
    pub(crate) fn all(port: Port, queues: u32) -> (Arc<Port>, Vec<Rx>) {
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

    /// Takes the frames that have come, at most [`BURST`].
    #[inline]
    pub(crate) fn burst(&mut self) -> Burst<'_> {
        // SAFETY: both arrays have BURST entries; the queue was set up; the port is started and not closed (`_port`);
        // and `&mut self` of the queue's only `Rx` excludes other threads.
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

/// Frames in mbufs of DPDK. Dropping this value gives the mbufs back.
pub(crate) struct Burst<'a> {
    rx: &'a mut Rx,
    count: usize,
}

/// A frame of a burst.
pub(crate) struct Frame<'a> {
    /// The bytes of the frame; if it is in several parts, only those of the first part.
    pub(crate) bytes: &'a [u8],
    pub(crate) wire_len: u32,
    /// The driver's time stamp, in its own unit.
    pub(crate) stamp: Option<u64>,
    /// The VLAN tags that were removed: `outer_tci` was in front of `tci`.
    pub(crate) outer_tci: Option<u16>,
    pub(crate) tci: Option<u16>,
    parts: Option<*mut c_void>,
}

impl Frame<'_> {
    /// Copies the first `room` bytes of the frame to `into` and returns true, if the frame is in several parts.
    /// Otherwise returns false: `bytes` has the whole frame.
    pub(crate) fn gather(&self, into: &mut Vec<u8>, room: usize) -> bool {
        let Some(mbuf) = self.parts else { return false };
        let bytes = room.min(self.wire_len as usize);
        into.clear();
        into.resize(bytes, 0);
        // SAFETY: the mbuf belongs to the burst, which this frame borrows; `into` has `bytes` bytes.
        let filled = unsafe { weir_gather(mbuf, into.as_mut_ptr(), bytes as u32) };
        into.truncate(filled as usize);
        true
    }
}

impl Burst<'_> {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn frames(&self) -> impl Iterator<Item = Frame<'_>> {
        let pairs = self.rx.frames.iter().zip(&self.rx.mbufs).take(self.count);
        pairs.map(|(raw, &mbuf)| {
            let has = |flag| raw.flags & flag != 0;
            Frame {
                // SAFETY: `caplen` bytes of the first segment of an mbuf. The mbuf is ours until the burst is dropped,
                // and the frame borrows the burst; drivers no longer write into the mbuf.
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
            // SAFETY: the first `count` mbufs came from `weir_burst`, and are given back only here.
            unsafe { weir_free(self.rx.mbufs.as_mut_ptr(), self.count as u16) };
        }
    }
}

/// The calling thread is registered with DPDK, whose pools then have a cache for it. Dropping this value ends the
/// registration.
pub(crate) struct Entered(());

impl Entered {
    pub(crate) fn new() -> Entered {
        // SAFETY: the call has no arguments; DPDK was started, since there is a port to receive from.
        unsafe { weir_enter() };
        Entered(())
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        // SAFETY: undoes `weir_enter` on the same thread, since this value is only used as a local variable; on a
        // thread that is not registered, the call does nothing.
        unsafe { weir_leave() };
    }
}
