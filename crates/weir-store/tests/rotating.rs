//! Rotated output files: together they have each frame once, in order, and none is too large.

use std::collections::BTreeMap;
use std::fs;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use proptest::prelude::*;
use tempfile::TempDir;
use weir_consumer::{ConsumerError, Count, Run, Sink};
use weir_frame::pcapng::{AddressName, Interface, Statistics};
use weir_frame::read::FrameReader;
use weir_frame::record::{Meta, Record, append};
use weir_store::{FilesByLinkType, Names, Rotation};

const SECOND: u64 = 1_000_000_000;
/// Time of the first frame, in seconds: not a multiple of 10 or 60.
const BEGIN: u64 = 1_700_000_003;

/// A step of a test.
#[derive(Clone, Debug)]
enum Event {
    /// An interface with a link type, and a description of so many bytes.
    Describe(u16, usize),
    /// Frames that come together. For each: interface (modulo their number), bytes, milliseconds since the frame
    /// before.
    Frames(Vec<(u8, usize, i64)>),
    /// A name of so many bytes becomes known.
    Name(usize),
    Flush,
}

fn event() -> impl Strategy<Value = Event> {
    let frame = (any::<u8>(), 0..1500_usize, -200..700_i64);
    prop_oneof![
        1 => (prop_oneof![Just(1), Just(101)], 0..400_usize).prop_map(|(l, n)| Event::Describe(l, n)),
        6 => prop::collection::vec(frame, 1..12).prop_map(Event::Frames),
        1 => (1..300_usize).prop_map(Event::Name),
        1 => Just(Event::Flush),
    ]
}

/// An output, and the frames that were written to it.
struct Written {
    folder: TempDir,
    files: FilesByLinkType,
    names: Names,
    link_types: Vec<u16>,
    clock_ns: u64,
    /// By link type: time and number of each frame.
    frames: BTreeMap<u16, Vec<(u64, u64)>>,
    count: u64,
}

impl Written {
    fn new(name: &str, rotation: Rotation) -> Written {
        let folder = tempfile::tempdir().unwrap();
        let names = Names::default();
        let path = folder.path().join(name);
        let files = FilesByLinkType::rotating(&path, 0o600, rotation, |_| ()).unwrap();
        let files = files.with_names(&names);
        let (clock_ns, frames) = (BEGIN * SECOND, BTreeMap::new());
        let (link_types, count) = (Vec::new(), 0);
        let mut written = Written { folder, files, names, link_types, clock_ns, frames, count };
        written.describe(1, 0);
        written
    }

    fn describe(&mut self, link_type: u16, bytes: usize) {
        let description = Some("d".repeat(bytes)).filter(|text| !text.is_empty());
        let interface = Interface { link_type, description, snaplen: 2048, ..Interface::default() };
        self.files.describe(self.link_types.len() as u32, &interface, "").unwrap();
        self.link_types.push(link_type);
    }

    /// The blocks of these frames, and their counts.
    fn frames(&mut self, frames: &[(u8, usize, i64)]) -> (Vec<u8>, Count) {
        let (mut blocks, mut count) = (Vec::new(), Count::default());
        for (interface, bytes, later_ms) in frames {
            let interface_id = u32::from(*interface) % self.link_types.len() as u32;
            self.clock_ns = self.clock_ns.saturating_add_signed(later_ms * 1_000_000);
            let mut data = self.count.to_le_bytes().to_vec();
            data.resize(8 + bytes, 7);
            let wire_len = data.len() as u32;
            let meta = Meta { interface_id, ts_ns: self.clock_ns, wire_len, ..Meta::default() };
            append(&mut blocks, &meta, &data);
            count += Count::one(wire_len);
            let link_type = self.link_types[interface_id as usize];
            self.frames.entry(link_type).or_default().push((self.clock_ns, self.count));
            self.count += 1;
        }
        (blocks, count)
    }

    fn take(&mut self, frames: &[(u8, usize, i64)]) -> Result<(), ConsumerError> {
        let (blocks, count) = self.frames(frames);
        self.files.take_run(&Run { block_bytes: &blocks, count })
    }

    fn play(&mut self, events: &[Event]) {
        for event in events {
            match event {
                Event::Describe(link_type, bytes) => self.describe(*link_type, *bytes),
                Event::Frames(frames) => self.take(frames).unwrap(),
                Event::Name(bytes) => {
                    let address = std::net::Ipv4Addr::from_bits(self.count as u32).into();
                    self.names.learn([AddressName { address, name: "n".repeat(*bytes) }]);
                }
                Event::Flush => self.files.flush().unwrap(),
            }
        }
    }

    fn finish(&mut self) {
        let statistics = |interface_id| Statistics {
            interface_id,
            received: Some(1),
            interface_drops: Some(2),
            filter_accepted: Some(3),
            os_drops: Some(4),
            delivered: Some(5),
            start_ns: Some(6),
            end_ns: Some(7),
            ts_ns: 8,
        };
        let all: Vec<Statistics> = (0..self.link_types.len() as u32).map(statistics).collect();
        self.files.finish(&all).unwrap();
    }

    /// The names of all files of the output, sorted.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.folder.path()).unwrap();
        let name = |entry: fs::DirEntry| entry.file_name().into_string().unwrap();
        let mut names: Vec<String> = entries.map(|entry| name(entry.unwrap())).collect();
        names.sort();
        names
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn bytes(&self, name: &str) -> u64 {
        fs::metadata(self.path(name)).unwrap().len()
    }
}

/// Reads the time and the number of each frame of a file. Fails if the file is not whole, or if its statistics count
/// other frames than its own.
fn read(path: &Path) -> Vec<(u64, u64)> {
    let bytes = fs::read(path).unwrap();
    let mut reader = FrameReader::open(&bytes[..]).unwrap();
    let (mut frames, mut by_interface) = (Vec::new(), BTreeMap::new());
    while let Some(frame) = reader.next().unwrap() {
        let number = u64::from_le_bytes(*frame.data.first_chunk().unwrap());
        frames.push((frame.ts_ns, number));
        *by_interface.entry(frame.interface).or_insert(0) += 1;
    }
    let delivered = delivered(&bytes);
    let interfaces = reader.interfaces().len();
    assert_eq!(delivered.len(), interfaces, "statistics of each interface");
    let own = |(id, _): &(u32, u64)| by_interface.get(id).copied().unwrap_or(0);
    assert!(delivered.iter().all(|one| own(one) == one.1), "{delivered:?}, {by_interface:?}");
    frames
}

/// The interface and `isb_usrdeliv` of each statistics block. Asserts that no other blocks follow them.
fn delivered(file: &[u8]) -> Vec<(u32, u64)> {
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
    let (mut at, mut found) = (0, Vec::new());
    while at < file.len() {
        let (kind, length) = (word(at), word(at + 4) as usize);
        assert_eq!(word(at + length - 4) as usize, length, "a whole block");
        assert!(kind == 5 || found.is_empty(), "block type {kind} behind the statistics");
        let mut option = at + 20;
        while kind == 5 && option < at + length - 4 {
            let (code, bytes) = (word(option) & 0xffff, word(option) >> 16);
            if code == 8 {
                let count = u64::from_le_bytes(*file[option + 4..].first_chunk().unwrap());
                found.push((word(at + 8), count));
            }
            option += 4 + bytes.next_multiple_of(4) as usize;
        }
        at += length;
    }
    found
}

/// The link type, the begin and the number in the name of a file.
fn parse(name: &str) -> (u16, u64, u64) {
    let (begin, rest) = name.strip_prefix('t').unwrap().split_once('-').unwrap();
    let (link_type, number) = match rest.strip_prefix(".raw-ip") {
        Some(number) => (101, number),
        None => (1, rest),
    };
    (link_type, begin.parse().unwrap_or(0), number.parse().unwrap_or(0))
}

fn rotation(size: Option<u64>, seconds: Option<u64>) -> Rotation {
    let file_time = seconds.map(Duration::from_secs);
    Rotation { file_bytes: size, file_time, ..Rotation::default() }
}

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![1..4000_u64, 4000..60_000_u64]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn each_frame_is_in_one_file_and_none_is_too_large(
        events in prop::collection::vec(event(), 0..40),
        size in prop::option::of(size()),
        seconds in prop::option::of(1..5_u64),
    ) {
        prop_assume!(size.is_some() || seconds.is_some());
        let name = if seconds.is_some() { "t%s-" } else { "t0-" };
        let mut written = Written::new(name, rotation(size, seconds));
        written.play(&events);
        written.finish();
        prop_assert_eq!(written.files.kept().frames, written.count);

        let mut names: Vec<_> = written.names().into_iter().map(|name| (parse(&name), name)).collect();
        names.sort();
        let mut found: BTreeMap<u16, Vec<(u64, u64)>> = BTreeMap::new();
        let first_ns = written.frames.values().flatten().min_by_key(|(_, number)| number);
        let first_ns = first_ns.map_or(0, |(ns, _)| *ns);
        for ((link_type, begin, _), name) in names {
            let frames = read(&written.path(&name));
            let bytes = written.bytes(&name);
            prop_assert!(bytes <= size.unwrap_or(u64::MAX) || frames.len() <= 1, "{name}: {bytes}");
            if let (Some(seconds), false) = (seconds, frames.is_empty()) {
                // The file contains frames of its own period, and older frames that came late.
                let begin_ns = begin * SECOND + first_ns % SECOND;
                prop_assert_eq!((begin_ns - first_ns) % (seconds * SECOND), 0, "{}", name);
                let end_ns = begin_ns + seconds * SECOND;
                prop_assert!(frames.iter().all(|(ns, _)| *ns < end_ns), "{name}: {frames:?}");
                let is_first = begin_ns == first_ns;
                prop_assert!(frames[0].0 >= begin_ns || is_first || size.is_some(), "{frames:?}");
            }
            found.entry(link_type).or_default().extend(frames);
        }
        found.retain(|_, frames| !frames.is_empty());
        prop_assert_eq!(found, written.frames);
    }

    #[test]
    fn files_in_turn_have_the_last_frames(
        events in prop::collection::vec(event(), 1..40),
        size in size(),
        files in 1..12_u32,
    ) {
        let events: Vec<_> =
            events.into_iter().filter(|event| !matches!(event, Event::Describe(..))).collect();
        let ring = Rotation { files_max: NonZero::new(files), ..rotation(Some(size), None) };
        let mut written = Written::new("ring", ring);
        written.play(&events);
        written.finish();
        let names = written.names();
        prop_assert!(names.len() <= files as usize);
        let mut found: Vec<_> = names.iter().flat_map(|name| read(&written.path(name))).collect();
        found.sort_by_key(|(_, number)| *number);
        let all = written.frames.remove(&1).unwrap_or_default();
        prop_assert_eq!(&found[..], &all[all.len() - found.len()..]);
        prop_assert!(found.len() == all.len() || names.len() == files as usize);
    }

    #[test]
    fn a_quota_keeps_the_last_frames(
        events in prop::collection::vec(event(), 1..60),
        quota in 12_000..80_000_u64,
        sized in any::<bool>(),
    ) {
        let events: Vec<_> = events
            .into_iter()
            .filter(|event| !matches!(event, Event::Describe(..) | Event::Name(_)))
            .collect();
        let size = sized.then_some(quota / 2);
        let kept = Rotation { quota_bytes: Some(quota), ..rotation(size, Some(1)) };
        let mut written = Written::new("t%s-", kept);
        for event in &events {
            written.play(std::slice::from_ref(event));
            written.files.flush().unwrap();
            let sum: u64 = written.names().iter().map(|name| written.bytes(name)).sum();
            prop_assert!(sum <= quota, "{sum}, {quota}: {:?}", written.names());
        }
        written.finish();
        let sum: u64 = written.names().iter().map(|name| written.bytes(name)).sum();
        prop_assert!(sum <= quota, "{sum}, {quota}: {:?}", written.names());
        let mut found: Vec<_> =
            written.names().iter().flat_map(|name| read(&written.path(name))).collect();
        found.sort_by_key(|(_, number)| *number);
        let all = written.frames.remove(&1).unwrap_or_default();
        prop_assert_eq!(&found[..], &all[all.len() - found.len()..]);
        prop_assert!(found.len() == all.len() || sum > quota / 4, "{sum} of {quota}");
    }
}

#[test]
fn a_quota_is_for_all_link_types_together() {
    let quota = 40_000;
    let kept = Rotation { quota_bytes: Some(quota), ..rotation(Some(quota / 4), None) };
    let mut written = Written::new("t0-", kept);
    written.describe(101, 0);
    let sum = |written: &Written| written.names().iter().map(|name| written.bytes(name)).sum();
    let mut sums: Vec<u64> = Vec::new();
    for interface in (0..200).map(|number| number % 2) {
        written.take(&[(interface, 1000, 1)]).unwrap();
        written.files.flush().unwrap();
        sums.push(sum(&written));
    }
    written.finish();
    assert!(sums.iter().all(|sum| *sum <= quota), "{sums:?}");
    assert!(sum(&written) <= quota && sum(&written) > quota / 2);
    let names = written.names();
    assert!(names.iter().any(|name| name.contains("raw-ip")), "{names:?}");
    let mut found: Vec<_> = names.iter().flat_map(|name| read(&written.path(name))).collect();
    found.sort_by_key(|(_, number)| *number);
    // The oldest files were deleted, whichever link type they have.
    assert_eq!(found.last().map(|(_, number)| *number), Some(199));
    assert!(found[0].1 > 150, "{found:?}");
}

#[test]
fn so_many_files_of_a_time_complete_the_output() {
    let two = Rotation { files_max: NonZero::new(2), ..rotation(None, Some(1)) };
    let mut written = Written::new("t%s-", two);
    // Frames at 0, 0.9 and 2.5 seconds. No frame is between 1 and 2 seconds.
    written.take(&[(0, 0, 0), (0, 0, 900), (0, 0, 1600)]).unwrap();
    let error = written.take(&[(0, 0, 100), (0, 0, 400), (0, 0, 0)]).unwrap_err();
    assert!(matches!(error, ConsumerError::Complete(_)) && error.wants_no_more(), "{error}");
    assert!(error.to_string().contains("--rotate-files 2"), "{error}");
    written.finish();
    assert_eq!(written.files.kept().frames, 4);
    let names = [format!("t{BEGIN}-"), format!("t{}-", BEGIN + 2)];
    assert_eq!(written.names(), names);
    let counts = names.map(|name| read(&written.path(&name)).len());
    assert_eq!(counts, [2, 2]);
}

#[test]
fn the_last_file_has_what_else_is_known_of_the_run() {
    let mut written = Written::new("t0-", rotation(Some(600), None));
    (0..3).for_each(|_| written.take(&[(0, 300, 1)]).unwrap());
    written.finish();
    let has = |name: &str, code: u16| {
        let bytes = fs::read(written.path(name)).unwrap();
        let option = [&code.to_le_bytes()[..], &8_u16.to_le_bytes()].concat();
        // Searches after the frame, whose bytes are 7.
        bytes[300..].windows(4).any(|window| window == option)
    };
    // isb_ifrecv, isb_osdrop, isb_usrdeliv.
    let codes = |name| [4, 7, 8].map(|code| has(name, code));
    assert_eq!(codes("t0-"), [false, false, true]);
    assert_eq!(codes("t0-1"), [false, false, true]);
    assert_eq!(codes("t0-2"), [true, true, true]);
    assert_eq!(read(&written.path("t0-2")).len(), 1);
}

#[test]
fn a_run_without_a_frame_leaves_a_file() {
    let mut written = Written::new("t%s-", rotation(None, Some(1)));
    written.finish();
    let names = written.names();
    assert_eq!(names.len(), 1);
    assert_eq!(read(&written.path(&names[0])), []);
}

#[test]
fn a_folder_that_goes_costs_the_frames_behind_it_and_says_so() {
    let mut written = Written::new("t0-", rotation(Some(2000), None));
    written.take(&[(0, 300, 1)]).unwrap();
    let (from, to) =
        (written.folder.path().to_owned(), written.folder.path().with_extension("gone"));
    fs::rename(&from, &to).unwrap();
    let error = written.take(&[(0, 1000, 1), (0, 1000, 1)]).unwrap_err();
    let kept = written.files.kept().frames;
    fs::rename(&to, &from).unwrap();
    assert!(matches!(error, ConsumerError::Output(_)), "{error}");
    assert!(error.to_string().contains("t0-1"), "{error}");
    assert_eq!(kept, 2);
    assert_eq!(written.names(), ["t0-"]);
    assert_eq!(read(&written.path("t0-")).len(), 2);
}

#[test]
fn a_frame_alone_comes_by_itself() {
    let mut written = Written::new("t0-", rotation(Some(500), None));
    for _ in 0..3 {
        let (block, _) = written.frames(&[(0, 200, 1)]);
        written.files.take(&Record::parse(&block).unwrap()).unwrap();
    }
    written.finish();
    assert_eq!(written.names(), ["t0-", "t0-1", "t0-2"]);
    assert!(written.names().iter().all(|name| read(&written.path(name)).len() == 1));
}
