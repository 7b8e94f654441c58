//! The wall clock jumps between files, and between runs in the same directory. Decision 0049.

use std::cell::Cell;

use super::*;
use crate::recorder::volume::begin_of_name;

/// 2026-11-26, in nanoseconds since the Unix epoch.
const BEGIN_NS: u64 = 1_795_685_239_000_000_000;
const HOUR: i64 = 3_600_000_000_000;
const DAY: i64 = 24 * HOUR;

thread_local! {
    /// The wall clock of a test. It stands still until it is set.
    static NOW_NS: Cell<u64> = const { Cell::new(BEGIN_NS) };
}

fn after(offset_ns: i64) -> u64 {
    BEGIN_NS.checked_add_signed(offset_ns).unwrap()
}

fn set_clock(offset_ns: i64) {
    NOW_NS.set(after(offset_ns));
}

fn with_clock(settings: &mut Settings) {
    settings.now = || NOW_NS.get();
    settings.file_bytes = 5 << 20;
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_string_lossy().into_owned()
}

#[test]
fn names_of_a_run_are_in_the_order_of_its_files_whatever_the_clock_does() {
    let mut rig = Rig::new(8, with_clock);
    for offset_ns in [0, -HOUR, DAY, -DAY, HOUR, HOUR + 1] {
        set_clock(offset_ns);
        for _ in 0..6 {
            rig.push_block();
            rig.run();
        }
    }
    rig.finish();
    let files = rig.files();
    assert!(files.len() >= 7, "{files:?}");
    // `times` reads the files in the order of their names.
    assert_eq!(rig.times(), (0..rig.pushed).collect::<Vec<_>>());
    assert!(name_of(&files[0]).starts_with(&begin_of_name(BEGIN_NS)), "{files:?}");
    let after_jump = begin_of_name(after(DAY));
    let second = after_jump.split_once('.').unwrap().0;
    assert!(name_of(files.last().unwrap()).starts_with(second), "{files:?}");
    assert!(files.iter().any(|path| name_of(path).starts_with(&after_jump)), "{files:?}");
}

#[test]
fn a_quota_deletes_the_oldest_files_of_earlier_runs_first_whatever_the_clock_did() {
    let mut directory = tempfile::tempdir().unwrap();
    let mut pushed = 0;
    let mut deleted_files = 0;
    for offset_ns in [0, -HOUR, DAY, 0, -HOUR, -DAY, 2 * DAY] {
        set_clock(offset_ns);
        let mut rig = Rig::on(Fake::new(), directory, 8, |settings| {
            with_clock(settings);
            settings.quota = Some(Quota::Bytes(24 << 20));
        });
        rig.pushed = pushed;
        for _ in 0..7 {
            rig.push_block();
            rig.run();
        }
        rig.finish();
        // The newest frames are left, and they are in the order of the names.
        let times = rig.times();
        let oldest = rig.pushed - times.len() as u64;
        assert_eq!(times, (oldest..rig.pushed).collect::<Vec<_>>());
        assert!(times.len() >= 7000 && (oldest > 0 || rig.pushed <= 21_000), "{}", times.len());
        deleted_files += rig.recorder.report().volumes[0].deleted_files;
        Rig { directory, pushed, .. } = rig;
    }
    assert!(deleted_files >= 5, "{deleted_files}");
    let begin = begin_of_name(after(2 * DAY));
    assert!(files(directory.path()).iter().any(|path| name_of(path).starts_with(&begin)));
}

#[test]
fn names_that_are_later_than_the_clock_are_told() {
    let mut rig = Rig::new(8, with_clock);
    assert!(rig.recorder.notes().is_empty(), "{:?}", rig.recorder.notes());
    rig.push_block();
    rig.finish();
    let Rig { directory, recorder, .. } = rig;
    drop(recorder);
    let mut settings =
        Settings { directories: vec![directory.path().to_owned()], ..Settings::default() };
    with_clock(&mut settings);
    for (offset_ns, is_told) in [(-HOUR, true), (0, false), (HOUR, false)] {
        set_clock(offset_ns);
        let notes = Recorder::new(settings.clone(), Fake::new().0).unwrap().notes();
        let name = begin_of_name(BEGIN_NS);
        assert_eq!(notes.iter().any(|note| note.contains(&name)), is_told, "{notes:?}");
    }
}

#[test]
fn a_name_at_the_end_of_time_stops_no_recorder() {
    for name in ["22620411T234716.854775807Z_x_0.pcapng", "99991231T235959.999999999Z_x_0.pcapng"] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join(name), b"").unwrap();
        let mut rig = Rig::on(Fake::new(), directory, 8, with_clock);
        for _ in 0..12 {
            rig.push_block();
            rig.run();
        }
        rig.finish();
        let mut files = rig.files();
        assert_eq!(name_of(&files.pop().unwrap()), name);
        let times: Vec<u64> = files.iter().flat_map(|path| times(path)).collect();
        assert!(files.len() >= 3 && times == (0..rig.pushed).collect::<Vec<_>>(), "{files:?}");
        assert!(name_of(&files[0]).starts_with(&begin_of_name(BEGIN_NS)), "{files:?}");
    }
}

#[test]
fn a_file_ends_when_its_time_is_over_although_the_clock_went_back() {
    let time = Duration::from_millis(20);
    let mut rig = Rig::new(8, |settings| {
        with_clock(settings);
        settings.file_time = Some(time);
    });
    rig.push_block();
    rig.run();
    set_clock(-HOUR);
    std::thread::sleep(time);
    rig.recorder.looked -= FLUSH_EVERY;
    rig.run();
    rig.push_block();
    rig.finish();
    let frames: Vec<usize> = rig.files().iter().map(|path| times(path).len()).collect();
    assert_eq!(frames, [1000, 1000]);
}

#[test]
fn a_clock_that_went_forward_ends_no_file() {
    let mut rig = Rig::new(8, |settings| {
        with_clock(settings);
        settings.file_time = Some(Duration::from_secs(3600));
    });
    for days in 0..4 {
        set_clock(days * DAY);
        rig.push_block();
        rig.recorder.looked -= FLUSH_EVERY;
        rig.run();
    }
    rig.finish();
    let frames: Vec<usize> = rig.files().iter().map(|path| times(path).len()).collect();
    assert_eq!(frames, [4000]);
}
