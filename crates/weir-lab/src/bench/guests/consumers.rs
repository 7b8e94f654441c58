//! Starts consumers in guests, and reads their counts.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::de::DeserializeOwned;

use super::host::{ASKING, CONSUMED_SOURCE, Host, SOURCE, failed, until};
use crate::Result;
use crate::bench::counted::WeirReport;
use crate::bench::row::Frames;
use crate::bench::serve::READY;

/// A number of consumers, and the guests that they run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) name: &'static str,
    source: &'static str,
    /// For each consumer, the number of its guest.
    guests: &'static [usize],
    /// Whether each consumer reads its own shard.
    is_sharded: bool,
}

/// The row with which the others are compared.
pub(super) const ONE: Shape =
    Shape { name: "1 guest", source: SOURCE, guests: &[0], is_sharded: false };
/// The same for a monitoring port, whose frames end at XDP.
pub(super) const CONSUMED: Shape =
    Shape { name: "1 guest, consumed at XDP", source: CONSUMED_SOURCE, ..ONE };
/// The combinations measured in the papers on vPF_RING.
pub(super) const SHAPES: [Shape; 5] = [
    ONE,
    Shape { name: "2 guests", source: SOURCE, guests: &[0, 1], is_sharded: false },
    Shape { name: "4 guests", source: SOURCE, guests: &[0, 1, 2, 3], is_sharded: false },
    Shape { name: "2 consumers in 1 guest", source: SOURCE, guests: &[0, 0], is_sharded: false },
    Shape {
        name: "4 guests, a shard each",
        source: SOURCE,
        guests: &[0, 1, 2, 3],
        is_sharded: true,
    },
];

/// A program in a guest: the number of the guest, and the number of the program in it.
pub(super) struct Program {
    guest: usize,
    number: usize,
}

/// A running `weir capture`.
pub(super) struct Consumer(Program);

impl Shape {
    /// Starts one consumer after the other, and waits for each feed.
    ///
    /// # Errors
    /// [`crate::Error::Measure`] with the consumer's message.
    pub(super) fn start(&self, host: &mut Host) -> Result<Vec<Consumer>> {
        let mut consumers = Vec::new();
        for (number, &guest) in self.guests.iter().enumerate() {
            let part = match self.is_sharded {
                true => format!("@{}/{}", number + 1, self.guests.len()),
                false => String::new(),
            };
            let arguments = format!("host:{}{part}", self.source);
            consumers.push(Consumer::start(host, guest, number, &arguments)?);
        }
        Ok(consumers)
    }

    /// Returns the account of the consumer that kept the fewest frames; for shards, that of all shards together.
    pub(super) fn frames(&self, sent: u64, seconds: f64, reports: &[WeirReport]) -> Frames {
        if self.is_sharded {
            return together(sent, seconds, reports);
        }
        let worst = reports.iter().min_by_key(|report| report.delivered);
        let counted = worst.map(WeirReport::counted).unwrap_or_default();
        Frames::new(sent, counted.kept, counted.drops, seconds)
    }

    /// Returns the account of all consumers together: the sum of their frames, over their common time.
    pub(super) fn all_frames(&self, sent: u64, seconds: f64, reports: &[WeirReport]) -> Frames {
        let times = if self.is_sharded { 1 } else { self.guests.len() as u64 };
        together(sent * times, seconds * times as f64, reports)
    }
}

/// Adds up all accounts. Filtered frames are left out: for a shard, they are the frames of the other shards.
fn together(offered: u64, seconds: f64, reports: &[WeirReport]) -> Frames {
    let kept = reports.iter().map(|report| report.delivered).sum();
    let mut drops = BTreeMap::new();
    for (name, count) in reports.iter().flat_map(|report| report.counted().drops) {
        if name != "filtered" {
            *drops.entry(name).or_default() += count;
        }
    }
    Frames::new(offered, kept, drops, seconds)
}

impl Program {
    /// Starts a command.
    ///
    /// # Errors
    /// [`crate::Error::Measure`] if the guest does not answer.
    pub(super) fn start(
        host: &mut Host,
        guest: usize,
        number: usize,
        command: &str,
    ) -> Result<Program> {
        // The exit status is written to a file last, so if this file exists, the output is complete.
        let script = format!(
            "cd /tmp; rm -f {number}.*; {{ sh -c 'echo $$ >{number}.pid; exec \"$@\"' sh {command} >{number}.out \
             2>{number}.err; echo $? >{number}.rc; }} >/dev/null &"
        );
        host.guests[guest].run(&script, ASKING)?;
        Ok(Program { guest, number })
    }

    /// Waits until the program ends by itself, and returns its output. If the program failed, its output is the error.
    ///
    /// # Errors
    /// [`crate::Error::Measure`] if the program failed, or has not ended within `limit`.
    pub(super) fn wait(&self, host: &mut Host, limit: Duration) -> Result<String> {
        let (number, vm) = (self.number, &mut host.guests[self.guest]);
        until(vm, &format!("test -e /tmp/{number}.rc"), limit)?;
        let said = format!("cd /tmp; cat {number}.err {number}.out; exit $(cat {number}.rc)");
        vm.run(&said, ASKING)
    }
}

impl Consumer {
    /// Starts `weir capture` in a guest, where it counts frames. When this function returns, its feed is open.
    ///
    /// # Errors
    /// [`crate::Error::Measure`] with the message of the consumer.
    pub(super) fn start(
        host: &mut Host,
        guest: usize,
        number: usize,
        arguments: &str,
    ) -> Result<Consumer> {
        let command = format!("weir capture --json {arguments}");
        let program = Program::start(host, guest, number, &command)?;
        let vm = &mut host.guests[guest];
        // Once the feed is open, the consumer prints the engine.
        let engine = "' (host|bpf|af_packet)( at [a-z]+)?: '";
        let ready = format!("test -e /tmp/{number}.rc || grep -qE {engine} /tmp/{number}.err");
        until(vm, &ready, READY)?;
        vm.run(
            &format!("test ! -e /tmp/{number}.rc || {{ cat /tmp/{number}.err; false; }}"),
            ASKING,
        )?;
        Ok(Consumer(program))
    }

    /// Interrupts the consumer, and reads its counts.
    ///
    /// # Errors
    /// [`crate::Error::Measure`] if the consumer does not print its counts.
    pub(super) fn finish(&self, host: &mut Host) -> Result<WeirReport> {
        let Program { guest, number } = self.0;
        host.guests[guest].run(&format!("kill -INT $(cat /tmp/{number}.pid)"), ASKING)?;
        let text = self.0.wait(host, READY)?;
        last_object(&text)
    }
}

/// Parses the JSON object at the end of a program's output.
///
/// # Errors
/// [`crate::Error::Measure`] with the last line of output, if there is no such object.
pub(super) fn last_object<T: DeserializeOwned>(text: &str) -> Result<T> {
    let found = text.lines().rev().filter(|line| line.starts_with('{'));
    let found = found.filter_map(|line| serde_json::from_str(line).ok()).next();
    found.ok_or_else(|| failed(text.lines().last().unwrap_or("it said nothing")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(delivered: u64, lapped: u64, relay: u64, filtered: u64) -> WeirReport {
        let drops = [("relay".to_owned(), relay)].into();
        WeirReport { delivered, lapped, filtered, drops, ..WeirReport::default() }
    }

    #[test]
    fn the_consumer_that_kept_least_speaks_for_all() {
        let reports = [report(100, 0, 0, 0), report(90, 7, 3, 0)];
        let frames = SHAPES[1].frames(100, 1.0, &reports);
        assert_eq!(
            (frames.kept, frames.lapped(), frames.drops["relay"], frames.unaccounted),
            (90, 7, 3, 0)
        );
        let all = SHAPES[1].all_frames(100, 1.0, &reports);
        assert_eq!((all.offered, all.kept, all.unaccounted), (200, 190, 0));
        assert!((all.kept_mpps() - 95e-6).abs() < 1e-12);
    }

    #[test]
    fn shards_are_counted_together_and_the_others_frames_are_no_loss() {
        let reports = [
            report(25, 0, 0, 75),
            report(24, 1, 0, 75),
            report(25, 0, 0, 75),
            report(25, 0, 0, 75),
        ];
        for frames in
            [SHAPES[4].frames(100, 1.0, &reports), SHAPES[4].all_frames(100, 1.0, &reports)]
        {
            assert_eq!(
                (frames.offered, frames.kept, frames.lapped(), frames.unaccounted),
                (100, 99, 1, 0)
            );
            assert!(!frames.drops.contains_key("filtered"));
        }
    }
}
