//! The command lines of `weir filter` and `weir block`, which change a running capture.

use std::path::PathBuf;

use clap::Args;

/// `weir filter`.
#[derive(Args, Debug)]
pub struct FilterArgs {
    /// The filter, as tcpdump has it: in quotes, or its words; '' takes every frame
    #[arg(value_name = "EXPR", required = true)]
    pub filter: Vec<String>,
    /// The capture's socket: what it was given as --control
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Which of its feeds, if they have names
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}

/// `weir block`.
#[derive(Args, Debug)]
pub struct BlockArgs {
    /// What to leave out: 10.0.0.1, 2001:db8::/32, or both directions of 'tcp 10.0.0.1:80 10.0.0.2:4711'; none: show
    /// what is left out
    #[arg(value_name = "ENTRY")]
    pub entries: Vec<String>,
    /// More of them, one a line; what is behind a # is passed over
    #[arg(long, value_name = "PATH")]
    pub file: Option<PathBuf>,
    /// Take all the entries given out of the list
    #[arg(long)]
    pub remove: bool,
    /// Take everything out of it
    #[arg(long, conflicts_with_all = ["entries", "file", "remove"])]
    pub clear: bool,
    /// The capture's socket: what it was given as --control
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// Which of its feeds, if they have names
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}
