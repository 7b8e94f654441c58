//! Errors of the table in the kernel, each with a remedy.

use std::io;

use thiserror::Error;
use weir_capture::CaptureError;
use weir_flow::FlowError;
use weir_flow::limits::FLOWS_MIN;

use crate::limits::{FLOWS_OF_A_CPU_MAX, INTERFACES_MAX, RECORDS_MAX, RECORDS_MIN};

/// An error of a flow table in the kernel, with a remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum KernelFlowError {
    /// The number of flows is outside the limits.
    #[error(
        "a flow table of {0} flows a CPU: in the kernel it can have {FLOWS_MIN} to {FLOWS_OF_A_CPU_MAX}"
    )]
    Flows(u64),
    /// An error of the settings that tables in user space have, too: a time-out outside the limits.
    #[error(transparent)]
    Flow(#[from] FlowError),
    /// `biflow` is set, which the kernel does not support.
    #[error(
        "biflows cannot be counted in the kernel: the two directions of a flow come on different CPUs, each of which \
         has a table of its own; count in one direction and merge the records, or count captured frames"
    )]
    Biflow,
    /// XDP was asked to count sent frames.
    #[error("XDP sees received frames only; count sent ones at TC, or received ones only")]
    SentAtXdp,
    /// TC was asked to drop the counted frames.
    #[error("frames can end at XDP only; count at XDP, or let them go on")]
    ConsumeAtTc,
    /// `records_max` is not a power of two, or is outside the limits.
    #[error(
        "{0} records that wait for user space: a power of two from {RECORDS_MIN} to {RECORDS_MAX} is possible"
    )]
    Records(u32),
    /// No interface is given, or too many are.
    #[error("{0} interfaces: a table can have 1 to {INTERFACES_MAX}")]
    Interfaces(usize),
    /// The link type of the interface has no Ethernet headers.
    #[error("{iface} carries IP packets without Ethernet headers; count captured frames there")]
    NotEthernet {
        /// The name of the interface.
        iface: String,
    },
    /// The interface is not usable, or a program cannot be attached to it.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The kernel has no memory for the maps, or refuses the programs.
    #[error("loading the flow table, {bytes} bytes for {cpus} CPUs; fewer flows need less")]
    Load {
        /// Size of the maps that this process maps.
        bytes: u64,
        /// Number of possible CPUs.
        cpus: u32,
        /// The kernel's error.
        source: libbpf_rs::Error,
    },
    /// The process lacks the capabilities.
    #[error(
        "counting flows in the kernel needs CAP_BPF and CAP_NET_ADMIN; run as root, or give them to the binary"
    )]
    NoRights,
    /// The operating system refused another request.
    #[error("{doing}")]
    Os {
        /// The action that failed.
        doing: &'static str,
        /// The error.
        source: io::Error,
    },
}

impl KernelFlowError {
    pub(crate) fn os(doing: &'static str) -> impl FnOnce(io::Error) -> KernelFlowError {
        move |source| KernelFlowError::Os { doing, source }
    }
}
