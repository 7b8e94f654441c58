//! Common parts of the libraries with an interface in C: `libweir.so` and `libweirpcap.so`.
//!
//! | module | what it has |
//! |---|---|
//! | [`stop`] | ends a wait from other threads and signal handlers |
//! | [`panics`] | no panic leaves a library, and none is printed |
//! | [`cancel`] | a thread that waits may be cancelled |
//! | [`limits`] | how long a wait is at a time |

pub mod cancel;
pub mod limits;
pub mod panics;
pub mod stop;

pub use panics::caught;
pub use stop::Stop;
