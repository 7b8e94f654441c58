//! Runs: consecutive blocks of a ring that are written by one request.

use proptest::prelude::*;

use super::*;
use crate::index;

/// Number of blocks of a ring that is long enough for runs of 4 MiB.
const BLOCKS: u64 = 256;

/// A recorder of a ring of `blocks` blocks, on a disk that refuses preallocation, so that all its requests are writes.
fn rig(blocks: u64, change: impl FnOnce(&mut Settings)) -> Rig {
    let rig = Rig::new(blocks, change);
    rig.script.set_space(Some(Space { total: FREE_BYTES_MIN, free: 0 }));
    rig
}

/// Pushes a few large frames, and closes the block.
fn push_few(rig: &mut Rig) {
    const LENGTH: usize = 16_000;
    for _ in 0..60 {
        let meta = Meta { ts_ns: rig.pushed, wire_len: LENGTH as u32, ..Meta::default() };
        rig.writer.push(&meta, &[rig.pushed as u8; LENGTH]);
        rig.pushed += 1;
    }
    rig.writer.close_block();
}

/// Times of all frames in these directories, sorted.
fn all_times(directories: [&Path; 2]) -> Vec<u64> {
    let all = directories.into_iter().flat_map(files);
    let mut times: Vec<u64> = all.flat_map(|path| times(&path)).collect();
    times.sort_unstable();
    times
}

#[test]
fn blocks_that_are_there_at_the_same_time_are_one_write() {
    let mut rig = rig(BLOCKS, |_| ());
    rig.script.hold();
    (0..10).for_each(|_| rig.push_block());
    let _ = rig.recorder.step(u64::MAX).unwrap();
    // Headers, and runs of 4, 4 and 2 blocks.
    assert_eq!((rig.script.held(), rig.recorder.unsettled()), (4, 10_000));
    rig.script.release_all();
    rig.run();
    // Later blocks do not wait for others.
    rig.push_block();
    rig.run();
    assert_eq!((rig.recorder.kept().frames, rig.recorder.unsettled()), (11_000, 0));
    rig.finish();
    assert_eq!(rig.times(), (0..rig.pushed).collect::<Vec<_>>());
    let index = index::read(&crate::catalog::index_path(&rig.files()[0])).unwrap();
    let pieces = index.pieces.iter().filter(|piece| piece.bytes == 1 << 20).count();
    assert_eq!(pieces, 11, "each block has its own entry in the index");
}

#[test]
fn rings_with_little_room_have_short_runs() {
    for (blocks, held) in [(64, 8), (128, 4), (BLOCKS, 2)] {
        let mut rig = rig(blocks, |settings| settings.index = false);
        rig.script.hold();
        (0..8).for_each(|_| rig.push_block());
        let _ = rig.recorder.step(u64::MAX).unwrap();
        assert_eq!(rig.script.held(), 1 + held, "{blocks} blocks");
        rig.script.release_all();
        rig.finish();
        assert_eq!(rig.times(), (0..8000).collect::<Vec<_>>());
    }
}

#[test]
fn runs_for_several_directories_are_shorter() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = rig(BLOCKS, |settings| settings.directories.push(other.path().to_owned()));
    rig.script.hold();
    (0..8).for_each(|_| rig.push_block());
    let _ = rig.recorder.step(u64::MAX).unwrap();
    // Headers of two files, and runs of two blocks.
    assert_eq!(rig.script.held(), 2 + 4);
    rig.script.release_all();
    rig.finish();
    assert_eq!(all_times([rig.directory.path(), other.path()]), (0..8000).collect::<Vec<_>>());
}

/// The frames of an open file are those of its beginning, at each moment: other programs read it, and a killed recorder
/// leaves it so.
#[test]
fn at_each_moment_an_open_file_has_frames_in_order_and_none_that_are_torn() {
    let mut rig = rig(BLOCKS, |_| ());
    rig.script.hold();
    (0..8).for_each(|_| rig.push_block());
    let _ = rig.recorder.step(u64::MAX).unwrap();
    // Two blocks of the first run are overwritten.
    (0..BLOCKS - 6).for_each(|_| rig.push_block());
    let mut seen = 0;
    while rig.script.held() > 0 && seen < 5000 {
        rig.script.release(1);
        let _ = rig.recorder.step(0).unwrap();
        let [open] = &rig.files()[..] else { panic!("{:?}", rig.files()) };
        let file = fs::File::open(open).unwrap();
        if file.metadata().unwrap().len() == 0 {
            continue;
        }
        // The contents of each frame are checked, too.
        let (times, _) = times_and_end(file);
        assert!(times.is_sorted() && times.len() >= seen, "{} after {seen}", times.len());
        assert!(
            times.first().is_none_or(|first| (2000..=3000).contains(first)),
            "{:?}",
            times.first()
        );
        seen = times.len();
    }
    assert!((5000..=6000).contains(&seen), "{seen}");
    rig.script.release_all();
    rig.finish();
}

#[test]
fn what_was_written_after_a_write_without_an_answer_goes_to_the_other_volume() {
    let other = tempfile::tempdir().unwrap();
    let mut rig = rig(2 * BLOCKS, |settings| {
        settings.directories.push(other.path().to_owned());
        settings.stall_max = Duration::from_millis(300);
    });
    rig.script.hold_writes_in(rig.directory.path());
    (0..24).for_each(|_| rig.push_block());
    let _ = rig.recorder.step(u64::MAX).unwrap();
    // All but one of them are answered: newest first, so that the oldest stays.
    rig.script.take_last_first();
    rig.script.release(rig.script.held() - 1);
    let _ = rig.recorder.step(u64::MAX).unwrap();
    rig.script.release(rig.script.held() - 1);
    let _ = rig.recorder.step(u64::MAX).unwrap();
    std::thread::sleep(Duration::from_millis(350));
    rig.recorder.looked -= FLUSH_EVERY;
    (0..50).for_each(|_| _ = rig.recorder.step(u64::MAX).unwrap());
    rig.finish();
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
    let mut times: Vec<u64> = files(other.path()).iter().flat_map(|path| times(path)).collect();
    times.sort_unstable();
    assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
}

#[test]
fn a_run_waits_for_space_on_a_full_file_system() {
    for write in 0..4 {
        let mut rig = rig(BLOCKS, |settings| {
            settings.quota = Some(Quota::Bytes(4 << 30));
            settings.file_bytes = 64 << 20;
        });
        // Some complete files, the oldest of which can be deleted.
        for _ in 0..40 {
            (0..4).for_each(|_| rig.push_block());
            rig.run();
        }
        let before = rig.files().len();
        assert!(before > 2, "{before}");
        rig.script.fail_write(write, 28);
        (0..4).for_each(|_| {
            (0..4).for_each(|_| rig.push_block());
            rig.run();
        });
        rig.finish();
        let report = rig.recorder.report();
        assert_eq!((report.volumes[0].deleted_files, &report.volumes[0].error), (1, &None));
        assert_eq!(rig.recorder.kept().frames, rig.pushed, "write {write}");
        let times = rig.times();
        let first = rig.pushed - times.len() as u64;
        assert_eq!(times, (first..rig.pushed).collect::<Vec<_>>());
    }
}

#[test]
fn whole_blocks_leave_no_time_of_an_incomplete_one_behind() {
    let mut rig = rig(BLOCKS, |_| ());
    rig.push(500);
    let _ = rig.recorder.step(u64::MAX).unwrap();
    rig.push(500);
    rig.writer.close_block();
    rig.run();
    std::thread::sleep(FLUSH_EVERY + Duration::from_millis(50));
    rig.push(500);
    let _ = rig.recorder.step(u64::MAX).unwrap();
    assert_eq!(rig.recorder.unsettled(), 0, "new frames wait for the rest of their block");
    rig.finish();
    assert_eq!(rig.times(), (0..1500).collect::<Vec<_>>());
}

#[test]
fn compressed_pieces_of_a_failed_volume_are_extracted_from_the_other_one() {
    for write in 0..3 {
        let other = tempfile::tempdir().unwrap();
        let mut rig = rig(8, |settings| {
            compressed(settings);
            settings.directories.push(other.path().to_owned());
        });
        rig.script.fail_write(write, 5);
        for _ in 0..6 {
            rig.push_block();
            rig.run();
        }
        rig.finish();
        assert_eq!(rig.recorder.kept().frames, rig.pushed);
        let all = [files(rig.directory.path()), files(other.path())].concat();
        let mut times: Vec<u64> = all.iter().flat_map(|path| unpacked_times(path)).collect();
        times.sort_unstable();
        assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
        // By the seek table, as `weir extract` reads.
        for path in all {
            let index = index::read(&crate::catalog::index_path(&path)).unwrap();
            let bytes: u64 = index.pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
            let plain = zstd::decode_all(fs::File::open(&path).unwrap()).unwrap();
            assert_eq!(bytes, plain.len() as u64, "write {write}, {path:?}");
            let content = crate::compressed::Content::new(fs::File::open(&path).unwrap()).unwrap();
            let mut read = vec![0; plain.len()];
            content.read_exact_at(&mut read, 0).unwrap();
            assert!(read == plain, "write {write}, {path:?}");
        }
    }
}

#[test]
fn of_a_run_only_the_blocks_that_were_lapped_are_lost() {
    for lapped in 1..=5 {
        let mut rig = rig(BLOCKS, |_| ());
        rig.script.hold();
        (0..8).for_each(|_| rig.push_block());
        let _ = rig.recorder.step(u64::MAX).unwrap();
        assert_eq!(rig.script.held(), 3);
        (0..BLOCKS - 8 + lapped).for_each(|_| rig.push_block());
        rig.script.release_all();
        rig.run();
        rig.finish();
        let report = rig.recorder.report();
        let torn = report.torn_blocks;
        assert!((lapped..=lapped + 1).contains(&torn), "{torn} torn, {lapped} were overwritten");
        assert_eq!(rig.times(), (1000 * torn..rig.pushed).collect::<Vec<_>>());
        assert_eq!(rig.recorder.delivered().lapped, 1000 * torn);
        assert_eq!(rig.recorder.kept().frames, rig.pushed - 1000 * torn);
        let lengths: u64 = rig.files().iter().map(|path| path.metadata().unwrap().len()).sum();
        assert_eq!([report.bytes, report.volumes[0].bytes], [lengths; 2]);
        let index = index::read(&crate::catalog::index_path(&rig.files()[0])).unwrap();
        let mut end = 0;
        for piece in &index.pieces {
            assert_eq!(piece.at, end, "the index has no gaps");
            end += u64::from(piece.bytes);
        }
        assert_eq!(end, lengths);
    }
}

#[test]
fn a_run_that_cannot_be_written_goes_to_another_volume() {
    let mut failed = 0;
    for (write, errno) in (0..9).flat_map(|write| [(write, 5), (write, 28)]) {
        let other = tempfile::tempdir().unwrap();
        let mut rig =
            rig(2 * BLOCKS, |settings| settings.directories.push(other.path().to_owned()));
        rig.script.fail_write(write, errno);
        for _ in 0..3 {
            (0..6).for_each(|_| rig.push_block());
            rig.run();
        }
        rig.finish();
        let kept = rig.recorder.kept().frames;
        assert_eq!(kept, rig.pushed, "write {write} fails with {errno}");
        let times = all_times([rig.directory.path(), other.path()]);
        assert_eq!(times, (0..rig.pushed).collect::<Vec<_>>());
        failed += rig.recorder.report().volumes.iter().filter(|one| one.error.is_some()).count();
    }
    assert_eq!(failed, 18, "each time one of two volumes");
}

#[derive(Clone, Debug)]
enum Event {
    Push(u64),
    Hold,
    Release(usize),
    ReleaseAll,
    Fail(u64),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        6 => (1_u64..20).prop_map(Event::Push),
        1 => (200_u64..300).prop_map(Event::Push),
        3 => Just(Event::Hold),
        3 => (1_usize..4).prop_map(Event::Release),
        2 => Just(Event::ReleaseAll),
        1 => (0_u64..6).prop_map(Event::Fail),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    /// Whatever the disk does: each frame is kept, lapped, or lost with a volume that failed, and the files contain
    /// exactly the frames that are counted as kept.
    #[test]
    fn files_have_what_is_counted_as_kept(events in prop::collection::vec(event(), 1..24)) {
        let other = tempfile::tempdir().unwrap();
        // Runs of two blocks.
        let mut rig = rig(BLOCKS, |settings| {
            settings.directories.push(other.path().to_owned());
            settings.file_bytes = 40 << 20;
        });
        for event in events {
            match event {
                Event::Push(blocks) => (0..blocks).for_each(|_| push_few(&mut rig)),
                Event::Hold => rig.script.hold(),
                Event::Release(writes) => rig.script.release(writes),
                Event::ReleaseAll => rig.script.release_all(),
                Event::Fail(write) => rig.script.fail_write(write, 5),
            }
            let _ = rig.recorder.step(u64::MAX);
        }
        rig.script.release_all();
        rig.writer.close();
        // If both volumes have failed, `step` returns an error.
        let is_over = |rig: &mut Rig| matches!(rig.recorder.step(u64::MAX), Ok(Step::Ended) | Err(_));
        let steps = (0..30_000).take_while(|_| {
            std::thread::sleep(Duration::from_micros(100));
            !is_over(&mut rig)
        });
        prop_assert!(steps.count() < 30_000, "it does not end");
        let has_failed = rig.recorder.finish(&[]).is_err();
        let (delivered, kept) = (rig.recorder.delivered(), rig.recorder.kept().frames);
        prop_assert!(has_failed || delivered.frames + delivered.lapped == rig.pushed, "{:?}", delivered);
        let volumes = rig.recorder.report().volumes;
        prop_assert!(!has_failed || volumes.iter().all(|volume| volume.error.is_some()));
        // With one volume left, nothing that the ring still has is lost.
        let is_whole = volumes.iter().all(|volume| volume.error.is_none());
        prop_assert!(!is_whole || kept == delivered.frames, "{} of {:?}", kept, delivered);
        let times = all_times([rig.directory.path(), other.path()]);
        prop_assert!(times.is_sorted_by(|a, b| a < b), "no frame is there twice");
        prop_assert_eq!(times.len() as u64, kept);
        for path in [files(rig.directory.path()), files(other.path())].concat() {
            let length = path.metadata().unwrap().len();
            // There is none if a piece that it had was cut off later.
            let Ok(index) = index::read(&crate::catalog::index_path(&path)) else { continue };
            let end = index.pieces.iter().map(|piece| piece.at + u64::from(piece.bytes)).max();
            prop_assert!(end.unwrap_or(0) <= length, "{:?}: the index goes beyond the file", path);
        }
    }
}
