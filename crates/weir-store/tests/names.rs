//! Names of addresses in recorded files are extracted, each once, and stay when an index or a file is repaired.

#[path = "common/recording.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod recording;

use std::fs;
use std::path::{Path, PathBuf};

use weir_consumer::Sink;
use weir_frame::pcapng::{AddressName, NRB_TYPE, names};
use weir_store::catalog::Catalog;
use weir_store::extract::{Options, Query, extract};
use weir_store::index;
use weir_store::limits::NAMES_MAX;
use weir_store::reindex::{self, Event, reindex};
use weir_store::{FileWriter, FilesByLinkType, Names, PcapFile};

use recording::{Collect, Rig, index_files};

fn name(number: u32, name: &str) -> AddressName {
    let address = match number % 2 {
        0 => std::net::Ipv4Addr::from_bits(number).into(),
        _ => std::net::Ipv6Addr::from_bits(number.into()).into(),
    };
    AddressName { address, name: name.into() }
}

/// The names of a file, in the order in which they stand there.
fn said(path: &Path) -> Vec<AddressName> {
    let (bytes, mut said) = (fs::read(path).unwrap(), Vec::new());
    let mut rest = &bytes[..];
    while let Some(head) = rest.first_chunk::<8>() {
        let length = u32::from_le_bytes(head[4..].try_into().unwrap()) as usize;
        if head[..4] == NRB_TYPE.to_le_bytes() {
            said.extend(names::read(&rest[..length]));
        }
        rest = &rest[length..];
    }
    said
}

fn options(threads: usize) -> Options {
    Options { threads, frames_max: u64::MAX, names: Names::default() }
}

/// Extracts to a file of one link type; returns the names in it.
fn extracted_names(paths: &[PathBuf], query: &Query, threads: usize) -> Vec<AddressName> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out.pcapng");
    let (catalog, options) = (Catalog::list(paths).unwrap(), options(threads));
    let sink = FilesByLinkType::create(&path, 0o600, |_| ()).unwrap();
    let mut sink = sink.with_names(&options.names);
    let (_, result) = extract(&catalog, query, &options, &mut sink, &|| false);
    result.unwrap();
    sink.finish(&[]).unwrap();
    said(&path)
}

/// Records two rings. Names become known during the recording, and the last one after all frames.
fn recorded(rig: Rig) -> Rig {
    let names = Names::default();
    let mut rig = rig.with_names(&names);
    names.learn([name(1, "web"), name(2, "db")]);
    for at in 0..14_000 {
        rig.push(at as usize % 2, 1000 + at, 0, 1000);
        if at % 1400 == 700 {
            names.learn([name(100 + at as u32, "job"), name(1, "web")]);
            rig.settle();
        }
    }
    rig.settle();
    names.learn([name(3, "late")]);
    rig.finish();
    rig
}

fn wanted() -> Vec<AddressName> {
    let jobs = (0..10).map(|job| name(800 + job * 1400, "job"));
    [name(1, "web"), name(2, "db")].into_iter().chain(jobs).chain([name(3, "late")]).collect()
}

#[track_caller]
fn has_all(rig: &Rig) {
    for threads in [1, 3] {
        let mut names = extracted_names(&rig.paths(), &Query::default(), threads);
        // The names from the files of both rings are mixed; the newest name comes after all others.
        assert_eq!(names.last(), Some(&name(3, "late")));
        let mut wanted = wanted();
        names.sort();
        wanted.sort();
        assert_eq!(names, wanted);
    }
}

#[test]
fn names_are_extracted_once_each_whatever_the_files() {
    for rig in [Rig::new(2, 1, true), Rig::new(2, 2, false), Rig::compressed(2)] {
        let rig = recorded(rig);
        assert!(Catalog::list(&rig.paths()).unwrap().files.len() >= 2);
        has_all(&rig);
    }
}

#[test]
fn of_files_without_frames_of_that_time_no_names_are_told() {
    let mut rig = Rig::new(1, 1, true);
    let names = Names::default();
    names.learn([name(1, "old")]);
    rig = rig.with_names(&names);
    (0..3000).for_each(|at| rig.push(0, 1000 + at, 0, 1000));
    rig.finish();
    let later = Query::new(50_000..=60_000, None, None);
    assert_eq!(extracted_names(&rig.paths(), &later, 1), []);
    let then = Query::new(1500..=1500, None, None);
    assert_eq!(extracted_names(&rig.paths(), &then, 1), [name(1, "old")]);
}

#[test]
fn pcap_has_no_names_and_a_pipe_has_them_once() {
    let rig = recorded(Rig::new(2, 1, true));
    let catalog = Catalog::list(&rig.paths()).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("out");
    let file = || fs::File::create(&path).unwrap();
    let own = options(2);
    let mut pipe = FileWriter::pipe(file(), "out").with_names(&own.names);
    extract(&catalog, &Query::default(), &own, &mut pipe, &|| false).1.unwrap();
    Sink::finish(&mut pipe, &[]).unwrap();
    assert_eq!(said(&path).len(), wanted().len());
    let mut pcap = PcapFile::new(file(), "out");
    extract(&catalog, &Query::default(), &options(2), &mut pcap, &|| false).1.unwrap();
    pcap.finish(&[]).unwrap();
    let bytes = fs::read(&path).unwrap();
    assert!(!bytes.windows(4).any(|part| part == b"late"));
    assert_eq!(bytes.len(), 24 + 14_000 * 1016);
}

#[test]
fn an_index_made_anew_tells_of_names_and_what_a_killed_recorder_left_keeps_them() {
    for rig in [Rig::new(2, 1, true), Rig::compressed(2)] {
        let rig = recorded(rig);
        let directory = rig.directories[0].path().to_owned();
        let before: Vec<_> =
            index_files(&directory).iter().map(|path| index::read(path).unwrap()).collect();
        let all = reindex::Options { threads: 2, all: true, check: false };
        let report = reindex(&Catalog::list(&rig.paths()).unwrap(), &all, &|| false);
        assert!(report.events.iter().all(|event| matches!(event, Event::Indexed { .. })));
        let after: Vec<_> =
            index_files(&directory).iter().map(|path| index::read(path).unwrap()).collect();
        assert_eq!(before, after);
        has_all(&rig);
        // Files as a killed recorder leaves them, with unconfirmed bytes at the end. No recorder holds a lock here.
        let kept = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let files = Catalog::list(&rig.paths()).unwrap().files;
        for listed in &files {
            let name = listed.path.file_name().unwrap().to_str().unwrap();
            let mut bytes = fs::read(&listed.path).unwrap();
            bytes.extend_from_slice(&[0; 8192]);
            fs::write(kept.path().join(format!("{name}.open")), bytes).unwrap();
        }
        let catalog = Catalog::list(&[kept.path()]).unwrap();
        let report = reindex(&catalog, &reindex::Options { all: false, ..all }, &|| false);
        let completed = |event: &&Event| matches!(event, Event::Completed { .. });
        assert_eq!(report.events.iter().filter(completed).count(), files.len(), "{report:?}");
        let mut names = extracted_names(&[kept.path().to_owned()], &Query::default(), 2);
        let mut wanted = wanted();
        names.sort();
        wanted.sort();
        assert_eq!(names, wanted);
    }
}

#[test]
fn a_file_with_more_names_than_a_recorder_writes_costs_no_more_than_those() {
    use weir_frame::pcapng::{Interface, SectionInfo, write};
    use weir_frame::record::Meta;
    let directory = tempfile::tempdir().unwrap();
    let mut file = Vec::new();
    write::section_header(&mut file, &SectionInfo::default());
    write::interface(&mut file, &Interface { link_type: 1, ..Interface::default() });
    let many: Vec<AddressName> = (0..3 * NAMES_MAX as u32).map(|at| name(at, "n")).collect();
    write::names(&mut file, &many);
    write::frame(&mut file, &Meta { ts_ns: 7, wire_len: 60, ..Meta::default() }, &[0; 60]);
    fs::write(directory.path().join("20991231T000000.000000000Z_x_0.pcapng"), &file).unwrap();
    let catalog = Catalog::list(&[directory.path()]).unwrap();
    let options = options(1);
    let mut sink = Collect::default();
    let (stats, _) = extract(&catalog, &Query::default(), &options, &mut sink, &|| false);
    assert_eq!((stats.frames, stats.notes.len()), (1, 0));
    let names = extracted_names(&[directory.path().to_owned()], &Query::default(), 1);
    assert_eq!(names.len(), NAMES_MAX);
}
