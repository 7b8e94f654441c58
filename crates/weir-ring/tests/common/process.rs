//! A test program that runs itself again as another process: only one of its tests, with a role in the environment
//! and a socket as standard input.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The variable that holds the role.
pub const ROLE: &str = "WEIR_TEST_ROLE";
/// Much longer than any step here takes, and shorter than a hung run should last.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The other process; killed, if it has not ended before.
pub struct Other {
    pub child: Child,
    pub stream: UnixStream,
}

impl Other {
    /// Runs the test `test` of this program in `role`, with `variables` added to its environment.
    pub fn start(test: &str, role: &str, variables: &[(&str, &OsStr)]) -> Other {
        let (here, there) = UnixStream::pair().unwrap();
        here.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args([test, "--exact", "--nocapture"]).env(ROLE, role);
        command.envs(variables.iter().copied());
        command.stdin(OwnedFd::from(there)).stdout(Stdio::null());
        Other { child: command.spawn().unwrap(), stream: here }
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // A test may have failed before the process ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
