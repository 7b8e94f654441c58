//! `weir lab churn`: feeds and consumers come and go beside a source at full rate, in a process of its own, because
//! its descriptors are counted.

use std::process::Command;

use serde_json::Value;
use weir_lab::testbed::{require_root, volume};

fn churn(source: &str, feeds: u64, consumers: u64) {
    let (feeds, consumers) = (volume(feeds), volume(consumers));
    let (feeds_arg, consumers_arg) = (feeds.to_string(), consumers.to_string());
    let output = Command::new(env!("CARGO_BIN_EXE_weir"))
        .args(["lab", "churn", "--json", "--source", source])
        .args(["--feeds", &feeds_arg, "--consumers", &consumers_arg])
        .output()
        .expect("it runs");
    assert!(output.status.success(), "{output:?}");
    let churned: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
    assert_eq!(churned["add"]["calls"], feeds, "{churned}");
    assert_eq!(churned["attach"]["calls"], consumers, "{churned}");
    for none in ["open_ledgers", "missing", "without_frames", "descriptors_more"] {
        assert_eq!(churned[none], 0, "{none}: {churned}");
    }
    assert!(churned["captured"].as_u64() > Some(0), "{churned}");
}

#[test]
fn feeds_and_consumers_of_a_generator_come_and_go_and_nothing_is_left() {
    churn("gen", 12, 12);
}

#[test]
fn root_feeds_and_consumers_of_a_hook_come_and_go_and_nothing_is_left() {
    if require_root("root_feeds_and_consumers_of_a_hook_come_and_go_and_nothing_is_left") {
        churn("bpf", 8, 12);
    }
}
