//! Settings of a flow table in the kernel: which frames are counted, and at which hook.

use weir_capture::Direction;
use weir_capture::bpf::TcAttach;
use weir_flow::limits::{FLOWS_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use weir_flow::{FlowConfig, FlowError};

use crate::error::KernelFlowError;
use crate::limits::{FLOWS_OF_A_CPU_MAX, INTERFACES_MAX, RECORDS_MAX, RECORDS_MIN};

/// The hook at which frames are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// TC: received and sent frames, as the network stack sees them (after GRO has joined them, before TSO splits
    /// them).
    #[default]
    Tc,
    /// XDP: received frames, before the network stack; in the driver if the driver supports XDP. VLAN tags that the
    /// NIC or driver has removed are not seen.
    Xdp,
}

/// Settings of a flow table in the kernel: which frames are counted, and at which hook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// How frames are grouped into flows. `flows_max` is the number for each possible CPU. A flow takes 96 bytes in
    /// the kernel, and 24 bytes in this process once it was reported as idle. `biflow` is refused.
    pub flow: FlowConfig,
    /// The hook at which frames are counted.
    pub hook: Hook,
    /// Received frames, sent frames, or both. XDP sees only received frames.
    pub direction: Direction,
    /// Capacity of each CPU's ring of records that wait for user space: a power of two, 96 bytes for each record.
    /// Records that do not fit are lost and counted.
    pub records_max: u32,
    /// XDP only: drops the counted frames, so that they do not reach the network stack. For measurements.
    pub consume: bool,
    /// TC only: whether the programs are attached through tcx or clsact.
    pub tc_attach: TcAttach,
}

impl Default for KernelConfig {
    /// Returns settings with 131,072 flows for each CPU, at TC, in both directions.
    fn default() -> KernelConfig {
        KernelConfig {
            flow: FlowConfig { flows_max: 1 << 17, ..FlowConfig::default() },
            hook: Hook::Tc,
            direction: Direction::Both,
            records_max: 1 << 15,
            consume: false,
            tc_attach: TcAttach::Best,
        }
    }
}

impl KernelConfig {
    pub(crate) fn check(&self, interfaces: usize) -> Result<(), KernelFlowError> {
        let flow = &self.flow;
        if !(FLOWS_MIN..=FLOWS_OF_A_CPU_MAX).contains(&flow.flows_max) {
            return Err(KernelFlowError::Flows(flow.flows_max));
        }
        for timeout in [flow.idle_timeout, flow.active_timeout].into_iter().flatten() {
            if !(TIMEOUT_MIN..=TIMEOUT_MAX).contains(&timeout) {
                return Err(FlowError::Timeout(timeout).into());
            }
        }
        if flow.biflow {
            return Err(KernelFlowError::Biflow);
        }
        if self.hook == Hook::Xdp && self.direction.takes_out() {
            return Err(KernelFlowError::SentAtXdp);
        }
        if self.hook == Hook::Tc && self.consume {
            return Err(KernelFlowError::ConsumeAtTc);
        }
        let records = self.records_max;
        if !records.is_power_of_two() || !(RECORDS_MIN..=RECORDS_MAX).contains(&records) {
            return Err(KernelFlowError::Records(records));
        }
        if !(1..=INTERFACES_MAX).contains(&interfaces) {
            return Err(KernelFlowError::Interfaces(interfaces));
        }
        Ok(())
    }

    /// Returns the number of buckets in each half of a CPU's table.
    pub(crate) fn half_buckets(&self) -> u32 {
        let slots = 2 * crate::layout::BUCKET_SLOTS as u64;
        u32::try_from(self.flow.flows_max.div_ceil(slots)).expect("the limit is below 2^32")
    }
}
