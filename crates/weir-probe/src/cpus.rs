//! The CPUs on which a source's threads may run. They also determine the NUMA node of its memory.

use std::fmt;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use weir_capture::in_own_thread;

/// A list of CPU numbers, in the kernel's notation: `0-3,8`. `node:1` stands for the CPUs of a NUMA node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        CpuList::read(text, Path::new(NODES))
    }
}

/// The folder in which the kernel describes the NUMA nodes.
const NODES: &str = "/sys/devices/system/node";

impl CpuList {
    fn read(text: &str, nodes: &Path) -> Result<CpuList, String> {
        let mut cpus = Vec::new();
        for part in text.split(',') {
            match part.strip_prefix("node:") {
                Some(node) => cpus.extend(cpus_of_node(node, nodes)?),
                None => cpus.extend(range(part).ok_or_else(|| {
                    format!("'{text}' is no list of CPUs; write numbers, ranges and NUMA nodes: 0-3,8 or node:1")
                })?),
            }
        }
        cpus.sort_unstable();
        cpus.dedup();
        match cpus.last() {
            Some(&last) if last >= CpuSet::MAX_CPU => {
                Err(format!("CPU {last}: the highest that can be named is {}", CpuSet::MAX_CPU - 1))
            }
            _ => Ok(CpuList(cpus)),
        }
    }
}

/// Parses `8` or `0-3`. A range longer than `CpuSet::MAX_CPU` is cut to its end, whose number the caller refuses.
fn range(part: &str) -> Option<impl Iterator<Item = usize>> {
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    let (first, last) = (number(first)?, number(last)?);
    (first <= last).then(|| first.max(last.saturating_sub(CpuSet::MAX_CPU))..=last)
}

/// Parses a number of digits only. `parse` would also accept `+8`.
fn number(digits: &str) -> Option<usize> {
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().ok()).flatten()
}

/// Returns the CPUs of a NUMA node that are online.
fn cpus_of_node(node: &str, nodes: &Path) -> Result<Vec<usize>, String> {
    let number = number(node)
        .ok_or_else(|| format!("'node:{node}' is no NUMA node; write its number: node:0"))?;
    let list = std::fs::read_to_string(nodes.join(format!("node{number}/cpulist")));
    let list = list.map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            format!("node:{number}: this machine has no such NUMA node; `ls {NODES}` lists them")
        }
        _ => format!("node:{number}: the list of its CPUs cannot be read: {error}"),
    })?;
    let list = list.trim();
    if list.is_empty() {
        return Err(format!(
            "node:{number}: none of its CPUs is online; take a node that has CPUs"
        ));
    }
    let ranges: Option<Vec<_>> = list.split(',').map(range).collect();
    let ranges = ranges
        .ok_or_else(|| format!("node:{number}: the kernel's list of its CPUs is '{list}'"))?;
    Ok(ranges.into_iter().flatten().collect())
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_slice();
        let mut comma = "";
        while let Some(&first) = rest.first() {
            let run =
                rest.iter().zip(first..).take_while(|(cpu, expected)| *cpu == expected).count();
            let last = first + run - 1;
            match run {
                1 => write!(f, "{comma}{first}")?,
                _ => write!(f, "{comma}{first}-{last}")?,
            }
            (rest, comma) = (&rest[run..], ",");
        }
        Ok(())
    }
}

impl CpuList {
    /// Checks that the calling thread may run on all CPUs of the list.
    ///
    /// # Errors
    /// A text: it names the first CPU that is missing, offline, or excluded by taskset or cpuset, or says that the
    /// kernel does not tell the thread's affinity.
    pub fn check(&self) -> Result<(), String> {
        let allowed = sched_getaffinity(None)
            .map_err(|error| format!("{self}: the CPUs of this process are not known ({error})"))?;
        match self.0.iter().find(|&&cpu| !allowed.is_set(cpu)) {
            None => Ok(()),
            Some(cpu) => Err(format!(
                "{self}: there is no CPU {cpu} that this process may run on; /proc/self/status lists those that it \
                 may (Cpus_allowed_list)"
            )),
        }
    }

    /// Runs `work` on a thread bound to these CPUs, so that memory it touches first is on their NUMA nodes.
    ///
    /// # Errors
    /// As [`apply`](CpuList::apply), and if no thread can be started.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        in_own_thread("weir-cpus", || self.apply().map(|()| work()))?
    }

    /// Binds the calling thread, and the threads that it starts from now on, to these CPUs.
    ///
    /// # Errors
    /// If the thread may run on none of them.
    pub fn apply(&self) -> io::Result<()> {
        let mut set = CpuSet::new();
        self.0.iter().for_each(|&cpu| set.set(cpu));
        Ok(sched_setaffinity(None, &set)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_read_as_the_kernel_writes_it() {
        for (text, shown) in [("0", "0"), ("3,1,2", "1-3"), ("0-3,8", "0-3,8"), ("5,5", "5")] {
            assert_eq!(text.parse::<CpuList>().unwrap().to_string(), shown, "{text}");
        }
        for wrong in ["", "a", "1-", "-1", "3-1", "0,,1", "+1", "99999999"] {
            assert!(wrong.parse::<CpuList>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_node_stands_for_its_cpus() {
        let sys = tempfile::tempdir().unwrap();
        for (node, list) in [("node0", "0-3,8-11\n"), ("node1", "4-7\n"), ("node2", "\n")] {
            std::fs::create_dir(sys.path().join(node)).unwrap();
            std::fs::write(sys.path().join(node).join("cpulist"), list).unwrap();
        }
        let read = |text| CpuList::read(text, sys.path()).map(|cpus| cpus.to_string());
        assert_eq!(read("node:0").unwrap(), "0-3,8-11");
        assert_eq!(read("node:1,node:0,12").unwrap(), "0-12");
        assert!(read("node:2").unwrap_err().contains("none of its CPUs is online"));
        assert!(read("node:3").unwrap_err().contains("no such NUMA node"));
        for wrong in ["node:", "node:x", "node:-1", "node:+1", "node:../node1", "node:0-1", "node"]
        {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_thread_and_those_that_it_starts_stay_where_they_are_put() {
        let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| sched_getaffinity(None).unwrap().is_set(cpu));
        let cpus = CpuList(vec![cpu.unwrap()]);
        let there = std::thread::spawn({
            let cpus = cpus.clone();
            move || {
                cpus.apply().unwrap();
                let child = std::thread::spawn(|| sched_getaffinity(None).unwrap());
                (sched_getaffinity(None).unwrap(), child.join().unwrap())
            }
        });
        let (own, child) = there.join().unwrap();
        assert_eq!((own.count(), child.count()), (1, 1));
        assert_eq!(cpus.run(|| sched_getaffinity(None).unwrap().count()).unwrap(), 1);
        assert_eq!(cpus.check(), Ok(()));
        let missing = CpuList(vec![1000]).check().unwrap_err();
        assert!(missing.starts_with("1000: there is no CPU 1000 that"), "{missing}");
    }
}
