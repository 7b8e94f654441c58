//! `weir flows`: a capture whose consumer counts frames by flow.

pub mod json;
pub mod lines;
pub mod text;
pub mod top;

use anyhow::Result;

use crate::capture;
use crate::cli::{CaptureArgs, FlowsArgs};

/// Runs the command.
pub fn run(args: &FlowsArgs) -> Result<u8> {
    capture::run(&CaptureArgs::into_flows(&args.input, &args.flows))
}
