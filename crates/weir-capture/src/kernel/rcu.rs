//! Waiting until the kernel is done with what it had begun.

use std::time::Duration;

/// Returns when no BPF program, filter or packet handler that was running before still runs: they all
/// run inside RCU read-side sections, and MEMBARRIER_CMD_GLOBAL is `synchronize_rcu`.
///
/// With one CPU online the kernel leaves that out, and needs none: all of these run with bottom halves off
/// (XDP and the receiving side in softirqs, the sending side under `rcu_read_lock_bh`), where no task, so
/// not this one, gets the CPU before they are done. Only PREEMPT_RT lets tasks in there, so there the sleep
/// comes as well. Source: kernel/sched/membarrier.c, net/core/dev.c.
pub(crate) fn synchronize() {
    const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;
    // SAFETY: membarrier takes integers and no pointers.
    let result = unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if result != 0 || is_real_time() {
        // Also refused on nohz_full kernels: a handler runs for microseconds, so this is long enough.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Whether tasks can preempt softirqs: PREEMPT_RT, which a kernel's version text names.
pub(crate) fn is_real_time() -> bool {
    rustix::system::uname().version().to_string_lossy().contains("PREEMPT_RT")
}
