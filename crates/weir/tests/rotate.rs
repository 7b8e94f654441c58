//! `--write FILE` with `-C`, `-G`, `-W` and `--quota`: a series of files, each of which is complete.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use common::tools::{Got, all_read, in_time_order, read, statistics};
use common::{Ended, LIMIT, Run, bed, closes, folder, generate, number, path, ready, settle, weir};
use weir_lab::generator::template::number_of;
use weir_lab::testbed::require_tool;

const TOOLS: [&str; 3] = ["capinfos", "tshark", "tcpdump"];

/// Runs `weir capture` to its end.
fn capture(args: &str) -> Ended {
    let mut command = weir(&format!("capture {args}"));
    let output = command.env("TZ", "UTC").output().expect("weir");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ended { code: output.status.code(), stdout: output.stdout, stderr, what: args.to_owned() }
}

/// Names and paths of the files whose names begin with `begin`, in the order in which they were created.
fn files(folder: &Path, begin: &str) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry"));
    let named = entries.map(|entry| (entry.file_name().into_string().unwrap(), entry.path()));
    let mut files: Vec<_> = named.filter(|(name, _)| name.starts_with(begin)).collect();
    // By length first: numbers at the end have one or two digits.
    files.sort_by_key(|(name, _)| (name.len(), name.clone()));
    files
}

fn names(files: &[(String, PathBuf)]) -> Vec<&str> {
    files.iter().map(|(name, _)| name.as_str()).collect()
}

fn bytes(file: &Path) -> u64 {
    fs::metadata(file).expect("a file").len()
}

/// The frames of a series of files. Checks that each file is complete, with all tools if they are installed.
fn frames(test: &str, files: &[(String, PathBuf)]) -> Vec<Got> {
    let mut all = Vec::new();
    for (name, file) in files {
        let (interfaces, frames) = read(file);
        assert_eq!(interfaces.len(), 1, "{name}");
        if TOOLS.iter().all(|tool| require_tool(test, tool)) {
            all_read(file, &frames);
        }
        let statistics = statistics(file);
        assert_eq!(statistics.len(), 1, "{name}");
        assert_eq!(statistics[0].delivered, Some(frames.len() as u64), "{name}");
        all.extend(frames);
    }
    all
}

#[test]
fn a_size_cuts_a_file_into_files_that_have_its_frames() {
    let test = "a_size_cuts_a_file_into_files_that_have_its_frames";
    let dir = folder();
    let (whole, name) = path(&dir, "whole.pcapng");
    capture(&format!("gen:size=400,flows=50,frames=20000,rate=1Mpps -w {name}")).expect(0);
    let (_, cut) = path(&dir, "cut.pcapng");
    let ended = capture(&format!("file:{name} -C 1 -w {cut} --json")).expect(0);
    closes(&ended.json());
    assert_eq!(number(&ended.json(), "delivered"), 20_000);
    let files = files(dir.path(), "cut");
    let follows = |number: usize| match number {
        0 => "cut.pcapng".to_owned(),
        number => format!("cut.pcapng{number}"),
    };
    assert!(files.len() > 5, "{files:?}");
    assert_eq!(names(&files), (0..files.len()).map(follows).collect::<Vec<_>>());
    // In a full file there is no room for another frame.
    let (last, full) = files.split_last().expect("files");
    assert!(full.iter().all(|(_, file)| (999_000..=1_000_000).contains(&bytes(file))), "{files:?}");
    assert!(bytes(&last.1) <= 1_000_000);
    assert!(frames(test, &files) == read(&whole).1);
    // The run's count of received frames is in the last file only.
    let received = files.iter().map(|(_, file)| statistics(file)[0].received);
    let mut expected = vec![None; files.len() - 1];
    expected.push(Some(20_000));
    assert_eq!(received.collect::<Vec<_>>(), expected);
}

#[test]
fn with_a_number_files_are_written_in_turn() {
    let test = "with_a_number_files_are_written_in_turn";
    let dir = folder();
    let (_, name) = path(&dir, "ring.pcapng");
    let source = "gen:size=1000,frames=10000,rate=100kpps";
    let ended = capture(&format!("{source} -C 1 -W 3 -w {name} --json")).expect(0);
    closes(&ended.json());
    assert_eq!(number(&ended.json(), "delivered"), 10_000);
    let files = files(dir.path(), "ring");
    assert_eq!(names(&files), ["ring.pcapng0", "ring.pcapng1", "ring.pcapng2"]);
    let mut frames = frames(test, &files);
    frames.sort_by_key(|frame| frame.ts_ns);
    let numbers: Vec<u64> = frames.iter().filter_map(|frame| number_of(&frame.data)).collect();
    assert!(numbers.len() > 1_900 && numbers.len() < 3_000, "{}", numbers.len());
    assert_eq!(numbers, (10_000 - numbers.len() as u64..10_000).collect::<Vec<_>>());
}

#[test]
fn a_time_names_the_files_and_a_number_of_them_ends_the_run() {
    let test = "a_time_names_the_files_and_a_number_of_them_ends_the_run";
    let dir = folder();
    // Ten frames a second, from 22:13:20 UTC exactly.
    let (whole, source) = path(&dir, "whole.pcapng");
    capture(&format!("gen:frames=35,rate=10pps -w {source}")).expect(0);
    let all = read(&whole).1;
    let (_, name) = path(&dir, "t-%H%M%S.pcapng");
    capture(&format!("file:{source} -G 1 -w {name}")).expect(0);
    let by_time = files(dir.path(), "t-");
    let first = ["t-221320.pcapng", "t-221321.pcapng", "t-221322.pcapng", "t-221323.pcapng"];
    assert_eq!(names(&by_time), first);
    assert_eq!(frames(test, &by_time), all);
    let counts = by_time.iter().map(|(_, file)| read(file).1.len());
    assert_eq!(counts.collect::<Vec<_>>(), [10, 10, 10, 5]);

    let (_, name) = path(&dir, "u-%H%M%S.pcapng");
    let ended = capture(&format!("file:{source} -G 1 -W 2 -w {name} --json --count")).expect(0);
    let json = ended.json();
    closes(&json);
    assert_eq!((number(&json, "delivered"), number(&json, "lapped")), (20, 0), "{json}");
    assert!(number(&json, "after_limit") > 0, "{json}");
    assert!(ended.stderr.contains("--rotate-files 2"), "{}", ended.stderr);
    let two = files(dir.path(), "u-");
    assert_eq!(names(&two), ["u-221320.pcapng", "u-221321.pcapng"]);
    assert_eq!(frames(test, &two), all[..20]);
    assert!(statistics(&two[1].1)[0].received.is_some(), "it is finished as ever");

    // A limit of size as well as time: numbers are appended to each name.
    let (_, name) = path(&dir, "v-%S");
    capture(&format!("file:{source} -G 2s --rotate-size 4KiB --write {name}")).expect(0);
    let both = files(dir.path(), "v-");
    assert!(names(&both).iter().all(|name| ["v-20", "v-22"].contains(&&name[..4])), "{both:?}");
    let mut frames = frames(test, &both);
    frames.sort_by_key(|frame| frame.ts_ns);
    assert_eq!(frames, all);
}

#[test]
fn a_quota_keeps_the_last_files() {
    let test = "a_quota_keeps_the_last_files";
    let dir = folder();
    let (_, name) = path(&dir, "kept.pcapng");
    let source = "gen:size=1000,frames=10000,rate=100kpps";
    capture(&format!("{source} -C 1 --quota 4MB -w {name}")).expect(0);
    let files = files(dir.path(), "kept");
    let sum: u64 = files.iter().map(|(_, file)| bytes(file)).sum();
    assert!((3 << 20..=4 << 20).contains(&sum), "{sum}: {files:?}");
    let frames = frames(test, &files);
    let numbers: Vec<u64> = frames.iter().filter_map(|frame| number_of(&frame.data)).collect();
    assert_eq!(numbers, (10_000 - numbers.len() as u64..10_000).collect::<Vec<_>>());
}

#[test]
fn what_cannot_be_is_refused_with_a_way_out() {
    let dir = folder();
    let (source, name) = path(&dir, "in.pcapng");
    capture(&format!("gen:frames=1 -w {name}")).expect(0);
    let (_, fifo) = path(&dir, "fifo");
    let made = std::process::Command::new("mkfifo").arg(&fifo).status().expect("mkfifo");
    assert!(made.success());
    let at = dir.path().display();
    for (args, words) in [
        ("-w - -C 1".to_owned(), &["-C is for files", "--write NAME.pcapng"][..]),
        (format!("-w {fifo} -G 1"), &["--rotate-time is for files", "behind the pipe"]),
        ("-w /dev/null --rotate-size 1MiB".to_owned(), &["--rotate-size is for files"]),
        (format!("-w {at}/a -G 60"), &["replace the one before", "%H%M%S", "-C", "-W 1"]),
        (format!("-w {at}/a%H -G 60"), &["the same name", "%H%M%S"]),
        (format!("-w {at}/a%Q -G 60"), &["strftime"]),
        (format!("-w {at}/a -W 3"), &["--rotate-files", "-C 100", "-G 3600"]),
        (format!("-w {at}/a --quota 1GiB"), &["--quota", "-C 100", "-G 3600"]),
        (format!("-w {at}/a --quota 80% -C 1"), &["--quota 80%", "--write DIR/", "20GiB"]),
        (format!("-w {at}/a --quota 1MiB -C 1"), &["--quota", "no room for 2 files"]),
        (format!("-w {at}/a --quota 1GiB -C 1 -W 3"), &["leave one of them out"]),
        (format!("-w {at}/a%S -C 1 -G 1 -W 3"), &["--rotate-files", "not with both", "--quota"]),
        (format!("-w {at}/a/ -W 3 -C 8"), &["--rotate-files", "--quota"]),
        (format!("-w {at}/a/ -C 1"), &["at least", "4MiB"]),
        (format!("-w {at}/a -C 1 -z gzip"), &["-z", "xargs -n 1 gzip"]),
        (format!("-w {at}/no/a%S -G 1"), &["no/a%S", "No such file"]),
        (format!("-w {at}/no/a -C 1"), &["no/a", "No such file"]),
    ] {
        let ended = capture(&format!("gen:frames=1 {args}")).refused(words);
        assert!(ended.stdout.is_empty(), "{args}: {}", ended.text());
    }
    // The input file has the name of one of the files that would be written.
    let copy = dir.path().join("a.pcapng3");
    fs::copy(&source, &copy).unwrap();
    let line = format!("file:{} -w {at}/a.pcapng -C 1", copy.display());
    capture(&line).refused(&["a.pcapng3", "another folder"]);
    assert!(files(dir.path(), "a").len() == 1, "nothing was made");
}

#[test]
fn the_recorder_takes_the_short_flags_too() {
    let dir = folder();
    let record = dir.path().join("record");
    let source = "gen:size=1000,frames=20000,rate=200kpps";
    capture(&format!("{source} -w {}/ -C 8 -G 1h", record.display())).expect(0);
    let files = files(&record, "2");
    let files = files.iter().filter(|(name, _)| name.ends_with(".pcapng"));
    assert!(files.count() >= 3);
}

#[test]
fn root_rotated_files_of_a_link_have_each_frame_once() {
    let test = "root_rotated_files_of_a_link_have_each_frame_once";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    let dir = folder();
    for (prefix, how) in [("c", "-C 1"), ("g", "-G 1")] {
        let (_, name) = path(&dir, &format!("{prefix}-%s-.pcapng"));
        let args = format!("{how} --write {name} --json --ring-size 64MiB");
        let mut run = Run::capture(&bed.rx, &args);
        let sent = number(&generate(&bed.tx, "--frames 20k --rate 10kpps --size 300"), "sent");
        settle();
        run.signal(libc::SIGTERM);
        let json = run.end_within(LIMIT).expect(0).json();
        closes(&json);
        assert_eq!(number(&json, "lapped"), 0, "{json}");
        let files = files(dir.path(), prefix);
        assert!(files.len() >= 2, "{files:?}");
        let small = files.iter().all(|(_, file)| bytes(file) <= 1_000_000);
        assert!(small || how != "-C 1", "{files:?}");
        let frames = frames(test, &files);
        in_time_order(&frames);
        assert_eq!(frames.len() as u64, number(&json, "delivered"), "{json}");
        let numbers = frames.iter().filter_map(|frame| number_of(&frame.data));
        assert_eq!(numbers.collect::<BTreeSet<u64>>().len() as u64, sent, "{json}");
    }
}
