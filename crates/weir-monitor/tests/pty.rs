//! The live table in a pseudo-terminal: whatever happens, the terminal is restored to its state before the run.
//!
//! Each test runs this test binary again as a child, with the pseudo-terminal as its input and output. The child runs
//! only the test `child`, which shows the table.

#[allow(dead_code)]
#[path = "../examples/terminal.rs"]
mod example;

use std::fs::File;
use std::io::{Read, Write, stdin};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, ExitStatus, Stdio, exit};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, open};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use weir_monitor::{Latest, View, terminal};

/// The environment variable that holds the child's task.
const TASK: &str = "WEIR_MONITOR_PTY_TEST";

const ENTER: &str = "\x1b[?1049h";
const LEAVE: &str = "\x1b[?1049l";

/// The exit status of a child whose terminal has hung up.
const HUNG_UP: i32 = 42;

/// Much longer than any step takes, on any machine.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn child() {
    let Ok(task) = std::env::var(TASK) else { return };
    let latest = Latest::default();
    latest.publish(View { number: 1, ..View::default() });
    let result = match task.as_str() {
        "example" => example::main(),
        // The exit status is the result, because nobody can read the output any more.
        "hang up" => exit(terminal::run(&latest, || ()).map_or(HUNG_UP, |()| 0)),
        "panic" => terminal::run(&latest, || panic!("planted in the caller")),
        "panic elsewhere" => {
            let other = thread::spawn(|| {
                while is_cooked(stdin()) {
                    thread::sleep(Duration::from_millis(10));
                }
                panic!("planted in a thread")
            });
            let result = terminal::run(&latest, || println!("stop was called"));
            assert!(other.join().is_err());
            result
        }
        "over" => {
            let after = latest.clone();
            let other = thread::spawn(move || {
                thread::sleep(Duration::from_millis(300));
                after.end();
            });
            let result = terminal::run(&latest, || println!("stop was called"));
            other.join().expect("it ends");
            result
        }
        "news" => {
            let after = latest.clone();
            let other = thread::spawn(move || {
                let news = vec!["eth1-has-gone".to_owned()];
                after.publish(View { number: 2, news, ..View::default() });
            });
            let result = terminal::run(&latest, || ());
            other.join().expect("it ends");
            result
        }
        "no keyboard" => {
            println!("possible: {}", terminal::is_possible());
            terminal::run(&latest, || println!("stop was called"))
        }
        task => panic!("no task: {task}"),
    };
    match result {
        Ok(()) => println!("run ended"),
        Err(error) => println!("run failed: {error}"),
    }
}

/// Where the keys of a child come from.
#[derive(PartialEq)]
enum Keys {
    /// Its standard input is the pseudo-terminal.
    Input,
    /// Its standard input is no terminal, and it has no controlling terminal.
    Nowhere,
    /// Its standard input is no terminal, and the pseudo-terminal is its controlling terminal.
    Session,
}

/// A child in a pseudo-terminal.
struct Pty {
    child: Child,
    controller: Option<File>,
    /// Reads the child's output until it is told to stop, or the child's end is closed.
    reader: Option<JoinHandle<()>>,
    is_over: Arc<AtomicBool>,
    /// The child's end of the pseudo-terminal. Kept open, because its modes are lost when its last descriptor is
    /// closed.
    terminal: OwnedFd,
    output: Arc<Mutex<Vec<u8>>>,
}

impl Pty {
    fn start(task: &str) -> Pty {
        Pty::start_with(task, Keys::Input)
    }

    fn start_with(task: &str, keys: Keys) -> Pty {
        // Without CLOEXEC the child would hold the controller, too, and never see a hang-up.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let controller = openpt(flags).expect("a pty");
        grantpt(&controller).expect("grantpt");
        unlockpt(&controller).expect("unlockpt");
        let name = ptsname(&controller, Vec::new()).expect("its name");
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
        let terminal = open(name.as_c_str(), flags, Mode::empty()).expect("its other end");
        let size = Winsize { ws_row: 30, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&terminal, size).expect("a size");
        assert!(is_cooked(&terminal));
        let end = || terminal.try_clone().expect("a descriptor");
        let child = started_by(&keys)
            .arg(std::env::current_exe().expect("this binary"))
            .args(["--exact", "child", "--nocapture", "--test-threads=1"])
            .envs([(TASK, task), ("TERM", "xterm"), ("LANG", "C.UTF-8"), ("RUST_BACKTRACE", "0")])
            .env_remove("NO_COLOR")
            .env_remove("LC_ALL")
            .stdin(if keys == Keys::Nowhere { Stdio::null() } else { end().into() })
            .stdout(end())
            .stderr(end())
            .spawn()
            .expect("the child starts");
        let controller = File::from(controller);
        let (output, is_over) = (Arc::default(), Arc::default());
        let from = controller.try_clone().expect("a descriptor");
        let (to, until) = (Arc::clone(&output), Arc::clone(&is_over));
        let reader = Some(thread::spawn(move || read(from, &to, &until)));
        Pty { child, controller: Some(controller), reader, is_over, terminal, output }
    }

    fn hang_up(&mut self) {
        self.is_over.store(true, SeqCst);
        let reader = self.reader.take().expect("once");
        reader.join().expect("it does not panic");
        self.controller = None;
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no panic")).into_owned()
    }

    /// The end of the text, for messages.
    fn tail(&self) -> String {
        let text: Vec<char> = self.text().chars().collect();
        text[text.len().saturating_sub(300)..].iter().collect()
    }

    /// Waits until the output contains `what`: a single word, because unchanged cells between words may be skipped.
    fn wait_for(&self, what: &str) {
        let start = Instant::now();
        while !self.text().contains(what) {
            assert!(start.elapsed() < PATIENCE, "no {what:?} in {:?}", self.tail());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn press(&mut self, keys: &[u8]) {
        self.controller
            .as_mut()
            .expect("not hung up")
            .write_all(keys)
            .expect("the terminal takes keys");
    }

    fn is_cooked(&self) -> bool {
        is_cooked(&self.terminal)
    }

    fn end(&mut self) -> ExitStatus {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child") {
                return status;
            }
            assert!(start.elapsed() < PATIENCE, "it runs on: {:?}", self.tail());
            thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Pty {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.is_over.store(true, SeqCst);
    }
}

/// A command that runs the command in its arguments, with this source of keys.
fn started_by(keys: &Keys) -> Command {
    let words: &[&str] = match keys {
        Keys::Input => &["env"],
        Keys::Nowhere => &["setsid", "--wait"],
        Keys::Session => {
            &["setsid", "--ctty", "--wait", "sh", "-c", r#"exec "$@" </dev/null"#, "sh"]
        }
    };
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    command
}

fn read(mut from: File, to: &Mutex<Vec<u8>>, is_over: &AtomicBool) {
    let mut buffer = [0; 4096];
    let tick = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };
    while !is_over.load(SeqCst) {
        let mut fds = [PollFd::new(&from, PollFlags::IN)];
        if poll(&mut fds, Some(&tick)).expect("poll") == 0 {
            continue;
        }
        let Ok(count @ 1..) = from.read(&mut buffer) else { return };
        to.lock().expect("no panic").extend_from_slice(&buffer[..count]);
    }
}

/// Whether a terminal echoes input and passes it on in whole lines (cooked mode).
fn is_cooked(terminal: impl AsFd) -> bool {
    let modes = tcgetattr(terminal).expect("modes").local_modes;
    modes.contains(LocalModes::ECHO | LocalModes::ICANON)
}

/// The text after the alternate screen was left, which must have happened once.
fn after_the_screen(text: &str) -> &str {
    assert_eq!(text.matches(ENTER).count(), 1, "{text:?}");
    let parts: Vec<&str> = text.split(LEAVE).collect();
    assert_eq!(parts.len(), 2, "{text:?}");
    assert!(parts[1].contains("\x1b[?25h"), "the cursor is shown: {text:?}");
    parts[1]
}

#[test]
fn q_ends_the_run_and_restores_the_terminal() {
    for key in [b"q", b"\x03"] {
        let mut pty = Pty::start("example");
        pty.wait_for("slower");
        assert!(!pty.is_cooked());
        // Ctrl-L redraws the whole screen, and not only the cells that differ.
        pty.press(b"4\x0c");
        pty.wait_for("offered");
        pty.press(key);
        assert!(pty.end().success());
        pty.wait_for("run ended");
        assert!(after_the_screen(&pty.text()).contains(" views"));
        assert!(pty.is_cooked());
    }
}

#[test]
fn a_run_that_is_over_restores_the_terminal() {
    let mut pty = Pty::start("over");
    assert!(pty.end().success());
    pty.wait_for("run ended");
    let text = pty.text();
    assert!(!after_the_screen(&text).contains("stop was called"), "{text:?}");
    assert!(pty.is_cooked());
}

#[test]
fn a_panic_is_read_on_a_restored_terminal() {
    let mut pty = Pty::start("panic");
    pty.wait_for("Losses");
    pty.press(b"q");
    assert!(!pty.end().success());
    pty.wait_for("planted in the caller");
    assert!(after_the_screen(&pty.text()).contains("planted in the caller"));
    assert!(pty.is_cooked());

    let mut pty = Pty::start("panic elsewhere");
    assert!(pty.end().success());
    pty.wait_for("run failed: a thread has panicked");
    assert!(after_the_screen(&pty.text()).contains("planted in a thread"));
    assert!(pty.is_cooked());
}

#[test]
fn what_is_said_while_it_runs_is_shown_and_gone_with_the_screen() {
    let mut pty = Pty::start("news");
    pty.wait_for("eth1-has-gone");
    pty.press(b"q");
    assert!(pty.end().success());
    pty.wait_for("run ended");
    assert!(!after_the_screen(&pty.text()).contains("eth1-has-gone"));
    assert!(pty.is_cooked());
}

#[test]
fn without_a_keyboard_the_terminal_is_left_as_it_is() {
    let mut pty = Pty::start_with("no keyboard", Keys::Nowhere);
    assert!(pty.end().success());
    pty.wait_for("run failed");
    let text = pty.text();
    assert!(text.contains("possible: false") && !text.contains(ENTER), "{text:?}");
    assert!(pty.is_cooked() && !text.contains("stop was called"), "{text:?}");
}

#[test]
fn keys_come_from_the_terminal_where_the_input_is_none() {
    let mut pty = Pty::start_with("no keyboard", Keys::Session);
    pty.wait_for("Losses");
    pty.press(b"q");
    assert!(pty.end().success());
    pty.wait_for("run ended");
    let text = pty.text();
    assert!(text.contains("possible: true"), "{text:?}");
    assert!(after_the_screen(&text).contains("run ended"));
    assert!(pty.is_cooked());
}

/// The terminal hangs up, but the child gets no SIGHUP, as under `nohup` or in a session of another process.
#[test]
fn a_terminal_that_hangs_up_ends_it() {
    let mut pty = Pty::start("hang up");
    pty.wait_for("Losses");
    // The child has handled a key, so it is in the loop that reads keys.
    pty.press(b"?");
    pty.wait_for("reverse");
    pty.hang_up();
    assert_eq!(pty.end().code(), Some(HUNG_UP));
}
