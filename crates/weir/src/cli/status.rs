//! The command line of `weir status`.

use std::path::PathBuf;

use clap::Args;

/// `weir status`.
#[derive(Args, Debug)]
pub struct StatusArgs {
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// Ask a `weir capture --control` socket instead: how that capture goes
    #[arg(long, value_name = "PATH", conflicts_with = "socket")]
    pub control: Option<PathBuf>,
    /// Answer with one JSON object
    #[arg(long)]
    pub json: bool,
}
