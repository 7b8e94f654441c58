//! The demo's mix on a real pair: it arrives completely, and a protocol analyser finds no errors.

use std::fs;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::thread::sleep;
use std::time::{Duration, Instant};

use weir_lab::generator::mix::{self, MixOptions};
use weir_lab::testbed::{Testbed, require_root, require_tool};

#[test]
fn root_the_mix_arrives_whole_and_tshark_finds_no_fault() {
    let test = "root_the_mix_arrives_whole_and_tshark_finds_no_fault";
    if !require_root(test) || !require_tool(test, "tcpdump") || !require_tool(test, "tshark") {
        return;
    }
    let bed = Testbed::new().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("mix.pcap");
    let mut capture = Command::new("tcpdump");
    capture.args(["-i", &bed.rx.iface, "-U", "--immediate-mode", "-Z", "root", "-w"]).arg(&path);
    capture.stderr(Stdio::null());
    let mut capture = bed.rx.spawn(capture).unwrap();
    // tcpdump writes the file header when it is ready to capture.
    wait_until(|| fs::metadata(&path).is_ok_and(|file| file.len() >= 24));

    let options = MixOptions { frames: Some(2 * 23), ..MixOptions::default() };
    let never = AtomicBool::new(false);
    let report = bed.tx.run(|| mix::run(&bed.tx.iface, &options, &never)).unwrap().unwrap();
    assert_eq!((report.sent, report.attempted), (46, 46));
    let talk = mix::frames();
    assert_eq!(talk.len(), 23);
    let bytes: usize = talk.iter().map(|frame| 16 + frame.bytes.len()).sum();
    wait_until(|| fs::metadata(&path).is_ok_and(|file| file.len() >= (24 + 2 * bytes) as u64));
    capture.signal(libc::SIGINT);
    assert!(capture.wait_for(Duration::from_secs(5)));

    let file = fs::read(&path).unwrap();
    assert_eq!(file.len(), 24 + 2 * bytes);
    let mut at = 24;
    for frame in talk.iter().chain(&talk) {
        assert_eq!(&file[at + 16..][..frame.bytes.len()], frame.bytes, "{}", frame.what);
        at += 16 + frame.bytes.len();
    }
    check_with_tshark(&path);
}

/// Expert errors are malformed packets, bad lengths and, if enabled, bad checksums.
fn check_with_tshark(path: &std::path::Path) {
    let mut tshark = Command::new("tshark");
    for layer in ["ip", "tcp", "udp"] {
        tshark.args(["-o", &format!("{layer}.check_checksum:TRUE")]);
    }
    let fault = "_ws.malformed || _ws.expert.severity == error || ip.checksum.status == 0 || \
        tcp.checksum.status == 0 || udp.checksum.status == 0 || icmp.checksum.status == 0 || \
        icmpv6.checksum.status == 0";
    // The conversation is sent twice. Only the first is checked, because the second looks like a
    // retransmission.
    tshark.args(["-n", "-c", "23", "-Y", fault, "-r"]).arg(path);
    let output = tshark.output().unwrap();
    assert!(output.status.success());
    assert_eq!(String::from_utf8_lossy(&output.stdout), "");
}

fn wait_until(done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(10), "waited in vain");
        sleep(Duration::from_millis(5));
    }
}
