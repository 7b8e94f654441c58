//! Rings whose owners change the memory at will are merged, printed and written to a file: frames or errors, complete
//! lines and blocks, no panic, no hang.
#![no_main]

#[path = "../../crates/weir-ring/tests/common/mod.rs"]
mod common;
#[path = "../../crates/weir-store/tests/common/consumers.rs"]
mod consumers;
#[path = "../../crates/weir-ring/tests/common/hostile.rs"]
#[allow(dead_code, reason = "the rings of it are used, its readers are not")]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    consumers::run(bytes);
});
