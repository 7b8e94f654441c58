//! The laboratory: testbeds of network namespaces and veth pairs, the traffic generator, the bench.
//!
//! Used by tests, by `weir demo` and by the benches. `weir gen` only adds flags to [`generator`] (`gen` is a reserved
//! word). Testbeds are set up by the `ip` command. No code here is on a capture's hot path.

pub mod bench;
pub mod error;
pub mod ethtool;
pub mod generator;
mod guests;
pub mod limits;
pub mod reread;
pub mod testbed;
pub mod verdict;

pub use error::{Error, Result};
pub use testbed::Testbed;
