use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use weir_capture::replay::{Replay, ReplayOptions, Speed};
use weir_capture::{CaptureError, Direction, Pumped, Source};
use weir_frame::pcapng::{self, Interface, SectionInfo};
use weir_frame::record::{self, Flags, Meta};
use weir_ring::{Batch, Clock, Poll};

use super::common::{reader_of, run_to_end, setup};

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Folder {
        Folder(tempfile::tempdir().unwrap())
    }

    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

fn open(path: &Path) -> Result<Replay, CaptureError> {
    Replay::open(path, setup(16), ReplayOptions::default())
}

fn message(error: CaptureError) -> String {
    assert!(matches!(error, CaptureError::File { .. }), "{error}");
    error.to_string()
}

fn frame(number: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (number as usize * 31 + at) as u8).collect()
}

/// A classic pcap file with numbered frames, one for each millisecond. Every third frame is cut at 40 bytes.
fn classic(frames: u32, nanos: bool, big_endian: bool, link_type: u32) -> Vec<u8> {
    let word = |value: u32| if big_endian { value.to_be_bytes() } else { value.to_le_bytes() };
    let magic = if nanos { 0xa1b2_3c4d } else { 0xa1b2_c3d4 };
    let version: [u8; 4] = if big_endian { [0, 2, 0, 4] } else { [2, 0, 4, 0] };
    let mut file =
        [word(magic), version, word(0), word(0), word(262_144), word(link_type)].concat();
    for number in 0..frames {
        let data = frame(number, 60 + number as usize % 7);
        let kept = &data[..if number % 3 == 2 { 40 } else { data.len() }];
        let fraction = (number % 1000) * if nanos { 1_000_000 } else { 1000 };
        for value in [1_600_000_000 + number / 1000, fraction, kept.len() as u32, data.len() as u32]
        {
            file.extend(word(value));
        }
        file.extend(kept);
    }
    file
}

fn pcapng_file(interfaces: &[u16], frames: &[(Meta, Vec<u8>)]) -> Vec<u8> {
    let mut file = Vec::new();
    pcapng::write::section_header(&mut file, &SectionInfo::default());
    for &link_type in interfaces {
        pcapng::write::interface(&mut file, &Interface { link_type, ..Interface::default() });
    }
    for (meta, data) in frames {
        record::append(&mut file, meta, data);
    }
    file
}

#[test]
fn classic_pcap_of_every_kind_comes_frame_by_frame() {
    let folder = Folder::new();
    for (nanos, big_endian) in [(false, false), (false, true), (true, false), (true, true)] {
        let path = folder.file("trace.pcap", &classic(2500, nanos, big_endian, 1));
        let mut source = open(&path).unwrap();
        assert_eq!(source.rings()[0].identity().unwrap().clock, Clock::Foreign);
        let (seen, ledger, result) = run_to_end(&mut source);
        result.unwrap();
        assert_eq!((ledger.offered, seen.len()), (2500, 2500));
        for (number, seen) in (0u32..).zip(&seen) {
            let data = frame(number, 60 + number as usize % 7);
            let kept = if number % 3 == 2 { 40 } else { data.len() };
            assert_eq!(seen.frame, data[..kept], "{number} {nanos} {big_endian}");
            assert_eq!(seen.meta.wire_len, data.len() as u32);
            let at = 1_600_000_000_000_000_000 + u64::from(number) * 1_000_000;
            assert_eq!((seen.meta.ts_ns, seen.meta.interface_id), (at, 0));
        }
    }
}

#[test]
fn pcapng_keeps_flags_queue_and_times() {
    let folder = Folder::new();
    let frames: Vec<(Meta, Vec<u8>)> = (0..100u32)
        .map(|number| {
            let meta = Meta {
                interface_id: number % 2,
                ts_ns: 1_700_000_000_123_456_789 + u64::from(number),
                wire_len: 100 + number,
                flags: (number % 3 > 0).then_some(Flags(number % 3)),
                queue: (number % 5 == 0).then_some(number),
            };
            (meta, frame(number, 60 + number as usize))
        })
        .collect();
    let path = folder.file("trace.pcapng", &pcapng_file(&[1, 1], &frames));
    let mut source = open(&path).unwrap();
    let (seen, ..) = run_to_end(&mut source);
    assert_eq!(seen.len(), 100);
    for (seen, (meta, data)) in seen.iter().zip(&frames) {
        let want =
            Meta { interface_id: 0, wire_len: meta.wire_len.max(data.len() as u32), ..*meta };
        assert_eq!((&seen.meta, &seen.frame), (&want, data));
    }
    let notes = &source.info().notes;
    assert!(notes.iter().any(|note| note.contains("2 interfaces")), "{notes:?}");

    for (direction, way) in [(Direction::In, 1), (Direction::Out, 2)] {
        let mut setup = setup(16);
        setup.feeds[0].direction = direction;
        let mut source = Replay::open(&path, setup, ReplayOptions::default()).unwrap();
        let (seen, ledger, _) = run_to_end(&mut source);
        // Frames of the other direction are not offered, as at a hook that does not get them.
        assert_eq!((ledger.offered, ledger.filtered), (seen.len() as u64, 0));
        let note = format!("{} frames of the file were not offered", 100 - seen.len());
        let notes = &source.info().notes;
        assert!(notes.iter().any(|said| said.starts_with(&note)), "{notes:?}");
        assert!(seen.len() == 33 && seen.iter().all(|s| s.meta.flags == Some(Flags(way))));
    }
}

#[test]
fn snaplen_and_link_type_reach_the_ring() {
    let folder = Folder::new();
    let path = folder.file("raw.pcap", &classic(10, true, false, 101));
    for snaplen in [1, 14, 45] {
        let mut setup = setup(16);
        setup.feeds[0].snaplen = snaplen;
        let mut source = Replay::open(&path, setup, ReplayOptions::default()).unwrap();
        assert_eq!(source.rings()[0].identity().unwrap().link_type, 101);
        let (seen, ..) = run_to_end(&mut source);
        assert_eq!(seen[0].frame.len() as u32, snaplen);
        assert_eq!(seen[0].meta.wire_len, 60);
    }
}

#[test]
fn a_file_cut_off_gives_its_whole_frames_and_then_says_so() {
    let folder = Folder::new();
    for file in [classic(20, true, false, 1), {
        let frames: Vec<_> = (0..20)
            .map(|n| (Meta { wire_len: 64, ts_ns: 1, ..Meta::default() }, frame(n, 64)))
            .collect();
        pcapng_file(&[1], &frames)
    }] {
        let path = folder.file("cut.pcap", &file[..file.len() - 5]);
        let (seen, ledger, result) = run_to_end(&mut open(&path).unwrap());
        let text = message(result.unwrap_err());
        assert!(text.contains("cut.pcap") && text.contains("cut off"), "{text}");
        assert_eq!((seen.len(), ledger.offered), (19, 19));
    }
}

#[test]
fn a_link_type_that_changes_is_an_error_with_a_way_out() {
    let folder = Folder::new();
    let meta = |interface_id| Meta { interface_id, ts_ns: 1, wire_len: 60, ..Meta::default() };
    let frames = [(meta(0), frame(0, 60)), (meta(0), frame(1, 60)), (meta(1), frame(2, 60))];
    let path = folder.file("two.pcapng", &pcapng_file(&[1, 101], &frames));
    let (seen, ledger, result) = run_to_end(&mut open(&path).unwrap());
    let text = message(result.unwrap_err());
    assert!(text.contains("from 1 to 101") && text.contains("tshark"), "{text}");
    assert_eq!((seen.len(), ledger.offered), (2, 2));
}

#[test]
fn what_is_no_capture_file_says_what_to_do() {
    let folder = Folder::new();
    let refused = |path: &Path| message(open(path).err().expect("refused"));
    assert!(refused(Path::new("/no/such/file")).contains("cannot be opened"));
    assert!(refused(folder.0.path()).contains("name a file"));
    assert!(refused(&folder.file("empty", b"")).contains("empty"));
    assert!(refused(&folder.file("text", b"once upon a time")).contains("editcap"));
    assert!(refused(&folder.file("xz", b"\xfd7zXZ\0\0\0")).contains("unpack"));
    let path = folder.file("good.pcap", &classic(1, true, false, 1));
    for options in [
        ReplayOptions { loops: 0, ..ReplayOptions::default() },
        ReplayOptions { speed: Speed::Times(0.0), ..ReplayOptions::default() },
        ReplayOptions { speed: Speed::Times(f64::NAN), ..ReplayOptions::default() },
    ] {
        let error = Replay::open(&path, setup(16), options).err().expect("refused");
        assert!(matches!(error, CaptureError::Options(_)), "{error}");
    }
}

#[test]
fn hostile_files_never_panic_and_the_ledger_closes() {
    let folder = Folder::new();
    let meta = Meta { ts_ns: 1, wire_len: 60, ..Meta::default() };
    let frames: Vec<_> = (0..8).map(|n| (meta, frame(n, 60))).collect();
    let good = [pcapng_file(&[1, 1], &frames), classic(8, false, true, 1)];
    let mut seed = 99u32;
    let mut ran = 0;
    for round in 0..600 {
        let mut bad = good[round % 2].clone();
        for _ in 0..1 + round % 4 {
            seed ^= seed << 13;
            seed ^= seed >> 17;
            seed ^= seed << 5;
            let at = (seed as usize >> 8) % bad.len();
            bad[at] = seed as u8;
        }
        let path = folder.file("bad", &bad);
        let mut setup = setup(4);
        setup.feeds[0].snaplen = 64;
        if let Ok(mut source) = Replay::open(&path, setup, ReplayOptions::default()) {
            let _ = run_to_end(&mut source);
            ran += 1;
        }
    }
    assert!(ran > 300, "{ran} of 600 files were begun");
}

#[test]
fn loops_repeat_the_file() {
    let folder = Folder::new();
    let path = folder.file("trace.pcap", &classic(100, true, false, 1));
    let options = ReplayOptions { loops: 3, ..ReplayOptions::default() };
    let mut source = Replay::open(&path, setup(16), options).unwrap();
    let (seen, ledger, _) = run_to_end(&mut source);
    assert_eq!((ledger.offered, seen.len()), (300, 300));
    assert_eq!(seen[0], seen[200]);
    let empty = folder.file("empty.pcap", &classic(0, true, false, 1));
    let options = ReplayOptions { loops: 50, ..ReplayOptions::default() };
    let (seen, ..) = run_to_end(&mut Replay::open(&empty, setup(16), options).unwrap());
    assert!(seen.is_empty());
}

#[test]
fn the_stamps_set_the_pace() {
    let folder = Folder::new();
    // 301 frames at intervals of a millisecond take 300 ms, or half of that at twice the speed.
    let path = folder.file("trace.pcap", &classic(301, true, false, 1));
    for (times, least) in [(1.0, 300), (2.0, 150)] {
        let options = ReplayOptions { speed: Speed::Times(times), ..ReplayOptions::default() };
        let mut source = Replay::open(&path, setup(16), options).unwrap();
        let begin = Instant::now();
        let (seen, ..) = run_to_end(&mut source);
        let took = begin.elapsed();
        assert_eq!(seen.len(), 301);
        assert_eq!(seen[300].meta.ts_ns - seen[0].meta.ts_ns, 300_000_000);
        let least = Duration::from_millis(least);
        assert!(took >= least && took < least + Duration::from_secs(1), "{took:?} at {times}");
    }
}

#[test]
fn a_stop_between_two_frames_leaves_the_second_out() {
    let folder = Folder::new();
    let meta = |ts_ns| Meta { ts_ns, wire_len: 60, ..Meta::default() };
    let frames = [(meta(1), frame(0, 60)), (meta(u64::MAX - 1), frame(1, 60))];
    let path = folder.file("far.pcapng", &pcapng_file(&[1], &frames));
    let options = ReplayOptions { speed: Speed::Times(0.001), ..ReplayOptions::default() };
    let mut source = Replay::open(&path, setup(16), options).unwrap();
    source.start().unwrap();
    let begin = Instant::now();
    for _ in 0..3 {
        assert_eq!(source.pump(Duration::from_millis(10)).unwrap(), Pumped::More);
    }
    assert!(begin.elapsed() < Duration::from_secs(2));
    let ledger = source.finish().unwrap();
    assert_eq!((ledger.offered, ledger.captured), (1, 1));
}

#[test]
fn a_file_waits_for_its_reader() {
    const FRAMES: u32 = 120_000; // about 10 MiB of records through a ring of 4 MiB
    let folder = Folder::new();
    let path = folder.file("long.pcap", &classic(FRAMES, true, false, 1));
    let options = ReplayOptions { waits: true, ..ReplayOptions::default() };
    let mut source = Replay::open(&path, setup(4), options).unwrap();
    let pace = source.control().feeds()[0].pace.clone().expect("it waits");
    let mut reader = reader_of(&source);
    let place = pace.join(reader.ordinal());
    source.start().unwrap();
    // While the reader makes no progress, the writer stops, but `pump` still returns.
    for _ in 0..3 {
        assert_eq!(source.pump(Duration::from_millis(30)).unwrap(), Pumped::More);
    }
    let stuck_at = source.ledger().unwrap().captured;
    assert!(stuck_at < 50_000, "{stuck_at}");
    let read = std::thread::spawn(move || {
        let (mut batch, mut frames) = (Batch::new(), 0);
        loop {
            match reader.poll(&mut batch).unwrap() {
                Poll::Frames(count) => frames += u64::from(count),
                Poll::Empty => std::thread::yield_now(),
                Poll::Closed => return (frames, reader.lapped()),
                Poll::Lapped(_) => {}
            }
            place.reached(reader.ordinal());
        }
    });
    while source.pump(Duration::from_millis(20)).unwrap() == Pumped::More {}
    assert!(source.finish().unwrap().closes());
    assert_eq!(read.join().unwrap(), (u64::from(FRAMES), 0));
}
