//! Readers of hostile memory, on stable Rust: the checks of `fuzz/fuzz_targets/ring_reader.rs`, with random inputs.
#![cfg(not(loom))]

mod common;
#[path = "common/hostile.rs"]
mod driver;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

#[test]
fn hostile_memory_gives_errors_and_never_a_panic() {
    let mut all = driver::Seen::default();
    let seen = std::cell::RefCell::new(&mut all);
    let mut runner =
        TestRunner::new(Config { cases: 50_000, failure_persistence: None, ..Config::default() });
    let inputs = proptest::collection::vec(any::<u8>(), 0..700);
    runner
        .run(&inputs, |bytes| {
            let found = driver::run(&bytes);
            let mut all = seen.borrow_mut();
            all.frames |= found.frames;
            all.empty |= found.empty;
            all.lapped |= found.lapped;
            all.closed |= found.closed;
            all.corrupt |= found.corrupt;
            Ok(())
        })
        .unwrap();
    let every =
        driver::Seen { frames: true, empty: true, lapped: true, closed: true, corrupt: true };
    assert_eq!(all, every, "inputs that do not reach everything");
}
