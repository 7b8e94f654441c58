//! Common parts of the libraries with an interface in C: `libweir.so` and `libweirpcap.so`.
//!
//! | module | contents |
//! |---|---|
//! | [`stop`] | ends a wait from other threads and signal handlers |
//! | [`panics`] | catches panics, so that none leaves a library or is printed |
//! | [`cancel`] | disables cancellation of a thread during work, and tests for it between waits |
//! | [`limits`] | the longest wait before cancellation is checked again |

pub mod cancel;
pub mod limits;
pub mod panics;
pub mod stop;

pub use panics::caught;
pub use stop::Stop;
