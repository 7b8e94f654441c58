//! Options of the engine `dpdk`.

use super::ffi::Facts;
use crate::engines::af_xdp::Queues;
use crate::error::CaptureError;

/// The place where frames get their time stamps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Stamps {
    /// In the poller, when it copies the frame.
    #[default]
    Copier,
    /// In the driver, if its time stamps are time since 1970.
    Driver,
}

/// Options of a DPDK port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DpdkOptions {
    /// Queues to set up: all, or 0 to the last of the range.
    pub queues: Queues,
    /// Whether to record the queue of every frame as an option.
    pub record_queue: bool,
    /// Whether to use huge pages.
    pub hugepages: bool,
    /// The place where frames get their time stamps.
    pub stamps: Stamps,
}

/// Returns the nanoseconds of one tick of the driver's time stamps, if the driver is to set them. They must be time
/// since 1970.
pub(super) fn stamp_ns(facts: &Facts, stamps: Stamps) -> Result<Option<u64>, CaptureError> {
    match (stamps, facts.driver.as_str()) {
        (Stamps::Copier, _) => Ok(None),
        // The stamps are in microseconds, also if those in the file are in nanoseconds. Source: DPDK 22.11,
        // drivers/net/pcap/pcap_ethdev.c.
        (Stamps::Driver, "net_pcap") => Ok(Some(1000)),
        (Stamps::Driver, driver) => Err(CaptureError::Options(format!(
            "--timestamp nic: stamps of {driver} do not tell the time of day{}; leave it out",
            if facts.can_stamp { ", but count ticks of the NIC" } else { ": it has none" }
        ))),
    }
}
