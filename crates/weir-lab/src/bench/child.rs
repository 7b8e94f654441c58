//! A child process whose output is read as it comes. Each line has the time at which it was read.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant, SystemTime};

use serde::de::DeserializeOwned;

use crate::testbed::{End, Running};
use crate::{Error, Result};

/// Longest time to end after SIGINT. Tools first write what they have buffered.
const END_LIMIT: Duration = Duration::from_secs(20);

/// A running program in a namespace of the testbed. Dropping it kills the program and waits for it.
pub(super) struct Child {
    name: String,
    running: Running,
    lines: Lines,
    readers: Vec<JoinHandle<()>>,
}

/// Output of a child, by line, with the time at which each line ended.
type Lines = Arc<Mutex<Vec<Line>>>;

#[derive(Debug, Clone)]
pub(super) struct Line {
    pub(super) at: SystemTime,
    pub(super) text: String,
    /// Whether the line is from standard output, not from standard error.
    pub(super) data: bool,
}

/// Returns the command line `taskset -c CPU PROGRAM ARGS`. `taskset` is part of util-linux, so every Debian system has
/// it. It executes the program in its own process, so the process id is that of the program.
pub(super) fn pinned(cpu: usize, program: &str, args: &[String]) -> Command {
    let mut command = Command::new("taskset");
    command.arg("-c").arg(cpu.to_string()).arg(program).args(args);
    command.env("LC_ALL", "C");
    command
}

/// Runs a command of `weir lab` to its end and parses the JSON that it prints.
///
/// # Errors
/// [`Error::Measure`] if the command does not start, fails, or prints something else.
pub(super) fn lab<T: DeserializeOwned>(weir: &Path, command: &str, args: &[&str]) -> Result<T> {
    let failed = |reason: String| Error::Measure { what: format!("weir lab {command}"), reason };
    let output = Command::new(weir)
        .args(["lab", command, "--json"])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| failed(error.to_string()))?;
    if !output.status.success() {
        return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| failed(error.to_string()))
}

impl Child {
    /// Starts a command in the namespace of `end`.
    pub(super) fn start(name: &str, end: &End, mut command: Command) -> Result<Child> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(Child::of(name, end.spawn(command)?))
    }

    /// Starts a command in the namespace that the bench runs in.
    pub(super) fn start_here(name: &str, mut command: Command) -> Result<Child> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let failed = |source| Error::Spawn { command: name.to_owned(), source };
        Ok(Child::of(name, Running(command.spawn().map_err(failed)?)))
    }

    fn of(name: &str, mut running: Running) -> Child {
        let lines = Lines::default();
        let mut readers = Vec::new();
        if let Some(pipe) = running.stdout.take() {
            readers.push(read(pipe, Arc::clone(&lines), true));
        }
        if let Some(pipe) = running.stderr.take() {
            readers.push(read(pipe, Arc::clone(&lines), false));
        }
        Child { name: name.to_owned(), running, lines, readers }
    }

    /// Waits for a line that reports that the child is ready.
    ///
    /// # Errors
    /// [`Error::Measure`] with the child's last message if the child ends first, or prints no such line within `limit`.
    pub(super) fn wait_for_line(
        &mut self,
        limit: Duration,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<()> {
        let start = Instant::now();
        loop {
            if lock(&self.lines).iter().any(|line| wanted(&line.text)) {
                return Ok(());
            }
            if self.has_ended() {
                return Err(self.failed("ended at once"));
            }
            if start.elapsed() > limit {
                return Err(self.failed(&format!("was not ready within {} s", limit.as_secs())));
            }
            sleep(Duration::from_millis(5));
        }
    }

    pub(super) fn has_ended(&mut self) -> bool {
        self.running.wait_for(Duration::ZERO)
    }

    pub(super) fn id(&self) -> u32 {
        self.running.id()
    }

    pub(super) fn signal(&mut self, signal: i32) {
        self.running.signal(signal);
    }

    /// Returns the lines so far.
    pub(super) fn lines(&self) -> Vec<Line> {
        lock(&self.lines).clone()
    }

    /// Sends SIGINT to the child, as Ctrl-C does, and returns all lines that it printed.
    ///
    /// # Errors
    /// [`Error::Measure`] if the child does not end in time.
    pub(super) fn interrupt(mut self) -> Result<Vec<Line>> {
        self.running.signal(libc::SIGINT);
        self.wait(END_LIMIT)
    }

    /// Waits until the child ends by itself, and returns all lines that it printed.
    ///
    /// # Errors
    /// [`Error::Measure`] if the child does not end in time.
    pub(super) fn wait(mut self, limit: Duration) -> Result<Vec<Line>> {
        if !self.running.wait_for(limit) {
            return Err(self.failed(&format!("did not end within {} s; killed", limit.as_secs())));
        }
        for reader in self.readers.drain(..) {
            _ = reader.join();
        }
        Ok(self.lines())
    }

    /// Creates an error with the child's last message.
    fn failed(&self, what: &str) -> Error {
        let words = last_words(&lock(&self.lines));
        Error::Measure { what: self.name.clone(), reason: format!("{what}: {words}") }
    }
}

/// Returns the last message. A program that does not know a flag prints the error before its usage text.
fn last_words(lines: &[Line]) -> String {
    let refusal = lines.iter().find(|line| line.text.starts_with("error: "));
    let last = || lines.iter().rev().find(|line| !line.text.trim().is_empty());
    refusal.or_else(last).map_or("it said nothing", |line| line.text.trim()).to_owned()
}

/// Returns the CPU time of all threads of a process in nanoseconds: the sum of the first numbers of each `schedstat`.
pub(super) fn cpu_ns(id: u32) -> Option<u64> {
    let threads = fs::read_dir(format!("/proc/{id}/task")).ok()?;
    let mut total = 0;
    for thread in threads.flatten() {
        // A thread may end while the others are read.
        let Ok(text) = fs::read_to_string(thread.path().join("schedstat")) else { continue };
        total += text.split_whitespace().next()?.parse::<u64>().ok()?;
    }
    Some(total)
}

/// Collects the lines of `pipe`. A line ends with a newline or, in progress displays, with a
/// carriage return.
fn read(mut pipe: impl Read + Send + 'static, lines: Lines, data: bool) -> JoinHandle<()> {
    thread::spawn(move || {
        let (mut part, mut buffer) = (Vec::new(), [0u8; 4096]);
        let keep = |part: &mut Vec<u8>, at| {
            let text = String::from_utf8_lossy(part).into_owned();
            lock(&lines).push(Line { at, text, data });
            part.clear();
        };
        while let Ok(count @ 1..) = pipe.read(&mut buffer) {
            let at = SystemTime::now();
            for &byte in &buffer[..count] {
                if byte == b'\n' || byte == b'\r' {
                    keep(&mut part, at);
                } else {
                    part.push(byte);
                }
            }
        }
        if !part.is_empty() {
            keep(&mut part, SystemTime::now());
        }
    })
}

/// Locks the lines. Each line is pushed whole, so they are valid even after another thread has panicked.
fn lock(lines: &Lines) -> MutexGuard<'_, Vec<Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Cursor;

    #[test]
    fn a_refusal_is_what_is_told() {
        let said = |text: &str| last_words(&crate::bench::counted::tests::lines(text));
        let clap = "error: unexpected argument '--export' found\n\nUsage: weir flows [OPTIONS] <SOURCE>...\n\n\
            For more information, try '--help'.\n";
        assert_eq!(said(clap), "error: unexpected argument '--export' found");
        assert_eq!(said("listening\nno such device\n\n"), "no such device");
        assert_eq!(said("\n"), "it said nothing");
    }

    #[test]
    fn progress_and_cut_off_lines_are_lines_too() {
        let lines = Lines::default();
        let text = Cursor::new(b"ready\nPackets: 1\rPackets: 2\rend".to_vec());
        read(text, Arc::clone(&lines), true).join().unwrap();
        let texts: Vec<String> = lock(&lines).iter().map(|line| line.text.clone()).collect();
        assert_eq!(texts, ["ready", "Packets: 1", "Packets: 2", "end"]);
    }
}
