//! Which engine for a live interface, and why.

use crate::af_packet::AfPacket;
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
    let bpf = |why: &str| -> Result<Box<dyn Source>, CaptureError> {
        let mut bpf = Bpf::open(iface, setup.clone(), options)?;
        bpf.set_why(why.to_owned());
        Ok(Box::new(bpf))
    };
    let af_packet = |why: String| -> Result<Box<dyn Source>, CaptureError> {
        let mut af_packet = AfPacket::open(iface, setup.clone())?;
        af_packet.set_why(why);
        Ok(Box::new(af_packet))
    };
    match wish {
        Wish::Bpf => bpf("asked for"),
        Wish::AfPacket => af_packet("asked for".to_owned()),
        Wish::Auto if options_asked => bpf("only bpf has the hook that was asked for"),
        Wish::Auto => match bpf("the fastest here: frames are copied once, in the kernel") {
            Err(refusal @ (CaptureError::Bpf { .. } | CaptureError::NoRights { .. })) => {
                let why = format!("bpf cannot be used: {}", with_causes(&refusal));
                // Without either right, what the better engine needs is the better advice.
                af_packet(why).map_err(|error| match error {
                    CaptureError::NoRights { .. } => refusal,
                    error => error,
                })
            }
            other => other,
        },
    }
}

fn with_causes(error: &dyn std::error::Error) -> String {
    match error.source() {
        None => error.to_string(),
        Some(cause) => format!("{error}: {}", with_causes(cause)),
    }
}
