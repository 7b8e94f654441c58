//! How frames become flows, and why there is no table.

use std::time::Duration;

use thiserror::Error;

use crate::limits::{FLOWS_MAX, FLOWS_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use crate::lines::NoMemory;

/// Meaning of `bytes` of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// The length in the IP header, without Ethernet padding, at most the bytes on the wire: IPFIX octetDeltaCount
    /// 1.
    #[default]
    Ip,
    /// `wire_len`: IPFIX layer2OctetDeltaCount 352; conversations of Wireshark.
    Wire,
}

/// How frames become flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Flows at the same time, 92 bytes each. See [`FLOWS_MIN`], [`FLOWS_MAX`].
    pub flows_max: u64,
    /// A flow ends after so long without a frame; `None`: never. See [`TIMEOUT_MIN`], [`TIMEOUT_MAX`].
    pub idle_timeout: Option<Duration>,
    /// A flow that goes on is recorded after so long and counted anew; `None`: never.
    pub active_timeout: Option<Duration>,
    /// Both directions are one flow. Source: RFC 5103.
    pub biflow: bool,
    /// Flows of different VLANs (the outermost id) are different.
    pub by_vlan: bool,
    /// Flows of different interfaces are different.
    pub by_interface: bool,
    /// Bytes that are counted.
    pub octets: Octets,
}

impl Default for FlowConfig {
    /// A million flows of one direction; 15 s idle, 60 s active.
    fn default() -> FlowConfig {
        FlowConfig {
            flows_max: 1 << 20,
            idle_timeout: Some(Duration::from_secs(15)),
            active_timeout: Some(Duration::from_secs(60)),
            biflow: false,
            by_vlan: false,
            by_interface: false,
            octets: Octets::Ip,
        }
    }
}

/// Why there is no table.
#[derive(Debug, Error)]
pub enum FlowError {
    /// Outside [`FLOWS_MIN`] to [`FLOWS_MAX`].
    #[error("a flow table of {0} flows: it can have {FLOWS_MIN} to {FLOWS_MAX}")]
    Flows(u64),
    /// Outside [`TIMEOUT_MIN`] to [`TIMEOUT_MAX`].
    #[error("a time-out of {0:?}: it can be {TIMEOUT_MIN:?} to {TIMEOUT_MAX:?}, or none")]
    Timeout(Duration),
    /// No memory.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}
