//! The command line of `weir guest`.

use std::path::PathBuf;

use clap::Args;

/// `weir guest`.
#[derive(Args, Debug)]
pub struct GuestArgs {
    /// The virtio-serial port to the host's daemon; the one called org.weir.0, if none is given
    #[arg(long, value_name = "PATH")]
    pub port: Option<PathBuf>,
    /// Reach the daemon by vsock instead of a virtio-serial port: at the host's vsock port 5745, or at PORT
    #[arg(
        long,
        value_name = "PORT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "5745",
        value_parser = vsock_port,
        conflicts_with = "port"
    )]
    pub vsock: Option<u32>,
    /// The socket that clients in this machine connect to
    #[arg(long, value_name = "PATH", default_value = weir_client::SOCKET)]
    pub socket: PathBuf,
    /// Users, by name or id, who may read what the host offers; root always may
    #[arg(long, value_name = "USER", value_delimiter = ',')]
    pub users: Vec<String>,
    /// Groups that may read, by name or id
    #[arg(long, value_name = "GROUP", value_delimiter = ',')]
    pub groups: Vec<String>,
    /// Everybody who can connect may read
    #[arg(long)]
    pub everybody: bool,
}

fn vsock_port(text: &str) -> Result<u32, String> {
    // The kernel takes the highest port for any port (VMADDR_PORT_ANY, vsock(7)).
    let port = text.parse().ok().filter(|port| *port != u32::MAX);
    port.ok_or_else(|| {
        format!("'{text}' is no vsock port: use a number from 0 to {}", u32::MAX - 1)
    })
}
