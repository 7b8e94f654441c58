//! The command line of `weir index`.

use std::path::PathBuf;

use clap::Args;

/// `weir index`.
#[derive(Args, Debug)]
#[command(override_usage = "weir index [OPTIONS] <DIR>...")]
pub struct IndexArgs {
    /// Directories that were recorded into (weir capture --write DIR/), or single files
    #[arg(required = true, value_name = "DIR")]
    pub paths: Vec<PathBuf>,
    /// Rebuild all indexes, also those that match their files
    #[arg(long)]
    pub all: bool,
    /// Change nothing, and say what would be done; exit with 1 if that is anything
    #[arg(long)]
    pub check: bool,
    /// Threads that read files [default: one a CPU]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub threads: Option<u16>,
    /// Say on standard output what was done as one JSON object
    #[arg(long)]
    pub json: bool,
}
