//! A ring whose owner changes the memory at will gives a reader frames, counts or errors: no panic, no hang, and the
//! counts add up.
#![no_main]

#[path = "../../crates/weir-ring/tests/common/mod.rs"]
mod common;
#[path = "../../crates/weir-ring/tests/common/hostile.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    driver::run(bytes);
});
