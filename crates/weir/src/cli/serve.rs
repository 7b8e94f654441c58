//! The command line of `weir serve`.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

/// `weir serve`.
#[derive(Args, Debug)]
pub struct ServeArgs {
    /// The file that says which sources there are and who may open them; what it does not allow is denied. SIGHUP has
    /// it read again
    #[arg(long, value_name = "PATH", default_value = "/etc/weir/weir.toml")]
    pub config: PathBuf,
    /// The socket that clients connect to
    #[arg(long, value_name = "PATH", default_value = weir_client::SOCKET)]
    pub socket: PathBuf,
    /// Serve metrics for Prometheus here, at /metrics: 127.0.0.1:9100
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub metrics: Option<SocketAddr>,
}
