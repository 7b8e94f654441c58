//! Behaviour of the recorder when its volumes fail: real file systems on loop devices, real tools.

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

/// `EXT4_IOC_SHUTDOWN`: present data goes to the disk, and then nothing any more. Source: fs/ext4/ext4.h.
const SHUT_DOWN: &str = "fcntl.ioctl(os.open(sys.argv[2], os.O_RDONLY), 0x8004587D, bytes(4))";
/// `LOOP_SET_STATUS64`: the device ends after a mebibyte from now on. Source: linux/loop.h.
const REMOVE: &str = "fd = os.open(sys.argv[1], os.O_RDWR); b = bytearray(232); fcntl.ioctl(fd, 0x4C05, b); \
                      b[32:40] = (1 << 20).to_bytes(8, 'little'); fcntl.ioctl(fd, 0x4C04, bytes(b))";

/// An ext4 file system on a loop device. Dropping it takes both away.
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

    /// Another life of the same disk.
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

/// Files with such an ending.
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

/// Waits until there are so many complete files.
fn wait_for_files(run: &mut Run, directory: &Path, files: usize) {
    run.wait_for("complete files", |_| complete(directory).len() >= files);
}

/// Output of `weir extract`, in order of time, and as other programs read it.
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

/// Passes if these are frames of [`SOURCE`], in the order in which they went in, and to the byte.
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

/// A volume fails while it is the only one. `keeps`: frames that were written before are on it to the
/// last one.
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

/// One of two volumes fails, and the other one gets what comes.
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
    // Data of the open file that the file system had not yet written to the disk is gone.
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

/// Several times what the file system takes goes to it, and it is told of every deletion.
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
    // 100 MB/s for 8 s. On a machine that is busy otherwise frames may be lapped, and none is lost elsewhere.
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
    // What is written until a file is deleted is beyond the quota, and there was room all the time.
    assert!(least > 0, "the file system was full");
    let bytes: u64 = complete(&mount).iter().map(|file| file.metadata().expect("it").len()).sum();
    let quota = all * space().f_frsize / 10 * 9;
    assert!(bytes <= quota && bytes > quota / 2, "{bytes} of {quota}: {json}");
    // Each frame that is there is there once, and those are missing that were lapped or deleted.
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
    // Inodes for the recorder's lock and one file.
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
    // Half a second forth each time, and hours back and forth after each 1000 frames.
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
    // File by file as they came, and by extract in order of time: those of the same time as they came.
    let recorded: Vec<Vec<u8>> = files.iter().flat_map(|file| bytes_of(&read(file).1)).collect();
    assert!(recorded == bytes_of(&went));
    let mut sorted = went;
    sorted.sort_by_key(|frame| frame.ts_ns);
    assert!(bytes_of(&extract(&[&rec])) == bytes_of(&sorted));
    // All programs agree on the files together, too.
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
        run.signal(libc::SIGKILL);
        drop(run);
        let saved = extract_any(rec.path());
        assert!(!ending(rec.path(), ".open").is_empty() || !saved.is_empty(), "round {round}");
        went_in(&saved);
        for file in complete(rec.path()) {
            all_read(&file, &read(&file).1);
        }
        let output = weir(&format!("index {}", rec.path().display())).output().expect("weir");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(extract_any(rec.path()) == saved, "round {round}");
    }
}

/// As [`extract`], where nothing may have come to the disk yet.
fn extract_any(directory: &Path) -> Vec<Got> {
    let has_frames = weir(&format!("extract {} --write -", directory.display())).output();
    let output = has_frames.expect("weir");
    if output.stdout.is_empty() { Vec::new() } else { extract(&[directory]) }
}
