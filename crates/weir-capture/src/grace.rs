//! Waiting until the kernel is done with what it had begun.

use std::time::Duration;

/// Returns when no BPF program, filter or packet handler that was running before still runs: they all
/// run inside RCU read-side sections, and MEMBARRIER_CMD_GLOBAL is `synchronize_rcu`.
pub(crate) fn wait() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes integers and no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 {
        // Refused on nohz_full kernels: a handler runs for microseconds, so this is long enough.
        std::thread::sleep(Duration::from_millis(50));
    }
}
