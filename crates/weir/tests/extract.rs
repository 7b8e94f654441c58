//! `weir extract`, checked with other tools.

mod common;

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_frame::read::FrameReader;
use weir_lab::testbed::require_tool;

use common::{LIMIT, Run, bed, folder, generate, number, ready, settle, weir};

/// Times and bytes of a file's frames.
fn frames(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = FrameReader::open(fs::File::open(file).expect("a file")).expect("a capture");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next().expect("frames") {
        frames.push((frame.ts_ns, frame.data.to_vec()));
    }
    frames
}

fn ran(line: &str) -> Output {
    let output = weir(line).env("TZ", "UTC").output().expect("weir");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

/// Writes the frames of a source to a file and records the same frames in `rec`; returns them.
fn recorded(dir: &Path, source: &str) -> Vec<(u64, Vec<u8>)> {
    let whole = dir.join("whole.pcapng");
    ran(&format!("capture {source} --write {}", whole.display()));
    let into = dir.join("rec");
    ran(&format!(
        "capture file:{} --write {}/ --rotate-size 4MiB",
        whole.display(),
        into.display()
    ));
    frames(&whole)
}

/// Extracts into a file; returns its frames and the command's report.
fn extract(dir: &Path, flags: &str) -> (Vec<(u64, Vec<u8>)>, Value) {
    let out = dir.join("out");
    let line = format!("extract {}/rec {flags} --json --write {}", dir.display(), out.display());
    let output = ran(&line);
    (frames(&out), serde_json::from_slice(&output.stdout).expect("counts"))
}

#[test]
fn all_of_it_and_parts_come_back_to_the_byte() {
    let dir = folder();
    let all = recorded(dir.path(), "gen:size=400,flows=200,frames=60000,rate=1Mpps");
    assert_eq!(all.len(), 60_000);
    let (frames, json) = extract(dir.path(), "");
    assert!(frames == all, "{json}");
    assert!(number(&json, "files") >= 5, "{json}");
    assert_eq!((number(&json, "frames"), number(&json, "frames_late")), (60_000, 0));
    // Times as seconds since the epoch with nanoseconds, as tshark prints them.
    let epoch = |ns: u64| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    let (from, to) = (all[20_000].0, all[20_500].0);
    let (frames, json) = extract(dir.path(), &format!("--from {} --to {}", epoch(from), epoch(to)));
    let expected: Vec<_> =
        all.iter().filter(|(ts_ns, _)| (from..to).contains(ts_ns)).cloned().collect();
    assert!(frames == expected && !frames.is_empty(), "{json}");
    assert!(number(&json, "skipped_by_time_bytes") > number(&json, "read_bytes"), "{json}");
    let (frames, _) = extract(dir.path(), "--frames 1234 --threads 1");
    assert!(frames == all[..1234]);
    // The filter is a single word, because `weir` splits the command line at spaces.
    let (frames, json) = extract(dir.path(), "--filter ip[12:4]=0xcb00714d");
    assert_eq!((frames.len(), number(&json, "read_bytes") < 1 << 20), (0, true), "{json}");
    let (frames, json) = extract(dir.path(), "--filter udp");
    assert!(frames == all, "{json}");
}

/// Passes if capinfos, tshark, tcpdump and mergecap find these frames in a file. Tools that are not installed are
/// skipped.
fn agreed_on(file: &Path, frames: &[(u64, Vec<u8>)]) {
    let path = file.to_str().expect("a name");
    let said = |line: &str| {
        let mut words = line.split(' ');
        let tool = words.next().expect("a tool");
        if !require_tool("formats_are_read_by_others", tool) {
            return None;
        }
        let output =
            Command::new(tool).args(words).arg(path).env("TZ", "UTC").output().expect(tool);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let why = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line} {path}: {why}");
        Some(text)
    };
    if let Some(text) = said("capinfos -M -c") {
        assert!(text.contains(&format!(" {}\n", frames.len())), "{text}");
    }
    if let Some(text) = said("tshark -T fields -e frame.time_epoch -e frame.len -r") {
        let line = |(ns, data): &(u64, Vec<u8>)| {
            format!("{}.{:09}\t{}\n", ns / 1_000_000_000, ns % 1_000_000_000, data.len())
        };
        assert!(text == frames.iter().map(line).collect::<String>(), "{text:.300}");
    }
    if let Some(text) = said("tcpdump -tt --nano -nr") {
        let stamps: Vec<&str> = text.lines().filter_map(|line| line.split(' ').next()).collect();
        let stamp =
            |(ns, _): &(u64, Vec<u8>)| format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
        assert!(stamps.len() == frames.len() && stamps[0] == stamp(&frames[0]), "{text:.300}");
    }
    let merged = file.with_extension("merged");
    if said(&format!("mergecap -w {}", merged.display())).is_some() {
        assert!(self::frames(&merged) == frames);
        fs::remove_file(&merged).expect("it was made");
    }
}

#[test]
fn stores_of_the_same_time_give_every_frame_of_each_in_order() {
    let dir = folder();
    let all = recorded(dir.path(), "gen:size=300,frames=20000,rate=1Mpps");
    let (whole, out) = (dir.path().join("whole.pcapng"), dir.path().join("out"));
    let (rec, again) = (dir.path().join("rec"), dir.path().join("again"));
    ran(&format!("capture file:{} --write {}/", whole.display(), again.display()));
    ran(&format!("extract {} {} --write {}", rec.display(), again.display(), out.display()));
    let twice: Vec<_> = all.iter().flat_map(|frame| [frame.clone(), frame.clone()]).collect();
    assert!(frames(&out) == twice);
}

#[test]
fn formats_are_read_by_others() {
    let dir = folder();
    let all = recorded(dir.path(), "gen:size=100,frames=2000,rate=1Mpps");
    let (rec, out) = (dir.path().join("rec"), dir.path().join("out.pcap"));
    ran(&format!("extract {} --format pcap --write {}", rec.display(), out.display()));
    assert!(frames(&out) == all);
    let bytes = fs::read(&out).expect("a file");
    assert_eq!(bytes[..4], 0xa1b2_3c4d_u32.to_le_bytes());
    agreed_on(&out, &all);
    let recorded = fs::read_dir(&rec).expect("files").map(|entry| entry.expect("one").path());
    let [file] = &recorded
        .filter(|path| path.extension() == Some("pcapng".as_ref()))
        .collect::<Vec<_>>()[..]
    else {
        panic!("one ring, so one file")
    };
    agreed_on(file, &all);
    // Into a pipe whose reader reads one frame only.
    let mut first = weir(&format!("extract {}", rec.display()));
    let mut child = first.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("weir");
    let mut reader = FrameReader::open(child.stdout.take().expect("a pipe")).expect("a capture");
    assert_eq!(reader.next().expect("a frame").expect("one").ts_ns, all[0].0);
    drop(reader);
    let output = child.wait_with_output().expect("it ends");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_flow_is_found_by_its_record() {
    let dir = folder();
    let all = recorded(dir.path(), "gen:size=300,flows=500,frames=50000,rate=1Mpps");
    let flows = ran(&format!("flows file:{}/whole.pcapng --json", dir.path().display()));
    let text = String::from_utf8_lossy(&flows.stdout).into_owned();
    let line = text.lines().find(|line| line.contains("community_id")).expect("a flow");
    let record: Value = serde_json::from_str(line).expect("a record");
    let file = dir.path().join("flow.json");
    fs::write(&file, line).expect("a file");
    let (by_record, json) = extract(dir.path(), &format!("--flow @{}", file.display()));
    assert_eq!(by_record.len() as u64, number(&record, "packets"), "{record} {json}");
    assert!(by_record.iter().all(|frame| all.contains(frame)));
    let id = record["community_id"].as_str().expect("an id");
    let (by_id, _) = extract(dir.path(), &format!("--flow {id}"));
    assert!(by_id == by_record);
}

/// A pcap file of these frames, a millisecond apart.
fn spread(file: &Path, frames: &[(u64, Vec<u8>)]) {
    let mut bytes = Vec::new();
    let mut words = |words: &[u32], data: &[u8]| {
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(data);
    };
    // Stamps in nanoseconds, Ethernet.
    words(&[0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1], &[]);
    for ((_, data), ms) in frames.iter().zip(0_u32..) {
        let len = data.len() as u32;
        words(&[1_700_000_000 + ms / 1000, ms % 1000 * 1_000_000, len, len], data);
    }
    fs::write(file, bytes).expect("a file");
}

#[test]
fn times_of_a_record_limit_what_is_read_of_its_flow() {
    let dir = folder();
    let all = recorded(dir.path(), "gen:size=400,flows=200,frames=30000,rate=1Mpps");
    let trace = dir.path().join("spread.pcap");
    spread(&trace, &all);
    fs::remove_dir_all(dir.path().join("rec")).expect("it was there");
    ran(&format!("capture file:{} --write {}/rec/", trace.display(), dir.path().display()));
    // Each flow lasts for all of the 30 s, and is reported in records of 5 s.
    let flows = ran(&format!("flows file:{} --active-timeout 5s --json", trace.display()));
    let text = String::from_utf8_lossy(&flows.stdout).into_owned();
    let records: Vec<_> = text.lines().filter(|line| line.contains("community_id")).collect();
    assert!(records.len() > 1000, "{}", records.len());
    let line = records[records.len() / 2];
    let record: Value = serde_json::from_str(line).expect("a record");
    let file = dir.path().join("flow.json");
    fs::write(&file, line).expect("a file");
    let (by_record, json) = extract(dir.path(), &format!("--flow @{}", file.display()));
    assert!(by_record.len() as u64 >= number(&record, "packets"), "{record} {json}");
    assert!(number(&json, "skipped_by_time_bytes") > number(&json, "read_bytes"), "{json}");
    let id = record["community_id"].as_str().expect("an id");
    let (by_id, json) = extract(dir.path(), &format!("--flow {id}"));
    assert_eq!((by_id.len(), number(&json, "skipped_by_time_bytes")), (150, 0), "{json}");
    let begin = by_id.iter().position(|frame| *frame == by_record[0]).expect("one of the flow");
    assert!(by_record == by_id[begin..begin + by_record.len()], "{json}");
    // The record's 5 s, and one more second before and after.
    let seconds = by_record.last().expect("frames").0 - by_record[0].0;
    assert!((4_000_000_000..=7_000_000_000).contains(&seconds), "{seconds} {record}");
}

#[test]
fn files_that_are_read_are_locked_against_deletion() {
    let dir = folder();
    recorded(dir.path(), "gen:size=400,flows=200,frames=60000,rate=1Mpps");
    let rec = dir.path().join("rec");
    let is_locked = |path: &Path| {
        let file = fs::File::open(path).expect("a file");
        rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive).is_err()
    };
    let locked = || {
        let paths = fs::read_dir(&rec).expect("files").map(|entry| entry.expect("one").path());
        let files = paths.filter(|path| path.extension() == Some("pcapng".as_ref()));
        files.filter(|path| is_locked(path)).count()
    };
    assert_eq!(locked(), 0);
    let mut command = weir(&format!("extract {}", rec.display()));
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("weir");
    // The extraction has begun, and now waits for its reader.
    let mut reader = FrameReader::open(child.stdout.take().expect("a pipe")).expect("a capture");
    assert!(reader.next().expect("a frame").is_some());
    assert!(locked() > 0);
    while reader.next().expect("frames").is_some() {}
    assert!(child.wait().expect("it ends").success());
    assert_eq!(locked(), 0);
}

#[test]
fn what_cannot_be_extracted_is_refused_with_a_way_out() {
    let dir = folder();
    recorded(dir.path(), "gen:frames=10");
    let at = dir.path().display();
    let refused = |line: &str, words: &[&str]| {
        let output = weir(line).output().expect("weir");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        words.iter().for_each(|word| assert!(text.contains(word), "{line}: {text}"));
    };
    refused("extract /no/such/dir", &["/no/such/dir", "--write DIR/"]);
    refused(
        &format!("extract {at}/rec prt 80"),
        &["prt: no such file", "not taken for the beginning of a filter"],
    );
    for format in ["pcapng", "pcap"] {
        let to_folder = format!("extract {at}/rec --format {format} --write {at}");
        refused(&to_folder, &["cannot be made (Is a directory);", "name a file"]);
        let nowhere = format!("extract {at}/rec --format {format} --write {at}/no/x");
        refused(&nowhere, &["is missing: make it (`mkdir -p", "or name another"]);
    }
    refused(&format!("extract {at}/rec --from yesterday"), &["--from", "-5m"]);
    refused(&format!("extract {at}/rec --from 10:00 --to 09:00"), &["not before"]);
    refused(&format!("extract {at}/rec --filter nonsense"), &["--filter", "nonsense"]);
    refused(&format!("extract {at}/rec --flow 10.0.0.1"), &["--flow", "Community ID"]);
    let file = fs::read_dir(dir.path().join("rec"))
        .expect("files")
        .map(|entry| entry.expect("one").path());
    let file =
        { file }.find(|path| path.extension().is_some_and(|end| end == "pcapng")).expect("a file");
    let before = fs::read(&file).expect("a file");
    refused(&format!("extract {at}/rec --write {}", file.display()), &["is read"]);
    assert!(fs::read(&file).expect("a file") == before);
    // The next extraction would read such an output, too.
    for name in ["out.pcapng", "./out.pcapng", "../rec/out.pcapng.zst"] {
        refused(
            &format!("extract {at}/rec/ --write {at}/rec/{name}"),
            &["which is read", "write to another directory"],
        );
        assert!(!dir.path().join("rec").join(name).exists(), "{name}");
    }
    ran(&format!("extract {at}/rec --write {at}/rec/out"));
    fs::create_dir(dir.path().join("empty")).expect("a directory");
    refused(&format!("extract {at}/empty"), &["nothing was recorded"]);
}

#[test]
fn root_frames_are_extracted_while_more_are_recorded_and_after_a_kill() {
    let test = "root_frames_are_extracted_while_more_are_recorded_and_after_a_kill";
    let Some(_alone) = ready(test, &["tshark"]) else { return };
    let (bed, dir) = (bed(), folder());
    let rec = dir.path().join("rec");
    let mut run = Run::capture(&bed.rx, &format!("--write {}/", rec.display()));
    generate(&bed.tx, "--frames 30000 --size 500 --rate 100kpps");
    settle();
    let begun = Instant::now();
    // All frames reach the file on the disk within a second or two.
    let mut seen = Vec::new();
    while begun.elapsed() < LIMIT && seen.len() < 30_000 {
        std::thread::sleep(Duration::from_millis(200));
        seen = extract(dir.path(), "").0;
        // Space that is reserved after the end of a growing file must not be reported as damage.
        let out = dir.path().join("again");
        let again = ran(&format!("extract {} --write {}", rec.display(), out.display()));
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(!said.contains("no whole block"), "{said}");
    }
    assert!(seen.len() >= 30_000, "{}", seen.len());
    assert!(seen.windows(2).all(|two| two[0].0 <= two[1].0));
    run.signal(libc::SIGKILL);
    drop(run);
    let (after, json) = extract(dir.path(), "");
    assert!(after.len() >= seen.len(), "{json}");
    let out = dir.path().join("out");
    let tshark = Command::new("tshark").args(["-n", "-r"]).arg(&out).output().expect("tshark");
    assert!(tshark.status.success());
    assert_eq!(String::from_utf8_lossy(&tshark.stdout).lines().count(), after.len());
}

#[test]
fn indexes_made_anew_rule_out_what_those_of_the_recorder_did() {
    let dir = folder();
    recorded(dir.path(), "gen:size=400,flows=200,frames=60000,rate=1Mpps");
    let counts = || {
        let (frames, json) = extract(dir.path(), "--filter ip[12:4]=0xcb00714d");
        (frames.len(), number(&json, "skipped_by_index_bytes"), number(&json, "pieces"))
    };
    let before = counts();
    assert!(before.1 > 0, "{before:?}");
    let rec = dir.path().join("rec");
    let index =
        |flags: &str| weir(&format!("index {} {flags}", rec.display())).output().expect("weir");
    assert_eq!(index("--check").status.code(), Some(0));
    let entries = fs::read_dir(&rec).expect("a directory").map(|entry| entry.expect("one").path());
    let indexes: Vec<_> =
        entries.filter(|path| path.extension().is_some_and(|end| end == "index")).collect();
    for path in &indexes {
        fs::remove_file(path).expect("it was there");
    }
    assert_eq!(index("--check").status.code(), Some(1));
    assert!(indexes.iter().all(|path| !path.exists()));
    let output = index("--json --threads 2");
    let json: Value = serde_json::from_slice(&output.stdout).expect("counts");
    assert_eq!(output.status.code(), Some(0), "{json}");
    assert_eq!((number(&json, "frames"), number(&json, "indexes")), (60_000, indexes.len() as u64));
    assert_eq!(counts(), before);
    // Now the check finds nothing to do. A directory that does not exist is refused.
    assert_eq!(index("--check").status.code(), Some(0));
    assert_eq!(weir("index /nonexistent").output().expect("weir").status.code(), Some(2));
}
