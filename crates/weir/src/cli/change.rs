//! The command lines of `weir filter` and `weir block`, which change a running capture.

use std::path::PathBuf;

use clap::Args;

/// `weir filter`.
#[derive(Args, Debug)]
pub struct FilterArgs {
    /// The filter in tcpdump's syntax, in quotes or word by word; '' takes every frame
    #[arg(value_name = "EXPR", required = true)]
    pub filter: Vec<String>,
    /// The --control socket of the capture
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The feed to change, if the capture has named feeds
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}

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
    /// Remove the given entries from the list
    #[arg(long)]
    pub remove: bool,
    /// Remove all entries from the list
    #[arg(long, conflicts_with_all = ["entries", "file", "remove"])]
    pub clear: bool,
    /// The --control socket of the capture
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The feed to change, if the capture has named feeds
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}
