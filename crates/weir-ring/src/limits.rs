//! Limits of this crate. Those of a ring's size are in [`geometry`](crate::geometry), those of its header in
//! [`header`](crate::header).

/// Most rings that one consumer sleeps on: a ring per CPU of the largest machines.
pub const RINGS_MAX: usize = 4096;
/// Most writers' sides that one consumer has channels to.
pub const CHANNELS_MAX: usize = 1024;
