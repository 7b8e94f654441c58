//! A port: it is probed, set up, started and closed.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr::null_mut;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::{
    Counts, PortSetup, RawFacts, RawPort, result, weir_close, weir_counts, weir_facts,
    weir_is_removed, weir_link_down, weir_mtu, weir_probe, weir_promiscuous, weir_setup,
    weir_start,
};

/// The numbers of open ports. This lock is held while a port is probed, configured or closed, since DPDK reuses a
/// port's number before the pool whose name contains the number is freed.
static OPEN: Mutex<Vec<u16>> = Mutex::new(Vec::new());

fn alone() -> MutexGuard<'static, Vec<u16>> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Properties of a port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Facts {
    /// The driver's name, such as `net_af_packet`.
    pub(crate) driver: String,
    /// The device's name, such as `net_af_packet0` or `0000:03:00.0`.
    pub(crate) device: String,
    /// Whether it is a virtual device, without hardware.
    pub(crate) is_virtual: bool,
    pub(crate) max_rx_queues: u32,
    pub(crate) min_rx_bufsize: u32,
    pub(crate) can_stamp: bool,
    pub(crate) can_scatter: bool,
}

/// A port, which is open from its probing until it is dropped.
#[derive(Debug)]
pub(crate) struct Port {
    id: u16,
    pub(super) pool: *mut c_void,
    pub(super) raw: RawPort,
}

// SAFETY: the port's number and its pool belong to the process, not to a thread; DPDK's configuration calls must not
// overlap, and all are made under `alone()`.
unsafe impl Send for Port {}
// SAFETY: methods that take `&self` either read (properties of the port, its statistics, whether the device was
// removed) and keep no pointer, or configure under `alone()`; DPDK allows both while other threads receive.
unsafe impl Sync for Port {}

impl Port {
    /// Probes the device, and takes its first port; `None` if this port is already open, which DPDK does not report.
    /// DPDK must have been started.
    pub(crate) fn probe(device: &CStr) -> io::Result<Option<Port>> {
        let mut open = alone();
        let mut id = 0;
        // SAFETY: the string is terminated, and both the string and `id` live through the call.
        result(unsafe { weir_probe(device.as_ptr(), &raw mut id) })?;
        if open.contains(&id) {
            return Ok(None);
        }
        open.push(id);
        Ok(Some(Port { id, pool: null_mut(), raw: RawPort::default() }))
    }

    pub(crate) fn facts(&self) -> io::Result<Facts> {
        // SAFETY: the struct consists of integers and byte arrays, so all zeroes is a valid value.
        let mut raw: RawFacts = unsafe { std::mem::zeroed() };
        // SAFETY: the port was probed, and is closed in `drop` only; `raw` lives through the call.
        result(unsafe { weir_facts(self.id, &raw mut raw) })?;
        // SAFETY: snprintf has terminated both strings within their arrays.
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

    /// Creates the port's mbufs and queues. Must be called only once for each port.
    pub(crate) fn set_up(&mut self, setup: &mut PortSetup) -> io::Result<()> {
        assert!(self.pool.is_null(), "a port is set up once");
        let _alone = alone();
        // SAFETY: as in `facts`. The pool is kept until the port that uses it is closed.
        result(unsafe { weir_setup(self.id, setup, &raw mut self.pool) })
    }

    /// Starts the port: frames come from now on.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as in `facts`.
        result(unsafe { weir_start(self.id, &raw mut self.raw) })
    }

    pub(crate) fn set_promiscuous(&self, on: bool) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: the number is that of an open port.
        result(unsafe { weir_promiscuous(self.id, c_int::from(on)) })
    }

    pub(crate) fn set_mtu(&self, mtu: u16) -> io::Result<()> {
        let _alone = alone();
        // SAFETY: as above.
        result(unsafe { weir_mtu(self.id, mtu) })
    }

    /// Takes the link down, if the driver supports that: frames no longer come.
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

    /// Returns true if the device was removed.
    pub(crate) fn is_removed(&self) -> bool {
        // SAFETY: as above.
        unsafe { weir_is_removed(self.id) > 0 }
    }
}

impl Drop for Port {
    fn drop(&mut self) {
        let mut open = alone();
        open.retain(|&id| id != self.id);
        // SAFETY: the port was open until now, and nothing receives from it: each `Rx` holds an `Arc` of the port, so
        // `drop` does not run before all are gone. The pool is null or this port's own, and all its mbufs were given
        // back: each `Burst` borrows its `Rx`.
        let _ = unsafe { weir_close(self.id, self.pool) };
    }
}
