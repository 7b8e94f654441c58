//! A link that is too slow for the exported records, in a network namespace of its own.

use std::process::Command;
use std::time::Duration;

use weir_export::limits::FINISH_TIME_MAX;
use weir_export::{Queue, WhenFull};

use crate::away::{config, push};
use crate::netns::{Netns, can_run};
use crate::{export_to, skip, udp_socket};

const TEST: &str = "root_a_slow_link_costs_flows_and_no_time";

#[test]
fn root_a_slow_link_costs_flows_and_no_time() {
    if !can_run(TEST) {
        return;
    }
    let netns = Netns::new("slow");
    // 10 kB a second. All flows are about 15 MB and would take more than 25 minutes.
    let slow = "tc qdisc add dev lo root tbf rate 80kbit burst 3000 limit 100m";
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &netns.0]).args(slow.split(' '));
    if !command.status().unwrap().success() {
        return skip(TEST, "needs the kernel's sch_tbf module");
    }
    netns.within(|| {
        let socket = udp_socket();
        let port = socket.local_addr().unwrap().port();
        let mut queue = Queue::start(export_to("ipfix", port, config()), WhenFull::Drop).unwrap();
        let (counts, time) = push(&mut queue, 200);
        assert_eq!(counts.sent + counts.unsent, 200_000);
        assert!(counts.sent > 0 && counts.unsent > 0, "{counts:?}");
        assert!(time < FINISH_TIME_MAX + Duration::from_secs(10), "{time:?}");
    });
}
