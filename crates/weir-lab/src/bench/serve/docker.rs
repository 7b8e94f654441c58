//! Consumers in Docker containers, where a Docker daemon answers.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::READY;
use crate::bench::child::Child;
use crate::testbed::{End, pack_image};
use crate::{Error, Result};

/// The image's name, and the container's; both are removed.
const NAME: &str = "weir-bench";

/// An image of weir, until dropped.
pub(super) struct Image(tempfile::TempDir);

/// A consumer in a container.
pub(super) struct Container {
    /// `docker run`, which passes signals and output on.
    pub(super) child: Child,
    /// The process in it.
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
    /// Of this program.
    ///
    /// # Errors
    /// No Docker daemon answers, or it does not take the image.
    pub(super) fn new(weir: &Path) -> Result<Image> {
        docker(&["version", "--format", "{{.Server.Version}}"])?;
        let folder = tempfile::tempdir().map_err(failed)?;
        let tar = pack_image(weir, "weir", folder.path()).map_err(failed)?;
        docker(&["import", &tar.display().to_string(), NAME])?;
        Ok(Image(folder))
    }

    /// A container that has no rights, no network, and of the host only the folder of the daemon's socket; on this CPU.
    ///
    /// # Errors
    /// It does not start, or reads nothing.
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
        // From outside: not every machine has the control group that `--cpuset-cpus` needs.
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
    /// Its name can be taken again once the last one has been removed.
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
