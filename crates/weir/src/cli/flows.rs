//! The command line of `weir flows`.

use std::time::Duration;

use clap::Args;

use super::input::InputArgs;
use crate::units;

/// `weir flows`.
#[derive(Args, Debug)]
#[command(override_usage = "weir flows [OPTIONS] <SOURCE>...")]
pub struct FlowsArgs {
    #[command(flatten)]
    pub input: InputArgs,
    #[command(flatten)]
    pub flows: FlowMonitorArgs,
}

/// How frames become flows.
#[derive(Args, Clone, Debug)]
pub struct FlowMonitorArgs {
    /// End a flow after so long without a frame; 0s: never
    #[arg(long, value_name = "TIME", default_value = "15s", value_parser = units::duration)]
    pub idle_timeout: Duration,
    /// Report a flow that goes on after so long, and count it anew; 0s: never
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = units::duration)]
    pub active_timeout: Duration,
    /// Both directions of a connection are one flow, of who was seen to send first, with counts of each (RFC 5103)
    #[arg(long)]
    pub biflow: bool,
    /// Frames of different VLANs are different flows
    #[arg(long)]
    pub vlan: bool,
    /// Flows that are kept at once, 92 bytes each; a new one beyond them ends another early
    #[arg(long, value_name = "N", default_value = "1M", value_parser = units::count)]
    pub flows_max: u64,
    /// How many flows the table has, those with most bytes first
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub top: usize,
}
