//! A port: probed, set up, started and closed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    Counts, PortSetup, RawFacts, RawPort, result, weir_close, weir_counts, weir_facts,
    weir_is_removed, weir_link_down, weir_mtu, weir_probe, weir_promiscuous, weir_setup,
    weir_start,
};

/// The numbers of open ports. This lock is held to make, configure or close a port, since DPDK reuses a
/// port's number before the pool with that number is freed.
static OPEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

fn alone() -> MutexGuard<'static, Vec<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Facts about a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The driver: `net_af_packet`.
    pub(crate) driver: String,
    /// The device: `net_af_packet0`, `0000:03:00.0`.
    pub(crate) device: String,
    /// Whether it is a virtual device, without hardware.
    pub(crate) is_virtual: bool,
    pub(crate) max_rx_queues: u32,
    pub(crate) min_rx_bufsize: u32,
    pub(crate) can_stamp: bool,
    pub(crate) can_scatter: bool,
}

/// A port, from its probing to its closing.
#[derive(Debug)]
pub(crate) struct Port {
    id: u16,
    pub(super) pool: *mut c_void,
    pub(super) raw: RawPort,
}

// SAFETY: port and pool are numbers and memory of the process, not of a thread; DPDK's configuration calls
// must not overlap, and all are made under `alone()`.
unsafe impl Send for Port {}
// SAFETY: methods that take `&self` either read (facts about the port, its statistics, whether the device
// was removed) and keep nothing, or configure under `alone()`; DPDK allows both while other threads
// receive.
unsafe impl Sync for Port {}

impl Port {
    /// Probes the device and takes its first port; `None` if that is already open, which DPDK does not
    /// report. DPDK must run.
    pub(crate) fn probe(device: &CStr) -> io::Result<Option<Port>> {
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

    pub(crate) fn facts(&self) -> io::Result<Facts> {
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

    /// Makes the port's mbufs and queues. Only once for each port.
    pub(crate) fn set_up(&mut self, setup: &mut PortSetup) -> io::Result<()> {
        assert!(self.pool.is_null(), "a port is set up once");
        let _alone = alone();
        // SAFETY: as in `facts`. The pool, once made, is kept until the port that uses it is closed.
        result(unsafe { weir_setup(self.id, setup, &raw mut self.pool) })
    }

    /// Starts the arrival of frames.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as in `facts`.
        result(unsafe { weir_start(self.id, &raw mut self.raw) })
    }

    pub(crate) fn set_promiscuous(&self, on: bool) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: a number of a port that is open.
        result(unsafe { weir_promiscuous(self.id, c_int::from(on)) })
    }

    pub(crate) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as above.
        result(unsafe { weir_mtu(self.id, mtu) })
    }

    /// Ends the arrival of frames, if the driver supports that.
    pub(crate) fn link_down(&self) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as above.
        result(unsafe { weir_link_down(self.id) })
    }

    pub(crate) fn counts(&self) -> io::Result<Counts> {
        let mut counts = Counts::default();
        // SAFETY: as above; `counts` lives through the call.
        result(unsafe { weir_counts(self.id, &raw mut counts) })?;
        Ok(counts)
    }

    /// Whether the device was removed.
    pub(crate) fn is_removed(&self) -> bool {
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
