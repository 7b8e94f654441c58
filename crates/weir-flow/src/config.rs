//! How frames are grouped into flows, and errors of these settings.

use std::time::Duration;

use thiserror::Error;

use crate::limits::{FLOWS_MAX, FLOWS_MIN, TIMEOUT_MAX, TIMEOUT_MIN};
use crate::lines::NoMemory;

/// The meaning of `bytes` in a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Octets {
    /// The length in the IP header, without Ethernet padding, at most the bytes on the wire: IPFIX octetDeltaCount
    /// (1).
    #[default]
    Ip,
    /// `wire_len`: IPFIX layer2OctetDeltaCount (352), as Wireshark's conversations count.
    Wire,
}

/// How frames are grouped into flows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowConfig {
    /// Most flows at the same time, 92 bytes each. See [`FLOWS_MIN`], [`FLOWS_MAX`].
    pub flows_max: u64,
    /// A flow ends after this time without a frame; `None`: never. See [`TIMEOUT_MIN`], [`TIMEOUT_MAX`].
    pub idle_timeout: Option<Duration>,
    /// A flow that continues is recorded after this time, and counted from zero again; `None`: never.
    pub active_timeout: Option<Duration>,
    /// Both directions are counted as one flow. Source: RFC 5103.
    pub biflow: bool,
    /// The VLAN (the outermost id) is part of the flow key.
    pub by_vlan: bool,
    /// The interface is part of the flow key.
    pub by_interface: bool,
    /// The bytes that are counted.
    pub octets: Octets,
}

impl Default for FlowConfig {
    /// Returns settings for a million flows of one direction; 15 s idle, 60 s active.
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

/// An error of creating a flow table.
#[derive(Debug, Error)]
pub enum FlowError {
    /// The number of flows is outside [`FLOWS_MIN`] to [`FLOWS_MAX`].
    #[error("a flow table of {0} flows: it can have {FLOWS_MIN} to {FLOWS_MAX}")]
    Flows(u64),
    /// A time-out is outside [`TIMEOUT_MIN`] to [`TIMEOUT_MAX`].
    #[error("a time-out of {0:?}: it can be {TIMEOUT_MIN:?} to {TIMEOUT_MAX:?}, or none")]
    Timeout(Duration),
    /// The memory cannot be allocated.
    #[error(transparent)]
    NoMemory(#[from] NoMemory),
}
