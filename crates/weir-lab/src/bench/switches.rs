//! Measures how often the threads of a process go to sleep, as voluntary context switches of each thread.

use std::collections::BTreeMap;
use std::fs;
use std::time::Instant;

/// Prefix of the names of consumer threads. If no thread has it, the main thread is the consumer.
const CONSUMER: &str = "weir-consumer";

/// Voluntary switches of each thread so far.
#[derive(Debug, Clone)]
pub(super) struct Switches {
    at: Instant,
    process: u32,
    /// Name and count of each thread, by thread id.
    threads: BTreeMap<u32, (String, u64)>,
}

/// Voluntary switches a second.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct PerSecond {
    /// Rate of the consumer thread with the most switches.
    pub(super) consumer: f64,
    /// Rate of all threads together.
    pub(super) all: f64,
    /// Rates by thread name. Threads with the same name are added up.
    pub(super) by_name: BTreeMap<String, f64>,
}

impl Switches {
    /// Reads the counts of a process. `None` if the process has ended.
    pub(super) fn look(process: u32) -> Option<Switches> {
        let mut threads = BTreeMap::new();
        for thread in fs::read_dir(format!("/proc/{process}/task")).ok()?.flatten() {
            let id = thread.file_name().to_str().and_then(|id| id.parse().ok());
            // A thread may end while the others are read.
            let Ok(status) = fs::read_to_string(thread.path().join("status")) else { continue };
            if let (Some(id), Some(found)) = (id, parse(&status)) {
                threads.insert(id, found);
            }
        }
        (!threads.is_empty()).then(|| Switches { at: Instant::now(), process, threads })
    }

    /// Returns the rates since `before`, for the threads that existed then. New threads are left out, because their
    /// start is not typical.
    pub(super) fn per_second_since(&self, before: &Switches) -> PerSecond {
        let seconds = self.at.duration_since(before.at).as_secs_f64().max(f64::EPSILON);
        let mut found = PerSecond::default();
        let has_name = self.threads.values().any(|(name, _)| name.starts_with(CONSUMER));
        for (id, (name, now)) in &self.threads {
            let Some((_, then)) = before.threads.get(id) else { continue };
            let rate = now.saturating_sub(*then) as f64 / seconds;
            found.all += rate;
            *found.by_name.entry(name.clone()).or_default() += rate;
            let consumes = if has_name { name.starts_with(CONSUMER) } else { *id == self.process };
            if consumes {
                found.consumer = found.consumer.max(rate);
            }
        }
        found
    }
}

impl PerSecond {
    /// Formats the rates by name: `weir 1.0, weir-source 20.0`.
    pub(super) fn text(&self) -> String {
        let threads = self.by_name.iter().map(|(name, rate)| format!("{name} {rate:.1}"));
        threads.collect::<Vec<_>>().join(", ")
    }
}

/// Parses name and voluntary switches of a thread. Format: proc(5), `/proc/PID/task/TID/status`.
fn parse(status: &str) -> Option<(String, u64)> {
    let field = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        Some(line[name.len()..].trim())
    };
    Some((field("Name:")?.to_owned(), field("voluntary_ctxt_switches:")?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn switches(at: Instant, threads: &[(u32, &str, u64)]) -> Switches {
        let threads = threads.iter().map(|&(id, name, count)| (id, (name.to_owned(), count)));
        Switches { at, process: 7, threads: threads.collect() }
    }

    #[test]
    fn the_voluntary_count_is_not_taken_for_the_other() {
        let status = "Name:\tweir source\nState:\tS (sleeping)\nvoluntary_ctxt_switches:\t151\n\
            nonvoluntary_ctxt_switches:\t545\n";
        assert_eq!(parse(status), Some(("weir source".to_owned(), 151)));
        assert_eq!(parse("Name:\tweir\nnonvoluntary_ctxt_switches:\t545\n"), None);
    }

    #[test]
    fn rates_are_by_name_and_the_first_thread_consumes_if_no_other_says_so() {
        let begin = Instant::now();
        let later = begin + Duration::from_secs(2);
        let then =
            switches(begin, &[(7, "weir", 10), (8, "weir-source", 100), (9, "weir-source", 0)]);
        let now = switches(
            later,
            &[(7, "weir", 14), (8, "weir-source", 140), (9, "weir-source", 2), (10, "new", 99)],
        );
        let rates = now.per_second_since(&then);
        assert_eq!((rates.consumer, rates.all), (2.0, 23.0));
        assert_eq!(rates.text(), "weir 2.0, weir-source 21.0");
        let then =
            switches(begin, &[(7, "weir", 0), (8, "weir-consumer", 0), (9, "weir-consumer2", 0)]);
        let now =
            switches(later, &[(7, "weir", 9), (8, "weir-consumer", 2), (9, "weir-consumer2", 6)]);
        assert_eq!(now.per_second_since(&then).consumer, 3.0);
    }

    #[test]
    fn this_process_has_threads_and_one_that_is_gone_has_none() {
        assert!(Switches::look(std::process::id()).is_some_and(|found| !found.threads.is_empty()));
        assert!(Switches::look(u32::MAX).is_none());
    }
}
