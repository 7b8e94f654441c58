//! Several consumers of one run: each gets every frame and has its own ledger, and its end does not end the others.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};

use common::{HOOKS, Run, bed, closes, folder, generate, number, path, ready, settle, weir};
use serde_json::Value;
use weir_frame::read::FrameReader;

const TRACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/demo/trace.pcapng");

/// The number of frames in a capture file.
fn frames(path: &Path) -> u64 {
    let bytes = common::slurp(path);
    let mut bytes = &bytes[..];
    let mut reader = FrameReader::open(&mut bytes).expect("a capture file");
    let mut frames = 0;
    while reader.next().expect("a whole file").is_some() {
        frames += 1;
    }
    frames
}

/// The consumers of a report by name. Checks that the ledger of each accounts for every captured frame.
#[track_caller]
fn consumers(json: &Value) -> Vec<(&str, &Value)> {
    closes(json);
    let all = json["consumers"].as_array().expect("consumers");
    let named = |one| {
        let n = |name| number(one, name);
        let behind = number(&one["drops"], "store") + number(&one["drops"], "ring");
        let accounted = n("delivered") + n("lapped") + n("after_limit") + behind;
        assert_eq!(accounted, number(json, "captured"), "{json}");
        (one["name"].as_str().expect("a name"), one)
    };
    all.iter().map(named).collect()
}

/// The number of printed frames: all lines except dates and the report at the end.
fn printed(text: &str) -> usize {
    text.lines().filter(|line| !line.starts_with('#')).count() - 1
}

/// Runs `weir capture`; returns its JSON report, and the number of frames that it printed.
#[track_caller]
fn capture(args: &str) -> (Value, usize) {
    let output = weir(&format!("capture {args} --json")).output().expect("the binary runs");
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{args}: {says}");
    let text = String::from_utf8(output.stdout).expect("text");
    let last = text.lines().last().expect("a report");
    (serde_json::from_str(last).expect("JSON"), printed(&text))
}

#[test]
fn each_consumer_gets_every_frame_of_a_file() {
    let dir = folder();
    let (file, name) = path(&dir, "out.pcapng");
    let flags = format!("--print --count --latency rest --write {name}");
    let (json, lines) = capture(&format!("file:{TRACE} {flags}"));
    let captured = number(&json, "captured");
    assert!(captured > 100, "{json}");
    let consumers = consumers(&json);
    let names: Vec<_> = consumers.iter().map(|(name, _)| *name).collect();
    assert_eq!(names, ["write", "print", "latency", "count"]);
    for (name, one) in consumers {
        assert_eq!(number(one, "delivered"), captured, "{name}: a file waits for all");
    }
    assert_eq!((frames(&file), lines as u64), (captured, captured));
}

#[test]
fn the_run_ends_when_the_file_has_its_frames() {
    let dir = folder();
    let (file, name) = path(&dir, "out.pcapng");
    let (json, _) = capture(&format!("gen:size=64 --count --frames 1000 --write {name}"));
    let consumers = consumers(&json);
    assert_eq!(number(consumers[0].1, "delivered"), 1000);
    assert_eq!(number(&json, "delivered"), 1000, "the first one's");
    assert_eq!(frames(&file), 1000);
    let (name, count) = consumers[1];
    assert_eq!((name, number(count, "after_limit")), ("count", 0), "it takes what there is");
    assert!(number(count, "delivered") + number(count, "lapped") >= 1000, "{json}");
}

#[test]
fn a_reader_that_leaves_ends_its_own_consumer_only() {
    let dir = folder();
    let (_, pipe) = path(&dir, "pipe");
    let made = Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
    assert!(made.success());
    let mut head = Command::new("head");
    head.args(["-c", "100000", &pipe]).stdin(Stdio::null()).stdout(Stdio::null());
    let mut head = head.spawn().expect("head");
    let (json, _) = capture(&format!("gen:size=64 --count --duration 1s --write {pipe}"));
    assert!(head.wait().expect("head").success());
    let consumers = consumers(&json);
    let (write, count) = (consumers[0].1, consumers[1].1);
    assert!(number(write, "after_limit") > number(write, "delivered"), "{json}");
    assert!(write["error"].as_str().expect("why").contains("reader"), "{json}");
    assert!(count["error"].is_null(), "{json}");
    assert!(number(count, "delivered") > number(write, "delivered"), "{json}");
}

/// Writes a pcap file with one frame of link type raw IP.
fn raw_ip(path: &Path) {
    let mut bytes = Vec::new();
    for word in [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 65535, 101, 1, 0, 20, 20] {
        bytes.extend(word.to_le_bytes());
    }
    bytes.extend([0x45; 20]);
    fs::write(path, bytes).expect("a file");
}

#[test]
fn each_link_type_has_a_file_and_a_pipe_refuses_two() {
    let dir = folder();
    let (raw, raw_name) = path(&dir, "raw.pcap");
    raw_ip(&raw);
    let (ethernet, name) = path(&dir, "out.pcapng");
    let sources = format!("file:{TRACE} file:{raw_name}");
    let (json, _) = capture(&format!("{sources} --write {name}"));
    let other = dir.path().join("out.raw-ip.pcapng");
    assert_eq!(frames(&other), 1);
    assert_eq!(frames(&ethernet) + 1, number(&json, "captured"));
    let output = weir(&format!("capture {sources} --write -")).output().expect("the binary runs");
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{says}");
    assert!(
        says.contains("a file for each link type") || says.contains("write to a file"),
        "{says}"
    );
}

#[test]
fn files_are_for_their_owner_only_unless_asked() {
    let dir = folder();
    for (flag, wanted) in [("", 0o600), ("--file-mode 640", 0o640)] {
        let (file, name) = path(&dir, &format!("{wanted:o}.pcapng"));
        // With the umask of the test, a wrong mode could still end up as 640.
        let weir = env!("CARGO_BIN_EXE_weir");
        let line = format!("umask 022; {weir} capture file:{TRACE} --write {name} {flag}");
        let output = Command::new("sh").args(["-c", &line]).output().expect("sh");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mode = file.metadata().expect("the file").permissions().mode() & 0o777;
        assert_eq!(mode, wanted, "{mode:o}");
    }
    let output = weir(&format!("capture file:{TRACE} --write x --file-mode 9")).output().unwrap();
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn one_standard_output_is_not_for_two() {
    let output = weir("capture gen: --print --write -").output().expect("the binary runs");
    let says = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{says}");
    assert!(says.contains("named pipe"), "{says}");
}

#[test]
fn root_each_consumer_gets_every_frame_of_a_link() {
    let Some(_alone) = ready("root_each_consumer_gets_every_frame_of_a_link", &[]) else { return };
    for hook in HOOKS {
        let (bed, dir) = (bed(), folder());
        let (file, name) = path(&dir, "out.pcapng");
        let flags = format!("{hook} --print --count --latency rest --write {name} --json");
        let run = Run::capture(&bed.rx, &flags);
        generate(&bed.tx, "--frames 2000 --rate 20kpps --stamp");
        settle();
        let ended = run.stop().expect(0);
        let (json, lines) = (ended.json(), printed(&ended.text()) as u64);
        let consumers = consumers(&json);
        assert_eq!(consumers.len(), 4, "{json}");
        assert!(number(&json, "captured") >= 2000, "{hook}: {json}");
        for (consumer, one) in &consumers {
            assert_eq!(number(one, "after_limit"), 0, "{hook}, {consumer}: {json}");
        }
        let delivered = |at: usize| number(consumers[at].1, "delivered");
        assert_eq!((frames(&file), lines), (delivered(0), delivered(1)), "{hook}");
        let timed = number(&json["latency"], "frames") + number(&json["latency"], "unstamped");
        assert_eq!(timed, delivered(2), "{hook}: {json}");
    }
}
