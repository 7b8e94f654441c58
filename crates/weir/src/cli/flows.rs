//! The command line of `weir flows`.

use std::net::SocketAddr;
use std::time::Duration;

use clap::Args;

use super::input::InputArgs;
use crate::flows::target::ExportTarget;
use crate::units;

/// `weir flows`.
#[derive(Args, Debug)]
#[command(override_usage = "weir flows [OPTIONS] <SOURCE>... [FILTER]")]
pub struct FlowsArgs {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub flows: FlowMonitorArgs,
    #[command(flatten)]
    pub show: ShowArgs,
    /// Count flows in the kernel, at TC or XDP: no frame is copied, and the table is read in place. For interfaces;
    /// --hook, --direction, --consume and --duration select the frames, --flows-max is for each CPU
    #[arg(long)]
    pub in_kernel: bool,
}

/// Settings of the flow table, and of the exports of flow records.
#[derive(Args, Clone, Debug)]
pub struct FlowMonitorArgs {
    /// End a flow after this time without a frame; 0s: never
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::duration)]
    pub idle_timeout: Duration,
    /// Report a flow that goes on after this time, and start its counts again; 0s: never
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub active_timeout: Duration,
    /// Both directions of a connection are one flow, from the side that was seen to send first, with counts of each
    /// direction (RFC 5103)
    #[arg(long)]
    pub biflow: bool,
    /// Frames of different VLANs are different flows
    #[arg(long)]
    pub vlan: bool,
    /// Most flows that are kept at a time, 92 bytes each; a further one ends another early [default: 1M; in the kernel
    /// 131072 for each CPU]
    #[arg(long, value_name = "N", value_parser = units::count)]
    pub flows_max: Option<u64>,
    /// Number of flows in the table at the end, those with most bytes first
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
    /// Send flows that have ended to a collector or into files: ipfix://HOST[:PORT] (UDP), ipfix+tcp://HOST[:PORT],
    /// parquet:DIRECTORY, json:FILE. May be given several times
    #[arg(long, value_name = "TARGET")]
    pub export: Vec<ExportTarget>,
    /// Time after which a new Parquet file is begun
    #[arg(long, value_name = "TIME", default_value = "5m", value_parser = units::duration)]
    pub parquet_every: Duration,
    /// The number by which collectors tell this monitor from others of this machine (IPFIX: observationDomainId)
    #[arg(long, value_name = "N", default_value_t = FlowMonitorArgs::OBSERVATION_DOMAIN)]
    pub observation_domain: u32,
}

impl FlowMonitorArgs {
    /// Default time after which a new Parquet file is begun.
    pub const PARQUET_EVERY: Duration = Duration::from_secs(5 * 60);
    /// Default number of the monitor.
    pub const OBSERVATION_DOMAIN: u32 = 1;
}

/// Settings of the displays of running flows.
#[derive(Args, Clone, Debug)]
pub struct ShowArgs {
    /// Serve a page with rates, losses, talkers and flows, and /metrics for Prometheus, at this address:
    /// 127.0.0.1:8080. Whoever can connect there sees them
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::address)]
    pub http: Option<SocketAddr>,
    /// Plain text, though a terminal could have the live table
    #[arg(long)]
    pub plain: bool,
}
