//! `--write DIR/ --on-trigger`: only frames around a trigger are recorded, and all others are counted.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use weir_frame::read::FrameReader;

use common::{Run, bed, closes, folder, generate, number, path, ready, settle, weir};

/// The complete files of a recorder, and whether there are files that it still writes.
fn files(directory: &Path) -> (Vec<PathBuf>, bool) {
    let names = fs::read_dir(directory).expect("a directory");
    let names = names.map(|entry| entry.expect("an entry").path());
    let (mut open, mut complete) = (false, Vec::new());
    for path in names {
        let name = path.to_string_lossy();
        open |= name.ends_with(".open");
        if name.ends_with(".pcapng") {
            complete.push(path);
        }
    }
    complete.sort();
    (complete, open)
}

fn frames(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let mut reader = FrameReader::open(fs::File::open(file).expect("a file")).expect("pcapng");
    let mut frames = Vec::new();
    while let Some(frame) = reader.next().expect("whole") {
        frames.push((frame.ts_ns, frame.data.to_vec()));
    }
    frames
}

/// Runs `weir`, which must succeed; returns its ledger.
fn ledger(line: &str) -> Value {
    let ended = weir(line).output().expect("weir");
    assert!(ended.status.success(), "{line}: {}", String::from_utf8_lossy(&ended.stderr));
    let json = serde_json::from_slice(&ended.stdout).expect("a ledger");
    closes(&json);
    json
}

#[test]
fn frames_around_one_that_the_filter_accepts_are_recorded() {
    let dir = folder();
    let (whole, record) = (dir.path().join("whole.pcapng"), dir.path().join("rec"));
    // One frame every 5 us, each in a flow of its own.
    let source = "gen:size=300,flows=100000,frames=100000,rate=200kpps";
    ledger(&format!("capture {source} --write {} --json", whole.display()));
    let all = frames(&whole);
    let (at, frame) = (60_000, &all[60_000].1);
    let address = frame[26..30].iter().map(u8::to_string).collect::<Vec<_>>().join(".");
    let port = u16::from_be_bytes([frame[34], frame[35]]);
    let record_line = |trigger: &str| {
        let mut command = weir(&format!(
            "capture file:{} --write {}/ --json --save-before 10ms --save-after 10ms",
            whole.display(),
            record.display()
        ));
        command.args(["--on-trigger", trigger]);
        let ended = command.output().expect("weir");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{text}");
        let json: Value = serde_json::from_slice(&ended.stdout).expect("a ledger");
        closes(&json);
        (json, text)
    };
    let (json, text) = record_line(&format!("filter:src host {address} and src port {port}"));
    assert!(text.contains("trigger (filter): recording"), "{text}");
    let own = &json["recorder"]["look_back"];
    assert_eq!((&own["saves"], &own["filter"]), (&1.into(), &1.into()), "{json}");
    let saved: Vec<_> = files(&record).0.iter().flat_map(|file| frames(file)).collect();
    let first = all.iter().position(|frame| *frame == saved[0]).expect("one of them");
    assert!(saved == all[first..first + saved.len()], "{} frames from {first} on", saved.len());
    // 10 ms are 2000 frames. More are recorded because whole blocks are.
    let (before, after) = (at - first, first + saved.len() - 1 - at);
    assert!((2000..9000).contains(&before) && (2000..9000).contains(&after), "{before} {after}");
    assert_eq!(number(&json, "untriggered"), 100_000 - saved.len() as u64, "{json}");
    // No frame passes this filter: nothing is recorded, and nothing is lost.
    let (json, _) = record_line("filter:host 203.0.113.99");
    assert_eq!((number(&json, "untriggered"), number(&json, "lapped")), (100_000, 0), "{json}");
    assert_eq!(json["recorder"]["files"], 0, "{json}");
    // This limit is below the rate of the frames, so it triggers.
    let (json, _) = record_line("rate:100kpps");
    assert!(json["recorder"]["look_back"]["rate"].as_u64() > Some(2), "{json}");
    // The limit is exceeded in the middle of each interval of 0.1 s. 10 ms before and 10 ms after that are a fifth of
    // all frames. More are recorded because whole blocks are.
    assert!((20_000..60_000).contains(&number(&json, "delivered")), "{json}");
    let (json, _) = record_line("rate:10Gbps");
    assert_eq!(json["recorder"]["look_back"]["rate"], 0, "{json}");
}

#[test]
fn what_cannot_be_a_trigger_is_refused_with_a_way_out() {
    let dir = folder();
    let at = dir.path().display();
    for (line, word) in [
        (format!("capture gen:frames=1 --write {at}/file --on-trigger signal"), "--write DIR/"),
        (format!("capture gen:frames=1 --write {at}/ --on-trigger signals"), "rate:100kpps"),
        (format!("capture gen:frames=1 --write {at}/ --on-trigger filter:no"), "--on-trigger"),
        (format!("capture gen:frames=1 --write {at}/ --save-before 1s"), "--on-trigger"),
        (
            format!("capture gen:frames=1 --write {at}/ --on-trigger signal --save-after 5"),
            "5MiB are bytes",
        ),
        ("capture gen:frames=1 --on-trigger signal".to_owned(), "--write DIR/"),
        (
            format!(
                "capture gen:frames=1 --ring-size 64MiB --write {at}/ --on-trigger signal --save-before 33MiB"
            ),
            "here 32MiB",
        ),
        (format!("trigger --control {at}/none"), "no capture listens there"),
    ] {
        let ended = weir(&line).output().expect("weir");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert_eq!(ended.status.code(), Some(2), "{line}: {text}");
        assert!(text.contains(word), "{line}: {text}");
    }
}

#[test]
fn half_of_all_rings_may_be_asked_for() {
    let dir = folder();
    let at = dir.path().display();
    for more in ["--save-before 32MiB", "--save-before 64MiB --feed a: --feed b:udp"] {
        let line = format!(
            "capture gen:frames=1 --ring-size 64MiB --write {at}/rec/ --on-trigger signal {more}"
        );
        let ended = weir(&line).output().expect("weir");
        let text = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.success(), "{line}: {text}");
    }
}

#[test]
fn root_a_command_and_a_signal_have_the_past_of_a_link_recorded() {
    let test = "root_a_command_and_a_signal_have_the_past_of_a_link_recorded";
    let Some(_alone) = ready(test, &[]) else { return };
    let (bed, dir) = (bed(), folder());
    let (record, control) = (dir.path().join("rec"), path(&dir, "control").1);
    let line = format!(
        "--write {}/ --json --control {control} --on-trigger signal --save-before 1h --save-after 300ms",
        record.display()
    );
    let mut run = Run::capture(&bed.rx, &line);
    generate(&bed.tx, "--frames 1000 --size 200 --rate 10kpps");
    settle();
    assert_eq!(files(&record), (vec![], false), "nothing has happened yet");
    let ended = weir(&format!("trigger --control {control} --json")).output().expect("weir");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    // The files are complete once the time of `--save-after` is over, while the capture continues.
    run.wait_for("the first recording", |_| {
        let (complete, open) = files(&record);
        !complete.is_empty() && !open
    });
    let recorded =
        |files: &[PathBuf]| -> usize { files.iter().map(|file| frames(file).len()).sum() };
    let (first, _) = files(&record);
    assert!(recorded(&first) >= 1000, "{}", recorded(&first));
    generate(&bed.tx, "--frames 500 --size 200 --rate 10kpps");
    settle();
    run.signal(libc::SIGUSR2);
    run.wait_for("the second recording", |_| {
        let (complete, open) = files(&record);
        complete.len() > first.len() && !open
    });
    generate(&bed.tx, "--frames 300 --size 200 --rate 10kpps");
    std::thread::sleep(Duration::from_millis(50));
    let json = run.stop().expect(0).json();
    closes(&json);
    let own = &json["recorder"]["look_back"];
    let counts = ["saves", "signal", "command", "unwatched"].map(|name| own[name].as_u64());
    assert_eq!(counts, [Some(2), Some(1), Some(1), Some(0)], "{json}");
    let (all, open) = files(&record);
    assert!(!open && recorded(&all) >= 1500, "{all:?}");
    assert_eq!(number(&json, "delivered"), recorded(&all) as u64, "{json}");
    assert!(number(&json, "untriggered") >= 300, "{json}");
    assert_eq!(number(&json, "lapped"), 0, "{json}");
    // A capture without `--on-trigger` refuses the command.
    let run = Run::capture(&bed.rx, &format!("--json --control {control}"));
    let ended = weir(&format!("trigger --control {control}")).output().expect("weir");
    let text = String::from_utf8_lossy(&ended.stderr).into_owned();
    assert!(ended.status.code() == Some(2) && text.contains("--on-trigger"), "{text}");
    run.stop().expect(0);
}
