//! The command line of `weir extract`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use crate::units;

/// `weir extract`.
#[derive(Args, Debug)]
#[command(override_usage = "weir extract [OPTIONS] <DIR>...")]
pub struct ExtractArgs {
    /// Directories with recorded files (weir capture --write DIR/), or single files
    #[arg(required = true, value_name = "DIR")]
    pub paths: Vec<PathBuf>,
    /// Frames from this time on: 2026-11-26T09:27:19Z, '2026-11-26 09:27' and 09:27:19 (local time), 1795685239.5
    /// (seconds since 1970), -5m (five minutes ago)
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub from: Option<String>,
    /// Frames before this time
    #[arg(long, value_name = "TIME", allow_hyphen_values = true)]
    pub to: Option<String>,
    /// Frames that this filter takes, in the pcap filter language
    #[arg(short, long, value_name = "EXPR")]
    pub filter: Option<String>,
    /// Frames of a flow, both directions: a line of `weir flows --json`, which has its times, too; @FILE; or a
    /// Community ID (1:...)
    #[arg(long, value_name = "RECORD")]
    pub flow: Option<String>,
    /// Write to this file (- for standard output, the default where that is no terminal)
    #[arg(short, long, value_name = "PATH")]
    pub write: Option<PathBuf>,
    /// Format of the output
    #[arg(long, value_name = "FORMAT", default_value = "pcapng")]
    pub format: FormatName,
    /// Permissions of the files that --write creates, in octal, before the umask
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = units::file_mode)]
    pub file_mode: u32,
    /// End after this many frames
    #[arg(short = 'c', long, value_name = "N", value_parser = units::count)]
    pub frames: Option<u64>,
    /// Threads that read and filter [default: one for each CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Print on standard error what was read and what was not
    #[arg(long)]
    pub stats: bool,
    /// The same as one JSON object
    #[arg(long)]
    pub json: bool,
}

/// A format of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FormatName {
    /// All that is known of each frame
    Pcapng,
    /// For tools that read no pcapng: one link type, nanoseconds
    Pcap,
}
