//! The context of all parts of the bench: what to measure, where, and for how long.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::machine::{self, Neighbours};

/// Default number of rounds. Of 5 rounds, 2 outliers do not shift the median far; a full run allows
/// for 1.
const ROUNDS: u32 = 5;
const ROUNDS_FULL: u32 = 3;
/// Default length of each measurement, seconds.
const SECONDS: f64 = 2.0;
const SECONDS_FULL: f64 = 1.5;
/// Default length of each trial of the search for the rate without loss, seconds, and number of
/// searches.
const TRIAL: f64 = 2.0;
const SEARCHES: u32 = 1;

/// Longest wait of one round for a quiet machine.
pub(super) const PATIENCE_ROUND: Duration = Duration::from_secs(10);
/// Longest wait of all rounds together.
pub(super) const PATIENCE: Duration = Duration::from_secs(300);

/// Options of the bench.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The `weir` program.
    pub weir: PathBuf,
    /// Two rounds of one second. They check that the bench works, but give no usable figures.
    pub quick: bool,
    /// Whether to measure all frame sizes.
    pub full: bool,
    /// Rounds; 5 by default, 3 in a full run.
    pub rounds: Option<u32>,
    /// Seconds of each measurement; 2 by default, 1.5 in a full run.
    pub seconds: Option<f64>,
    /// Seconds of each trial of the search for the rate without loss; 2 by default.
    pub trial: Option<f64>,
    /// Number of searches for the rate without loss; 1 by default.
    pub searches: Option<u32>,
    /// Another build of the program, to compare with this one.
    pub before: Option<PathBuf>,
    /// A folder with a root file system that has Suricata 7.
    pub suricata: Option<PathBuf>,
    /// A folder with a kernel for virtual machines: `vmlinuz` and `lib/modules`.
    pub guest_kernel: Option<PathBuf>,
    /// A directory on a disk, to record into; by default that of the `weir` program.
    pub disk: Option<PathBuf>,
    /// Number of frames that are sent one by one to a sleeping consumer; 50 by default.
    pub singles: Option<u64>,
    /// Measures only this part.
    pub only: Option<Section>,
}

/// The name of a part of the bench. Created only by parsing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Section(pub(super) &'static str);

/// Assignment of work to CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cpus {
    /// CPU of the generator, of the kernel half of every capture on a veth, and of the writer in memory.
    pub(super) generator: usize,
    /// CPU of the capturing tool.
    pub(super) tool: usize,
    /// Number of CPUs.
    pub(super) all: usize,
}

impl Cpus {
    fn new() -> Cpus {
        let all = machine::cores();
        Cpus { generator: 0, tool: usize::from(all > 1), all }
    }

    /// Returns the CPU for one of several readers: any CPU except the writer's, if there is another.
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
    /// How long the rest of the run may still wait for quiet moments, in milliseconds.
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
            // A quick run gives no usable figures, so it does not wait for quiet moments.
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

    /// Waits for a quiet moment within the remaining time, and starts the measurement of disturbances of a round.
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
