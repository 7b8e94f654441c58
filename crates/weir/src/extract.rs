//! `weir extract`: extracts frames from recorded files.

mod flow;
mod time;

use std::fs::OpenOptions;
use std::io::{ErrorKind, IsTerminal};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use anyhow::{Context, Error, Result, anyhow, bail};
use chrono::{Local, TimeZone};
use serde::Serialize;
use weir_consumer::Sink;
use weir_store::catalog::{Catalog, CatalogError, is_listed_name};
use weir_store::extract::{Options, Query, Stats, extract};
use weir_store::{FileError, FileWriter, FilesByLinkType, Names, PcapFile};

use crate::cli::{ExtractArgs, FormatName};
use crate::index::nothing_recorded;
use crate::interruptible_writer::{InterruptibleWriter, Stop};
use crate::units::{counted, grouped};
use crate::usage_hints;
use crate::{EXIT_RAN, capture, feeds, signals};

/// Runs `weir extract`, and returns the exit status. A signal ends it early.
pub fn run(args: &ExtractArgs) -> Result<u8> {
    run_until(args, signals::stop_flag()?)?;
    Ok(EXIT_RAN)
}

/// Extracts the wanted frames; ends early once `stop` is set. Prints a report, and returns the counts.
pub fn run_until(args: &ExtractArgs, stop: Arc<AtomicBool>) -> Result<Stats> {
    let begin = Instant::now();
    // All files with pieces to read are open at the same time.
    capture::raise_descriptor_limit();
    let query = query(args)?;
    let catalog = Catalog::list(&args.paths).map_err(|error| not_listed(error, &args.paths))?;
    if catalog.files.is_empty() {
        return Err(nothing_recorded(&args.paths));
    }
    let stop = Stop::new(stop, None);
    let names = Names::default();
    let mut sink = output(args, &catalog, &names, &stop)?;
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let options = Options {
        threads: args.threads.map_or(threads, usize::from),
        frames_max: args.frames.unwrap_or(u64::MAX),
        names,
    };
    let (stats, result) =
        extract(&catalog, &query, &options, sink.as_mut(), &|| stop.is_asked_for());
    let failure = result.and_then(|()| sink.finish(&[])).err();
    for (link_type, why) in query.refused() {
        eprintln!("weir: --filter: no frame of link type {link_type} is taken: {why}");
    }
    for note in &stats.notes {
        eprintln!("weir: {note}");
    }
    for path in &catalog.passed_over {
        eprintln!("weir: {}: no file of a recorder; passed over", path.display());
    }
    for (count, what) in [
        (stats.notes_left_out, "thing more to say"),
        (stats.frames_late, "frame behind later ones: too many pieces of the same time"),
        (stats.frames_damaged, "frame left out as damaged"),
    ] {
        if count > 0 {
            eprintln!("weir: {}", counted(count, what));
        }
    }
    // No message if a file could not be read: it may contain matching frames, and the error below reports it.
    let is_read = stats.files > 0 && stats.files_unreadable == 0;
    if stats.frames == 0 && is_read && failure.is_none() && !stop.is_asked_for() {
        eprintln!("weir: {}", nothing_matched(stats.times));
    }
    say(args, &stats, begin.elapsed().as_secs_f64())?;
    match failure {
        Some(error) if !error.wants_no_more() => return Err(error.into()),
        Some(_) | None => {}
    }
    match not_read(&stats, catalog.files.len() as u64) {
        Some(text) => bail!(text),
        None => Ok(stats),
    }
}

/// Returns the error for paths that cannot be listed. A word after the directories may have been meant as a filter.
fn not_listed(error: CatalogError, paths: &[PathBuf]) -> Error {
    match &error {
        CatalogError::Unreadable { path, source }
            if source.kind() == ErrorKind::NotFound
                && paths.first() != Some(path)
                && !path.as_os_str().as_encoded_bytes().contains(&b'/') =>
        {
            anyhow!(
                "{}: no such file or directory, and not taken for the beginning of a filter; name a directory that \
                 weir capture --write DIR/ made, or a pcapng file; any filter can be written as --filter '...'",
                path.display()
            )
        }
        _ => error.into(),
    }
}

/// Returns the error for files that cannot be read; `None` if all were read or skipped. `files`: their number.
fn not_read(stats: &Stats, files: u64) -> Option<&'static str> {
    if stats.files_unreadable == 0 && (stats.files > 0 || stats.files_foreign == 0) {
        return None;
    }
    let failed = stats.files_unreadable + stats.files_foreign + stats.files_deleted;
    let skipped = stats.skipped_by_time.pieces + stats.skipped_by_index.pieces;
    Some(match stats.frames_read == 0 && skipped == 0 && failed >= files {
        true => "none of the files there can be read; nothing was extracted",
        false => "not all files there can be read; the others are extracted",
    })
}

/// Returns the message for a query without results. `times` are those of the first and the last frame of the recording.
fn nothing_matched(times: Option<(u64, u64)>) -> String {
    let text = |ns: u64| {
        let time = Local.timestamp_nanos(i64::try_from(ns).unwrap_or(i64::MAX));
        time.format("%Y-%m-%d %H:%M:%S%.3f").to_string()
    };
    match times {
        Some((first, last)) => format!(
            "no frame matched; the recording is from {} to {} (local time)",
            text(first),
            text(last)
        ),
        None => "no frame matched: the recording has none".to_owned(),
    }
}

fn query(args: &ExtractArgs) -> Result<Query> {
    let now = Local::now();
    let time = |flag: &str, text: &Option<String>| {
        text.as_ref()
            .map(|text| time::parse(text, now).with_context(|| flag.to_owned()))
            .transpose()
    };
    let (from, to) = (time("--from", &args.from)?, time("--to", &args.to)?);
    let (flow, times) = match &args.flow {
        None => (None, None),
        Some(text) => {
            let (flow, times) = flow::parse(text)?;
            (Some(flow), times)
        }
    };
    let (first, last) = times.unwrap_or((0, u64::MAX));
    let first = first.max(from.unwrap_or(0));
    let last = last.min(to.map_or(u64::MAX, |to| to.saturating_sub(1)));
    if first > last {
        bail!("--from is not before --to: no frame is of such a time");
    }
    let compile =
        |text: &String| feeds::compile_later(text).with_context(|| format!("--filter '{text}'"));
    let filter = args.filter.as_ref().map(compile).transpose()?;
    Ok(Query::new(first..=last, filter, flow))
}

fn output(
    args: &ExtractArgs,
    catalog: &Catalog,
    names: &Names,
    stop: &Stop,
) -> Result<Box<dyn Sink>> {
    let path = match &args.write {
        Some(path) => path.as_path(),
        None if std::io::stdout().is_terminal() => bail!(
            "standard output is a terminal; write to a file (--write out.pcapng), or into a tool: | tcpdump -nn -r -"
        ),
        None => Path::new("-"),
    };
    if path == Path::new("-") {
        let out = InterruptibleWriter::stdout(stop.clone()).context("standard output")?;
        return Ok(match args.format {
            FormatName::Pcapng => {
                Box::new(FileWriter::pipe(out, "standard output").with_names(names))
            }
            FormatName::Pcap => Box::new(PcapFile::new(out, "standard output")),
        });
    }
    let is_same = |one: &Path| {
        one.canonicalize().ok().is_some_and(|one| path.canonicalize().is_ok_and(|two| one == two))
    };
    if catalog.files.iter().any(|file| is_same(&file.path)) {
        bail!("--write {} is a file that is read; write to another", path.display());
    }
    check_not_among(path, &args.paths)?;
    if path.metadata().is_ok_and(|meta| meta.file_type().is_fifo()) {
        // open(2) waits for a reader of the pipe, and a signal would not end that wait.
        let name = path.display().to_string();
        let out = InterruptibleWriter::named_pipe(path, stop.clone(), || ())
            .with_context(|| name.clone())?;
        return Ok(match args.format {
            FormatName::Pcapng => Box::new(FileWriter::pipe(out, &name).with_names(names)),
            FormatName::Pcap => Box::new(PcapFile::new(out, &name)),
        });
    }
    Ok(match args.format {
        FormatName::Pcapng if path.metadata().is_ok_and(|meta| !meta.is_file()) => {
            Box::new(FileWriter::create(path, args.file_mode)?.with_names(names))
        }
        FormatName::Pcapng => {
            if usage_hints::format_note(path).is_some() {
                eprintln!(
                    "weir: {}: is written as pcapng; classic pcap: --format pcap",
                    path.display()
                );
            }
            let say = |paths: &[&Path]| {
                let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
                eprintln!("weir: a file for each link type: {}", names.join(", "));
            };
            Box::new(FilesByLinkType::create(path, args.file_mode, say)?.with_names(names))
        }
        FormatName::Pcap => {
            let mut open = OpenOptions::new();
            open.write(true).create(true).truncate(true).mode(args.file_mode);
            let file = open.open(path);
            let file = file.map_err(|source| FileError::Create { path: path.into(), source })?;
            Box::new(PcapFile::new(file, &path.display().to_string()))
        }
    })
}

/// Refuses an output that the next extraction from one of these directories would read, too.
fn check_not_among(path: &Path, read: &[PathBuf]) -> Result<()> {
    let is_listed = path.file_name().is_some_and(is_listed_name);
    if !is_listed || path.metadata().is_ok_and(|meta| !meta.is_file()) {
        return Ok(());
    }
    // Only the directory of the file has a real path already.
    let parent = std::path::absolute(path).ok().and_then(|path| path.parent()?.canonicalize().ok());
    let is_there = |read: &&PathBuf| parent.is_some() && read.canonicalize().ok() == parent;
    if let Some(read) = read.iter().find(is_there) {
        bail!(
            "--write {} is in {}, which is read: the next extraction would find each of its frames twice; write to \
             another directory",
            path.display(),
            read.display()
        );
    }
    Ok(())
}

#[derive(Serialize)]
struct Json {
    files: u64,
    bytes: u64,
    pieces: u64,
    skipped_by_time_bytes: u64,
    skipped_by_index_bytes: u64,
    read_bytes: u64,
    frames_read: u64,
    frames: u64,
    frames_late: u64,
    frames_damaged: u64,
    files_deleted: u64,
    files_unreadable: u64,
    files_foreign: u64,
    indexes_missing: u64,
    indexes_wrong: u64,
    cut_off_bytes: u64,
    duration_s: f64,
}

/// Prints counts of the data that was read and skipped: with `--json` one line of JSON, else with `--stats` a text.
/// Standard output may carry the frames, so the counts go to standard error; JSON goes to standard output if the frames
/// go into a file.
fn say(args: &ExtractArgs, stats: &Stats, duration_s: f64) -> Result<()> {
    if args.json {
        let json = Json {
            files: stats.files,
            bytes: stats.bytes,
            pieces: stats.pieces,
            skipped_by_time_bytes: stats.skipped_by_time.bytes,
            skipped_by_index_bytes: stats.skipped_by_index.bytes,
            read_bytes: stats.read.bytes,
            frames_read: stats.frames_read,
            frames: stats.frames,
            frames_late: stats.frames_late,
            frames_damaged: stats.frames_damaged,
            files_deleted: stats.files_deleted,
            files_unreadable: stats.files_unreadable,
            files_foreign: stats.files_foreign,
            indexes_missing: stats.indexes_missing,
            indexes_wrong: stats.indexes_wrong,
            cut_off_bytes: stats.cut_off_bytes,
            duration_s,
        };
        let line = serde_json::to_string(&json).context("the counts as JSON")?;
        match args.write.as_deref() {
            Some(path) if path != Path::new("-") => println!("{line}"),
            _ => eprintln!("{line}"),
        }
        return Ok(());
    }
    if args.stats {
        eprintln!(
            "weir: {} of {} looked at, in {duration_s:.3} s; {} of {}: {} read, {} of other times, {} ruled out by \
             the index",
            counted(stats.frames, "frame"),
            grouped(stats.frames_read),
            counted(stats.files, "file"),
            counted(stats.bytes, "byte"),
            grouped(stats.read.bytes),
            grouped(stats.skipped_by_time.bytes),
            grouped(stats.skipped_by_index.bytes),
        );
        if stats.indexes_missing > 0 {
            let files = counted(stats.indexes_missing, "file");
            eprintln!(
                "weir: without an index: {files}, also read to find the frames; weir index makes indexes"
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_cannot_be_read_are_told_of_and_what_became_of_the_others() {
        let told = |stats: Stats| not_read(&stats, 2).map(|text| text.split(' ').next());
        assert_eq!(told(Stats { files: 2, frames_read: 9, ..Stats::default() }), None);
        let one = Stats { files: 2, files_unreadable: 1, frames_read: 9, ..Stats::default() };
        assert_eq!(told(one), Some(Some("not")));
        let none = Stats { files_unreadable: 1, files_foreign: 1, ..Stats::default() };
        assert_eq!(told(none), Some(Some("none")));
    }

    #[test]
    fn what_matches_nothing_is_told_with_the_times_of_the_recording() {
        let text = nothing_matched(Some((1_795_685_239_500_000_000, 1_795_685_299_000_000_000)));
        assert!(text.contains("from 2026-11-2") && text.contains(":19.500 to 2026-11-2"), "{text}");
        assert!(nothing_matched(None).contains("has none"));
    }
}
