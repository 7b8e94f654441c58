//! Which engine for a live interface, and why.

use crate::engines::af_packet::AfPacket;
use crate::engines::af_xdp::{AfXdp, AfXdpOptions};
use crate::engines::bpf::{Bpf, BpfOptions};
use crate::engines::pcap::Pcap;
use crate::error::{CaptureError, with_causes};
use crate::kernel::interface::InterfaceQuery;
use crate::setup::Setup;
use crate::source::Source;

/// Which engine is wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wish {
    /// The best that works.
    Auto,
    /// `bpf` or an error.
    Bpf,
    /// `af_xdp` or an error.
    AfXdp(AfXdpOptions),
    /// `af_packet` or an error.
    AfPacket,
    /// `pcap` or an error.
    Pcap,
}

/// Opens `iface` with the engine wished for, or with the best that works here; the source's
/// [`Info`](crate::Info) says why. `options_asked`: what the bpf engine alone can do was asked for, so
/// that no other engine will do. A refusal that would show only at the start comes here: an engine whose
/// rings are handed out cannot be exchanged.
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
    check_queues(iface, setup)?;
    choose(iface, setup, wish, options, options_asked)
}

/// Refuses feeds of queues that the interface does not have: no frame would ever be in them.
fn check_queues(iface: &str, setup: &Setup) -> Result<(), CaptureError> {
    let Some(asked) = setup.feeds.iter().filter_map(|feed| feed.queue).max() else { return Ok(()) };
    match InterfaceQuery::new()?.rx_queues(iface) {
        Some(have) if asked >= have => {
            let have = match have {
                1 => "one RX queue, @q0".to_owned(),
                many => format!("{many} RX queues, @q0 to @q{}", many - 1),
            };
            Err(CaptureError::Options(format!("{iface}@q{asked}: {iface} has {have}")))
        }
        _ => Ok(()),
    }
}

fn choose(
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
        Wish::AfXdp(options) => {
            let mut af_xdp = AfXdp::open(iface, setup.clone(), options)?;
            af_xdp.set_why("asked for".to_owned());
            Ok(Box::new(af_xdp))
        }
        Wish::Pcap => {
            let mut pcap = Pcap::open(iface, setup.clone())?;
            pcap.set_why("asked for".to_owned());
            Ok(Box::new(pcap))
        }
        Wish::Auto if options_asked => bpf("only bpf has what was asked for"),
        Wish::Auto => match bpf("the fastest here: frames are copied once, in the kernel") {
            Err(refusal) if another_engine_helps(&refusal) => {
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

/// Whether an engine without BPF can do what this kernel, or its administrator, refuses the bpf engine.
/// What is wrong with the interface or the options is wrong for all of them.
fn another_engine_helps(refusal: &CaptureError) -> bool {
    use CaptureError::{Attach, Bpf, NoRights, RealTimeKernel};
    matches!(refusal, Attach { .. } | Bpf { .. } | NoRights { .. } | RealTimeKernel)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_refuses_bpf_is_no_reason_to_refuse_the_run() {
        let iface = || "eth0".to_owned();
        let source = std::io::Error::from_raw_os_error(libc::ERANGE);
        assert!(another_engine_helps(&CaptureError::Attach {
            iface: iface(),
            hook: iface(),
            source
        }));
        assert!(another_engine_helps(&CaptureError::RealTimeKernel));
        assert!(!another_engine_helps(&CaptureError::InterfaceDown { iface: iface() }));
        assert!(!another_engine_helps(&CaptureError::Options("--snaplen 0".into())));
    }
}
