//! Describes the machine and the time of a result.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// The machine, the program and the time.
#[derive(Debug, Clone, Serialize)]
pub struct Machine {
    /// The CPU's model name.
    pub cpu: String,
    /// CPUs that this process may use.
    pub cores: usize,
    /// Total memory in MiB.
    pub memory_mib: u64,
    /// Kernel release.
    pub kernel: String,
    /// Version of Weir.
    pub weir: &'static str,
    /// Commit from which the program was built, with a mark if it may contain changes; `None` if the program does not
    /// say.
    pub commit: Option<String>,
    /// When the run began, UTC.
    pub date: String,
    /// Versions of the other programs.
    pub tools: Vec<String>,
    /// `/proc/loadavg` before the run.
    pub load_before: String,
    /// `/proc/loadavg` after the run, load of the run itself included.
    pub load_after: String,
    /// Share of all CPU time that the hypervisor gave to others during the run, percent.
    pub steal_percent: f64,
    #[serde(skip)]
    before: CpuTime,
}

/// Ticks of `/proc/stat` since boot.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct CpuTime {
    all: u64,
    idle: u64,
    steal: u64,
}

impl Machine {
    /// Reads the data of the machine and of the program `weir` before the run.
    #[must_use]
    pub fn look(weir: &Path) -> Machine {
        Machine {
            cpu: field("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".to_owned()),
            cores: cores(),
            memory_mib: field("/proc/meminfo", "MemTotal").and_then(kib).unwrap_or(0) >> 10,
            kernel: line("/proc/sys/kernel/osrelease"),
            weir: env!("CARGO_PKG_VERSION"),
            commit: said_by(Command::new(weir).arg("--version")).and_then(|said| commit_in(&said)),
            date: utc(SystemTime::now()),
            tools: Vec::new(),
            load_before: line("/proc/loadavg"),
            load_after: String::new(),
            steal_percent: 0.0,
            before: cpu_time(),
        }
    }

    /// Adds the first line of `program --version`, if it is installed.
    pub fn add_tool(&mut self, program: &str) {
        let args = version_args(program);
        let Ok(output) = Command::new(program).args(args).output() else { return };
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        // Some programs first complain about being run as root. iperf3 prints its name as iperf.
        let name = program.trim_end_matches(char::is_numeric).trim_end_matches("-testpmd");
        let own = |line: &&str| line.to_lowercase().contains(name) && line.contains('.');
        if let Some(line) = text.lines().find(own) {
            // softflowd's line continues with its options.
            let version = line.trim().split(". ").next().unwrap_or_default();
            self.tools.push(version.to_owned());
        }
    }

    /// Reads load and steal time after the run.
    pub fn finish(&mut self) {
        self.load_after = line("/proc/loadavg");
        let now = cpu_time();
        let all = now.all.saturating_sub(self.before.all).max(1);
        let steal = now.steal.saturating_sub(self.before.steal);
        self.steal_percent = 100.0 * steal as f64 / all as f64;
    }

    /// Formats the data as a few lines of text.
    #[must_use]
    pub fn text(&self) -> String {
        let commit = self.commit.as_deref().unwrap_or("unknown");
        let mut text = format!(
            "machine  {}, {} cores, {} MiB, Linux {}\nweir     {}, commit {commit}, {}\n",
            self.cpu, self.cores, self.memory_mib, self.kernel, self.weir, self.date
        );
        if !self.tools.is_empty() {
            text += &format!("peers    {}\n", self.tools.join("; "));
        }
        text + &format!(
            "load     before {}, after {}; stolen by the hypervisor {:.1} %\n",
            first_three(&self.load_before),
            first_three(&self.load_after),
            self.steal_percent
        )
    }
}

/// Returns the arguments that make a program print its version and end. dpdk-testpmd prints it only when it starts, so
/// it is started without devices to print its help.
fn version_args(program: &str) -> &'static [&'static str] {
    match program {
        "dpdk-testpmd" => {
            &["-v", "--no-huge", "--no-pci", "--no-shconf", "-m", "64", "--", "--help"]
        }
        "softflowd" => &["-h"],
        _ => &["--version"],
    }
}

/// Returns the number of CPUs that this process may use.
#[must_use]
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

fn first_three(load: &str) -> String {
    load.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

fn line(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the value of the first line `NAME: VALUE` in a file.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

fn kib(text: String) -> Option<u64> {
    text.split_whitespace().next()?.parse().ok()
}

/// A start point for measuring the idle time of all CPUs.
#[derive(Debug, Clone, Copy)]
pub(super) struct IdleTime(CpuTime);

impl IdleTime {
    /// Starts the measurement.
    pub(super) fn look() -> IdleTime {
        IdleTime(cpu_time())
    }

    /// Returns the share of idle time since the start, in percent.
    pub(super) fn percent(self) -> f64 {
        cpu_time().idle_percent_since(self.0)
    }
}

impl CpuTime {
    fn idle_percent_since(self, before: CpuTime) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100.0 * self.idle.saturating_sub(before.idle) as f64 / all as f64
    }
}

fn cpu_time() -> CpuTime {
    parse_cpu_time(&fs::read_to_string("/proc/stat").unwrap_or_default())
}

/// Parses the CPU times of proc(5): user nice system idle iowait irq softirq steal guest guest_nice. The last two are
/// included in the first two.
fn parse_cpu_time(stat: &str) -> CpuTime {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
    let tick = |index| ticks.get(index).copied().unwrap_or(0);
    CpuTime { all: ticks.iter().sum(), idle: tick(3) + tick(4), steal: tick(7) }
}

/// Activity of other programs during a measurement.
#[derive(Debug, Clone, Copy)]
pub(super) struct Neighbours {
    begin: Instant,
    all: u64,
    own: u64,
    waited_us: u64,
}

/// How much other programs disturbed a round.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Disturbance {
    /// User time of all other programs, percent of one CPU. System time is left out: the kernel's
    /// work for this process may be charged to any process.
    pub others_percent: f64,
    /// Share of the time in which any program, also one of the bench, waited for a CPU, percent.
    pub waited_percent: f64,
}

impl Neighbours {
    /// Starts the measurement.
    pub(super) fn look() -> Neighbours {
        let (all, own) = user_ticks();
        Neighbours { begin: Instant::now(), all, own, waited_us: waited_us() }
    }

    /// Ends the measurement. A child's time counts as own time once the child was waited for.
    pub(super) fn done(self) -> Disturbance {
        /// `USER_HZ`, which is 100 on all present Linux architectures.
        const TICKS_PER_SECOND: f64 = 100.0;
        let (all, own) = user_ticks();
        let others = all.saturating_sub(self.all).saturating_sub(own.saturating_sub(self.own));
        let waited_us = waited_us().saturating_sub(self.waited_us) as f64;
        let seconds = self.begin.elapsed().as_secs_f64().max(1e-9);
        Disturbance {
            others_percent: 100.0 * others as f64 / TICKS_PER_SECOND / seconds,
            waited_percent: 100.0 * waited_us / 1e6 / seconds,
        }
    }
}

/// Waits until the CPUs are at most 10 % busy, at most for `limit`. Returns the time that it waited.
pub(super) fn wait_for_calm(limit: Duration) -> Duration {
    const LOOK: Duration = Duration::from_millis(200);
    const BUSY_MAX: f64 = 0.1;
    let begin = Instant::now();
    let mut before = cpu_time();
    while begin.elapsed() < limit {
        sleep(LOOK);
        let now = cpu_time();
        let all = now.all.saturating_sub(before.all).max(1);
        let idle = now.idle.saturating_sub(before.idle);
        if 1.0 - idle as f64 / all as f64 <= BUSY_MAX {
            break;
        }
        before = now;
    }
    begin.elapsed()
}

/// Returns the microseconds since boot in which some program waited for a CPU; 0 if the kernel does not count them.
fn waited_us() -> u64 {
    parse_waited(&fs::read_to_string("/proc/pressure/cpu").unwrap_or_default()).unwrap_or(0)
}

/// Parses the total of `some avg10=0.00 avg60=0.00 avg300=0.00 total=123`.
fn parse_waited(pressure: &str) -> Option<u64> {
    let line = pressure.lines().find(|line| line.starts_with("some "))?;
    line.rsplit_once("total=")?.1.trim().parse().ok()
}

/// Returns user time in ticks: of the machine, and of this process with the children that it has waited for.
fn user_ticks() -> (u64, u64) {
    let number = |field: Option<&str>| field.and_then(|field| field.parse().ok()).unwrap_or(0);
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let all: u64 = stat.split_whitespace().skip(1).take(2).map(|field| number(Some(field))).sum();
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // proc(5): field 3 follows the name in brackets; utime is field 14, cutime field 16.
    let after = stat.rfind(')').map_or("", |end| &stat[end + 1..]);
    let mut fields = after.split_whitespace().skip(11);
    let (own, _system, children) = (fields.next(), fields.next(), fields.next());
    (all, number(own) + number(children))
}

/// Returns the commit in the output of `weir --version` (`weir 0.1.0 (39090c6a1b2c)`). Adds a mark if the program may
/// contain changes: the source tree is at that commit and its compiled files have changed, or git does not tell.
fn commit_in(said: &str) -> Option<String> {
    let commit = said.split_once(" (")?.1.strip_suffix(')')?;
    let git = |args: &[&str]| {
        let tree = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        said_by(Command::new("git").arg("-C").arg(tree).args(args))
    };
    let is_elsewhere = git(&["rev-parse", "HEAD"]).is_some_and(|head| !head.starts_with(commit));
    let compiled = ["Cargo.toml", "Cargo.lock", "bpf", "crates"];
    let status = ["status", "--porcelain", "--untracked-files=no", "--"];
    let mark = match git(&[&status[..], &compiled].concat()) {
        _ if is_elsewhere => "",
        Some(all) if all.is_empty() => "",
        Some(_) => " with changes",
        None => ", changes unknown",
    };
    Some(format!("{commit}{mark}"))
}

/// Returns what a program that succeeds writes to its standard output.
fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Formats a time as UTC: `2026-01-31T23:59:59Z`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (day, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = civil(day);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts a day since 1970 to year, month and day. Source: Hinnant, "chrono-compatible low-level date algorithms",
/// `civil_from_days`, for days that are not negative.
fn civil(day: u64) -> (u64, u64, u64) {
    let day = day + 719_468;
    let era = day / 146_097;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let of_month = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + u64::from(month <= 2), month, of_month)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn dates_are_right_at_the_edges() {
        let at = |seconds| utc(UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_868_799), "2000-02-29T23:59:59Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
        assert_eq!(at(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn stolen_time_is_the_eighth_field_and_guest_time_counts_once() {
        let stat = "cpu  10 20 30 40 50 60 70 80 1000 1000\ncpu0 1 2 3\n";
        assert_eq!(parse_cpu_time(stat), CpuTime { all: 360, idle: 90, steal: 80 });
        assert_eq!(parse_cpu_time(""), CpuTime::default());
    }

    #[test]
    fn idle_time_is_a_share_of_all_cpus_time() {
        let before = CpuTime { all: 1000, idle: 400, steal: 0 };
        let after = CpuTime { all: 1400, idle: 500, steal: 0 };
        assert_eq!(after.idle_percent_since(before), 25.0);
        assert_eq!(before.idle_percent_since(before), 0.0);
    }

    #[test]
    fn waiting_is_read() {
        let text = "some avg10=1.00 avg60=2.00 avg300=3.00 total=3714\nfull avg10=0.00 total=9\n";
        assert_eq!(parse_waited(text), Some(3714));
        assert_eq!(parse_waited(""), None);
    }

    #[test]
    fn patience_has_an_end() {
        assert_eq!(wait_for_calm(Duration::ZERO).as_secs(), 0);
    }

    #[test]
    fn own_work_is_seen() {
        let (_, before) = user_ticks();
        let begin = Instant::now();
        while user_ticks().1 == before {
            assert!(begin.elapsed().as_secs() < 20, "{before} ticks, whatever this thread does");
            (0..1_000_000).for_each(|number| _ = std::hint::black_box(number));
        }
        assert!(Neighbours::look().done().others_percent >= 0.0);
    }

    #[test]
    fn this_machine_has_a_kernel_and_a_cpu() {
        let mut machine = Machine::look(Path::new("/nowhere/weir"));
        machine.finish();
        assert!(machine.cores > 0 && !machine.kernel.is_empty() && !machine.load_after.is_empty());
        assert!(machine.text().contains(&machine.kernel));
    }

    #[test]
    fn the_commit_is_that_of_the_program_and_not_of_the_tree() {
        let commit = commit_in("weir 0.1.0 (0123456789ab)").unwrap();
        assert!(commit.starts_with("0123456789ab"), "{commit}");
        assert_eq!(commit_in("weir 0.1.0"), None);
        assert_eq!(said_by(Command::new("/nowhere/weir").arg("--version")), None);
    }
}
