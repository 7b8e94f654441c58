//! The BPF ring buffer through which programs wake this process. The contents of its entries do not matter.

use std::ffi::{c_int, c_void};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::ptr::NonNull;

use libbpf_rs::MapHandle;

use crate::error::CaptureError;

pub(super) struct Doorbell {
    buffer: NonNull<libbpf_sys::ring_buffer>,
    /// Keeps the map's descriptor open as long as the buffer uses it.
    _map: MapHandle,
}

// SAFETY: any thread may use libbpf's ring buffer, but not two threads at once. All use is through `&mut self`, except
// for reading its descriptor.
unsafe impl Send for Doorbell {}

extern "C" fn ignore(_: *mut c_void, _: *mut c_void, _: libbpf_sys::size_t) -> c_int {
    0
}

impl Doorbell {
    pub(super) fn new(map: &MapHandle) -> Result<Doorbell, CaptureError> {
        let map = MapHandle::try_from(map).map_err(super::memory::refused("the doorbell"))?;
        // SAFETY: the descriptor is an open BPF ring buffer map, kept open by `_map`; the callback
        // takes no context and ignores its arguments; null options mean defaults.
        let buffer = unsafe {
            libbpf_sys::ring_buffer__new(
                map.as_fd().as_raw_fd(),
                Some(ignore),
                std::ptr::null_mut(),
                std::ptr::null(),
            )
        };
        let buffer = NonNull::new(buffer)
            .ok_or_else(|| CaptureError::last_os("mapping the doorbell ring buffer"))?;
        Ok(Doorbell { buffer, _map: map })
    }

    /// Discards all entries.
    pub(super) fn drain(&mut self) {
        // SAFETY: `buffer` came from ring_buffer__new and is freed only in `Drop`.
        unsafe { libbpf_sys::ring_buffer__consume(self.buffer.as_ptr()) };
    }
}

impl AsFd for Doorbell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: `buffer` is live (above); its epoll descriptor lives as long as `buffer`, and so longer than this
        // borrow of `self`.
        unsafe { BorrowedFd::borrow_raw(libbpf_sys::ring_buffer__epoll_fd(self.buffer.as_ptr())) }
    }
}

impl Drop for Doorbell {
    fn drop(&mut self) {
        // SAFETY: `buffer` is live, and nothing uses it after this.
        unsafe { libbpf_sys::ring_buffer__free(self.buffer.as_ptr()) };
    }
}
