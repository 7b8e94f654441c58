//! A daemon in the receiver's namespace, for tests of what reads from it.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;
use weir_lab::Testbed;

use super::{Run, weir};

/// A daemon that runs, until it is dropped.
pub struct Daemon {
    pub dir: TempDir,
    run: Option<Run>,
}

impl Daemon {
    /// Starts one with this file, and waits until it serves.
    pub fn start(bed: &Testbed, config: &str) -> Daemon {
        let dir = TempDir::new().expect("a folder");
        // Others may go through to the socket.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
        fs::write(dir.path().join("weir.toml"), config).expect("a file");
        let mut daemon = Daemon { dir, run: None };
        daemon.restart(bed);
        daemon
    }

    /// One that everybody may read: the source `lan`, of the receiver's interface.
    pub fn of_lan(bed: &Testbed, more: &str) -> Daemon {
        let iface = &bed.rx.iface;
        let lan = format!(
            "[sources.lan]\nsource = \"{iface}\"\neverybody = true\nring_mib = 16\n{more}\n"
        );
        Daemon::start(bed, &lan)
    }

    /// Starts it, again, on the same socket.
    pub fn restart(&mut self, bed: &Testbed) {
        let dir = self.dir.path().display();
        let line = format!("serve --config {dir}/weir.toml --socket {dir}/s");
        let mut run = Run::start(&bed.rx, weir(&line));
        run.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
        self.run = Some(run);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.run = None;
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("s")
    }

    /// `weir` with these arguments and this daemon's socket.
    pub fn weir(&self, args: &str) -> Command {
        let mut command = weir(args);
        command.arg("--socket").arg(self.socket());
        command
    }

    /// A capture of a feed of it, which takes frames from now on.
    pub fn capture(&self, bed: &Testbed, args: &str) -> Run {
        Run::capture_by(&bed.rx, self.weir(&format!("capture {args} --json")))
    }
}
