//! Facts about the machine: read from /proc and /sys, or found by trying, such as loading a program.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::{Resource, getrlimit};
use weir_capture::error::error_text;
use weir_capture::{bpf, memory_limit};

use crate::facts::Machine;

/// Collects the facts. If rights and memory suffice, loads the TC programs, to find out whether the verifier accepts
/// them; attaches nothing.
#[must_use]
pub fn collect() -> Machine {
    let uname = rustix::system::uname();
    let kernel = uname.release().to_string_lossy().into_owned();
    let room = memory_limit::free();
    let mut machine = Machine {
        kernel_version: version(&kernel),
        kernel,
        preempt_rt: uname.version().to_string_lossy().contains("PREEMPT_RT"),
        bpf_jit: number("/proc/sys/net/core/bpf_jit_enable"),
        unprivileged_bpf_disabled: number("/proc/sys/kernel/unprivileged_bpf_disabled"),
        capabilities: capabilities(&read("/proc/self/status").unwrap_or_default()),
        tc_programs: None,
        af_xdp: af_xdp(),
        memlock_bytes: getrlimit(Resource::Memlock).current,
        free_bytes: room.as_ref().map(|room| room.bytes),
        limited_by: room.and_then(|room| Some(room.limit?.display().to_string())),
        ring_bytes_least: bpf::least_ring_bytes(),
        hugepages_free: hugepages(),
        hugepage_mounts: hugepage_mounts(&read("/proc/self/mountinfo").unwrap_or_default()),
        cpus: allowed_cpus(),
        governors: governors(),
        clock_source: read("/sys/devices/system/clocksource/clocksource0/current_clocksource"),
        libpcap: weir_capture::pcap::library(),
    };
    // Loading the programs allocates rings of the least size for a moment. If that exceeded the memory limit of the
    // cgroup, the kernel would kill its processes. So load them only if four times as much is free.
    let room = machine.free_bytes.is_none_or(|free| free > 4 * machine.ring_bytes_least);
    if machine.lacks("bpf").is_empty() && room {
        machine.tc_programs = Some(bpf::load_tc().map_err(|error| error_text(&error)));
    }
    machine
}

pub(crate) fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &str) -> Option<u32> {
    read(path)?.parse().ok()
}

/// Returns the first two numbers of a kernel release: 6 and 18 for `6.18.44-fc`.
fn version(release: &str) -> (u32, u32) {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
}

fn capabilities(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    line.and_then(|text| u64::from_str_radix(text.trim(), 16).ok()).unwrap_or(0)
}

/// Returns whether the kernel has AF_XDP; `None`: unknown. Without CAP_NET_RAW the socket is refused with EPERM, but
/// only by a kernel that knows the address family.
fn af_xdp() -> Option<bool> {
    // SAFETY: the call takes no pointers, and returns a new descriptor or -1.
    let fd = unsafe { libc::socket(libc::AF_XDP, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd >= 0 {
        // SAFETY: the descriptor was created above, and nothing else uses it.
        unsafe { libc::close(fd) };
        return Some(true);
    }
    match std::io::Error::last_os_error().raw_os_error() {
        Some(libc::EPERM) => Some(true),
        Some(libc::EAFNOSUPPORT) => Some(false),
        _ => None,
    }
}

fn hugepages() -> BTreeMap<u64, u64> {
    let folder = fs::read_dir("/sys/kernel/mm/hugepages").into_iter().flatten().flatten();
    let sizes = folder.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        let kib: u64 = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let free = fs::read_to_string(entry.path().join("free_hugepages")).ok()?;
        Some((kib << 10, free.trim().parse().ok()?))
    });
    sizes.collect()
}

fn hugepage_mounts(mounts: &str) -> Vec<String> {
    let of = |line: &str| {
        let (left, right) = line.split_once(" - ")?;
        right.starts_with("hugetlbfs ").then(|| left.split(' ').nth(4).map(str::to_owned))?
    };
    mounts.lines().filter_map(of).collect()
}

fn allowed_cpus() -> Vec<usize> {
    let status = read("/proc/self/status").unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    list.map(|list| cpu_list(list.trim())).unwrap_or_default()
}

fn governors() -> Vec<String> {
    let cpus = fs::read_dir("/sys/devices/system/cpu").into_iter().flatten().flatten();
    let path = |cpu: fs::DirEntry| cpu.path().join("cpufreq/scaling_governor");
    let mut found: Vec<String> = cpus
        .filter_map(|cpu| Some(fs::read_to_string(path(cpu)).ok()?.trim().to_owned()))
        .collect();
    found.sort();
    found.dedup();
    found
}

/// Returns the numbers of a list of CPUs such as `0-3,8`. Parts that are not numbers are left out.
#[must_use]
pub fn cpu_list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        // No machine has CPUs with higher numbers. A file that claims so must not make this list fill the memory.
        Some(first..=last.min(65_535))
    };
    text.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_writes_is_read() {
        assert_eq!(version("6.18.44-fc-v669"), (6, 18));
        assert_eq!(version("6.1.0-18-amd64"), (6, 1));
        assert_eq!(version(""), (0, 0));
        assert_eq!(capabilities("CapPrm:\t0\nCapEff:\t000001ffffffffff\n"), 0x1ff_ffff_ffff);
        assert_eq!(cpu_list("0-2,8"), [0, 1, 2, 8]);
        assert_eq!(cpu_list(""), Vec::<usize>::new());
        let mounts = "24 1 0:22 / /proc rw - proc proc rw\n\
            40 1 0:9 / /dev/hugepages rw,relatime shared:5 - hugetlbfs hugetlbfs rw\n";
        assert_eq!(hugepage_mounts(mounts), ["/dev/hugepages"]);
    }
}
