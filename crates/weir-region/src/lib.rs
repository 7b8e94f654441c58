//! The memory that a virtual machine shares with a daemon on its host.
//!
//! A guest has two QEMU devices (`ivshmem-plain`). The *region*, which the guest can only read, has a ring for each
//! feed of the guest. The *words* are a page that the guest writes, with a line for each feed. Both begin with a
//! [`Header`], by which the guest finds them among its devices.
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
//! Neither side trusts the memory that the other writes. A threshold is for the host only a request to be woken. The
//! guest reads a ring like any other (`weir-ring`), within its own bounds.
#![forbid(unsafe_code)]

pub mod header;
pub mod limits;
pub mod place;
pub mod places;
pub mod words;

pub use header::{Header, Kind, NotOurs, Token};
pub use place::Place;
pub use places::Places;
