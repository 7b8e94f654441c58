//! A recorder of rings in memory, and the frames that are extracted from its files.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weir_consumer::{Begin, Consumer, ConsumerError, Count, JoinedFeed, Sink, Step};
use weir_disk::How;
use weir_frame::pcapng::{Interface, Statistics};
use weir_frame::record::{Meta, Record};
use weir_ring::{Clock, Mapping, Ring, RingSpec, Writer, WriterKind, memory};
use weir_store::catalog::Catalog;
use weir_store::extract::{Options, Query, Stats, extract};
use weir_store::recorder::Settings;
use weir_store::recorder::settings::Compression;
use weir_store::{Names, Recorder};

/// A frame that was recorded: its time, the name of its interface, its bytes.
pub type Frame = (u64, String, Vec<u8>);

#[derive(Default)]
pub struct Collect {
    names: Vec<String>,
    pub frames: Vec<Frame>,
}

impl Sink for Collect {
    fn describe(
        &mut self,
        number: u32,
        interface: &Interface,
        _: &str,
    ) -> Result<(), ConsumerError> {
        assert_eq!(number as usize, self.names.len());
        self.names.push(interface.name.clone());
        Ok(())
    }

    fn take(&mut self, record: &Record<'_>) -> Result<(), ConsumerError> {
        let name = self.names[record.meta.interface_id as usize].clone();
        self.frames.push((record.meta.ts_ns, name, record.frame.to_vec()));
        Ok(())
    }

    fn flush(&mut self) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn finish(&mut self, _: &[Statistics]) -> Result<(), ConsumerError> {
        Ok(())
    }

    fn kept(&self) -> Count {
        Count::default()
    }
}

fn ring(names: &[&str]) -> Ring<Mapping> {
    let interface =
        |name: &&str| Interface { name: (*name).into(), link_type: 1, ..Interface::default() };
    let spec = RingSpec {
        data_blocks: 8,
        interfaces: names.iter().map(interface).collect(),
        cpu: None,
        clock: Clock::Foreign,
        writer: WriterKind::User,
    };
    memory::create_memfd("extract-test", &spec).unwrap()
}

/// A frame of IPv4 and UDP whose bytes tell its time.
pub fn frame(ts_ns: u64, bytes: usize) -> Vec<u8> {
    let mut frame = vec![0; bytes.max(60)];
    frame[12..14].copy_from_slice(&[8, 0]);
    frame[14] = 0x45;
    frame[23] = 17;
    frame[26..30].copy_from_slice(&[10, 0, 0, (ts_ns % 7) as u8]);
    frame[30..34].copy_from_slice(&[10, 1, 0, (ts_ns % 5) as u8]);
    frame[34..36].copy_from_slice(&(1000 + (ts_ns % 100) as u16).to_be_bytes());
    frame[36..38].copy_from_slice(&443_u16.to_be_bytes());
    frame[42..50].copy_from_slice(&ts_ns.to_be_bytes());
    frame
}

pub struct Rig {
    pub directories: Vec<tempfile::TempDir>,
    pub writers: Vec<Writer<Mapping>>,
    pub recorder: Recorder<weir_disk::AnyDisk>,
    pub frames: Vec<Frame>,
}

impl Rig {
    /// A recorder of one feed with this many rings, in this many directories.
    pub fn new(rings: usize, volumes: usize, index: bool) -> Rig {
        Rig::with(rings, volumes, Settings { index, ..Settings::default() })
    }

    /// The same, with one directory and compressed files.
    pub fn compressed(rings: usize) -> Rig {
        let compression = Some(Compression { level: 1, threads: 2 });
        Rig::with(rings, 1, Settings { compression, ..Settings::default() })
    }

    pub fn with(rings: usize, volumes: usize, settings: Settings) -> Rig {
        let directory = || tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        Rig::again((0..volumes).map(|_| directory()).collect(), rings, settings)
    }

    /// A recorder in directories that may have files.
    pub fn again(directories: Vec<tempfile::TempDir>, rings: usize, settings: Settings) -> Rig {
        let paths = directories.iter().map(|one| one.path().to_owned()).collect();
        let settings = Settings { directories: paths, file_bytes: 5 << 20, ..settings };
        let disk = weir_disk::open(directories[0].path(), How::Best).unwrap();
        let mut recorder = Recorder::new(settings, disk).unwrap();
        let rings: Vec<_> = (0..rings).map(|_| ring(&["eth0", "eth1"])).collect();
        let writers = rings.iter().map(|ring| Writer::new(ring.clone())).collect();
        let (label, begin) = (String::new(), Begin::Oldest);
        let feed =
            JoinedFeed { key: 0, output: 0, label, rings, first_line: 0, channel: None, begin };
        recorder.join(feed).unwrap();
        Rig { directories, writers, recorder, frames: Vec::new() }
    }

    /// Makes the recorder write these names of addresses to its files.
    pub fn with_names(self, names: &Names) -> Rig {
        Rig { recorder: self.recorder.with_names(names), ..self }
    }

    pub fn push(&mut self, ring: usize, ts_ns: u64, interface_id: u32, bytes: usize) {
        let bytes = frame(ts_ns, bytes);
        let meta = Meta { ts_ns, interface_id, wire_len: bytes.len() as u32, ..Meta::default() };
        self.writers[ring].push(&meta, &bytes);
        self.frames.push((ts_ns, format!("eth{interface_id}"), bytes));
    }

    pub fn settle(&mut self) {
        self.writers.iter_mut().for_each(Writer::publish);
        while let Step::Busy | Step::Writing = self.recorder.step(u64::MAX).unwrap() {
            std::thread::sleep(Duration::from_micros(200));
        }
    }

    pub fn finish(&mut self) {
        self.writers.iter_mut().for_each(Writer::close);
        while self.recorder.step(u64::MAX).unwrap() != Step::Ended {
            std::thread::sleep(Duration::from_micros(200));
        }
        self.recorder.finish(&[]).unwrap();
        self.frames.sort_by_key(|(ts_ns, ..)| *ts_ns);
    }

    pub fn paths(&self) -> Vec<PathBuf> {
        self.directories.iter().map(|one| one.path().to_owned()).collect()
    }
}

pub fn extracted(paths: &[PathBuf], query: &Query, threads: usize) -> (Vec<Frame>, Stats) {
    let catalog = Catalog::list(paths).unwrap();
    let options = Options { threads, frames_max: u64::MAX, names: Names::default() };
    let mut sink = Collect::default();
    let (stats, result) = extract(&catalog, query, &options, &mut sink, &|| false);
    result.unwrap();
    (sink.frames, stats)
}

pub fn index_files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.filter(|path| path.extension().is_some_and(|end| end == "index")).collect()
}
