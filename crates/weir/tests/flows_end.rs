//! `weir flows`: a signal shortens its end, and every record is still counted.

mod common;

use std::net::UdpSocket;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use common::flows::lines;
use common::{LIMIT, closes, folder, number, weir};

/// Frames of the trace, each in a flow of its own. Their export to a collector over UDP takes 12 s.
const FLOWS: u64 = 600_000;

/// Longer than the time within which a second signal is ignored as a duplicate.
const ANOTHER_SIGNAL: Duration = Duration::from_millis(700);

/// Starts `weir flows` of a trace; returns once its first message has reached the collector.
fn exporting(folder: &Path, args: &str) -> (Child, UdpSocket) {
    let trace = folder.join("flows.pcapng");
    let trace = trace.to_str().expect("a path");
    let frames = format!("gen:size=64,flows={FLOWS},frames={FLOWS}");
    let made = weir(&format!("capture {frames} --write {trace}")).output().expect("it runs");
    assert!(made.status.success(), "{made:?}");
    let collector = UdpSocket::bind("127.0.0.1:0").expect("a port");
    collector.set_read_timeout(Some(LIMIT)).expect("a limit");
    let target = format!("ipfix://{}", collector.local_addr().expect("an address"));
    let line = format!("flows file:{trace} --json --export {target} {args}");
    // Standard output is a file, so that the lines of flows cannot block.
    let out = std::fs::File::create(folder.join("stdout")).expect("a file");
    let child = weir(&line).stdout(out).stderr(Stdio::piped()).spawn().expect("it runs");
    collector.recv(&mut [0; 1500]).expect("a message");
    (child, collector)
}

fn signal(child: &Child) {
    // The child was not waited for yet, so no other process has its id.
    let pid = Pid::from_child(child);
    kill_process(pid, Signal::INT).expect("a signal");
}

/// Passes if the run ends with a report in which all records are counted, some of them as unsent.
fn ended(mut child: Child, folder: &Path) {
    let start = Instant::now();
    while child.try_wait().expect("a child").is_none() {
        if start.elapsed() > LIMIT {
            let _ = child.kill();
            panic!("it does not end");
        }
        sleep(Duration::from_millis(20));
    }
    let ended = child.wait_with_output().expect("it ends");
    let stdout = std::fs::read(folder.join("stdout")).expect("its output");
    // Exit status 2: on a busy machine an export may be interrupted while it writes, and that is reported.
    let text = String::from_utf8_lossy(&ended.stderr);
    assert!(matches!(ended.status.code(), Some(0 | 2)), "{ended:?}: {text}");
    let (_, report) = lines(&stdout);
    closes(&report);
    let records = number(&report["flows"], "records");
    let exports = report["flows"]["exports"].as_array().expect("exports");
    for export in exports {
        assert_eq!(number(export, "sent") + number(export, "unsent"), records, "{report}");
    }
    assert!(exports.len() == 2 && number(&exports[1], "unsent") > 0, "{report}");
}

#[test]
fn a_signal_ends_the_end_of_a_trace_and_every_flow_is_counted() {
    let dir = folder();
    // No flow ends before the end of the trace.
    let (child, _collector) = exporting(dir.path(), "--idle-timeout 0s --active-timeout 0s");
    signal(&child);
    ended(child, dir.path());
}

#[test]
fn a_second_signal_ends_it_at_once_with_its_report() {
    let dir = folder();
    // Some flows end while the trace is read. At its end too many are left for the time that the exports have then.
    let (child, _collector) = exporting(dir.path(), "--flows-max 300000");
    signal(&child);
    sleep(ANOTHER_SIGNAL);
    signal(&child);
    ended(child, dir.path());
}
