//! Runs every engine at full rate and checks that every frame is accounted for.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::thread::{self, sleep};
use std::time::Duration;

use super::context::{Context, Options, stopped};
use super::counted::WeirReport;
use super::table::grouped;
use super::tool::{NOT_BUILT, Tool};
use super::wire;
use super::wire::Traffic;
use crate::generator::{Rate, SIZE_MIN};
use crate::testbed::Testbed;
use crate::{Error, Result};

/// Options of a soak.
#[derive(Debug, Clone)]
pub struct SoakOptions {
    /// The `weir` program.
    pub weir: PathBuf,
    /// How long each engine runs, seconds.
    pub seconds: f64,
}

/// Result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The check passed.
    Holds,
    /// The check failed.
    Fails,
    /// The check could not be run on this machine.
    Absent,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// The result.
    pub verdict: Verdict,
    /// The name of the check, and its numbers.
    pub text: String,
}

impl Check {
    fn new(holds: bool, text: String) -> Check {
        Check { verdict: if holds { Verdict::Holds } else { Verdict::Fails }, text }
    }

    fn absent(text: String) -> Check {
        Check { verdict: Verdict::Absent, text }
    }

    /// Formats the result and the text as one line.
    #[must_use]
    pub fn line(&self) -> String {
        let word = match self.verdict {
            Verdict::Holds => "ok  ",
            Verdict::Fails => "FAIL",
            Verdict::Absent => "n/a ",
        };
        format!("{word} {}", self.text)
    }
}

/// A rate at which two captures keep up, but one that is stopped is lapped.
const STEADY_PPS: f64 = 300_000.0;
/// How long the second capture is stopped.
const STOPPED: Duration = Duration::from_secs(5);
/// How long both run before the stop, and after it.
const MARGIN: Duration = Duration::from_secs(2);

/// Runs all checks, and passes each to `tell` when it is done. Ends early, with the checks so far,
/// when `stop` is set.
///
/// # Errors
/// No testbed can be made, mostly for lack of root. A capture that fails is a failed check.
pub fn soak(
    options: &SoakOptions,
    stop: &AtomicBool,
    tell: &mut dyn FnMut(&Check),
) -> Result<Vec<Check>> {
    let bench = Options {
        weir: options.weir.clone(),
        rounds: Some(1),
        seconds: Some(options.seconds),
        ..Options::default()
    };
    let context = Context::new(&bench, stop, &|_| {});
    let mut checks = Vec::new();
    let mut keep = |made: Vec<Check>| {
        for check in made {
            tell(&check);
            checks.push(check);
        }
    };
    let bed = Testbed::builder().gro(true).build()?;
    for tool in Tool::weirs(&options.weir) {
        for size in wire::SIZES {
            if !stopped(stop) {
                keep(full_rate(&context, &bed, &tool, size)?);
            }
        }
    }
    for tool in Tool::weirs(&options.weir) {
        // Only one XDP program can be attached to an interface.
        if !stopped(stop) && !tool.is_xdp() {
            keep(beside_a_stopped_one(&context, &bed, &tool)?);
        }
    }
    Ok(checks)
}

/// Returns the check of a tool that could not run. An engine that is not built in is absent; any other reason is a
/// failure.
fn not_run(tool: &Tool, error: Error) -> Result<Vec<Check>> {
    let Error::Measure { reason, .. } = error else { return Err(error) };
    let text = format!("{}: {reason}", tool.name);
    Ok(vec![if reason.contains(NOT_BUILT) { Check::absent(text) } else { Check::new(false, text) }])
}

fn full_rate(context: &Context, bed: &Testbed, tool: &Tool, size: u32) -> Result<Vec<Check>> {
    let run = || {
        let capturing = tool.start(&bed.rx, context.cpus.tool)?;
        let seconds = context.seconds;
        let traffic = Traffic { size, rate: Rate::Max, seconds, stamp: false };
        let sent = wire::send(context, &bed.tx, traffic)?;
        Ok((sent, capturing.finish_weir()?))
    };
    let (sent, report) = match run() {
        Ok(both) => both,
        Err(error) => return not_run(tool, error),
    };
    let name = format!("{}, {size} B", tool.name);
    let mut checks = ledger(&name, sent.sent, &report);
    if let Some(first) = checks.first_mut() {
        first.text +=
            &format!(" ({:.3} Mpps for {:.1} s)", sent.mpps(), sent.duration.as_secs_f64());
    }
    Ok(checks)
}

/// Checks the two sums in a capture's ledger.
fn ledger(name: &str, sent: u64, report: &WeirReport) -> Vec<Check> {
    let dropped: u64 = report.drops.values().sum();
    let known = report.filtered + report.captured + dropped;
    let drops: Vec<String> =
        report.drops.iter().map(|(name, count)| format!("{name} {}", grouped(*count))).collect();
    let link = format!(
        "{name}: sent {} {} filtered {} + captured {} + drops {} ({})",
        grouped(sent),
        sign(sent == known),
        grouped(report.filtered),
        grouped(report.captured),
        grouped(dropped),
        drops.join(", "),
    );
    let reached = report.delivered + report.lapped == report.captured;
    let consumer = format!(
        "{name}: captured {} {} delivered {} + lapped {}",
        grouped(report.captured),
        sign(reached),
        grouped(report.delivered),
        grouped(report.lapped),
    );
    vec![Check::new(sent == known && report.offered == sent, link), Check::new(reached, consumer)]
}

fn sign(holds: bool) -> char {
    if holds { '=' } else { '≠' }
}

/// Stops a second capture of the same interface for a while. The first capture must lose nothing, and the second must
/// count every frame that it missed.
fn beside_a_stopped_one(context: &Context, bed: &Testbed, tool: &Tool) -> Result<Vec<Check>> {
    let run = || {
        let first = tool.start(&bed.rx, context.cpus.tool)?;
        let mut second = tool.start(&bed.rx, context.cpus.tool)?;
        let seconds = (MARGIN + STOPPED + MARGIN).as_secs_f64();
        let rate = Rate::Pps(STEADY_PPS);
        let traffic = Traffic { size: SIZE_MIN, rate, seconds, stamp: false };
        let sent = thread::scope(|scope| {
            let generator = scope.spawn(|| wire::send(context, &bed.tx, traffic));
            sleep(MARGIN);
            second.child.signal(libc::SIGSTOP);
            sleep(STOPPED);
            second.child.signal(libc::SIGCONT);
            generator.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })?;
        sleep(Duration::from_millis(500));
        Ok((sent, first.finish_weir()?, second.finish_weir()?))
    };
    let (sent, first, second) = match run() {
        Ok(all) => all,
        Err(error) => return not_run(tool, error),
    };
    let name = format!("{}, another stopped for {} s", tool.name, STOPPED.as_secs());
    let mut checks = ledger(&format!("{name}: the first"), sent.sent, &first);
    checks.extend(ledger(&format!("{name}: the other"), sent.sent, &second));
    let unharmed = first.delivered == sent.sent;
    let text = format!(
        "{name}: the first got {} of {} frames sent",
        grouped(first.delivered),
        grouped(sent.sent)
    );
    checks.push(Check::new(unharmed, text));
    let found = second.lapped + second.drops.values().sum::<u64>();
    let text = format!(
        "{name}: the other found {} frames missing, {} of them lapped",
        grouped(found),
        grouped(second.lapped)
    );
    checks.push(Check::new(found > 0 && second.delivered + found == sent.sent, text));
    Ok(checks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(captured: u64, kernel: u64, delivered: u64, lapped: u64) -> WeirReport {
        let drops = [("kernel".to_owned(), kernel)].into();
        let offered = captured + kernel;
        WeirReport { offered, captured, drops, delivered, lapped, ..WeirReport::default() }
    }

    #[test]
    fn a_ledger_that_closes_holds_to_the_frame() {
        let verdicts = |sent, report: &WeirReport| {
            ledger("tc", sent, report).iter().map(|check| check.verdict).collect::<Vec<_>>()
        };
        let good = report(1_000_000, 5, 999_000, 1000);
        assert_eq!(verdicts(1_000_005, &good), [Verdict::Holds, Verdict::Holds]);
        assert_eq!(verdicts(1_000_006, &good), [Verdict::Fails, Verdict::Holds]);
        let torn = report(1_000_000, 5, 999_000, 999);
        assert_eq!(verdicts(1_000_005, &torn), [Verdict::Holds, Verdict::Fails]);
        let line = ledger("tc", 1_000_006, &good)[0].line();
        assert!(line.starts_with("FAIL tc: sent 1 000 006 ≠ filtered 0 + captured"), "{line}");
    }

    #[test]
    fn what_is_not_there_is_no_failure() {
        let tool = &Tool::weirs("weir".as_ref())[0];
        let measure =
            |reason: &str| Error::Measure { what: "weir".into(), reason: reason.to_owned() };
        let verdict = |reason: &str| not_run(tool, measure(reason)).unwrap()[0].verdict;
        assert_eq!(verdict(&format!("{NOT_BUILT} bpf: af_packet answered")), Verdict::Absent);
        assert_eq!(verdict("ended at once"), Verdict::Fails);
    }
}
