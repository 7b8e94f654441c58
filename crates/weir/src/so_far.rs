//! The report of a run that goes on: to SIGUSR1, and with `--json-every`.

use std::path::Path;
use std::time::Instant;

use super::{Run, Working};
use crate::flows::watch::Watch;
use crate::journal::Journal;
use crate::out;
use crate::run_result::{ConsumerResult, RunResult};

impl Run<'_> {
    /// What became of the frames up to now. What consumers have not read yet is `waiting`.
    pub(super) fn so_far(&self, working: &[Working], begin: Instant) -> RunResult {
        // Consumers first: the ledger has all that they had then, and more.
        let mut consumers: Vec<ConsumerResult> = working
            .iter()
            .map(|consumer| ConsumerResult {
                name: consumer.name,
                delivered: consumer.running.delivered(),
                ..ConsumerResult::default()
            })
            .collect();
        self.count();
        let feeds = self.feeds();
        let sources = self.sources(&feeds, Journal::fate);
        let captured: u64 = sources.iter().map(|source| source.ledger.captured).sum();
        for consumer in &mut consumers {
            let waiting = i128::from(captured) - consumer.accounted();
            consumer.waiting = Some(u64::try_from(waiting).unwrap_or(0));
        }
        RunResult { sources, feeds, consumers, duration: begin.elapsed() }
    }

    /// Says so on standard error, for people.
    pub(super) fn say_so_far(&self, working: &[Working], begin: Instant) {
        if self.plan.watch.as_ref().is_some_and(Watch::has_screen) {
            // It shows more than that, and the terminal is its own.
            return;
        }
        let result = self.so_far(working, begin);
        out::talk(&format!("weir: up to now, and it goes on:\n{}", result.report().text()));
    }

    /// Says so in a line of JSON, where that of the end will stand.
    pub(super) fn print_so_far(&self, working: &[Working], begin: Instant) {
        let line = self.so_far(working, begin).report().json();
        let is_pipe = self.plan.outputs.write.as_deref() == Some(Path::new("-"));
        if is_pipe {
            out::talk(&(line + "\n"));
        } else {
            println!("{line}");
            out::flush();
        }
    }
}
