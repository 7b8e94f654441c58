//! The laboratory: testbeds made of network namespaces and veth pairs, the wire generator, the bench.
//!
//! Used by tests, by `weir demo` and by the benches; `weir gen` is a thin layer of flags over
//! [`generator`] (`gen` is a reserved word). Set-up runs the `ip` command; nothing here is on a capture's hot path.

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
