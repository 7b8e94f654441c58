//! The command line of `weir status`.

use std::path::PathBuf;

use clap::Args;

/// `weir status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The socket of the daemon
    #[arg(long, value_name = "PATH", default_value = weir_client::SOCKET)]
    pub socket: PathBuf,
    /// Ask a `weir capture --control` socket instead
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    pub control: Option<PathBuf>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}
