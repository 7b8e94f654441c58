//! A daemon, and programs in C that read from it.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::common::LIMIT;

// This use of the crate makes cargo build the library.
use ::weir as _;

/// A daemon, and a folder with its socket, the library under the names that the linker and the loader use, and
/// compiled programs.
pub struct Daemon {
    pub dir: TempDir,
    child: Option<Child>,
    /// The network namespace that the daemon runs in; `None`: that of the test.
    netns: Option<String>,
}

impl Daemon {
    /// Starts a daemon. `config` is the text of its weir.toml; `DIR` in it stands for the folder.
    pub fn start(config: &str) -> Daemon {
        Daemon::start_in(None, config)
    }

    /// The same in a network namespace.
    pub fn start_in(netns: Option<&str>, config: &str) -> Daemon {
        let dir = TempDir::new().expect("a folder");
        let config = config.replace("DIR", dir.path().to_str().expect("a plain path"));
        fs::write(dir.path().join("weir.toml"), config).expect("a file");
        let own = std::env::current_exe().expect("this program");
        let library = own.parent().expect("its folder").join("libweir.so");
        assert!(library.exists(), "{} was not built", library.display());
        for name in ["libweir.so", "libweir.so.1"] {
            symlink(&library, dir.path().join(name)).expect("a link");
        }
        let mut daemon = Daemon { dir, child: None, netns: netns.map(str::to_owned) };
        daemon.serve();
        daemon
    }

    /// Starts the daemon, or starts it again.
    pub fn serve(&mut self) {
        // `ip netns exec` replaces itself with the program, so the child process is the daemon itself.
        let mut command = Command::new(match &self.netns {
            Some(_) => "ip",
            None => env!("CARGO_BIN_EXE_weir"),
        });
        if let Some(netns) = &self.netns {
            command.args(["netns", "exec", netns, env!("CARGO_BIN_EXE_weir")]);
        }
        let log = fs::File::create(self.path("log")).expect("a file");
        command.arg("serve").arg("--config").arg(self.path("weir.toml"));
        command.arg("--socket").arg(self.path("socket"));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        self.child = Some(command.spawn().expect("weir"));
        let begin = Instant::now();
        while !self.log().contains("weir: serving ") {
            assert!(begin.elapsed() < LIMIT, "{}", self.log());
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    /// Kills the daemon, as a crash would.
    pub fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("it can be killed");
            child.wait().expect("it has ended");
        }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).expect("a file")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A program with the environment to find the library and the daemon.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        command.env("LD_LIBRARY_PATH", self.dir.path()).env("WEIR_SOCKET", self.path("socket"));
        command.env("LC_ALL", "C").stdin(Stdio::null());
        command
    }

    /// Compiles a program; warnings are errors.
    pub fn compile(&self, compiler: &[&str], source: &Path, name: &str) -> PathBuf {
        let (program, mut command) = (self.path(name), Command::new(compiler[0]));
        command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-pedantic", "-Werror"]);
        command.arg("-I").arg(root().join("crates/weir-c/include"));
        command.arg("-o").arg(&program).arg(source).arg("-L").arg(self.dir.path()).arg("-lweir");
        run(&mut command);
        program
    }

    /// Compiles `crates/weir-c/tests/reader.c` with sanitizers, which report invalid accesses to memory, and leaks.
    pub fn reader(&self) -> PathBuf {
        let source = root().join("crates/weir-c/tests/reader.c");
        self.compile(
            &["cc", "-std=c11", "-g", "-pthread", "-fsanitize=address,undefined"],
            &source,
            "reader",
        )
    }

    /// The output of the reader with these arguments.
    pub fn read(&self, args: &[&str]) -> Printed {
        let mut command = self.command(self.reader());
        if args.contains(&"setuid") {
            // After setuid the process cannot be traced, which the leak check needs.
            command.env("ASAN_OPTIONS", "detect_leaks=0");
        }
        if args.contains(&"cancel") {
            // The sanitizer fails at the end of a cancelled thread: its own signal stack is in memory that the thread
            // has left poisoned. This also happens in programs without the library.
            command.env("ASAN_OPTIONS", "use_sigaltstack=0");
        }
        Printed(run(command.args(args)))
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The root of the tree.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Runs a program, which must succeed; returns its standard output.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (out, error) = (&output.stdout, String::from_utf8_lossy(&output.stderr));
    let out = String::from_utf8_lossy(out).into_owned();
    assert!(output.status.success(), "{command:?}: {}\n{out}\n{error}", output.status);
    out
}

/// Output that consists of lines with a name and a value.
#[derive(Debug)]
pub struct Printed(pub String);

impl Printed {
    /// The value of the last line with this name.
    #[track_caller]
    pub fn text(&self, name: &str) -> &str {
        let values: BTreeMap<_, _> =
            self.0.lines().filter_map(|line| line.split_once(' ')).collect();
        values.get(name).unwrap_or_else(|| panic!("no '{name}' in {}", self.0))
    }

    #[track_caller]
    pub fn number(&self, name: &str) -> u64 {
        self.text(name).parse().unwrap_or_else(|_| panic!("{name} is no number: {}", self.0))
    }

    /// Passes if the statistics account for every frame.
    #[track_caller]
    pub fn closes(&self) {
        let sum = |names: &[&str]| names.iter().map(|name| self.number(name)).sum::<u64>();
        let accounted = sum(&["filtered", "blocked", "sampled", "captured", "dropped"]);
        assert_eq!(self.number("offered"), accounted, "{}", self.0);
        assert_eq!(self.number("captured"), sum(&["delivered", "lapped"]), "{}", self.0);
    }
}
