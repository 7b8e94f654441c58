//! `weir flows`: a capture whose consumer counts frames by flow.

pub mod exports;
mod kernel;
pub mod report;
mod show;
pub mod table;
pub mod target;
mod text;
mod top;
pub mod watch;

use anyhow::Result;

use crate::capture::{self, Rights};
use crate::cli::{CaptureArgs, FlowsArgs};
use crate::ending::conclude;
use crate::plan::CapturePlan;
use crate::{pipes, signals};
use show::Show;
use table::TableInAdvance;
use watch::Watch;

/// Runs the command.
pub fn run(args: &FlowsArgs) -> Result<u8> {
    let (stop, end) = signals::stop_flag_and_end()?;
    if args.in_kernel {
        return kernel::run(args, &stop, &end);
    }
    signals::report_flag()?;
    pipes::wait_for(&args.input, &stop)?;
    let mut plan = CapturePlan::new(&CaptureArgs::into_flows(&args.input, &args.flows))?;
    plan.flow_table = Some(TableInAdvance::new(&args.flows)?);
    let show = Show::start(&args.show, plan.is_live() && !plan.json, &stop)?;
    let (show, watch) = show.unzip();
    plan.talks &= !watch.as_ref().is_some_and(Watch::has_screen);
    plan.watch = watch;
    plan.end = end;
    let result = capture::execute(&plan, &stop, Rights::GiveUp);
    // This restores the terminal for the report.
    drop(show);
    conclude(&plan, result?, &stop)
}
