//! The CPUs that a source's threads may run on.

use std::fmt;
use std::io;
use std::str::FromStr;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// A list of CPUs by number, written as the kernel writes it: `0-3,8`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(Vec<usize>);

impl FromStr for CpuList {
    type Err = String;

    fn from_str(text: &str) -> Result<CpuList, String> {
        let wrong = || format!("'{text}' is no list of CPUs; write numbers and ranges: 0-3,8");
        let mut cpus = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let number = |digits: &str| match digits.bytes().all(|byte| byte.is_ascii_digit()) {
                true => digits.parse::<usize>().map_err(|_| wrong()),
                false => Err(wrong()),
            };
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            if last >= CpuSet::MAX_CPU {
                return Err(format!(
                    "CPU {last}: the highest that can be named is {}",
                    CpuSet::MAX_CPU - 1
                ));
            }
            cpus.extend(first..=last);
        }
        cpus.sort_unstable();
        cpus.dedup();
        Ok(CpuList(cpus))
    }
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
    /// Those of the list that the calling thread may not run on: not there, offline, or not in its cpuset.
    ///
    /// # Errors
    /// If the kernel does not say which it may run on.
    pub fn not_allowed(&self) -> io::Result<Vec<usize>> {
        let allowed = sched_getaffinity(None)?;
        Ok(self.0.iter().copied().filter(|&cpu| !allowed.is_set(cpu)).collect())
    }

    /// Keeps the calling thread, and the threads that it starts from now on, on these CPUs.
    ///
    /// # Errors
    /// If none of them is there.
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
        assert!(cpus.not_allowed().unwrap().is_empty());
        assert_eq!(CpuList(vec![1000]).not_allowed().unwrap(), [1000]);
    }
}
