//! Consumers of hostile rings, on stable Rust: the checks of `fuzz/fuzz_targets/ring_consumers.rs`, with random inputs.

#[path = "../../weir-ring/tests/common/mod.rs"]
mod common;
#[path = "common/consumers.rs"]
mod consumers;
#[path = "../../weir-ring/tests/common/hostile.rs"]
#[allow(dead_code, reason = "the rings of it are used, its readers are not")]
mod driver;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn consumers_of_hostile_rings_give_frames_or_errors_and_whole_outputs() {
    let mut all = consumers::Seen::default();
    let seen = std::cell::RefCell::new(&mut all);
    let mut runner =
        TestRunner::new(Config { cases: 5_000, failure_persistence: None, ..Config::default() });
    let inputs = proptest::collection::vec(any::<u8>(), 0..700);
    runner
        .run(&inputs, |bytes| {
            let found = consumers::run(&bytes);
            let mut all = seen.borrow_mut();
            all.frames |= found.frames;
            all.left |= found.left;
            all.abandoned |= found.abandoned;
            all.ended |= found.ended;
            all.refused |= found.refused;
            all.failed |= found.failed;
            Ok(())
        })
        .unwrap();
    let every = consumers::Seen {
        frames: true,
        left: true,
        abandoned: true,
        ended: true,
        refused: true,
        failed: true,
    };
    assert_eq!(all, every, "inputs that do not reach everything");
}
