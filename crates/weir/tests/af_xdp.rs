//! What only AF_XDP sockets have: queues that can be taken, copiers that share one, a stack that goes
//! without.

mod common;

use std::collections::BTreeSet;

use common::tools::{in_time_order, read};
use common::{Run, bed, closes, folder, generate, number, path, ready, settle, weir};
use weir_lab::generator::template::number_of;

const AF_XDP: &str = "--engine af_xdp --consume";

#[test]
fn root_a_queue_that_is_taken_says_so_and_its_holder_goes_on() {
    let test = "root_a_queue_that_is_taken_says_so_and_its_holder_goes_on";
    let Some(_alone) = ready(test, &[]) else { return };
    let bed = bed();
    let first = Run::capture(&bed.rx, &format!("{AF_XDP} --json"));
    let second = weir(&format!("capture wrx0 {AF_XDP}"));
    Run::start(&bed.rx, second).end().refused(&["wrx0", "queue 0", "another AF_XDP socket"]);
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    assert_eq!(number(&first.stop().expect(0).json(), "delivered"), 1000);
}

#[test]
fn root_queues_that_are_not_there_are_refused() {
    let Some(_alone) = ready("root_queues_that_are_not_there_are_refused", &[]) else { return };
    let bed = bed();
    for queues in ["7", "0-7"] {
        let command = weir(&format!("capture wrx0 {AF_XDP} --queues {queues}"));
        Run::start(&bed.rx, command).end().refused(&[
            "--queues",
            "wrx0 has queues 0 to",
            "ethtool -l",
        ]);
    }
}

#[test]
fn root_copiers_share_a_queue_and_the_merge_keeps_the_order() {
    let test = "root_copiers_share_a_queue_and_the_merge_keeps_the_order";
    let Some(_alone) = ready(test, &[]) else { return };
    for copiers in [2, 3] {
        let bed = bed();
        let dir = folder();
        let (file, name) = path(&dir, "shared.pcapng");
        let args = format!("{AF_XDP} --copiers {copiers} --write {name} --json");
        let capture = Run::capture(&bed.rx, &args);
        generate(&bed.tx, "--frames 50k --rate 100kpps");
        settle();
        let json = capture.stop().expect(0).json();
        closes(&json);
        let (_, frames) = read(&file);
        in_time_order(&frames);
        let numbers: Vec<u64> = frames.iter().filter_map(|frame| number_of(&frame.data)).collect();
        // Stamped at the hook, in the order of arrival: the merge brings back exactly that.
        assert!(numbers.is_sorted(), "{copiers} copiers");
        let once: BTreeSet<u64> = numbers.iter().copied().collect();
        assert_eq!(once.len(), numbers.len());
        assert_eq!(numbers.len() as u64, number(&json, "delivered"));
        assert_eq!(number(&json, "offered"), 50_000, "{json}");
    }
}

#[test]
fn root_copiers_can_stamp() {
    let Some(_alone) = ready("root_copiers_can_stamp", &[]) else { return };
    let bed = bed();
    let dir = folder();
    let (file, name) = path(&dir, "stamped.pcapng");
    let capture =
        Run::capture(&bed.rx, &format!("{AF_XDP} --timestamp copy --write {name} --json"));
    let before = std::time::SystemTime::now();
    generate(&bed.tx, "--frames 1000 --rate 100kpps");
    settle();
    let json = capture.stop().expect(0).json();
    closes(&json);
    let (_, frames) = read(&file);
    assert_eq!(frames.len(), 1000);
    in_time_order(&frames);
    let before = before.duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let range = before..before + 60_000_000_000;
    assert!(frames.iter().all(|frame| range.contains(&frame.ts_ns)));
}
