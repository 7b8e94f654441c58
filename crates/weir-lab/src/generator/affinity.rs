//! Binds the sending thread to a CPU, and restores its CPU set afterwards.

use std::io;
use std::mem::{size_of, zeroed};

use crate::{Error, Result};

/// Binds the calling thread to one CPU. Dropping it restores the previous CPU set.
pub(crate) struct Pinned {
    before: libc::cpu_set_t,
}

impl Pinned {
    pub(crate) fn to(cpu: usize) -> Result<Pinned> {
        let failed = |source| Error::Cpu { cpu, source };
        if cpu >= libc::CPU_SETSIZE as usize {
            return Err(failed(io::Error::from(io::ErrorKind::InvalidInput)));
        }
        // SAFETY: cpu_set_t is an array of integers, for which all zero is a value.
        let (mut before, mut wanted): (libc::cpu_set_t, libc::cpu_set_t) =
            unsafe { (zeroed(), zeroed()) };
        // SAFETY: in bounds: `cpu < CPU_SETSIZE` is checked above.
        unsafe { libc::CPU_SET(cpu, &mut wanted) };
        let bytes = size_of::<libc::cpu_set_t>();
        // SAFETY: 0 is the calling thread; `before` is writable and `wanted` readable for `bytes`
        // bytes, their own size, during the calls.
        let done = unsafe {
            libc::sched_getaffinity(0, bytes, &mut before) == 0
                && libc::sched_setaffinity(0, bytes, &wanted) == 0
        };
        if done { Ok(Pinned { before }) } else { Err(failed(io::Error::last_os_error())) }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // SAFETY: 0 is the calling thread, which made this value: the value stays in one function's
        // frame, so it is neither sent nor shared. `before` is readable for its own size.
        unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &self.before) };
    }
}
