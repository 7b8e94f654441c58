//! `weir flows --in-kernel`: the flow table is in the kernel, and no frames are copied to user space.

mod plan;
mod report;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use weir_flow_kernel::{KernelTable, now_ns};
use weir_frame::pcapng::{Interface, LINKTYPE_ETHERNET};
use weir_monitor::{Reporter, SourceView, Sources};

use self::plan::KernelPlan;
use self::report::KernelReport;
use super::exports::{ExportSettings, Exports};
use super::show::Show;
use super::watch::Watch;
use crate::cli::FlowsArgs;
use crate::error_words::error_text;
use crate::interruptible_writer::Stop;
use crate::signals::End;

/// Pause between two passes over the table while few flows end.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Pause while thousands of flows end: their records wait in a ring buffer of the kernel.
const LOOK_SOON: Duration = Duration::from_millis(1);
/// Parts of the table that are reported to viewers between two passes.
const PARTS: usize = 32;
/// Interval of reports on the sources to viewers.
const TELL_EVERY: Duration = Duration::from_millis(500);

/// Runs the command.
pub fn run(args: &FlowsArgs, stop: &Arc<AtomicBool>, end: &End) -> Result<u8> {
    let plan = KernelPlan::new(args)?;
    let until = Stop::new(Arc::clone(stop), None);
    let (show, watch) = Show::start(&args.show, !plan.json, stop)?.unzip();
    let mut out = Exports::open(&ExportSettings {
        args: &args.flows,
        json: plan.json,
        is_live: true,
        stop: &until,
        end,
        watch: watch.as_ref(),
    })?;
    for (name, owner) in &plan.interfaces {
        let interface = Interface {
            name: name.clone(),
            description: owner.clone(),
            link_type: LINKTYPE_ETHERNET,
            ..Interface::default()
        };
        out.describe(&interface);
    }
    let table = plan.open()?;
    if !watch.as_ref().is_some_and(Watch::has_screen) {
        eprintln!(
            "weir: {}: {} at {}: flows are counted in the kernel",
            plan.source(),
            report::ENGINE,
            plan.hook()
        );
    }
    let begin = Instant::now();
    until.end_at(plan.duration.and_then(|limit| begin.checked_add(limit)));
    let reporter = watch.as_ref().and_then(Watch::take_reporter);
    let mut run = Counting { plan: &plan, table, out, reporter, watch: watch.as_ref() };
    run.count(&until);
    watch.iter().for_each(Watch::end);
    let Counting { mut table, mut out, .. } = run;
    let seconds = begin.elapsed().as_secs_f64();
    out.wait_for_exports();
    let finished = table.finish(&mut |record| out.take(&record));
    // This restores the terminal for the report.
    drop(show);
    let (exports, failure) = out.finish();
    let error = finished.err().map(|error| error_text(&error));
    KernelReport { plan: &plan, counters: table.counters(), seconds, exports, out: &out }
        .conclude(error, failure, stop)
}

/// The state of a run.
struct Counting<'a> {
    plan: &'a KernelPlan,
    table: KernelTable,
    out: Exports,
    reporter: Option<Reporter>,
    watch: Option<&'a Watch>,
}

impl Counting<'_> {
    /// Counts until the run is to end, or the reader of standard output has left.
    fn count(&mut self, stop: &Stop) {
        let mut told = None;
        while !stop.is_asked_for() && !self.out.has_lost_stdout() {
            let mut ended = 0;
            let Counting { table, out, .. } = self;
            table.poll(now_ns(), &mut |record| {
                ended += 1;
                out.take(&record);
            });
            out.flush();
            if told.is_none_or(|told: Instant| told.elapsed() >= TELL_EVERY) {
                told = Some(Instant::now());
                self.tell_sources();
            }
            self.report();
            let is_busy = ended > self.plan.records_max() / 16;
            let pause = if is_busy { LOOK_SOON } else { LOOK_EVERY };
            // A signal unparks this thread.
            thread::park_timeout(pause.min(stop.left().unwrap_or(pause)));
        }
    }

    fn tell_sources(&self) {
        let Some(watch) = self.watch else { return };
        let counters = self.table.counters();
        let drops = [("records".to_owned(), counters.lost_packets)].into();
        let source = SourceView {
            name: self.plan.source(),
            engine: format!("{} at {}", report::ENGINE, self.plan.hook()),
            offered: counters.table.frames,
            captured: counters.table.frames,
            drops,
            ..SourceView::default()
        };
        watch.tell(Sources { sources: vec![source], lapped: 0 });
    }

    /// Reports flows and counters to viewers.
    fn report(&mut self) {
        let Counting { table, out, reporter: Some(reporter), .. } = self else { return };
        let snapshot = || {
            let counters = table.counters().table;
            // The kernel counts bytes by flow only, so there is no sum.
            out.snapshot(counters, table.capacity(), counters.frames, None)
        };
        reporter.go_on(PARTS, table.buckets(), |buckets| table.live_part(buckets), snapshot);
    }
}
