//! A link that is too slow for what is exported, in a network namespace of its own.

use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;
use std::thread;
use std::time::Duration;

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use weir_export::limits::FINISH_TIME_MAX;
use weir_export::{Queue, WhenFull};

use crate::away::{config, push};
use crate::{export_to, skip, udp_socket};

/// A network namespace, which goes with this.
struct Netns(String);

impl Netns {
    fn new() -> Netns {
        let netns = Netns(format!("weir-export-{}", std::process::id()));
        ip(&["netns", "add", &netns.0]);
        netns
    }
}

impl Drop for Netns {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.0]).status();
    }
}

fn ip(arguments: &[&str]) {
    assert!(Command::new("ip").args(arguments).status().unwrap().success(), "{arguments:?}");
}

const TEST: &str = "root_a_slow_link_costs_flows_and_no_time";

#[test]
fn root_a_slow_link_costs_flows_and_no_time() {
    if !rustix::process::geteuid().is_root() {
        return skip(TEST, "needs root");
    }
    let netns = Netns::new();
    ip(&["-n", &netns.0, "link", "set", "lo", "up"]);
    // 10 KB a second, where all of it would take a quarter of an hour.
    let slow = "tc qdisc add dev lo root tbf rate 80kbit burst 3000 limit 100m";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &netns.0]).args(slow.split(' '));
    if !command.status().unwrap().success() {
        return skip(TEST, "needs the kernel's sch_tbf module");
    }
    let in_netns = || {
        let file = File::open(format!("/run/netns/{}", netns.0)).unwrap();
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network)).unwrap();
        let socket = udp_socket();
        let port = socket.local_addr().unwrap().port();
        let mut queue = Queue::start(export_to("ipfix", port, config()), WhenFull::Drop).unwrap();
        let (counts, time) = push(&mut queue, 200);
        assert_eq!(counts.sent + counts.unsent, 200_000);
        assert!(counts.sent > 0 && counts.unsent > 0, "{counts:?}");
        assert!(time < FINISH_TIME_MAX + Duration::from_secs(10), "{time:?}");
    };
    thread::scope(|scope| scope.spawn(in_netns).join().unwrap());
}
