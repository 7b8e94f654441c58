//! Recorded files and indexes that anybody may have written: extraction reports what is wrong, ends, and takes no more
//! memory than it needs.

#[path = "common/recording.rs"]
#[allow(dead_code, reason = "each test uses its part")]
mod recording;

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use weir_frame::pcapng::{Interface, SectionInfo, write};
use weir_frame::record::Meta;
use weir_store::Names;
use weir_store::catalog::Catalog;
use weir_store::extract::{Note, Options, Query, extract};
use weir_store::index::{self, Piece, Writer};
use weir_store::limits::FILE_INTERFACES_MAX;

use recording::{Collect, Rig, extracted, index_files};

const NAME: &str = "20991231T000000.000000000Z_x_0.pcapng";

fn header(interfaces: usize) -> Vec<u8> {
    let mut file = Vec::new();
    write::section_header(&mut file, &SectionInfo::default());
    for _ in 0..interfaces {
        write::interface(&mut file, &Interface { link_type: 1, ..Interface::default() });
    }
    file
}

fn write_index(directory: &Path, pieces: &[Piece]) {
    let file = directory.join(NAME);
    let index = directory.join(format!("{NAME}.index"));
    let mut writer = Writer::create(&index, &file, 0o600).unwrap();
    pieces.iter().for_each(|piece| writer.append(piece).unwrap());
    writer.flush().unwrap();
}

#[test]
fn a_file_with_more_interfaces_than_a_ring_has_is_no_recorders() {
    let dir = tempfile::tempdir().unwrap();
    for (interfaces, foreign) in [(FILE_INTERFACES_MAX, 0), (FILE_INTERFACES_MAX + 1, 1)] {
        let mut file = header(interfaces);
        write::frame(&mut file, &Meta { ts_ns: 7, wire_len: 60, ..Meta::default() }, &[0; 60]);
        fs::write(dir.path().join(NAME), &file).unwrap();
        let (_, stats) = extracted(&[dir.path().into()], &Query::default(), 1);
        assert_eq!((stats.files_foreign, stats.frames), (foreign, 1 - foreign), "{stats:?}");
    }
}

#[test]
fn frames_of_interfaces_that_are_nowhere_described_cost_one_look_through_the_file() {
    // With a search for each frame, this would take minutes.
    const FRAMES: u32 = 50_000;
    let dir = tempfile::tempdir().unwrap();
    let mut file = header(1);
    let headers = file.len() as u32;
    for at in 0..FRAMES {
        let meta = Meta { ts_ns: at.into(), interface_id: 9, wire_len: 60, ..Meta::default() };
        write::frame(&mut file, &meta, &[0; 60]);
    }
    fs::write(dir.path().join(NAME), &file).unwrap();
    let bytes = file.len() as u32 - headers;
    let frames =
        Piece { frames: FRAMES, last_ns: 1 << 40, ..Piece::headers(headers.into(), bytes) };
    write_index(dir.path(), &[Piece::headers(0, headers), frames]);
    let (_, stats) = extracted(&[dir.path().into()], &Query::default(), 1);
    assert_eq!((stats.frames_damaged, stats.frames), (FRAMES.into(), 0));
    assert_eq!(stats.notes, []);
}

#[test]
fn an_index_that_tells_of_more_frames_than_there_are_is_noticed() {
    let mut rig = Rig::new(1, 1, true);
    (0..2000).for_each(|at| rig.push(0, 1000 + at, 0, 500));
    rig.finish();
    let path = index_files(rig.directories[0].path()).remove(0);
    let index = index::read(&path).unwrap();
    for (more, damaged) in [(3, 3), (-3, 0), (0, 0)] {
        let mut writer = Writer::create(&path, &index.file_name, 0o600).unwrap();
        for piece in &index.pieces {
            let frames = match piece.frames {
                0 => 0,
                frames => frames.checked_add_signed(more).unwrap(),
            };
            writer.append(&Piece { frames, ..piece.clone() }).unwrap();
        }
        writer.flush().unwrap();
        let (frames, stats) = extracted(&rig.paths(), &Query::default(), 2);
        let pieces = index.pieces.iter().filter(|piece| piece.frames > 0).count() as u64;
        assert!(frames == rig.frames);
        assert_eq!(stats.frames_damaged, damaged * pieces);
        let is_said = |note: &Note| matches!(note, Note::Contradicted(..));
        let said = stats.notes.iter().filter(|note| is_said(note)).count() as u64;
        assert_eq!(said, if more == 0 { 0 } else { pieces }, "{stats:?}");
    }
}

#[test]
fn so_many_frames_as_were_asked_for_come_out_and_no_more() {
    let mut rig = Rig::new(3, 1, true);
    (0..3000).for_each(|at| rig.push(at as usize % 3, 1000 + at / 2, 0, 500));
    rig.finish();
    let catalog = Catalog::list(&rig.paths()).unwrap();
    for frames_max in [0, 1, 2, 1000, 2999, 3000, 3001] {
        let mut sink = Collect::default();
        let options = Options { threads: 2, frames_max, names: Names::default() };
        let (stats, result) = extract(&catalog, &Query::default(), &options, &mut sink, &|| false);
        result.unwrap();
        let expected = frames_max.min(3000);
        assert_eq!((stats.frames, sink.frames.len() as u64), (expected, expected));
    }
}

#[test]
fn it_ends_when_asked_to_while_it_looks_for_what_is_wanted_and_while_it_reads() {
    let mut rig = Rig::new(1, 1, true);
    (0..4000).for_each(|at| rig.push(0, 1000 + at, 0, 500));
    rig.finish();
    let catalog = Catalog::list(&rig.paths()).unwrap();
    let run = |looks: u64| {
        let asked = AtomicU64::new(0);
        let stop = || asked.fetch_add(1, Ordering::Relaxed) >= looks;
        let mut sink = Collect::default();
        let options = Options { threads: 1, frames_max: u64::MAX, names: Names::default() };
        extract(&catalog, &Query::default(), &options, &mut sink, &stop).0
    };
    // Extraction is stopped while it selects pieces, or in the first piece that it reads.
    let stats = run(15);
    assert!(stats.frames == 0 && stats.frames_read < 4000, "{stats:?}");
    index_files(rig.directories[0].path()).iter().for_each(|path| fs::remove_file(path).unwrap());
    let stats = run(1000);
    assert!((900..1000).contains(&stats.frames_read), "{stats:?}");
}
