//! The command line of `weir extcap`: that of Wireshark's extcap interface.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

use clap::{ArgGroup, Args};

use super::DirectionName;
use crate::limits::WIRESHARK_CAPLEN_MAX;
use crate::source_name::Part;

/// `weir extcap`.
///
/// Source: Wireshark Developer's Guide, "Adding Capture Interfaces And Log Sources Using Extcap".
// The last of repeated flags counts, because the wrapper may put defaults before Wireshark's flags.
#[derive(Args, Debug)]
#[command(args_override_self = true)]
#[command(group = ArgGroup::new("question").args(["list", "dlts", "config", "reload_option", "capture"]))]
pub struct ExtcapArgs {
    /// List the sources that the daemon offers
    #[arg(long = "extcap-interfaces")]
    pub list: bool,
    /// The version of Wireshark that asks
    #[arg(long = "extcap-version", value_name = "VERSION", num_args = 0..=1, default_missing_value = "")]
    pub wireshark_version: Option<String>,
    /// The source that the other flags are about: host:eth0, or weir-stored
    #[arg(long = "extcap-interface", value_name = "SOURCE")]
    pub interface: Option<String>,
    /// List its link types
    #[arg(long = "extcap-dlts", requires = "interface")]
    pub dlts: bool,
    /// List the options for Wireshark's dialog
    #[arg(long = "extcap-config", requires = "interface")]
    pub config: bool,
    /// Reload the values of an option; no option here supports that
    #[arg(long = "extcap-reload-option", value_name = "OPTION", requires = "interface")]
    pub reload_option: Option<String>,
    /// Capture into the fifo
    #[arg(long, requires = "interface", requires = "fifo")]
    pub capture: bool,
    /// The fifo that takes the frames, as pcapng
    #[arg(long, value_name = "PATH")]
    pub fifo: Option<PathBuf>,
    /// Capture only frames that match; without --capture: say what is wrong with this filter
    #[arg(long = "extcap-capture-filter", value_name = "EXPR", requires = "interface")]
    pub filter: Option<String>,
    /// Not used
    #[arg(long = "extcap-control-in", value_name = "PATH")]
    pub control_in: Option<PathBuf>,
    /// Not used
    #[arg(long = "extcap-control-out", value_name = "PATH")]
    pub control_out: Option<PathBuf>,
    /// Most bytes kept of a frame
    #[arg(long, value_name = "BYTES", default_value_t = WIRESHARK_CAPLEN_MAX)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=WIRESHARK_CAPLEN_MAX as i64))]
    pub snaplen: u32,
    /// Which frames are offered, as seen from the host
    #[arg(long, value_enum, default_value = "both")]
    pub direction: DirectionName,
    /// Part of the source: 2/4 is the second of four shards by flow, q2 an RX queue
    #[arg(long, value_name = "PART", default_value = "", value_parser = part)]
    pub part: Part,
    /// Keep one frame in N
    #[arg(long, value_name = "N", default_value = "1")]
    pub sample_frames: NonZero<u32>,
    /// Keep all frames of one flow in N
    #[arg(long, value_name = "N", default_value = "1")]
    pub sample_flows: NonZero<u32>,
    /// Of stored traffic: directories that were recorded into, separated by colons [default: $WEIR_STORES]
    #[arg(long, value_name = "DIRS")]
    pub dirs: Option<OsString>,
    /// Of stored traffic: frames from this time on, as in weir extract; all: from the first one on
    #[arg(long, value_name = "TIME", default_value = "-5m", allow_hyphen_values = true)]
    pub from: String,
    /// Of stored traffic: frames before this time
    #[arg(long, value_name = "TIME", default_value = "", allow_hyphen_values = true)]
    pub to: String,
    /// Of stored traffic: frames of a flow, as in weir extract
    #[arg(long, value_name = "RECORD", default_value = "")]
    pub flow: String,
    /// The socket of the daemon [default: $WEIR_SOCKET, else /run/weir/weir.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,
}

impl ExtcapArgs {
    /// Returns the path of the daemon's socket.
    pub fn socket(&self) -> PathBuf {
        weir_client::socket_path(self.socket.as_deref())
    }
}

/// Parses a part. Wireshark's dialog passes an empty field as an empty value.
fn part(text: &str) -> Result<Part, String> {
    if text.is_empty() { Ok(Part::Whole) } else { text.parse() }
}
