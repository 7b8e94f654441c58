//! Measures the extraction of one flow from a large store: `weir extract` with its index, beside `tcpdump -r` with the
//! same filter.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use serde::Deserialize;
use weir_frame::checksum::{fold, word_sum};
use weir_frame::pcapng::LINKTYPE_ETHERNET;

use super::place::{Place, failed};
use crate::bench::bar::{Bar, Side};
use crate::bench::context::{Context, stopped};
use crate::bench::row::{Row, conclude, find};
use crate::generator::FCS_BYTES;
use crate::generator::sizes::Sizes;
use crate::generator::template::{DESTINATION_MAC, SOURCE_MAC, Template};
use crate::{Error, Result};

pub(in super::super) const SECTION: &str = "store";
const WEIR: &str = "weir extract --filter";
const READ: &str = "weir extract --filter, of all bytes";
const TCPDUMP: &str = "tcpdump -r, each file";
const SECONDS: &str = "s";
const PERCENT: &str = "%";
const BYTES: u64 = 10_000_000_000;
const BYTES_QUICK: u64 = 1_000_000_000;
const FLOWS: u64 = 1_000_000;
/// Frames of the searched flow, spread over the whole store.
const SOUGHT_FRAMES: u64 = 100;
const SOUGHT: [u8; 4] = [203, 0, 113, 7];
const FILTER: &str = "udp and host 203.0.113.7 and host 192.0.2.1 and port 7 and port 9";
/// Time span of the store, nanoseconds.
const SPAN_NS: u64 = 100_000_000_000;
/// Frames of each size in a turn; the mean is 800 B. Notation: RFC 6985.
const MIX: [(u32, u32); 3] = [(64, 6), (576, 4), (1518, 8)];

/// The fields of `weir extract --json` that are used here.
#[derive(Deserialize)]
struct Found {
    bytes: u64,
    read_bytes: u64,
    frames: u64,
    duration_s: f64,
}

/// Creates a store, and extracts one flow from it with both programs.
///
/// # Errors
/// None. A failure gives a row with the reason.
pub(in super::super) fn measure(context: &Context) -> Result<Vec<Row>> {
    let mut rows = [(WEIR, SECONDS), (TCPDUMP, SECONDS), (READ, PERCENT)]
        .map(|(what, unit)| Row::new(SECTION, what, unit));
    match all(context, &mut rows) {
        Ok(()) => {}
        Err(Error::Measure { what, reason }) => {
            rows[0].absent = Some(format!("{what}: {reason}"));
        }
        Err(error) => return Err(error),
    }
    conclude(&mut rows[..2], WEIR);
    conclude(&mut rows[2..], READ);
    Ok(rows.into())
}

fn all(context: &Context, rows: &mut [Row; 3]) -> Result<()> {
    let place = Place::new(context)?;
    let bytes = if context.options.quick { BYTES_QUICK } else { BYTES };
    place.needs(bytes)?;
    let folder = place.folder()?;
    let store = folder.path().join("store");
    context.say(&format!("{SECTION}: {:.0} GB are made", bytes as f64 / 1e9));
    let frames = make(context, folder.path(), &store, bytes)?;
    rows[0].note = format!("{frames} frames, {FLOWS} flows; {}", place.on);
    let mut files: Vec<PathBuf> = std::fs::read_dir(&store)
        .map_err(|error| failed(error.to_string()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| path.extension().is_some_and(|ending| ending == "pcapng"))
        .collect();
    files.sort();
    // Read all files into the page cache, for both programs.
    for file in &files {
        _ = File::open(file).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    }
    for round in 0..context.rounds {
        if stopped(context.stop) {
            break;
        }
        let neighbours = context.calm();
        let found = extract(&context.options.weir, &store)?;
        if found.frames != SOUGHT_FRAMES {
            return Err(failed(format!("{} of {SOUGHT_FRAMES} frames were found", found.frames)));
        }
        let disturbance = neighbours.done();
        rows[0].add(round, found.duration_s, disturbance);
        rows[2].add(round, found.read_bytes as f64 / found.bytes as f64 * 100.0, disturbance);
        let neighbours = context.calm();
        match tcpdump(&files) {
            Ok(seconds) => rows[1].add(round, seconds, neighbours.done()),
            Err(Error::Measure { reason, .. }) => rows[1].absent = Some(reason),
            Err(error) => return Err(error),
        }
        context.say(&format!("{SECTION}, round {}", round + 1));
    }
    Ok(())
}

/// Records at least `bytes` of a mix of flows and sizes with the recorder. Returns the number of frames.
fn make(context: &Context, folder: &Path, store: &Path, bytes: u64) -> Result<u64> {
    let fifo = folder.join("fifo");
    let made = Command::new("mkfifo").arg(&fifo).status();
    if !made.is_ok_and(|status| status.success()) {
        return Err(failed(format!("mkfifo {}", fifo.display())));
    }
    let mut recorder = Command::new(&context.options.weir);
    recorder.args(["capture", &format!("file:{}", fifo.display()), "--json", "--write"]);
    recorder.arg(store.join("")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut recorder = recorder.spawn().map_err(|error| failed(error.to_string()))?;
    let input = fifo.clone();
    let writer = thread::spawn(move || write(&input, bytes));
    let output = loop {
        if stopped(context.stop) {
            _ = recorder.kill();
        }
        match recorder.try_wait() {
            Ok(Some(_)) => break recorder.wait_with_output(),
            Ok(None) => thread::sleep(std::time::Duration::from_millis(50)),
            Err(error) => return Err(failed(error.to_string())),
        }
    };
    // If the recorder ended before it opened its input, the writer still waits for a reader. This opens and closes the
    // other end, so that the writer no longer blocks.
    let reader = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
    drop(reader);
    let written = writer.join().map_err(|_| failed("the frames' writer panicked".to_owned()))?;
    let written = written.map_err(|error| failed(format!("the recorder's input: {error}")))?;
    let output = output.map_err(|error| failed(error.to_string()))?;
    let said = serde_json::from_slice::<serde_json::Value>(&output.stdout).ok();
    let delivered = said.and_then(|said| said["delivered"].as_u64());
    if delivered != Some(written) {
        return Err(failed(format!("{delivered:?} of {written} frames were recorded")));
    }
    Ok(written)
}

/// Writes a pcap trace of at least `bytes` bytes, with nanosecond stamps. Returns the number of frames.
fn write(path: &Path, bytes: u64) -> io::Result<u64> {
    let mut out = BufWriter::with_capacity(1 << 20, File::options().write(true).open(path)?);
    for word in [0xa1b2_3c4d, 2 | 4 << 16, 0, 0, 65_535, u32::from(LINKTYPE_ETHERNET)] {
        out.write_all(&word.to_le_bytes())?;
    }
    let sizes = Sizes::mix(&MIX).map_err(io::Error::other)?;
    let mut templates: Vec<_> = sizes
        .shares()
        .iter()
        .map(|(size, _)| {
            let template =
                Template::new((size - FCS_BYTES) as usize, FLOWS, SOURCE_MAC, DESTINATION_MAC);
            (*size, template.frame(0), template)
        })
        .collect();
    let frames = (bytes as f64 / (sizes.mean() - f64::from(FCS_BYTES) + 16.0)) as u64;
    let every = frames / SOUGHT_FRAMES;
    let (mut number, mut sought) = (0, 0);
    while number < frames {
        // Without the shift, all frames of a flow could have the same size.
        let size = sizes.of(number + number / FLOWS);
        let own = templates.iter_mut().find(|(own, ..)| *own == size).expect("one of the mix");
        let (_, frame, template) = own;
        template.number(frame, number);
        if number % every == every / 2 && sought < SOUGHT_FRAMES {
            sought += 1;
            seek(frame);
        }
        let ns =
            1_700_000_000_000_000_000 + (number as f64 / frames as f64 * SPAN_NS as f64) as u64;
        let length = frame.len() as u32;
        for word in [(ns / 1_000_000_000) as u32, (ns % 1_000_000_000) as u32, length, length] {
            out.write_all(&word.to_le_bytes())?;
        }
        out.write_all(frame)?;
        number += 1;
    }
    out.flush()?;
    Ok(frames)
}

/// Turns a frame into one of the flow to be searched for.
fn seek(frame: &mut [u8]) {
    frame[26..30].copy_from_slice(&SOUGHT);
    frame[34..36].copy_from_slice(&7_u16.to_be_bytes());
    frame[24..26].fill(0);
    let check = fold(word_sum(&frame[14..34]));
    frame[24..26].copy_from_slice(&check.to_be_bytes());
}

fn extract(weir: &Path, store: &Path) -> Result<Found> {
    let mut command = Command::new(weir);
    command.arg("extract").arg(store).args(["--filter", FILTER, "--json", "--write", "/dev/null"]);
    let output =
        command.stdin(Stdio::null()).output().map_err(|error| failed(error.to_string()))?;
    serde_json::from_slice(&output.stdout)
        .map_err(|_| failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()))
}

/// Returns the seconds that tcpdump takes for all files, one after the other.
fn tcpdump(files: &[PathBuf]) -> Result<f64> {
    let begun = Instant::now();
    for file in files {
        let mut command = Command::new("tcpdump");
        command.arg("-r").arg(file).args(["-w", "/dev/null", FILTER]);
        let output = command.stdin(Stdio::null()).output();
        let output = output.map_err(|error| failed(format!("tcpdump: {error}")))?;
        if !output.status.success() {
            return Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
        }
    }
    Ok(begun.elapsed().as_secs_f64())
}

/// Describes how this part is measured.
pub(in super::super) fn condition(context: &Context) -> String {
    let bytes = if context.options.quick { BYTES_QUICK } else { BYTES };
    format!(
        "store: {:.0} GB of frames of 64, 576 and 1518 B (800 B in the mean), {FLOWS} flows in turn and \
         {SOUGHT_FRAMES} frames of one more, spread over all, recorded from a FIFO by weir capture file: --write DIR/ \
         in files of 1 GiB; both get '{FILTER}' and write what they find to /dev/null; all files were read once before",
        bytes as f64 / 1e9
    )
}

/// Returns the targets of this part.
pub(in super::super) fn bars(rows: &[Row]) -> Vec<Bar> {
    let row = |what| find(rows, SECTION, what, None);
    let median = |what| Some(row(what)?.value?.median);
    let times = row(TCPDUMP).zip(row(WEIR)).and_then(|(tcpdump, weir)| tcpdump.over(weir));
    vec![
        Bar::new(
            "a flow of 100 frames of a million, warm: seconds",
            median(WEIR),
            Side::AtMost,
            1.0,
        ),
        Bar::new("the same: % of the data read", median(READ), Side::AtMost, 5.0),
        Bar::new("the same: tcpdump -r / weir extract, time", times, Side::AtLeast, 20.0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_flow_that_is_looked_for_has_its_frames_in_the_trace() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("trace");
        File::create(&path).unwrap();
        let frames = write(&path, 1_000_000).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!((900_000..1_100_000).contains(&bytes.len()), "{}", bytes.len());
        let (mut at, mut all, mut sought) = (24, 0, 0);
        while at < bytes.len() {
            let length = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
            let frame = &bytes[at + 16..at + 16 + length];
            assert_eq!(fold(word_sum(&frame[14..34])), 0, "a header's checksum");
            sought += u64::from(frame[26..30] == SOUGHT);
            (at, all) = (at + 16 + length, all + 1);
        }
        assert_eq!((all, sought), (frames, SOUGHT_FRAMES));
    }
}
