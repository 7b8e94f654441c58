//! The command line of `weir filter`, which changes a running capture.

use std::path::PathBuf;

use clap::Args;

/// `weir filter`.
#[derive(Args, Debug)]
#[command(
    after_help = "It changes a `weir capture` or `weir attach` that was started with --control PATH: frames that \
    come from now on are chosen by the new filter. If that capture reads a daemon (host:eth0), the daemon carries the \
    filter out, for this capture alone. The daemon itself is not asked, so there is no --socket: the filter of its \
    sources is in its file."
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
