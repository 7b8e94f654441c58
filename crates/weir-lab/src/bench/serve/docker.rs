//! Runs consumers in Docker containers, if a Docker daemon answers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::READY;
use crate::bench::child::Child;
use crate::testbed::{End, pack_image};
use crate::{Error, Result};

/// Name of the image and of the container. Both are removed at the end.
const NAME: &str = "weir-bench";

/// A Docker image with weir, removed on drop.
pub(super) struct Image(tempfile::TempDir);

/// A consumer in a container.
pub(super) struct Container {
    /// The `docker run` process, which forwards signals and output.
    pub(super) child: Child,
    /// Process id of the consumer in the container.
    pub(super) pid: u32,
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "docker".to_owned(), reason: reason.to_string() }
}

fn docker(args: &[&str]) -> Result<String> {
    let output = Command::new("docker").args(args).stdin(Stdio::null()).output();
    let output = output.map_err(|error| failed(format!("docker is not there: {error}")))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    match output.status.success() {
        true => Ok(text(&output.stdout)),
        false => Err(failed(text(&output.stderr))),
    }
}

impl Image {
    /// Creates an image of this program.
    ///
    /// # Errors
    /// [`Error::Measure`] if no Docker daemon answers, or if it refuses the image.
    pub(super) fn new(weir: &Path) -> Result<Image> {
        docker(&["version", "--format", "{{.Server.Version}}"])?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let tar = pack_image(weir, "weir", folder.path()).map_err(failed)?;
        docker(&["import", &tar.display().to_string(), NAME])?;
        Ok(Image(folder))
    }

    /// Starts a consumer on this CPU, in a container without capabilities and without network. Of the host's files, the
    /// container has only the folder of the daemon's socket.
    ///
    /// # Errors
    /// [`Error::Measure`] if the consumer does not start, or reads nothing.
    pub(super) fn consumer(&self, end: &End, cpu: usize, run: &Path) -> Result<Container> {
        let volume = format!("{}:/run/weir", run.display());
        let mut command = Command::new("docker");
        command.args(["run", "--rm", "--name", NAME, "--network=none", "--read-only"]);
        command.args(["--cap-drop=ALL", "--user=65534:65534", "--volume", &volume, NAME]);
        command.args(["/weir", "capture", "host:lan", "--json", "--socket", "/run/weir/s"]);
        command.current_dir(self.0.path());
        let mut child = Child::start("docker run", end, command)?;
        child.wait_for_line(READY, |line| line.contains("read from the daemon"))?;
        let pid = docker(&["inspect", "--format", "{{.State.Pid}}", NAME])?;
        // The CPU is set from outside, because `--cpuset-cpus` needs a cgroup controller that some machines lack.
        let pinned = Command::new("taskset")
            .args(["--all-tasks", "--cpu-list", "--pid", &cpu.to_string(), &pid])
            .stdout(Stdio::null())
            .status();
        if !pinned.is_ok_and(|status| status.success()) {
            return Err(failed("taskset does not move the container to its CPU"));
        }
        let pid = pid.parse().map_err(failed)?;
        Ok(Container { child, pid })
    }
}

impl Container {
    /// Waits until the last container is removed and its name is free.
    pub(super) fn wait_until_removed() {
        let begin = Instant::now();
        while docker(&["inspect", NAME]).is_ok() && begin.elapsed() < READY {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = docker(&["rm", "--force", NAME]);
        let _ = docker(&["rmi", "--force", NAME]);
    }
}
