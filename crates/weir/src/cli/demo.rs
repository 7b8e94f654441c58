//! The command line of `weir demo`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use crate::units;

/// `weir demo`.
#[derive(Args, Debug)]
pub struct DemoArgs {
    /// How long traffic flows
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = units::duration)]
    pub duration: Duration,
    /// Where the pcapng file goes
    #[arg(short, long, value_name = "PATH", default_value = "weir-demo.pcapng")]
    pub write: PathBuf,
    /// Replay the bundled trace even as root
    #[arg(long)]
    pub replay: bool,
}
