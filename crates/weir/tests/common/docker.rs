//! A Docker daemon for one test, with images that are made here: nothing is pulled.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use weir_lab::testbed::{pack_image, require_root, require_tool, skip};

use super::LIMIT;

/// A running dockerd. Dropping it ends it, and removes everything that it has made.
pub struct Docker {
    dir: TempDir,
    daemon: Child,
}

impl Docker {
    /// Starts a daemon. Skips the test if that fails: a test machine that is a container may have no control groups.
    pub fn start(test: &str) -> Option<Docker> {
        if !require_root(test) || !["dockerd", "docker"].iter().all(|tool| require_tool(test, tool))
        {
            return None;
        }
        // A short name: the folder contains sockets, whose paths have at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("wd").tempdir().expect("a folder");
        let at = |name: &str| dir.path().join(name).display().to_string();
        let log = fs::File::create(dir.path().join("log")).expect("a file");
        let daemon = Command::new("dockerd")
            .args(["--data-root", &at("data"), "--exec-root", &at("exec"), "--pidfile", &at("pid")])
            .args(["--host", &format!("unix://{}", at("sock")), "--storage-driver", "vfs"])
            .args(["--iptables=false", "--ip6tables=false", "--bridge=none"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("dockerd");
        let mut docker = Docker { dir, daemon };
        let begin = Instant::now();
        loop {
            if docker.command(&["version"]).output().is_ok_and(|output| output.status.success()) {
                return Some(docker);
            }
            let ended = docker.daemon.try_wait().expect("a child").is_some();
            if ended || begin.elapsed() > LIMIT {
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

    /// The same, run to its end.
    #[track_caller]
    pub fn run(&self, args: &[&str]) -> Output {
        let output = self.command(args).output().expect("docker");
        assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
        output
    }

    /// An image with nothing but this program, at `/NAME`, and the libraries that it needs.
    pub fn image(&self, program: &Path, name: &str) {
        let tar = pack_image(program, name, self.dir.path()).expect("an image");
        self.run(&["import", tar.to_str().expect("a plain path"), name]);
    }
}

impl Drop for Docker {
    fn drop(&mut self) {
        let pid = rustix::process::Pid::from_child(&self.daemon);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let begin = Instant::now();
        while matches!(self.daemon.try_wait(), Ok(None)) {
            if begin.elapsed() > Duration::from_secs(20) {
                let _ = self.daemon.kill();
            }
            sleep(Duration::from_millis(20));
        }
    }
}
