//! Measures whole runs of programs that copy a trace: `weir capture file:` beside other programs. All frames have 1518
//! bytes.
//!
//! Both files are in memory, so that no disk limits the rate. The time from the start of the
//! program to its end is measured.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use tempfile::TempDir;
use weir_frame::pcapng::{Interface, SectionInfo, write};
use weir_frame::read::FrameReader;
use weir_frame::record::{self, Meta};

use super::bar::{Bar, Side};
use super::before;
use super::context::{Context, stopped};
use super::row::{Frames, MPPS, Row, conclude, find};
use crate::generator::FCS_BYTES;
use crate::{Error, Result};

pub(super) const SECTION: &str = "files";
/// Bytes on the wire of each frame.
const SIZE: u32 = 1518;
const FRAMES: u64 = 600_000;
const FRAMES_QUICK: u64 = 20_000;

const WEIR: &str = "weir, to a file";
const WEIR_BEFORE: &str = "weir before, to a file";
const TCPDUMP: &str = "tcpdump -r -w";
const EDITCAP: &str = "editcap";
const WEIR_NULL: &str = "weir --write - to /dev/null";
const WEIR_NULL_BEFORE: &str = "weir before, --write - to /dev/null";
const TCPDUMP_NULL: &str = "tcpdump -r -w - to /dev/null";

/// A program that copies a trace.
struct TraceTool {
    row: Row,
    program: PathBuf,
    /// Arguments of the program; `IN` and `OUT` are placeholders for the files.
    args: &'static [&'static str],
}

impl TraceTool {
    fn new(what: &str, program: impl Into<PathBuf>, args: &'static [&'static str]) -> TraceTool {
        let mut row = Row::new(SECTION, what, MPPS).sized(SIZE);
        if !args.contains(&"OUT") {
            row.note = "kept: by the exit status".to_owned();
        }
        TraceTool { row, program: program.into(), args }
    }

    fn writes_a_file(&self) -> bool {
        self.args.contains(&"OUT")
    }

    /// Runs the program once, and counts the frames in the new file, if the program writes one.
    fn run(&self, folder: &Path, frames: u64) -> Result<Frames> {
        let (input, output) = (folder.join("in.pcapng"), folder.join("out.pcapng"));
        let _ = fs::remove_file(&output);
        let failed = |reason: String| Error::Measure { what: self.row.what.clone(), reason };
        let args = self.args.iter().map(|arg| match *arg {
            "IN" => input.display().to_string(),
            "OUT" => output.display().to_string(),
            "file:IN" => format!("file:{}", input.display()),
            other => other.to_owned(),
        });
        let mut command = Command::new(&self.program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null());
        let begin = Instant::now();
        let ended = command.output().map_err(|error| failed(error.to_string()))?;
        let seconds = begin.elapsed().as_secs_f64();
        if !ended.status.success() {
            let said = String::from_utf8_lossy(&ended.stderr);
            return Err(failed(said.lines().last().unwrap_or("it failed").to_owned()));
        }
        // Frames written to /dev/null are not counted; an exit status of 0 is taken as success.
        let kept = if self.writes_a_file() { count(&output)? } else { frames };
        Ok(Frames::new(frames, kept, Default::default(), seconds))
    }
}

fn failed(reason: impl ToString) -> Error {
    Error::Measure { what: "a trace to copy".to_owned(), reason: reason.to_string() }
}

/// Creates the trace, in memory.
fn trace(frames: u64) -> Result<TempDir> {
    let folder = tempfile::tempdir_in("/dev/shm").map_err(failed)?;
    let mut bytes = Vec::new();
    write::section_header(&mut bytes, &SectionInfo::default());
    write::interface(&mut bytes, &Interface { link_type: 1, ..Interface::default() });
    let frame = vec![0x5a; (SIZE - FCS_BYTES) as usize];
    let mut file = fs::File::create(folder.path().join("in.pcapng")).map_err(failed)?;
    for number in 0..frames {
        let ts_ns = 1_700_000_000_000_000_000 + number * 100;
        let meta = Meta { ts_ns, wire_len: SIZE - FCS_BYTES, ..Meta::default() };
        record::append(&mut bytes, &meta, &frame);
        if bytes.len() > 1 << 20 {
            file.write_all(&bytes).map_err(failed)?;
            bytes.clear();
        }
    }
    file.write_all(&bytes).map_err(failed)?;
    Ok(folder)
}

fn count(path: &Path) -> Result<u64> {
    let mut reader = FrameReader::open(fs::File::open(path).map_err(failed)?).map_err(failed)?;
    while reader.next().map_err(failed)?.is_some() {}
    Ok(reader.frames())
}

/// Runs every program in turn. A program that fails gives a row with the reason, and so does a trace that does not fit
/// into memory.
///
/// # Errors
/// None.
pub(super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let frames = if context.options.quick { FRAMES_QUICK } else { FRAMES };
    let folder = match trace(frames) {
        Ok(folder) => folder,
        Err(error) => {
            let mut row = Row::new(SECTION, WEIR, MPPS).sized(SIZE);
            row.absent = Some(format!("no room in /dev/shm: {error}"));
            return Ok(vec![row]);
        }
    };
    let weir = &context.options.weir;
    const TO_FILE: &[&str] = &["capture", "file:IN", "--write", "OUT"];
    const TO_NULL: &[&str] = &["capture", "file:IN", "--write", "-"];
    let mut all = vec![
        TraceTool::new(WEIR, weir, TO_FILE),
        TraceTool::new(TCPDUMP, "tcpdump", &["-r", "IN", "-w", "OUT"]),
        TraceTool::new(EDITCAP, "editcap", &["IN", "OUT"]),
        TraceTool::new(WEIR_NULL, weir, TO_NULL),
        TraceTool::new(TCPDUMP_NULL, "tcpdump", &["-r", "IN", "-w", "-"]),
    ];
    if let Some(before) = &context.options.before {
        all.insert(1, TraceTool::new(WEIR_BEFORE, before, TO_FILE));
        all.push(TraceTool::new(WEIR_NULL_BEFORE, before, TO_NULL));
    }
    for round in 0..context.rounds {
        for index in 0..all.len() {
            // The order alternates from round to round.
            let index = if round % 2 == 0 { index } else { all.len() - 1 - index };
            let tool = &mut all[index];
            if stopped(context.stop) || tool.row.absent.is_some() {
                continue;
            }
            let neighbours = context.calm();
            match tool.run(folder.path(), frames) {
                Ok(frames) => tool.row.add_frames(round, frames, neighbours.done()),
                Err(error) => tool.row.absent = Some(error.to_string()),
            }
        }
        context.say(&format!("{SECTION}, round {}", round + 1));
    }
    let mut rows: Vec<Row> = all.into_iter().map(|tool| tool.row).collect();
    conclude(&mut rows, TCPDUMP);
    Ok(rows)
}

/// Describes how this part is measured.
pub(super) fn condition(context: &Context) -> String {
    let frames = if context.options.quick { FRAMES_QUICK } else { FRAMES };
    format!(
        "files: whole runs of programs that copy a trace of {frames} frames of {SIZE} bytes (on the wire), both files \
         in memory, on CPUs of their own choice"
    )
}

/// Returns the targets of this part.
pub(super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let bar = |ours, theirs, least| {
        let both =
            find(rows, SECTION, ours, Some(SIZE)).zip(find(rows, SECTION, theirs, Some(SIZE)));
        let ratio = both.and_then(|(ours, theirs)| ours.over(theirs));
        Bar::new(format!("{ours} / {theirs}"), ratio, Side::AtLeast, least)
    };
    vec![
        bar(WEIR, TCPDUMP, 1.0),
        bar(WEIR, EDITCAP, 1.0),
        bar(WEIR, WEIR_BEFORE, before::LEAST),
        bar(WEIR_NULL, WEIR_NULL_BEFORE, before::LEAST),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_copied_is_counted_and_what_fails_says_so() {
        let folder = trace(1000).unwrap();
        let copy = TraceTool::new("cp", "cp", &["IN", "OUT"]).run(folder.path(), 1000).unwrap();
        assert_eq!((copy.offered, copy.kept), (1000, 1000));
        let null = TraceTool::new("cat", "cat", &["IN"]).run(folder.path(), 1000).unwrap();
        assert_eq!((null.offered, null.kept), (1000, 1000));
        let error = TraceTool::new("cat", "cat", &["no-such-file"]).run(folder.path(), 1);
        assert!(error.unwrap_err().to_string().contains("No such file"));
    }
}
