//! The command line of `weir serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use crate::units;

/// `weir serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// The file with the sources and who may open them; everything that it does not allow is denied. At SIGHUP it is
    /// read again
    #[arg(long, value_name = "PATH", default_value = "/etc/weir/weir.toml")]
    pub config: PathBuf,
    /// The socket that clients connect to
    #[arg(long, value_name = "PATH", default_value = weir_client::SOCKET)]
    pub socket: PathBuf,
    /// Serve metrics for Prometheus here, at /metrics: 127.0.0.1:9100; with port 0, at a free port, which is told
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = units::address)]
    pub metrics: Option<SocketAddr>,
}
