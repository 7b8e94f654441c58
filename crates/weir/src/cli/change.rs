//! The command line of `weir filter`, which changes a running capture.

use std::path::PathBuf;

use clap::Args;

/// `weir filter`.
#[derive(Args, Debug)]
#[command(
    after_help = "Changes a `weir capture`, `weir attach` or `weir flows` that was started with --control PATH: the \
    new filter applies to frames from now on. If the capture reads from a daemon (host:eth0), the daemon applies the \
    filter, to this capture only. Filters of the daemon's own sources are set in its configuration file, not by this \
    command. '' takes the filter off."
)]
pub struct FilterArgs {
    /// The filter in tcpdump's syntax, in quotes or word by word; '' takes every frame
    #[arg(value_name = "EXPR", required = true)]
    pub filter: Vec<String>,
    /// The socket that the capture was given as --control PATH
    #[arg(long, value_name = "PATH")]
    pub control: PathBuf,
    /// The feed to change, if the capture has named feeds
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}
