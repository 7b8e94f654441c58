//! `weir index`: rebuilds indexes, and completes files that were left by killed recorders.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Error, Result, anyhow, bail};
use serde::Serialize;
use weir_store::catalog::{Catalog, is_recording};
use weir_store::reindex::{Event, Options, Report, reindex};

use crate::cli::IndexArgs;
use crate::units::{counted, grouped};
use crate::{EXIT_LOSS, EXIT_RAN, signals};

/// Runs the command.
pub fn run(args: &IndexArgs) -> Result<u8> {
    let begin = Instant::now();
    let catalog = Catalog::list(&args.paths)?;
    if catalog.files.is_empty() {
        return Err(nothing_recorded(&args.paths));
    }
    let stop = signals::stop_flag()?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        threads: args.threads.map_or(threads, usize::from),
        all: args.all,
        check: args.check,
    };
    let report = reindex(&catalog, &options, &|| signals::is_set(&stop));
    for event in &report.events {
        eprintln!("weir: {}", text(event, args.check));
    }
    for path in &catalog.passed_over {
        eprintln!("weir: {}: no file of a recorder; passed over", path.display());
    }
    let counts = Json::new(&report, args.check, begin.elapsed().as_secs_f64());
    if args.json {
        println!("{}", serde_json::to_string(&counts).context("the counts as JSON")?);
    } else {
        say(&counts);
    }
    if report.is_stopped {
        bail!("ended before all files were looked at; the next run does the others");
    }
    if counts.files_failed > 0 {
        bail!("some files cannot be read, or their indexes not be written (see above)");
    }
    let is_due = args.check && report.events.iter().any(Event::is_change);
    Ok(if is_due { EXIT_LOSS } else { EXIT_RAN })
}

/// Returns the error for directories without recorded files.
pub fn nothing_recorded(paths: &[PathBuf]) -> Error {
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    let there = names.join(", ");
    if paths.iter().any(|path| path.is_dir() && is_recording(path)) {
        return anyhow!(
            "{there}: a recorder writes there, and no frame is on the disk yet; those of a quiet link come after a \
             second"
        );
    }
    anyhow!("{there}: nothing was recorded there; weir capture SOURCE --write DIR/ records")
}

#[derive(Serialize)]
struct Json {
    files: u64,
    files_completed: u64,
    files_deleted: u64,
    files_left_alone: u64,
    files_foreign: u64,
    files_failed: u64,
    indexes: u64,
    pieces: u64,
    frames: u64,
    read_bytes: u64,
    cut_off_bytes: u64,
    check: bool,
    duration_s: f64,
}

impl Json {
    fn new(report: &Report, check: bool, duration_s: f64) -> Json {
        let count = |is_it: fn(&Event) -> bool| {
            report.events.iter().filter(|event| is_it(event)).count() as u64
        };
        let cut = report.events.iter().map(|event| match event {
            Event::Completed { cut_bytes, .. } => *cut_bytes,
            _ => 0,
        });
        Json {
            files: report.files,
            files_completed: count(|event| matches!(event, Event::Completed { .. })),
            files_deleted: count(|event| matches!(event, Event::Deleted { .. })),
            files_left_alone: count(|event| matches!(event, Event::LeftAlone { .. })),
            files_foreign: count(|event| matches!(event, Event::Foreign { .. })),
            files_failed: count(|event| matches!(event, Event::Failed { .. })),
            indexes: count(|event| matches!(event, Event::Indexed { .. })),
            pieces: report.pieces,
            frames: report.frames,
            read_bytes: report.bytes_read,
            cut_off_bytes: cut.sum(),
            check,
            duration_s,
        }
    }
}

/// Returns a text about the work that was done on a file or, with --check, that is to be done.
fn text(event: &Event, check: bool) -> String {
    match event {
        Event::Completed { path, cut_bytes: 0 } => {
            let is_done = if check { "to be completed" } else { "completed" };
            format!("{}: {is_done}", path.display())
        }
        Event::Completed { path, cut_bytes } if check => {
            format!(
                "{}: to be completed, without its last {}",
                path.display(),
                counted(*cut_bytes, "byte")
            )
        }
        Event::Completed { path, cut_bytes } => {
            format!(
                "{}: completed; cut off: {} reserved, or written in part",
                path.display(),
                counted(*cut_bytes, "byte")
            )
        }
        Event::Indexed { frames, damaged_at, .. } if !check => {
            let damage = damaged_at.map_or_else(String::new, |at| {
                format!("; the file is damaged at byte {}", grouped(at))
            });
            format!("{event}; made anew, of {}{damage}", counted(*frames, "frame"))
        }
        Event::Indexed { .. } => format!("{event}; to be made anew"),
        Event::Deleted { path } if check => {
            format!("{}: to be deleted: it has no frame", path.display())
        }
        other => other.to_string(),
    }
}

fn say(counts: &Json) {
    eprintln!("weir: {}, in {:.3} s", summary(counts), counts.duration_s);
}

fn summary(counts: &Json) -> String {
    let files = counted(counts.files, "file");
    let [indexes, completed, deleted] =
        [counts.indexes, counts.files_completed, counts.files_deleted].map(grouped);
    let all = counts.indexes + counts.files_completed + counts.files_deleted;
    match (all, counts.check) {
        (0, _) if counts.files_failed > 0 => {
            format!("{files}, nothing done; {}", counted(counts.files_failed, "failure"))
        }
        (0, _) => format!("{files}, nothing to do"),
        (_, true) => {
            // The index of such a file often lacks the end of the file.
            let then = if counts.files_completed > 0 { " (and to index, if need be)" } else { "" };
            format!(
                "{files}, nothing was changed; to do: {indexes} to index, {completed} to complete{then}, {deleted} to \
                 delete"
            )
        }
        (_, false) => format!(
            "{files}: {indexes} indexed ({}), {completed} completed, {deleted} deleted",
            counted(counts.frames, "frame")
        ),
    }
}

#[cfg(test)]
mod tests {
    use weir_store::reindex::Fault;

    use super::*;

    #[test]
    fn a_check_tells_of_no_change_as_of_one_that_was_made() {
        let completed = Event::Completed { path: "a.pcapng".into(), cut_bytes: 263_121_848 };
        let bytes = grouped(263_121_848);
        assert_eq!(
            text(&completed, false),
            format!("a.pcapng: completed; cut off: {bytes} bytes reserved, or written in part")
        );
        let planned = format!("a.pcapng: to be completed, without its last {bytes} bytes");
        assert_eq!(text(&completed, true), planned);
        let whole = Event::Completed { path: "a.pcapng".into(), cut_bytes: 0 };
        assert_eq!(text(&whole, false), "a.pcapng: completed");
        assert_eq!(text(&whole, true), "a.pcapng: to be completed");
        let deleted = Event::Deleted { path: "b.pcapng".into() };
        assert_eq!(text(&deleted, true), "b.pcapng: to be deleted: it has no frame");
        let (path, fault) = ("c.pcapng".into(), Fault::Missing);
        let indexed = Event::Indexed { path, fault, frames: 7, damaged_at: Some(6000) };
        assert_eq!(text(&indexed, true), "c.pcapng: index: missing; to be made anew");
        let at = grouped(6000);
        assert_eq!(
            text(&indexed, false),
            format!(
                "c.pcapng: index: missing; made anew, of 7 frames; the file is damaged at byte {at}"
            )
        );
    }
}
