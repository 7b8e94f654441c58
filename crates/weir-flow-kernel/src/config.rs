//! Settings: which frames are counted, and where.

use weir_capture::Direction;
use weir_capture::bpf::TcAttach;
use weir_flow::limits::{FLOWS_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use weir_flow::{FlowConfig, FlowError};

use crate::error::KernelFlowError;
use crate::limits::{FLOWS_OF_A_CPU_MAX, INTERFACES_MAX, RECORDS_MAX, RECORDS_MIN};

/// Where frames are counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Hook {
    /// TC: received and sent frames, as the stack has them (joined by GRO, not yet cut by TSO).
    #[default]
    Tc,
    /// XDP: received frames, before the stack, in the driver if it supports that. VLAN tags that the driver removes are
    /// not seen.
    Xdp,
}

/// Settings: which frames are counted, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelConfig {
    /// How frames become flows. `flows_max` is for each possible CPU. A flow takes 96 bytes in the kernel, and 24
    /// in this process once it was reported as idle. `biflow` is refused.
    pub flow: FlowConfig,
    /// Where frames are counted.
    pub hook: Hook,
    /// Received frames, sent ones, or both. At XDP there are only received ones.
    pub direction: Direction,
    /// Records of each CPU that wait for user space: a power of two, 96 bytes each. Further records are lost, and
    /// counted.
    pub records_max: u32,
    /// XDP: frames are dropped here, and do not reach the stack. For measurements.
    pub consume: bool,
    /// TC: whether programs are attached by tcx or clsact.
    pub tc_attach: TcAttach,
}

impl Default for KernelConfig {
    /// 131,072 flows for each CPU, at TC, both directions.
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

    /// Buckets in each half of a CPU's table.
    pub(crate) fn half_buckets(&self) -> u32 {
        let slots = 2 * crate::layout::BUCKET_SLOTS as u64;
        u32::try_from(self.flow.flows_max.div_ceil(slots)).expect("the limit is below 2^32")
    }
}
