//! Helpers of the end-to-end tests: they run the real binary on real links, and check its output with other tools.
//!
//! Every wait has a time limit, and every test ends what it started: a [`Run`] kills its program when dropped, a
//! `Testbed` removes its namespaces.
#![allow(dead_code, reason = "each test binary uses its part")]

pub mod bpf;
pub mod daemon;
pub mod docker;
pub mod flows;
pub mod frames;
pub mod libpcap;
pub mod manual;
pub mod metrics;
pub mod tools;

use std::fmt::Display;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::{End, Running, in_netns, require_root, require_tool, volume};

/// Time limit of every wait. It is long because a debug build on a busy machine is slow.
pub const LIMIT: Duration = Duration::from_secs(60);

/// Every way to capture a live interface, as flags of `weir capture`.
pub const HOOKS: [&str; 7] = [
    "--engine bpf --hook tc",
    "--engine bpf --hook xdp",
    "--engine bpf --consume",
    "--engine af_packet",
    "--engine af_xdp --consume",
    "--engine af_xdp --consume --copiers 2",
    "--engine pcap",
];

/// The same arguments, and with several copiers a long `--merge-slack`: they share a queue, and on a busy machine one
/// of them may run long after the other.
pub fn patient(hook: &str) -> String {
    let patience = if hook.contains("--copiers") { " --merge-slack 5s" } else { "" };
    format!("{hook}{patience}")
}

/// Returns a lock if the test can run here; `None` if it has to be skipped. No two tests of a program run at the same
/// time, because they send at full speed and measure time.
pub fn ready(test: &'static str, tools: &[&str]) -> Option<Alone> {
    static ONE: Mutex<()> = Mutex::new(());
    let can = require_root(test) && tools.iter().all(|tool| require_tool(test, tool));
    can.then(|| {
        let lock = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        Alone { test, start: Instant::now(), _lock: lock }
    })
}

/// The lock of a test that no other test of this program runs beside. Prints the test's duration when dropped.
pub struct Alone {
    test: &'static str,
    start: Instant,
    _lock: MutexGuard<'static, ()>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        println!("{}: {:.1} s", self.test, self.start.elapsed().as_secs_f64());
    }
}

/// Whether tests run for longer: `WEIR_SOAK=1`.
pub fn soaks() -> bool {
    std::env::var_os("WEIR_SOAK").is_some_and(|value| value == "1")
}

/// A generator's `--duration` for tests that find more with more traffic: `short` seconds, a fifth of that in a
/// repeated run ([`volume`]), or 30 s with `WEIR_SOAK=1`.
pub fn seconds(short: u64) -> String {
    format!("{}ms", if soaks() { 30_000 } else { volume(1000 * short) })
}

/// A veth pair whose receiving end accepts the frames of the in-kernel generator at every hook.
pub fn bed() -> Testbed {
    Testbed::builder().gro(true).build().expect("a testbed")
}

/// A started program; killed when dropped.
pub struct Run {
    child: Running,
    /// The command line, for messages.
    what: String,
    dir: TempDir,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Ended {
    pub code: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub what: String,
}

/// `weir` with these arguments, separated by spaces.
pub fn weir(args: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
    command.args(args.split_whitespace());
    command
}

/// A program in `PATH` with arguments, separated by spaces.
pub fn program(line: &str) -> Command {
    let mut words = line.split_whitespace();
    let mut command = Command::new(words.next().expect("a program"));
    command.args(words);
    command
}

impl Run {
    /// Starts a command in the end's namespace.
    pub fn start(end: &End, command: Command) -> Run {
        Run::begin(command, |command| end.spawn(command))
    }

    /// Starts a command that needs no link, in the namespace of the test.
    pub fn here(command: Command) -> Run {
        Run::begin(command, |mut command| command.spawn().map(Running::from))
    }

    fn begin<E: Display>(
        mut command: Command,
        spawn: impl FnOnce(Command) -> Result<Running, E>,
    ) -> Run {
        let what = format!("{command:?}");
        let dir = TempDir::new().expect("a folder for the output");
        let file = |name: &str| File::create(dir.path().join(name)).expect("an output file");
        command.env("LC_ALL", "C").env("TZ", "UTC");
        command.stdin(Stdio::null()).stdout(file("stdout")).stderr(file("stderr"));
        let child = spawn(command).unwrap_or_else(|error| panic!("{what}: {error}"));
        Run { child, what, dir }
    }

    /// Starts `weir capture` of the end's interface, in its namespace. `args` may name further interfaces. Returns once
    /// it captures.
    pub fn capture(end: &End, args: &str) -> Run {
        Run::capture_by(end, weir(&format!("capture {} {args}", end.iface)))
    }

    /// Starts a command that runs `weir capture`. Returns once that captures.
    pub fn capture_by(end: &End, command: Command) -> Run {
        let mut run = Run::start(end, command);
        // Once everything is attached, Weir prints which engine it uses.
        run.wait_for("that it captures", |run| {
            run.stderr().lines().any(|line| line.starts_with("weir: ") && line.contains(": "))
        });
        run
    }

    /// Waits until `is_so`, and fails if the program ends first.
    pub fn wait_for(&mut self, what: &str, is_so: impl Fn(&Run) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            let ended = self.has_ended();
            assert!(
                is_so(self) || (!ended && start.elapsed() < LIMIT),
                "waited for {what} ({}): {}\n{}",
                if ended { "it ended" } else { "in vain" },
                self.what,
                self.stderr()
            );
            sleep(Duration::from_millis(2));
        }
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&fs::read(self.dir.path().join("stderr")).expect("stderr")).into()
    }

    pub fn stdout(&self) -> Vec<u8> {
        fs::read(self.dir.path().join("stdout")).expect("stdout")
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&mut self, signal: i32) {
        self.child.signal(signal);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.wait_for(Duration::ZERO)
    }

    /// Sends SIGINT, and waits for the end of the program.
    pub fn stop(mut self) -> Ended {
        self.signal(libc::SIGINT);
        self.end()
    }

    /// Waits for the program to end by itself.
    pub fn end(self) -> Ended {
        self.end_within(LIMIT)
    }

    /// As [`Run::end`], with another time limit.
    pub fn end_within(mut self, limit: Duration) -> Ended {
        assert!(
            self.child.wait_for(limit),
            "still running after {limit:?}: {}\n{}",
            self.what,
            self.stderr()
        );
        let code = self.child.wait().expect("an exit status").code();
        let (stdout, stderr) = (self.stdout(), self.stderr());
        Ended { code, stdout, stderr, what: self.what }
    }
}

impl Ended {
    /// The JSON object at the end of standard output.
    pub fn json(&self) -> Value {
        parse_last_line(&self.text()).unwrap_or_else(|| panic!("no JSON at the end: {self:#?}"))
    }

    /// The JSON object at the end of standard error. The report is written there if standard output carries frames.
    pub fn json_of_stderr(&self) -> Value {
        parse_last_line(&self.stderr).unwrap_or_else(|| panic!("no JSON at the end: {self:#?}"))
    }

    /// Standard output as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    /// Passes if the exit status was `code`.
    #[track_caller]
    pub fn expect(self, code: i32) -> Ended {
        assert_eq!(
            self.code,
            Some(code),
            "{}\n{}{}",
            self.what,
            String::from_utf8_lossy(&self.stdout[..self.stdout.len().min(2000)]),
            self.stderr
        );
        self
    }

    /// Passes if the program could not run (exit 2) and its last message contains all of `words`.
    #[track_caller]
    pub fn refused(self, words: &[&str]) -> Ended {
        let ended = self.expect(2);
        let last = ended.stderr.lines().rev().find(|line| line.starts_with("weir: "));
        let last = last.unwrap_or_else(|| panic!("it gives no reason: {ended:#?}"));
        for word in words {
            assert!(last.contains(word), "'{word}' is not in: {last}");
        }
        assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
        ended
    }
}

fn parse_last_line(text: &str) -> Option<Value> {
    serde_json::from_str(text.lines().last()?).ok()
}

/// A number of a JSON report.
#[track_caller]
pub fn number(json: &Value, name: &str) -> u64 {
    json[name].as_u64().unwrap_or_else(|| panic!("no number '{name}' in {json}"))
}

/// Drops after the ring's writer: at its readers, the output, and the network interface that is fed.
const BEHIND_THE_RING: [&str; 3] = ["store", "ring", "netdev"];

/// The sum of all drops of a report, except those after the ring's writer.
pub fn dropped(json: &Value) -> u64 {
    drops_where(json, |name| !BEHIND_THE_RING.contains(&name))
}

fn drops_where(json: &Value, is: impl Fn(&str) -> bool) -> u64 {
    let drops = json["drops"].as_object().expect("drops by name");
    drops
        .iter()
        .filter(|(name, _)| is(name))
        .map(|(_, count)| count.as_u64().expect("a count"))
        .sum()
}

/// Passes if the ledger accounts for every frame, before and after the ring.
#[track_caller]
pub fn closes(json: &Value) {
    let n = |name| number(json, name);
    assert_eq!(
        n("offered"),
        n("filtered") + n("blocked") + n("sampled") + n("captured") + dropped(json),
        "{json}"
    );
    assert_eq!(json["unexplained"].as_i64(), Some(0), "{json}");
    let behind = drops_where(json, |name| BEHIND_THE_RING.contains(&name));
    assert_eq!(
        n("captured"),
        n("delivered") + n("lapped") + n("untriggered") + n("after_limit") + behind,
        "{json}"
    );
}

/// Sends generated frames out of this end's interface, and waits until all are sent; returns the generator's report.
pub fn generate(end: &End, args: &str) -> Value {
    let run = Run::start(end, weir(&format!("gen {} --json {args}", end.iface)));
    run.end().expect(0).json()
}

/// Waits until the kernel has received the sent frames: 150 ms, multiplied by `WEIR_TEST_SLOWNESS`, which is set on
/// emulated machines.
pub fn settle() {
    let slowness = std::env::var("WEIR_TEST_SLOWNESS").ok().and_then(|text| text.parse().ok());
    sleep(Duration::from_millis(150) * slowness.unwrap_or(1));
}

/// Runs a line of shell, such as an `ip` or `tc` command, in the end's namespace; returns its output.
#[track_caller]
pub fn sh(end: &End, line: &str) -> String {
    let mut shell = Command::new("sh");
    shell.args(["-c", line]);
    Run::start(end, shell).end().expect(0).text()
}

/// CPU time that all threads of a process have used so far.
pub fn cpu_time(pid: u32) -> Duration {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("a running process");
    let nanoseconds = tasks.flatten().filter_map(|task| {
        let text = fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// `CLOCK_REALTIME` in nanoseconds.
pub fn now_ns() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("after 1970").as_nanos() as u64
}

/// A folder for a test's files.
pub fn folder() -> TempDir {
    TempDir::new().expect("a folder")
}

/// The contents of a file.
pub fn slurp(path: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    file.read_to_end(&mut bytes).expect("readable");
    bytes
}

/// How many users the end's interface is promiscuous for (`IFLA_PROMISCUITY`).
pub fn promiscuity(end: &End) -> u64 {
    let text = sh(end, &format!("ip -d -j link show {}", end.iface));
    let json: Value = serde_json::from_str(&text).expect("ip prints JSON");
    json[0]["promiscuity"].as_u64().expect("promiscuity")
}

/// Runs `work` in the end's network namespace.
pub fn within<T: Send>(end: &End, work: impl FnOnce() -> T + Send) -> T {
    in_netns(&end.netns, work).expect("the namespace")
}

/// A path inside a folder, also as text for a command line.
pub fn path(dir: &TempDir, name: &str) -> (PathBuf, String) {
    let path = dir.path().join(name);
    let text = path.to_str().expect("a plain path").to_owned();
    (path, text)
}
