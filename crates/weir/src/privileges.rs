//! Capabilities are given up once everything is open, by all threads, and none can be got again.
//!
//! Linux keeps capabilities by thread, and has no call that changes those of all. So each thread is sent a
//! signal, whose handler gives up its own, until /proc says that no thread has any left: the way of libpsx
//! (libcap) and of setuid(2) in libc. New threads have what their maker has. Later work of a capture needs
//! descriptors that are open.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use weir_capture::bpf;
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

/// Ignored where it is not handled, so one that is late harms nobody; and nothing here uses its own meaning.
const SIGNAL: libc::c_int = libc::SIGURG;
/// Threads that move frames look at signals within their pump's limit.
const PATIENCE: Duration = Duration::from_secs(5);
/// From a signal to the next one, for a thread that has not followed it.
const AGAIN: Duration = Duration::from_millis(100);

/// Capabilities that the handler keeps.
static KEEP: AtomicU64 = AtomicU64::new(0);

/// Capabilities that a capture needs until its end, of those that it has.
pub fn needed(plan: &CapturePlan) -> u64 {
    let any = |is: fn(&SourceName) -> bool| plan.sources.iter().any(|source| is(&source.name));
    // Drivers of an engine's own devices do as they like when they are stopped.
    if any(|name| matches!(name, SourceName::Device { .. }) && !name.is_of_daemon()) {
        return u64::MAX;
    }
    let is_live = any(SourceName::is_of_interfaces);
    let mut keep = 0;
    if (plan.control.is_some() || plan.follow) && is_live || bpf::has_patterns() {
        // Other filters are other programs, and those that they replace are attached. So is all of an interface that
        // comes back, or joins.
        keep |= BPF | PERFMON | NET_ADMIN | NET_RAW;
        // Which stands in for the first two where a process was given nothing else.
        let own = Status::of("self").map_or(0, |status| status.permitted);
        if own & BPF == 0 {
            keep |= SYS_ADMIN;
        }
        // Feeds are changed, and interfaces opened, by threads that enter the network namespace.
        if any(SourceName::is_in_other_netns) {
            keep |= SYS_ADMIN;
        }
    }
    // The network namespace of a process that was started again is opened through /proc.
    if plan.follow && any(|name| name.netns().is_some_and(NetnsName::may_be_of_process)) {
        keep |= SYS_PTRACE;
    }
    // Its taps are those that its process holds.
    if any(|name| name.vm().is_some()) {
        keep |= SYS_PTRACE;
    }
    if plan.follow && is_live {
        // The memory of AF_XDP's sockets is locked.
        keep |= IPC_LOCK;
    }
    // Before Linux 6.6, TC programs are filters, which only NET_ADMIN removes.
    if bpf::has_clsact_filters() {
        keep |= NET_ADMIN;
    }
    keep
}

/// Has every thread of the process give up its capabilities but those in `keep`, and all ways to get new ones.
///
/// # Errors
/// A thread that did not follow, or no /proc to see it by.
pub fn give_up(keep: u64) -> io::Result<()> {
    KEEP.store(keep, Ordering::SeqCst);
    let _handler = Handler::install()?;
    let begin = Instant::now();
    let mut asked: BTreeMap<i32, Instant> = BTreeMap::new();
    loop {
        let left = threads_with_more_than(keep)?;
        // A thread that had given up nothing yet may have made another one meanwhile; it was in this list, then.
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
                // SAFETY: integers only. A thread that has ended meanwhile is an error, which the next look shows.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, SIGNAL) };
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Rights are as they will be from now on.
static SETTLED: AtomicBool = AtomicBool::new(false);

/// The process has the rights that it will have: those that it does not need are given up, if any are.
pub fn settle() {
    SETTLED.store(true, Ordering::Release);
}

/// Whether [`settle`] was called.
pub fn are_settled() -> bool {
    SETTLED.load(Ordering::Acquire)
}

/// Does something as it will be done once all capabilities are given up.
pub fn without<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let as_later = || {
        // Of this thread alone.
        on_signal(SIGNAL);
        work()
    };
    let done = std::thread::scope(|scope| scope.spawn(as_later).join());
    done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn threads_with_more_than(keep: u64) -> io::Result<Vec<i32>> {
    let mut left = Vec::new();
    for entry in fs::read_dir("/proc/self/task")? {
        let name = entry?.file_name();
        let Some(thread) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
        match Status::of(&format!("self/task/{thread}")) {
            Ok(status) if status.is_done(keep) => {}
            Ok(_) => left.push(thread),
            // It has ended.
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

/// The signal's handler, until dropped.
struct Handler {
    before: libc::sigaction,
}

impl Handler {
    fn install() -> io::Result<Handler> {
        // SAFETY: plain data, of which zeros are a value: no flags, an empty mask.
        let [mut new, mut before]: [libc::sigaction; 2] = unsafe { std::mem::zeroed() };
        new.sa_sigaction = on_signal as extern "C" fn(libc::c_int) as usize;
        new.sa_flags = libc::SA_RESTART;
        // SAFETY: both live through the call; the handler is a function of the form that these flags want, and
        // does only what handlers may.
        let result = unsafe { libc::sigaction(SIGNAL, &raw const new, &raw mut before) };
        if result < 0 { Err(io::Error::last_os_error()) } else { Ok(Handler { before }) }
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // SAFETY: the former action, which the kernel gave us; it lives through the call.
        unsafe { libc::sigaction(SIGNAL, &raw const self.before, std::ptr::null_mut()) };
    }
}

/// Two system calls and no more: the thread may be anywhere, also within malloc.
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
    // SAFETY: errno is this thread's; the interrupted code finds it as it was.
    let errno = unsafe { *libc::__errno_location() };
    let header = Header { version: VERSION_3, pid: 0 };
    let mut data = [0, 32].map(|shift| {
        let word = (keep >> shift) as u32;
        Data { effective: word, permitted: word, inheritable: 0 }
    });
    // SAFETY: header and data are as version 3 wants them, two words of each set, and live through the calls; pid
    // 0 is the calling thread. Clearing the ambient set first, as it is bound by the others, and prctl take
    // integers only. A refusal leaves the thread as it was, which /proc shows.
    unsafe {
        let mut now = [const { Data { effective: 0, permitted: 0, inheritable: 0 } }; 2];
        libc::syscall(libc::SYS_capget, &raw const header, now.as_mut_ptr());
        // No more than there is: a capability that the thread has not got cannot be kept.
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
