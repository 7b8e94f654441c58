//! The recorder when its volumes fail, with real file systems on loop devices.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tempfile::TempDir;
use weir_lab::Testbed;
use weir_lab::testbed::skip;

use common::tools::{Got, all_read, bytes_of, in_time_order, read, tool};
use common::{Ended, Run, bed, closes, folder, number, program, ready, weir};

const SOURCE: &str = "gen:size=500,flows=1,rate=20kpps";
const TOOLS: [&str; 7] =
    ["mkfs.ext4", "losetup", "python3", "tshark", "capinfos", "tcpdump", "mergecap"];

/// `EXT4_IOC_SHUTDOWN`: data so far is written to the disk, and all later writes fail. Source: fs/ext4/ext4.h.
const SHUT_DOWN: &str = "fcntl.ioctl(os.open(sys.argv[2], os.O_RDONLY), 0x8004587D, bytes(4))";
/// `LOOP_SET_STATUS64`: limits the device to its first 1 MiB. Source: linux/loop.h.
const REMOVE: &str = "fd = os.open(sys.argv[1], os.O_RDWR); b = bytearray(232); fcntl.ioctl(fd, 0x4C05, b); \
                      b[32:40] = (1 << 20).to_bytes(8, 'little'); fcntl.ioctl(fd, 0x4C04, bytes(b))";

/// An ext4 file system on a loop device. Both are removed when dropped.
struct Volume {
    dir: TempDir,
    device: String,
}

fn ran(line: &str) -> Result<String, String> {
    let output = program(line).output().expect("a program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if output.status.success() { Ok(text(&output.stdout)) } else { Err(text(&output.stderr)) }
}

impl Volume {
    fn new(test: &str, mebibytes: u64, flags: &str) -> Option<Volume> {
        let mut volume = Volume { dir: folder(), device: String::new() };
        fs::create_dir(volume.mount()).expect("a directory");
        let image = volume.image();
        fs::File::create(&image).and_then(|file| file.set_len(mebibytes << 20)).expect("an image");
        ran(&format!("mkfs.ext4 -q -F {flags} {}", image.display())).expect("a file system");
        if let Err(error) = volume.attach() {
            skip(test, &format!("no loop devices: {error}"));
            return None;
        }
        Some(volume)
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn mount(&self) -> PathBuf {
        self.dir.path().join("mount")
    }

    fn attach(&mut self) -> Result<(), String> {
        self.device = ran(&format!("losetup -f --show {}", self.image().display()))?;
        ran(&format!("mount {} {}", self.device, self.mount().display())).map(drop)
    }

    fn detach(&mut self) -> Result<(), String> {
        ran(&format!("umount {}", self.mount().display()))?;
        ran(&format!("losetup -d {}", self.device)).map(drop)
    }

    /// Detaches the disk and attaches it again.
    fn plug_in_again(&mut self) {
        self.detach().and_then(|()| self.attach()).expect("the same file system");
    }

    fn strike(&self, code: &str) {
        let code = format!("import fcntl, os, sys; {code}");
        let mut python = Command::new("python3");
        let output = python.args(["-c", &code, &self.device]).arg(self.mount()).output();
        let output = output.expect("python3");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        let _ = ran(&format!("umount -l {}", self.mount().display()));
        let _ = ran(&format!("losetup -d {}", self.device));
    }
}

/// Files whose names end with `ending`, sorted.
fn ending(directory: &Path, ending: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.retain(|path| path.to_string_lossy().ends_with(ending));
    files.sort();
    files
}

fn complete(directory: &Path) -> Vec<PathBuf> {
    ending(directory, ".pcapng")
}

fn record(bed: &Testbed, source: &str, directories: &[&Path], flags: &str) -> Run {
    let write: String =
        directories.iter().map(|path| format!(" --write {}/", path.display())).collect();
    Run::start(&bed.rx, weir(&format!("capture {source}{write} --json {flags}")))
}

/// Waits until there are this many complete files.
fn wait_for_files(run: &mut Run, directory: &Path, files: usize) {
    run.wait_for("complete files", |_| complete(directory).len() >= files);
}

/// The frames that `weir extract` returns. Checks that they are in time order, and that other tools read the same.
fn extract(directories: &[&Path]) -> Vec<Got> {
    let out = folder();
    let file = out.path().join("out.pcapng");
    let names: String = directories.iter().map(|path| format!(" {}", path.display())).collect();
    let output = weir(&format!("extract{names} --write {}", file.display())).output();
    let output = output.expect("weir");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (_, frames) = read(&file);
    in_time_order(&frames);
    all_read(&file, &frames);
    frames
}

fn number_of(frame: &Got) -> u64 {
    u64::from_be_bytes(frame.data[42..50].try_into().expect("8 bytes"))
}

/// Passes if these are frames of [`SOURCE`], unchanged and in their original order. Some may be missing.
#[track_caller]
fn went_in(frames: &[Got]) {
    assert!(frames.windows(2).all(|two| number_of(&two[0]) < number_of(&two[1])));
    let dir = folder();
    let file = dir.path().join("all.pcapng");
    let most = frames.iter().map(number_of).max().map_or(1, |last| last + 1);
    let source = SOURCE.replace(",rate=20kpps", "");
    let line = format!("capture {source},frames={most} --write {}", file.display());
    assert!(weir(&line).output().expect("weir").status.success());
    let (_, all) = read(&file);
    assert_eq!(all.len() as u64, most);
    assert!(frames.iter().all(|frame| frame.data == all[number_of(frame) as usize].data));
}

/// The only volume fails. `keeps`: all frames that were reported as delivered must be on the volume afterwards.
fn fails_alone(test: &str, code: &str, keeps: bool) {
    let bed = bed();
    let Some(mut volume) = Volume::new(test, 128, "") else { return };
    let mount = volume.mount();
    let mut run = record(&bed, SOURCE, &[&mount], "--rotate-size 4MiB");
    wait_for_files(&mut run, &mount, 2);
    let before: Vec<Vec<u8>> =
        complete(&mount)[..2].iter().flat_map(|file| bytes_of(&read(file).1)).collect();
    volume.strike(code);
    let ended = run.end().refused(&[&mount.display().to_string(), "cannot write", "Input/output"]);
    let json = ended.json();
    closes(&json);
    volume.plug_in_again();
    for file in complete(&mount) {
        all_read(&file, &read(&file).1);
    }
    let frames = extract(&[&mount]);
    went_in(&frames);
    assert!(bytes_of(&frames).starts_with(&before), "{} of {}", frames.len(), before.len());
    let (found, kept) = (frames.len() as u64, number(&json, "delivered"));
    assert!(if keeps { found == kept } else { found <= kept }, "{found}: {json}");
}

/// One of two volumes fails, and recording continues on the other one. `keeps`: as in [`fails_alone`].
fn fails_beside_another(test: &str, code: &str, keeps: bool) {
    let bed = bed();
    let Some(mut volume) = Volume::new(test, 128, "") else { return };
    let (mount, other) = (volume.mount(), folder());
    let mut run = record(&bed, SOURCE, &[&mount, other.path()], "--rotate-size 4MiB");
    wait_for_files(&mut run, &mount, 1);
    volume.strike(code);
    let so_far = complete(other.path()).len();
    wait_for_files(&mut run, other.path(), so_far + 3);
    let json = run.stop().expect(0).json();
    closes(&json);
    let volumes = &json["recorder"]["volumes"];
    assert!(volumes[0]["error"].as_str().expect("an error").contains("Input/output"), "{json}");
    assert!(volumes[1]["error"].is_null(), "{json}");
    volume.plug_in_again();
    let frames = extract(&[&mount, other.path()]);
    went_in(&frames);
    let (found, kept) = (frames.len() as u64, number(&json, "delivered"));
    assert!(if keeps { found == kept } else { found <= kept }, "{found}: {json}");
}

#[test]
fn root_a_volume_that_is_removed_ends_the_run_or_is_left_out() {
    let test = "root_a_volume_that_is_removed_ends_the_run_or_is_left_out";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    // Data of the open file that the file system has not yet written to the disk is lost.
    fails_alone(test, REMOVE, false);
    fails_beside_another(test, REMOVE, false);
}

#[test]
fn root_a_file_system_that_is_shut_down_ends_the_run_or_is_left_out() {
    let test = "root_a_file_system_that_is_shut_down_ends_the_run_or_is_left_out";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    fails_alone(test, SHUT_DOWN, true);
    fails_beside_another(test, SHUT_DOWN, true);
}

#[test]
fn root_a_directory_that_vanishes_ends_the_run() {
    let test = "root_a_directory_that_vanishes_ends_the_run";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    for is_deleted in [false, true] {
        let dir = folder();
        let (rec, away) = (dir.path().join("rec"), dir.path().join("away"));
        let mut run = record(&bed, SOURCE, &[&rec], "--rotate-size 4MiB");
        wait_for_files(&mut run, &rec, 2);
        fs::rename(&rec, &away).expect("renamed");
        if is_deleted {
            fs::remove_dir_all(&away).expect("deleted");
        }
        let ended: Ended = run.end();
        let ended = ended.refused(&[&rec.display().to_string(), "cannot write", "No such file"]);
        let json = ended.json();
        closes(&json);
        if is_deleted {
            continue;
        }
        let frames = extract(&[&away]);
        went_in(&frames);
        assert_eq!(frames.len() as u64, number(&json, "delivered"), "{json}");
    }
}

/// Several times the size of the file system is recorded. With `discard`, the file system passes deletions on to the
/// disk.
#[test]
fn root_a_quota_of_nine_tenths_is_kept_under_load() {
    let test = "root_a_quota_of_nine_tenths_is_kept_under_load";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    let Some(volume) = Volume::new(test, 256, "") else { return };
    let mount = volume.mount();
    ran(&format!("mount -o remount,discard {}", mount.display())).expect("discard");
    let space = || rustix::fs::statvfs(&mount).expect("a file system");
    let all = space().f_blocks - (space().f_bfree - space().f_bavail);
    // 100 MB/s for 8 s. On a busy machine frames may be lapped, but none may be lost in another place.
    let source = "gen:size=1500,flows=1,rate=66kpps,frames=528000";
    let flags = "--rotate-size 40MiB --quota 90% --ring-size 64MiB";
    let run = record(&bed, source, &[&mount], flags);
    let is_over = AtomicBool::new(false);
    let (json, least) = std::thread::scope(|scope| {
        let least = scope.spawn(|| {
            let mut least = u64::MAX;
            while !is_over.load(Relaxed) {
                least = least.min(space().f_bavail);
                std::thread::sleep(Duration::from_millis(2));
            }
            least
        });
        let ended = run.end();
        is_over.store(true, Relaxed);
        (ended.expect(0).json(), least.join().expect("a thread"))
    });
    closes(&json);
    assert_eq!(number(&json, "delivered") + number(&json, "lapped"), 528_000, "{json}");
    let [report] = json["recorder"]["volumes"].as_array().expect("volumes").as_slice() else {
        panic!("one volume: {json}")
    };
    assert!(report["error"].is_null() && number(report, "deleted_files") >= 3, "{json}");
    // Until a file is deleted, the recorder may exceed the quota, but it must never fill the file system.
    assert!(least > 0, "the file system was full");
    let bytes: u64 = complete(&mount).iter().map(|file| file.metadata().expect("it").len()).sum();
    let quota = all * space().f_frsize / 10 * 9;
    assert!(bytes <= quota && bytes > quota / 2, "{bytes} of {quota}: {json}");
    // No frame is there twice, and only frames that were lapped or deleted are missing.
    let frames = extract(&[&mount]);
    let numbers: Vec<u64> = frames.iter().map(number_of).collect();
    assert!(numbers.is_sorted_by(|one, next| one < next));
    let missing = 528_000 - numbers[0] - numbers.len() as u64;
    assert!(missing <= number(&json, "lapped"), "{missing}: {json}");
}

#[test]
fn root_a_file_without_room_for_its_index_is_recorded_without_one() {
    let test = "root_a_file_without_room_for_its_index_is_recorded_without_one";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    let Some(volume) = Volume::new(test, 64, "-N 16") else { return };
    let mount = volume.mount();
    // Leave two free inodes: for the recorder's lock and one file.
    let mut others = 0;
    while fs::write(mount.join(format!("other{others}")), b"").is_ok() {
        others += 1;
    }
    assert!(others >= 2, "{others} inodes");
    for other in others - 2..others {
        fs::remove_file(mount.join(format!("other{other}"))).expect("it was there");
    }
    let run = record(&bed, &format!("{SOURCE},frames=20000"), &[&mount], "");
    let json = run.end().expect(0).json();
    closes(&json);
    assert_eq!((complete(&mount).len(), ending(&mount, ".index").len()), (1, 0));
    let frames = extract(&[&mount]);
    went_in(&frames);
    assert_eq!((frames.len(), number(&json, "delivered")), (20_000, 20_000));
}

#[test]
fn root_times_that_jump_are_recorded_as_they_are_and_extracted_in_order() {
    let test = "root_times_that_jump_are_recorded_as_they_are_and_extracted_in_order";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    let dir = folder();
    let (trace, rec) = (dir.path().join("trace.pcap"), dir.path().join("rec"));
    // Each frame is half a second later than the one before, and after every 1000 frames the time jumps by hours.
    let header = [0xa1b2_3c4du32, 0x0004_0002, 0, 0, 65_535, 1].map(u32::to_le_bytes);
    let mut bytes = header.concat();
    let count = 20_000u32;
    for frame in 0..count {
        let hour = [5, 2, 9, 0, 7][(frame / 1000 % 5) as usize];
        let seconds = 1_700_000_000 + hour * 3600 + frame / 2;
        for word in [seconds, frame % 2 * 500_000_000, 600, 600] {
            bytes.extend(word.to_le_bytes());
        }
        let mut data = [0; 600];
        data[..4].copy_from_slice(&frame.to_be_bytes());
        bytes.extend(data);
    }
    fs::write(&trace, &bytes).expect("a trace");
    let source = format!("file:{}", trace.display());
    let run = record(&bed, &source, &[&rec], "--rotate-size 4MiB");
    let json = run.end().expect(0).json();
    closes(&json);
    assert_eq!(number(&json, "delivered"), u64::from(count), "{json}");
    let (_, went) = read(&trace);
    let files = complete(&rec);
    assert!(files.len() >= 3, "{files:?}");
    // The files contain the frames in the order of arrival; `weir extract` sorts them by time, and frames with the same
    // time by arrival.
    let recorded: Vec<Vec<u8>> = files.iter().flat_map(|file| bytes_of(&read(file).1)).collect();
    assert!(recorded == bytes_of(&went));
    let mut sorted = went;
    sorted.sort_by_key(|frame| frame.ts_ns);
    assert!(bytes_of(&extract(&[&rec])) == bytes_of(&sorted));
    // All tools agree on the merged files as well.
    let merged = dir.path().join("merged.pcapng");
    let mut arguments = vec!["-w", merged.to_str().expect("a plain path")];
    arguments.extend(files.iter().map(|file| file.to_str().expect("a plain path")));
    tool("mergecap", &arguments);
    let (_, frames) = read(&merged);
    assert_eq!(frames.len(), count as usize);
    all_read(&merged, &frames);
}

#[test]
fn root_a_kill_while_history_is_saved_leaves_what_is_there_readable() {
    let test = "root_a_kill_while_history_is_saved_leaves_what_is_there_readable";
    let Some(_alone) = ready(test, &TOOLS) else { return };
    let bed = bed();
    for round in 0..5 {
        let rec = folder();
        let flags = "--ring-size 32MiB --on-trigger signal --save-after 60s --rotate-size 4MiB";
        let mut run = record(&bed, SOURCE, &[rec.path()], flags);
        run.wait_for("that it captures", |run| run.stderr().contains("captured"));
        run.signal(libc::SIGUSR2);
        run.wait_for("that it saves", |_| {
            let written = |path: &PathBuf| path.metadata().is_ok_and(|meta| meta.len() > 0);
            ending(rec.path(), ".open").iter().chain(&complete(rec.path())).any(written)
        });
        std::thread::sleep(Duration::from_millis(37 * round));
        assert!(!run.has_ended(), "round {round}: {}", run.stderr());
        run.signal(libc::SIGKILL);
        let ended = run.end();
        let there = fs::read_dir(rec.path()).expect("it is there").flatten().collect::<Vec<_>>();
        let saved = extract_any(rec.path());
        let is_open = !ending(rec.path(), ".open").is_empty();
        assert!(is_open || !saved.is_empty(), "round {round}: {there:?}, {ended:?}");
        went_in(&saved);
        for file in complete(rec.path()) {
            all_read(&file, &read(&file).1);
        }
        let output = weir(&format!("index {}", rec.path().display())).output().expect("weir");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(extract_any(rec.path()) == saved, "round {round}");
    }
}

/// As [`extract`], but the recording may be empty, or have no file any more.
fn extract_any(directory: &Path) -> Vec<Got> {
    let has_frames = weir(&format!("extract {} --write -", directory.display())).output();
    let output = has_frames.expect("weir");
    let says = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || says.contains("nothing was recorded there"), "{says}");
    if output.stdout.is_empty() { Vec::new() } else { extract(&[directory]) }
}
