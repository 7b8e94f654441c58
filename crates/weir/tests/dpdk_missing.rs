//! A build without the engine `dpdk` says how to get a build that has it.
#![cfg(not(feature = "dpdk"))]

use std::process::Command;

#[test]
fn a_build_without_dpdk_says_how_to_get_one() {
    let capture = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        let output = command.arg("capture").args(args).output().expect("it runs");
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let refusal = capture(&["dpdk:net_null0"]);
    assert!(refusal.contains("--features dpdk") && refusal.contains("libdpdk-dev"), "{refusal}");
    let refusal = capture(&["--engine", "dpdk", "lo"]);
    assert!(refusal.contains("dpdk:net_af_packet0,iface=lo"), "{refusal}");
}
