//! Network namespaces of a test's own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace with loopback, which goes with this.
pub struct Netns(pub String);

impl Netns {
    /// `name` is of this test only.
    pub fn new(name: &str) -> Netns {
        let netns = Netns(format!("weir-export-{name}-{}", std::process::id()));
        ip(&format!("netns add {}", netns.0));
        netns.ip("link set lo up");
        netns
    }

    /// Runs `ip` within it.
    pub fn ip(&self, line: &str) {
        ip(&format!("-n {} {line}", self.0));
    }

    /// Result of `act`, on a thread that is within it.
    pub fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let act = || {
            let file = File::open(format!("/run/netns/{}", self.0)).unwrap();
            move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
            act()
        };
        thread::scope(|scope| scope.spawn(act).join().unwrap())
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(line: &str) {
    assert!(Command::new("ip").args(line.split(' ')).status().unwrap().success(), "{line}");
}

/// Whether the test can run; if not, it says so.
pub fn can_run(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        crate::skip(test, "needs root");
    }
    is_root
}
