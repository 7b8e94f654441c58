//! Network namespaces for tests.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

/// A network namespace whose loopback device is up. It is deleted when this value is dropped.
pub struct Netns(pub String);

impl Netns {
    /// Creates a namespace. `name` must differ from the names that other tests use.
    pub fn new(name: &str) -> Netns {
        let netns = Netns(format!("weir-export-{name}-{}", std::process::id()));
        ip(&format!("netns add {}", netns.0));
        netns.ip("link set lo up");
        netns
    }

    /// Runs `ip` in the namespace.
    pub fn ip(&self, line: &str) {
        ip(&format!("-n {} {line}", self.0));
    }

    /// Runs `act` on a thread in the namespace, and returns its result.
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

/// Whether the test can run. If not, reports that it is skipped.
pub fn can_run(test: &str) -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        crate::skip(test, "needs root");
    }
    is_root
}
