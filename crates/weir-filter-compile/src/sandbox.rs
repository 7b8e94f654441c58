//! Rights that the child gives up before it reads the text: capabilities, root's user, new privileges, and most system
//! calls.
//!
//! libpcap's compiler is C that parses what strangers may have written. It needs memory, and for names of hosts and
//! services it reads files and asks name servers.

use std::collections::BTreeMap;
use std::env::consts::ARCH;
use std::io;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{
    CapabilitySet, CapabilitySets, clear_ambient_capability_set, set_capabilities,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule,
};

/// `nobody` and `nogroup`: a user and a group that own no file.
const NOBODY: u32 = 65_534;

/// System calls without conditions: memory, time, reading open files, and talking to name servers.
const ALLOWED: &[i64] = &[
    libc::SYS_bind,
    libc::SYS_brk,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_close,
    libc::SYS_connect,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_faccessat,
    libc::SYS_fcntl,
    libc::SYS_fstat,
    libc::SYS_futex,
    libc::SYS_getcwd,
    libc::SYS_getdents64,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getpeername,
    libc::SYS_getpid,
    libc::SYS_getrandom,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_gettid,
    libc::SYS_gettimeofday,
    libc::SYS_getuid,
    libc::SYS_lseek,
    libc::SYS_madvise,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    libc::SYS_nanosleep,
    libc::SYS_newfstatat,
    libc::SYS_ppoll,
    libc::SYS_pread64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_restart_syscall,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_yield,
    libc::SYS_sendmmsg,
    libc::SYS_sendmsg,
    libc::SYS_sendto,
    libc::SYS_setsockopt,
    libc::SYS_sigaltstack,
    libc::SYS_statx,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    libc::SYS_write,
    libc::SYS_writev,
    // Older forms, which arm64 does not have.
    #[cfg(target_arch = "x86_64")]
    libc::SYS_access,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_lstat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_readlink,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_stat,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_time,
];

/// Address families of the sockets by which name services are asked.
const SOCKETS: [i32; 4] = [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK];

/// Gives up everything that the calling thread does not need. It cannot be regained.
///
/// # Errors
/// The kernel's error. The caller must then stop.
pub(crate) fn enter() -> io::Result<()> {
    become_nobody();
    let none = CapabilitySet::empty();
    // Kernels without ambient capabilities refuse this.
    let _ = clear_ambient_capability_set();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    set_no_new_privs(true)?;
    let program = filter().map_err(io::Error::other)?;
    seccompiler::apply_filter(&program).map_err(io::Error::other)
}

/// Changes from root to nobody: root without capabilities still owns root's files. If the user namespace has no such
/// user, the process stays root.
fn become_nobody() {
    if geteuid().is_root() {
        let (user, group) = (Uid::from_raw(NOBODY), Gid::from_raw(NOBODY));
        let _ = set_thread_groups(&[]);
        let _ = set_thread_res_gid(group, group, group);
        let _ = set_thread_res_uid(user, user, user);
    }
}

/// Makes the filter of system calls. All other calls fail with EPERM instead of ending the process, because name
/// services try one call after another.
fn filter() -> Result<BpfProgram, seccompiler::BackendError> {
    let equals = |arg, value: i32| {
        SeccompCondition::new(arg, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value as u64)
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().map(|&number| (number, Vec::new())).collect();
    let writes = libc::O_ACCMODE | libc::O_CREAT | libc::O_TRUNC;
    let reads = |flags_arg| {
        let op = SeccompCmpOp::MaskedEq(writes as u64);
        let read_only =
            SeccompCondition::new(flags_arg, SeccompCmpArgLen::Dword, op, libc::O_RDONLY as u64)?;
        Ok::<_, seccompiler::BackendError>(vec![SeccompRule::new(vec![read_only])?])
    };
    rules.insert(libc::SYS_openat, reads(2)?);
    #[cfg(target_arch = "x86_64")]
    rules.insert(libc::SYS_open, reads(1)?);
    // The resolver asks how many bytes it can read.
    rules.insert(libc::SYS_ioctl, vec![SeccompRule::new(vec![equals(1, libc::FIONREAD as i32)?])?]);
    let sockets: Result<Vec<_>, _> =
        SOCKETS.iter().map(|&family| SeccompRule::new(vec![equals(0, family)?])).collect();
    rules.insert(libc::SYS_socket, sockets?);
    let refused = SeccompAction::Errno(libc::EPERM as u32);
    SeccompFilter::new(rules, refused, SeccompAction::Allow, ARCH.try_into()?)?.try_into()
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};
    use std::net::ToSocketAddrs;
    use std::process::Command;
    use std::thread;

    use super::*;

    #[test]
    fn what_names_need_works_inside_and_nothing_else() {
        let folder = std::env::temp_dir().join(format!("weir-sandbox-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let open = |folder: &std::path::Path| {
            use std::os::unix::fs::PermissionsExt;
            fs::set_permissions(folder, PermissionsExt::from_mode(0o777)).unwrap();
        };
        open(&folder);
        let inside = folder.clone();
        // All of it holds for one thread.
        let thread = thread::spawn(move || {
            enter().unwrap();
            assert!(
                fs::read_to_string("/etc/services").is_ok()
                    || !fs::exists("/etc/services").unwrap()
            );
            assert!("localhost:80".to_socket_addrs().is_ok());
            let refused = |what: &str, result: io::Result<()>| {
                let error = result.expect_err(what);
                assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{what}: {error}");
            };
            refused("a new file", File::create(inside.join("new")).map(drop));
            refused("a file for writing", File::options().write(true).open("/dev/null").map(drop));
            refused("a program", Command::new("/bin/true").status().map(drop));
            refused("a folder", fs::create_dir(inside.join("folder")));
            // SAFETY: integers only; the sockets and processes that must not come are never made.
            let calls = unsafe {
                [
                    ("a packet socket", libc::socket(libc::AF_PACKET, libc::SOCK_RAW, 0).into()),
                    ("fork", libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0)),
                    ("a signal", libc::kill(libc::getpid(), 0).into()),
                    ("ptrace", libc::syscall(libc::SYS_ptrace, libc::PTRACE_TRACEME, 0, 0, 0)),
                    ("bpf", libc::syscall(libc::SYS_bpf, 0, 0, 0)),
                    ("uid 0", libc::syscall(libc::SYS_setresuid, 0, 0, 0)),
                ]
            };
            for (what, result) in calls {
                assert_eq!(result, -1, "{what}");
            }
        });
        thread.join().unwrap();
        fs::remove_dir(&folder).unwrap();
    }
}
