//! Virtual machines of the bench: a stock Debian kernel, busybox, and weir, booted by QEMU.
//!
//! | module | contents |
//! |---|---|
//! | `archive` | writes an initramfs in memory |
//! | `image` | the contents of a guest's initramfs |
//! | `machine` | QEMU, and commands that run in the guest |
//!
//! A guest has the port of `weir guest`, a QEMU monitor for the daemon, and a second port over which the bench runs
//! commands in the guest. Every wait has a time limit: a guest that does not boot is an error, not a hang.

mod archive;
mod image;
mod machine;

pub(crate) use image::Image;
pub(crate) use machine::{Accelerator, Guest, Hardware, Sockets};
