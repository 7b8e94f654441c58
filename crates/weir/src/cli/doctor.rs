//! The command line of `weir doctor`.

use clap::Args;

use crate::source_name::SourceName;

/// `weir doctor`.
#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Interfaces to look at: eth0, netns:NAME/eth0, netns:PID/eth0 [default, not for --apply and
    /// --undo: all in this network namespace]
    #[arg(value_name = "IFACE")]
    pub ifaces: Vec<SourceName>,
    /// Print one JSON object on standard output, and nothing else
    #[arg(long)]
    pub json: bool,
    /// Assume that the interfaces only receive copies of traffic: settings may then change what other traffic there
    /// would use
    #[arg(long)]
    pub monitoring_port: bool,
    /// Apply the settings of the plan; former values are kept under /run/weir-doctor
    #[arg(long, conflicts_with = "undo")]
    pub apply: bool,
    /// Restore what --apply changed
    #[arg(long)]
    pub undo: bool,
}
