//! All recorded frames are extracted, ordered by time, from any number of files.

#[path = "common/recording.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod recording;

use std::cell::Cell;
use std::fs;

use proptest::prelude::*;
use weir_store::catalog::Catalog;
use weir_store::extract::Query;
use weir_store::recorder::Settings;
use weir_store::recorder::settings::Compression;

use recording::{Rig, extracted, index_files};

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]
    #[test]
    fn what_went_in_comes_out_in_order(
        rings in 1..4_usize,
        volumes in 1..3_usize,
        index in any::<bool>(),
        threads in 1..4_usize,
        is_compressed in any::<bool>(),
        pushes in prop::collection::vec((0..4_usize, 0..2_u32, 60..9000_usize, -3..4_i64), 1..3000),
        from_to in (0..3000_u64, 0..3000_u64),
    ) {
        let compression = is_compressed.then_some(Compression { level: 1, threads: 2 });
        let settings = Settings { index, compression, ..Settings::default() };
        let mut rig = Rig::with(rings, volumes, settings);
        for (at, (ring, interface, bytes, shift)) in pushes.iter().enumerate() {
            // Times that are nearly in order, and no two the same.
            let ts_ns = ((at as i64 + 10) * 1000 + shift * 2_345 + at as i64) as u64;
            rig.push(ring % rings, ts_ns, *interface, *bytes);
            if at % 97 == 0 {
                rig.settle();
            }
        }
        rig.finish();
        let (frames, stats) = extracted(&rig.paths(), &Query::default(), threads);
        prop_assert!(frames == rig.frames, "{} of {}: {stats:?}", frames.len(), rig.frames.len());
        prop_assert_eq!((stats.frames_late, stats.frames_damaged), (0, 0));
        let times = from_to.0 * 1000..=from_to.1 * 1000;
        let expected: Vec<_> =
            rig.frames.iter().filter(|(ts_ns, ..)| times.contains(ts_ns)).cloned().collect();
        let (frames, _) = extracted(&rig.paths(), &Query::new(times, None, None), threads);
        prop_assert!(frames == expected);
    }
}

thread_local! {
    /// The wall clock of the next test, in nanoseconds since the Unix epoch.
    static NOW_NS: Cell<u64> = const { Cell::new(0) };
}

#[test]
fn after_the_clock_went_back_and_forth_all_frames_come_back_in_order_of_time() {
    const HOUR: u64 = 3_600_000_000_000;
    let mut directories = vec![tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()];
    let mut went_in = Vec::new();
    // An hour back and a day forth, between two files and between two runs.
    for (run, hours) in [[100, 99], [100, 76], [99, 123], [98, 99]].iter().enumerate() {
        NOW_NS.set(hours[0] * HOUR);
        let settings = Settings { now: || NOW_NS.get(), ..Settings::default() };
        let mut rig = Rig::again(directories, 2, settings);
        for (half, hours) in hours.iter().enumerate() {
            NOW_NS.set(hours * HOUR);
            // More frames than fit in one file of each ring. Their times are from the same clock, and no two are the
            // same.
            for at in 0..9000 {
                let ts_ns = NOW_NS.get() + 1000 * at + 10 * run as u64 + half as u64;
                rig.push(at as usize % 2, ts_ns, 0, 1400);
                if at % 500 == 0 {
                    rig.settle();
                }
            }
        }
        rig.finish();
        went_in.append(&mut rig.frames);
        Rig { directories, .. } = rig;
    }
    went_in.sort_by_key(|(ts_ns, ..)| *ts_ns);
    let paths = [directories[0].path().to_owned()];
    let (frames, stats) = extracted(&paths, &Query::default(), 2);
    assert!(stats.files >= 16, "{stats:?}");
    assert!(frames == went_in, "{} of {}: {stats:?}", frames.len(), went_in.len());
    assert_eq!((stats.frames_late, stats.frames_damaged, stats.indexes_missing), (0, 0, 0));
    // The hour that was recorded three times, from all files that have it.
    let hour = 99 * HOUR..=100 * HOUR - 1;
    let expected: Vec<_> = went_in.into_iter().filter(|(ts_ns, ..)| hour.contains(ts_ns)).collect();
    let (frames, _) = extracted(&paths, &Query::new(hour, None, None), 2);
    assert!(frames.len() == 27_000 && frames == expected, "{}", frames.len());
}

#[test]
fn an_index_that_is_gone_damaged_or_of_another_file_changes_nothing() {
    let mut rig = Rig::new(2, 1, true);
    for at in 0..4000 {
        rig.push(at as usize % 2, 1000 + at, 0, 1000);
        if at % 500 == 0 {
            rig.settle();
        }
    }
    rig.finish();
    let all = |rig: &Rig| extracted(&rig.paths(), &Query::default(), 2).0 == rig.frames;
    assert!(all(&rig));
    let indexes = index_files(rig.directories[0].path());
    let bytes = fs::read(&indexes[0]).unwrap();
    fs::write(&indexes[0], &bytes[..bytes.len() - 3]).unwrap();
    assert!(all(&rig));
    let mut damaged = bytes.clone();
    damaged[bytes.len() / 2] ^= 0x40;
    fs::write(&indexes[0], damaged).unwrap();
    assert!(all(&rig));
    fs::write(&indexes[0], b"no index").unwrap();
    assert!(all(&rig));
    indexes.iter().for_each(|path| fs::remove_file(path).unwrap());
    assert!(all(&rig));
}

#[test]
fn open_files_foreign_files_and_files_that_end_early_are_read_as_far_as_they_go() {
    let mut rig = Rig::new(1, 1, true);
    for at in 0..3000 {
        rig.push(0, 1000 + at, 0, 1000);
    }
    rig.settle();
    rig.finish();
    let (paths, Rig { directories, recorder, frames: went_in, .. }) = (rig.paths(), rig);
    drop(recorder);
    let directory = directories[0].path();
    let catalog = Catalog::list(&[directory]).unwrap();
    let file = catalog.files[0].path.clone();
    // The file as a killed recorder leaves it: with the ending `.open`, and with unconfirmed bytes at the end.
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend_from_slice(&[0; 4096]);
    bytes.extend_from_slice(&[0xa5; 9000]);
    let mut open = file.clone().into_os_string();
    open.push(".open");
    fs::remove_file(&file).unwrap();
    fs::write(&open, &bytes).unwrap();
    fs::write(directory.join("20991231T000000.000000000Z_x_0.pcapng"), b"no capture at all")
        .unwrap();
    fs::write(directory.join("notes.txt"), b"mine").unwrap();
    let (frames, stats) = extracted(&paths, &Query::default(), 2);
    assert!(frames == went_in, "{stats:?}");
    assert_eq!((stats.files, stats.files_foreign), (1, 1));
    assert!(stats.cut_off_bytes > 0 && !stats.notes.is_empty());
}

#[test]
fn a_compressed_file_that_was_left_open_is_read_as_far_as_it_goes() {
    let compression = Some(Compression { level: 1, threads: 1 });
    let settings = Settings { index: false, compression, ..Settings::default() };
    let mut rig = Rig::with(1, 1, settings);
    for at in 0..6000 {
        rig.push(0, 1000 + at, 0, 1000);
        if at % 1500 == 0 {
            rig.settle();
        }
    }
    rig.finish();
    let (paths, Rig { directories, recorder, frames: went_in, .. }) = (rig.paths(), rig);
    drop(recorder);
    let file = Catalog::list(&[directories[0].path()]).unwrap().files[0].path.clone();
    let bytes = fs::read(&file).unwrap();
    let open = directories[0].path().join("20991231T000000.000000000Z_x_0.pcapng.zst.open");
    fs::remove_file(&file).unwrap();
    let mut last = usize::MAX;
    for cut in [bytes.len() - 9, bytes.len() / 2, bytes.len() / 4, 9000] {
        // A page that was not written is zeros.
        let mut left = bytes[..cut].to_vec();
        left.resize(cut.next_multiple_of(4096) + 8192, 0);
        fs::write(&open, &left).unwrap();
        let (frames, stats) = extracted(&paths, &Query::default(), 2);
        assert!(frames.len() <= last && frames == went_in[..frames.len()], "{stats:?}");
        assert!(
            cut < 10_000 || frames.len() > 1000,
            "{} of a cut at {cut}: {stats:?}",
            frames.len()
        );
        last = frames.len();
    }
}

#[test]
fn pieces_of_other_times_are_not_read() {
    let mut rig = Rig::new(1, 1, true);
    for at in 0..20_000 {
        rig.push(0, at * 1_000_000, 0, 1000);
        if at % 1000 == 0 {
            rig.settle();
        }
    }
    rig.finish();
    let query = Query::new(5_000_000_000..=5_010_000_000, None, None);
    let (frames, stats) = extracted(&rig.paths(), &query, 2);
    assert_eq!(frames.len(), 11);
    assert!(stats.skipped_by_time.bytes > 15 << 20 && stats.read.bytes < 3 << 20, "{stats:?}");
}
