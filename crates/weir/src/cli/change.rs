//! The command line of `weir filter`, which changes a running capture.

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
