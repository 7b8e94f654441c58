//! Common parts of the libraries with an interface in C: `libweir.so` and `libweirpcap.so`.
//!
//! | module | contents |
//! |---|---|
//! | [`stop`] | ends a wait from other threads and signal handlers |
//! | [`panics`] | catches panics, so that none leaves a library or is printed |
//! | [`cancel`] | waits in which a thread may be cancelled |
//! | [`limits`] | how long a wait is at a time |

pub mod cancel;
pub mod limits;
pub mod panics;
pub mod stop;

pub use panics::caught;
pub use stop::Stop;
