//! The displayed data: the state of a flow monitor at one moment, and the changes since the view
//! before.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Add;
use std::sync::Arc;
use std::time::Duration;

use weir_export::{Counts, Origin};
use weir_flow::{Counters, FlowRecord, Totals};

/// A flow monitor at one moment. Counts are since its start, rates are those since the view before.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Counts views, from 1.
    pub number: u64,
    /// When it was made: nanoseconds since the Unix epoch.
    pub at_ns: u64,
    /// Since the start.
    pub uptime: Duration,
    /// Every source, with its ledger.
    pub sources: Vec<SourceView>,
    /// Frames that the monitor has counted, and their bytes on the wire.
    pub delivered: TrafficCounts,
    /// Of the same.
    pub rates: Rates,
    /// Frames that the monitor was too slow for, so that its rings were written over.
    pub lapped: u64,
    /// Frames lost a second, at all places and by the monitor.
    pub lost_per_second: f64,
    /// The flow table.
    pub counters: Counters,
    /// Flows that fit into it.
    pub capacity: u64,
    /// Flows that began a second.
    pub began_per_second: f64,
    /// Records of flows that ended, or of parts of them.
    pub records: u64,
    /// Where those go.
    pub exports: Vec<ExportView>,
    /// By number of the protocol (IANA), those with most bytes first.
    pub protocols: Vec<Protocol>,
    /// Flows that are in the table, as many as are kept for showing, those with the highest rate first.
    pub flows: Arc<Vec<FlowView>>,
    /// Flows in the table that are not among them.
    pub flows_left_out: u64,
    /// Addresses of those that send and receive most just now, the highest rate first.
    pub talkers: Vec<Talker>,
    /// Interfaces, by [`FlowRecord::interface`].
    pub origins: Arc<Vec<Origin>>,
    /// The last lines that were said of the run, for people: sources that come and go.
    pub news: Vec<String>,
}

/// A source and what became of its frames.
#[derive(Clone, Debug, Default)]
pub struct SourceView {
    /// As it was named: `eth0`, `host:eth0`.
    pub name: String,
    /// How it is captured.
    pub engine: String,
    /// Frames that came to the hook.
    pub offered: u64,
    /// Frames that the filter left out.
    pub filtered: u64,
    /// Frames that the block list left out.
    pub blocked: u64,
    /// Frames that sampling left out.
    pub sampled: u64,
    /// Frames written into the rings.
    pub captured: u64,
    /// Frames lost, by place.
    pub drops: BTreeMap<String, u64>,
    /// Losses that the NIC or its driver reports before the hook; `None` where nobody can tell.
    pub missed_before: Option<u64>,
}

/// Frames and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficCounts {
    /// Frames.
    pub packets: u64,
    /// Their bytes: on the wire where that is said, those of IP otherwise.
    pub bytes: u64,
}

/// Frames and bits a second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// Frames a second.
    pub packets: f64,
    /// Bits a second.
    pub bits: f64,
}

impl TrafficCounts {
    /// Counts since `before`.
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
    /// Rates of counts over so many seconds.
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

/// A flow that goes on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FlowView {
    /// Its counts so far, since it began or since the active time-out.
    pub record: FlowRecord,
    /// Of both directions.
    pub rates: Rates,
}

/// All traffic of a protocol above IP. Bytes are those of IP.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Protocol {
    /// IANA's number.
    pub number: u8,
    /// Since the start.
    pub total: TrafficCounts,
    /// Now.
    pub rates: Rates,
}

/// An address, and its sent and received traffic. Bytes are those of IP.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Talker {
    /// The address.
    pub address: IpAddr,
    /// In flows that are in the table now.
    pub flows: u64,
    /// Rates that it sends.
    pub sent: Rates,
    /// Rates that it receives.
    pub received: Rates,
}

/// An export and its records.
#[derive(Clone, Debug, Default)]
pub struct ExportView {
    /// As a user would name it.
    pub name: String,
    /// Its records.
    pub counts: Counts,
    /// How often its disk was found full, and tried again.
    pub disk_full: u64,
    /// Whether it has failed and takes no more.
    pub has_failed: bool,
}
