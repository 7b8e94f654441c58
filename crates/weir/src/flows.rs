//! `weir flows`: a capture whose consumer counts frames by flow.

pub mod outlets;
mod show;
pub mod target;
mod text;
mod top;
pub mod watch;

use anyhow::Result;

use crate::capture::{self, Rights};
use crate::cli::{CaptureArgs, FlowsArgs};
use crate::ending::conclude;
use crate::plan::CapturePlan;
use crate::signals;
use show::Show;

/// Runs the command.
pub fn run(args: &FlowsArgs) -> Result<u8> {
    let stop = signals::stop_flag()?;
    let mut plan = CapturePlan::new(&CaptureArgs::into_flows(&args.input, &args.flows))?;
    let show = Show::start(&args.show, &mut plan, &stop)?;
    let result = capture::execute(&plan, &stop, Rights::GiveUp);
    // The terminal is the report's again.
    drop(show);
    conclude(&plan, result?, &stop)
}
