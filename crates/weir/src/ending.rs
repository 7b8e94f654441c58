//! The end of a capture: the report, the errors and the exit status.

use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::Result;
use weir_consumer::{ConsumerError, Stalled};

use crate::error_words::without_number;
use crate::interruptible_writer::{InterruptibleWriter, Stop};
use crate::plan::CapturePlan;
use crate::run_result::RunResult;
use crate::units::counted;
use crate::{EXIT_FAILED, EXIT_LOSS, EXIT_RAN, out};

/// Prints the report and all errors, and returns the exit status.
pub fn conclude(plan: &CapturePlan, result: RunResult, stop: &Arc<AtomicBool>) -> Result<u8> {
    let report = result.report();
    let into_pipe = plan.outputs.write.as_deref() == Some(Path::new("-"));
    let text = if plan.json { report.json() + "\n" } else { out::plain(&report.text()) };
    let failures = || result.consumers.iter().filter_map(|consumer| consumer.failure.as_deref());
    let is_stalled = failures().any(|failure| matches!(failure, ConsumerError::ReaderStalled(_)));
    if into_pipe || (plan.outputs.print.is_some() && !plan.json) || is_stalled {
        eprint!("{text}");
    } else {
        show(&text, Stop::new(Arc::clone(stop), None));
    }
    let (lost, unexplained) = (report.lost(), report.unexplained());
    // Failures that are not errors: the reader of a pipe has left, or the last file of a sequence is complete.
    for failure in failures().filter(|failure| failure.wants_no_more()) {
        eprintln!("weir: {failure}");
    }
    if let Some(error) = result.error_behind_limit().filter(|_| plan.talks) {
        eprintln!("weir: {}; all frames that were requested came before it", without_number(error));
    }
    Ok(verdict(result.errors(), unexplained, plan.fail_on_loss, lost))
}

/// Prints the errors, and returns the exit status.
pub fn verdict(mut errors: Vec<String>, unexplained: i128, fail_on_loss: bool, lost: u64) -> u8 {
    if unexplained != 0 {
        errors.push(format!(
            "the ledger does not close: {unexplained} frames are unexplained, which is a fault of \
             Weir's; please report it with the ledger above"
        ));
    }
    if !errors.is_empty() {
        errors.iter().for_each(|error| eprintln!("weir: {}", without_number(error)));
        return EXIT_FAILED;
    }
    if fail_on_loss && lost > 0 {
        let were = if lost == 1 { "was" } else { "were" };
        eprintln!("weir: {} {were} lost (--fail-on-loss)", counted(lost, "frame"));
        return EXIT_LOSS;
    }
    EXIT_RAN
}

/// Prints a report on standard output, or on standard error if the reader of standard output has stalled.
pub fn show(text: &str, stop: Stop) {
    let written =
        InterruptibleWriter::stdout(stop).and_then(|mut out| out.write_all(text.as_bytes()));
    match written {
        Err(error) if Stalled::is_why(&error) => eprint!("{text}"),
        other => out::printed(other),
    }
}
