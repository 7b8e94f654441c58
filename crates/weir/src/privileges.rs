//! Permanently drops the capabilities of all threads, once everything is open.
//!
//! In Linux, each thread has its own capabilities, and no system call changes those of all threads. So each thread is
//! sent a signal, whose handler drops the thread's capabilities, until /proc shows that no thread has any left. libpsx
//! (libcap) and setuid(2) in libc do the same. A new thread inherits the capabilities of its creator. After the start,
//! a capture mostly needs open descriptors only; [`needed`] lists the exceptions.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::Context;
use weir_capture::bpf;
use weir_capture::in_own_thread;
use weir_capture::kernel::netns::NetnsName;

use crate::plan::CapturePlan;
use crate::source_name::SourceName;

/// Capabilities by their bits. Source: linux/capability.h.
const NET_ADMIN: u64 = 1 << 12;
const NET_RAW: u64 = 1 << 13;
const IPC_LOCK: u64 = 1 << 14;
const SYS_PTRACE: u64 = 1 << 19;
const SYS_ADMIN: u64 = 1 << 21;
const PERFMON: u64 = 1 << 38;
const BPF: u64 = 1 << 39;

/// By default, SIGURG is ignored, so a late signal does no harm. This program does not use urgent data.
const SIGNAL: libc::c_int = libc::SIGURG;
/// How long all threads together may take to drop their capabilities.
const PATIENCE: Duration = Duration::from_secs(5);
/// Interval at which a thread that still has capabilities is signalled again.
const AGAIN: Duration = Duration::from_millis(100);

/// Capabilities that the handler keeps.
static KEEP: AtomicU64 = AtomicU64::new(0);

/// Returns the capabilities that a capture needs until its end. The process may lack some of them.
pub fn needed(plan: &CapturePlan) -> u64 {
    let any = |is: fn(&SourceName) -> bool| plan.sources.iter().any(|source| is(&source.name));
    // Drivers of an engine's own devices may need any capability when they are stopped.
    if any(|name| matches!(name, SourceName::Device { .. }) && !name.is_of_daemon()) {
        return u64::MAX;
    }
    let is_live = any(SourceName::is_of_interfaces);
    let mut keep = 0;
    if (plan.control.is_some() || plan.follow) && is_live || bpf::has_patterns() {
        // A changed filter is a new program, which replaces an attached one. Programs are also attached to an interface
        // that comes back or joins.
        keep |= BPF | PERFMON | NET_ADMIN | NET_RAW;
        // For a process without CAP_BPF and CAP_PERFMON, CAP_SYS_ADMIN includes them.
        let own = Status::of("self").map_or(0, |status| status.permitted);
        if own & BPF == 0 {
            keep |= SYS_ADMIN;
        }
        // Threads that change feeds or open interfaces enter the network namespace with setns(2).
        if any(SourceName::is_in_other_netns) {
            keep |= SYS_ADMIN;
        }
    }
    // The network namespace of a restarted process is opened through /proc.
    if plan.follow && any(|name| name.netns().is_some_and(NetnsName::may_be_of_process)) {
        keep |= SYS_PTRACE;
    }
    // The taps of a virtual machine are found through /proc, by the descriptors of its process.
    if any(|name| name.vm().is_some()) {
        keep |= SYS_PTRACE;
    }
    if plan.follow && is_live {
        // The UMEM of AF_XDP sockets is locked memory.
        keep |= IPC_LOCK;
    }
    // Before Linux 6.6, TC programs are attached as clsact filters, and removing these needs NET_ADMIN.
    if bpf::has_clsact_filters() {
        keep |= NET_ADMIN;
    }
    keep
}

/// Makes every thread of the process drop all capabilities except those in `keep`. Dropped capabilities cannot be
/// regained.
///
/// # Errors
/// A thread still has other capabilities after 5 s, or /proc cannot be read.
pub fn give_up(keep: u64) -> io::Result<()> {
    KEEP.store(keep, Ordering::SeqCst);
    let _handler = Handler::install()?;
    let begin = Instant::now();
    let mut asked: BTreeMap<i32, Instant> = BTreeMap::new();
    loop {
        let left = threads_with_more_than(keep)?;
        // If a thread created another one before it dropped its capabilities, the first thread is itself in this list,
        // so the loop goes on.
        if left.is_empty() {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            let text = format!("{} threads still have capabilities after {PATIENCE:?}", left.len());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        for thread in left {
            if asked.get(&thread).is_none_or(|at| at.elapsed() > AGAIN) {
                asked.insert(thread, Instant::now());
                // SAFETY: integers only. If the thread has ended, the call fails, and the next pass does not list it.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Set once the capabilities of the process do not change any more.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// Records that the capabilities of the process do not change any more.
pub fn settle() {
    SETTLED.store(true, Ordering::Release);
}

/// Returns whether [`settle`] was called.
pub fn are_settled() -> bool {
    SETTLED.load(Ordering::Acquire)
}

/// Runs `work` on a thread that has only the capabilities to be kept, and returns its result.
pub fn without<T, E>(work: impl FnOnce() -> Result<T, E> + Send) -> anyhow::Result<T>
where
    T: Send,
    E: Into<anyhow::Error> + Send,
{
    let as_later = || {
        // Called as a function, the handler drops the capabilities of this thread only.
        on_signal(SIGNAL);
        work()
    };
    in_own_thread("weir-rights", as_later).context("starting a thread")?.map_err(Into::into)
}

fn threads_with_more_than(keep: u64) -> io::Result<Vec<i32>> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        match Status::of(&format!("self/task/{thread}")) {
            Ok(status) if status.is_done(keep) => {}
            Ok(_) => left.push(thread),
            // The thread has ended.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(left)
}

/// Capabilities of a thread, from /proc.
struct Status {
    effective: u64,
    permitted: u64,
    inheritable: u64,
    no_new_privs: bool,
}

impl Status {
    fn of(whose: &str) -> io::Result<Status> {
        Status::parse(&fs::read_to_string(format!("/proc/{whose}/status"))?)
            .ok_or_else(|| io::Error::other("/proc says nothing of capabilities"))
    }

    fn parse(text: &str) -> Option<Status> {
        let word =
            |name: &str| text.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let set = |name| u64::from_str_radix(word(name)?, 16).ok();
        Some(Status {
            effective: set("CapEff:")?,
            permitted: set("CapPrm:")?,
            inheritable: set("CapInh:")?,
            no_new_privs: word("NoNewPrivs:")? == "1",
        })
    }

    fn is_done(&self, keep: u64) -> bool {
        (self.effective | self.permitted) & !keep == 0 && self.inheritable == 0 && self.no_new_privs
    }
}

/// The installed signal handler. Dropping it restores the former action.
struct Handler {
    before: libc::sigaction,
}

impl Handler {
    fn install() -> io::Result<Handler> {
        // SAFETY: `sigaction` is plain data, for which all zeros are valid: no flags, an empty mask.
        let [mut new, mut before]: [libc::sigaction; 2] = unsafe { std::mem::zeroed() };
        new.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: both live through the call. Without SA_SIGINFO a handler takes one int, as this one does, and it
        // is async-signal-safe.
        let result = unsafe { libc::sigaction(SIGNAL, &raw const new, &raw mut before) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Handler { before }) }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: the former action comes from the kernel, and lives through the call.
        unsafe { libc::sigaction(SIGNAL, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Drops the capabilities of the calling thread. System calls only: the signal may interrupt malloc(3).
extern "C" fn on_signal(_: libc::c_int) {
    /// Source: linux/capability.h, capset(2).
    #[repr(C)]
    struct Header {
        version: u32,
        pid: i32,
    }
    #[repr(C)]
    struct Data {
        effective: u32,
        permitted: u32,
        inheritable: u32,
    }
    const VERSION_3: u32 = 0x2008_0522;
    let keep = KEEP.load(Ordering::SeqCst);
    // SAFETY: errno belongs to this thread. It is restored below for the interrupted code.
    let errno = unsafe { *libc::__errno_location() };
    let header = Header { version: VERSION_3, pid: 0 };
    let mut data = [0, 32].map(|shift| {
        let word = (keep >> shift) as u32;
        Data { effective: word, permitted: word, inheritable: 0 }
    });
    // SAFETY: header and data have the layout of version 3, two words of each set, and live through the calls;
    // pid 0 is the calling thread. prctl(2) takes integers only. A call that fails changes nothing, and /proc
    // then shows the remaining capabilities.
    unsafe {
        let mut now = [const { Data { effective: 0, permitted: 0, inheritable: 0 } }; 2];
        libc::syscall(libc::SYS_capget, &raw const header, now.as_mut_ptr());
        // capset(2) refuses capabilities that the thread does not have.
        for (wanted, now) in data.iter_mut().zip(&now) {
            wanted.permitted &= now.permitted;
            wanted.effective &= now.permitted;
        }
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
        libc::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
        libc::syscall(libc::SYS_capset, &raw const header, data.as_ptr());
        *libc::__errno_location() = errno;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proc_says_is_read() {
        let text = "Name:\tweir\nCapInh:\t0000000000000000\nCapPrm:\t0000000000001000\nCapEff:\t0000000000001000\n\
                    CapBnd:\t000001ffffffffff\nCapAmb:\t0000000000000000\nNoNewPrivs:\t1\n";
        let status = Status::parse(text).unwrap();
        assert!(status.is_done(NET_ADMIN) && status.is_done(NET_ADMIN | BPF) && !status.is_done(0));
        let privs = text.replace("NoNewPrivs:\t1", "NoNewPrivs:\t0");
        assert!(!Status::parse(&privs).unwrap().is_done(u64::MAX));
        let inheritable = text.replace("CapInh:\t0", "CapInh:\t8");
        assert!(!Status::parse(&inheritable).unwrap().is_done(u64::MAX));
        assert!(Status::parse("").is_none());
    }
}
