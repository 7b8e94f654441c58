//! Filter expressions to programs, by libpcap's compiler.
//!
//! The compiler works on the link type alone, never on a live interface (for which it makes other code), and in a child
//! process with limits, which has no capabilities and few system calls: a few kilobytes of hostile text keep it busy
//! for seconds, or end it. The child is the very program that asks, started again under another name, so that one
//! static binary will do:
//!
//! ```no_run
//! fn main() -> std::process::ExitCode {
//!     if let Some(code) = weir_filter_compile::child() {
//!         return code;
//!     }
//!     // ... and later, anywhere:
//!     let program = weir_filter_compile::Compiler::default().compile("tcp port 80");
//! #   std::process::ExitCode::SUCCESS
//! }
//! ```
//!
//! Names of hosts, services and protocols in the text are looked up by the child, on this machine: it may read files
//! that everybody may read, and ask name servers.

mod answer;
mod bytecode;
mod child;
mod libpcap;
pub mod limits;
mod parent;
mod position;
mod sandbox;

pub use bytecode::is_bytecode;
pub use child::child;
pub use limits::TEXT_MAX;
pub use parent::{CompileError, Compiler};
