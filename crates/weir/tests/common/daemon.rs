//! A daemon in the receiver's network namespace, and its clients.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use weir_lab::Testbed;

use super::{LIMIT, Run, weir};

/// The user id of `nobody`, who has no rights.
pub const NOBODY: u32 = 65_534;

/// A daemon in the receiver's network namespace.
pub struct Daemon {
    pub dir: TempDir,
    pub run: Option<Run>,
}

impl Daemon {
    pub fn start(bed: &Testbed, config: &str, flags: &str) -> Daemon {
        let dir = TempDir::new().expect("a folder");
        // Other users can reach the socket and a copy of the program: the program's own folder may be open to root
        // only.
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("permissions");
        let program = dir.path().join("weir");
        let own = env!("CARGO_BIN_EXE_weir");
        fs::hard_link(own, &program)
            .or_else(|_| fs::copy(own, &program).map(drop))
            .expect("a copy");
        let mut daemon = Daemon { dir, run: None };
        daemon.configure(config);
        daemon.run = Some(daemon.serve(bed, flags));
        daemon
    }

    /// Starts a daemon that everybody may read, with the source `lan`: the receiver's interface.
    pub fn of_lan(bed: &Testbed, more: &str) -> Daemon {
        let iface = &bed.rx.iface;
        let lan = format!(
            "[sources.lan]\nsource = \"{iface}\"\neverybody = true\nring_mib = 16\n{more}\n"
        );
        Daemon::start(bed, &lan, "")
    }

    pub fn configure(&self, config: &str) {
        fs::write(self.dir.path().join("weir.toml"), config).expect("a file");
    }

    pub fn serve(&self, bed: &Testbed, flags: &str) -> Run {
        let dir = self.dir.path().display();
        let line = format!("serve --config {dir}/weir.toml --socket {dir}/s {flags}");
        let mut run = Run::start(&bed.rx, weir(&line));
        run.wait_for("that it serves", |run| run.stderr().contains("weir: serving "));
        run
    }

    pub fn restart(&mut self, bed: &Testbed) {
        self.run = Some(self.serve(bed, ""));
    }

    /// Kills the daemon.
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

    /// Starts a capture of one of the daemon's feeds; it takes frames from now on.
    pub fn capture(&self, bed: &Testbed, args: &str) -> Run {
        Run::capture_by(&bed.rx, self.weir(&format!("capture {args} --json")))
    }

    pub fn run(&mut self) -> &mut Run {
        self.run.as_mut().expect("it runs")
    }

    /// A command as this user, without supplementary groups and inheritable capabilities.
    pub fn as_user(&self, uid: u32, args: &str) -> Command {
        self.with_rights(uid, "--clear-groups --inh-caps=-all", args)
    }

    /// A command as this user, with these rights, in the syntax of setpriv(1).
    pub fn with_rights(&self, uid: u32, rights: &str, args: &str) -> Command {
        let dir = self.dir.path().display();
        let mut command = Command::new("setpriv");
        command.args(["--reuid", &uid.to_string(), "--regid", &uid.to_string()]);
        command.args(rights.split_whitespace());
        command.arg(format!("{dir}/weir")).args(args.split_whitespace());
        command.arg("--socket").arg(format!("{dir}/s"));
        command
    }

    /// Starts a capture as the user `nobody`.
    pub fn client(&self, bed: &Testbed, args: &str) -> Run {
        Run::capture_by(&bed.rx, self.as_user(NOBODY, &format!("capture {args} --json")))
    }

    pub fn status(&self, bed: &Testbed) -> Value {
        Run::start(&bed.rx, self.as_user(0, "status --json")).end().expect(0).json()
    }

    /// The number of the daemon's descriptors once it has not changed for a while: the daemon closes that of a connection
    /// that has ended, as of the last `weir status`, a moment later in another thread.
    #[track_caller]
    pub fn descriptors(&mut self) -> usize {
        let pid = self.run().pid();
        let count = || fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs").count();
        let is = |before: usize| {
            sleep(Duration::from_millis(10));
            count() == before
        };
        let begin = Instant::now();
        loop {
            let before = count();
            if (0..30).all(|_| is(before)) {
                return before;
            }
            assert!(
                begin.elapsed() < LIMIT,
                "the number of descriptors does not settle; now {before}"
            );
        }
    }

    pub fn wait_for_clients(&self, bed: &Testbed, count: usize) -> Value {
        self.wait_for(bed, |status| status["clients"].as_array().map(Vec::len) == Some(count))
    }

    #[track_caller]
    pub fn wait_for(&self, bed: &Testbed, is_so: impl Fn(&Value) -> bool) -> Value {
        let begin = Instant::now();
        loop {
            let status = self.status(bed);
            if is_so(&status) {
                return status;
            }
            assert!(begin.elapsed() < LIMIT, "{status}");
        }
    }
}
