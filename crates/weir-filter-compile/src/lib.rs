//! Compiles filter expressions to programs, with libpcap's compiler.
//!
//! The compiler gets only the link type, never a live interface (for which it makes other code). It runs in a child
//! process with limits, which has no capabilities and few system calls: a few kilobytes of hostile text keep the
//! compiler busy for seconds, or crash it. The child is the calling program itself, started again under another name,
//! so that one static binary suffices:
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
//! The child looks up names of hosts, services and protocols in the text on this machine: it may read files that
//! everybody may read, and ask name servers.

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
