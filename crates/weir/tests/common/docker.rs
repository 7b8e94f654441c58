//! A Docker daemon for one test, with images that are made here: nothing is pulled.

use std::fmt::Display;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_lab::testbed::{End, Running, pack_image, require_root, require_tool, skip};

use super::LIMIT;

/// Longest time in which the daemon must end its containers, containerd and itself.
const END_TIME_MAX: Duration = Duration::from_secs(20);

/// A running dockerd. Dropping it ends it, and removes everything that it has made.
pub struct Docker {
    dir: TempDir,
    daemon: Running,
}

impl Docker {
    /// Starts a daemon without a bridge. Skips the test if that fails: a test machine that is a container may have no
    /// control groups.
    pub fn start(test: &str) -> Option<Docker> {
        let spawn = |mut command: Command| command.spawn().map(Running::from);
        Docker::start_by(test, "--bridge=none", spawn)
    }

    /// Does the same in this end's namespace. The daemon makes its bridge `docker0` there.
    pub fn start_in(test: &str, end: &End) -> Option<Docker> {
        Docker::start_by(test, "--ip-masq=false", |command| end.spawn(command))
    }

    fn start_by<E: Display>(
        test: &str,
        flag: &str,
        spawn: impl FnOnce(Command) -> Result<Running, E>,
    ) -> Option<Docker> {
        if !require_root(test) || !["dockerd", "docker"].iter().all(|tool| require_tool(test, tool))
        {
            return None;
        }
        // A short name: the folder contains sockets, whose paths have at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("wd").tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        let mut command = Command::new("dockerd");
        command
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("sock")), "--storage-driver", "vfs"])
            .args(["--iptables=false", "--ip6tables=false", flag])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log);
        let daemon = spawn(command).unwrap_or_else(|error| panic!("dockerd: {error}"));
        let mut docker = Docker { dir, daemon };
        let begin = Instant::now();
        loop {
            if docker.command(&["version"]).output().is_ok_and(|output| output.status.success()) {
                return Some(docker);
            }
            if docker.daemon.wait_for(Duration::ZERO) || begin.elapsed() > LIMIT {
                let log = fs::read_to_string(docker.dir.path().join("log")).unwrap_or_default();
                let last = log.lines().last().unwrap_or("it says nothing").to_owned();
                skip(test, &format!("dockerd does not run here: {last}"));
                return None;
            }
            sleep(Duration::from_millis(50));
        }
    }

    /// The address of the daemon, in the form of `DOCKER_HOST`.
    pub fn host(&self) -> String {
        format!("unix://{}", self.dir.path().join("sock").display())
    }

    /// `docker` with these arguments.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(self.host()).args(args);
        command
    }

    /// Runs it to its end, which must be a success.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().expect("docker");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// Does the same, and returns its standard output without the line break at the end.
    #[track_caller]
    pub fn read(&self, args: &[&str]) -> String {
        String::from_utf8_lossy(&self.run(args).stdout).trim_end().to_owned()
    }

    /// An image with nothing but this program, at `/NAME`, and the libraries that it needs.
    pub fn image(&self, program: &Path, name: &str) {
        let tar = pack_image(program, name, self.dir.path()).expect("an image");
        self.run(&["import", tar.to_str().expect("a plain path"), name]);
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        // The daemon ends its containers and containerd, which takes a moment.
        self.daemon.signal(libc::SIGTERM);
        self.daemon.wait_for(END_TIME_MAX);
    }
}
