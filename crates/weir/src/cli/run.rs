//! The command line of `weir run`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

/// `weir run`.
#[derive(Args, Debug)]
#[command(
    after_help = "Programs that no library can be loaded into (static, setuid, with file capabilities), and those \
    that do not capture by libpcap, read a network interface instead: weir attach."
)]
pub struct RunArgs {
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
    /// A name for the tool's feeds, by which `weir block --feed NAME` changes them; they have rings of their own then
    #[arg(long, value_name = "NAME")]
    pub feed: Option<String>,
    /// The library that is loaded into the tool, instead of the one that belongs to this weir
    #[arg(long, value_name = "PATH")]
    pub library: Option<PathBuf>,
    /// The tool and its arguments: behind --, or from the first word that is no flag on
    // A tool cannot begin with a hyphen, or a misspelt flag would be taken for the tool.
    #[arg(required = true, trailing_var_arg = true, value_name = "TOOL")]
    pub command: Vec<OsString>,
}
