//! The command line of `weir block`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueEnum};

use crate::units;

/// `weir block`.
#[derive(Args, Debug)]
pub struct BlockArgs {
    /// What to exclude: 10.0.0.1, 2001:db8::/32, or both directions of 'tcp 10.0.0.1:80 10.0.0.2:4711'; without
    /// entries, show the list
    #[arg(value_name = "ENTRY")]
    pub entries: Vec<String>,
    /// A file with more entries, one a line; text behind a # is ignored
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Exclude the entries only for this time: 30s, 10m, 1h, 7d; up to 30d [default with --from: 10m]
    #[arg(long = "for", value_name = "TIME", value_parser = units::block_time)]
    #[arg(conflicts_with_all = ["remove", "clear"])]
    pub time: Option<Duration>,
    /// Remove the given entries from the list
    #[arg(long)]
    pub remove: bool,
    /// Remove all entries from the list
    #[arg(long, conflicts_with_all = ["entries", "file", "remove"])]
    pub clear: bool,
    /// Exclude the traffic of alerts that Suricata writes to this file (eve.json); - is standard input
    #[arg(long, value_name = "PATH", conflicts_with_all = ["entries", "file", "remove", "clear"])]
    pub from: Option<PathBuf>,
    /// Wait for more alerts, also if the file is renamed and created again; and for the daemon and the feed
    #[arg(long, requires = "from")]
    pub follow: bool,
    /// The part of an alert to exclude
    #[arg(long, value_enum, default_value_t, requires = "from")]
    pub what: WhatName,
    /// Only alerts of this severity or a worse one: 1 is the worst
    #[arg(long, value_name = "N", requires = "from")]
    pub max_severity: Option<u64>,
    /// Only alerts with this signature: its number, or a part of its text; may be given several times
    #[arg(long, value_name = "ID|TEXT", requires = "from")]
    pub signature: Vec<String>,
    /// Only alerts with this in their category; may be given several times
    #[arg(long, value_name = "TEXT", requires = "from")]
    pub category: Vec<String>,
    /// The --control socket of a capture; without it, the daemon is asked
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH", conflicts_with = "control")]
    pub socket: Option<PathBuf>,
    /// The feed to change: at the daemon, all of your feeds with this name; of a capture, if it has named feeds
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object; with --from, with one for each entry, and one at the end
    #[arg(long)]
    pub json: bool,
}

/// The part of an alert to exclude.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum WhatName {
    /// Its flow, in both directions; alerts of protocols without ports are passed over
    #[default]
    Flow,
    /// The address that the packet came from
    Source,
    /// The address that the packet went to
    Destination,
}
