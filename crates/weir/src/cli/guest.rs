//! The command line of `weir guest`.

use std::path::PathBuf;

use clap::Args;

/// `weir guest`.
#[derive(Args, Debug)]
pub struct GuestArgs {
    /// The port to the daemon of this machine's host; the one called org.weir.0, if none is given
    #[arg(long, value_name = "PATH")]
    pub port: Option<PathBuf>,
    /// Reach the daemon by vsock instead of a port: at 5745 of the host's, or another one of its
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5745",
        conflicts_with = "port"
    )]
    pub vsock: Option<u32>,
    /// The socket that clients in this machine connect to
    #[arg(long, value_name = "PATH", default_value = weir_client::SOCKET)]
    pub socket: PathBuf,
    /// Who may read what the host offers, beside root: users, by name or id
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub users: Vec<String>,
    /// The same of groups
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub groups: Vec<String>,
    /// Everybody who can connect may
    #[arg(long)]
    pub everybody: bool,
}
