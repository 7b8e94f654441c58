//! Rebuilt indexes equal those that the recorder made, and files that a killed recorder left get their final names.

#[path = "common/recording.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod recording;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use weir_store::catalog::Catalog;
use weir_store::extract::Query;
use weir_store::index;
use weir_store::reindex::{Event, Fault, Options, Report, reindex};

use recording::{Frame, Rig, extracted, index_files};

fn run(paths: &[PathBuf], all: bool, check: bool) -> Report {
    let catalog = Catalog::list(paths).unwrap();
    reindex(&catalog, &Options { threads: 2, all, check }, &|| false)
}

fn faults(report: &Report) -> Vec<Fault> {
    let fault = |event: &Event| match event {
        Event::Indexed { fault, .. } => *fault,
        other => panic!("{other}"),
    };
    report.events.iter().map(fault).collect()
}

/// A recording of two rings in several files; some of the blocks are full and some are not.
fn recorded() -> Rig {
    fill(Rig::new(2, 1, true))
}

fn fill(mut rig: Rig) -> Rig {
    for at in 0..14_000 {
        rig.push(at as usize % 2, 1000 + at, (at % 2) as u32, 900 + at as usize % 300);
        if at % 1300 == 0 {
            rig.settle();
        }
    }
    rig.finish();
    rig
}

fn all(rig: &Rig) -> Vec<Frame> {
    extracted(&rig.paths(), &Query::default(), 2).0
}

#[test]
fn a_file_that_ends_in_the_middle_is_told_with_the_place() {
    let rig = recorded();
    let index = index_files(rig.directories[0].path()).remove(0);
    let file = index.with_extension("");
    let length = fs::metadata(&file).unwrap().len();
    fs::File::options().write(true).open(&file).unwrap().set_len(length - 5000).unwrap();
    fs::remove_file(&index).unwrap();
    let report = run(&rig.paths(), false, false);
    let found = report.events.iter().find_map(|event| match event {
        Event::Indexed { path, frames, damaged_at, .. } if *path == file => {
            Some((*frames, *damaged_at))
        }
        _ => None,
    });
    let (frames, damaged_at) = found.expect("it has no index");
    assert!(frames > 0 && damaged_at.is_some_and(|at| at < length - 5000), "{damaged_at:?}");
}

#[test]
fn an_index_made_anew_is_that_of_the_recorder() {
    for rig in [recorded(), fill(Rig::compressed(2))] {
        indexes_made_anew_are_those_of(&rig);
    }
}

fn indexes_made_anew_are_those_of(rig: &Rig) {
    let paths = index_files(rig.directories[0].path());
    let before: Vec<_> = paths.iter().map(|path| index::read(path).unwrap()).collect();
    assert!(before.len() >= 2 && before.iter().any(|index| index.pieces.len() > 4));
    assert_eq!(run(&rig.paths(), false, true).events, []);
    assert_eq!(run(&rig.paths(), false, false).events, []);
    let report = run(&rig.paths(), true, false);
    assert!(faults(&report).iter().all(|fault| *fault == Fault::Fits), "{report:?}");
    assert_eq!((report.frames, report.files), (14_000, paths.len() as u64));
    for (path, before) in paths.iter().zip(&before) {
        assert_eq!(index::read(path).unwrap(), *before, "{path:?}");
    }
    assert!(all(rig) == rig.frames);
}

#[test]
fn what_is_wrong_with_an_index_is_found_and_mended_once() {
    let rig = recorded();
    let paths = index_files(rig.directories[0].path());
    let whole: Vec<_> = paths.iter().map(|path| fs::read(path).unwrap()).collect();
    let cut = |bytes: &[u8]| {
        // Leaves out an entry, which begins with its length.
        let at = 16 + u32::from_le_bytes(bytes[12..16].try_into().unwrap()) as usize + 4;
        let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize + 8;
        (bytes[..at].to_vec(), [&bytes[..at], &bytes[at + length..]].concat())
    };
    let mut damaged = whole[0].clone();
    damaged[whole[0].len() / 2] ^= 0x40;
    for (bytes, expected) in [
        (None, Fault::Missing),
        (Some(damaged), Fault::Damaged),
        (Some(b"no index".to_vec()), Fault::Damaged),
        (Some(whole[0][..whole[0].len() - 3].to_vec()), Fault::Damaged),
        (Some(whole[1].clone()), Fault::OfAnotherFile),
        (Some(cut(&whole[0]).0), Fault::Short),
        (Some(cut(&whole[0]).1), Fault::Short),
    ] {
        fs::remove_file(&paths[0]).unwrap();
        if let Some(bytes) = &bytes {
            fs::write(&paths[0], bytes).unwrap();
        }
        assert_eq!(faults(&run(&rig.paths(), false, true)), [expected]);
        assert_eq!(fs::read(&paths[0]).ok(), bytes, "--check changes nothing");
        assert_eq!(faults(&run(&rig.paths(), false, false)), [expected]);
        assert!(fs::read(&paths[0]).unwrap() == whole[0]);
        assert_eq!(run(&rig.paths(), false, true).events, []);
    }
    // The file is shorter than its index says.
    let file = rig.directories[0].path().join(paths[0].file_stem().unwrap());
    let length = file.metadata().unwrap().len();
    fs::OpenOptions::new().write(true).open(&file).unwrap().set_len(length - 5000).unwrap();
    assert_eq!(faults(&run(&rig.paths(), false, false)), [Fault::Contradicts]);
    assert_eq!(run(&rig.paths(), false, true).events, []);
    assert!(extracted(&rig.paths(), &Query::default(), 1).1.indexes_wrong == 0);
}

/// Turns the first file into one that a killed recorder left, with the bytes that may be at its end. Returns its path
/// with the ending `.open`, and its final path.
fn killed(rig: &Rig) -> (PathBuf, PathBuf) {
    let catalog = Catalog::list(&rig.paths()).unwrap();
    let complete = catalog.files[0].path.clone();
    let mut bytes = fs::read(&complete).unwrap();
    bytes.extend_from_slice(&[0; 4096]);
    bytes.extend_from_slice(&[0xa5; 9000]);
    let mut open = complete.clone().into_os_string();
    open.push(".open");
    fs::remove_file(&complete).unwrap();
    fs::write(&open, bytes).unwrap();
    (open.into(), complete)
}

#[test]
fn a_file_of_a_killed_recorder_is_cut_and_named_and_an_empty_one_deleted() {
    let mut rig = recorded();
    let (open, complete) = killed(&rig);
    let directory = rig.directories[0].path().to_owned();
    let empty = directory.join("20991231T000000.000000000Z_x_0.pcapng.open");
    fs::write(&empty, [0; 8192]).unwrap();
    let foreign = directory.join("20991231T000001.000000000Z_x_0.pcapng.open");
    fs::write(&foreign, b"somebody's only copy of something").unwrap();
    let others = directory.join("mine.pcapng.open");
    fs::write(&others, b"").unwrap();
    // Its recorder still runs.
    let report = run(&rig.paths(), false, false);
    assert!(matches!(report.events[..], [Event::LeftAlone { .. }]), "{report:?}");
    let elsewhere = Rig::new(1, 1, true);
    drop(std::mem::replace(&mut rig.recorder, elsewhere.recorder));
    let before = all(&rig);
    for check in [true, false] {
        let report = run(&rig.paths(), false, check);
        let is_completed = |event: &Event| matches!(event, Event::Completed { path, cut_bytes } if *path == complete && *cut_bytes > 13_000);
        assert!(report.events.iter().any(is_completed), "{report:?}");
        assert!(report.events.contains(&Event::Deleted { path: empty.clone() }), "{report:?}");
        let alone =
            report.events.iter().filter(|event| matches!(event, Event::LeftAlone { .. })).count();
        assert_eq!((alone, open.exists(), empty.exists()), (2, check, check), "{report:?}");
    }
    assert!(foreign.exists() && others.exists() && !open.exists());
    let (frames, stats) = extracted(&rig.paths(), &Query::default(), 2);
    assert!(frames == before && frames == rig.frames, "{stats:?}");
    assert_eq!((stats.cut_off_bytes, stats.indexes_missing, stats.indexes_wrong), (0, 0, 0));
}

#[test]
fn neither_pipes_nor_links_are_opened_in_place_of_indexes_and_locks() {
    let rig = recorded();
    let paths = index_files(rig.directories[0].path());
    let outside = rig.directories[0].path().join("outside");
    fs::write(&outside, b"not to be touched").unwrap();
    let make_pipe = |path: &Path| {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let kind = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
    };
    fs::remove_file(&paths[0]).unwrap();
    make_pipe(&paths[0]);
    let kept = paths[1].with_extension("kept");
    fs::rename(&paths[1], &kept).unwrap();
    symlink(&kept, &paths[1]).unwrap();
    let mut new = paths[0].clone().into_os_string();
    new.push(".new");
    symlink(&outside, &new).unwrap();
    let (frames, stats) = extracted(&rig.paths(), &Query::default(), 2);
    assert!(frames == rig.frames);
    assert_eq!(stats.indexes_missing, 2);
    let report = run(&rig.paths(), false, false);
    assert!(report.events.iter().any(|event| matches!(event, Event::Failed { .. })), "{report:?}");
    assert_eq!(fs::read(&outside).unwrap(), b"not to be touched");
    fs::remove_file(&new).unwrap();
    assert_eq!(faults(&run(&rig.paths(), false, false)), [Fault::Damaged]);
    assert!(paths.iter().all(|path| path.symlink_metadata().unwrap().is_file()));
    // Nothing blocks on a pipe in place of the lock.
    let lock = rig.directories[0].path().join(".weir-recorder");
    fs::remove_file(&lock).unwrap();
    make_pipe(&lock);
    let _ = Catalog::list(&rig.paths()).unwrap();
}

#[test]
fn asked_to_stop_it_changes_nothing() {
    let rig = recorded();
    let catalog = Catalog::list(&rig.paths()).unwrap();
    let path = index_files(rig.directories[0].path()).remove(0);
    fs::remove_file(&path).unwrap();
    let asked = std::sync::atomic::AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 20;
    let report = reindex(&catalog, &Options { threads: 1, all: true, check: false }, &stop);
    assert!(report.is_stopped && !path.exists());
    assert_eq!(index_files(rig.directories[0].path()).len() + 1, catalog.files.len());
    let names = fs::read_dir(rig.directories[0].path()).unwrap();
    let new =
        names.filter(|entry| entry.as_ref().unwrap().path().extension() == Some("new".as_ref()));
    assert_eq!(new.count(), 0);
}

/// The length of a compressed file without its table.
fn without_table(bytes: &[u8]) -> usize {
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
    let entries = word(bytes.len() - 9);
    bytes.len() - 9 - 8 * entries - 8
}

#[test]
fn a_compressed_file_of_a_killed_recorder_gets_its_table() {
    let mut rig = fill(Rig::compressed(2));
    let elsewhere = Rig::new(1, 1, true);
    drop(std::mem::replace(&mut rig.recorder, elsewhere.recorder));
    let complete = Catalog::list(&rig.paths()).unwrap().files[0].path.clone();
    let open = PathBuf::from(format!("{}.open", complete.display()));
    let index = PathBuf::from(format!("{}.index", complete.display()));
    let (whole, whole_index) = (fs::read(&complete).unwrap(), fs::read(&index).unwrap());
    let plain = zstd::decode_all(&whole[..]).unwrap();
    // The table was not written, or partly written, or the recorder was killed before it renamed the file.
    let table_at = without_table(&whole);
    let zeros = [&whole[..table_at], &[0; 8192], &[0xa5; 9000]].concat();
    let torn = [&whole[..table_at], &whole[4096..5096]].concat();
    for (bytes, cut) in [(zeros, 17_192), (torn, 1000), (whole.clone(), 0)] {
        for has_index in [true, false] {
            fs::remove_file(&complete).unwrap();
            fs::remove_file(&index).unwrap();
            fs::write(&open, &bytes).unwrap();
            if has_index {
                fs::write(&index, &whole_index).unwrap();
            }
            let report = run(&rig.paths(), false, false);
            let completed = Event::Completed { path: complete.clone(), cut_bytes: cut };
            assert_eq!(report.events[0], completed, "{report:?}");
            assert_eq!(report.events.len(), 2 - usize::from(has_index), "{report:?}");
            let now = fs::read(&complete).unwrap();
            assert!(zstd::decode_all(&now[..]).unwrap() == plain);
            assert_eq!(now[now.len() - 4..], 0x8f92_eab1_u32.to_le_bytes());
            assert!(fs::read(&index).unwrap() == whole_index);
            assert_eq!(run(&rig.paths(), false, true).events, []);
            let (frames, stats) = extracted(&rig.paths(), &Query::default(), 2);
            assert!(frames == rig.frames, "{stats:?}");
            assert_eq!((stats.cut_off_bytes, stats.frames_damaged), (0, 0));
        }
    }
    // Files without frames: two were never written; the third has a damaged beginning and may contain frames, so it
    // stays.
    let empty = complete.with_file_name("20991231T000000.000000000Z_x_0.pcapng.zst.open");
    for (bytes, is_deleted) in
        [(vec![0; 8192], true), (Vec::new(), true), (whole[..20].to_vec(), false)]
    {
        fs::write(&empty, bytes).unwrap();
        let report = run(&rig.paths(), false, false);
        let expected = matches!(report.events[..], [Event::Deleted { .. }]);
        assert_eq!((expected, empty.exists()), (is_deleted, !is_deleted), "{report:?}");
    }
}

#[test]
fn frames_behind_damage_are_found_with_an_index_made_anew_as_before() {
    for rig in [recorded(), fill(Rig::compressed(2))] {
        let mut rig = rig;
        let elsewhere = Rig::new(1, 1, true);
        drop(std::mem::replace(&mut rig.recorder, elsewhere.recorder));
        let complete = Catalog::list(&rig.paths()).unwrap().files[0].path.clone();
        let index_path = PathBuf::from(format!("{}.index", complete.display()));
        let index = index::read(&index_path).unwrap();
        let with_frames: Vec<_> = index.pieces.iter().filter(|one| one.frames > 0).collect();
        assert!(with_frames.len() >= 3, "{}", with_frames.len());
        let mut bytes = fs::read(&complete).unwrap();
        let is_compressed = bytes[..4] == weir_store::compressed::FRAME_MAGIC;
        // Damage the length of a block, or a byte of a zstd frame. Each zstd frame begins at a page.
        let begins = |at: &usize| bytes[*at..].starts_with(&weir_store::compressed::FRAME_MAGIC);
        let frames: Vec<usize> = (0..bytes.len()).step_by(4096).filter(begins).collect();
        let at = match is_compressed {
            true => frames[frames.len() / 2] + 16,
            false => with_frames[1].at as usize + 4,
        };
        bytes[at] ^= 0xff;
        fs::write(&complete, &bytes).unwrap();
        let before = all(&rig);
        assert!(before.len() < rig.frames.len());
        let report = run(&rig.paths(), true, false);
        let fault = if is_compressed { Fault::Fits } else { Fault::Contradicts };
        assert_eq!(faults(&report)[0], fault, "{report:?}");
        assert!(all(&rig) == before);
        assert_eq!(run(&rig.paths(), false, true).events, []);
        // If the file was left by a killed recorder, it is not cut off at the damage, either.
        let open = PathBuf::from(format!("{}.open", complete.display()));
        fs::rename(&complete, &open).unwrap();
        let report = run(&rig.paths(), false, false);
        assert!(matches!(report.events[..], [Event::Completed { .. }]), "{report:?}");
        assert!(all(&rig) == before);
    }
}
