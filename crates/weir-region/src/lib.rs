//! The memory that a virtual machine shares with a daemon on its host.
//!
//! A guest has two devices of QEMU's (`ivshmem-plain`): the *region*, which it can only read, with a ring for each of
//! its feeds; and the *words*, one page that it writes, with a line for each feed. Both begin with a [`Header`], by
//! which the guest finds them among its devices, however many others there are.
//!
//! | module | what it holds |
//! |---|---|
//! | [`header`] | what both begin with |
//! | [`place`] | the place of a ring in the region, and its line among the words |
//! | [`places`] | which places are taken; the host's |
//! | [`words`] | the guest's lines |
//! | [`limits`] | sizes and counts |
//!
//! ```text
//! region   header, zeros up to 1 MiB | ring | ring | free ...          a power of two of bytes, read-only in the guest
//! words    header | line of slot 0 | line of slot 1 | ...              4 KiB, 64 bytes each
//! ```
//!
//! Neither side trusts the other's words: the host takes a threshold as what it is, a wish to be woken; the guest
//! reads a ring as any other (`weir-ring`), behind its own bounds.
#![forbid(unsafe_code)]

pub mod header;
pub mod limits;
pub mod place;
pub mod places;
pub mod words;

pub use header::{Header, Kind, NotOurs, Token};
pub use place::Place;
pub use places::Places;
