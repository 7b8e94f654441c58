//! A recorder in a directory into which others have put links, pipes and directories with names of recorded files.

use std::os::unix::fs::symlink;

use super::*;
use crate::catalog::{Catalog, LOCK_NAME, is_recording};
use crate::recorder::volume::begin_of_name;

/// The wall clock of these tests, which stands still, in nanoseconds since the Unix epoch.
const NOW_NS: u64 = 1_795_685_239_000_000_000;
const OUTSIDE: &[u8] = b"not to be touched";

fn make_pipe(path: &Path) {
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from_raw_mode(0o600));
    rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
}

/// The file types at these paths (link, pipe, directory), without following links.
fn kinds(paths: &[PathBuf]) -> Vec<fs::FileType> {
    paths.iter().map(|path| path.symlink_metadata().unwrap().file_type()).collect()
}

fn complete_path(directory: &Path, time_ns: u64) -> PathBuf {
    directory.join(format!("{}_eth0_0.pcapng", begin_of_name(time_ns)))
}

/// The recorded files. Pipes must not be opened.
fn regular_files(directory: &Path) -> Vec<PathBuf> {
    let mut files = files(directory);
    files.retain(|path| path.symlink_metadata().unwrap().is_file());
    files
}

#[test]
fn links_pipes_and_directories_with_names_of_files_are_left_alone() {
    let elsewhere = tempfile::tempdir().unwrap();
    let (outside, nowhere) = (elsewhere.path().join("outside"), elsewhere.path().join("nowhere"));
    fs::write(&outside, OUTSIDE).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let name = |time_ns: u64, ending: &str| {
        let mut path = complete_path(directory.path(), time_ns).into_os_string();
        path.push(ending);
        PathBuf::from(path)
    };
    let mut traps = Vec::new();
    // Names older than all other files, and the names that the first new files would get.
    for base_ns in [NOW_NS - 1_000_000_000, NOW_NS] {
        let all =
            [(0, ""), (1, ".open"), (2, ".index"), (3, ""), (4, ".open"), (5, ".index"), (6, "")];
        let all = all.map(|(after_ns, ending)| name(base_ns + after_ns, ending));
        symlink(&nowhere, &all[0]).unwrap();
        symlink(&outside, &all[1]).unwrap();
        symlink(&outside, &all[2]).unwrap();
        make_pipe(&all[3]);
        make_pipe(&all[4]);
        symlink(&nowhere, &all[5]).unwrap();
        fs::create_dir(&all[6]).unwrap();
        fs::write(all[6].join("inside"), OUTSIDE).unwrap();
        traps.extend(all);
    }
    // A file of an earlier run, which the quota deletes, with a link in place of its index.
    let old = name(NOW_NS - 1, "");
    fs::write(&old, vec![0; 4 << 20]).unwrap();
    let old_index = name(NOW_NS - 1, ".index");
    symlink(&outside, &old_index).unwrap();
    let before = kinds(&traps);
    let mut rig = Rig::on(Fake::new(), directory, 8, |settings| {
        settings.now = || NOW_NS;
        settings.file_bytes = 5 << 20;
        settings.quota = Some(Quota::Bytes(24 << 20));
    });
    for _ in 0..30 {
        rig.push_block();
        rig.run();
    }
    rig.finish();
    assert_eq!(rig.recorder.kept().frames, rig.pushed);
    assert!(kinds(&traps) == before, "{traps:?}");
    assert!(!old.exists() && old_index.symlink_metadata().is_err());
    assert_eq!(fs::read(&outside).unwrap(), OUTSIDE);
    assert!(!nowhere.exists());
    assert!(traps.iter().filter(|trap| trap.is_dir()).all(|trap| trap.join("inside").exists()));
    // The recorder's own files are whole, and contain the newest frames.
    let own = regular_files(rig.directory.path());
    let times: Vec<u64> = own.iter().flat_map(|path| times(path)).collect();
    assert!(times.len() >= 14_000, "{}", times.len());
    assert_eq!(times, (rig.pushed - times.len() as u64..rig.pushed).collect::<Vec<_>>());
}

#[test]
fn an_index_is_written_neither_through_a_link_nor_into_a_pipe() {
    let directory = tempfile::tempdir().unwrap();
    let (outside, index) =
        (directory.path().join("outside"), directory.path().join("a.pcapng.index"));
    fs::write(&outside, OUTSIDE).unwrap();
    let file = directory.path().join("a.pcapng");
    let put: [&dyn Fn(); 2] = [&|| symlink(&outside, &index).unwrap(), &|| make_pipe(&index)];
    for put in put {
        put();
        let mut writer = crate::index::Writer::create(&index, &file, 0o600).unwrap();
        writer.flush().unwrap();
        assert!(index.symlink_metadata().unwrap().is_file());
        assert_eq!(fs::read(&outside).unwrap(), OUTSIDE);
        fs::remove_file(&index).unwrap();
    }
}

#[test]
fn a_lock_that_is_no_regular_file_is_refused_and_left_alone() {
    let elsewhere = tempfile::tempdir().unwrap();
    let (outside, nowhere) = (elsewhere.path().join("outside"), elsewhere.path().join("nowhere"));
    fs::write(&outside, OUTSIDE).unwrap();
    let put: [&dyn Fn(&Path); 4] = [
        &|lock| symlink(&nowhere, lock).unwrap(),
        &|lock| symlink(&outside, lock).unwrap(),
        &|lock| make_pipe(lock),
        &|lock| fs::create_dir(lock).unwrap(),
    ];
    for put in put {
        let directory = tempfile::tempdir().unwrap();
        let lock = directory.path().join(LOCK_NAME);
        put(&lock);
        let before = kinds(std::slice::from_ref(&lock));
        let settings =
            Settings { directories: vec![directory.path().to_owned()], ..Settings::default() };
        let Err(error) = Recorder::new(settings, Fake::new().0) else { panic!("{before:?}") };
        let source = std::error::Error::source(&error).expect("a reason").to_string();
        assert!(source.contains(LOCK_NAME) && source.contains("not a regular file"), "{source}");
        // Checks of the lock by others do not block, either.
        let _ = (is_recording(directory.path()), Catalog::list(&[directory.path()]).unwrap());
        assert!(kinds(std::slice::from_ref(&lock)) == before);
        assert!(fs::read(&outside).unwrap() == OUTSIDE && !nowhere.exists());
    }
    // Somebody reads from this pipe, so it can be opened.
    let directory = tempfile::tempdir().unwrap();
    let lock = directory.path().join(LOCK_NAME);
    make_pipe(&lock);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let _reader = rustix::fs::open(&lock, flags, rustix::fs::Mode::empty()).unwrap();
    let settings =
        Settings { directories: vec![directory.path().to_owned()], ..Settings::default() };
    assert!(matches!(Recorder::new(settings, Fake::new().0), Err(RecorderError::Directory { .. })));
}

#[test]
fn a_recorder_that_ends_leaves_no_lock() {
    let mut rig = Rig::new(8, |_| ());
    let lock = rig.directory.path().join(LOCK_NAME);
    assert!(lock.exists() && is_recording(rig.directory.path()));
    rig.finish();
    let Rig { directory, recorder, .. } = rig;
    drop(recorder);
    assert!(!lock.exists() && !is_recording(directory.path()));
    // A recorder that is killed leaves its lock, and the next one starts nevertheless.
    fs::write(&lock, b"").unwrap();
    assert!(!is_recording(directory.path()));
    let rig = Rig::on(Fake::new(), directory, 8, |_| ());
    assert!(is_recording(rig.directory.path()));
}
