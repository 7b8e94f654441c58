//! Declaration of the engine `dpdk`. In builds without the engine, it refuses all ports with the reason.

use crate::engines::declaration::{Declaration, Patterns, QueueUse, Takes, Target, ethernet};
use crate::error::CaptureError;

pub(crate) static DECLARATION: Declaration = Declaration {
    name: "dpdk",
    purpose: "A DPDK port, which is named dpdk:DEVICE; not in every build",
    takes: Takes::Devices { prefix: "dpdk:", example: "dpdk:DEVICE,ARGUMENT=VALUE" },
    patterns: Patterns::None,
    auto: None,
    is_of_daemon: false,
    fills_bpf_arrays: false,
    flags: &[
        "--consume",
        "--record-queue",
        "--queues",
        "--timestamp",
        "--timestamp nic",
        "--hugepages",
    ],
    // The capabilities depend on the device and its driver: docs/dpdk.md.
    rights: &[],
    queues: QueueUse::OneRange,
    memory: built::memory,
    link_type: ethernet,
    taken_from: |target| taken_from(target.text()),
    check: |target, options| match target {
        Target::Text(_) => built::check(target.text(), options),
        _ => Err(CaptureError::Options(format!(
            "--engine dpdk takes no interface of the kernel; name a device of DPDK's: \
             dpdk:net_af_packet0,iface={}, or a PCI address as dpdk:0000:03:00.0",
            target.iface()
        ))),
    },
    open: built::open,
};

/// Returns the interface from which a device takes frames away: of DPDK's drivers, only `net_af_xdp` does so.
fn taken_from(device: &str) -> Option<&str> {
    let mut words = device.split(',');
    words.find_map(|word| word.strip_prefix("iface=")).filter(|_| device.contains("net_af_xdp"))
}

#[cfg(feature = "dpdk")]
mod built {
    use super::super::{Device, Dpdk, DpdkOptions, Stamps, memory as memory_of};
    use super::{CaptureError, Target};
    use crate::engines::declaration::Opening;
    use crate::engines::options::{EngineOptions, Timestamp};
    use crate::memory::Memory;
    use crate::source::Source;

    fn device(text: &str) -> Result<Device, CaptureError> {
        Device::new(text).map_err(CaptureError::Options)
    }

    pub(super) fn memory(target: &Target, options: &EngineOptions) -> Memory {
        // `check` refuses an invalid name.
        device(target.text()).map_or(Memory::BUFFERED, |device| memory_of(&device, options.queues))
    }

    pub(super) fn check(text: &str, options: &EngineOptions) -> Result<(), CaptureError> {
        let device = device(text)?;
        if device.takes_from_stack() && !options.consume {
            return Err(CaptureError::Options(format!(
                "dpdk:{device} takes frames away from the stack: say so with --consume, or watch the interface \
                 with --engine bpf"
            )));
        }
        Ok(())
    }

    pub(super) fn open(opening: Opening<'_>) -> Result<Box<dyn Source>, CaptureError> {
        let options = DpdkOptions {
            queues: opening.options.queues,
            record_queue: opening.options.record_queue,
            hugepages: opening.options.hugepages,
            stamps: match opening.options.timestamp {
                Timestamp::Hook | Timestamp::Copy => Stamps::Copier,
                Timestamp::Nic => Stamps::Driver,
            },
        };
        let device = device(opening.target.text())?;
        Ok(Box::new(Dpdk::open(&device, opening.setup, options)?))
    }
}

#[cfg(not(feature = "dpdk"))]
mod built {
    use super::{CaptureError, Target};
    use crate::engines::declaration::Opening;
    use crate::engines::options::EngineOptions;
    use crate::memory::Memory;
    use crate::source::Source;

    /// Returns any value, since all ports are refused.
    pub(super) fn memory(_: &Target, _: &EngineOptions) -> Memory {
        Memory::ONE_RING
    }

    pub(super) fn check(text: &str, _: &EngineOptions) -> Result<(), CaptureError> {
        Err(CaptureError::Options(format!(
            "dpdk:{text}: this build has no engine dpdk; install libdpdk-dev and build with \
             `cargo build --release -p weir --features dpdk` (docs/dpdk.md)"
        )))
    }

    pub(super) fn open(opening: Opening<'_>) -> Result<Box<dyn Source>, CaptureError> {
        check(opening.target.text(), opening.options)?;
        unreachable!("refused above")
    }
}

#[cfg(test)]
mod tests {
    use super::taken_from;

    #[test]
    fn ports_of_dpdk_on_af_xdp_take_from_interfaces_of_the_kernel() {
        assert_eq!(taken_from("net_af_xdp0,iface=eth0,queue_count=2"), Some("eth0"));
        assert_eq!(taken_from("net_af_packet0,iface=eth0"), None);
        assert_eq!(taken_from("0000:03:00.0"), None);
    }
}
