//! Ports of DPDK's as sources, where this build has that engine.

use anyhow::{Result, bail};
use weir_capture::{Kind, Opener, Setup};

use crate::cli::{CaptureArgs, EngineName};
use crate::source_name::SourceName;

/// Refuses ports that this build or this run cannot have.
pub fn check(args: &CaptureArgs) -> Result<()> {
    for source in &args.sources {
        match source {
            SourceName::Interface { iface, .. } if args.engine == EngineName::Dpdk => bail!(
                "--engine dpdk takes no interface of the kernel; name a device of DPDK's: \
                 dpdk:net_af_packet0,iface={iface}, or a PCI address as dpdk:0000:03:00.0"
            ),
            SourceName::Dpdk(device) => check_port(device, args)?,
            _ => {}
        }
    }
    Ok(())
}

#[cfg(feature = "dpdk")]
fn check_port(device: &str, args: &CaptureArgs) -> Result<()> {
    let device = named(device)?;
    if device.takes_from_stack() && !args.consume {
        bail!(
            "dpdk:{device} takes frames away from the stack: say so with --consume, or watch the interface \
             with --engine bpf"
        );
    }
    Ok(())
}

#[cfg(feature = "dpdk")]
fn named(device: &str) -> Result<weir_capture::dpdk::Device> {
    weir_capture::dpdk::Device::new(device).map_err(anyhow::Error::msg)
}

/// What the port is, as far as its memory goes.
#[cfg(feature = "dpdk")]
pub fn kind(device: &str, args: &CaptureArgs) -> Kind {
    // A name that is none is refused before or after.
    named(device).map_or(Kind::Buffered, |device| weir_capture::dpdk::kind(&device, args.queues))
}

/// What opens the port.
#[cfg(feature = "dpdk")]
pub fn opener(device: &str, setup: Setup, args: &CaptureArgs) -> Result<Opener> {
    use crate::cli::TimestampName;
    use weir_capture::dpdk::{Dpdk, DpdkOptions, Stamps};
    let device = named(device)?;
    let options = DpdkOptions {
        queues: args.queues,
        record_queue: args.record_queue,
        hugepages: args.hugepages,
        stamps: match args.timestamp {
            TimestampName::Hook | TimestampName::Copy => Stamps::Copier,
            TimestampName::Nic => Stamps::Driver,
        },
    };
    Ok(Box::new(move || Ok(Box::new(Dpdk::open(&device, setup, options)?))))
}

#[cfg(not(feature = "dpdk"))]
fn check_port(device: &str, _args: &CaptureArgs) -> Result<()> {
    bail!(
        "dpdk:{device}: this build has no engine dpdk; install libdpdk-dev and build with \
         `cargo build --release -p weir --features dpdk` (docs/dpdk.md)"
    )
}

/// As good as any: a build without the engine refuses its ports.
#[cfg(not(feature = "dpdk"))]
pub fn kind(_device: &str, _args: &CaptureArgs) -> Kind {
    Kind::Buffered
}

/// Says that there is no such engine.
#[cfg(not(feature = "dpdk"))]
pub fn opener(device: &str, _setup: Setup, args: &CaptureArgs) -> Result<Opener> {
    check_port(device, args)?;
    unreachable!("refused above")
}
