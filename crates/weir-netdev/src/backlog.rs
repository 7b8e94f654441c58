//! Waits for frames that are on their way from the tap to the packet sockets.
//!
//! The kernel handles a received frame before the system call that brought the frame returns, unless the interface has
//! receive packet steering (RPS): then the frame waits in the backlog of another CPU, whose softirq handles it later.

use std::fs::File;
use std::io::{Read, Seek};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::thread::{MembarrierCommand, membarrier};

/// Time between two readings of the backlogs.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Longest wait for a CPU's backlog: it may never be empty if the CPU handles other interfaces at full rate.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

/// The backlogs of all CPUs. The file is opened at the start, because rights are given up later.
pub(crate) struct Backlog(Option<File>);

impl Backlog {
    pub(crate) fn open() -> Backlog {
        Backlog(File::open("/proc/thread-self/net/softnet_stat").ok())
    }

    /// Waits until every CPU has handled the frames that are in its backlog now, or until `is_done`.
    pub(crate) fn wait(&mut self, mut is_done: impl FnMut() -> bool) {
        let begin = Instant::now();
        let mut waiting = self.cpus();
        while !waiting.is_empty() && !is_done() && begin.elapsed() < PATIENCE {
            sleep(LOOK_EVERY);
            let busy = self.cpus();
            waiting.retain(|cpu| busy.contains(cpu));
        }
        // A frame that has left its backlog may still be in processing. That runs with softirqs disabled, which is a
        // read-side critical section of RCU, and this command waits for a grace period. Kernel: `process_backlog`. The
        // command is not available with nohz_full.
        if !is_done() && membarrier(MembarrierCommand::Global).is_err() {
            sleep(LOOK_EVERY);
        }
    }

    /// Returns the CPUs that have frames in their backlogs.
    fn cpus(&mut self) -> Vec<u32> {
        let mut text = String::new();
        let read = self.0.as_mut().and_then(|file| {
            file.rewind().ok()?;
            file.read_to_string(&mut text).ok()
        });
        read.map_or_else(Vec::new, |_| busy(&text))
    }
}

/// Parses the CPUs with a backlog: the 12th number of a line is its length, the 13th is the CPU. Kernel:
/// `softnet_seq_show`.
fn busy(text: &str) -> Vec<u32> {
    let line = |line: &str| {
        let mut words = line.split_whitespace().skip(11);
        let mut number = || u32::from_str_radix(words.next()?, 16).ok();
        let (length, cpu) = (number()?, number()?);
        (length > 0).then_some(cpu)
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_that_have_a_backlog_are_found() {
        // Linux 6.1 has 13 numbers a line, Linux 6.18 two more.
        let line = |last: &str| format!("{}{last}\n", "00000007 ".repeat(11));
        let text = line("00000000 00000000") + &line("0000001f 0000000a 0000001f 00000000");
        let text = text + "00000007 00000000\n";
        assert_eq!(busy(&text), [10]);
        assert!(busy("").is_empty());
    }
}
