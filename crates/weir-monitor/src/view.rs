//! The displayed data: the state of a flow monitor at one moment, and the changes since the previous view.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use weir_export::{Counts, Origin};
use weir_flow::{Counters, FlowRecord, Totals};

/// The state of a flow monitor at one moment. Counts are since its start, rates are since the previous view.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Number of the view, counted from 1.
    pub number: u64,
    /// The time at which the view was made, in nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Time since the start of the monitor.
    pub uptime: Duration,
    /// Every source, with its ledger.
    pub sources: Vec<SourceView>,
    /// Frames that the monitor has counted, and their bytes on the wire.
    pub delivered: TrafficCounts,
    /// Rates of these frames and bytes.
    pub rates: Rates,
    /// Frames that were lapped because the monitor was too slow.
    pub lapped: u64,
    /// Frames lost per second, at all places and by the monitor.
    pub lost_per_second: f64,
    /// Counters of the flow table.
    pub counters: Counters,
    /// The most flows that the table can hold.
    pub capacity: u64,
    /// Flows that began per second.
    pub began_per_second: f64,
    /// Flow records of flows that ended, or of parts of them.
    pub records: u64,
    /// The exports of these records.
    pub exports: Vec<ExportView>,
    /// Traffic of each protocol, the one with the most bytes first.
    pub protocols: Vec<Protocol>,
    /// Flows in the table with the highest rates, the highest first. Their number is limited.
    pub flows: Arc<Vec<FlowView>>,
    /// Number of flows in the table that are not in `flows`.
    pub flows_left_out: u64,
    /// Addresses with the highest rates, the highest first.
    pub talkers: Vec<Talker>,
    /// Interfaces, indexed by [`FlowRecord::interface`].
    pub origins: Arc<Vec<Origin>>,
    /// The last messages for the user, such as that a source has appeared or vanished.
    pub news: Vec<String>,
}

/// A source and its ledger.
#[derive(Clone, Debug, Default)]
pub struct SourceView {
    /// Name of the source, as the user gave it: `eth0`, `host:eth0`.
    pub name: String,
    /// Name of the capture engine.
    pub engine: String,
    /// Frames that came to the hook.
    pub offered: u64,
    /// Frames that did not pass the filter.
    pub filtered: u64,
    /// Frames that the block list excluded.
    pub blocked: u64,
    /// Frames that sampling left out.
    pub sampled: u64,
    /// Frames that were written to the rings.
    pub captured: u64,
    /// Frames lost, by place.
    pub drops: BTreeMap<String, u64>,
    /// Frames that the NIC or its driver reports as lost before the hook; `None` if it reports none.
    pub missed_before: Option<u64>,
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Frames.
    pub packets: u64,
    /// Bytes of these frames: on the wire if the comment of the field says so, otherwise bytes of IP.
    pub bytes: u64,
}

/// Rates of frames and bits.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Frames per second.
    pub packets: f64,
    /// Bits per second.
    pub bits: f64,
}

impl TrafficCounts {
    /// Returns the difference to `before`.
    #[must_use]
    pub const fn since(self, before: TrafficCounts) -> TrafficCounts {
        TrafficCounts {
            packets: self.packets.saturating_sub(before.packets),
            bytes: self.bytes.saturating_sub(before.bytes),
        }
    }
}

impl Add for TrafficCounts {
    type Output = TrafficCounts;

    fn add(self, more: TrafficCounts) -> TrafficCounts {
        TrafficCounts { packets: self.packets + more.packets, bytes: self.bytes + more.bytes }
    }
}

impl From<Totals> for TrafficCounts {
    fn from(totals: Totals) -> TrafficCounts {
        TrafficCounts { packets: totals.packets, bytes: totals.bytes }
    }
}

impl Rates {
    /// Returns the average rates of these counts over `seconds` seconds.
    #[must_use]
    pub fn of(counts: TrafficCounts, seconds: f64) -> Rates {
        Rates {
            packets: counts.packets as f64 / seconds,
            bits: counts.bytes as f64 * 8.0 / seconds,
        }
    }
}

impl Add for Rates {
    type Output = Rates;

    fn add(self, more: Rates) -> Rates {
        Rates { packets: self.packets + more.packets, bits: self.bits + more.bits }
    }
}

/// A flow in the table.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowView {
    /// Counts of the flow, since it began or since the active time-out last expired.
    pub record: FlowRecord,
    /// Rates of both directions together.
    pub rates: Rates,
}

/// The traffic of one protocol above IP. Bytes are bytes of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Protocol {
    /// The protocol number of IANA.
    pub number: u8,
    /// Counts since the start.
    pub total: TrafficCounts,
    /// Current rates.
    pub rates: Rates,
}

/// An address with the rates of its traffic. Bits are bits of IP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Talker {
    /// The address.
    pub address: IpAddr,
    /// Number of its flows in the table.
    pub flows: u64,
    /// Rates of the traffic that it sends.
    pub sent: Rates,
    /// Rates of the traffic that it receives.
    pub received: Rates,
}

/// An export of flow records.
#[derive(Clone, Debug, Default)]
pub struct ExportView {
    /// Name for the user.
    pub name: String,
    /// Counts of its records.
    pub counts: Counts,
    /// How often a write was tried again because the disk was full.
    pub disk_full: u64,
    /// Whether the export has failed and takes no more records.
    pub has_failed: bool,
}
