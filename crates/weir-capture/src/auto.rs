//! Which engine for a live interface, and why.

use crate::bpf::{Bpf, BpfOptions};
use crate::error::CaptureError;
use crate::source::{Setup, Source};

/// Opens `iface` with the best engine that works here.
///
/// # Errors
/// That of the last engine tried.
pub fn open(
    iface: &str,
    setup: &Setup,
    options: BpfOptions,
) -> Result<Box<dyn Source>, CaptureError> {
    let mut bpf = Bpf::open(iface, setup.clone(), options)?;
    bpf.set_why("copies in the kernel".into());
    Ok(Box::new(bpf))
}
