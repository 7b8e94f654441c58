//! Keeps the generator program in the kernel's XDP dispatcher, so that its runs start at once.
//!
//! `BPF_PROG_TEST_RUN` adds the program to the dispatcher, which avoids an indirect call, and removes it afterwards.
//! Each of these steps waits for an RCU grace period. On the reference machine this costs about 20 ms a call: 0.6 Mpps
//! instead of 6.9 with 16,384 frames a call. A program that is attached somewhere is in the dispatcher already. So the
//! program is attached to an interface that no frame can reach: the loopback device, which is down, of a network
//! namespace without a name. Kernel: `bpf_prog_test_run_xdp`, `bpf_dispatcher_change_prog`. Architectures without a
//! dispatcher (arm64) gain nothing by this.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr::null;
use std::thread;

/// The attachment, and the namespace that it needs. Fields are dropped in this order.
pub(super) struct Parked {
    _link: OwnedFd,
    _netns: File,
}

/// Index of the loopback device, which is always the first device of a namespace.
const LOOPBACK: i32 = 1;

/// Attaches the program. Needs CAP_SYS_ADMIN for the namespace. After an error, runs only start more slowly.
pub(super) fn park(program: BorrowedFd) -> io::Result<Parked> {
    thread::scope(|scope| {
        let made = scope.spawn(|| {
            // SAFETY: takes no pointers. It changes only this thread, which ends with this closure.
            if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
                return Err(io::Error::last_os_error());
            }
            let netns = File::open("/proc/thread-self/ns/net")?;
            // SAFETY: the descriptor is borrowed for longer than the call; null options are allowed.
            let link = unsafe {
                let program = program.as_raw_fd();
                libbpf_sys::bpf_link_create(program, LOOPBACK, libbpf_sys::BPF_XDP, null())
            };
            if link < 0 {
                return Err(io::Error::from_raw_os_error(-link));
            }
            // SAFETY: `link` is a new descriptor that nothing else owns.
            Ok(Parked { _link: unsafe { OwnedFd::from_raw_fd(link) }, _netns: netns })
        });
        made.join().unwrap_or_else(|_| Err(io::Error::other("the parking thread panicked")))
    })
}
