//! Messages of a running capture about its sources, for viewers and standard error.

use std::path::Path;

use weir_monitor::{SourceView, Sources};
use weir_ring::Ledger;

use super::Run;
use super::live::{self, introduce};
use crate::flows::watch::{Watch, say};
use crate::journal::Notice;
use crate::out;
use crate::sources::OpenSource;

/// Reports the state of the sources to viewers, with the last recorded counts.
pub fn tell(run: &Run<'_>, lapped: u64) {
    let Some(watch) = &run.plan.watch else { return };
    let view = |(number, source)| view(run, number, source);
    let sources = run.subscriptions.sources.iter().enumerate().map(view).collect();
    watch.tell(Sources { sources, lapped });
}

fn view(run: &Run<'_>, number: usize, source: &OpenSource) -> SourceView {
    let mut ledger = Ledger::default();
    let own = run.subscriptions.outputs().filter(|feed| feed.source == number);
    own.for_each(|feed| ledger.add(&run.journal.ledger(feed.subscription)));
    let info = run.probe.info_of(source.id).unwrap_or_default();
    let engine = match info.hook {
        Some(hook) => format!("{} at {hook}", info.engine),
        None => info.engine.to_owned(),
    };
    let drops = ledger.drops.iter().map(|(place, count)| ((*place).to_owned(), *count));
    SourceView {
        name: source.name.clone(),
        engine,
        offered: ledger.offered,
        filtered: ledger.filtered,
        blocked: ledger.blocked,
        sampled: ledger.sampled,
        captured: ledger.captured,
        drops: drops.collect(),
        missed_before: ledger.missed_before,
    }
}

/// Prints the report so far on standard error.
pub fn say_so_far(run: &Run<'_>) {
    if run.plan.watch.as_ref().is_some_and(Watch::has_screen) {
        // The live table occupies the terminal, and shows more.
        return;
    }
    let result = run.so_far.result(run.in_force());
    out::talk(&format!("weir: up to now, and it goes on:\n{}", result.report().text()));
}

/// Prints the report so far as one line of JSON, on the same output as the final report.
pub fn print_so_far(run: &Run<'_>) {
    let line = run.so_far.result(run.in_force()).report().json();
    let is_pipe = run.plan.outputs.write.as_deref() == Some(Path::new("-"));
    if is_pipe {
        out::talk(&(line + "\n"));
    } else {
        println!("{line}");
        out::flush();
    }
}

/// Prints the events of sources since the last call, and new refusals by daemons.
pub fn print_notices(run: &Run<'_>) {
    let watch = run.plan.watch.as_ref();
    for (id, notice) in run.journal.take_notices() {
        let source = run.subscriptions.sources.iter().find(|source| Some(source.id) == id);
        let name = source.map_or("a source", |source| &source.name);
        say(watch, &format!("{name}: {}", live::text(&notice)));
        if let (Some(source), Notice::CameBack) = (source, notice)
            && !watch.is_some_and(Watch::has_screen)
        {
            run.probe.info_of(source.id).iter().for_each(introduce);
        }
    }
    for source in &run.subscriptions.sources {
        if let Some(reason) = source.refusals.take_news() {
            say(watch, &format!("{}: {}", source.name, live::refused(&reason)));
        }
    }
}
