use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use weir_consumer::{Begin, Consumer, JoinedFeed, Step};
use weir_disk::Space;
use weir_disk::fake::{Fake, Script};
use weir_frame::pcapng::Interface;
use weir_frame::read::FrameReader;
use weir_frame::record::Meta;
use weir_ring::{Clock, Mapping, Ring, RingSpec, Writer, WriterKind, memory};

use super::settings::{Compression, Quota};
use super::*;
use crate::limits::{FREE_BYTES_MIN, FRUITLESS_DELETIONS_MAX, PREALLOCATE_BYTES};

#[path = "clock_tests.rs"]
mod clock_tests;
#[path = "hostile_tests.rs"]
mod hostile_tests;
#[path = "look_back_tests.rs"]
mod look_back_tests;
#[path = "names_tests.rs"]
mod names_tests;
#[path = "run_tests.rs"]
mod run_tests;

const FRAME: usize = 1000;

struct Rig {
    directory: tempfile::TempDir,
    writer: Writer<Mapping>,
    recorder: Recorder<Fake>,
    script: Script,
    pushed: u64,
}

fn ring(blocks: u64) -> Ring<Mapping> {
    let interface = Interface { name: "eth0".into(), link_type: 1, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: blocks,
        interfaces: vec![interface],
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    memory::create_memfd("recorder-test", &spec).unwrap()
}

fn feed(ring: &Ring<Mapping>) -> JoinedFeed {
    let (label, rings) = (String::new(), vec![ring.clone()]);
    let begin = Begin::Oldest;
    JoinedFeed { key: 0, output: 0, label, rings, first_line: 0, channel: None, begin }
}

impl Rig {
    fn new(blocks: u64, change: impl FnOnce(&mut Settings)) -> Rig {
        Rig::on(Fake::new(), tempfile::tempdir().unwrap(), blocks, change)
    }

    /// With a disk that was scripted before, and a directory that may contain files.
    fn on(
        (disk, script): (Fake, Script),
        directory: tempfile::TempDir,
        blocks: u64,
        change: impl FnOnce(&mut Settings),
    ) -> Rig {
        let ring = ring(blocks);
        let mut settings =
            Settings { directories: vec![directory.path().to_owned()], ..Settings::default() };
        change(&mut settings);
        // Enough free space to preallocate, independent of the machine that runs the test.
        script.set_space(Some(Space { total: 2 * FREE_BYTES_MIN, free: FREE_BYTES_MIN }));
        let mut recorder = Recorder::new(settings, disk).unwrap();
        recorder.join(feed(&ring)).unwrap();
        Rig { directory, writer: Writer::new(ring), recorder, script, pushed: 0 }
    }

    fn push(&mut self, frames: u64) {
        for _ in 0..frames {
            let meta = Meta { ts_ns: self.pushed, wire_len: FRAME as u32, ..Meta::default() };
            self.writer.push(&meta, &[self.pushed as u8; FRAME]);
            self.pushed += 1;
        }
        self.writer.publish();
    }

    /// Pushes 1000 frames, and closes the block.
    fn push_block(&mut self) {
        self.push(1000);
        self.writer.close_block();
    }

    fn run(&mut self) -> Step {
        for _ in 0..1000 {
            match self.recorder.step(u64::MAX).unwrap() {
                Step::Busy => {}
                Step::Waiting | Step::Writing if self.recorder.shared.is_at_work() => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                other => return other,
            }
        }
        panic!("it never rests");
    }

    fn finish(&mut self) {
        self.writer.close();
        while self.recorder.step(u64::MAX).unwrap() != Step::Ended {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.recorder.finish(&[]).unwrap();
    }

    fn files(&self) -> Vec<PathBuf> {
        files(self.directory.path())
    }

    /// Times of all frames in all files.
    fn times(&self) -> Vec<u64> {
        self.files().iter().flat_map(|path| times(path)).collect()
    }
}

fn files(directory: &Path) -> Vec<PathBuf> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> =
        names.filter(|path| path.to_string_lossy().contains("pcapng")).collect();
    files.retain(|path| path.extension().is_none_or(|end| end != "index"));
    files.sort();
    files
}

fn times(path: &Path) -> Vec<u64> {
    times_of(fs::File::open(path).unwrap())
}

fn times_of(file: impl std::io::Read) -> Vec<u64> {
    let (times, end) = times_and_end(file);
    end.unwrap();
    times
}

/// Times of the frames before the file's end, or before bytes that are not a block.
fn times_and_end(file: impl std::io::Read) -> (Vec<u64>, Result<(), String>) {
    let mut reader = FrameReader::open(file).unwrap();
    let mut times = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(frame)) => {
                assert!(frame.data.iter().all(|byte| *byte == frame.ts_ns as u8));
                times.push(frame.ts_ns);
            }
            Ok(None) => return (times, Ok(())),
            Err(error) => return (times, Err(error.to_string())),
        }
    }
}

#[test]
fn what_goes_in_comes_out_and_is_whole() {
    let mut rig = Rig::new(8, |_| ());
    rig.push_block();
    rig.push(50);
    rig.run();
    rig.push_block();
    rig.push(7);
    rig.finish();
    assert_eq!(rig.times(), (0..rig.pushed).collect::<Vec<_>>());
    assert_eq!((rig.recorder.kept().frames, rig.recorder.delivered().frames), (2057, 2057));
    let [file] = &rig.files()[..] else { panic!("{:?}", rig.files()) };
    assert!(file.to_string_lossy().ends_with("Z_eth0_0.pcapng"), "{file:?}");
}

fn compressed(settings: &mut Settings) {
    settings.compression = Some(Compression { level: 1, threads: 2 });
}

/// Times of the frames of a compressed file.
fn unpacked_times(path: &Path) -> Vec<u64> {
    times_of(&zstd::decode_all(fs::File::open(path).unwrap()).unwrap()[..])
}

#[test]
fn compressed_files_have_all_frames_in_order_and_an_index() {
    let mut rig = Rig::new(8, |settings| {
        compressed(settings);
        settings.file_bytes = 4 << 20;
    });
    for _ in 0..30 {
        rig.push_block();
        rig.push(50);
        let _ = rig.recorder.step(u64::MAX).unwrap();
        rig.push(1000);
        rig.writer.close_block();
        rig.run();
    }
    rig.push(7);
    rig.finish();
    let files = rig.files();
    assert!(
        files.iter().all(|path| path.to_string_lossy().ends_with("_0.pcapng.zst")),
        "{files:?}"
    );
    let times: Vec<u64> = files.iter().flat_map(|path| unpacked_times(path)).collect();
    assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
    let report = rig.recorder.report();
    assert!(report.plain_bytes > 10 * report.bytes, "{report:?}");
    for path in &files {
        let index = crate::index::read(&crate::catalog::index_path(path)).unwrap();
        let plain = zstd::decode_all(fs::File::open(path).unwrap()).unwrap();
        let mut end = 0;
        for piece in &index.pieces {
            assert_eq!(piece.at, end);
            end += u64::from(piece.bytes);
        }
        assert_eq!(end, plain.len() as u64);
    }
}

#[test]
fn while_no_thread_is_free_pieces_are_stored_uncompressed() {
    let mut rig = Rig::new(8, |settings| {
        settings.compression = Some(Compression { level: 1, threads: 1 });
    });
    rig.push_block();
    rig.run();
    assert_eq!(rig.recorder.report().stored_blocks, 0);
    // While at most half of the ring is unread, the recorder waits for a thread.
    rig.recorder.shared.pool.as_mut().unwrap().set_jobs_max(0);
    (0..3).for_each(|_| rig.push_block());
    rig.run();
    assert_eq!((rig.recorder.report().stored_blocks, rig.recorder.kept().frames), (0, 1000));
    (0..3).for_each(|_| rig.push_block());
    rig.run();
    let stored = rig.recorder.report().stored_blocks;
    assert!((1..=3).contains(&stored), "{stored}");
    assert_eq!(rig.recorder.kept().frames, 1000 * (1 + stored));
    rig.recorder.shared.pool.as_mut().unwrap().set_jobs_max(2);
    rig.run();
    rig.push_block();
    rig.finish();
    let [file] = &rig.files()[..] else { panic!("{:?}", rig.files()) };
    assert_eq!(unpacked_times(file), (0..rig.pushed).collect::<Vec<_>>());
    assert_eq!((rig.recorder.kept().frames, rig.recorder.delivered().lapped), (8000, 0));
    let report = rig.recorder.report();
    // Pieces that are stored uncompressed have their full length, and the others are much shorter.
    let (least, most) = (stored * 1_000_000, (stored + 1) * 1_100_000);
    assert!(report.stored_blocks == stored && (least..most).contains(&report.bytes), "{report:?}");
}

#[test]
fn a_compressed_piece_that_was_overtaken_is_lapped_and_what_fails_goes_elsewhere() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(4, |settings| {
        compressed(settings);
        settings.directories.push(other.path().to_owned());
    });
    rig.script.fail_write(3, 5);
    for round in 0..40 {
        rig.push_block();
        if round % 4 == 0 {
            // The writer overtakes the recorder while a piece is being compressed.
            let _ = rig.recorder.step(u64::MAX).unwrap();
            (0..5).for_each(|_| rig.push_block());
        }
        rig.run();
    }
    rig.finish();
    let delivered = rig.recorder.delivered();
    assert_eq!(delivered.frames + delivered.lapped, rig.pushed, "{delivered:?}");
    assert!(delivered.lapped > 0);
    let all = [rig.files(), files(other.path())].concat();
    let whole = all.iter().filter(|path| path.metadata().unwrap().len() > 0);
    let mut times: Vec<u64> = whole.flat_map(|path| unpacked_times(path)).collect();
    times.sort_unstable();
    times.dedup();
    assert_eq!(
        (times.len() as u64, rig.recorder.kept().frames),
        (delivered.frames, delivered.frames)
    );
}

#[test]
fn a_block_that_is_lapped_while_it_is_written_is_hidden_and_counted() {
    let mut rig = Rig::new(4, |_| ());
    rig.script.hold();
    rig.push_block();
    let _ = rig.recorder.step(u64::MAX).unwrap();
    // The writer overwrites the whole ring while the write to the disk is under way.
    (0..4).for_each(|_| rig.push_block());
    rig.script.release_all();
    rig.run();
    rig.finish();
    let (delivered, kept) = (rig.recorder.delivered(), rig.recorder.kept());
    assert_eq!(delivered.frames + delivered.lapped, rig.pushed);
    assert_eq!(kept.frames, delivered.frames);
    assert!(delivered.lapped >= 1000, "{delivered:?}");
    let times = rig.times();
    assert_eq!(times.len() as u64, kept.frames);
    assert!(times.iter().all(|time| *time >= 1000));
    let report = rig.recorder.report();
    assert_eq!(report.torn_blocks, 1);
    // The padding in place of the torn block does not make the file longer.
    let lengths = rig.files().iter().map(|path| path.metadata().unwrap().len()).sum::<u64>();
    assert_eq!([report.bytes, report.volumes[0].bytes], [lengths; 2]);
}

#[test]
fn files_are_rotated_by_size_and_the_oldest_are_deleted() {
    let mut rig = Rig::new(8, |settings| {
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(24 << 20));
    });
    for _ in 0..40 {
        rig.push_block();
        rig.run();
    }
    rig.finish();
    let files = rig.files();
    let sizes = files.iter().map(|path| path.metadata().unwrap().len());
    assert!(sizes.clone().all(|size| size <= 5 << 20), "{:?}", sizes.collect::<Vec<_>>());
    let total: u64 = sizes.sum();
    assert!(total <= 24 << 20 && total > 14 << 20, "{total}");
    let times = rig.times();
    assert_eq!(times, (rig.pushed - times.len() as u64..rig.pushed).collect::<Vec<_>>());
    let report = rig.recorder.report();
    assert!(report.volumes[0].deleted_files > 0 && report.files > 8, "{report:?}");
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
}

#[test]
fn a_file_ends_when_its_time_is_over() {
    let time = Duration::from_millis(20);
    let mut rig = Rig::new(8, |settings| settings.file_time = Some(time));
    rig.push_block();
    rig.run();
    std::thread::sleep(time);
    // The recorder checks the clock once a second.
    rig.recorder.looked -= FLUSH_EVERY;
    rig.run();
    rig.push_block();
    rig.finish();
    let frames: Vec<usize> = rig.files().iter().map(|path| times(path).len()).collect();
    assert_eq!(frames, [1000, 1000]);
    assert_eq!(rig.times(), (0..rig.pushed).collect::<Vec<_>>());
}

#[test]
fn a_file_system_that_is_full_before_the_quota_costs_the_oldest_file_and_no_frame() {
    let mut rig = Rig::new(8, |settings| {
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(64 << 20));
    });
    for _ in 0..12 {
        rig.push_block();
        rig.run();
    }
    let oldest = rig.files()[0].clone();
    let (first, files) = (times(&oldest)[0], rig.recorder.report().files);
    assert!(files >= 3, "{files}");
    rig.script.set_space(None);
    // Three blocks that are under way together cost one file.
    rig.script.hold();
    (0..3).for_each(|write| rig.script.fail_write(write, 28));
    (0..3).for_each(|_| rig.push_block());
    let _ = rig.recorder.step(u64::MAX).unwrap();
    rig.script.release_all();
    rig.run();
    assert_eq!(rig.recorder.report().volumes[0].deleted_files, 1);
    // If the write of a block's first page fails afterwards, another file is deleted.
    rig.script.fail_write(1, 28);
    rig.push_block();
    rig.run();
    assert!(!oldest.exists());
    rig.finish();
    let report = rig.recorder.report();
    assert_eq!(report.volumes[0].deleted_files, 2, "{report:?}");
    assert_eq!(report.volumes[0].error, None, "{report:?}");
    let times = rig.times();
    assert!(times[0] > first);
    assert_eq!(times, (rig.pushed - times.len() as u64..rig.pushed).collect::<Vec<_>>());
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
}

#[test]
fn a_full_file_system_without_a_file_to_delete_is_given_up() {
    let mut rig = Rig::new(8, |settings| settings.quota = Some(Quota::Bytes(64 << 20)));
    rig.push_block();
    rig.run();
    for write in 0..20 {
        rig.script.fail_write(write, 28);
    }
    rig.push_block();
    let mut failed = None;
    for _ in 0..100 {
        if let Err(error) = rig.recorder.step(u64::MAX) {
            failed = Some(error);
            break;
        }
    }
    assert!(failed.is_some());
    // The error can be queried again, with the kernel's text.
    let again = rig.recorder.shared.volumes.error();
    assert!(std::error::Error::source(&again).unwrap().to_string().contains("No space left"));
    let _ = rig.recorder.finish(&[]);
    assert_eq!(rig.times(), (0..1000).collect::<Vec<_>>());
}

#[test]
fn a_file_that_is_read_is_not_deleted() {
    let mut rig = Rig::new(8, |settings| {
        settings.quota = Some(Quota::Bytes(16 << 20));
    });
    for _ in 0..6 {
        rig.push_block();
        rig.run();
    }
    let oldest = rig.files()[0].clone();
    let reader = fs::File::open(&oldest).unwrap();
    rustix::fs::flock(&reader, rustix::fs::FlockOperation::LockShared).unwrap();
    for _ in 0..40 {
        rig.push_block();
        rig.run();
    }
    assert!(oldest.exists());
    drop(reader);
    for _ in 0..20 {
        rig.push_block();
        rig.run();
    }
    assert!(!oldest.exists());
    rig.finish();
}

#[test]
fn a_full_disk_leaves_whole_files_and_names_what_is_lost() {
    let mut rig = Rig::new(8, |_| ());
    rig.script.fail_from_byte(Some((3 << 20, 28)));
    let mut failed = None;
    for _ in 0..6 {
        rig.push_block();
        for _ in 0..20 {
            match rig.recorder.step(u64::MAX) {
                Ok(_) => std::thread::sleep(Duration::from_millis(1)),
                Err(error) => failed = Some(error),
            }
        }
    }
    assert!(failed.unwrap().to_string().contains("cannot write there"));
    let _ = rig.recorder.finish(&[]);
    let kept = rig.recorder.kept().frames;
    assert_eq!(rig.times(), (0..kept).collect::<Vec<_>>());
    assert!((1000..=3000).contains(&kept), "{kept}");
}

#[test]
fn a_full_disk_leaves_no_open_file_and_counts_what_is_there() {
    let mut rig = Rig::new(8, |_| ());
    let ring = ring(8);
    let mut second = Writer::new(ring.clone());
    rig.recorder.join(JoinedFeed { key: 1, ..feed(&ring) }).unwrap();
    let meta = Meta { wire_len: FRAME as u32, ..Meta::default() };
    for _ in 0..1000 {
        second.push(&meta, &[0; FRAME]);
    }
    second.close_block();
    rig.push_block();
    rig.run();
    assert_eq!(rig.files().len(), 2);
    rig.script.fail_write(1, 28);
    for _ in 0..3 {
        rig.push_block();
    }
    let failed = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rig.recorder.step(u64::MAX).err()
    });
    assert!(failed.is_some());
    // The statistics of the other file cannot be written, either.
    rig.script.fail_from_byte(Some((0, 28)));
    let error = rig.recorder.finish(&[]).unwrap_err().to_string();
    assert!(!error.contains("weir index"), "{error}");
    let files = rig.files();
    assert!(files.iter().all(|path| path.extension().unwrap() == "pcapng"), "{files:?}");
    let lengths = files.iter().map(|path| path.metadata().unwrap().len());
    let report = rig.recorder.report();
    assert_eq!(report.bytes, lengths.sum::<u64>());
    assert_eq!(report.volumes[0].bytes, report.bytes);
    let frames: usize = files.iter().map(|path| times(path).len()).sum();
    assert_eq!(rig.recorder.kept().frames, frames as u64);
}

#[test]
fn a_file_that_gets_its_headers_and_no_frame_is_removed() {
    let mut rig = Rig::new(8, |_| ());
    // The headers take a page.
    rig.script.fail_from_byte(Some((4096, 28)));
    rig.push_block();
    let failed = (0..1000).find_map(|_| {
        std::thread::sleep(Duration::from_millis(1));
        rig.recorder.step(u64::MAX).err()
    });
    assert!(failed.is_some());
    let _ = rig.recorder.finish(&[]);
    let report = rig.recorder.report();
    assert_eq!((report.files, report.bytes, report.volumes[0].bytes), (0, 0, 0));
    assert_eq!(rig.recorder.kept().frames, 0);
    let left = fs::read_dir(rig.directory.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let left: Vec<_> = left.filter(|name| name.to_string_lossy().contains("pcapng")).collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn files_that_cannot_be_completed_are_told_with_the_way_to_complete_them() {
    let mut rig = Rig::new(8, |_| ());
    rig.push_block();
    rig.run();
    rig.script.fail_rename(Some(28));
    rig.writer.close();
    while rig.recorder.step(u64::MAX).unwrap() != Step::Ended {
        std::thread::sleep(Duration::from_millis(1));
    }
    let error = rig.recorder.finish(&[]).unwrap_err().to_string();
    assert!(error.contains(&format!("weir index {} ", rig.directory.path().display())), "{error}");
}

#[test]
fn a_volume_that_fails_or_is_full_is_left_out_and_nothing_is_lost() {
    [5, 28].into_iter().for_each(one_of_two_volumes_fails);
}

fn one_of_two_volumes_fails(errno: i32) {
    static TOLD: Mutex<Vec<Option<i32>>> = Mutex::new(Vec::new());
    let other = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(8, |settings| {
        settings.directories.push(other.path().to_owned());
        settings.volume_failed = |_, error| TOLD.lock().unwrap().push(error.raw_os_error());
    });
    rig.script.fail_write(4, errno);
    for _ in 0..10 {
        rig.push_block();
        rig.run();
    }
    rig.finish();
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
    let mut times = rig.times();
    let others = files(other.path());
    times.extend(others.iter().flat_map(|path| super::tests::times(path)));
    times.sort_unstable();
    assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
    let errors = rig.recorder.report().volumes.iter().filter(|one| one.error.is_some()).count();
    assert_eq!(errors, 1);
    assert_eq!(std::mem::take(&mut *TOLD.lock().unwrap()), [Some(errno)]);
}

#[test]
fn a_volume_that_does_not_answer_is_left_out_while_another_one_works() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(16, |settings| {
        settings.directories.push(other.path().to_owned());
        settings.stall_max = Duration::from_millis(300);
    });
    // Writes to the first directory are not completed; they are the first writes, of the ring's first block.
    rig.script.hold_writes_in(rig.directory.path());
    for _ in 0..6 {
        rig.push_block();
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    std::thread::sleep(Duration::from_millis(350));
    rig.recorder.looked -= FLUSH_EVERY;
    for _ in 0..50 {
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    rig.finish();
    // The blocks of these writes are still in the ring, so nothing is lost.
    assert_eq!((rig.recorder.kept().frames, rig.recorder.unsettled()), (6000, 0));
    let mut times: Vec<u64> = files(other.path()).iter().flat_map(|path| times(path)).collect();
    times.sort_unstable();
    assert_eq!(times, (0..6000).collect::<Vec<_>>());
    let report = rig.recorder.report();
    let error = report.volumes[0].error.as_ref().expect("it is left out");
    assert!(error.contains("did not answer"), "{error}");
}

#[test]
fn a_busy_file_is_preallocated_and_no_other() {
    let mut rig = Rig::new(8, |settings| settings.quota = Some(Quota::Bytes(1 << 30)));
    rig.push(10);
    rig.recorder.looked -= FLUSH_EVERY;
    rig.run();
    rig.push_block();
    rig.run();
    let length = |rig: &Rig| rig.files()[0].metadata().unwrap().len();
    let busy = length(&rig);
    assert!(busy > PREALLOCATE_BYTES / 2, "{busy} bytes");
    assert_eq!(rig.recorder.shared.volumes.recorded(0), busy, "a quota counts it");
    let (times, end) = times_and_end(fs::File::open(&rig.files()[0]).unwrap());
    assert_eq!((times.len(), end.is_err()), (1010, true), "zeros are no block");
    for _ in 0..2 {
        rig.recorder.looked -= FLUSH_EVERY;
        rig.run();
    }
    let idle = length(&rig);
    assert!(idle < 3 << 20, "{idle} bytes");
    assert_eq!(rig.recorder.shared.volumes.recorded(0), idle);
    assert_eq!(rig.times().len(), 1010, "the file ends with its last block");
    rig.push_block();
    rig.run();
    assert!(length(&rig) > PREALLOCATE_BYTES / 2, "it is busy again");
    rig.finish();
    assert!(length(&rig) < 4 << 20);
    assert_eq!(rig.recorder.shared.volumes.recorded(0), length(&rig));
    assert_eq!(rig.times(), (0..2010).collect::<Vec<_>>());
}

#[test]
fn a_file_that_is_being_cut_off_gets_nothing_and_keeps_no_ring_waiting() {
    let mut rig = Rig::new(8, |_| ());
    rig.push_block();
    rig.run();
    rig.script.hold_file_requests(true);
    for _ in 0..2 {
        rig.recorder.looked -= FLUSH_EVERY;
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    assert!(rig.recorder.shared.volumes.are_at_work());
    rig.push_block();
    for _ in 0..20 {
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    assert_eq!((rig.recorder.kept().frames, rig.files().len()), (2000, 2));
    rig.script.hold_file_requests(false);
    rig.finish();
    assert_eq!(rig.times(), (0..2000).collect::<Vec<_>>());
}

#[test]
fn a_preallocation_that_is_refused_changes_nothing_but_the_speed() {
    let mut rig = Rig::new(8, |settings| settings.quota = Some(Quota::Bytes(1 << 30)));
    rig.script.fail_preallocate(Some(28));
    for _ in 0..3 {
        rig.push_block();
        rig.run();
    }
    let length = rig.files()[0].metadata().unwrap().len();
    assert_eq!(rig.recorder.shared.volumes.recorded(0), length);
    rig.finish();
    assert_eq!(rig.times(), (0..3000).collect::<Vec<_>>());
}

#[test]
fn little_free_space_is_not_taken_ahead() {
    let mut rig = Rig::new(8, |_| ());
    rig.script.set_space(Some(Space { total: 100 << 30, free: FREE_BYTES_MIN - 1 }));
    rig.push_block();
    rig.run();
    assert!(rig.files()[0].metadata().unwrap().len() < 2 << 20);
    rig.script.set_space(Some(Space { total: 100 << 30, free: FREE_BYTES_MIN }));
    rig.push_block();
    rig.run();
    assert!(rig.files()[0].metadata().unwrap().len() > PREALLOCATE_BYTES / 2);
    rig.finish();
}

#[test]
fn a_full_file_system_on_which_deleting_frees_nothing_is_given_up() {
    let mut rig = Rig::new(8, |settings| {
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(256 << 20));
    });
    for _ in 0..40 {
        rig.push_block();
        rig.run();
    }
    rig.script.set_space(Some(Space { total: 100 << 30, free: 0 }));
    (0..100).for_each(|write| rig.script.fail_write(write, 28));
    rig.push_block();
    let mut failed = None;
    for _ in 0..2000 {
        if let Err(error) = rig.recorder.step(u64::MAX) {
            failed = Some(error);
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(failed.is_some());
    let report = rig.recorder.report();
    assert!(report.volumes[0].error.as_ref().unwrap().contains("freed no space"), "{report:?}");
    assert_eq!(report.volumes[0].deleted_files, u64::from(FRUITLESS_DELETIONS_MAX));
    let _ = rig.recorder.finish(&[]);
}

#[test]
fn small_pieces_go_to_the_volume_with_the_fewest_writes() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(16, |settings| settings.directories.push(other.path().to_owned()));
    rig.script.hold_writes_in(rig.directory.path());
    for _ in 0..300 {
        rig.push(1);
        rig.writer.close_block();
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    // No write to the first directory completes, so only the writes under way there wait.
    let held = rig.script.held();
    assert!(held > 0 && held <= crate::limits::VOLUME_PENDING_MAX, "{held}");
    let others: usize = files(other.path()).iter().map(|path| times(path).len()).sum();
    assert!(others >= 300 - held, "{others} of 300, {held} held");
    rig.script.release_all();
    rig.finish();
    assert_eq!(rig.recorder.kept().frames, 300);
}

#[test]
fn a_deletion_that_takes_its_time_keeps_no_ring_waiting() {
    let mut rig = Rig::new(8, |settings| {
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(24 << 20));
    });
    for _ in 0..18 {
        rig.push_block();
        rig.run();
    }
    rig.script.hold_file_requests(true);
    let before = rig.recorder.kept().frames;
    for _ in 0..6 {
        rig.push_block();
        for _ in 0..20 {
            let _ = rig.recorder.step(u64::MAX).unwrap();
        }
    }
    assert_eq!(rig.recorder.kept().frames - before, 6000);
    rig.script.hold_file_requests(false);
    rig.finish();
    let total: u64 = rig.files().iter().map(|path| path.metadata().unwrap().len()).sum();
    assert!(total <= 24 << 20, "{total}");
}

#[test]
fn a_recorder_that_ends_gives_the_rest_of_a_deleted_file_back_at_once() {
    let (fake, script) = Fake::new();
    script.set_discards(true);
    let directory = tempfile::tempdir().unwrap();
    let old = directory.path().join("20200101T000000.000000000Z_eth0_0.pcapng");
    // 64 steps of 32 MiB.
    fs::File::create(&old).unwrap().set_len(2 << 30).unwrap();
    script.hold_steps(true);
    // The quota is so nearly reached that the file must be deleted, but not exceeded: else there would be no steps.
    let mut rig = Rig::on((fake, script), directory, 8, |settings| {
        settings.quota = Some(Quota::Bytes((2 << 30) + (64 << 20)));
    });
    rig.script.set_space(Some(Space { total: 2 * FREE_BYTES_MIN, free: FREE_BYTES_MIN - 1 }));
    rig.push_block();
    let begin = std::time::Instant::now();
    while rig.script.shortened().is_empty() {
        assert!(begin.elapsed() < Duration::from_secs(20), "no deletion in steps");
        let _ = rig.recorder.step(u64::MAX).unwrap();
        std::thread::sleep(Duration::from_millis(1));
    }
    let script = rig.script.clone();
    let release = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(200));
        script.hold_steps(false);
    });
    rig.recorder.finish(&[]).unwrap();
    assert!(release.is_finished(), "the deletion was not waited for");
    release.join().unwrap();
    assert_eq!(rig.script.shortened(), [(2 << 30) - (32 << 20)]);
    assert!(!old.exists());
    assert_eq!(rig.recorder.report().volumes[0].deleted_files, 1);
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
}

#[test]
fn the_only_volume_is_waited_for_and_given_up_at_the_end() {
    let mut rig = Rig::new(8, |settings| {
        settings.stall_max = Duration::from_millis(50);
        settings.end_stall_max = Duration::from_millis(400);
    });
    rig.push_block();
    rig.run();
    rig.script.hold();
    rig.push_block();
    assert_eq!(rig.recorder.step(u64::MAX).unwrap(), Step::Busy);
    for _ in 0..3 {
        assert_eq!(rig.recorder.step(u64::MAX).unwrap(), Step::Writing);
        std::thread::sleep(Duration::from_millis(60));
        rig.recorder.looked -= FLUSH_EVERY;
    }
    rig.writer.close();
    let error = rig.recorder.finish(&[]).unwrap_err();
    assert!(error.to_string().contains("cannot write there"), "{error}");
    assert_eq!((rig.recorder.kept().frames, rig.recorder.unsettled()), (1000, 0));
    // The file is not touched any more, so the preallocated space after its last block stays.
    let (times, end) = times_and_end(fs::File::open(&rig.files()[0]).unwrap());
    assert!(times == (0..1000).collect::<Vec<_>>() && end.is_err(), "{end:?}");
    rig.script.release_all();
}

#[test]
fn what_a_second_failing_volume_cuts_off_is_not_kept() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = Rig::new(16, |settings| settings.directories.push(other.path().to_owned()));
    rig.script.hold();
    // Three blocks to each volume, after the headers of its file.
    for _ in 0..6 {
        rig.push_block();
        let _ = rig.recorder.step(u64::MAX).unwrap();
    }
    rig.script.fail_writes_in(rig.directory.path(), 5);
    rig.script.release(3);
    for _ in 0..20 {
        let _ = rig.recorder.step(u64::MAX);
    }
    rig.script.fail_writes_in(other.path(), 5);
    rig.script.release_all();
    for _ in 0..50 {
        let _ = rig.recorder.step(u64::MAX);
    }
    let _ = rig.recorder.finish(&[]);
    let mut all = [rig.files(), files(other.path())].concat();
    all.retain(|path| path.metadata().unwrap().len() > 0);
    let times: Vec<u64> = all.iter().flat_map(|path| times(path)).collect();
    assert_eq!(rig.recorder.kept().frames, times.len() as u64);
}

#[test]
fn two_recorders_do_not_share_a_directory() {
    let rig = Rig::new(8, |_| ());
    let settings =
        Settings { directories: vec![rig.directory.path().to_owned()], ..Settings::default() };
    let again = Recorder::new(settings, Fake::new().0);
    assert!(matches!(again, Err(RecorderError::Taken { .. })));
    let twice = Settings {
        directories: vec![rig.directory.path().join(".."), rig.directory.path().join("..")],
        ..Settings::default()
    };
    assert!(matches!(Recorder::new(twice, Fake::new().0), Err(RecorderError::Twice { .. })));
}

#[test]
fn a_quota_without_room_for_a_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let settings = Settings {
        directories: vec![directory.path().to_owned()],
        quota: Some(Quota::Bytes(1 << 20)),
        ..Settings::default()
    };
    let mut recorder = Recorder::new(settings, Fake::new().0).unwrap();
    let error = recorder.join(feed(&ring(4))).unwrap_err();
    assert!(error.to_string().contains("16MiB"), "{error}");
}

#[test]
fn frames_of_a_quiet_link_are_on_the_disk_within_seconds() {
    let mut rig = Rig::new(8, |_| ());
    rig.push(3);
    let _ = rig.run();
    std::thread::sleep(FLUSH_EVERY);
    rig.run();
    let [file] = &rig.files()[..] else { panic!("{:?}", rig.files()) };
    assert!(file.to_string_lossy().ends_with(".open"));
    assert_eq!(times(file), [0, 1, 2]);
    rig.push(2);
    rig.finish();
    assert_eq!(rig.times(), (0..5).collect::<Vec<_>>());
}

#[test]
fn no_more_frames_are_taken_than_were_asked_for() {
    let mut rig = Rig::new(8, |_| ());
    rig.push_block();
    rig.push_block();
    let mut left = 1500;
    for _ in 0..2000 {
        if left == 0 {
            break;
        }
        let _ = rig.recorder.step(left).unwrap();
        left = 1500 - rig.recorder.delivered().frames;
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.recorder.finish(&[]).unwrap();
    assert_eq!(rig.times(), (0..1500).collect::<Vec<_>>());
}

#[test]
fn a_limit_is_kept_to_the_frame_where_a_block_before_it_is_torn() {
    let mut rig = Rig::new(4, |_| ());
    rig.script.hold();
    rig.push_block();
    let _ = rig.recorder.step(1500).unwrap();
    rig.push(600);
    let _ = rig.recorder.step(1500).unwrap();
    // The first block is overwritten in the ring before its write is complete.
    rig.writer.close_block();
    (0..3).for_each(|_| rig.push_block());
    rig.script.release_all();
    let mut left = 1500;
    for _ in 0..3000 {
        if left == 0 {
            break;
        }
        if rig.recorder.step(left).unwrap() != Step::Busy {
            std::thread::sleep(Duration::from_millis(1));
        }
        left = 1500 - rig.recorder.delivered().frames;
    }
    let unread = rig.recorder.rings().unread();
    rig.recorder.finish(&[]).unwrap();
    let delivered = rig.recorder.delivered();
    assert_eq!((delivered.frames, rig.recorder.kept().frames), (1500, 1500));
    assert_eq!(1500 + delivered.lapped + unread, rig.pushed, "{delivered:?}");
    let times = rig.times();
    assert_eq!(times.last().unwrap() + 1, rig.pushed - unread);
}

#[test]
fn the_quota_counts_what_files_have_and_nothing_else() {
    let mut rig = Rig::new(8, |settings| {
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(32 << 20));
    });
    for _ in 0..300 {
        rig.push_block();
        rig.run();
    }
    rig.finish();
    let total: u64 = rig.files().iter().map(|path| path.metadata().unwrap().len()).sum();
    // At most about the size of one file, the oldest, is missing from the quota.
    assert!((26 << 20..=32 << 20).contains(&total), "{total}");
}

#[test]
fn what_is_under_way_when_a_ring_is_let_go_is_lapped_and_nothing_else() {
    let mut rig = Rig::new(4, |_| ());
    rig.script.hold();
    rig.push_block();
    let _ = rig.recorder.step(u64::MAX).unwrap();
    assert!(rig.recorder.unsettled() > 0);
    // Five more feeds of the output join and leave unread. These are too many past feeds, so the first one is dropped.
    let rings: Vec<_> = (0..5).map(|_| ring(4)).collect();
    rig.recorder.rings_mut().leave(0, &[1000]);
    for (key, ring) in (1..).zip(&rings) {
        let mut writer = Writer::new(ring.clone());
        writer.push(&Meta { wire_len: 60, ..Meta::default() }, &[0; 60]);
        writer.publish();
        rig.recorder.join(JoinedFeed { key, ..feed(ring) }).unwrap();
        rig.recorder.rings_mut().leave(key, &[1]);
    }
    rig.script.release_all();
    for _ in 0..500 {
        if rig.recorder.step(u64::MAX).unwrap() == Step::Ended {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.recorder.finish(&[]).unwrap();
    let (delivered, kept) = (rig.recorder.delivered(), rig.recorder.kept());
    assert_eq!(delivered.frames + delivered.lapped, 1005, "{delivered:?}");
    assert_eq!(kept.frames, delivered.frames);
}
