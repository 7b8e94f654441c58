//! Context of every part of the bench: what to measure, where, and how long.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::machine::{self, Neighbours};

/// Rounds unless told otherwise: the fewest whose median shrugs off two bad ones; of a full run, one.
const ROUNDS: u32 = 5;
const ROUNDS_FULL: u32 = 3;
/// Seconds of each measurement unless told otherwise.
const SECONDS: f64 = 2.0;
const SECONDS_FULL: f64 = 1.5;
/// Seconds of each trial of the search for the rate without loss, and how often it is made.
const TRIAL: f64 = 2.0;
const SEARCHES: u32 = 1;

/// The longest that a round waits for the machine to be quiet.
pub(super) const PATIENCE_ROUND: Duration = Duration::from_secs(10);
/// The longest that all of them do.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// Options of the bench.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The `weir` program.
    pub weir: PathBuf,
    /// Two rounds of one second: to see that it works, not for figures.
    pub quick: bool,
    /// All frame sizes.
    pub full: bool,
    /// Rounds; 5 if not said, 3 of a full run.
    pub rounds: Option<u32>,
    /// Seconds of each measurement; 2 if not said, 1.5 of a full run.
    pub seconds: Option<f64>,
    /// Seconds of each trial of the search for the rate without loss; 2 if not said.
    pub trial: Option<f64>,
    /// How often that is searched; once if not said.
    pub searches: Option<u32>,
    /// Another build of the program, to compare this one with.
    pub before: Option<PathBuf>,
    /// A folder with a root file system that has Suricata 7.
    pub suricata: Option<PathBuf>,
    /// A folder with a kernel for virtual machines: `vmlinuz` and `lib/modules`.
    pub guest_kernel: Option<PathBuf>,
    /// A directory on a disk, to record into; if not said, that of `weir`.
    pub disk: Option<PathBuf>,
    /// Frames that come one by one to a consumer that sleeps; 50 if not said.
    pub singles: Option<u64>,
    /// Leave the others out.
    pub only: Option<Section>,
}

/// The name of a part of the bench; made by parsing it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section(pub(super) &'static str);

/// Where what runs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus {
    /// The generator, the kernel half of every capture on a veth, and the writer in memory.
    pub(super) generator: usize,
    /// The capturing tool.
    pub(super) tool: usize,
    /// How many there are.
    pub(super) all: usize,
}

impl Cpus {
    fn new() -> Cpus {
        let all = machine::cores();
        Cpus { generator: 0, tool: usize::from(all > 1), all }
    }

    /// For one of several readers: any CPU but the writer's, if there is another.
    pub(super) fn reader(self, index: usize) -> usize {
        if self.all > 1 { 1 + index % (self.all - 1) } else { 0 }
    }
}

/// Context of every part.
pub(super) struct Context<'a> {
    pub(super) options: &'a Options,
    pub(super) rounds: u32,
    pub(super) seconds: f64,
    pub(super) trial: f64,
    pub(super) searches: u32,
    pub(super) cpus: Cpus,
    /// How long the rest of the run may still wait for quiet moments.
    patience_ms: AtomicU64,
    begin: Instant,
    pub(super) stop: &'a AtomicBool,
    talk: &'a (dyn Fn(&str) + Sync),
}

impl<'a> Context<'a> {
    pub(super) fn new(
        options: &'a Options,
        stop: &'a AtomicBool,
        talk: &'a (dyn Fn(&str) + Sync),
    ) -> Context<'a> {
        let (rounds, seconds, trial) = match (options.quick, options.full) {
            (true, _) => (2, 1.0, 0.5),
            (false, true) => (ROUNDS_FULL, SECONDS_FULL, TRIAL),
            (false, false) => (ROUNDS, SECONDS, TRIAL),
        };
        Context {
            options,
            rounds: options.rounds.unwrap_or(rounds),
            seconds: options.seconds.unwrap_or(seconds),
            trial: options.trial.unwrap_or(trial),
            searches: options.searches.unwrap_or(SEARCHES),
            cpus: Cpus::new(),
            // A run without figures need not wait for a quiet moment.
            patience_ms: AtomicU64::new(if options.quick {
                0
            } else {
                PATIENCE.as_millis() as u64
            }),
            begin: Instant::now(),
            stop,
            talk,
        }
    }

    /// Waits for a quiet moment, while there is patience left, and begins a round.
    pub(super) fn calm(&self) -> Neighbours {
        let left = self.patience_ms.load(Ordering::Relaxed);
        let limit = Duration::from_millis(left).min(PATIENCE_ROUND);
        let took = machine::wait_for_calm(limit).as_millis() as u64;
        self.patience_ms.store(left.saturating_sub(took), Ordering::Relaxed);
        Neighbours::look()
    }

    pub(super) fn say(&self, text: &str) {
        let seconds = self.begin.elapsed().as_secs();
        (self.talk)(&format!("{:>2}:{:02}  {text}", seconds / 60, seconds % 60));
    }
}

pub(super) fn stopped(stop: &AtomicBool) -> bool {
    stop.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_keep_off_the_writers_cpu_where_they_can() {
        let two = Cpus { generator: 0, tool: 1, all: 2 };
        assert_eq!([0, 1, 2, 3].map(|index| two.reader(index)), [1; 4]);
        let four = Cpus { generator: 0, tool: 1, all: 4 };
        assert_eq!([0, 1, 2, 3].map(|index| four.reader(index)), [1, 2, 3, 1]);
        assert_eq!(Cpus { generator: 0, tool: 0, all: 1 }.reader(3), 0);
    }
}
