//! `--write DIR/`: the recorder, whose files are checked with other tools.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::{available_parallelism, sleep};
use std::time::{Duration, Instant, SystemTime};

use weir_frame::read::FrameReader;
use weir_lab::testbed::End;

use common::tools::statistics;
use common::{LIMIT, Run, bed, closes, folder, generate, number, program, ready, settle, sh, weir};

/// The files of a recorder, complete or not.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry"));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    files.retain(|path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.ends_with(".pcapng") || name.ends_with(".pcapng.open")
    });
    files.sort();
    files
}

/// Frames that Weir's own reader finds in a file, up to its end or to the first error.
fn frames(file: &Path) -> Vec<(u64, Vec<u8>)> {
    let Ok(mut reader) = FrameReader::open(fs::File::open(file).expect("a file")) else {
        return Vec::new();
    };
    let mut frames = Vec::new();
    while let Ok(Some(frame)) = reader.next() {
        frames.push((frame.ts_ns, frame.data.to_vec()));
    }
    frames
}

/// Lines of `tshark`, and whether it read the file to its end.
fn by_tshark(file: &Path, fields: &[&str]) -> (Vec<String>, bool) {
    let mut command = Command::new("tshark");
    command.args(["-n", "-r"]).arg(file).args(["-T", "fields"]);
    for field in fields {
        command.args(["-e", field]);
    }
    let output = command.output().expect("tshark");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    (text.lines().map(str::to_owned).collect(), output.status.success())
}

#[test]
fn frames_of_a_source_without_a_clock_come_back_as_they_went_in() {
    let dir = folder();
    let whole = dir.path().join("whole.pcapng");
    let record = dir.path().join("rec");
    let source = "gen:size=300,flows=500,frames=200000,rate=200kpps";
    let line = format!("capture {source} --write {} --json", whole.display());
    let ended = weir(&line).output().expect("weir");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    // Record the frames from that file, so that they have the same times.
    let line = format!("capture file:{} --write {}/ --json", whole.display(), record.display());
    let ended = weir(&line).output().expect("weir");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let json: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("a ledger");
    closes(&json);
    assert_eq!((number(&json, "delivered"), number(&json, "lapped")), (200_000, 0), "{json}");
    let files = files(&record);
    assert_eq!(json["recorder"]["files"].as_u64(), Some(files.len() as u64));
    let recorded: Vec<_> = files.iter().flat_map(|file| frames(file)).collect();
    assert!(recorded == frames(&whole), "{} frames", recorded.len());
    // The lock file is removed. `capture file:` still recognizes the folder as a recording.
    assert!(!record.join(".weir-recorder").exists());
    let read = weir(&format!("capture file:{}", record.display())).output().expect("weir");
    let text = String::from_utf8_lossy(&read.stderr).into_owned();
    assert!(read.status.code() == Some(2) && text.contains("weir extract"), "{text}");
}

#[test]
fn what_cannot_be_recorded_is_refused_with_a_way_out() {
    let dir = folder();
    let refused = |line: &str, words: &[&str]| {
        let output = weir(line).output().expect("weir");
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{line}: {text}");
        for word in words {
            assert!(text.contains(word), "{line}: {text}");
        }
    };
    let at = dir.path().display();
    refused(&format!("capture gen:frames=1 --write {at}/no/where/"), &["no/where", "No such file"]);
    refused(
        &format!("capture gen:frames=1 --write {at}/ --write {at}/file"),
        &["only be directories", "slash"],
    );
    refused(&format!("capture gen:frames=1 --write {at}/ --write {at}/."), &["named twice"]);
    refused(
        &format!("capture gen:frames=1 --write {at}/ --quota 1MiB"),
        &["quota", "at least 16MiB"],
    );
}

#[test]
fn two_recorders_do_not_share_a_directory() {
    let dir = folder();
    let line = format!("capture gen:rate=1kpps --write {}/ --duration 30s", dir.path().display());
    let mut first = weir(&line).stderr(std::process::Stdio::null()).spawn().expect("weir");
    let begun = Instant::now();
    while files(dir.path()).is_empty() && begun.elapsed() < LIMIT {
        std::thread::sleep(Duration::from_millis(20));
    }
    let second = weir(&format!("capture gen:frames=1 --write {}/", dir.path().display()));
    let second = { second }.output().expect("weir");
    let text = String::from_utf8_lossy(&second.stderr).into_owned();
    assert_eq!(second.status.code(), Some(2), "{text}");
    assert!(text.contains("another recorder"), "{text}");
    first.kill().expect("it runs");
    first.wait().expect("it ended");
    // The kernel released the lock of the killed recorder, so another one can record beside its files.
    let third = weir(&format!("capture gen:frames=5 --write {}/", dir.path().display())).output();
    let third = third.expect("weir");
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
}

#[test]
fn root_all_tools_agree_on_what_was_recorded_of_a_link() {
    let test = "root_all_tools_agree_on_what_was_recorded_of_a_link";
    let Some(_alone) = ready(test, &["tshark", "capinfos", "tcpdump", "mergecap"]) else { return };
    let (bed, dir) = (bed(), folder());
    let line =
        format!("--write {}/ --json --ring-size 64MiB --rotate-size 20MiB", dir.path().display());
    let run = Run::capture(&bed.rx, &line);
    // All frames come on CPU 0, which has the first ring.
    generate(&bed.tx, "--frames 100000 --size 600 --flows 64 --rate 100kpps --cpu 0");
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    let delivered = number(&json, "delivered");
    assert!(delivered >= 100_000, "{json}");
    let files = files(dir.path());
    let mut offered = Vec::new();
    for file in &files {
        let [statistics] = statistics(file).try_into().unwrap_or_else(|all| panic!("{all:?}"));
        assert_eq!(statistics.delivered, Some(frames(file).len() as u64), "{file:?}");
        assert_eq!(statistics.os_drops, Some(0), "{file:?}");
        offered.extend(statistics.received);
    }
    // The run's count of offered frames is in the last file of the first ring only.
    assert_eq!(offered, [number(&json, "offered")]);
    assert!(files.len() >= 3, "{files:?}");
    assert!(files.iter().all(|file| file.extension().is_some_and(|end| end == "pcapng")));
    let (mut by_ours, mut by_theirs) = (0, 0);
    for file in &files {
        let own = frames(file);
        by_ours += own.len() as u64;
        let (lines, whole) = by_tshark(file, &["frame.time_epoch", "frame.len"]);
        assert!(whole, "{file:?}");
        by_theirs += lines.len() as u64;
        let tcpdump =
            Command::new("tcpdump").args(["-nn", "-r"]).arg(file).output().expect("tcpdump");
        assert!(tcpdump.status.success(), "{}", String::from_utf8_lossy(&tcpdump.stderr));
        assert_eq!(String::from_utf8_lossy(&tcpdump.stdout).lines().count(), own.len());
        let infos = Command::new("capinfos").arg("-cM").arg(file).output().expect("capinfos");
        let text = String::from_utf8_lossy(&infos.stdout).into_owned();
        assert!(text.contains(&format!("{}", own.len())), "{text}");
    }
    assert_eq!((by_ours, by_theirs), (delivered, delivered));
    let merged = dir.path().join("merged");
    let mut mergecap = Command::new("mergecap");
    let status = mergecap.arg("-w").arg(&merged).args(&files).status().expect("mergecap");
    assert!(status.success());
    assert_eq!(frames(&merged).len() as u64, delivered);
}

/// Each lapped frame is counted in the statistics of exactly one file.
#[test]
fn root_frames_that_were_lapped_are_in_the_files_statistics() {
    let Some(_alone) = ready("root_frames_that_were_lapped_are_in_the_files_statistics", &[])
    else {
        return;
    };
    let (bed, dir) = (bed(), folder());
    let line =
        format!("--write {}/ --json --ring-size 8MiB --rotate-size 5MiB", dir.path().display());
    let mut run = Run::capture(&bed.rx, &line);
    generate(&bed.tx, "--frames 20000 --size 1000 --rate 50kpps --cpu 0");
    run.signal(libc::SIGSTOP);
    // These frames are more than the ring holds.
    generate(&bed.tx, "--frames 20000 --size 1000 --rate 50kpps --cpu 0");
    run.signal(libc::SIGCONT);
    generate(&bed.tx, "--frames 20000 --size 1000 --rate 50kpps --cpu 0");
    settle();
    let json = run.stop().expect(0).json();
    closes(&json);
    let lapped = number(&json, "lapped");
    assert!(lapped >= 10_000, "{json}");
    let all: Vec<_> = files(dir.path()).iter().flat_map(|file| statistics(file)).collect();
    let sum: u64 = all.iter().filter_map(|statistics| statistics.os_drops).sum();
    assert_eq!(sum, lapped, "{all:?}");
    let delivered: u64 = all.iter().filter_map(|statistics| statistics.delivered).sum();
    assert_eq!(delivered, number(&json, "delivered"), "{all:?}");
}

/// Checks that `weir index` completes the files that a killed recorder left, and that tshark and capinfos then read
/// every file to its end.
fn named_by_index(dir: &Path, all: usize, round: u64) {
    let rec = dir.display();
    let extracted = |name: &str| {
        let out = dir.join(name);
        let output = weir(&format!("extract {rec} --write {}", out.display())).output();
        assert!(output.expect("weir").status.success(), "round {round}");
        let frames = frames(&out);
        fs::remove_file(out).expect("it was there");
        frames
    };
    let before = extracted("before");
    assert_eq!(before.len(), all, "round {round}");
    let code = |line: &str| weir(line).output().expect("weir").status.code();
    assert_eq!(code(&format!("index --check {rec}")), Some(1), "round {round}");
    let output = weir(&format!("index --json {rec}")).output().expect("weir");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "round {round}: {text}");
    assert_eq!(code(&format!("index --check {rec}")), Some(0), "round {round}");
    let files = files(dir);
    for file in &files {
        assert!(file.extension().is_some_and(|end| end == "pcapng"), "round {round}: {file:?}");
        let (lines, is_whole) = by_tshark(file, &["frame.len"]);
        assert!(is_whole && lines.len() == frames(file).len(), "round {round}: {file:?}");
        let capinfos = Command::new("capinfos").arg("-c").arg(file).output().expect("capinfos");
        assert!(
            capinfos.status.success() && capinfos.stderr.is_empty(),
            "round {round}: {capinfos:?}"
        );
    }
    assert!(extracted("after") == before, "round {round}: {text}");
}

/// Bytes of a file before its first hole. Reserved space may follow the written data.
fn data_bytes(file: &Path) -> Option<u64> {
    let file = fs::File::open(file).ok()?;
    rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(0)).ok()
}

/// Random times, from a seed that is printed. Constants of the linear congruential generator: Knuth, MMIX.
struct Random(u64);

impl Random {
    fn new() -> Random {
        let seed = std::env::var("WEIR_SEED").ok().and_then(|text| text.parse().ok());
        let seed = seed.unwrap_or_else(|| {
            let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        });
        println!("WEIR_SEED={seed} gives the same moments");
        Random(seed)
    }

    /// A random time of less than `end_ms` milliseconds.
    fn time_below(&mut self, end_ms: u64) -> Duration {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Duration::from_micros((self.0 >> 33) % (1000 * end_ms))
    }
}

/// Frames that this end of the link has sent.
fn frames_sent(end: &End) -> u64 {
    let text = sh(end, "cat /proc/net/dev");
    let of_link = |line: &str| {
        let (name, counts) = line.split_once(':')?;
        // After eight receive counters come the sent bytes, then the sent frames.
        (name.trim() == end.iface).then(|| counts.split_whitespace().nth(9)?.parse().ok()).flatten()
    };
    text.lines().find_map(of_link).unwrap_or_else(|| panic!("no {}: {text}", end.iface))
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < LIMIT, "waited in vain for {what}");
        sleep(Duration::from_millis(5));
    }
}

/// Checks all files of a killed recorder: each is readable, and its frames are complete and in order. Returns how many
/// frames there are, and the sequence numbers of those that the generator sent.
fn readable(files: &[PathBuf], round: u64) -> (usize, Vec<u64>) {
    let (mut all, mut numbers) = (0, Vec::new());
    for file in files {
        let own = frames(file);
        let (lines, _) = by_tshark(file, &["frame.len", "ip.checksum.status", "_ws.malformed"]);
        assert_eq!(lines.len(), own.len(), "round {round}: {file:?}");
        // Frames of the generator contain a sequence number and then zeros.
        let numbered = own.iter().filter(|(_, frame)| matches!(frame.len(), 696 | 1496));
        let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
        let of_file: Vec<u64> = numbered.clone().map(|(_, frame)| number(&frame[42..50])).collect();
        assert!(of_file.is_sorted_by(|one, next| one < next), "round {round}: {file:?}");
        let mut rests = numbered.flat_map(|(_, frame)| &frame[50..]);
        assert!(rests.all(|byte| *byte == 0), "round {round}: {file:?}");
        all += own.len();
        numbers.extend(of_file);
    }
    numbers.sort_unstable();
    assert!(numbers.is_sorted_by(|one, next| one < next), "round {round}: a frame is there twice");
    (all, numbers)
}

#[test]
fn root_kills_leave_files_that_others_read() {
    const MIB: u64 = 1 << 20;
    let test = "root_kills_leave_files_that_others_read";
    let Some(_alone) = ready(test, &["tshark", "capinfos"]) else { return };
    let rounds = if common::soaks() { 50 } else { 5 };
    let bed = bed();
    let mut random = Random::new();
    for round in 0..rounds {
        let dir = folder();
        // One ring for each CPU, which a program fills in the kernel: the smallest, or one of which several blocks are
        // written at a time. `around` frames overwrite the ring more than once.
        let is_small = round % 5 < 4;
        let (ring, size, around) =
            if is_small { (4 * MIB, 700, 100_000) } else { (128 * MIB, 1500, 200_000) };
        let rings = ring * available_parallelism().map_or(1, usize::from) as u64;
        let to = dir.path().display();
        let line = format!("--engine bpf --consume --write {to}/ -B {}", rings / 1024);
        let mut run = Run::capture(&bed.rx, &line);
        let line = format!("gen {} --duration 60s --size {size} --cpu 0", bed.tx.iface);
        let sender = Run::start(&bed.tx, weir(&line));
        let written = || files(dir.path()).iter().filter_map(|file| data_bytes(file)).sum::<u64>();
        // More than was in flight to the disk (16 MiB), if the ring is larger than that.
        let least = if is_small { 8 * MIB } else { 32 * MIB };
        wait_until("data on the disk", || written() >= least);
        sleep(random.time_below(100));
        // Stop the recorder while its writes are in flight, until the ring's writer has overtaken it.
        run.signal(libc::SIGSTOP);
        let before = frames_sent(&bed.tx);
        wait_until("a lapped ring", || frames_sent(&bed.tx) - before >= around);
        let goes_on = round % 2 == 0;
        if goes_on {
            // More data than was in flight to the disk and in the ring.
            let least = written() + 28 * MIB + ring;
            run.signal(libc::SIGCONT);
            wait_until("data of after the stop", || written() >= least);
            sleep(random.time_below(50));
        }
        run.signal(libc::SIGKILL);
        drop(run);
        drop(sender);
        let (all, numbers) = readable(&files(dir.path()), round);
        // At most a ring of 4 MiB or what was in flight may have been overwritten while it was written to the disk.
        let bytes = (size - 4) * numbers.len() as u64;
        assert!(bytes >= 2 * MIB, "round {round}: {bytes} bytes");
        if goes_on {
            // Of the frames that came during the stop, at most those in the ring can be recorded.
            let missing = numbers[numbers.len() - 1] - numbers[0] + 1 - numbers.len() as u64;
            assert!(missing >= around / 2, "round {round}: {missing} frames were lapped");
        }
        named_by_index(dir.path(), all, round);
    }
}

#[test]
fn root_a_full_file_system_ends_the_run_and_leaves_whole_files() {
    let test = "root_a_full_file_system_ends_the_run_and_leaves_whole_files";
    let Some(_alone) = ready(test, &["mkfs.ext4", "tshark", "losetup"]) else { return };
    let dir = folder();
    let (image, mount) = (dir.path().join("image"), dir.path().join("mount"));
    fs::create_dir(&mount).expect("a directory");
    fs::File::create(&image).and_then(|file| file.set_len(64 << 20)).expect("an image");
    let (image, mount) = (image.display().to_string(), mount.display().to_string());
    let ran = |line: &str| {
        let output = program(line).output().expect("a program");
        output
            .status
            .success()
            .then_some(())
            .ok_or(String::from_utf8_lossy(&output.stderr).into_owned())
    };
    ran(&format!("mkfs.ext4 -q -F {image}")).expect("a file system");
    if let Err(error) = ran(&format!("mount -o loop {image} {mount}")) {
        return weir_lab::testbed::skip(test, &format!("no loop devices: {error}"));
    }
    let output =
        weir(&format!("capture gen:size=1000,rate=100kpps --write {mount}/ --json --duration 30s"));
    let output = { output }.output().expect("weir");
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).expect("a ledger");
    let recorded: Vec<_> =
        files(Path::new(&mount)).iter().map(|file| by_tshark(file, &["frame.len"])).collect();
    ran(&format!("umount {mount}")).expect("unmounted");
    assert_eq!(output.status.code(), Some(2), "{stderr}");
    assert!(stderr.contains("No space left"), "{stderr}");
    closes(&json);
    assert!(recorded.iter().all(|(_, whole)| *whole), "{stderr}");
    let frames: usize = recorded.iter().map(|(lines, _)| lines.len()).sum();
    assert_eq!(number(&json, "delivered"), frames as u64, "{json}");
}

#[test]
fn compressed_files_are_those_that_were_recorded() {
    let dir = folder();
    let (whole, record) = (dir.path().join("whole.pcapng"), dir.path().join("rec"));
    let source = "gen:size=300,flows=500,frames=200000,rate=200kpps";
    let line = format!("capture {source} --write {} --json", whole.display());
    assert!(weir(&line).output().expect("weir").status.success());
    let line = format!(
        "capture file:{} --write {}/ --rotate-size 4MiB --compress zstd --json",
        whole.display(),
        record.display()
    );
    let ended = weir(&line).output().expect("weir");
    assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
    let json: serde_json::Value = serde_json::from_slice(&ended.stdout).expect("a ledger");
    closes(&json);
    assert_eq!((number(&json, "delivered"), number(&json, "lapped")), (200_000, 0), "{json}");
    let plain = json["recorder"]["compression"]["plain_bytes"].as_u64().expect("a number");
    let packed = json["recorder"]["bytes"].as_u64().expect("a number");
    assert!(packed * 3 < plain, "{packed} of {plain}");
    // Read the files with `weir extract`, with a filter that the index can decide, and with zstd.
    let out = dir.path().join("out.pcapng");
    let extract = |more: &str| {
        let line = format!("extract {}/ --write {} --json {more}", record.display(), out.display());
        let ended = weir(&line).output().expect("weir");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        serde_json::from_slice::<serde_json::Value>(&ended.stdout).expect("counts")
    };
    let counts = extract("");
    assert_eq!((&counts["files_unreadable"], &counts["indexes_wrong"]), (&0.into(), &0.into()));
    let all = frames(&whole);
    assert!(frames(&out) == all, "{counts}");
    let counts = extract("--filter udp[0]==0");
    assert_eq!(counts["frames"], 0, "{counts}");
    let mut names: Vec<PathBuf> = fs::read_dir(&record)
        .expect("a directory")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.to_string_lossy().ends_with(".pcapng.zst"))
        .collect();
    names.sort();
    assert!(!names.is_empty());
    let mut by_zstd = 0;
    for name in &names {
        let unpacked = dir.path().join("unpacked.pcapng");
        let line = format!("zstd -q -d -f {} -o {}", name.display(), unpacked.display());
        assert!(program(&line).status().expect("zstd").success(), "{name:?}");
        by_zstd += frames(&unpacked).len();
    }
    assert_eq!(by_zstd, all.len());
    let refused = weir(&format!("capture gen:frames=1 --write {} --compress zstd", out.display()));
    let refused = { refused }.output().expect("weir");
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(refused.status.code() == Some(2) && text.contains("--write DIR/"), "{text}");
}
